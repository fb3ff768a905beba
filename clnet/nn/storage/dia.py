"""DIA: whole diagonals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from clnet.nn.storage.base import sorted_unique
from clnet.nn.storage.sparse import SparseStorage


@dataclass(frozen=True)
class DiaStorage(SparseStorage):
    """Diagonals: slot ``d * n_out + r`` is row r of diagonal d.

    Its column is ``r + offsets[d]``. Every diagonal that has an entry is stored whole;
    slots without one are padding.
    """

    name: ClassVar[str] = "dia"

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """Column minus row [diagonals] of the diagonals with entries, ascending."""
        return sorted_unique(self.pattern.columns - self.pattern.rows)

    @property
    def size(self) -> int:
        """Value slots, padding included."""
        return self.offsets.size * self.n_out

    @cached_property
    def slots(self) -> NDArray[np.int64]:
        """The value slot of each entry of the pattern [entries]."""
        rows = self.pattern.rows
        diagonal = np.searchsorted(self.offsets, self.pattern.columns - rows)
        return diagonal * self.n_out + rows

    @cached_property
    def indices(self) -> Mapping[str, NDArray[Any]]:
        """``offsets`` [diagonals]."""
        return {"offsets": self.offsets.astype(np.int32)}

    @property
    def study_words(self) -> int:
        """One word per slot, and one per diagonal."""
        return self.size + self.offsets.size
