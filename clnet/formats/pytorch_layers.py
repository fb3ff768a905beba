"""The layers that a traced module is read as: the graph's nodes emit them.

Each value has a factor and a shift of each column that the next linear layer takes up.
Activations and dropout belong to the layer before, where nothing else reads it.
Elsewhere a layer of one connection a neuron is put between.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from clnet.errors import InputError, counted
from clnet.formats.affine import Affine, spread
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
    """A value of the graph, of columns of layers' outputs, or of the input."""

    rows: Affine  # Of no dimension: the input, whose width is not known yet
    layer: int | None = None  # That nothing else in the graph reads, counted from 1
    # Identity of the memory, which calls in place change
    tensor: object = field(default_factory=object)


class Emission:
    """The layers that are emitted, in their order.

    Atoms are numbered through: the inputs, then the neurons of each layer.
    """

    def __init__(self) -> None:
        self.n_in: int | None = None
        self.layers: list[TracedLayer] = []
        self._ends: list[int] = []  # of the atoms of the input and of each layer

    def input(self) -> Traced:
        """Return the module's input."""
        return Traced(Affine.of(np.array(0)))

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
        if self.n_in is None:
            raise InputError("the module has no Linear, of which a network is made")
        last = value.layer == len(self.layers) and value.rows.plain
        if not last or self.layers[-1].dropout:
            self._between("the output", value)

    def linear(
        self, where: str, value: Traced, weights: Array, bias: Array | None,
        sparse: bool = False,
    ) -> Traced:
        """Emit a layer, and return its outputs."""
        rows = self.sized(where, value, weights.shape[1])
        if rows.bias.any():
            shift = weights @ rows.bias
            bias = shift if bias is None else bias + shift
        firsts = np.array([0, *self._ends])
        owners = np.searchsorted(firsts, rows.atoms, "right") - 1
        sources = np.unique(owners)
        widths = np.diff(firsts)[sources]
        before = np.zeros(len(firsts), np.int64)  # columns of sources before each
        before[sources] = np.cumsum(widths) - widths
        columns = rows.atoms - firsts[owners] + before[owners]
        matrix = spread(weights, columns, rows.scale, int(widths.sum()))
        self.layers.append(TracedLayer(tuple(sources.tolist()), matrix, bias, sparse))
        first = self._ends[-1]
        self._ends.append(first + len(matrix))
        atoms = np.arange(first, self._ends[-1])
        return Traced(Affine.of(atoms), layer=len(self.layers))

    def add(self, values: Sequence[Traced]) -> Traced:
        """Return the sum of values, which is a layer of its own."""
        n = len(self.sized("a sum", values[0]))
        terms = Affine.joined([self.sized("a sum", value, n) for value in values])
        ones = np.hstack([np.eye(n)] * len(values))
        return self.linear("a sum", Traced(terms), ones, None, sparse=True)

    def concatenated(self, values: Sequence[Traced]) -> Traced:
        """Return values side by side."""
        return Traced(Affine.joined([self.sized("cat", value) for value in values]))

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
        rows = value.rows
        for shape in (np.shape(factor), np.shape(shift)):
            if np.prod(shape, dtype=int) > 1:
                if np.prod(shape[:-1], dtype=int) > 1:
                    raise InputError(
                        f"{where} reads a constant of shape {list(shape)}, expected "
                        "one number, or one of each column"
                    )
                rows = self.sized(where, value, shape[-1])
        factor, shift = np.squeeze(factor), np.squeeze(shift)
        layer = self.layers[value.layer - 1] if value.layer and rows.plain else None
        if layer is None or layer.activation is not None or layer.dropout:
            rows = rows.affine(factor, shift)
            return dataclasses.replace(value, rows=rows, tensor=object())
        layer.matrix = layer.matrix * factor[..., np.newaxis]
        if layer.bias is not None or shift.any():
            before = np.zeros(len(layer.matrix)) if layer.bias is None else layer.bias
            layer.bias = shift + before * factor
        return dataclasses.replace(value, tensor=object())

    def sized(self, where: str, value: Traced, n: int | None = None) -> Affine:
        """Return a value's columns, of which there are n; the input has any n, once."""
        rows = value.rows
        if not rows.atoms.ndim:
            self.n_in = n if self.n_in is None else self.n_in
            if self.n_in is None:
                raise InputError(
                    "the module does more than Linear takes up before the number of "
                    "its inputs is known: expected Linear, BatchNorm1d or Flatten "
                    f"first; {ELSEWHERE}"
                )
            self._ends = self._ends or [self.n_in]
            ones = np.ones(self.n_in)
            rows = Affine(np.arange(self.n_in), rows.scale * ones, rows.bias * ones)
        if n is not None and len(rows) != n:
            raise InputError(
                f"{where} takes {counted(n, 'value')}, but reads {len(rows)}"
            )
        return rows

    def _own_layer(self, where: str, value: Traced) -> tuple[TracedLayer, Traced]:
        """Return the layer of which a value is the only use, and its value."""
        if value.layer and value.rows.plain:
            return self.layers[value.layer - 1], value
        return self._between(where, value)

    def _between(self, where: str, value: Traced) -> tuple[TracedLayer, Traced]:
        """Emit a layer of one connection a neuron, and return it with its value."""
        emitted = self.add([value])
        return self.layers[-1], emitted
