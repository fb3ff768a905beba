"""Directives of committed rows: ``rows``, ``standings``, ``behind`` and ``cards``.

``rows`` is a table or a chart. Its argument is a file of ``benchmarks/results``.
Options choose rows by their columns, and the lines and columns of the table::

    ```{rows} feedforward-nvidia-h200.csv
    :where: table=configurations batch=1 basis=device
    :lines: case: config-1, config-4
    :columns: candidate: naive, local, planned=the plan
    :value: us
    :chart:
    ```

A name after ``=`` is what the table shows. ``:value:`` is ``us``, ``ms`` or ``s`` of
the median, or ``ratio NAME``: how many times as long the candidate of that name takes.
``:chart:`` draws the table's values as bars instead, on a logarithmic scale.

``standings`` counts the cases in which clnet is ahead of every peer. ``behind`` lists
those of one device, a part of whose name is the argument, where it is not. ``cards``
compares two cards, by parts of their names, in the cases and candidates of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from row_tables import RESULTS, UNITS, cells, chart, parse_axis, values
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from standings import behind, cards, committed, counts


class Rows(SphinxDirective):
    """A table or chart of committed measurements."""

    required_arguments = 1
    option_spec: ClassVar = {
        "where": directives.unchanged_required,
        "lines": directives.unchanged_required,
        "columns": directives.unchanged_required,
        "value": directives.unchanged_required,
        "chart": directives.flag,
    }

    def run(self) -> list[nodes.Node]:
        """Return the table, or the chart, and a link to the rows."""
        try:
            return self._shown(self.arguments[0])
        except ValueError as error:
            raise self.error(str(error)) from error

    def _shown(self, path: str) -> list[nodes.Node]:
        self.env.note_dependency(str(RESULTS / path))
        where = dict(one.split("=") for one in self.options.get("where", "").split())
        value = self.options.get("value", "us")
        table = values(
            path, where, parse_axis(self.options["lines"]),
            parse_axis(self.options["columns"]), value,
        )
        unit = "times as fast" if value.startswith("ratio") else value
        shown: nodes.Node = (
            nodes.raw("", chart(table, unit), format="html")
            if "chart" in self.options else text_table(cells(table))
        )
        link = addnodes.download_reference(
            "", "", nodes.Text("rows"), reftarget=f"/../benchmarks/results/{path}"
        )
        of = nodes.Text(f"In {unit}; " if unit in UNITS else f"{unit.capitalize()}; ")
        return [shown, nodes.paragraph("", "", of, link, nodes.Text("."))]


class Standings(SphinxDirective):
    """The table of all cases by study and device."""

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        return [text_table(counts(list(committed())))]


class Behind(SphinxDirective):
    """The table of a device's cases whose peer is faster."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        return [text_table(behind(list(committed()), self.arguments[0]))]


class Cards(SphinxDirective):
    """The table of the cases that ran on two cards."""

    required_arguments = 2

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        return [text_table(cards(*self.arguments))]


def text_table(texts: Sequence[Sequence[str]]) -> nodes.table:
    """Return a table of texts, whose first line are its headings."""
    group = nodes.tgroup(cols=len(texts[0]))
    group += [nodes.colspec(colwidth=1) for _ in texts[0]]
    head, body = nodes.thead(), nodes.tbody()
    for number_, line in enumerate(texts):
        row = nodes.row()
        for text in line:
            row += nodes.entry("", nodes.paragraph("", text))
        (head if number_ == 0 else body).append(row)
    group += [head, body]
    return nodes.table("", group, classes=["rows"])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.add_directive("rows", Rows)
    app.add_directive("standings", Standings)
    app.add_directive("behind", Behind)
    app.add_directive("cards", Cards)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
