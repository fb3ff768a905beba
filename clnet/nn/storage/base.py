"""The interface of storage formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Entries:
    """Row, column and liveness of every value slot of a storage."""

    rows: NDArray[np.int64]  # Indices into A; unspecified where a slot is not live
    columns: NDArray[np.int64]
    live: NDArray[np.bool_]  # False for padding, whose value is zero and stays zero


class Storage(Protocol):
    """Interface of storage formats."""

    @property
    def name(self) -> str:
        """The format's name, as in ``"dense"``."""
        ...

    @property
    def n_out(self) -> int:
        """Rows of A."""
        ...

    @property
    def n_in(self) -> int:
        """Columns of A."""
        ...

    @property
    def size(self) -> int:
        """Value slots, padding included."""
        ...

    @property
    def signature(self) -> str:
        """Text that is equal for storages that cost the same to compute with."""
        ...

    def entries(self) -> Entries:
        """Return row, column and liveness of every value slot."""
        ...

    def live(self) -> NDArray[np.bool_]:
        """Return which value slots [size] hold entries, as in `entries`."""
        ...

    def matrix(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return A [n_out, n_in] for values [size]: a view where possible."""
        ...

    def nbytes(self, item_size: int) -> int:
        """Return the bytes of values, of item_size each, and of index arrays."""
        ...


def rounded_size(n: int) -> int:
    """Return n rounded to five binary digits: sizes that near cost the same.

    Stacks of local layers have as many sizes as layers; measuring some of them is
    enough.
    """
    shift = max(0, n.bit_length() - 5)
    return round(n / (1 << shift)) << shift


def sorted_unique(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sorted unique numbers; for millions faster than np.unique."""
    ordered = np.sort(numbers)
    return ordered[np.diff(ordered, prepend=ordered[:1] - 1) > 0]
