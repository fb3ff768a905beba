"""FANN's network structures: the numbers of neurons and their connections.

There are three kinds. Layered: each layer reads its predecessor. Sparse: the same, with
a connection rate below 1. Shortcut: each layer reads all earlier ones. Neurons are
numbered through all layers. A layered network has a bias neuron at the end of every
layer, a shortcut network only at the end of the input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.errors import FormatError
from clnet.nn.layers import bias_size
from clnet.nn.storage.pattern import Pattern

if TYPE_CHECKING:
    from clnet.formats.numbers import Items, Text
    from clnet.nn.model import Model

Array = NDArray[Any]

_LEAST_RATE = 1e-6  # the file has six decimals


@dataclass(frozen=True)
class Structure:
    """The neurons of a network, and their possible connections."""

    # Neurons of each layer from the input on, biases included: `layer_sizes`
    sizes: tuple[int, ...]
    shortcut: bool = False  # Whether layers read all earlier ones
    # `connection_rate`; below 1 each neuron has its own set of connections
    rate: float = 1.0

    @property
    def sparse(self) -> bool:
        """Whether connections may be missing."""
        return self.rate < 1

    @property
    def described(self) -> str:
        """The words for it in errors."""
        return "shortcut" if self.shortcut else "fully connected"

    @property
    def layers(self) -> range:
        """The numbers of the layers after the input."""
        return range(1, len(self.sizes))

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Neurons of each layer without its bias."""
        return tuple(
            size - (number == 0 or not self.shortcut)
            for number, size in enumerate(self.sizes)
        )

    def fan_in(self, layer: int) -> int:
        """Return the number of a layer's source neurons."""
        return self.firsts[layer] - (0 if self.shortcut else self.firsts[layer - 1])

    @cached_property
    def firsts(self) -> tuple[int, ...]:
        """The number of the first neuron of each layer."""
        return tuple(np.cumsum([0, *self.sizes[:-1]]).tolist())

    def sources(self, layer: int) -> tuple[int, ...] | None:
        """Return the field ``sources`` of a layer of `clnet.nn.layers`."""
        return tuple(range(layer)) if self.shortcut else None

    def neurons(self, layer: int) -> Array:
        """Return the numbers of a layer's source neurons, in FANN's order."""
        first = 0 if self.shortcut else self.firsts[layer - 1]
        return np.arange(first, self.firsts[layer])

    def columns(self, layer: int) -> Array:
        """Return the columns of the source neurons in the matrix [n_out, n_in + 1].

        The bias has the last column; the others keep their order.
        """
        neurons = self.neurons(layer)
        source = 0 if self.shortcut else layer - 1
        bias = self.firsts[source] + self.widths[source]
        columns = np.arange(neurons.size) - (neurons > bias)
        columns[neurons == bias] = neurons.size - 1
        return columns


def check_incoming(
    text: Text, items: Items, start: int, counts: Array, structure: Structure
) -> None:
    """Check each neuron's number of connections, the items of the list at `start`."""
    most = np.zeros(sum(structure.sizes))
    for layer in structure.layers:
        first = structure.firsts[layer]
        most[first : first + structure.widths[layer]] = structure.fan_in(layer)
    least = np.minimum(most, 1) if structure.sparse else most
    whole = counts == np.trunc(counts)
    wrong = np.flatnonzero((counts < least) | (counts > most) | ~whole)
    if wrong.size:
        neuron = wrong[0]
        same = least[neuron] == most[neuron]
        count = f"{most[neuron]:.0f}" if same else f"1 to {most[neuron]:.0f}"
        told = bool(same) and not structure.sparse
        why = f", which a {structure.described} network has" * told
        raise text.error(
            f"{count} connections into neuron {neuron}{why}",
            items.offset(text.text, start, neuron),
        )


@dataclass(frozen=True)
class Connections:
    """The connections of one layer."""

    pattern: Pattern | None  # The connections but the biases'; None: all [n_out, n_in]
    weights: Array  # Their weights
    biases: Array  # The biases


