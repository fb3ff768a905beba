"""What is made of a row's time, for tables and pictures alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .records import Row

Value = Callable[[Row, Sequence[Row]], float | None]
"""A number of a row among rows; None: it has none."""


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
        peer = _first(names, row.batch, row.basis, row, rows)
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
        peer = _first(names, 1, "wall", row, rows)
        return peer * row.batch / row.median if peer and row.median else None

    return value


def _first(
    names: Sequence[str], batch: int, basis: str, row: Row, rows: Sequence[Row]
) -> float | None:
    same = {
        other.candidate: other.median for other in rows
        if (other.table, other.case, other.batch, other.basis)
        == (row.table, row.case, batch, basis)
    }
    return next((same[name] for name in names if same.get(name)), None)
