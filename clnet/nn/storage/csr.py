"""CSR: the entries row by row, with each row's start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from clnet.nn.storage.sparse import SparseStorage, index_array


@dataclass(frozen=True)
class CsrStorage(SparseStorage):
    """Compressed sparse rows: row r has the entries starts[r] … starts[r + 1] - 1."""

    name: ClassVar[str] = "csr"

    @cached_property
    def indices(self) -> Mapping[str, NDArray[Any]]:
        """``starts`` [n_out + 1] and ``columns`` [entries]."""
        return {
            "starts": self.pattern.starts.astype(np.int32),
            "columns": index_array(self.pattern.columns, self.n_in),
        }

    @property
    def study_words(self) -> int:
        """Two words per entry, one per row, and one."""
        return 2 * self.size + self.n_out + 1
