"""The same network with its matrices stored otherwise, or with fewer connections."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from clnet.checks import as_real
from clnet.errors import InputError
from clnet.nn.layers import Dense, Layer, Neurons, Sparse
from clnet.nn.model import Model
from clnet.nn.storage.dense import RowStorage
from clnet.nn.storage.formats import check_format
from clnet.nn.storage.pattern import Pattern

M = TypeVar("M", bound=Model)


def pruned(
    network: M,
    density: float | None,
    threshold: float | None,
    layers: Iterable[int] | None,
    format: str,  # noqa: A002  as everywhere
) -> M:
    """Return a network without its smallest weights; see `Network.prune`."""
    if (density is None) == (threshold is None):
        raise InputError("prune needs either a density or a threshold")
    if density is not None and not 0 < as_real("density", density) <= 1:
        raise InputError(f"a density must be in (0, 1], not {density!r}")
    if threshold is not None and not as_real("threshold", threshold) >= 0:
        raise InputError(f"a threshold must be at least 0, not {threshold!r}")
    check_format(format)
    chosen = _chosen(network, layers)
    new = list(network.layers)
    for number in chosen:
        matrix = network.matrices[number]
        rows, columns, places = matrix.entries()
        sizes = np.abs(network.parameters[places])
        if density is None:
            kept = sizes > threshold
        else:
            count = max(1, round(density * matrix.n_out * matrix.n_in))
            kept = np.zeros(sizes.size, bool)
            # Of equal ones the first: a stable order.
            kept[np.argsort(-sizes, kind="stable")[:count]] = True
        if not kept.any():
            raise InputError(
                f"no weight of layer {number} is larger than the threshold {threshold}"
            )
        pattern = Pattern(matrix.n_out, matrix.n_in, rows[kept], columns[kept])
        new[number] = Sparse(
            **_neurons(new[number]), pattern=pattern, format=format
        )
    return restored(network, new)


def dense(network: M, layers: Iterable[int] | None) -> M:
    """Return a network of fully connected layers; see `Network.to_dense`."""
    new = list(network.layers)
    for number in _chosen(network, layers):
        new[number] = Dense(**_neurons(new[number]))
    return restored(network, new)


def stored(
    network: M, format: str, layers: Iterable[int] | None  # noqa: A002
) -> M:
    """Return a network whose sparse layers have a format; see `Network.stored_as`."""
    check_format(format)
    new = list(network.layers)
    for number in _chosen(network, layers):
        layer = new[number]
        if isinstance(layer, Sparse):
            new[number] = dataclasses.replace(layer, format=format)
    return restored(network, new)


def restored(network: M, layers: Sequence[Layer]) -> M:
    """Return a network of other layers with the same weights, bit for bit, and biases.

    Parameters
    ----------
    network : Model
        Where weights come from.
    layers : sequence of layers
        Of the same sizes and sources. Entries that the network does not have are zero.
    """
    new = type(network)(
        network.n_in, layers, seed=0, dtype=network.dtype,
        fann_compatible=network.fann_compatible, fann=network.fann,
        scaling=network.scaling,
    )
    parameters = np.zeros_like(new.parameters)
    for number, matrix in enumerate(new.matrices):
        rows, columns, places = matrix.entries()
        parameters[places] = _weights_at(network, number, rows, columns)
        place = new.layout.biases[number]
        if place is not None:
            here = slice(place.offset, place.offset + place.size)
            parameters[here] = network.biases(number)
    new.parameters = parameters
    return new


def _weights_at(
    network: Model, number: int, rows: NDArray[np.int64], columns: NDArray[np.int64]
) -> NDArray[Any]:
    """Return the weights of a layer at entries; 0 where it has none."""
    matrix = network.matrices[number]
    if all(isinstance(part.storage, RowStorage) for part in matrix.parts):
        held: NDArray[Any] = network.weights(number)[rows, columns]
        return held
    found = matrix.entries()
    values = network.parameters[found.places]
    if rows.size > values.size:  # by the whole matrix: searching would take longer
        whole = np.zeros((matrix.n_out, matrix.n_in), values.dtype)
        whole[found.rows, found.columns] = values
        return whole[rows, columns]
    known = found.rows * matrix.n_in + found.columns
    wanted = rows * matrix.n_in + columns
    at = np.minimum(np.searchsorted(known, wanted), known.size - 1)
    return np.where(known[at] == wanted, values[at], values.dtype.type(0))


def _chosen(network: Model, layers: Iterable[int] | None) -> list[int]:
    count = len(network.layers)
    if layers is None:
        return list(range(count))
    chosen = list(layers) if isinstance(layers, Iterable) else [layers]
    for number in chosen:
        if isinstance(number, bool) or number not in range(count):
            raise InputError(f"layer {number!r} of {count} does not exist")
    return chosen


def _neurons(layer: Layer) -> dict[str, Any]:
    """Return what every kind of layer has, by the names of its fields."""
    found = {f.name: getattr(layer, f.name) for f in dataclasses.fields(Neurons)}
    return {**found, "bias": bool(layer.bias)}  # a shared one becomes one a neuron
