"""Printed tables of measurements, at most `WIDTH` columns wide."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping

import pandas as pd

from clnet.errors import WIDTH

from ..candidates import BASES
from .metrics import Metric, call, microseconds

FLOOR = "(floor)"  # the column of the roofline's lower bound


def title(rows: pd.DataFrame) -> pd.Series:
    """Return the table and the call; rows of the same title are printed together."""
    return rows["table"].str.replace("_", " ") + ", " + call(rows)


def basis_title(rows: pd.DataFrame) -> pd.Series:
    """Return the table and the basis, where studies have one call a basis."""
    return rows["table"] + ", " + rows["basis"]


def candidate(rows: pd.DataFrame) -> pd.Series:
    """Return the candidate, the usual column of a row's value."""
    return rows["candidate"]


def tables(
    rows: pd.DataFrame,
    column: Metric = candidate,
    title: Metric = title,
    meanings: Mapping[str, str] = BASES,
) -> str:
    """Return times and ratios: a line a case, a column a candidate.

    `meanings` explain each basis.
    """
    parts = []
    measured = rows[rows["status"] == "measured"]
    for name, group in measured.groupby(title(measured), sort=False):
        times = pivot(group, microseconds(group), column)
        floor = 1e6 * group.groupby("case", sort=False)["floor"].last()
        if floor.notna().any():
            times[FLOOR] = floor
        meaning = meanings[group["basis"].iloc[0]]
        parts += [fill(f"{name}: microseconds ({meaning})"), text(times)]
        baselines = [against for against in group["against"].unique() if against]
        if baselines:
            parts.append(fill(f"{name}: times as fast as {' or '.join(baselines)}"))
            parts.append(text(pivot(group, group["ratio"], column)))
    return "\n\n".join([*parts, *_without_time(rows)])


def metric_tables(
    rows: pd.DataFrame, meaning: str, metric: Metric, title: Metric = title
) -> list[str]:
    """Return the tables of a metric: a heading and a table for each title."""
    values = metric(rows).dropna()
    rows = rows.loc[values.index]
    parts = []
    for name, group in rows.groupby(title(rows), sort=False):
        heading = fill(f"{name}: {meaning}")
        parts.append(f"{heading}\n\n{text(pivot(group, values[group.index]))}")
    return parts


def pivot(
    rows: pd.DataFrame, values: pd.Series, column: Metric = candidate
) -> pd.DataFrame:
    """Return values as a line a case and a column a candidate, in the rows' order."""
    cases, columns = rows["case"].rename(None), column(rows).rename(None)
    table = values.groupby([cases, columns]).last().unstack()
    table = table.reindex(index=cases.unique(), columns=columns.unique())
    return table.dropna(axis="columns", how="all")


def text(table: pd.DataFrame) -> str:
    """Return a table as text, in several parts if it is too wide."""
    return str(table.map(number).to_string(line_width=WIDTH))


def number(value: float | str) -> str:
    """Return a positive number with three digits, or without decimals from 100 on."""
    if isinstance(value, str):
        return value
    if math.isnan(value):
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _without_time(rows: pd.DataFrame) -> list[str]:
    """Return the reasons for missing times, each with its cases."""
    lines = []
    other = rows[rows["status"] != "measured"]
    for (name, status, reason), group in other.groupby(
        ["candidate", "status", "reason"], sort=False
    ):
        cases = (group["case"] + " batch " + group["batch"].astype(str)).unique()
        lines.append(textwrap.fill(
            f"{name} ({', '.join(cases)}): {status}: {reason}", WIDTH,
            initial_indent="  ", subsequent_indent="    ",
        ))
    return ["not measured\n" + "\n".join(lines)] if lines else []


def fill(line: str) -> str:
    """Return a line, wrapped to at most `WIDTH` columns."""
    return textwrap.fill(line, WIDTH)
