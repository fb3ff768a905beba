"""The layers that a traced module is read as: the graph's nodes emit them.

Each value is the concatenation of earlier layers' outputs, with a factor and a shift of
each column that the next linear layer takes up. Activations and dropout belong to the
layer before, where nothing else reads it. Elsewhere a layer of one connection a neuron
is put between.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from clnet.errors import InputError, counted
from clnet.nn.layers import Dense, Sparse

if TYPE_CHECKING:
    from clnet.nn.model import Model

Array = NDArray[Any]
M = TypeVar("M", bound="Model")

ELSEWHERE = "clnet.load takes more, from a file of torch.onnx.export"


@dataclass
class TracedLayer:
    """A layer that is being read; `matrix` is [n_out, widths of the sources]."""

    sources: tuple[int, ...]
    matrix: Array
    bias: Array | None
    sparse: bool
    activation: str | None = None
    dropout: float = 0.0


@dataclass(frozen=True)
class Traced:
    """A value of the graph: columns of layers' outputs, 0 being the input."""

    sources: tuple[int, ...]  # The layers, side by side
    scale: Array | None = None  # Factor and shift of each column
    shift: Array | None = None
    alone: bool = False  # Whether no other part of the graph reads the same layer
    # Identity of the memory, which calls in place change
    tensor: object = field(default_factory=object)


