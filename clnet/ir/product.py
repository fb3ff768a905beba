"""Products with a layer's matrix: forward, back to its inputs, and by its weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from clnet.ir.op import Array, Derivatives, Function, Op, Value, Values, gradient_of
from clnet.nn.storage.dense import DenseStorage, RowStorage
from clnet.nn.storage.local import LocalStorage
from clnet.nn.storage.sparse import SparseStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from clnet.nn.storage.base import Storage
    from clnet.nn.storage.layout import Slot


class Contraction(Op):
    """An op that contracts a layer's matrix with values: the base of three products."""

    MARKS: ClassVar[tuple[str, str]] = ("", "")  # Around a storage's signature
    storage: Storage
    weights: Slot
    accumulate: bool

    @property
    def signature(self) -> str:
        """The storage's, and whether it accumulates."""
        before, after = self.MARKS
        return f"{'+=' * self.accumulate}{before}{self.storage.signature}{after}"

    def flops(self, batch: int) -> int:
        """Count a multiply-add as two, for every stored entry and sample."""
        return 2 * self.storage.size * batch

    def sizes(self, batch: int) -> tuple[int, int, int]:
        """Return m, n and k of ``c [m, n] = a [m, k] b [k, n]``."""
        raise NotImplementedError


@dataclass(frozen=True)
class Apply(Contraction):
    """``z = A x``, or ``z += A x`` if `accumulate`.

    A sum of storages (HYB) or of sources (shortcut connections) is a sequence of these.
    """

    NAME: ClassVar[str] = "product"
    READS: ClassVar[tuple[str, ...]] = ("x",)
    WRITES: ClassVar[tuple[str, ...]] = ("z",)

    x: Value
    z: Value
    storage: Storage
    weights: Slot
    accumulate: bool = False

    def sizes(self, batch: int) -> tuple[int, int, int]:
        """Return those of samples by neurons."""
        return batch, self.storage.n_out, self.storage.n_in

    @property
    def parameter_slots(self) -> tuple[Slot, ...]:
        """The weights."""
        return (self.weights,)

    def run(self, values: Values, parameters: Array) -> None:
        """Multiply the rows of x."""
        values[self.z.name] = self.bound(parameters)(values)

    def bound(self, parameters: Array) -> Function:
        """Multiply by a matrix that is made once, where the storage has whole rows."""
        x, z, weights = self.x.name, self.z.name, self.weights.of(parameters)
        if isinstance(self.storage, RowStorage):
            columns = self.storage.matrix(weights).T
            product: Callable[[Array], Array] = lambda x: x @ columns  # noqa: E731
        else:
            product = partial(
                _product, storage=self.storage, weights=weights, transposed=False
            )
        if self.accumulate:
            return lambda values: product(values[x]) + values[z]
        return lambda values: product(values[x])

    def backward(self, d: Derivatives) -> Iterator[Op]:
        """``dA = dzᵀ x`` and ``dx = dz A``."""
        yield Outer(
            d[self.z], self.x, gradient_of(self.weights), self.storage, self.weights
        )
        if self.x in d:
            yield ApplyT(d[self.z], d[self.x], self.storage, self.weights)


@dataclass(frozen=True)
class ApplyT(Contraction):
    """``dx = dz A``: derivatives propagated back through a layer's matrix.

    Or ``dx += dz A`` if `accumulate`: an output may have several readers.
    """

    NAME: ClassVar[str] = "product'"
    MARKS: ClassVar[tuple[str, str]] = ("", "ᵀ")
    READS: ClassVar[tuple[str, ...]] = ("dz",)
    WRITES: ClassVar[tuple[str, ...]] = ("dx",)

    dz: Value
    dx: Value
    storage: Storage
    weights: Slot
    accumulate: bool = False

    def sizes(self, batch: int) -> tuple[int, int, int]:
        """Return those of samples by inputs."""
        return batch, self.storage.n_in, self.storage.n_out

    def run(self, values: Values, parameters: Array) -> None:
        """Multiply the rows of dz by the transpose."""
        weights = self.weights.of(parameters)
        dx = _product(values[self.dz.name], self.storage, weights, transposed=True)
        if self.accumulate:
            dx += values[self.dx.name]
        values[self.dx.name] = dx


