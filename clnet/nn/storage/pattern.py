"""Sparsity patterns, the connections of partially connected layers, and random ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clnet.checks import INT_MAX, as_array, as_whole, checked_sparse, convert_wholes
from clnet.errors import InputError, known_row
from clnet.nn.copies import Uncached
from clnet.nn.storage.base import sorted_unique

MASK_SHIFT = 7  # a mask of all entries is faster from a density of 2^-7 on


@dataclass(frozen=True, eq=False)
class Pattern(Uncached):
    """The live entries of A [n_out, n_in], sorted row by row.

    Patterns of the same entries are equal.

    Parameters
    ----------
    n_out, n_in : int
        Rows and columns of A.
    rows, columns : array_like of int, shape [entries]
        Indices of the entries, sorted by row, then by column, each once.

    Raises
    ------
    InputError
        If there is no entry, or they are not as above.

    Examples
    --------
    >>> pattern = clnet.Pattern(2, 3, rows=[0, 1, 1], columns=[2, 0, 1])
    >>> pattern.mask().astype(int).tolist()
    [[0, 0, 1], [1, 1, 0]]
    >>> pattern.density
    0.5
    """

    n_out: int
    n_in: int
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]

    def __post_init__(self) -> None:
        convert_wholes(self, "n_out", "n_in", most=INT_MAX)
        limits = {"rows": self.n_out, "columns": self.n_in}
        for name, limit in limits.items():
            indices = _indices(name, getattr(self, name))
            wrong = (indices < 0) | (indices >= limit)
            if wrong.any():
                at = int(wrong.argmax())
                raise InputError(
                    f"entry {at} of a pattern has {name[:-1]} {indices[at]}, expected "
                    f"0 to {limit - 1}"
                )
            indices.flags.writeable = False
            object.__setattr__(self, name, indices)
        if self.rows.shape != self.columns.shape:
            raise InputError(
                f"a pattern has {self.rows.size} rows and {self.columns.size} columns, "
                "expected one of each for every entry"
            )
        if not 1 <= self.rows.size <= INT_MAX:
            raise InputError(
                f"a pattern has {self.rows.size} entries, expected 1 to {INT_MAX}"
            )
        flat = self.rows * self.n_in + self.columns
        wrong = flat[1:] <= flat[:-1]
        if wrong.any():
            at = int(wrong.argmax())
            kind = "duplicate" if flat[at] == flat[at + 1] else "unsorted"
            raise InputError(
                f"{kind} entries in a pattern: ({self.rows[at + 1]}, "
                f"{self.columns[at + 1]}) follows ({self.rows[at]}, "
                f"{self.columns[at]}), expected them row by row, each once"
            )

    @classmethod
    def of(cls, matrix: Any) -> Pattern:
        """Return the pattern of a mask, or of a scipy.sparse matrix.

        Parameters
        ----------
        matrix : array_like of bool, or scipy.sparse matrix, shape [n_out, n_in]
            True where there is a connection; the connections of a sparse matrix are its
            stored entries, zeros included.

        Raises
        ------
        InputError
            If it is neither, or has no entry.
        """
        if isinstance(matrix, Pattern):
            return matrix
        if hasattr(matrix, "tocoo"):
            entries = checked_sparse("a pattern", matrix).tocoo()
            if len(entries.shape) != 2:
                raise InputError(f"a pattern of shape {entries.shape} is no matrix")
            n_out, n_in = (
                as_whole("a side of a pattern", n, most=INT_MAX) for n in entries.shape
            )
            flat = sorted_unique(entries.row.astype(np.int64) * n_in + entries.col)
        else:
            mask = as_array("a pattern", matrix)
            if mask.ndim != 2 or mask.dtype != np.bool_:
                raise InputError(
                    "a pattern must be a boolean mask [n_out, n_in] or a scipy.sparse "
                    f"matrix, found {mask.dtype} of shape {list(mask.shape)}"
                )
            n_out, n_in = mask.shape
            flat = np.flatnonzero(mask)
        rows, columns = np.divmod(flat, max(1, n_in))
        return cls(n_out, n_in, rows, columns)

    def __len__(self) -> int:
        return self.rows.size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pattern) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __repr__(self) -> str:
        n_out, n_in, digest = self._identity
        return (
            f"Pattern(n_out={n_out}, n_in={n_in}, entries={len(self)}, "
            f"digest={digest.hex()[:16]})"
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for array in (self.rows, self.columns):
            array.flags.writeable = False  # a copy of an array is not

    @cached_property
    def _identity(self) -> tuple[int, int, bytes]:
        digest = hashlib.sha256(self.rows.tobytes())
        digest.update(self.columns.tobytes())
        return self.n_out, self.n_in, digest.digest()

    @property
    def density(self) -> float:
        """Entries over n_out * n_in."""
        return len(self) / (self.n_out * self.n_in)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Entries of each row [n_out]."""
        return np.bincount(self.rows, minlength=self.n_out)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Index of each row's first entry [n_out + 1], and the number of entries."""
        return np.concatenate(([0], np.cumsum(self.lengths)))

    @cached_property
    def ranks(self) -> NDArray[np.int64]:
        """Index [entries] of each entry within its row."""
        return np.arange(len(self)) - self.starts[self.rows]

    @property
    def longest(self) -> int:
        """Entries of the longest row."""
        return int(self.lengths.max())

    def mask(self) -> NDArray[np.bool_]:
        """Return the matrix [n_out, n_in] that is True at the entries."""
        mask = np.zeros((self.n_out, self.n_in), bool)
        mask[self.rows, self.columns] = True
        return mask

    def where(self, kept: NDArray[np.bool_]) -> Pattern:
        """Return the pattern of the entries for which kept [entries] is True."""
        return Pattern(self.n_out, self.n_in, self.rows[kept], self.columns[kept])

    def blocks(self, widths: Sequence[int]) -> tuple[Pattern | None, ...]:
        """Return the pattern cut into blocks of columns; None: one without entries."""
        if len(widths) == 1:
            return (self,)
        blocks: list[Pattern | None] = []
        start = 0
        for width in widths:
            inside = (self.columns >= start) & (self.columns < start + width)
            block = None
            if inside.any():
                columns = self.columns[inside] - start
                block = Pattern(self.n_out, width, self.rows[inside], columns)
            blocks.append(block)
            start += width
        return tuple(blocks)


