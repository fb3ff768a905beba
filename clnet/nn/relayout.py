"""The parameters of one network in the flat buffer of another: a permutation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from clnet.nn.description import Description

Array = NDArray[Any]


@dataclass(frozen=True)
class Relayout:
    """The offsets of live elements in the flat buffers of two layouts.

    It serves an optimiser's state too, which is laid out as parameters are.
    """

    # Offset of each live element in the one buffer, and in the other
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    size: int  # Elements of the second buffer

    @classmethod
    def between(cls, source: Description, target: Description) -> Relayout:
        """Return the relayout between two networks of the same connections."""
        return cls(_offsets(source), _offsets(target), target.layout.size)

    def forward(self, values: Array) -> Array:
        """Return source values [..., size] as target values, with zero padding."""
        found = np.zeros((*values.shape[:-1], self.size), values.dtype)
        found[..., self.target] = values[..., self.source]
        return found

    def backward(self, values: Array, padding: Array) -> Array:
        """Return values [..., size of target] as [..., size of source]."""
        found = padding.copy()
        found[..., self.source] = values[..., self.target]
        return found


def _offsets(network: Description) -> NDArray[np.int64]:
    """Return the offsets of all live weights, row by row, then of all biases."""
    weights = [matrix.entries().offsets for matrix in network.matrices]
    biases = [
        np.arange(slot.offset, slot.offset + slot.size)
        for slot in network.layout.biases if slot is not None
    ]
    return np.concatenate([*weights, *biases])
