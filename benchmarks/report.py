"""Tables of rows for people, at most `WIDTH` columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tabulate import tabulate

from clnet.cli.summary import WIDTH

from .candidates import BASES
from .records import Row
from .values import Value, by_call

Label = Callable[[Row], str]
FLOOR = "(floor)"  # a column


@dataclass(frozen=True)
class Layout:
    """How rows become tables.

    Attributes
    ----------
    title : callable
        Of a row; rows of the same title share a table.
    unit : callable
        Of a row: the unit's name, and how many make a second.
    meanings : mapping
        What the time is of, for each basis.
    ratio : callable
        What is shown of a row's ratio.
    ratio_text : str
        What that is; ``{}`` stands for the peer.
    """

    title: Callable[[Row], str]
    unit: Callable[[Row], tuple[str, float]]
    meanings: Mapping[str, str]
    ratio: Callable[[float], float] = lambda ratio: ratio
    ratio_text: str = "times as fast as {}"


CALLS = Layout(
    title=lambda row: f"{row.table.replace('_', ' ')}, {by_call(row)}",
    unit=lambda row: ("microseconds", 1e6), meanings=BASES,
)


def tables(
    rows: Sequence[Row],
    label: Label = lambda row: row.candidate,
    layout: Layout = CALLS,
) -> str:
    """Return rows as tables: a line a case, a column a candidate, times and ratios.

    Parameters
    ----------
    rows : sequence of Row
        Of any tables, batches and bases.
    label : callable
        Names a row's column.
    layout : Layout
        How.
    """
    parts = []
    measured = [row for row in rows if row.status == "measured"]
    for title in dict.fromkeys(layout.title(row) for row in measured):
        group = [row for row in measured if layout.title(row) == title]
        unit, scale = layout.unit(group[0])
        meaning = layout.meanings[group[0].basis]
        parts.append(fill(f"{title}: {unit} ({meaning})"))
        times = {
            id(row): number(scale * row.median) for row in group
            if row.median is not None
        }
        floors = {
            row.case: number(scale * row.floor) for row in group
            if row.floor is not None
        }
        parts.append(matrix(group, partial(_of, times), label, floors))
        peers = list(dict.fromkeys(row.against for row in group if row.against))
        if peers:
            text = layout.ratio_text.format(" or ".join(peers))
            parts.append(fill(f"{title}: {text}"))
            ratios = {
                id(row): number(layout.ratio(row.ratio)) for row in group if row.ratio
            }
            parts.append(matrix(group, partial(_of, ratios), label))
    lines = _without_time(rows)
    if lines:
        parts.append("not measured\n" + "\n".join(lines))
    return "\n\n".join(parts)


def figures(
    rows: Sequence[Row], title: str, value: Value, label: Label | None = None,
    layout: Layout = CALLS,
) -> str:
    """Return what is made of rows' times as tables, as `tables` has the times.

    Parameters
    ----------
    rows : sequence of Row
        Of any tables, batches and bases.
    title : str
        What it is.
    value : Value
        What a cell shows.
    label : callable
        As of `tables`.
    layout : Layout
        How rows become tables.
    """
    parts = []
    found = [(row, value(row, rows)) for row in rows if row.median is not None]
    shown = {id(row): number(figure) for row, figure in found if figure is not None}
    there = [row for row, _ in found if id(row) in shown]
    for text in dict.fromkeys(layout.title(row) for row in there):
        group = [row for row in there if layout.title(row) == text]
        parts.append(fill(f"{text}: {title}"))
        cell = partial(_of, shown)
        parts.append(matrix(group, cell, label) if label else matrix(group, cell))
    return "\n\n".join(parts)


def _of(texts: Mapping[int, str], row: Row) -> str:
    return texts.get(id(row), "")


def matrix(
    rows: Sequence[Row],
    cell: Callable[[Row], str],
    label: Label = lambda row: row.candidate,
    floors: Mapping[str, str] | None = None,
) -> str:
    """Return a line a case and a column a candidate, in tables of at most `WIDTH`.

    Parameters
    ----------
    rows : sequence of Row
        One for each cell.
    cell : callable
        A row's text.
    label : callable
        Names a row's column.
    floors : mapping of str to str
        A last column's texts, by case.
    """
    cases = dict.fromkeys(row.case for row in rows)
    columns = list(dict.fromkeys(label(row) for row in rows))
    cells = {(row.case, label(row)): cell(row) for row in rows}
    if floors:
        columns.append(FLOOR)
        cells |= {(case, FLOOR): text for case, text in floors.items()}
    tables = []
    while columns:
        taken = next(
            n for n in range(len(columns), 0, -1)
            if n == 1 or _width(_table(cases, columns[:n], cells)) <= WIDTH
        )
        tables.append(_table(cases, columns[:taken], cells))
        columns = columns[taken:]
    return "\n\n".join(tables)


def _table(
    cases: dict[str, None], columns: list[str], cells: dict[tuple[str, str], str]
) -> str:
    lines = [
        [case, *(cells.get((case, name), "") for name in columns)] for case in cases
    ]
    align = ["left", *("right" for _ in columns)]
    return str(
        tabulate(lines, ["case", *columns], disable_numparse=True, colalign=align)
    )


def _width(table: str) -> int:
    return max(len(line) for line in table.splitlines())


def number(value: float) -> str:
    """Return a positive number with three digits, or all before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _without_time(rows: Sequence[Row]) -> list[str]:
    """Return a line for each reason that there is no time, with its cases."""
    reasons: dict[tuple[str, str, str], dict[str, None]] = {}
    for row in rows:
        if row.status != "measured":
            key = (row.candidate, row.status, row.reason)
            reasons.setdefault(key, {})[f"{row.case} batch {row.batch}"] = None
    return [
        textwrap.fill(
            f"{name} ({', '.join(cases)}): {status}: {reason}", WIDTH,
            initial_indent="  ", subsequent_indent="    ",
        )
        for (name, status, reason), cases in reasons.items()
    ]


def fill(text: str) -> str:
    """Return a text in lines of at most `WIDTH` columns."""
    return textwrap.fill(text, WIDTH)
