"""The way through a graph: each node's outputs as values, constants or refusals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.formats.files import check_memory
from clnet.formats.graphs.affine import NONE, Affine
from clnet.formats.graphs.algebra import UnknownError
from clnet.formats.graphs.piecewise import Piecewise, summed
from clnet.formats.graphs.values import (
    MOST_ROOTS,
    AtomTable,
    Curve,
    Inputs,
    Linear,
    Record,
    RefusalError,
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
class Room:
    """The memory that a file may take; see `check_memory`."""

    path: Path
    file_size: int
    limit: int | None
    used: int = 0

    def take(self, nbytes: int) -> None:
        """Count bytes; raise FormatError if they are too many in all."""
        self.used += nbytes
        check_memory(self.path, self.used, self.file_size, self.limit)


@dataclass(frozen=True)
class Input:
    """An input of the graph: its samples, or None for any number, and their shape."""

    name: str
    batch: int | None
    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def size(self) -> int:
        """Numbers of a sample."""
        return int(np.prod(self.shape, dtype=object))


@dataclass(frozen=True)
class Node:
    """An operation of a graph."""

    text: str  # Names it in errors
    op: str  # ONNX's type of nodes, after its domain and a colon if it has one
    options: Mapping[str, Any] = field(default_factory=dict)  # ONNX's attributes
    # Returns its outputs for arrays, of the library that the graph is of; without the
    # options that are named
    evaluate: Callable[..., list[Array]] | None = None

    def outputs(self, arrays: Sequence[Any], without: Sequence[str] = ()) -> list[Any]:
        """Return its outputs for arrays, by the library that the graph is of."""
        assert self.evaluate is not None
        return self.evaluate(arrays, without)


@dataclass
class GraphTrace:
    """The values of a graph's nodes, for so many samples."""

    inputs: Sequence[Input]
    batch: int  # Samples
    room: Room
    versions: Mapping[str, int] = field(default_factory=dict)  # Of ONNX's operators
    biased: bool = True  # Whether each layer has a bias, though it is zero
    counted: bool = False  # Whether a node reads the number of samples

    def __post_init__(self) -> None:
        self.records: AtomTable = AtomTable(self.batch)
        self.tensors: dict[str, Tensor] = {}  # by their names, those of inputs first
        self.text: str = ""  # names the present node
        width = sum(graph_input.size for graph_input in self.inputs)
        self.room.take(width * self.batch * BYTES)
        record = Inputs("the input", width)
        rows, at = self.records.add(record), 0
        for graph_input in self.inputs:
            part = slice(at, at := at + graph_input.size)
            value = self.records.value(rows[part], graph_input.shape)
            if graph_input.dtype == "int64":
                value = replace(value, whole=True)
            self.tensors[graph_input.name] = value

    def take(self, elements: int) -> None:
        """Count the memory of a tensor of so many elements."""
        self.room.take(elements * BYTES)

    def version(self) -> int:
        """Return the version of the operators."""
        return self.versions.get("", 1)

    # --- records ---------------------------------------------------------------------

    def linear(
        self, argument: Affine, matrix: Array | Triplets, bias: Array,
        *, biased: bool = False,
    ) -> Affine:
        """Return ``matrix @ argument + bias``; `biased` keeps a bias of zeros."""
        return self.records.add(
            Linear(self.text, len(bias), argument, matrix, bias, biased)
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

Operator = Callable[[GraphTrace, Node, list[Any]], Sequence[Tensor]]


def most_elements(node: Node, arrays: Sequence[Any]) -> int:
    """Return about how many elements a node's outputs have at most.

    Arrays may be values too: they have a shape.
    """
    shapes = [array.shape for array in arrays if array is not None]
    # An array without elements takes as long to be repeated as one with some.
    sizes = [max(1, _size(shape)) for shape in shapes]
    op, options = node.op, node.options
    if op in ("ConstantOfShape", "Expand", "Tile", "Pad", "Range"):
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
        scales = options.get("scales") or np.ravel(arrays[1]).tolist()
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
