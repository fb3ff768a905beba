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

if TYPE_CHECKING:
    from clnet.nn.storage.pattern import Pattern


@dataclass(frozen=True)
class SparseStorage(ABC):
    """A pattern, and the value slot of each of its entries.

    Attributes
    ----------
    pattern : Pattern
        The live entries, in the canonical order: row by row.
    """

    pattern: Pattern
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

    Raises
    ------
    InputError
        If a table is not so: the pattern, or this library, is at fault.
    """
    n_out, n_in, size = storage.n_out, storage.n_in, storage.size
    ranges = {
        "columns": (0, n_in - 1), "rows": (0, n_out - 1), "starts": (0, size),
        "lengths": (0, storage.pattern.longest), "order": (0, n_out - 1),
        "offsets": (1 - n_out, n_in - 1), "slots": (0, size - 1),
    }
    for name, table in {**storage.indices, "slots": storage.slots}.items():
        least, most = ranges[name]
        right = table.size > 0 and least <= table.min() and table.max() <= most
        if right and name in ("starts", "offsets"):
            steps = np.diff(table.astype(np.int64))
            right = bool((steps >= (name == "offsets")).all())
        if right and name == "starts":
            right = table[0] == 0 and table[-1] == size
        if right and name in ("order", "slots"):
            found = np.zeros(most + 1, bool)
            found[table] = True
            right = np.count_nonzero(found) == table.size
        if not right:
            raise InputError(
                f"the {name} of a matrix as {storage.name} are out of range, expected "
                f"{least} to {most}"
            )


def index_array(values: NDArray[np.int64], count: int) -> NDArray[Any]:
    """Return indices below `count` in 16 bits if they fit, else in 32."""
    return values.astype(np.uint16 if count <= 1 << 16 else np.int32)
