"""Sources: samples that are read by parts, because they may be larger than memory.

Arrays that are stored in files are sliced: memory maps, and the arrays of h5py and
zarr. Iterables of batches are read in their own order. `arrow` and `hdf5` open files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from copy import copy
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from clnet.checks import (
    as_array,
    as_numbers,
    as_rows,
    as_whole,
    check_open,
    is_many,
    is_sparse,
)
from clnet.errors import InputError, quoted
from clnet.formats.data_frame import frame_source, has_columns
from clnet.formats.files import reading
from clnet.formats.pages import direct_rows, forget, touch

if TYPE_CHECKING:
    from clnet.nn.columns import Columns
    from clnet.nn.labels import Classes

T = TypeVar("T")
PEEKED = 1024  # samples that are looked at before all others
Array = NDArray[Any]
Order = Callable[[int], Iterable[int]]
"""The order of so many units of a source, as row groups: a permutation."""

BUFFER = 1 << 28
"""Bytes of host memory for samples of a source, unless `buffer` says otherwise."""
BLOCKS = 6
"""Blocks of samples that a buffer holds: two on the device, one as it is read, the next
as the disk reads it, and one more in float64."""


class Part(NamedTuple):
    """Consecutive samples of a source."""

    first: int  # The number of the first one in the source
    x: Any  # Inputs
    t: Any = None  # Targets and weights, as for `Network.fit`; None: there are none
    weight: Any = None

    def rows(self, start: int, stop: int) -> Part:
        """Return some of the samples, where all are arrays."""
        return Part(self.first + start, *(
            None if array is None else array[start:stop] for array in self[1:]
        ))


class Source(ABC):
    """Samples that are read by parts."""

    samples: int | None = None  # Their number; None: it is known at the end
    name: str = ""  # What errors begin with: empty, or a file and a colon and a space
    once: bool = False  # Whether they can be read only once
    # Whether a thread reads the next part from the disk while one is used
    reads_ahead: bool = False
    columns: Columns | None = None  # The names of the columns
    # The classes of the targets that are labels, where they are known
    classes: Classes | None = None

    def peek(self) -> Part:
        """Return a first part, which `parts` yields all the same."""
        return next(self.parts(PEEKED))

    @abstractmethod
    def parts(self, rows: int, order: Order | None = None) -> Iterator[Part]:
        """Yield all samples, in parts of about so many rows."""

    def targets(self, rows: int) -> Iterator[Any]:
        """Yield the targets alone, in parts of about so many rows."""
        return (part.t for part in self.parts(rows))

    def weights(self, rows: int) -> Iterator[Any]:
        """Yield the weights alone, likewise."""
        return (part.weight for part in self.parts(rows))

    def size(self, itemsize: int) -> int | None:
        """Return the bytes of all numbers in a type; None: unknown."""
        return None

    def section(self, rows: slice) -> Source:
        """Return the source of some rows, of which no others are used."""
        raise InputError(
            f"{self.name}x is {quoted(type(self).__name__)}, whose rows ranks cannot "
            "share: give an array, a memory map, an array of h5py, or a file by "
            "open_data"
        )

    def whole(self) -> Part:
        """Return all samples."""
        return joined(list(self.parts(self.samples or 1)))


class ArraySource(Source):
    """Arrays that are sliced."""

    def __init__(
        self, x: Any, t: Any = None, weight: Any = None, name: str = ""
    ) -> None:
        self.name = name
        self.x: Any = as_rows(f"{name}x", x) if is_sparse(x) else x
        self.t: Any = None if t is None else _sliceable(f"{name}t", t)
        self.weight: Any = (
            None if weight is None else _sliceable(f"{name}sample_weight", weight)
        )
        if len(self.x.shape) != 2 or not self.x.shape[1]:
            raise InputError(
                f"{name}x has shape {list(self.x.shape)}, expected [samples, inputs]"
            )
        self.samples: int | None = self.x.shape[0]
        self._first = 0  # row
        self.reads_ahead: bool = hasattr(x, "_mmap")
        for what, other in (("t", self.t), ("sample_weight", self.weight)):
            if other is not None and other.shape[:1] != (self.samples,):
                raise InputError(
                    f"{name}x has {self.samples} samples and {what} the shape "
                    f"{list(other.shape)}"
                )
        if not self.samples:
            raise InputError(f"{name}x has no sample: give at least one")

    def __len__(self) -> int:
        assert self.samples is not None
        return self.samples

    def targets(self, rows: int) -> Iterator[Any]:
        """Yield the targets alone, in parts of so many rows, but for the last."""
        return self._parts_of(self.t, rows)

    def weights(self, rows: int) -> Iterator[Any]:
        """Yield the weights alone, likewise."""
        return self._parts_of(self.weight, rows)

    def _parts_of(self, array: Any, rows: int) -> Iterator[Any]:
        last = self._first + len(self)
        for start in range(self._first, last, rows):
            part = slice(start, min(start + rows, last))
            yield None if array is None else _slice(array, part)

    def size(self, itemsize: int) -> int:
        """Return the bytes of all numbers in a type."""
        arrays = (self.x, self.t, self.weight)
        return itemsize * len(self) * sum(
            int(np.prod(array.shape[1:])) for array in arrays if array is not None
        )

    def section(self, rows: slice) -> ArraySource:
        """Return the source of some rows; the parameter is that of `Source.section`."""
        section = copy(self)
        section._first += rows.start
        section.samples = rows.stop - rows.start
        return section

    def parts(
        self, rows: int, order: Order | None = None, held: int = 1, *,
        direct: bool = True,
    ) -> Iterator[Part]:
        """Yield parts of so many rows, but for the last.

        The short one is last in any order: one in their midst would have all others
        cut and joined to blocks, and pages of a map read again after `forget`. Pages
        of so many parts before the last one are held: `read_ahead` asks for the next
        part while one is used. With `direct`, a file that the page cache cannot hold is
        read past it.
        """
        n, before = len(self), self._first
        count = n // rows
        numbers = order(count) if order is not None and count else range(count)
        slices = (
            slice(before + number * rows, before + min((number + 1) * rows, n))
            for number in chain(numbers, [count] * (n % rows > 0))
        )
        arrays = self.x, self.t, self.weight
        reader = direct_rows(arrays) if direct else None
        read: Callable[[slice], list[Array | None]] = partial(touch, arrays)
        with ExitStack() as stack:
            if reader is not None:
                read = reader.read
                stack.callback(reader.close)
            # The disk reads meanwhile.
            pool = stack.enter_context(ThreadPoolExecutor(1, "clnet-touch"))
            used: deque[tuple[Any, ...]] = deque()
            for current, coming in ahead(lambda rows: pool.submit(read, rows), slices):
                with reading(f"{self.name}row {current.start} cannot be read"):
                    read_arrays = coming.result()
                x, *others = (
                    piece if piece is not None or array is None else
                    _slice(array, current)
                    for array, piece in zip(arrays, read_arrays, strict=True)
                )
                used.append((x, *others))
                yield Part(current.start, x, *others)
                if len(used) > held:
                    pool.submit(_forget_all, used.popleft())
            for old in used:
                _forget_all(old)


class BatchSource(Source):
    """An iterable of batches: x, (x, t) or (x, t, weight), each with any samples."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches
        self.once: bool = hasattr(batches, "__next__")
        self._read = False
        self._peeked: list[Any] = []  # of those that are read once

    def peek(self) -> Part:
        """Return the first batch, which `parts` yields all the same."""
        for part in self.parts(1):
            if self.once:
                self._peeked, self._read = [part[1:]], False
            return part
        raise InputError("there is no batch: give at least one")

    def parts(self, rows: int, order: Order | None = None) -> Iterator[Part]:
        """Yield the batches as they are."""
        if self._read and self.once:
            raise InputError(READ_ONCE)
        self._read = True
        first = 0
        peeked, self._peeked = self._peeked, []
        for batch in chain(peeked, self._batches):
            x, *others = batch if _is_tuple(batch) else (batch,)
            if len(others) > 2:
                raise InputError(
                    f"a batch has {len(others) + 1} parts, expected x, (x, t) or "
                    "(x, t, sample_weight)"
                )
            named = frame_source(x, "x")
            x = x if named is None else named
            if not hasattr(x, "__len__"):
                x = as_array("x", x)
            yield Part(first, x, *others)
            first += len(x)


