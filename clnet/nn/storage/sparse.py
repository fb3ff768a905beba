"""Formats of partially connected layers: a pattern, and the slots of its entries."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from clnet.errors import InputError, quoted
from clnet.nn.storage.base import Entries, Storage, sorted_unique

if TYPE_CHECKING:
    from clnet.nn.storage.pattern import Pattern

SLICE = 32  # rows per slice: a warp, or four vectors of eight
WINDOW = 16  # slices within which rows are sorted by length
SHARE = 1 / 3  # of rows that HYB's ELL covers, by Bell and Garland


@dataclass(frozen=True)
class SparseStorage(Storage):
    """A pattern, and the value slot of each of its entries."""

    pattern: Pattern  # The live entries, in the canonical order: row by row

    @property
    def n_out(self) -> int:  # type: ignore[override]  # as frozen fields
        """Rows of A."""
        return self.pattern.n_out

    @property
    def n_in(self) -> int:  # type: ignore[override]
        """Columns of A."""
        return self.pattern.n_in

    @property
    def size(self) -> int:
        """Value slots, padding included: here one per entry."""
        return len(self.pattern)

    @property
    def slots(self) -> NDArray[np.int64]:
        """The value slot of each entry of the pattern [entries]: here its number."""
        return np.arange(self.size)

    @property
    @abstractmethod
    def indices(self) -> Mapping[str, NDArray[Any]]:
        """The index arrays that kernels read, by name; uploaded once."""

    @property
    def signature(self) -> str:
        """Text that is equal for storages that cost the same to compute with."""
        return (
            f"{self.name}[{self.n_out},{self.n_in},{len(self.pattern)},"
            f"{self.pattern.longest},{self.size}]"
        )

    @property
    def count(self) -> int:
        """Live entries."""
        return len(self.pattern)

    def entries(self) -> Entries:
        """Return the live entries, row by row."""
        return Entries(self.pattern.rows, self.pattern.columns, self.slots)


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


def hyb_width(pattern: Pattern, share: float = SHARE) -> int:
    """Return K of HYB, an ELL of each row's first K entries and a COO; 0: COO alone.

    The largest K such that at least a share of the rows has K entries or more (Bell
    and Garland, "Efficient sparse matrix-vector multiplication on CUDA", 2008).
    """
    if not 0 < share <= 1:
        raise InputError(f"a share of the rows must be in (0, 1], not {quoted(share)}")
    # Rounded first: a third of 9 rows may be 3.0000000000000004, and means three.
    needed = max(1, int(np.ceil(round(share * pattern.n_out, 9))))
    return int(np.sort(pattern.lengths)[::-1][needed - 1])


def index_array(values: NDArray[np.int64], count: int) -> NDArray[Any]:
    """Return indices below `count` in 16 bits if they fit, else in 32."""
    return values.astype(np.uint16 if count <= 1 << 16 else np.int32)
