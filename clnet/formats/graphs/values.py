"""Values of a graph: affine maps of atoms, which are rows of records.

A *record* is a linear
map, an activation, a softmax, or a function of one variable that is yet to be
recognised. Nodes make records; `clnet.formats.graphs.layers` makes layers of those that
the outputs need.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.formats.graphs.affine import NONE, Affine
from clnet.formats.graphs.algebra import EXACT, NEAR
from clnet.formats.graphs.piecewise import IDENTITY, Piecewise

Array = NDArray[Any]

MOST_ROOTS = 6  # arguments that a curve is remembered as a function of
Term = tuple[Any, str, float, float]
"""Of ``c f(s x + b)``: c, one number or one of each element, f's name, s and b."""


class RefusalError(Exception):
    """The reason why a node cannot be part of a network: the end of a sentence."""


@dataclass(frozen=True)
class Tracer(Affine):
    """A tensor of the graph; each atom's number is ``atom * batch + sample``."""

    whole: bool = False  # Whether its type is one of whole numbers


@dataclass(frozen=True)
class Curve:
    """A record as a function of one variable, equal for all its rows."""

    # The arguments, up to one factor and one constant; see `AtomTable.settled`
    root: Affine
    function: Piecewise  # The function of them
    # Factors and constants of the arguments of the functions that it is made of
    hints: frozenset[tuple[float, float]]


@dataclass(eq=False)
class Record:
    """Affine of one kind; see the classes derived from it."""

    node: str  # text that names the node
    size: int
    first: int = field(default=0, init=False)  # atom of row 0
    curves: list[Curve] = field(default_factory=list, init=False)

    def rows(self) -> Affine:
        """Return all rows, as they are."""
        return Affine.of(np.arange(self.first, self.first + self.size))


@dataclass(eq=False)
class Inputs(Record):
    """The network's inputs."""


@dataclass(frozen=True)
class Triplets:
    """A sparse matrix: three arrays [entries], each place once."""

    rows: Array
    columns: Array
    values: Array


@dataclass(eq=False)
class Linear(Record):
    """``matrix @ argument + bias``; the matrix is [size, argument]."""

    argument: Affine
    matrix: Array | Triplets
    bias: Array
    biased: bool = False  # Whether its layer has a bias, though it is zero


Activations = str | tuple[str, ...]
"""An activation's name for all rows, or one for each."""


@dataclass(eq=False)
class Activated(Record):
    """An activation of each row of the argument, or softmax of all."""

    argument: Affine
    activation: Activations
    dropout: float = 0.0  # Of trainings


@dataclass(eq=False)
class Composite(Record):
    """A function of one variable, known by its `curves` alone."""


def same_rows(a: Affine, b: Affine) -> bool:
    """Return whether rows are equal, but for constants that were rounded."""
    if not np.array_equal(a.atoms, b.atoms):
        return False
    left = EXACT * max(np.abs(rows.bias).max(initial=0.0) for rows in (a, b))
    return bool(
        (np.abs(a.scale - b.scale) <= NEAR * np.abs(a.scale)).all()
        and (np.abs(a.bias - b.bias) <= NEAR * np.abs(a.bias) + left).all()
    )


