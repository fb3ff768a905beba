"""Shortcut networks as rows of neurons, to which cascade training adds one at a time.

A neuron reads the inputs, the constant 1, and all neurons of earlier layers, in this
order, which is FANN's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.errors import InputError
from clnet.nn.activations import SOFTMAXES
from clnet.nn.cascade.constants import Neuron, network_neuron
from clnet.nn.layers import Dense, Layer

if TYPE_CHECKING:
    from clnet.nn.model import Model

Array = NDArray[Any]


@dataclass(frozen=True)
class Row:
    """A layer of a shortcut network."""

    layer: Dense  # Its description
    weights: Array  # Of each neuron, that of the constant 1 behind the inputs'

    def neurons(self, fann_compatible: bool) -> tuple[Neuron, ...]:
        """Return its neurons."""
        layer = self.layer
        names, steep = layer.activation, layer.steepness
        n = layer.n_out
        if isinstance(names, str):
            names = (names,) * n
        if not isinstance(steep, tuple):
            steep = (steep,) * n
        return tuple(
            network_neuron(name, s, fann_compatible)
            for name, s in zip(names, steep, strict=True)
        )


@dataclass(frozen=True)
class Shortcut:
    """A shortcut network."""

    n_in: int  # Inputs
    hidden: tuple[Row, ...]  # The hidden layers
    output: Row  # The last layer

    @classmethod
    def of(cls, network: Model) -> Shortcut:
        """Return a network's rows."""
        refusal = _refusal(network)
        if refusal is not None:
            raise InputError(
                "cascade training grows a shortcut network, such as "
                f"Network({network.n_in}, [Dense({network.n_out})]), and this one "
                f"{refusal}"
            )
        rows = []
        for number, layer in enumerate(network.layers):
            assert isinstance(layer, Dense)
            weights = np.insert(
                network.weights(number), network.n_in, network.biases(number), axis=1
            )
            rows.append(Row(layer, weights))
        return cls(network.n_in, tuple(rows[:-1]), rows[-1])

    @property
    def read(self) -> int:
        """Values that an output reads: inputs, the constant, all hidden neurons."""
        return self.n_in + 1 + sum(row.layer.n_out for row in self.hidden)

    def grown(self, row: Row, output_weights: Array) -> Shortcut:
        """Return the network with one more hidden layer before the output."""
        return Shortcut(
            self.n_in, (*self.hidden, row), replace(self.output, weights=output_weights)
        )

    def with_output(self, weights: Array) -> Shortcut:
        """Return the network with other weights of the last layer."""
        return replace(self, output=replace(self.output, weights=weights))

    def network(self, like: Model) -> Model:
        """Return the network, with all else of a network of its kind."""
        rows = (*self.hidden, self.output)
        layers: Sequence[Layer] = [
            replace(row.layer, sources=tuple(range(number + 1)))
            for number, row in enumerate(rows)
        ]
        found = type(like)(
            self.n_in, layers, seed=0, dtype=like.dtype,
            fann_compatible=like.fann_compatible, fann=like.fann, scaling=like.scaling,
            classes=like.classes, columns=like.columns,
        )
        found.set_layers(
            (np.delete(row.weights, self.n_in, axis=1), row.weights[:, self.n_in])
            for row in rows
        )
        return found


def _refusal(network: Model) -> str | None:
    """Return why a network is no shortcut network that can grow, or None."""
    if network.dtype != "float32":
        return f"is in {network.dtype}, not in float32"
    for number, layer in enumerate(network.layers):
        if not isinstance(layer, Dense):
            return f"has a {type(layer).__name__} layer"
        earlier = tuple(range(number + 1))
        if (layer.sources or (number,)) != earlier:
            return f"has a layer {number} that does not read all earlier ones"
        if not layer.bias:
            return f"has a layer {number} without biases"
        if layer.dropout:
            return f"has a layer {number} with dropout"
        if layer.activation in SOFTMAXES:
            return f"has {layer.activation} outputs, whose neurons are not separate"
    return None
