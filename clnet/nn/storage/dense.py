"""Storage in whole rows: of every entry of A, or of those of a pattern."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from clnet.nn.storage.base import Entries, Storage

if TYPE_CHECKING:
    from clnet.nn.storage.pattern import Pattern

ROW_ALIGNMENT = 4  # values; rows can be read as float4


@dataclass(frozen=True)
class RowStorage(Storage):
    """A [n_out, n_in] in rows, each padded with zeros to a whole number of float4.

    Kernels that only read A treat it as dense, whatever is live.
    """

    n_out: int  # Rows and columns of A
    n_in: int
    name: ClassVar[str] = "rows"

    @property
    def stride(self) -> int:
        """Values from one row to the next."""
        return -(-self.n_in // ROW_ALIGNMENT) * ROW_ALIGNMENT

    @property
    def size(self) -> int:
        """Value slots, padding included."""
        return self.n_out * self.stride

    @property
    def signature(self) -> str:
        """Text that is equal for storages that cost the same to compute with."""
        return f"{self.name}[{self.n_out},{self.n_in}]"

    @property
    def count(self) -> int:
        """Live entries."""
        return self.n_out * self.n_in

    def entries(self) -> Entries:
        """Return the live entries."""
        slots = np.flatnonzero(self.live())
        return Entries(*np.divmod(slots, self.stride), slots)

    def live(self) -> NDArray[np.bool_]:
        """Return which value slots [size] hold entries."""
        return np.tile(np.arange(self.stride) < self.n_in, self.n_out)

    def matrix(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return A [n_out, n_in] as a view of values [size]."""
        return values.reshape(self.n_out, self.stride)[:, : self.n_in]


@dataclass(frozen=True)
class DenseStorage(RowStorage):
    """Every entry of A is live."""

    name: ClassVar[str] = "dense"


@dataclass(frozen=True)
class MaskedStorage(RowStorage):
    """A partially connected layer in whole rows; slots without an entry are padding.

    Kernels multiply the zeros too: without a connection 0 · ∞ is NaN here, and nothing
    in the other formats.
    """

    pattern: Pattern  # The live entries
    name: ClassVar[str] = "masked"

    @classmethod
    def of(cls, pattern: Pattern) -> MaskedStorage:
        """Return the storage of a pattern."""
        return cls(pattern.n_out, pattern.n_in, pattern)

    @property
    def count(self) -> int:
        """Live entries."""
        return len(self.pattern)

    def entries(self) -> Entries:
        """Return the live entries."""
        rows, columns = self.pattern.rows, self.pattern.columns
        return Entries(rows, columns, rows * self.stride + columns)

    def live(self) -> NDArray[np.bool_]:
        """Return which value slots [size] hold entries."""
        return Storage.live(self)
