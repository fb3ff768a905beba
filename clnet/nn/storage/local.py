"""Local storage: bands of a matrix whose rows are windows that slide by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from clnet.nn.storage.base import Entries, Storage, rounded_size

BAND_ALIGNMENT = 16  # values; every band starts on a cache line


@dataclass(frozen=True)
class LocalStorage(Storage):
    """Row i of A has entries in the columns i … i + window - 1, and no indices.

    Values lie band by band, [window, pitch]: value r of all rows side by side, so that
    neighbouring rows are read as vectors. Slot ``r * pitch + i`` is ``A[i, i + r]``;
    the slots from n_out to the pitch are padding.

    There is no stride and no padding of the edges. With a stride, neighbouring rows do
    not read neighbouring inputs; with padding, the first and last rows read fewer than
    the others. Either breaks an assumption of every kernel: a vector of inputs that
    slides by one, a stack's halo that grows by ``window - 1`` per layer, bands without
    dead slots. The sparse formats hold such matrices; kernels of their own could save
    no more than the indices.
    """

    n_out: int  # Rows and columns of A; `n_out = n_in - window + 1`
    n_in: int
    window: int  # Entries of a row
    name: ClassVar[str] = "local"

    @property
    def pitch(self) -> int:
        """Values from one band to the next."""
        return -(-self.n_out // BAND_ALIGNMENT) * BAND_ALIGNMENT

    @property
    def size(self) -> int:
        """Value slots, padding included."""
        return self.window * self.pitch

    @property
    def signature(self) -> str:
        """Text that is equal for storages that cost the same to compute with."""
        return f"{self.name}[{rounded_size(self.n_out)},{self.window}]"

    @property
    def count(self) -> int:
        """Live entries."""
        return self.n_out * self.window

    def entries(self) -> Entries:
        """Return the live entries, band by band."""
        slots = np.flatnonzero(self.live())
        bands, rows = np.divmod(slots, self.pitch)
        return Entries(rows, rows + bands, slots)

    def live(self) -> NDArray[np.bool_]:
        """Return which value slots [size] hold entries."""
        return np.tile(np.arange(self.pitch) < self.n_out, self.window)

    def bands(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the bands [window, n_out] as a view of values [size]."""
        return values.reshape(self.window, self.pitch)[:, : self.n_out]