def check_columns(source: Source, columns: Columns | None) -> None:
    """Raise InputError unless a table has the input columns of a network, in order."""
    table = source.columns
    if table is None or columns is None:
        return
    if table.inputs == columns.inputs:
        source.columns = columns  # with the means of the network's training
        return
    names, expected = (
        [column.name for column in side.inputs] for side in (table, columns)
    )
    differ = "categories of their own" if names == expected else quoted(names)
    raise InputError(
        f"{source.name}the input columns are {differ}, expected the network's "
        f"{quoted(expected)}: open the file with columns=net.columns"
    )


READ_ONCE = (
    "the batches come from a generator, which can be read once: give epochs=1, or an "
    "object that can be iterated again, as a list of batches or a class with __iter__"
)


def _is_tuple(batch: object) -> bool:
    """Return whether a batch is (x, t …): a tuple, or a list of arrays of rows."""
    return isinstance(batch, tuple) or (
        isinstance(batch, list) and bool(batch) and getattr(batch[0], "ndim", 0) > 1
    )


def _is_batch(item: object) -> bool:
    """Return whether an item of a list is a batch, and no row: its x has rows."""
    if not _is_tuple(item):
        return False
    x = item[0] if item else None  # type: ignore[index]
    if has_columns(x):
        return True
    axes = getattr(x, "ndim", None)
    if axes is not None:
        return bool(axes > 1)
    return not np.isscalar(x) and (not is_many(x) or any(map(is_many, x)))


