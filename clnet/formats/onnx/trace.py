"""The way through a graph: each node's outputs as values, constants or refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.errors import FormatError, quoted, reason
from clnet.formats.affine import NONE, Affine
from clnet.formats.onnx.algebra import UnknownError
from clnet.formats.onnx.graph import Graph, RefusalError, attributes, evaluate
from clnet.formats.onnx.piecewise import Piecewise, summed
from clnet.formats.onnx.values import (
    MOST_ROOTS,
    AtomTable,
    Curve,
    Inputs,
    Linear,
    Record,
    Tracer,
    Triplets,
    same_rows,
)

Array = NDArray[Any]

BYTES = 100  # of memory for an element of a value, its copies included


@dataclass(frozen=True)
class Refused:
    """A tensor that no network computes, and why; refused if an output needs it."""

    reason: str


Tensor = Tracer | Array | Refused


@dataclass
class GraphTrace:
    """The tensors of a graph, for so many samples."""

    graph: Graph  # The file's
    batch: int  # Samples
    tensors: dict[str, Tensor] = field(default_factory=dict)
    counted: bool = False  # Whether a node reads the number of samples

    def __post_init__(self) -> None:
        self.records: AtomTable = AtomTable(self.batch)
        self.tensors.update(self.graph.constants)
        self.text: str = ""  # names the present node
        width = sum(graph_input.size for graph_input in self.graph.inputs)
        self.graph.room.take(width * self.batch * BYTES)
        record = Inputs("the input", width)
        rows, at = self.records.add(record), 0
        for graph_input in self.graph.inputs:
            part = slice(at, at := at + graph_input.size)
            value = self.records.value(rows[part], graph_input.shape)
            if graph_input.dtype == "int64":
                value = Tracer(value.codes, value.scale, value.bias, whole=True)
            self.tensors[graph_input.name] = value

    def run(self, operators: dict[str, Operator], foldable: frozenset[str]) -> None:
        """Follow all nodes, by an operator for each type, ``domain:type``."""
        for node in self.graph.nodes:
            self.text = named(node)
            outputs: Sequence[Tensor]
            try:
                outputs = self._outputs(node, operators, foldable)
            except FormatError:
                raise
            except RefusalError as error:
                outputs = [Refused(f"{self.text} {error}")] * len(node.output)
            except MemoryError:
                raise
            except Exception as error:
                outputs = [
                    Refused(f"{self.text} cannot be computed: {reason(error)}")
                ] * len(node.output)
            self.tensors.update(zip(node.output, outputs, strict=False))

    def _outputs(
        self, node: Any, operators: dict[str, Operator], foldable: frozenset[str]
    ) -> Sequence[Tensor]:
        inputs: list[Any] = []
        for name in node.input:
            if name and name not in self.tensors:
                raise RefusalError(
                    f"reads {quoted(name)}, which no node before it makes")
            inputs.append(self.tensors[name] if name else None)
        refused = [tensor for tensor in inputs if isinstance(tensor, Refused)]
        if refused:
            return refused[:1] * len(node.output)
        name = node.op_type if not node.domain else f"{node.domain}:{node.op_type}"
        if not any(isinstance(tensor, Tracer) for tensor in inputs):
            if name not in foldable:
                raise RefusalError("is of no type that feed-forward networks hold")
            return self.folded(node, inputs)
        if name not in operators:
            raise RefusalError("is of no type that feed-forward networks hold")
        return operators[name](self, node, inputs)

    def folded(self, node: Any, arrays: Sequence[Array | None]) -> list[Array]:
        """Return a node's outputs for constants, by onnx's evaluator."""
        self.take(most_elements(node, arrays))
        return evaluate(node, arrays, self.graph.versions)

    def take(self, elements: int) -> None:
        """Count the memory of a tensor of so many elements."""
        self.graph.room.take(elements * BYTES)

    def version(self, domain: str = "") -> int:
        """Return the version of the operators."""
        return self.graph.versions.get(domain, 1)

    # --- records ---------------------------------------------------------------------

    def linear(
        self, argument: Affine, matrix: Array | Triplets, bias: Array
    ) -> Affine:
        """Return ``matrix @ argument + bias``."""
        return self.records.add(
            Linear(self.text, len(bias), argument, matrix, bias)
        )

    def add(self, record: Record, curves: list[Curve]) -> Affine:
        """Return the rows of a record that is a function of one variable."""
        rows = self.records.add(record)
        record.curves = curves
        return rows

    def sum_rows(self, terms: Sequence[Affine]) -> Affine:
        """Return the sum of rows, element by element."""
        n = len(terms[0])
        bias = np.sum([term.bias for term in terms], axis=0)
        rows = np.tile(np.arange(n), len(terms))
        every = Affine.joined(terms)
        live = (every.atoms != NONE) & (every.scale != 0)
        unique, columns = np.unique(every.atoms[live], return_inverse=True)
        flat, inverse = np.unique(
            rows[live] * len(unique) + columns, return_inverse=True)
        values = np.zeros(len(flat))
        np.add.at(values, inverse, every.scale[live])
        rows, columns = np.divmod(flat, max(1, len(unique)))
        if len(np.unique(rows)) == len(rows):  # no element reads two atoms
            read = np.full(n, NONE)
            read[rows] = unique[columns]
            scale = np.zeros(n)
            scale[rows] = values
            return Affine(read, scale, bias)
        factors = Triplets(rows, columns, values)
        record = Linear(self.text, n, Affine.of(unique), factors, bias)
        return self.add(record, self.joined(
            [self.records.curves(term) for term in terms], summed))

    def joined(
        self, curves: Sequence[list[Curve]], function: Callable[..., Piecewise]
    ) -> list[Curve]:
        """Return a function of functions of one variable, where it is the same."""
        shared = []
        for first in curves[0]:
            parts = [first]
            for others in curves[1:]:
                same = [curve for curve in others if same_rows(curve.root, first.root)]
                parts += same[:1]
            if len(parts) == len(curves):
                hints = frozenset[tuple[float, float]]().union(
                    *(part.hints for part in parts))
                with suppress(UnknownError):
                    joined = function(*(part.function for part in parts))
                    shared.append(Curve(first.root, joined, hints))
        return shared[:MOST_ROOTS]


WINDOWED = ("Conv", "ConvTranspose", "AveragePool", "LpPool", "MaxPool")
"""Nodes whose attributes say how much memory they take."""

Operator = Callable[[GraphTrace, Any, list[Any]], Sequence[Tensor]]


def named(node: Any) -> str:
    """Return the text that names a node in an error."""
    name = node.name or next((output for output in node.output if output), "")
    return f"node {quoted(name)} ({quoted(node.op_type)[1:-1]})"


def most_elements(node: Any, arrays: Sequence[Any]) -> int:
    """Return about how many elements a node's outputs have at most.

    Arrays may be values too: they have a shape.
    """
    shapes = [array.shape for array in arrays if array is not None]
    # An array without elements takes as long to be repeated as one with some.
    sizes = [max(1, _size(shape)) for shape in shapes]
    op = node.op_type
    if op == "Constant":
        return sum(attribute.ByteSize() for attribute in node.attribute)
    if op in ("ConstantOfShape", "Expand", "Tile", "Pad", "Range"):
        options = attributes(node)
        last = [_wholes(array) for array in arrays[1:] if isinstance(array, np.ndarray)]
        if op == "ConstantOfShape":
            return _size(_wholes(arrays[0]))
        if op == "Expand":
            return sizes[0] * _size([max(1, size) for size in last[0]])
        if op == "Tile":
            return sizes[0] * _size([max(1, size) for size in last[0]])
        if op == "Pad":
            pads = options.get("pads") or options.get("paddings") or last[0]
            return _size([size + 2 * max(0, *pads) for size in shapes[0]])
        start, limit, delta = (np.asarray(array).item() for array in arrays)
        return int(abs((limit - start) / delta)) + 1
    if op in WINDOWED and len(shapes[0]) > 2:
        options = attributes(node)
        window = options.get("kernel_shape") or shapes[1][2:]
        around = 2 * max(0, *options.get("pads", ()), 0)
        apart = max(1, *options.get("strides", ()), 1) if op == "ConvTranspose" else 1
        positions = [(size + around) * apart for size in shapes[0][2:]]
        channels = _size(shapes[0][:2])
        return max(sum(sizes), channels * _size(positions) * _size(map(abs, window)))
    if op == "Resize":  # by scales, else to sizes of the last axes
        targets = [array for array in arrays[2:]
                   if array is not None and np.size(array)]
        target = np.ravel(targets[0]) if targets else np.ones(1)
        grown = _size([max(1, size) for size in target.tolist()])
        kept = 1 if target.dtype.kind == "f" else _size(shapes[0][-len(target):])
        return max(sizes[0], sizes[0] // max(1, kept) * grown)
    if op == "Upsample":
        scales = attributes(node).get("scales") or np.ravel(arrays[1]).tolist()
        return sizes[0] * _size([max(1, scale) for scale in scales])
    if op in ("Gather", "GatherElements", "GatherND", "MatMul", "Gemm", "Einsum"):
        return sizes[0] * max(sizes[1:]) if op != "Gemm" else sizes[0] * sizes[1]
    if op in ("Concat", "EyeLike", "ScatterND", "ScatterElements"):
        return sum(sizes)
    if op in ("Shape", "Size"):
        return 8
    try:
        return _size(np.broadcast_shapes(*shapes))
    except ValueError:
        return sum(sizes)


def _size(shape: Any) -> int:
    size = 1
    for length in shape:
        size *= int(length)
    return max(0, size)


def _wholes(array: Any) -> list[int]:
    return [int(number) for number in np.ravel(array).tolist()]


def scalar(tensor: Any) -> float | None:
    """Return the one number of a constant; None: it has several."""
    flat = np.ravel(np.asarray(tensor))
    if not flat.size or flat.dtype.kind not in "fiub" or not (flat == flat[0]).all():
        return None
    return float(flat[0])


def as_float(tensor: Any) -> Array:
    """Return a constant in float64; raise RefusalError if it holds no numbers."""
    array = np.asarray(tensor)
    if array.dtype.kind not in "fiub":
        raise RefusalError(f"reads constants of type {array.dtype}, expected numbers")
    return array.astype(np.float64)
