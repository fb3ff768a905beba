"""SELL-C-σ: slices of rows of similar length, each as wide as its longest row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from clnet.nn.storage.sparse import SparseStorage, index_array

SLICE = 32  # rows per slice: a warp, or four vectors of eight
WINDOW = 16  # slices within which rows are sorted by length


@dataclass(frozen=True)
class SellStorage(SparseStorage):
    """Sliced ELLPACK with sorted rows.

    Kreutzer et al., "A unified sparse matrix data format for efficient general sparse
    matrix-vector multiplication on modern processors with wide SIMD units", 2014. Rows
    are sorted by length, longest first, within windows of σ, and cut into slices of C;
    slot k of lane l of a slice is number ``starts[slice] + k * C + l``.
    """

    height: int = SLICE  # C: rows per slice; lanes past the last row are padding
    # σ: rows that are sorted together; 1 keeps their order
    window: int = SLICE * WINDOW
    name: ClassVar[str] = "sell"

    @property
    def slices(self) -> int:
        """Slices of C rows."""
        return -(-self.n_out // self.height)

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """The row [n_out] of each lane."""
        rows = np.arange(self.n_out)
        return np.lexsort((rows, -self.pattern.lengths, rows // self.window))

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The first slot [slices + 1] of each slice, and the end."""
        lengths = np.zeros(self.slices * self.height, np.int64)
        lengths[: self.n_out] = self.pattern.lengths[self.order]
        widths = lengths.reshape(self.slices, self.height).max(axis=1)
        return np.concatenate(([0], np.cumsum(widths * self.height)))

    @property
    def size(self) -> int:
        """Value slots, padding included."""
        return int(self.starts[-1])

    @cached_property
    def slots(self) -> NDArray[np.int64]:
        """The value slot of each entry of the pattern [entries]."""
        lanes = np.empty(self.n_out, np.int64)
        lanes[self.order] = np.arange(self.n_out)
        number, lane = np.divmod(lanes[self.pattern.rows], self.height)
        return self.starts[number] + self.pattern.ranks * self.height + lane

    @cached_property
    def indices(self) -> Mapping[str, NDArray[Any]]:
        """``starts`` [slices + 1], ``columns`` [size], ``order``, ``lengths`` [n_out].

        Columns are 0 in padding; order is each lane's row, and lengths are those rows'.
        """
        columns = np.zeros(self.size, np.int64)
        columns[self.slots] = self.pattern.columns
        return {
            "starts": self.starts.astype(np.int32),
            "columns": index_array(columns, self.n_in),
            "order": index_array(self.order, self.n_out),
            "lengths": index_array(
                self.pattern.lengths[self.order], self.pattern.longest + 1
            ),
        }

    @property
    def study_words(self) -> int:
        """Two words per slot, one per slice, one per row, and one."""
        return 2 * self.size + self.slices + self.n_out + 1
