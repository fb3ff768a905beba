"""Metrics of a table of measurements, for printed tables and pictures alike."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from clnet.checks import PRECISIONS

SERIAL_CALL = "batch 1, wall"  # of a baseline that computes sample after sample

Metric = Callable[[pd.DataFrame], pd.Series]
"""A function from a table of measurements to a value a row; NaN: none."""


def call(rows: pd.DataFrame) -> pd.Series:
    """Return batch, precision (unless the highest) and basis, as text.

    Rows of the same call share a printed table and a picture.
    """
    precision = rows["precision"].map(
        lambda name: "" if name == PRECISIONS[0] else f"{name}, "
    )
    batch = rows["batch"].astype(str)
    return "batch " + batch + ", " + precision + rows["basis"]


def widths(rows: pd.DataFrame) -> pd.Series:
    """Return the list of inputs and neurons of each layer."""
    return rows["sizes"].map(lambda sizes: [int(n) for n in sizes.split("-")])


def microseconds(rows: pd.DataFrame) -> pd.Series:
    """Return the median in microseconds."""
    return 1e6 * rows["median"]


def speed_up(*baselines: str) -> Metric:
    """Return the metric: a baseline's time over the row's, of the same call.

    Of the baselines the first one measured counts.
    """

    def metric(rows: pd.DataFrame) -> pd.Series:
        keys = [rows["table"], rows["case"], call(rows)]
        return _first(baselines, rows, rows["median"], keys) / rows["median"]

    return metric


def speed_up_per_sample(*baselines: str) -> Metric:
    """Return the metric: a baseline's time for one sample over the row's per sample.

    The baseline's time, of the first one measured, is that of `SERIAL_CALL`, whatever
    the row's basis: a program that runs on the host's core has no other.
    """

    def metric(rows: pd.DataFrame) -> pd.Series:
        keys = [rows["table"], rows["case"]]
        serial = rows["median"].where(call(rows) == SERIAL_CALL)
        time = _first(baselines, rows, serial, keys)
        return time * rows["batch"] / rows["median"]

    return metric


def _first(
    names: tuple[str, ...], rows: pd.DataFrame, times: pd.Series, keys: list[pd.Series]
) -> pd.Series:
    """Return, for each row, the time of the first name measured in its group."""
    first = pd.Series(float("nan"), index=rows.index)
    for name in names:
        named = times.where(rows["candidate"] == name)
        first = first.fillna(named.groupby(keys).transform("first"))
    return first
