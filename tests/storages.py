"""A matrix from the entries of a storage, and what is assumed of its indices.

Kernels read and write wherever their tables say, which follow from a `Pattern`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np


def entry_matrix(storage, values):
    """Return A [n_out, n_in] by adding up the live entries of any storage."""
    rows, columns, slots = storage.entries()
    matrix = np.zeros((storage.n_out, storage.n_in), values.dtype)
    np.add.at(matrix, (rows, columns), values[slots])
    return matrix


Order = Literal["any", "distinct", "sorted", "ascending"]
"""Numbers that may repeat; that do not; each at least the one before; each above it."""


class Fault(NamedTuple):
    """The index of a number that is not as assumed, and the end of a sentence."""

    at: int
    sentence: str


@dataclass(frozen=True)
class Contents:
    """The assumptions about an array."""

    size: int  # Numbers
    most: int
    least: int = 0  # Of each
    order: Order = "any"  # Of the numbers, padding excluded
    ends: tuple[int, int] | None = None  # The first and the last number
    padding: int = 0  # Zeros at the end, which are read and not used

    @classmethod
    def starts(cls, rows: int, entries: int) -> Contents:
        """Return those of row pointers: row r has starts[r] … starts[r + 1] - 1."""
        return cls(rows + 1, entries, order="sorted", ends=(0, entries))

    def fault(self, values: Any) -> Fault | None:
        """Return the first fault of a table, or None, in time proportional to it."""
        numbers = values.reshape(-1)
        if numbers.size != self.size:
            return Fault(0, f"{numbers.size} numbers, expected {self.size}")
        wrong = (numbers < self.least) | (numbers > self.most)
        used = numbers[: self.size - self.padding]
        wrong[used.size :] |= numbers[used.size :] != 0
        expected = f"{self.least} to {self.most}"
        if not wrong.any() and used.size:
            expected = "each once"
            if self.order in ("sorted", "ascending"):
                repeats = used[1:] == used[:-1] if self.order == "ascending" else False
                wrong[1 : used.size] = (used[1:] < used[:-1]) | repeats
                expected = f"{self.order} numbers"
            elif self.order == "distinct":
                seen = np.zeros(self.most - self.least + 1, bool)
                seen[used - self.least] = True
                if np.count_nonzero(seen) < used.size:
                    wrong[np.setdiff1d(
                        np.arange(used.size), np.unique(used, return_index=True)[1]
                    )] = True
        if self.ends is not None and not wrong.any():
            expected = f"{self.ends[0]} first and {self.ends[1]} last"
            wrong[0], wrong[-1] = (numbers[i] != self.ends[i] for i in (0, -1))
        if not wrong.any():
            return None
        index = int(np.argmax(wrong))
        return Fault(index, f"number {index} is {numbers[index]}, expected {expected}")


def check_indices(storage: Any) -> None:
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
            raise ValueError(
                f"the {name} of a matrix as {storage.name} are wrong: {fault.sentence}"
            )

    check("columns", n_in - 1)
    check("rows", n_out - 1)
    check("starts", size, order="sorted")
    check("lengths", storage.pattern.longest)
    check("order", n_out - 1, order="distinct")
    check("offsets", n_in - 1, 1 - n_out, "ascending")
    check("slots", size - 1, order="distinct")