@dataclass
class AtomTable:
    """All records of a graph, by their atoms, for so many samples."""

    batch: int
    all: list[Record] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    total: int = 0
    roots: dict[bytes, list[Affine]] = field(default_factory=dict)

    def add(self, record: Record) -> Affine:
        """Append a record, number its atoms, and return its rows."""
        record.first = self.total
        self.total += record.size
        self.all.append(record)
        self.firsts.append(record.first)
        return record.rows()

    def owners(self, atoms: Array) -> Array:
        """Return the number of the record of each atom; `NONE` of none."""
        numbers = np.searchsorted(self.firsts, atoms, "right") - 1
        return np.where(atoms == NONE, NONE, numbers)

    def owner(self, rows: Affine) -> Record | None:
        """Return the one record of all rows; None: there are several, or constants."""
        if not len(rows):
            return None
        low, high = self.owners(np.array([rows.atoms.min(), rows.atoms.max()]))
        return self.all[low] if low == high != NONE else None

    def value(self, rows: Affine, shape: tuple[int, ...], axis: int = 0) -> Tracer:
        """Return a tensor of the samples' rows; axis: that of the samples."""
        samples = np.arange(self.batch).reshape(-1, *[1] * len(shape))
        atoms = rows.atoms.reshape(1, *shape)
        codes = np.where(atoms == NONE, NONE, atoms * self.batch + samples)
        codes, scale, bias = (
            np.moveaxis(np.broadcast_to(array, codes.shape), 0, axis) for array in (
                codes, rows.scale.reshape(1, *shape), rows.bias.reshape(1, *shape))
        )
        return Tracer(codes, scale, bias)

    def layout(self, value: Tracer) -> tuple[Affine, tuple[int, ...], int]:
        """Return the rows of each sample, their shape, and the axis of the samples."""
        for axis, size in enumerate(value.shape):
            if size != self.batch:
                continue
            parts = [np.moveaxis(array, axis, 0).reshape(size, -1)
                     for array in (value.atoms, value.scale, value.bias)]
            codes, scale, bias = parts
            known = codes != NONE
            samples = np.arange(size)[:, None]
            if (
                (codes % self.batch == samples)[known].all()
                and (codes // self.batch == codes[:1] // self.batch).all()
                and _equal_rows(scale) and _equal_rows(bias)
            ):
                shape = value.shape[:axis] + value.shape[axis + 1 :]
                atoms = np.where(known[0], codes[0] // self.batch, NONE)
                return Affine(atoms, scale[0], bias[0]), shape, axis
        raise RefusalError("mixes samples, or treats them differently")

    def shared(self, constants: Array, axis: int) -> Array:
        """Return constants of each sample's elements [n], the same for all samples."""
        flat = np.moveaxis(constants, axis, 0).reshape(self.batch, -1)
        if (flat != flat[0]).any():
            raise RefusalError("treats samples differently")
        return np.asarray(flat[0])

    def samples(self, value: Tracer) -> Affine:
        """Return the rows of each sample of an output, whose first axis they are."""
        rows, _, axis = self.layout(value)
        if axis != 0 and len(rows):
            raise RefusalError(
                f"has the samples in dimension {axis}, expected the first")
        return rows

    def settled(self, rows: Affine) -> tuple[Affine, float, float] | None:
        """Return rows r and numbers s, b with ``rows = s r + b``.

        Scale and shift are divided out, so that a function is sampled near its natural
        range whatever the weights. None: the first row is a constant, or not finite.
        """
        if not len(rows) or rows.atoms[0] == NONE or not rows.scale[0]:
            return None
        if not np.isfinite([rows.scale[0], rows.bias[0]]).all():
            return None
        roots = self.roots.setdefault(rows.atoms.tobytes(), [])
        for root in roots:
            at = _plainest(root)
            scale = float(rows.scale[at] / root.scale[at])
            bias = float(rows.bias[at] - scale * root.bias[at])
            if abs(bias) <= NEAR * abs(rows.bias[at]):
                bias = 0.0
            if same_rows(rows, root.affine(scale, bias)):
                return root, scale, bias
        scale = float(rows.scale[_plainest(rows)])
        root = rows.affine(1 / scale)
        if len(roots) < MOST_ROOTS:
            roots.append(root)
        return root, scale, 0.0

    def curves(self, rows: Affine) -> list[Curve]:
        """Return rows as functions of one variable: themselves, and their origins."""
        settled = self.settled(rows)
        if settled is None:
            return []
        root, scale, bias = settled
        curves = [
            Curve(root, IDENTITY.affine(scale, bias), frozenset({(scale, bias)}))]
        constant = float(root.bias[0])
        if constant and (root.bias == constant).all():  # also of the atoms alone
            bias += scale * constant
            curves.append(Curve(
                root.affine(1.0, -constant), IDENTITY.affine(scale, bias),
                frozenset({(scale, bias)})))
        record = self.owner(rows)
        if (
            record is not None and record.curves and len(rows) == record.size
            and (rows.atoms == np.arange(record.first, record.first + len(rows))).all()
            and (rows.scale == rows.scale[0]).all()
            and (rows.bias == rows.bias[0]).all()
            and np.isfinite([rows.scale[0], rows.bias[0]]).all()
        ):
            scale, bias = float(rows.scale[0]), float(rows.bias[0])
            curves += [
                Curve(curve.root, curve.function.affine(scale, bias), curve.hints)
                for curve in record.curves]
        return curves[:MOST_ROOTS]


def _plainest(rows: Affine) -> int:
    """Return the row in whose zero least cancels."""
    return int(np.nanargmin(np.abs(rows.bias / rows.scale)))


def _equal_rows(array: Array) -> bool:
    return bool(((array == array[:1]) | (np.isnan(array) & np.isnan(array[:1]))).all())
