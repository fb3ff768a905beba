"""Samples that are read by parts while the device computes, in blocks.

`feed` takes them to the devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from clnet.checks import as_numbers
from clnet.errors import InputError
from clnet.formats.data_frame import named_inputs
from clnet.formats.sources import (
    BLOCKS,
    READ_ONCE,
    ArraySource,
    Part,
    Source,
    check_columns,
    grouped,
    read_ahead,
    rows_of,
    source_of,
)
from clnet.ir.lowering import reads_sparse
from clnet.nn.copies import by_threads
from clnet.nn.labels import are_labels, classes_of, encoded
from clnet.nn.random import permuted, shuffled, stream
from clnet.training.data_set import (
    DataSet,
    balanced_weights,
    checked_weights,
    converted,
    data_set,
    samples_of,
)

if TYPE_CHECKING:
    from clnet.nn.columns import Columns
    from clnet.nn.labels import Classes
    from clnet.nn.model import Model
    from clnet.nn.scaling import Scaling

T = TypeVar("T")
Array = NDArray[Any]

Targets = Sequence[tuple[Sequence[Array], Array | None]]
"""Of each worker, arrays [rows, …], and the row [samples] of each sample of a block.

Samples of other workers have -1; None: all have rows from 0 on.
"""

DEVICE_BLOCKS = 2  # one that steps read, one that is filled
# Bytes of samples that a thread checks and places at a time, while they are in a cache.
CHUNK = 1 << 20


@dataclass
class StreamedSet:
    """Samples of one network that are read by parts, checked and scaled."""

    network: Model  # The network
    source: Source  # The samples
    # Of the labels, the names and the numbers in the source, as of a network
    classes: Classes | None
    columns: Columns | None
    scaling: Scaling | None
    what: str  # As for `data_set`
    buffer: int  # Bytes of host memory for blocks
    first: DataSet  # A first part
    batch: int = 1  # Samples a step; a block has a multiple
    # The number of the set, of those that ranks share, which tells its orders from
    # others'
    lane: int = 0
    # What weights are divided by; None: by their mean in each step
    mean_weight: float | None = None

    def __post_init__(self) -> None:
        self._samples = self.source.samples

    def __len__(self) -> int:
        """Return the samples; as long as they are unknown, one more than in a block."""
        return self._samples or self.rows + 1

    @property
    def sample_bytes(self) -> int:
        """Bytes of a sample in the network's type."""
        width = self.network.n_in + self.network.n_out + self.weighted
        return width * np.dtype(self.network.dtype).itemsize

    @property
    def rows(self) -> int:
        """Samples of a block."""
        return max(self.batch, self._most // self.batch * self.batch)

    @property
    def _most(self) -> int:
        """Samples that fit in a block."""
        return rows_of(self.buffer, self.sample_bytes, 1)

    @property
    def capacity(self) -> int:
        """Rows of the device's arrays of samples, which hold two blocks."""
        return DEVICE_BLOCKS * self.rows

    @property
    def counts(self) -> dict[str, int | None]:
        """The numbers that a training that goes on must have in common."""
        return {"samples": self.source.samples, "block": self.rows}

    @property
    def weighted(self) -> bool:
        """Whether the samples have weights."""
        return self.first.weighted

    @property
    def sparse(self) -> None:
        """None: parts are dense."""
        return None

    @property
    def t(self) -> Array:
        """Some of the targets."""
        return self.first.t

    @property
    def arrays(self) -> list[Array]:
        """Samples that tell the set from others, where it has an order of its own."""
        return [] if self.source.samples is None else self.first.arrays

    @property
    def hint(self) -> str:
        """The end of an error: the buffer in which all samples fit."""
        size = self.source.size(np.dtype(self.network.dtype).itemsize)
        return "" if size is None else f", or a buffer of at least {size} bytes"

    def balanced(self, batch: int, whole: bool = False) -> StreamedSet:
        """Return the set for batches of so many samples, in which weights have mean 1.

        Those of steps of one sample, and if `whole` of all, have it in the set: their
        weights are read once before.
        """
        batch = min(batch, len(self))
        divides = self.weighted and (whole or batch == 1)
        mean = self._mean_of_weights() if divides else None
        return replace(self, batch=batch, mean_weight=mean)

    def _mean_of_weights(self) -> float:
        """Return the mean of all weights, of parts whose sums may overflow."""
        if self.source.once:
            raise InputError(
                f"{self.what}sample_weight is divided by its mean over the set, which "
                "a generator does not tell before: give batches that can be iterated "
                "again" + ("" if self.what else ", or a batch_size above 1")
            )
        mean, count = 0.0, 0
        for weight in self.source.weights(self._most):
            self._check_weighted(weight, count)
            numbers = as_numbers(f"{self._name}sample_weight", weight)
            weights = checked_weights(numbers, numbers.size, self._name, count)
            count += len(weights)
            most = float(weights.max(initial=0.0))
            of_part = most and most * float((weights / most).mean())
            mean += (of_part - mean) * (len(weights) / count) if count else 0.0
        if not mean:
            raise InputError(
                f"{self._name}sample_weight is 0 for all samples, expected one above 0"
            )
        return mean

    def section(self, rows: slice, batch: int, length: int, lane: int) -> StreamedSet:
        """Return the set of some rows, in blocks of so many samples."""
        return replace(
            self, source=self.source.section(rows), batch=batch, lane=lane,
            buffer=length * BLOCKS * self.sample_bytes,
        )

    def check(self, epochs: int) -> None:
        """Raise InputError unless the set can be read so often."""
        if self.source.once and epochs > 1:
            raise InputError(READ_ONCE)

    def check_batch(self) -> None:
        """Raise InputError unless a block holds the samples of a step."""
        if self.batch <= self._most:
            return
        if self.source.samples is None:
            raise InputError(
                "the samples of a step do not fit in a block: give a batch_size of at "
                f"most {self._most}, or a larger buffer"
            )
        least = self.batch * self.sample_bytes * BLOCKS
        raise InputError(
            f"steps of {self.batch} samples need a buffer of at least {least} bytes, "
            f"not {self.buffer}: give a smaller batch_size"
        )

    def blocks(self, key: Array | None) -> Iterator[Block]:
        """Yield the samples of an epoch, block by block."""
        if key is not None and self.lane:
            key = key ^ np.uint32(stream(self.lane))
        parts = self.source.parts(
            self.rows, None if key is None else
            lambda count: permuted(np.arange(count), count, key).tolist()
        )
        samples = 0
        for number, held in enumerate(grouped(map(self._arrays, parts), self.rows)):
            block = Block(self, held, key, number)
            samples += len(block)
            yield block
        if not samples:
            raise InputError(f"{self.source.name}{self.what}x has no sample")
        self._samples = samples

    def ahead(self, blocks: Iterator[T]) -> Iterator[T]:
        """Yield blocks that another thread makes, unless one reads the disk anyway."""
        return blocks if self.source.reads_ahead else read_ahead(blocks)

    def converted(self, part: Part) -> tuple[Array, Array]:
        """Return a part's inputs and targets as steps read them, or raise its error."""
        return converted(
            self.network, part.x, part.t, self._name, self.scaling, part.first
        )

    @property
    def _name(self) -> str:
        return f"{self.source.name}{self.what}"

    def _check_weighted(self, weight: object, first: int) -> None:
        """Raise InputError if a part, from a sample on, has weights and others none."""
        if (weight is not None) != self.weighted:
            these, others = ("no", "some") if weight is None else ("a", "none")
            raise InputError(
                f"{self._name}samples from {first} on have {these} sample_weight and "
                f"those before {others}: give all batches weights, or none"
            )

    def _arrays(self, part: Part) -> Part:
        self._check_weighted(part.weight, part.first)
        return arrays_of(part, self.network, self.classes, self.columns, self._name)


class Block:
    """Consecutive samples of an epoch."""

    def __init__(
        self, data: StreamedSet, parts: list[Part], key: Array | None, number: int
    ) -> None:
        self.parts: list[Part] = parts
        self._data = data
        self._samples = sum(len(part.x) for part in parts)
        self.order: Array | None = (
            None if key is None else shuffled(len(self), key, number)
        )

    def __len__(self) -> int:
        return self._samples

    @property
    def weight(self) -> Array | None:
        """Weights [samples, 1] as steps take them, in the order read; or none."""
        if self.parts[0].weight is None:
            return None
        weight, mean = self.given_weight, self._data.mean_weight
        if mean is not None:
            return weight / mean
        weight = weight / max(weight.max(), np.finfo(np.float64).tiny)
        return balanced_weights(weight, self._data.batch, self.order)

    @property
    def given_weight(self) -> Array:
        """Weights [samples, 1] as they were read."""
        return np.concatenate([part.weight for part in self.parts])[:, np.newaxis]

    def places(self, rows: Array | None) -> Array | None:
        """Return the row [samples] of each sample as it was read, of those in order.

        None stands for rows from 0 on.
        """
        if self.order is None:
            return rows
        places = np.empty(len(self), np.int32)
        places[self.order] = np.arange(len(self)) if rows is None else rows
        return places

    def write_samples(self, targets: Targets) -> None:
        """Write inputs and targets to arrays of workers.

        Threads check, convert and write some of them at a time.
        """
        def write(chunk: tuple[int, Part]) -> None:
            start, part = chunk
            rows = slice(start, start + len(part.x))
            columns = self._data.converted(part)
            for arrays, places in targets:
                for target, array in zip(arrays, columns, strict=False):
                    write_rows(target, rows if places is None else places[rows], array)

        by_threads(write, self._cut())

    def write_weights(self, targets: Targets) -> None:
        """Write the weights, if there are any, to the last array of each worker."""
        weight = self.weight
        if weight is not None:
            for arrays, places in targets:
                rows = slice(None) if places is None else places
                write_rows(arrays[-1], rows, weight)

    def _cut(self) -> Iterator[tuple[int, Part]]:
        """Yield some samples at a time, and how many precede them in the block."""
        before, rows = 0, max(1, CHUNK // self._data.sample_bytes)
        for part in self.parts:
            for start in range(0, len(part.x), rows):
                chunk = part.rows(start, start + rows)
                yield before, chunk
                before += len(chunk.x)


AnySet = DataSet | StreamedSet


def any_set(
    network: Model,
    samples: Iterable[Any],
    classes: Classes | None,
    columns: Columns | None,
    scaling: Scaling | None,
    buffer: int | None,
    what: str = "",
    sparse: bool = False,
) -> tuple[AnySet, Classes | None, Columns | None]:
    """Return the samples of a network, with their classes and columns.

    Without a buffer all are read at once.
    """
    x, t, weight = samples
    source = source_of(x, t, weight)
    sparse = sparse and scaling is None and reads_sparse(network, x)
    if source is not None and not sparse:
        check_columns(source, columns)
        columns, classes = columns or source.columns, classes or source.classes
        size = source.size(np.dtype(network.dtype).itemsize)
        if buffer is not None and (size is None or size > buffer):
            data = _streamed(network, source, classes, columns, scaling, what, buffer)
            return data, data.classes, data.columns
        if source is x or not isinstance(source, ArraySource):
            _, x, t, weight = source.whole()
    if t is None:
        raise InputError(f"{what}t is missing: only sources have targets of their own")
    t, classes = encoded(network, t, classes, f"{what}t")
    x, columns = named_inputs(columns, x, f"{what}x")
    return data_set(network, x, t, weight, what, scaling, sparse), classes, columns


def _streamed(
    network: Model, source: Source, classes: Classes | None, columns: Columns | None,
    scaling: Scaling | None, what: str, buffer: int,
) -> StreamedSet:
    """Return samples that are read by parts; labels are read once before, if need be.

    Labels of a source that is read once need the network's classes.
    """
    part = source.peek()
    if classes is None and part.t is not None and are_labels(network, part.t):
        rows = rows_of(buffer, network.n_in + network.n_out, 8)
        targets = iter([part.t]) if source.once else source.targets(rows)
        classes = classes_of(network, targets, f"{source.name}{what}t")
    name = f"{source.name}{what}"
    _, columns = named_inputs(columns, part.x, f"{name}x")
    part = arrays_of(part, network, classes, columns, name)
    x, t = converted(network, part.x, part.t, name, scaling, part.first)
    weight = part.weight
    first = DataSet(x, t, None if weight is None else weight[:, np.newaxis])
    return StreamedSet(network, source, classes, columns, scaling, what, buffer, first)


def arrays_of(
    part: Part, network: Model, classes: Classes | None, columns: Columns | None,
    name: str,
) -> Part:
    """Return a part as arrays of the shapes of a network, or raise its error."""
    if part.t is None:
        raise InputError(f"{name}t is missing: the samples have no targets to train on")
    t, _ = encoded(network, part.t, classes, f"{name}t")
    x, _ = named_inputs(columns, part.x, f"{name}x")
    x, t = samples_of(network, x, t, name)
    weight = None if part.weight is None else checked_weights(
        part.weight, len(x), name, part.first
    )
    return Part(part.first, x, t, weight)


def write_rows(target: Array, rows: slice | Array, source: Array) -> None:
    """Write an array [n, width] to n rows of another, whose rows may be longer.

    Rows of number -1 are left out.
    """
    target = target[:, : source.shape[1]]
    if not isinstance(rows, slice):  # whole rows are placed faster than their numbers
        source = np.ascontiguousarray(source, target.dtype) if (
            source.dtype != target.dtype or source.strides[1] != source.itemsize
        ) else source
        row = np.dtype((np.void, source.shape[1] * source.itemsize))
        target, source = target.view(row)[:, 0], source.view(row)[:, 0]
        if rows.size and rows.min() < 0:
            here = rows >= 0
            rows, source = rows[here], source[here]
    target[rows] = source
