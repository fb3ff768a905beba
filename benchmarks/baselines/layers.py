"""Parameters of a case's layers, and names of activations in other libraries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from clnet.errors import InputError
from clnet.network import Network

from ..candidates import RefusedError
from ..cases.dense import Array, Case

T = TypeVar("T")


def weights_and_biases(case: Case) -> list[tuple[Array, Array]]:
    """Return weights [n_out, n_in] and biases [n_out] of each layer."""
    network = case.network
    return [
        (np.ascontiguousarray(network.weights(i)), network.biases(i))
        for i in range(len(network.layers))
    ]


def torch_module(network: Network) -> Any:
    """Return a network as PyTorch's module, or raise RefusedError."""
    try:
        return network.to_torch()
    except InputError as error:
        raise RefusedError(str(error)) from None


def name_elsewhere(activation: str, known: Mapping[str, T]) -> T:
    """Return another library's entry for an activation, or raise RefusedError."""
    if activation not in known:
        raise RefusedError(f"{activation} is not implemented for this baseline")
    return known[activation]


def sigmoid_in_place(v: Array) -> None:
    """Replace v by its sigmoid."""
    np.negative(v, out=v)
    np.exp(v, out=v)
    v += 1
    np.reciprocal(v, out=v)