@dataclass(frozen=True)
class Outer(Contraction):
    """The weights' gradient: at live entry (i, j), ``dz[:, i] · x[:, j]``.

    Or that added to the gradient so far if `accumulate`: layers may share weights.
    Padding of the gradient is unspecified: `GradientNorm` and `Update` read the live
    elements alone.
    """

    NAME: ClassVar[str] = "weights'"
    MARKS: ClassVar[tuple[str, str]] = ("outer-", "")
    READS: ClassVar[tuple[str, ...]] = ("dz", "x")
    WRITES: ClassVar[tuple[str, ...]] = ("gradient",)

    dz: Value
    x: Value
    gradient: Value
    storage: Storage
    weights: Slot
    accumulate: bool = False

    def sizes(self, batch: int) -> tuple[int, int, int]:
        """Return those of neurons by inputs."""
        return self.storage.n_out, self.storage.n_in, batch

    @property
    def gradient_slots(self) -> Mapping[Value, Slot]:
        """The weights'."""
        return {self.gradient: self.weights}

    def run(self, values: Values, parameters: Array) -> None:
        """Multiply dz and x over the samples."""
        dz, x = values[self.dz.name], values[self.x.name]
        gradient = np.zeros((1, self.weights.size), dz.dtype)
        if isinstance(self.storage, LocalStorage):
            for r, band in enumerate(self.storage.bands(gradient[0])):
                band[...] = (dz * x[:, r : r + self.storage.n_out]).sum(axis=0)
        elif isinstance(self.storage, DenseStorage):  # needs no list of its entries
            self.storage.matrix(gradient[0])[...] = dz.T @ x
        else:
            rows, columns, slots = self.storage.entries()
            gradient[0, slots] = (dz.T @ x)[rows, columns]
        if self.accumulate:
            gradient += values[self.gradient.name]
        values[self.gradient.name] = gradient


def _product(x: Array, storage: Storage, weights: Array, transposed: bool) -> Array:
    """Return ``A x`` sample by sample, or ``Aᵀ x``: x [batch, n_in], or [batch, n_out].

    Storages of whole rows multiply all entries, so that 0 · ∞ is NaN where a masked one
    has no connection. The others multiply their live entries alone. BLAS on the whole
    matrix gives the same where x is finite; it serves there unless a sparse storage has
    fewer multiplications at live entries than the matrix has entries.
    """
    if isinstance(storage, LocalStorage):
        return _windows(x, storage, weights, transposed)
    few = isinstance(storage, SparseStorage) and (
        len(x) * len(storage.pattern) < storage.n_out * storage.n_in
    )
    if isinstance(storage, RowStorage) or (not few and np.isfinite(x).all()):
        matrix = storage.matrix(weights)
        product: Array = x @ (matrix if transposed else matrix.T)
        return product
    rows, columns, slots = storage.entries()
    values = weights[slots]
    if transposed:
        rows, columns = columns, rows
    n = storage.n_in if transposed else storage.n_out
    sums = [np.bincount(rows, sample[columns] * values, n) for sample in x]
    return np.array(sums, x.dtype)


def _windows(
    x: Array, storage: LocalStorage, weights: Array, transposed: bool
) -> Array:
    """Return ``sum over r: w[r] x[:, r : r + n_out]``, or its transpose."""
    n_out = storage.n_out
    sums = np.zeros((len(x), storage.n_in if transposed else n_out), x.dtype)
    for r, band in enumerate(storage.bands(weights)):
        if transposed:
            sums[:, r : r + n_out] += band * x
        else:
            sums += band * x[:, r : r + n_out]
    return sums