def read_connections(
    text: Text, structure: Structure, incoming: Array, items: Items, dtype: str
) -> list[Connections]:
    """Read the connections and return those of each layer."""
    start, stop = text.at, len(text.text)
    total = int(incoming.sum())
    pairs = text.items(
        items, total, stop, "connection (source, weight)", "the end of the file", dtype
    )
    layers: list[Connections] = []
    end = 0

    def wrong(at: int, expected: str) -> FormatError:
        return text.error(
            f"connection {at + 1} of {total} from {expected}",
            items.offset(text.text, start, at),
        )

    for layer in structure.layers:
        first, n_out = structure.firsts[layer], structure.widths[layer]
        counts = incoming[first : first + n_out].astype(int)
        current = pairs[end : end + int(counts.sum())]
        neurons, columns = structure.neurons(layer), structure.columns(layer)
        bias = int(columns.argmax())
        if not structure.sparse:
            expected = np.tile(neurons, n_out)
            other = np.flatnonzero(current[:, 0] != expected)
            if other.size:
                raise wrong(
                    end + int(other[0]),
                    f"neuron {expected[other[0]]}, as in a {structure.described} "
                    "network",
                )
            weights = current[:, 1].reshape(n_out, neurons.size)
            layers.append(
                Connections(None, np.delete(weights, bias, axis=1), weights[:, bias])
            )
            end += len(current)
            continue
        positions = np.searchsorted(neurons[:-1], current[:, 0])
        outside = np.flatnonzero(neurons[positions] != current[:, 0])
        if outside.size:
            raise wrong(
                end + int(outside[0]),
                f"one of the neurons {neurons[0]} to {neurons[-1]}",
            )
        rows = np.repeat(np.arange(n_out), counts)
        read = columns[current[:, 0].astype(int) - neurons[0]]
        keys = rows * neurons.size + read
        order = np.argsort(keys, kind="stable")
        repeated = order[1:][np.diff(keys[order]) == 0]
        if repeated.size:
            raise wrong(end + int(repeated.min()), "a neuron that is not connected yet")
        order, biased = order[read[order] < columns[bias]], read == columns[bias]
        lacking = np.flatnonzero(np.bincount(rows[biased], minlength=n_out) == 0)
        if lacking.size:
            raise wrong(
                end + int(counts[: lacking[0]].sum()),
                f"the bias {neurons[bias]}, which neuron {first + lacking[0]} lacks",
            )
        if not order.size:
            raise wrong(end, f"a neuron: layer {layer - 1} has only biases")
        pattern = Pattern(n_out, neurons.size - 1, rows[order], read[order])
        layers.append(Connections(pattern, current[order, 1], current[biased, 1]))
        end += len(current)
    return layers


def structure_of(network: Model, path: Path) -> Structure:
    """Return the structure of a network, or raise FormatError if FANN has none."""

    def refused(number: int, why: str) -> FormatError:
        return FormatError(f"cannot write {path}: layer {number} {why}")

    layers, matrices = network.layers, network.matrices
    earlier = [tuple(range(number + 1)) for number in range(len(layers))]
    shortcut = all(
        layer.sources == all_of for layer, all_of in zip(layers, earlier, strict=True)
    )
    for number, layer in enumerate(layers):
        if not shortcut and layer.sources not in (None, (number,)):
            raise refused(
                number, f"reads {layer.sources}, but FANN's layers read either the "
                "previous layer or, in all layers, every earlier one"
            )
        if not layer.bias:
            raise refused(number, "has no bias, but every neuron of FANN has one")
        if bias_size(layer) != layer.n_out:
            raise refused(
                number, "has one bias for all, but every neuron of FANN has its own"
            )
        if shortcut and matrices[number].density < 1:
            raise refused(number, "is sparse, but FANN's shortcut networks are not")
    sizes = [n + 1 for n in network.sizes]
    if shortcut:
        sizes = [sizes[0], *network.sizes[1:]]
    count = sum(matrix.count for matrix in matrices)
    rate = count / sum(matrix.n_out * matrix.n_in for matrix in matrices)
    if rate < 1:
        rate = min(max(_LEAST_RATE, round(rate, 6)), 1 - _LEAST_RATE)
    return Structure(tuple(sizes), shortcut, rate)


def incoming(network: Model, structure: Structure, layer: int) -> Sequence[int]:
    """Return the number of connections into each neuron of a layer (from 1 on)."""
    if not structure.sparse:
        return [structure.fan_in(layer)] * structure.widths[layer]
    rows = network.matrices[layer - 1].entries().rows
    counts = np.bincount(rows, minlength=structure.widths[layer]) + 1
    return [int(count) for count in counts]


def connections_text(network: Model, structure: Structure) -> Iterator[bytes]:
    """Yield the connections in FANN's order; a sparse neuron's bias is first."""
    for layer in structure.layers:
        neurons, columns = structure.neurons(layer), structure.columns(layer)
        biases = network.biases(layer - 1)
        if not structure.sparse:
            row = "".join(f"({neuron}, %.20e) " for neuron in neurons)
            weights = np.column_stack([network.weights(layer - 1), biases])
            for values in weights[:, columns]:
                yield (row % tuple(values.tolist())).encode()
            continue
        rows, read, offsets = network.matrices[layer - 1].entries()
        sources = neurons[np.argsort(columns)]
        starts = np.searchsorted(rows, np.arange(biases.size + 1))
        for bias, start, stop in zip(biases, starts[:-1], starts[1:], strict=True):
            pairs = zip(
                [sources[-1], *sources[read[start:stop]]],
                [bias, *network.parameters[offsets[start:stop]]], strict=True,
            )
            yield "".join(f"({source}, {w:.20e}) " for source, w in pairs).encode()
