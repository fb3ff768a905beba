"""Training on samples that are read by parts while the device computes.

The device holds two blocks of samples. While it computes steps of one, a thread reads,
checks and scales the next, orders it and fills the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clnet.errors import InputError
from clnet.formats.named_table import named_inputs
from clnet.formats.sources import (
    BLOCKS,
    READ_ONCE,
    ArraySource,
    Part,
    Source,
    check_columns,
    read_ahead,
    regrouped,
    rows_of,
    source_of,
)
from clnet.nn.labels import are_labels, classes_of, encoded
from clnet.nn.random import permuted, shuffled
from clnet.opencl.memory import Uploader
from clnet.training.data_set import DataSet, checked_arrays, data_set
from clnet.training.passes import NO_RATE, Pass

if TYPE_CHECKING:
    from clnet.ir.ops import Value
    from clnet.nn.columns import Columns
    from clnet.nn.labels import Classes
    from clnet.nn.model import Model
    from clnet.nn.scaling import Scaling
    from clnet.opencl.session import Session
    from clnet.planning.training_planner import TrainingPlan
    from clnet.runtime.replay import Replay
    from clnet.runtime.train_state import TrainState

Array = NDArray[Any]

DEVICE_BLOCKS = 2  # one that steps read, one that is filled
COPIED = 1 << 14  # samples that are ordered at a time where rows are padded


@dataclass
class StreamedSet:
    """Samples of one network that are read by parts, checked and scaled.

    Attributes
    ----------
    network : Model
        The network.
    source : Source
        The samples.
    classes, columns, scaling
        Of the labels, the names and the numbers in the source, as of a network.
    what : str
        As for `data_set`.
    buffer : int
        Bytes of host memory for blocks.
    first : DataSet
        A first part.
    batch : int
        Samples a step; a block has a multiple.
    """

    network: Model
    source: Source
    classes: Classes | None
    columns: Columns | None
    scaling: Scaling | None
    what: str
    buffer: int
    first: DataSet
    batch: int = 1

    def __post_init__(self) -> None:
        self._samples = self.source.samples

    def __len__(self) -> int:
        """Return the samples; as long as they are unknown, those of a block."""
        return self._samples or self.rows

    @property
    def _sample_bytes(self) -> int:
        width = self.network.n_in + self.network.n_out + self.weighted
        return width * np.dtype(self.network.dtype).itemsize

    @property
    def rows(self) -> int:
        """Samples of a block."""
        rows = rows_of(self.buffer, self._sample_bytes, 1)
        return max(self.batch, rows // self.batch * self.batch)

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

    def balanced(self, batch: int) -> StreamedSet:
        """Return the set for batches of so many samples, in which weights have mean 1.

        Steps of one sample have the mean of a block.
        """
        return replace(self, batch=min(batch, len(self)))

    def check(self, epochs: int, devices: int) -> None:
        """Raise InputError unless the set can be read so often, by so many devices."""
        if self.source.once and epochs > 1:
            raise InputError(READ_ONCE)
        if devices > 1:
            raise InputError(
                "samples that are read by parts are for one device: name one of the "
                f"{devices}{self.hint}"
            )

    def check_batch(self) -> None:
        """Raise InputError unless a block holds the samples of a step."""
        least = self.batch * self._sample_bytes * BLOCKS
        if self.batch == 1:
            return
        if self.source.samples is None and self.batch == len(self):
            raise InputError(
                "the samples of a step do not fit in a block: give a batch_size below "
                f"{self.batch}, or a larger buffer"
            )
        if least > self.buffer:
            raise InputError(
                f"steps of {self.batch} samples need a buffer of at least {least} "
                f"bytes, not {self.buffer}: give a smaller batch_size"
            )

    def blocks(self, key: Array | None) -> Iterator[tuple[DataSet, Array | None]]:
        """Yield the samples of an epoch, block by block.

        Parameters
        ----------
        key : ndarray, shape [ROUNDS], or None
            The key of the epoch's random order; None: the source's own order.

        Yields
        ------
        DataSet
            A block; weights are balanced.
        ndarray, shape [samples], or None
            The order of its samples; None: their own.
        """
        checked = partial(
            checked_part, self.network, self.source, self.classes, self.columns,
            self.scaling, self.what,
        )
        parts = self.source.parts(
            self.rows, None if key is None else
            lambda count: permuted(np.arange(count), count, key).tolist()
        )
        samples = 0
        for number, (x, t, weight) in enumerate(
            regrouped(map(checked, parts), self.rows)
        ):
            assert x is not None
            assert t is not None
            if weight is not None:
                weight = weight / max(weight.max(), np.finfo(np.float64).tiny)
            block = DataSet(x, t, weight)
            order = None if key is None else shuffled(len(block), key, number)
            samples += len(block)
            yield block.balanced(self.batch, order), order
        if not samples:
            raise InputError(f"{self.source.name}{self.what}x has no sample")
        self._samples = samples


def checked_part(
    network: Model, source: Source, classes: Classes | None, columns: Columns | None,
    scaling: Scaling | None, what: str, part: Part,
) -> tuple[Array, Array, Array | None]:
    """Return a part's arrays x, t and weight [samples, ...], or raise its error."""
    what = f"{source.name}{what}"
    if part.t is None:
        raise InputError(f"{what}t is missing: the samples have no targets to train on")
    t, _ = encoded(network, part.t, classes, f"{what}t")
    x, _ = named_inputs(columns, part.x, f"{what}x")
    arrays, weight = checked_arrays(
        network, x, t, part.weight, what, scaling, part.first
    )
    return *arrays, None if weight is None else weight[:, np.newaxis]


