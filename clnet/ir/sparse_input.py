"""The ops of a first layer whose inputs are sparse: rows of a data set in CSR form.

They read the nonzero numbers of a batch alone, where they lie in the data set; no op
gathers the batch's inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import count
from math import gcd
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from clnet.checks import as_numbers
from clnet.ir.batch import ordered
from clnet.ir.op import Array, Derivatives, Op, Value, Values, gradient_of
from clnet.nn.storage.base import rounded_size
from clnet.nn.storage.layout import round_up

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from clnet.nn.storage.dense import DenseStorage
    from clnet.nn.storage.layout import Slot

ROOM_BITS = 3  # leading ones of a number of entries that its room keeps
STRIDE = 0.618  # of trials' column numbers, relative to the columns


class SparseShape(NamedTuple):
    """Size of a sparse data set."""

    samples: int  # Rows, and room for nonzero numbers
    entries: int

    @classmethod
    def of(cls, samples: int, entries: int) -> SparseShape:
        """Return a size with room for so many entries, and some more.

        Data sets with about as many share programs.
        """
        step = 1 << max(0, entries.bit_length() - ROOM_BITS)
        return cls(samples, max(1, round_up(entries, step)))


def csr_rows(name: str, matrix: Any, dtype: str) -> Any:
    """Return a CSR matrix in a dtype, whose rows name no column twice."""
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    parts = as_numbers(name, matrix.data, dtype), matrix.indices, matrix.indptr
    return type(matrix)(parts, shape=matrix.shape)


def csr_arrays(matrix: Any) -> list[NDArray[Any]]:
    """Return starts, columns and numbers of a CSR matrix, as of `SparseRows`."""
    arrays = matrix.indptr, matrix.indices, matrix.data
    return [array[:, np.newaxis] for array in arrays]


@dataclass(frozen=True)
class SparseRows:
    """The inputs of a data set in CSR form; no row names a column twice.

    Sample b of a batch is row ``order(first + b)``, as of `Gather`.
    """

    # [samples + 1, 1]: row i has entries `starts[i]` … `starts[i + 1] - 1`
    starts: Value
    columns: Value  # [entries, 1]: the input that an entry is of, and its number
    numbers: Value
    # Whether the order is `nn.random.permuted` by the epoch's key
    shuffled: bool = False

    @classmethod
    def of(cls, shape: SparseShape, shuffled: bool = False) -> SparseRows:
        """Return the rows of a data set of a size."""
        return cls(
            Value("starts", 1, 1, shape.samples + 1, whole=True),
            Value("columns", 1, 1, shape.entries, whole=True),
            Value("numbers", 1, 1, shape.entries), shuffled,
        )

    @property
    def values(self) -> tuple[Value, Value, Value]:
        """The arrays, in the order of a program's inputs."""
        return self.starts, self.columns, self.numbers

    @property
    def shape(self) -> SparseShape:
        """The size."""
        return SparseShape(self.starts.height(0) - 1, self.columns.height(0))

    def entries(self, batch: int) -> int:
        """Return the entries of a batch, about."""
        samples, entries = self.shape
        return -(-entries * batch // samples)

    def flops(self, n_out: int, batch: int) -> int:
        """Count a multiply-add as two, for every entry of a batch and output."""
        return 2 * n_out * self.entries(batch)

    def trial(self, n_in: int) -> dict[Value, NDArray[np.int32]]:
        """Return starts and columns of rows of equal lengths, for trials."""
        samples, entries = self.shape
        starts = np.arange(samples + 1) * min(entries // samples, n_in)
        step = next(
            s for s in count(max(1, int(STRIDE * n_in))) if gcd(s, n_in) == 1
        )
        columns = np.arange(entries) * step % n_in  # n_in adjacent ones differ
        return {
            self.starts: starts.astype(np.int32)[:, np.newaxis],
            self.columns: columns.astype(np.int32)[:, np.newaxis],
        }

    def batch(self, values: Values) -> Iterator[tuple[Array, Array]]:
        """Yield the columns and the numbers of each sample of a batch."""
        starts, columns, numbers = (values[value.name][:, 0] for value in self.values)
        for row in ordered(values, self.shape.samples, self.shuffled):
            entries = slice(starts[row], starts[row + 1])
            yield columns[entries], numbers[entries]

    @property
    def signature(self) -> str:
        """Text that is equal for rows that cost the same."""
        samples, entries = self.shape
        order = "shuffle" if self.shuffled else "slice"
        return f"{order}[{rounded_size(samples)},{rounded_size(entries)}]"


@dataclass(frozen=True)
class SparseInputApply(Op):
    """``z = A x`` of sparse samples x.

    The inputs are the first source of a layer: it never adds to another product.
    """

    NAME: ClassVar[str] = "product"
    WRITES: ClassVar[tuple[str, ...]] = ("z",)

    x: SparseRows
    z: Value
    storage: DenseStorage
    weights: Slot

    @cached_property
    def reads(self) -> tuple[Value, ...]:
        """The data set."""
        return self.x.values

    @property
    def signature(self) -> str:
        """The storage's and the data set's."""
        return f"{self.storage.signature}·{self.x.signature}"

    def run(self, values: Values, parameters: Array) -> None:
        """Add the columns of the matrix that samples have entries of."""
        matrix = self.storage.matrix(self.weights.of(parameters))
        values[self.z.name] = np.array([
            matrix[:, columns] @ numbers for columns, numbers in self.x.batch(values)
        ])

    def backward(self, d: Derivatives) -> Iterator[Op]:
        """``dA = dzᵀ x``."""
        yield SparseInputOuter(
            d[self.z], self.x, gradient_of(self.weights), self.storage, self.weights
        )

    def flops(self, batch: int) -> int:
        """Return the operations of the samples' entries."""
        return self.x.flops(self.storage.n_out, batch)


@dataclass(frozen=True)
class SparseInputOuter(Op):
    """The weights' gradient: at (i, j), ``dz[:, i] · x[:, j]`` of sparse samples x.

    Padding of the gradient is unspecified, as of `Outer`.
    """

    NAME: ClassVar[str] = "weights'"
    READS: ClassVar[tuple[str, ...]] = ("dz",)
    WRITES: ClassVar[tuple[str, ...]] = ("gradient",)

    dz: Value
    x: SparseRows
    gradient: Value
    storage: DenseStorage
    weights: Slot

    @cached_property
    def reads(self) -> tuple[Value, ...]:
        """The data set, and the derivatives by the pre-activations."""
        return (*self.x.values, self.dz)

    @property
    def signature(self) -> str:
        """The storage's and the data set's."""
        return f"outer-{self.storage.signature}·{self.x.signature}"

    @property
    def gradient_slots(self) -> Mapping[Value, Slot]:
        """The weights'."""
        return {self.gradient: self.weights}

    def run(self, values: Values, parameters: Array) -> None:
        """Multiply dz and x over the samples."""
        dz = values[self.dz.name]
        gradient = np.zeros((1, self.weights.size), dz.dtype)
        full = self.storage.matrix(gradient[0])
        batch = self.x.batch(values)
        for derivatives, (columns, numbers) in zip(dz, batch, strict=True):
            full[:, columns] += np.outer(derivatives, numbers)
        values[self.gradient.name] = gradient

    def flops(self, batch: int) -> int:
        """Return the operations of the samples' entries."""
        return self.x.flops(self.storage.n_out, batch)


SPARSE_INPUT_OPS = (SparseInputApply, SparseInputOuter)
