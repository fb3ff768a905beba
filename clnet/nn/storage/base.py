"""The base of storage formats."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Entries(NamedTuple):
    """The live entries of a storage, or of a layer's matrix."""

    rows: NDArray[np.int64]  # Indices into A
    columns: NDArray[np.int64]
    slots: NDArray[np.int64]  # Of their values: all others are padding, and stay zero


class Storage(ABC):
    """Where the entries of A [n_out, n_in] are among `size` values."""

    name: ClassVar[str]  # The format's, as in ``"dense"``
    n_out: int
    n_in: int

    @property
    @abstractmethod
    def size(self) -> int:
        """Value slots, padding included."""

    @property
    @abstractmethod
    def signature(self) -> str:
        """Text that is equal for storages that cost the same to compute with."""

    @abstractmethod
    def entries(self) -> Entries:
        """Return the live entries."""

    @property
    def count(self) -> int:
        """Live entries."""
        return len(self.entries().slots)

    @property
    def indices(self) -> Mapping[str, NDArray[Any]]:
        """The index arrays that kernels read, by name; uploaded once."""
        return {}

    def live(self) -> NDArray[np.bool_]:
        """Return which value slots [size] hold entries."""
        live = np.zeros(self.size, bool)
        live[self.entries().slots] = True
        return live

    def matrix(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return A [n_out, n_in] for values [size]: a view where possible."""
        rows, columns, slots = self.entries()
        matrix = np.zeros((self.n_out, self.n_in), values.dtype)
        matrix[rows, columns] = values[slots]
        return matrix

    def nbytes(self, item_size: int) -> int:
        """Return the bytes of values, of item_size each, and of index arrays."""
        return self.size * item_size + sum(a.nbytes for a in self.indices.values())


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