AnySet = DataSet | StreamedSet


def any_set(
    network: Model,
    samples: Iterable[Any],
    classes: Classes | None,
    columns: Columns | None,
    scaling: Scaling | None,
    buffer: int,
    what: str = "",
) -> tuple[AnySet, Classes | None, Columns | None]:
    """Return the samples of a network, with their classes and columns.

    Parameters
    ----------
    network : Model
        The network.
    samples : (x, t, sample_weight)
        As for `Network.fit`.
    classes, columns
        Those that are known.
    scaling, what
        As for `data_set`.
    buffer : int
        Bytes of host memory for those that are read by parts.

    Raises
    ------
    InputError
        As `data_set`; those of parts are raised as they are read.
    """
    x, t, weight = samples
    source = source_of(x, t, weight)
    if source is not None:
        check_columns(source, columns)
        columns, classes = columns or source.columns, classes or source.classes
        size = source.size(np.dtype(network.dtype).itemsize)
        if size is None or size > buffer:
            found = _streamed(network, source, classes, columns, scaling, what, buffer)
            return found, found.classes, columns
        if source is x or not isinstance(source, ArraySource):
            _, x, t, weight = source.whole()
    if t is None:
        raise InputError(f"{what}t is missing: only sources have targets of their own")
    t, classes = encoded(network, t, classes, f"{what}t")
    x, columns = named_inputs(columns, x, f"{what}x")
    return data_set(network, x, t, weight, what, scaling), classes, columns


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
    arrays = checked_part(network, source, classes, columns, scaling, what, part)
    return StreamedSet(
        network, source, classes, columns, scaling, what, buffer, DataSet(*arrays)
    )


