"""Masked storage: a partially connected layer in whole rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clnet.nn.storage.base import Entries
from clnet.nn.storage.dense import RowStorage

if TYPE_CHECKING:
    from clnet.nn.storage.pattern import Pattern


@dataclass(frozen=True)
class MaskedStorage(RowStorage):
    """A partially connected layer in whole rows; slots without an entry are padding.

    Kernels multiply the zeros too: without a connection 0 · ∞ is NaN here, and nothing
    in the other formats.
    """

    pattern: Pattern  # The live entries
    name = "masked"

    @classmethod
    def of(cls, pattern: Pattern) -> MaskedStorage:
        """Return the storage of a pattern."""
        return cls(pattern.n_out, pattern.n_in, pattern)

    @property
    def slots(self) -> NDArray[np.int64]:
        """The value slot of each entry of the pattern [entries]."""
        return self.pattern.rows * self.stride + self.pattern.columns

    def entries(self) -> Entries:
        """Return row, column and liveness of every value slot."""
        entries = super().entries()
        return Entries(entries.rows, entries.columns, self.live())

    def live(self) -> NDArray[np.bool_]:
        """Return which value slots [size] hold entries."""
        live = np.zeros(self.size, bool)
        live[self.slots] = True
        return live
