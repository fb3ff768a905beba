"""COO: every entry with its row and its column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from numpy.typing import NDArray

from clnet.nn.storage.sparse import SparseStorage, index_array


@dataclass(frozen=True)
class CooStorage(SparseStorage):
    """Coordinates: values, rows and columns of the entries, row by row.

    Entries are sorted as in CSR: with a table of row starts, kernels reduce rows
    without atomic additions.
    """

    name: ClassVar[str] = "coo"

    @cached_property
    def indices(self) -> Mapping[str, NDArray[Any]]:
        """``rows`` and ``columns`` [entries]."""
        return {
            "rows": index_array(self.pattern.rows, self.n_out),
            "columns": index_array(self.pattern.columns, self.n_in),
        }

    @property
    def study_words(self) -> int:
        """Three words per entry."""
        return 3 * self.size
