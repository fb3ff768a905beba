"""Where the connections of a partially connected layer fall at random, one row each.

A row draws the pattern of a matrix [n_out, n_in] of a density from a generator.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from clnet.errors import unknown
from clnet.nn.storage.pattern import Pattern, sorted_once

MARKED = 7  # a mark for every place pays from a 2^-7th of them on

Place = Callable[[np.random.Generator, int, int, float], Pattern]


def _uniform(
    rng: np.random.Generator, n_out: int, n_in: int, density: float
) -> Pattern:
    """Place the nearest whole number, at least one; all sets are as likely."""
    total = n_out * n_in
    count = max(1, round(density * total))
    fewer = min(count, total - count)  # drawn: those that there are, or are not
    if count < total >> MARKED:
        flat = np.zeros(0, np.int64)
        while flat.size < count:
            more = rng.integers(total, size=count - flat.size)
            flat = sorted_once(np.concatenate([flat, more]))
    else:  # as many draws, and the same; marks need no sorting
        drawn = np.zeros(total, bool)
        missing = fewer
        while missing:
            drawn[rng.integers(total, size=missing)] = True
            missing = fewer - int(np.count_nonzero(drawn))
        flat = np.flatnonzero(drawn if fewer == count else ~drawn)
    return Pattern(n_out, n_in, *np.divmod(flat, n_in))


def _rows(rng: np.random.Generator, n_out: int, n_in: int, density: float) -> Pattern:
    """Place equally many in every row, the nearest number, at least one."""
    count = max(1, round(density * n_in))
    columns = [
        np.sort(rng.choice(n_in, count, replace=False, shuffle=False))
        for _ in range(n_out)
    ]
    rows = np.repeat(np.arange(n_out), count)
    return Pattern(n_out, n_in, rows, np.concatenate(columns))


def _fann(rng: np.random.Generator, n_out: int, n_in: int, density: float) -> Pattern:
    """Place at least one for every row and column (FANN's ``create_sparse``).

    FANN's counts: ``max(n_out, n_in, floor(0.5 + density n_out n_in))`` in all, spread
    evenly over the rows. Each input goes to some row with room, in turn; then rows are
    filled up. Choices are uniform; FANN's own take the ends of a range half as often.
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


PLACEMENTS: dict[str, Place] = {"uniform": _uniform, "rows": _rows, "fann": _fann}


def placement(name: str) -> Place:
    """Return the placement of a name.

    Raises
    ------
    InputError
        If there is none of that name.
    """
    if not isinstance(name, str) or name not in PLACEMENTS:
        raise unknown("placement", name, PLACEMENTS)
    return PLACEMENTS[name]
