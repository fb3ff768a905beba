"""FANN's rules of cascade training: initial weights, and when a training ends."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

SCALE_ENDS = 0.5, 8.0  # of candidates' initial weights
SCALE_FACTOR, SCALE_SHARE = 2.0, 0.7


def initial_weights(
    rng: np.random.Generator, candidates: int, n_in: int, read: int, outputs: int
) -> NDArray[Any]:
    """Return candidates' weights [candidates, read + outputs], as FANN draws them."""
    width = SCALE_FACTOR * (SCALE_SHARE * (read - n_in)) ** (1 / n_in)
    width = min(max(width, SCALE_ENDS[0]), SCALE_ENDS[1])
    weights = rng.uniform(0, width, (candidates, read + outputs))
    weights[:, n_in] = rng.uniform(-width, width, candidates)
    return weights


class Stagnation:
    """FANN's rule of the end of a training: no change of a value for some epochs."""

    def __init__(self, fraction: float, patience: int, least: int, most: int) -> None:
        self._fraction, self._patience, self._least = fraction, patience, least
        self._up, self._down = 0.0, -1e20
        self._end = most

    def earliest(self, done: int) -> int:
        """Return the number of epochs after which the training may end, at least.

        `done` epochs have been told of.
        """
        return max(min(self._end, done + self._patience), self._least) + 1

    def ends(self, epoch: int, value: float, *, falling: bool = False) -> bool:
        """Return whether a training ends after an epoch, counted from 0.

        With `falling`, a value below 0 changes by going down, as the improvement of
        outputs does in FANN.
        """
        changed = value > self._up or value < self._down
        if falling and self._up < 0:
            changed = value < self._up or value > self._down
        if changed:
            self._up = value * (1 + self._fraction)
            self._down = value * (1 - self._fraction)
            self._end = epoch + self._patience
        return epoch >= self._end and epoch >= self._least
