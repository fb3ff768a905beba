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
    """The offsets of live elements in the flat buffers of two layouts.

    It serves an optimiser's state too, which is laid out as parameters are.

    Attributes
    ----------
    there, here : ndarray of int64, shape [live]
        Offset of each live element in the one buffer, and in the other.
    size : int
        Elements of the second buffer.
    """

    there: NDArray[np.int64]
    here: NDArray[np.int64]
    size: int

    @classmethod
    def between(cls, there: Model, here: Model) -> Relayout:
        """Return the relayout between two networks of the same connections."""
        return cls(_offsets(there), _offsets(here), here.layout.size)

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
            Values of the second layout.
        padding : ndarray, shape [..., size there]
            Source of the padding.
        """
        found = padding.copy()
        found[..., self.there] = values[..., self.here]
        return found


def _offsets(network: Model) -> NDArray[np.int64]:
    """Return the offsets of all live weights, row by row, then of all biases."""
    weights = [matrix.entries().offsets for matrix in network.matrices]
    biases = [
        np.arange(slot.offset, slot.offset + slot.size)
        for slot in network.layout.biases if slot is not None
    ]
    return np.concatenate([*weights, *biases])