class StreamingPass(Pass):
    """A pass over samples that are read by parts, with the interface of `Pass`.

    Parameters are those of `Pass`, with a `StreamedSet`. `run` returns when the last
    block is enqueued.
    """

    epochs_per_run = 0

    def __init__(
        self, session: Session, plan: TrainingPlan, data: StreamedSet,
        train_state: TrainState,
    ) -> None:
        self._set = data
        super().__init__(session, plan, data.first, train_state)

    def _bind(self, plan: TrainingPlan) -> None:
        super()._bind(plan)
        self.records = 1
        self._inputs = [
            _Input(self._replay, value, Uploader(self._session))
            for value in plan.program.inputs
        ]

    def _write(self) -> None:
        """Do nothing: `run` writes block by block."""

    def limit(self, squares: float, fails: float) -> None:
        """Do nothing: the host looks at each epoch's totals."""

    def run(
        self, rates: Array = NO_RATE, keys: Array | None = None, seed: int = 0,
        count: int = 0, record: int = 0,
    ) -> None:
        """Train one epoch; the parameters are those of `Pass.run`."""
        replay = self._replay
        replay.session.finish()  # another pass may be in flight
        replay.set(seed=seed & 0xFFFFFFFF, rate=float(rates[0]))
        replay.select_record(self._totals, record)
        free: SimpleQueue[int | None] = SimpleQueue()  # first rows of blocks
        for number in range(DEVICE_BLOCKS):
            free.put(number * self._set.rows)
        key = None if keys is None else keys[0]
        filled = read_ahead(self._filled(key, free))
        steps = seen = 0
        busy: list[tuple[int, _End]] = []
        try:
            for start, samples in filled:
                if busy and busy[0][1].reached:  # as where a launch ends in its call
                    free.put(busy.pop(0)[0])
                # The rows' numbers tell helpers of the step before, which may still
                # wait for the next, of the block: they keep their kernel's arguments.
                steps += replay.run_pass(samples, count + steps, seen, start)
                seen += samples
                busy.append((start, _End(replay.session)))
                if len(busy) > 1:
                    last, end = busy.pop(0)
                    end.wait()
                    free.put(last)
        finally:
            free.put(None)
            filled.close()
        self._count = steps

    def _filled(
        self, key: Array | None, free: SimpleQueue[int | None]
    ) -> Iterator[tuple[int, int]]:
        """Yield the first row of each block on the device, and its samples.

        Blocks are filled as their rows are free; None: the epoch has ended.
        """
        for data, order in self._set.blocks(key):
            start = free.get()
            if start is None:
                return
            for one, array in zip(self._inputs, data.arrays, strict=True):
                one.fill(start, array, order)
            yield start, len(data)


class _Input(NamedTuple):
    """An input of the steps, whose memory has the rows of all blocks."""

    replay: Replay
    value: Value
    uploader: Uploader

    def fill(self, start: int, array: Array, order: Array | None) -> None:
        """Write an array of samples, in an order, from a row on, and wait."""
        memory = self.replay.input_memory(self.value)
        stride, dtype = self.value.stride, self.replay.dtype
        with self.uploader.rows(memory, start, len(array), stride, dtype) as rows:
            found = rows[:, : self.value.width]
            if order is None:
                found[...] = array
                return
            # `take` copies whole rows, and holds Python's lock at each call alone, for
            # which it would wait until a step ends.
            whole = found.flags.c_contiguous
            array = np.ascontiguousarray(array)
            for start in range(0, len(order), len(order) if whole else COPIED):
                part = slice(start, start + (len(order) if whole else COPIED))
                np.take(
                    array, order[part], axis=0, out=found[part], mode="clip"
                )


class _End:
    """The end of all commands that are enqueued now."""

    def __init__(self, session: Session) -> None:
        import pyopencl as cl

        self._session = session
        self._marker: Any = None
        if len(session.queues) == 1:
            self._marker = cl.enqueue_marker(session.queue)
            session.queue.flush()

    @property
    def reached(self) -> bool:
        """Whether it is known to be reached."""
        import pyopencl as cl

        complete = cl.command_execution_status.COMPLETE
        return self._marker is not None and bool(
            self._marker.command_execution_status == complete
        )

    def wait(self) -> None:
        """Wait for it."""
        if self._marker is None:
            self._session.finish()
        else:
            self._marker.wait()