def _indices(name: str, indices: ArrayLike) -> NDArray[np.int64]:
    try:
        array = np.array(indices)
    except ValueError:
        array = np.array(None)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InputError(
            f"{name} of a pattern must be whole numbers in a row, found "
            f"{array.dtype} of shape {list(array.shape)}"
        )
    return array.astype(np.int64)


Placement = Callable[["np.random.Generator", int, int, float], Pattern]
"""Draws the pattern of a matrix [n_out, n_in] of some density from a generator."""


def _uniform(
    rng: np.random.Generator, n_out: int, n_in: int, density: float
) -> Pattern:
    """Draw ``round(density n_out n_in)`` entries, at least 1; all sets alike."""
    total = n_out * n_in
    count = max(1, round(density * total))
    fewer = min(count, total - count)  # draws: the entries, or their complement
    if count < total >> MASK_SHIFT:
        flat = np.zeros(0, np.int64)
        while flat.size < count:
            more = rng.integers(total, size=count - flat.size)
            flat = sorted_unique(np.concatenate([flat, more]))
    else:  # the same draws; a mask needs no sorting
        drawn = np.zeros(total, bool)
        missing = fewer
        while missing:
            drawn[rng.integers(total, size=missing)] = True
            missing = fewer - int(np.count_nonzero(drawn))
        flat = np.flatnonzero(drawn if fewer == count else ~drawn)
    return Pattern(n_out, n_in, *np.divmod(flat, n_in))


def _rows(rng: np.random.Generator, n_out: int, n_in: int, density: float) -> Pattern:
    """Draw ``round(density n_in)`` entries in every row, at least 1."""
    count = max(1, round(density * n_in))
    columns = [
        np.sort(rng.choice(n_in, count, replace=False, shuffle=False))
        for _ in range(n_out)
    ]
    rows = np.repeat(np.arange(n_out), count)
    return Pattern(n_out, n_in, rows, np.concatenate(columns))


def _fann(rng: np.random.Generator, n_out: int, n_in: int, density: float) -> Pattern:
    """Draw at least one entry in every row and column (FANN's ``create_sparse``).

    FANN's counts: ``max(n_out, n_in, floor(0.5 + density n_out n_in))`` in all, spread
    evenly over the rows. Each column in turn gets an entry in some row with room; then
    the rows are filled. Choices are uniform; FANN's take the ends of a range half as
    often.
    """
    total = max(n_out, n_in, int(0.5 + density * n_out * n_in))
    ends = (total + n_out) * np.arange(n_out + 1) // n_out  # FANN counts the biases
    counts = np.diff(ends) - 1
    mask = np.zeros((n_out, n_in), bool)
    room = counts.copy()
    for column in range(n_in):
        row = rng.choice(np.flatnonzero(room))
        mask[row, column] = True
        room[row] -= 1
    for row in np.flatnonzero(room):
        free = np.flatnonzero(~mask[row])
        mask[row, rng.choice(free, room[row], replace=False)] = True
    return Pattern.of(mask)


PLACEMENTS: dict[str, Placement] = {"uniform": _uniform, "rows": _rows, "fann": _fann}


def placement(name: str) -> Placement:
    """Return the rule that draws a pattern of some density."""
    return known_row("placement", name, PLACEMENTS)