def lists_batches(items: object) -> bool:
    """Return whether an object is a list or tuple of batches, and not of rows."""
    return isinstance(items, (list, tuple)) and bool(items) and _is_batch(items[0])


def is_stored(array: object) -> bool:
    """Return whether an array is in a file: a memory map, or one of h5py or zarr."""
    return isinstance(array, np.memmap) or (
        hasattr(array, "chunks") and hasattr(array, "shape") and hasattr(array, "dtype")
        and hasattr(array, "__getitem__")
    )


def is_batches(samples: object) -> bool:
    """Return whether an object is a source or an iterable of batches, and no array."""
    arrays = "__getitem__", "__array__", "__array_interface__", "__dlpack__"
    return isinstance(samples, Source) or (
        hasattr(samples, "__iter__") and not is_sparse(samples)
        and not any(hasattr(samples, name) for name in arrays)
    )


def source_of(x: Any, t: Any = None, weight: Any = None) -> Source | None:
    """Return the source that arguments are; None: they are arrays in memory."""
    if type(x) is np.ndarray:
        return None
    for name, argument in (("x", x), ("t", t), ("sample_weight", weight)):
        check_open(name, argument)
    if is_batches(x):
        for name, argument in (("t", t), ("sample_weight", weight)):
            if argument is not None:
                raise InputError(
                    f"x is {quoted(type(x).__name__)}, whose batches hold their own "
                    f"targets and weights: leave out {name}"
                )
        return x if isinstance(x, Source) else BatchSource(x)
    if is_stored(x) or is_sparse(x):
        if len(x.shape) == 2:
            return ArraySource(x, t, weight)
    elif t is None and lists_batches(x):
        return BatchSource(x)
    return None


def rows_of(buffer: int, width: int, itemsize: int) -> int:
    """Return the samples of a block, of so many numbers each, in a buffer's bytes."""
    return max(1, buffer // (BLOCKS * width * itemsize))


def check_buffer(buffer: object) -> int:
    """Return the bytes of a buffer; None: `BUFFER`."""
    return BUFFER if buffer is None else as_whole("buffer", buffer)


def grouped(parts: Iterable[Part], rows: int) -> Iterator[list[Part]]:
    """Yield parts, cut and in groups of so many rows, but for the last."""
    held: list[Part] = []
    count = 0
    for part in parts:
        size = len(part.x)
        start = 0
        while count + size - start >= rows:
            stop = start + rows - count
            held.append(part.rows(start, stop))
            yield held
            held, count, start = [], 0, stop
        if start < size:
            held.append(part.rows(start, size))
            count += size - start
    if held:
        yield held


def joined(held: Sequence[Part]) -> Part:
    """Return parts of arrays, all of the same kinds, as one."""
    if len(held) == 1:
        return held[0]
    return Part(held[0].first, *(
        None if column[0] is None else np.concatenate(column)
        for column in list(zip(*held, strict=True))[1:]
    ))


def ahead(
    read: Callable[[T], Future[Any]], units: Iterable[T], count: int = 1
) -> Iterator[tuple[T, Future[Any]]]:
    """Yield units, each with what comes of it; `read` is called for so many more."""
    held: deque[tuple[T, Future[Any]]] = deque()
    for unit in units:
        held.append((unit, read(unit)))
        if len(held) > count:
            yield held.popleft()
    yield from held


def read_ahead(items: Iterator[T]) -> Generator[T, None, None]:
    """Yield items that another thread makes, one ahead of the one in use."""
    end = object()
    with ThreadPoolExecutor(1, "clnet-read") as pool:
        for _, coming in ahead(lambda _: pool.submit(next, items, end), repeat(None)):
            item = coming.result()
            if item is end:
                return
            yield item


def _forget_all(arrays: Iterable[Any]) -> None:
    for array in arrays:
        forget(array)


def _sliceable(name: str, values: Any) -> Any:
    """Return targets or weights as an object that can be sliced."""
    if is_stored(values):
        return values
    return as_rows(name, values) if is_sparse(values) else as_array(name, values)


def _slice(array: Any, rows: slice) -> Any:
    part = array[rows]
    return part if isinstance(part, np.ndarray) else as_numbers("x", part) if (
        is_sparse(part)
    ) else np.asarray(part)
