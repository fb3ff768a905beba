"""The description of a network: its layers and how they read each other. No OpenCL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.checks import INT_MAX, as_items, as_whole, check_flag, check_name, is_many
from clnet.errors import InputError, quoted
from clnet.nn.copies import Uncached
from clnet.nn.layers import Dense, Layer, Sparse, bias_size, infer_sizes
from clnet.nn.matrix import Matrix, MatrixPart
from clnet.nn.storage.layout import Layout, layout

if TYPE_CHECKING:
    from clnet.nn.storage.base import Storage

DTYPES = ("float32", "float64")
Array = NDArray[Any]


class Description(Uncached):
    """The immutable part of a network: layers in a row."""

    def __init__(
        self, n_in: int, layers: Sequence[Layer], dtype: str, fann_compatible: bool
    ) -> None:
        n_in = as_whole("n_in", n_in, most=INT_MAX)
        layers = tuple(as_items(layers))
        if not layers:
            raise InputError(
                "a network needs a sequence of at least one layer, as [clnet.Dense(10)]"
            )
        for layer in layers:
            if isinstance(layer, type) or not hasattr(layer, "blocks"):
                raise InputError(
                    f"{quoted(layer)} is not a layer: give layers as clnet.Dense(10)"
                )
        if layers[-1].dropout > 0:
            raise InputError(
                "the last layer has dropout, which is for layers that others read"
            )
        check_sources(layers)
        self._dtype = as_dtype(dtype)
        check_flag("fann_compatible", fann_compatible)
        layers = tuple(infer_sizes(n_in, layers))
        self._n_in = n_in
        self._layers = layers
        self._fann_compatible = bool(fann_compatible)
        for number in range(len(layers)):
            read = sum(self.sizes[source] for source in _sources(layers, number))
            name = f"the number of values that layer {number} reads"
            as_whole(name, read, most=INT_MAX)

    @property
    def n_in(self) -> int:
        """Inputs."""
        return self._n_in

    @property
    def n_out(self) -> int:
        """Outputs."""
        return self.sizes[-1]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Inputs, then neurons of each layer."""
        return (self._n_in, *(layer.n_out for layer in self._layers))

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers' descriptions."""
        return self._layers

    @property
    def formats(self) -> tuple[str, ...]:
        """The format of each sparse layer, as described."""
        sparse = (layer for layer in self._layers if isinstance(layer, Sparse))
        return tuple(layer.format for layer in sparse)

    @property
    def dtype(self) -> str:
        """``"float32"`` or ``"float64"``."""
        return self._dtype

    @property
    def fann_compatible(self) -> bool:
        """Whether pre-activations are clipped as FANN clips them."""
        return self._fann_compatible

    @cached_property
    def matrices(self) -> tuple[Matrix, ...]:
        """The matrix of each layer."""
        slots = iter(self.layout.weights)
        return tuple(
            Matrix(
                layer.n_out,
                sum(self.sizes[source] for source in _sources(self._layers, number)),
                tuple(MatrixPart(*where, next(slots)) for where in self._parts[number]),
            )
            for number, layer in enumerate(self._layers)
        )

    @cached_property
    def _parts(self) -> tuple[tuple[tuple[int, int, Storage], ...], ...]:
        """Source, first column and storage of every part of every layer."""
        item_size = np.dtype(self._dtype).itemsize
        parts = []
        for number, layer in enumerate(self._layers):
            sources = _sources(self._layers, number)
            widths = [self.sizes[source] for source in sources]
            firsts = np.cumsum([0, *widths[:-1]]).tolist()
            blocks = layer.blocks(widths, item_size)
            parts.append(tuple(
                (source, first, storage)
                for source, first, block in zip(sources, firsts, blocks, strict=True)
                for storage in block
            ))
        return tuple(parts)

    @cached_property
    def storages(self) -> tuple[Storage, ...]:
        """The storages of all layers, one for each slot of weights."""
        return tuple(storage for parts in self._parts for *_, storage in parts)

    @cached_property
    def layout(self) -> Layout:
        """The slots of weights and biases in the flat buffer."""
        return layout(self.storages, [bias_size(layer) for layer in self._layers])

    def layer_number(self, layer: int) -> int:
        """Return the number of a layer, counted from 0, if the layer exists."""
        try:
            return as_whole("layer", layer, 0, len(self._layers) - 1)
        except InputError:
            raise InputError(
                f"layer {quoted(layer)} of {len(self._layers)} does not exist"
            ) from None


def mlp_layers(
    sizes: Sequence[int],
    activation: str | Sequence[str],
    initialiser: str,
    dropout: float,
    output: str | None,
) -> tuple[int, list[Layer]]:
    """Return inputs and layers of a fully connected network; see `Network.mlp`."""
    counts = as_items(sizes)
    if len(counts) < 2:
        raise InputError(
            "sizes must be a list of inputs and at least one layer, not "
            f"{quoted(sizes)}"
        )
    n = len(counts) - 1
    names: list[Any] = (
        list(activation) if is_many(activation) else [activation] * n
    )
    if len(names) != n:
        raise InputError(
            f"{len(names)} activations for {n} layers: give one, or one a layer"
        )
    if output is not None:
        names[-1] = output
    return counts[0], [
        Dense(s, a, initialiser=initialiser, dropout=dropout if i < n else 0.0)
        for i, (s, a) in enumerate(zip(counts[1:], names, strict=True), start=1)
    ]


def as_dtype(dtype: object) -> str:
    """Return the name of a type of numbers, which may be given as NumPy's dtype."""
    name = dtype.name if isinstance(dtype, np.dtype) else dtype
    check_name("dtype", name, DTYPES)
    return str(name)


def _sources(layers: Sequence[Layer], number: int) -> tuple[int, ...]:
    """Return the sources of a layer, counted from 0: 0 the input, k the k-th layer."""
    sources = layers[number].sources
    return (number,) if sources is None else sources


def check_sources(layers: Sequence[Layer]) -> None:
    """Raise InputError unless each layer reads earlier ones, and is read itself."""
    sources = [_sources(layers, number) for number in range(len(layers))]
    for number, read in enumerate(sources):
        if max(read) > number:
            raise InputError(
                f"layer {number} has the sources {quoted(read)}, expected 0, the "
                f"input, to {number}, the output of the layer before"
            )
    unread = set(range(1, len(sources))) - {s for read in sources for s in read}
    if unread:
        raise InputError(
            f"the output of layer {min(unread) - 1} is in no later layer's sources"
        )


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
        result = np.zeros((*values.shape[:-1], self.size), values.dtype)
        result[..., self.target] = values[..., self.source]
        return result

    def backward(self, values: Array, padding: Array) -> Array:
        """Return values [..., size of target] as [..., size of source]."""
        result = padding.copy()
        result[..., self.source] = values[..., self.target]
        return result


def _offsets(network: Description) -> NDArray[np.int64]:
    """Return the offsets of all live weights, row by row, then of all biases."""
    weights = [matrix.entries().slots for matrix in network.matrices]
    biases = [
        np.arange(slot.offset, slot.offset + slot.size)
        for slot in network.layout.biases if slot is not None
    ]
    return np.concatenate([*weights, *biases])
