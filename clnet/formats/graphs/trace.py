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
    # Returns how many elements its outputs have; None: a library has had room for them
    elements: Callable[[Sequence[Any]], int] | None = None

    def outputs(self, arrays: Sequence[Any], without: Sequence[str] = ()) -> list[Any]:
        """Return its outputs for arrays, by the library that the graph is of."""
        assert self.evaluate is not None
        return self.evaluate(arrays, without)

    def size(self, inputs: Sequence[Any]) -> int:
        """Return how many elements its outputs have; 0: a library has had room."""
        return 0 if self.elements is None else self.elements(inputs)


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


Operator = Callable[[GraphTrace, Node, list[Any]], Sequence[Tensor]]


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
