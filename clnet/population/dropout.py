"""Dropout, in which networks of one shape may differ."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from clnet.network import Network

Array = NDArray[Any]


def dropout_of(network: Network) -> Array:
    """Return the fractions of their outputs that layers drop [layers]."""
    return np.array([layer.dropout for layer in network.layers])


def with_dropout(network: Network, fractions: Array) -> Network:
    """Return a copy of a network whose layers drop other fractions of outputs."""
    found = copy(network)
    if dropout_of(network).tolist() != fractions.tolist():
        found._layers = tuple(
            replace(layer, dropout=fraction)  # type: ignore[type-var]
            for layer, fraction in zip(network.layers, fractions.tolist(), strict=True)
        )
    return found


def alike(one: Network, other: Network) -> bool:
    """Return whether two networks differ in parameters and dropout at most."""
    if len(one.layers) != len(other.layers):
        return False
    one = with_dropout(one, dropout_of(other))
    return (one.n_in, one.layers, one.dtype) == (other.n_in, other.layers, other.dtype)
