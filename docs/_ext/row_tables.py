"""Tables and charts of the committed measurements. No Sphinx."""

from __future__ import annotations

import csv
import html
import math
from collections.abc import Mapping
from pathlib import Path

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
UNITS = {"us": 1e6, "ms": 1e3, "s": 1.0}
Names = Mapping[str, str]
Table = dict[tuple[str, str], float]


def read(path: str, where: Names) -> list[dict[str, str]]:
    """Return the measured rows of a file whose columns have the given values.

    Raises
    ------
    ValueError
        If there is no such file or row.
    """
    source = RESULTS / path
    if not source.is_file():
        raise ValueError(f"benchmarks/results/{path}: there is no such file")
    with source.open(encoding="utf-8", newline="") as file:
        rows = [
            row for row in csv.DictReader(file)
            if row.get("status", "measured") == "measured"
            and all(row.get(column) == value for column, value in where.items())
        ]
    if not rows:
        raise ValueError(f"benchmarks/results/{path}: no row has {dict(where)}")
    return rows


def values(
    path: str, where: Names, lines: tuple[str, Names], columns: tuple[str, Names],
    value: str = "us",
) -> Table:
    """Return the values of a table by the names of its lines and columns.

    Parameters
    ----------
    path : str
        A file of ``benchmarks/results``.
    where : mapping of str to str
        Values that columns of the file must have.
    lines, columns : tuple of (str, mapping)
        A column of the file, and which of its values are shown, each with its name.
    value : str
        The unit, or ``"ratio NAME"``, as above.

    Raises
    ------
    ValueError
        If there is no such file, or a line or column has no row.
    """
    rows = read(path, where)
    medians: Table = {}  # the last of several rows counts
    for row in rows:
        seconds = row["median"] if "median" in row else row["seconds"]
        medians[row[lines[0]], row[columns[0]]] = float(seconds)
    for axis, (column, names) in enumerate((lines, columns)):
        for name in names:
            if not any(key[axis] == name for key in medians):
                raise ValueError(
                    f"benchmarks/results/{path}: no row of {dict(where)} has the "
                    f"{column} {name!r}"
                )
    kind, _, other = value.partition(" ")
    found: Table = {}
    for line, line_name in lines[1].items():
        for column, column_name in columns[1].items():
            median = medians.get((line, column))
            reference = medians.get((line, other)) if kind == "ratio" else 1.0
            if median is not None and reference is not None:
                found[line_name, column_name] = (
                    reference / median if kind == "ratio" else median * UNITS[kind]
                )
    return found


def number(value: float) -> str:
    """Return a positive number with three digits, or without decimals from 100 on."""
    if value >= 1000:
        digits = 10 ** (math.floor(math.log10(value)) - 2)
        return f"{round(value / digits) * digits:.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def cells(table: Table) -> list[list[str]]:
    """Return the texts of a table: a line of headings, and the others."""
    lines = list(dict.fromkeys(line for line, _ in table))
    columns = list(dict.fromkeys(column for _, column in table))
    return [["", *columns]] + [
        [line, *(number(table[line, c]) if (line, c) in table else "" for c in columns)]
        for line in lines
    ]


def chart(table: Table, unit: str) -> str:
    """Return the values as bars, a group a line of the table: SVG for both colours."""
    lines = list(dict.fromkeys(line for line, _ in table))
    low = math.floor(math.log10(min(table.values())) - 0.1)
    high = math.ceil(math.log10(max(table.values())))
    left, right, step = 150, 590, 18

    def at(value: float) -> float:
        return left + (right - left) * (math.log10(value) - low) / (high - low)

    parts, y = [], 8
    for line in lines:
        parts.append(
            f'<text x="0" y="{y + 13}" class="line">{html.escape(line)}</text>'
        )
        y += step
        for (of, column), value in table.items():
            if of == line:
                parts.append(
                    f'<text x="{left - 8}" y="{y + 12}" class="name">'
                    f"{html.escape(column)}</text>"
                    f'<rect x="{left}" y="{y + 2}" height="{step - 5}" '
                    f'width="{at(value) - left:.1f}"/>'
                    f'<text x="{at(value) + 5:.1f}" y="{y + 12}">{number(value)}</text>'
                )
                y += step
        y += step // 3
    ticks = "".join(
        f'<path d="M{at(10.0 ** power):.1f} 4V{y}"/>'
        f'<text x="{at(10.0 ** power):.1f}" y="{y + 14}" class="tick">'
        f"{10.0 ** power:g}</text>"
        for power in range(low, high + 1)
    )
    title = html.escape(f"{unit}, on a logarithmic scale")
    return (
        f'<svg class="rows" viewBox="0 0 640 {y + 34}" role="img" '
        f'aria-label="{title}">{ticks}{"".join(parts)}'
        f'<text x="{right}" y="{y + 30}" class="name">{title}</text></svg>'
    )


def parse_names(text: str) -> dict[str, str]:
    """Return the values of ``a, b=B`` with the names to show, after the last ``=``."""
    pairs = (one.strip().rpartition("=") for one in text.split(","))
    return {value or name: name for value, _, name in pairs}


def parse_axis(text: str) -> tuple[str, dict[str, str]]:
    """Return the column of ``case: a, b=B``, and its values with their names."""
    column, _, names = text.partition(":")
    return column.strip(), parse_names(names)
