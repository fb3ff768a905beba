"""The directive ``command-help``: the command line's help, a section a command."""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from clnet.cli.main import GROUPS, parser


class CommandHelp(SphinxDirective):
    """The help of ``clnet``, and of each of its commands in a section of its own."""

    def run(self) -> list[nodes.Node]:
        """Return the sections, in the order of the help."""
        program = parser()
        commands = next(
            action.choices for action in program._actions if action.dest == "command"
        )
        found: list[nodes.Node] = [_literal(program.format_help())]
        for name in (name for group in GROUPS.values() for name in group):
            title = f"clnet {name}"
            section = nodes.section(ids=[nodes.make_id(title)], names=[title])
            section += nodes.title("", "", nodes.literal(title, title))
            section += _literal(commands[name].format_help())
            found.append(section)
        return found


def _literal(text: str) -> nodes.literal_block:
    return nodes.literal_block(text, text, language="text")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
