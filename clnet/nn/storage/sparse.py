"""Base of the formats of partially connected layers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from clnet.errors import InputError
from clnet.nn.storage.base import Entries
from clnet.nn.storage.contents import Contents, Order

if TYPE_CHECKING:
    from clnet.nn.storage.pattern import Pattern


@dataclass(frozen=True)
class SparseStorage(ABC):
    """A pattern, and the value slot of each of its entries."""

    pattern: Pattern  # The live entries, in the canonical order: row by row
    name: ClassVar[str]

    @property
    def n_out(self) -> int:
        """Rows of A."""
        return self.pattern.n_out

    @property
    def n_in(self) -> int:
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
    @abstractmethod
    def study_words(self) -> int:
        """Words of 32 bits by the usual formula."""

    @property
    def signature(self) -> str:
        """Text that is equal for storages that cost the same to compute with."""
        return (
            f"{self.name}[{self.n_out},{self.n_in},{len(self.pattern)},"
            f"{self.pattern.longest},{self.size}]"
        )

    def entries(self) -> Entries:
        """Return row, column and liveness of every value slot."""
        rows, columns = np.zeros((2, self.size), np.int64)
        rows[self.slots] = self.pattern.rows
        columns[self.slots] = self.pattern.columns
        return Entries(rows, columns, self.live())

    def live(self) -> NDArray[np.bool_]:
        """Return which value slots [size] hold entries."""
        live = np.zeros(self.size, bool)
        live[self.slots] = True
        return live

    def matrix(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return A [n_out, n_in] for values [size]: a copy."""
        matrix = np.zeros((self.n_out, self.n_in), values.dtype)
        matrix[self.pattern.rows, self.pattern.columns] = values[self.slots]
        return matrix

    def nbytes(self, item_size: int) -> int:
        """Return the bytes of values, of item_size each, and of index arrays."""
        return self.size * item_size + sum(a.nbytes for a in self.indices.values())


def check_indices(storage: SparseStorage) -> None:
    """Check the tables that kernels read, in time proportional to their size.

    Kernels check no index. They assume that ``columns`` and ``rows`` are those of A;
    that ``starts`` rise from 0 to the number of slots; that ``lengths`` are at most the
    longest row's; that ``order`` is a permutation of the rows; that ``offsets`` are
    rising diagonals of A; and that the slots of entries differ and exist.
    """
    n_out, n_in, size = storage.n_out, storage.n_in, storage.size
    tables = {**storage.indices, "slots": storage.slots}

    def check(name: str, most: int, least: int = 0, order: Order = "any") -> None:
        if name not in tables:
            return
        table, ends = tables[name], (0, size) if name == "starts" else None
        fault = Contents(table.size, most, least, order, ends).fault(table)
        if fault is not None:
            raise InputError(
                f"the {name} of a matrix as {storage.name} are wrong: {fault.sentence}"
            )

    check("columns", n_in - 1)
    check("rows", n_out - 1)
    check("starts", size, order="sorted")
    check("lengths", storage.pattern.longest)
    check("order", n_out - 1, order="distinct")
    check("offsets", n_in - 1, 1 - n_out, "ascending")
    check("slots", size - 1, order="distinct")


def index_array(values: NDArray[np.int64], count: int) -> NDArray[Any]:
    """Return indices below `count` in 16 bits if they fit, else in 32."""
    return values.astype(np.uint16 if count <= 1 << 16 else np.int32)
