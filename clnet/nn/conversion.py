"""Conversions of networks: pruned, dense, of another format, of other dropout."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from clnet.checks import as_items, as_real
from clnet.errors import InputError, quoted
from clnet.nn.layers import Dense, Layer, Neurons, Sparse
from clnet.nn.storage.dense import RowStorage
from clnet.nn.storage.formats import check_format
from clnet.nn.storage.pattern import Pattern

if TYPE_CHECKING:
    from clnet.nn.model import Model

M = TypeVar("M", bound="Model")


def pruned(
    network: M,
    density: float | None,
    threshold: float | None,
    layers: Iterable[int] | None,
    format: str,  # noqa: A002  the public name
) -> M:
    """Return a network without its smallest weights; see `Network.prune`."""
    if (density is None) == (threshold is None):
        raise InputError("prune needs either a density or a threshold")
    if density is not None:
        density = as_real("density", density)
        if not 0 < density <= 1:
            raise InputError(f"a density must be in (0, 1], not {quoted(density)}")
    if threshold is not None:
        threshold = as_real("threshold", threshold)
        if not threshold >= 0:
            raise InputError(f"a threshold must be at least 0, not {quoted(threshold)}")
    check_format(format)
    numbers = _numbers(network, layers)
    new = list(network.layers)
    for number in numbers:
        matrix = network.matrices[number]
        rows, columns, offsets = matrix.entries()
        sizes = np.abs(network.parameters[offsets])
        if density is None:
            kept = sizes > threshold
        else:
            count = max(1, round(density * matrix.n_out * matrix.n_in))
            kept = np.zeros(sizes.size, bool)
            # A stable sort keeps the first of equal weights.
            kept[np.argsort(-sizes, kind="stable")[:count]] = True
        if not kept.any():
            raise InputError(
                f"no weight of layer {number} is larger than the threshold {threshold}"
            )
        pattern = Pattern(matrix.n_out, matrix.n_in, rows[kept], columns[kept])
        new[number] = Sparse(**_neurons(new[number]), pattern=pattern, format=format)
    return _with_layers(network, new)


def dense(network: M, layers: Iterable[int] | None) -> M:
    """Return a network of fully connected layers; see `Network.to_dense`."""
    new = list(network.layers)
    for number in _numbers(network, layers):
        new[number] = Dense(**_neurons(new[number]))
    return _with_layers(network, new)


def stored(
    network: M, format: str, layers: Iterable[int] | None  # noqa: A002
) -> M:
    """Return a network whose sparse layers have a format; see `Network.stored_as`."""
    check_format(format)
    new = list(network.layers)
    for number in _numbers(network, layers):
        layer = new[number]
        if isinstance(layer, Sparse):
            new[number] = dataclasses.replace(layer, format=format)
    return _with_layers(network, new)


def like(network: M, layers: Sequence[Layer]) -> M:
    """Return a new network of other layers, with all else of a network."""
    return type(network)(
        network.n_in, layers, seed=0, dtype=network.dtype,
        fann_compatible=network.fann_compatible, fann=network.fann,
        scaling=network.scaling, classes=network.classes, columns=network.columns,
    )


def _with_layers(network: M, layers: Sequence[Layer]) -> M:
    """Return the network with other layers: the same weights and biases to the bit."""
    new = like(network, layers)
    parameters = np.zeros_like(new.parameters)
    for number, matrix in enumerate(new.matrices):
        rows, columns, offsets = matrix.entries()
        parameters[offsets] = _weights_at(network, number, rows, columns)
        slot = new.layout.biases[number]
        if slot is not None:
            end = slot.offset + slot.size
            parameters[slot.offset : end] = network.biases(number)
    new.parameters = parameters
    return new


def _weights_at(
    network: Model, number: int, rows: NDArray[np.int64], columns: NDArray[np.int64]
) -> NDArray[Any]:
    """Return the weights of a layer at entries; 0 where it has no connection."""
    matrix = network.matrices[number]
    if all(isinstance(part.storage, RowStorage) for part in matrix.parts):
        weights: NDArray[Any] = network.weights(number)[rows, columns]
        return weights
    entries = matrix.entries()
    values = network.parameters[entries.slots]
    if rows.size > values.size:  # a dense matrix is faster than searching
        whole = np.zeros((matrix.n_out, matrix.n_in), values.dtype)
        whole[entries.rows, entries.columns] = values
        return whole[rows, columns]
    keys = entries.rows * matrix.n_in + entries.columns
    queries = rows * matrix.n_in + columns
    at = np.minimum(np.searchsorted(keys, queries), keys.size - 1)
    return np.where(keys[at] == queries, values[at], values.dtype.type(0))


def _numbers(network: Model, layers: Iterable[int] | None) -> list[int]:
    """Return the numbers of layers, checked; None: all."""
    if layers is None:
        return list(range(len(network.layers)))
    return [network.layer_number(number) for number in as_items(layers) or [layers]]


def _neurons(layer: Layer) -> dict[str, Any]:
    """Return the fields that all kinds of layers share."""
    values = {f.name: getattr(layer, f.name) for f in dataclasses.fields(Neurons)}
    return {**values, "bias": bool(layer.bias)}  # a shared bias becomes one a neuron


def dropout_of(network: Model) -> NDArray[Any]:
    """Return the fractions of their outputs that layers drop [layers]."""
    return np.array([layer.dropout for layer in network.layers])


def with_dropout(network: M, fractions: NDArray[Any]) -> M:
    """Return a copy of a network whose layers drop other fractions of outputs."""
    changed = copy(network)
    if dropout_of(network).tolist() != fractions.tolist():
        changed._layers = tuple(
            dataclasses.replace(layer, dropout=fraction)  # type: ignore[type-var]
            for layer, fraction in zip(network.layers, fractions.tolist(), strict=True)
        )
    return changed


def alike(network: Model, other: Model) -> bool:
    """Return whether two networks differ in parameters and dropout at most."""
    if len(network.layers) != len(other.layers):
        return False
    same = with_dropout(network, dropout_of(other))
    return (same.n_in, same.layers, same.dtype) == (
        other.n_in, other.layers, other.dtype
    )
