"""The directive ``kernel``: a part of a kernel's source, with notes beside its lines.

The argument is a file below ``kernels/``. The part begins with the line that contains
``:from:`` and ends with the next one that contains ``:to:``; without these it is the
whole file. The content is a definition list. A term is the text of a line, or of a part
of one, that occurs once in the part: its definition is the note on that line::

    ```{kernel} dense/naive.cl
    :from: __kernel void naive
    :to: }

    `sum += w[k] * x[k]`
    : All work-items of a group read the same input.
    ```

A build fails where a text is gone or occurs twice, and so does ``tests/test_docs.py``.
"""

from __future__ import annotations

from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from kernel_parts import KERNELS, part
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class Kernel(SphinxDirective):
    """A part of a kernel's source, and notes on its lines."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar = {"from": directives.unchanged, "to": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        """Return the source, and the notes as a list of the numbers of lines."""
        path = self.arguments[0]
        self.env.note_dependency(str(KERNELS / path))
        try:
            return [self._annotated(path)]
        except ValueError as error:
            raise self.error(str(error)) from error

    def _annotated(self, path: str) -> nodes.Node:
        found = part(path, self.options.get("from"), self.options.get("to"))
        notes = nodes.container(classes=["kernel-notes"])
        notes += self.parse_content_to_nodes()
        numbers = []
        for term in notes.findall(nodes.term):
            number = found.line_of(term.astext())
            numbers.append(number - found.first + 1)
            term.insert(0, nodes.inline("", f"{number} ", classes=["kernel-line"]))
        code = "\n".join(found.lines)
        source = nodes.literal_block(code, code, language="c", linenos=True)
        source["highlight_args"] = {
            "linenostart": found.first, "hl_lines": sorted(numbers)
        }
        caption = nodes.paragraph("", f"kernels/{path}", classes=["kernel-path"])
        return nodes.container("", caption, source, notes, classes=["kernel"])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.add_directive("kernel", Kernel)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
