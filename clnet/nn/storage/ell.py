"""ELL: rows padded to one width, stored transposed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from clnet.nn.storage.sparse import SparseStorage, index_array


@dataclass(frozen=True)
class EllStorage(SparseStorage):
    """ELLPACK: K slots per row; slot k of row r is number ``k * n_out + r``.

    Work-items of neighbouring rows read neighbouring values. The lengths of rows are
    stored too, so that padding need not be read (ELLPACK-R; Vázquez, Fernández and
    Garzón, "A new approach for sparse matrix vector product on NVIDIA GPUs", 2011).
    """

    name: ClassVar[str] = "ell"

    @property
    def width(self) -> int:
        """K: slots per row, the entries of the longest row."""
        return self.pattern.longest

    @property
    def size(self) -> int:
        """Value slots, padding included."""
        return self.width * self.n_out

    @cached_property
    def slots(self) -> NDArray[np.int64]:
        """The value slot of each entry of the pattern [entries]."""
        return self.pattern.ranks * self.n_out + self.pattern.rows

    @cached_property
    def indices(self) -> Mapping[str, NDArray[Any]]:
        """``columns`` [width, n_out], 0 in padding, and ``lengths`` [n_out]."""
        columns = np.zeros(self.size, np.int64)
        columns[self.slots] = self.pattern.columns
        return {
            "columns": index_array(columns, self.n_in).reshape(self.width, self.n_out),
            "lengths": index_array(self.pattern.lengths, self.width + 1),
        }

    @property
    def study_words(self) -> int:
        """Two words per slot."""
        return 2 * self.size
