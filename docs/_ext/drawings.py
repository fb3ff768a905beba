"""The directives ``timeline`` and ``drawing``: pictures in the page's own colours.

A timeline shows who waits for whom; its lines are those of ``timelines.segments``::

    ```{timeline}
    group 0: weights 3 memory, products 2, publish 1 sync #a
    group 1: weights 2 memory, waits 4 wait <a, products 2
    ```

The argument of ``drawing`` is an SVG of ``docs/textbook/drawings``, whose classes are
those of ``site.css``.
"""

from __future__ import annotations

from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from timelines import drawing

DRAWINGS = Path(__file__).parents[1] / "textbook" / "drawings"


class Timeline(SphinxDirective):
    """A drawing of who waits for whom."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the drawing."""
        try:
            return [nodes.raw("", drawing("\n".join(self.content)), format="html")]
        except ValueError as error:
            raise self.error(str(error)) from error


class Drawing(SphinxDirective):
    """A drawing from a file."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the drawing."""
        path = DRAWINGS / f"{self.arguments[0]}.svg"
        self.env.note_dependency(str(path))
        if not path.is_file():
            raise self.error(f"docs/textbook/drawings has no {path.name}")
        return [nodes.raw("", path.read_text("utf-8"), format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.add_directive("timeline", Timeline)
    app.add_directive("drawing", Drawing)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
