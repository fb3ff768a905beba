"""The parameters of one network in the flat buffer of another: a permutation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.nn.model import Model

Array = NDArray[Any]


@dataclass(frozen=True)
class Relayout:
    """Where the live elements of a flat buffer are in the buffer of another layout.

    An optimiser's state is laid out as parameters are, so it goes the same way.

    Attributes
    ----------
    there, here : ndarray of int64, shape [live]
        The places of each live element in the one buffer, and in the other.
    size : int
        Elements of the buffer here.
    """

    there: NDArray[np.int64]
    here: NDArray[np.int64]
    size: int

    @classmethod
    def between(cls, there: Model, here: Model) -> Relayout:
        """Return where two networks of the same connections hold the same numbers."""
        return cls(_places(there), _places(here), here.layout.size)

    def moved(self, values: Array) -> Array:
        """Return values [..., size there] as [..., size]: padding is zero."""
        found = np.zeros((*values.shape[:-1], self.size), values.dtype)
        found[..., self.here] = values[..., self.there]
        return found

    def moved_back(self, values: Array, padding: Array) -> Array:
        """Return values [..., size] as [..., size there].

        Parameters
        ----------
        values : ndarray, shape [..., size]
            Here.
        padding : ndarray, shape [..., size there]
            Where padding is taken from.
        """
        found = padding.copy()
        found[..., self.there] = values[..., self.here]
        return found


def _places(network: Model) -> NDArray[np.int64]:
    """Return where each layer's weights are, row by row, then all biases."""
    weights = [matrix.entries().places for matrix in network.matrices]
    biases = [
        np.arange(slot.offset, slot.offset + slot.size)
        for slot in network.layout.biases if slot is not None
    ]
    return np.concatenate([*weights, *biases])
