"""Random connectivity of partially connected layers, one rule a row.

A rule draws the pattern of a matrix [n_out, n_in] of some density from a generator.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from clnet.errors import known_row
from clnet.nn.storage.base import sorted_unique
from clnet.nn.storage.pattern import Pattern

MASK_SHIFT = 7  # a mask of all entries is faster from a density of 2^-7 on

Placement = Callable[["np.random.Generator", int, int, float], Pattern]


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
    """Return the rule of a name."""
    return known_row("placement", name, PLACEMENTS)
