"""What is made of a row's time, for tables and pictures alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clnet.ir.ops import PRECISIONS

from .records import Row

SERIAL_CALL = "batch 1, wall"  # of what computes a sample after the other on one core

Value = Callable[[Row, Sequence[Row]], float | None]
"""A number of a row among rows; None: it has none."""


def by_call(row: Row) -> str:
    """Return what a call is: batch, basis, and a precision but the highest.

    Rows of one such text share a table and a picture.
    """
    lower = [] if row.precision == PRECISIONS[0] else [row.precision]
    return ", ".join([f"batch {row.batch}", *lower, row.basis])


def widths(row: Row) -> list[int]:
    """Return a row's inputs and neurons of each layer."""
    return [int(n) for n in row.sizes.split("-")]


def microseconds(row: Row, rows: Sequence[Row]) -> float | None:
    """Return a row's median in microseconds."""
    return None if row.median is None else 1e6 * row.median


def speed_up(*names: str) -> Value:
    """Return what divides a peer's time by a row's: same case, batch and basis.

    Parameters
    ----------
    *names : str
        Candidates; the first that was measured is the peer.
    """

    def value(row: Row, rows: Sequence[Row]) -> float | None:
        peer = _first(names, by_call(row), row, rows)
        return peer / row.median if peer and row.median else None

    return value


def per_sample(*names: str) -> Value:
    """Return what divides a peer's time for one sample by a row's for each sample.

    The peer counts by the wall clock, host to host, whatever the row's basis: what runs
    on the host's core has no other.

    Parameters
    ----------
    *names : str
        Candidates; the first that was measured is the peer.
    """

    def value(row: Row, rows: Sequence[Row]) -> float | None:
        peer = _first(names, SERIAL_CALL, row, rows)
        return peer * row.batch / row.median if peer and row.median else None

    return value


def _first(
    names: Sequence[str], call: str, row: Row, rows: Sequence[Row]
) -> float | None:
    same = {
        other.candidate: other.median for other in rows
        if (other.table, other.case, by_call(other)) == (row.table, row.case, call)
    }
    return next((same[name] for name in names if same.get(name)), None)
