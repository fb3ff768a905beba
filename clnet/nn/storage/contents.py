"""Kernels' assumptions about the numbers in their tables, and the one check of them.

A kernel reads and writes wherever its tables say. The comment beside each argument in
``kernels/`` says what it assumes; a `Contents` says the same of the array, `Records` of
an array of records. A `Pattern` checks the entries that it is given, and the runtime
every table before its upload.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Order = Literal["any", "distinct", "sorted", "ascending"]
"""Numbers that may repeat; that do not; each at least the one before; each above it."""


class Fault(NamedTuple):
    """The index of a number that is not as assumed, and the end of a sentence."""

    at: int
    sentence: str


@dataclass(frozen=True)
class Contents:
    """A kernel's assumptions about a table."""

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

    def fault(self, values: NDArray[Any]) -> Fault | None:
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


Fields = Mapping[str, NDArray[np.int64]]
"""The numbers of each field of records, one per record."""
Bound = int | NDArray[Any]
"""Of all records, or of each."""


class Range(NamedTuple):
    """Numbers, one per record, with the least and the most that a kernel assumes."""

    numbers: NDArray[Any]
    least: Bound
    most: Bound


@dataclass(frozen=True)
class Records:
    """A kernel's assumptions about a table of records."""

    size: int  # Records
    record: np.dtype[Any]  # Of one, with named fields of int32
    # Takes the fields; returns ranges of fields and of their sums, each with its name.
    # Later ones may rely on earlier ones.
    ranges: Callable[[Fields], Mapping[str, Range]]

    def fault(self, values: NDArray[Any]) -> Fault | None:
        """Return the first fault of a table, or None, in time proportional to it."""
        size = self.size * self.record.itemsize
        if values.nbytes != size:
            return Fault(0, f"{values.nbytes} bytes, expected {size}")
        records = np.ascontiguousarray(values).reshape(-1).view(self.record)
        names = self.record.names or ()
        fields = {name: records[name].astype(np.int64) for name in names}
        for name, assumed in self.ranges(fields).items():
            numbers, least, most = np.broadcast_arrays(*assumed)
            wrong = (numbers < least) | (numbers > most)
            if wrong.any():
                at = int(np.argmax(wrong))
                expected = f"{least[at]} to {most[at]}"
                return Fault(
                    at, f"{name} of record {at}: {numbers[at]}, expected {expected}"
                )
        return None
