"""What is assumed of an array of indices, and the one check of it.

Kernels read and write wherever their tables say, which follow from a `Pattern`: it
checks the entries that it is given.
"""

from __future__ import annotations

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