class Emission:
    """The layers that are emitted, in their order."""

    def __init__(self) -> None:
        self.n_in: int | None = None
        self.layers: list[TracedLayer] = []

    def network(self, network_type: type[M], dtype: str) -> M:
        """Return the network of the layers."""
        assert self.n_in is not None
        layers = []
        for number, layer in enumerate(self.layers):
            options: dict[str, Any] = {
                "activation": layer.activation or "identity",
                "bias": layer.bias is not None,
                "sources": None if layer.sources == (number,) else layer.sources,
                "dropout": layer.dropout,
            }
            layers.append(
                Sparse(len(layer.matrix), pattern=layer.matrix != 0, **options)
                if layer.sparse else Dense(len(layer.matrix), **options)
            )
        network = network_type(self.n_in, layers, seed=0, dtype=dtype)
        network.set_layers((layer.matrix, layer.bias) for layer in self.layers)
        return network

    def end(self, value: Traced) -> None:
        """Emit the layer of the output, unless the last one is it."""
        if not self.layers and self.n_in is None:
            raise InputError("the module has no Linear, of which a network is made")
        last = value.sources[-1] == len(self.layers) and value.alone
        if not last or value.scale is not None or self.layers[-1].dropout:
            self._between("the output", value)

    def linear(
        self, where: str, value: Traced, weights: Array, bias: Array | None,
        sparse: bool = False,
    ) -> Traced:
        """Emit a layer, and return its outputs."""
        self.expect(where, value, weights.shape[1])
        widths = [self._width(source) for source in value.sources]
        if value.scale is not None:
            scale, offset = self._affine(value)
            shift = weights @ offset
            bias = shift if bias is None else bias + shift
            weights = weights * scale
        blocks: dict[int, Array] = {}
        for source, block in zip(
            value.sources, np.split(weights, np.cumsum(widths)[:-1], axis=1),
            strict=True,
        ):
            blocks[source] = blocks[source] + block if source in blocks else block
        sources = tuple(sorted(blocks))
        matrix = np.hstack([blocks[source] for source in sources])
        self.layers.append(TracedLayer(sources, matrix, bias, sparse))
        return Traced((len(self.layers),), alone=True)

    def add(self, values: Sequence[Traced]) -> Traced:
        """Return the sum of values, which is a layer of its own."""
        for value in values:
            self.expect("a sum", value, self.columns(values[0]))
        scales, shifts = zip(*map(self._affine, values), strict=True)
        bias = sum(shifts) if np.any(shifts) else None
        sources = tuple(source for value in values for source in value.sources)
        blocks = np.hstack([np.diag(scale) for scale in scales])
        return self.linear("a sum", Traced(sources), blocks, bias, sparse=True)

    def concatenated(self, values: Sequence[Traced]) -> Traced:
        """Return values side by side."""
        sources = tuple(source for value in values for source in value.sources)
        if all(value.scale is None for value in values):
            return Traced(sources)
        scales, shifts = zip(*map(self._affine, values), strict=True)
        return Traced(sources, np.concatenate(scales), np.concatenate(shifts))

    def activated(self, where: str, value: Traced, name: str) -> Traced:
        """Return a value's activation."""
        layer, value = self._own_layer(where, value)
        if layer.activation is not None or layer.dropout:
            layer, value = self._between(where, value)
        layer.activation = name
        return dataclasses.replace(value, tensor=object())

    def dropped(self, value: Traced, p: float) -> Traced:
        """Return a value of which training drops a share."""
        if not p:
            return value
        layer, value = self._own_layer("dropout", value)
        if layer.dropout:
            layer, value = self._between("dropout", value)
        layer.dropout = p
        return value

    def affined(self, where: str, value: Traced, factor: Any, shift: Any) -> Traced:
        """Return a value with a factor and a shift: numbers, or one of each column."""
        factor = self._row(where, value, factor)
        shift = self._row(where, value, shift)
        layer = self.layers[value.sources[0] - 1] if value.alone else None
        if (layer is not None and value.scale is None and layer.activation is None
                and not layer.dropout):
            layer.matrix = layer.matrix * factor[..., np.newaxis]
            if layer.bias is not None or shift.any():
                before = np.zeros(len(layer.matrix)) if layer.bias is None else (
                    layer.bias)
                layer.bias = shift + before * factor
            return dataclasses.replace(value, tensor=object())
        if value.scale is not None and value.shift is not None:
            factor, shift = value.scale * factor, value.shift * factor + shift
        return dataclasses.replace(value, scale=factor, shift=shift, tensor=object())

    def _row(self, where: str, value: Traced, constant: Any) -> Array:
        """Return a constant, shape [] or [columns]."""
        row: Array = np.squeeze(constant)
        if row.ndim and row.shape != np.shape(constant)[-1:]:
            raise InputError(
                f"{where} reads a constant of shape {list(np.shape(constant))}, "
                "expected one number, or one of each column"
            )
        if row.ndim:
            self.expect(where, value, len(row))
        return row

    def _width(self, source: int) -> int:
        """Return the columns of a layer's output, or of the input."""
        if source:
            return len(self.layers[source - 1].matrix)
        if self.n_in is None:
            raise InputError(
                "the module does more than Linear takes up before the number of its "
                "inputs is known: expected Linear, BatchNorm1d or Flatten first; "
                f"{ELSEWHERE}"
            )
        return self.n_in

    def columns(self, value: Traced) -> int:
        """Return the columns of a value."""
        return sum(self._width(source) for source in value.sources)

    def expect(self, where: str, value: Traced, n: int) -> None:
        """Raise InputError unless a value has n columns; the input has any, once."""
        if value.sources == (0,) and self.n_in is None:
            self.n_in = n
        if self.columns(value) != n:
            raise InputError(
                f"{where} takes {counted(n, 'value')}, but reads {self.columns(value)}"
            )

    def _affine(self, value: Traced) -> tuple[Array, Array]:
        """Return the factor and the shift of each column."""
        if value.scale is None or value.shift is None:
            return np.ones(self.columns(value)), np.zeros(self.columns(value))
        n = self.columns(value)
        return np.broadcast_to(value.scale, n), np.broadcast_to(value.shift, n)

    def _own_layer(self, where: str, value: Traced) -> tuple[TracedLayer, Traced]:
        """Return the layer of which a value is the only use, and its value."""
        if value.alone and value.scale is None:
            return self.layers[value.sources[0] - 1], value
        return self._between(where, value)

    def _between(self, where: str, value: Traced) -> tuple[TracedLayer, Traced]:
        """Emit a layer of one connection a neuron, and return it with its value."""
        emitted = self.add([value])
        return self.layers[-1], emitted
