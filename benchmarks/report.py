"""Tables of rows for people, at most `WIDTH` columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

from tabulate import tabulate

from clnet.summary import WIDTH

from .candidates import BASES
from .records import Row

Label = Callable[[Row], str]


def tables(rows: Sequence[Row], label: Label = lambda row: row.candidate) -> str:
    """Return rows as tables: a line a case, a column a candidate, times and ratios.

    Parameters
    ----------
    rows : sequence of Row
        Of any tables, batches and bases.
    label : callable
        Names a row's column.
    """
    parts = []
    measured = [row for row in rows if row.status == "measured"]
    groups = dict.fromkeys((row.table, row.basis, row.batch) for row in measured)
    for table, basis, batch in groups:
        group = [
            row for row in measured if (row.table, row.basis, row.batch)
            == (table, basis, batch)
        ]
        heading = f"{table.replace('_', ' ')}, batch {batch}, {basis}: "
        parts.append(_fill(f"{heading}microseconds ({BASES[basis]})"))
        parts.append(_matrix(group, label, _microseconds, floor=True))
        peers = list(dict.fromkeys(row.against for row in group if row.against))
        if peers:
            parts.append(_fill(f"{heading}times as fast as {' or '.join(peers)}"))
            parts.append(_matrix(group, label, _ratio, floor=False))
    lines = _without_time(rows)
    if lines:
        parts.append("not measured\n" + "\n".join(lines))
    return "\n\n".join(parts)


def _matrix(
    rows: Sequence[Row], label: Label, cell: Callable[[Row], str], floor: bool
) -> str:
    cases = dict.fromkeys(row.case for row in rows)
    columns = list(dict.fromkeys(label(row) for row in rows))
    cells = {(row.case, label(row)): cell(row) for row in rows}
    if floor and any(row.floor is not None for row in rows):
        columns.append("(floor)")
        for row in rows:
            if row.floor is not None:
                cells[row.case, "(floor)"] = number(1e6 * row.floor)
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


def _microseconds(row: Row) -> str:
    assert row.median is not None
    return number(1e6 * row.median)


def _ratio(row: Row) -> str:
    return "" if row.ratio is None else number(row.ratio)


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


def _fill(text: str) -> str:
    return textwrap.fill(text, WIDTH)
