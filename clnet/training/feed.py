"""Feeds: the samples of an epoch, on their way to the devices of a group.

A resident feed has written all of them. A streamed one has two blocks of samples on
each device: while steps of one are computed, a thread reads the next, and other threads
check, scale and place its samples. On a CPU a kernel places them, between the steps of
two blocks: threads would take the cores that these need. For the same reason files are
decoded there, and only the disk is read beside the steps.

Ranks cut samples that are read by parts into as many lanes as a step has shares:
consecutive rows, of which a step takes some of each. A rank reads those of its shares
alone. Orders depend on the lane, not on the rank.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clnet.formats.sources import read_ahead
from clnet.ir.batch import Gather
from clnet.nn.random import permuted
from clnet.opencl.commands import End
from clnet.opencl.memory import Uploader
from clnet.runtime.ranks import size_of, sizes_of
from clnet.runtime.row_placement import RowPlacement, SampleRows
from clnet.training.streaming import DEVICE_BLOCKS, StreamedSet, write_rows

if TYPE_CHECKING:
    from clnet.training.data_set import DataSet
    from clnet.training.group import Alone, Group
    from clnet.training.streaming import AnySet, Block

Array = NDArray[Any]


def located(samples: int, batch: int, shares: Sequence[int]) -> tuple[Array, ...]:
    """Return the share of each of an order's samples, its step, and its index there.

    All are arrays [samples].
    """
    steps, left = divmod(samples, batch)
    full, last = (_of_step(size, shares) for size in (batch, left))
    numbers, indices = np.concatenate([np.tile(full, steps), last], axis=1)
    return numbers, np.arange(samples, dtype=np.int32) // np.int32(batch), indices


def _of_step(samples: int, shares: Sequence[int]) -> Array:
    """Return the shares and the indices of a step's samples [2, samples]."""
    sizes = sizes_of(samples, shares)
    numbers = np.repeat(np.arange(len(sizes)), sizes)
    indices = np.concatenate([np.arange(size) for size in sizes])
    return np.stack([numbers, indices]).astype(np.int32)


class Resident:
    """Samples that are all on the devices."""

    resident = True

    def __init__(self, data: DataSet, group: Alone | Group) -> None:
        self.data: DataSet | None = data  # None: a later training brings its own
        self.weighted: bool = data.weighted
        self._group, self._samples = group, len(data)
        n, batch = len(data), group.batch
        # Programs that gather their batches take the order's rows of all samples; one
        # device alone has all of them anyway.
        self._has_all = group.alone or isinstance(
            group.workers[0].program.ops[0], Gather
        )
        if not group.alone:
            for worker in group.workers:
                worker.rows = SampleRows(
                    worker.replay, worker.program, -(-n // batch), len(worker.numbers),
                    batch, has_all=self._has_all,
                )
        self._write(data)

    def reset(self, data: DataSet) -> None:
        """Take another data set of as many samples."""
        self.data = data
        self._write(data)

    def rounds(self, key: Array | None) -> Generator[tuple[int, int], None, None]:
        """Yield the slot of an epoch's first step, 0, and the number of samples."""
        if key is not None and (self.weighted or not self._has_all):
            n, data = self._samples, self.data
            assert data is not None
            order = permuted(np.arange(n), n, key)
            for worker in self._group.workers:
                worker.replay.session.finish()  # the epoch before reads the samples
            self._write(data.balanced(self._group.batch, order), order)
        yield 0, self._samples

    def _write(self, data: DataSet, order: Array | None = None) -> None:
        """Write the samples; of an order [n] that devices make, its weights."""
        group = self._group
        if self._has_all:
            for worker in group.workers:
                columns = list(zip(worker.program.inputs, data.arrays, strict=True))
                for value, array in columns if order is None else columns[-1:]:
                    worker.replay.write(value, array)
            return
        numbers, steps, indices = located(len(data), group.batch, group.shares)
        for worker in group.workers:
            assert worker.rows is not None
            first, stop = worker.numbers.start, worker.numbers.stop
            samples = np.flatnonzero((numbers >= first) & (numbers < stop))
            rows = worker.rows.row(numbers[samples] - first, steps[samples])
            chosen = samples if order is None else order[samples]
            worker.rows.write(
                rows + indices[samples], [array[chosen] for array in data.arrays]
            )


class _Filled(NamedTuple):
    """Samples of a round, on the devices."""

    half: int  # The half of the rows that they are in
    samples: int  # Those of all workers
    blocks: list[Block | None]  # Those of each lane


class Streamed:
    """Samples that are read by parts."""

    resident = False

    def __init__(self, data: StreamedSet, group: Alone | Group) -> None:
        self.data: StreamedSet = data
        self.weighted: bool = data.weighted
        self._group = group
        # One device alone takes a block by one slot, a group has a slot for each step.
        self._steps = 1 if group.alone else data.rows // group.batch
        self._rows: list[SampleRows] = []
        for worker in group.workers:
            worker.rows = SampleRows(
                worker.replay, worker.program, DEVICE_BLOCKS * self._steps,
                len(worker.numbers), data.rows if group.alone else 0,
            )
            self._rows.append(worker.rows)
        self._sessions = [worker.replay.session for worker in group.workers]
        self._uploaders = [
            [Uploader(session) for _ in data.first.arrays] for session in self._sessions
        ]
        self._placement: RowPlacement | None = None
        if len(self._rows) == 1:  # the kernel places all samples of a block
            self._placement = RowPlacement.of(
                self._sessions[0], group.workers[0].replay.dtype,
                self._rows[0].arrays[:2], data.scaling is not None,
            )
        self._lanes = list(self._lanes_of(data))

    def _lanes_of(self, data: StreamedSet) -> Iterator[StreamedSet | None]:
        """Yield the samples that are read for each share of a rank, or for all."""
        group = self._group
        if group.ranks is None:
            yield data
            return
        steps, left = divmod(len(data), group.batch)
        sizes, last = (
            np.array(sizes_of(size, group.shares)) for size in (group.batch, left)
        )
        ends = np.cumsum(steps * sizes + last).tolist()
        for lane in group.workers[0].numbers:
            rows = slice(ends[lane - 1] if lane else 0, ends[lane])
            size = max(1, int(sizes[lane]))
            yield data.section(
                rows, size, self._steps * size, lane
            ) if size_of(rows) else None

    def rounds(self, key: Array | None) -> Generator[tuple[int, int], None, None]:
        """Yield the slot of each block's first step, and its samples.

        A block is on the devices until the steps that were enqueued for it have ended.
        """
        for session in self._sessions:
            session.finish()  # the epoch before, or another pass, reads the samples
        free: SimpleQueue[int | None] = SimpleQueue()
        for half in range(DEVICE_BLOCKS):
            free.put(half)
        read = self._read(key)
        filled = (
            read_ahead(self._filled(read, free)) if self._placement is None else
            self._filled(self.data.ahead(read), free)
        )
        # Halves that steps read. The host stays one block ahead of the devices: it
        # waits for the end of a block's steps after it has enqueued those of the next.
        busy: deque[tuple[int, list[End]]] = deque()
        try:
            for half, samples, blocks in filled:
                if self._group.ranks is not None and self.weighted:
                    self._write_weights(half, samples, blocks)
                # On a CPU whose launches end in their calls the half is free already.
                if busy and all(end.reached for end in busy[0][1]):
                    free.put(busy.popleft()[0])
                for rows in self._rows:
                    rows.changed()
                yield half * self._steps, samples
                busy.append((half, [End(session) for session in self._sessions]))
                if len(busy) == DEVICE_BLOCKS:
                    last, ends = busy.popleft()
                    for end in ends:
                        end.wait()
                    free.put(last)
        finally:
            free.put(None)
            filled.close()

    def _read(self, key: Array | None) -> Iterator[tuple[int, list[Block | None]]]:
        """Yield the samples of rounds, and the blocks of lanes, as they are read."""
        if self._group.ranks is None:
            for block in self.data.blocks(key):
                yield len(block), [block]
            return
        n, size = len(self.data), self._steps * self._group.batch
        lanes = [None if lane is None else lane.blocks(key) for lane in self._lanes]
        for first in range(0, n, size):
            samples = min(size, n - first)
            numbers, _, _ = located(samples, self._group.batch, self._group.shares)
            yield samples, [
                next(blocks) if blocks is not None and (numbers == number).any()
                else None
                for number, blocks in zip(
                    self._group.workers[0].numbers, lanes, strict=True
                )
            ]

    def _filled(
        self, read: Iterator[tuple[int, list[Block | None]]],
        free: SimpleQueue[int | None],
    ) -> Generator[_Filled, None, None]:
        """Write rounds' samples as halves of the rows are free; None: no more."""
        for samples, blocks in read:
            half = free.get()
            if half is None:
                return
            for lane, block in enumerate(blocks):
                if block is not None:
                    self._fill(half, samples, lane, block)
            yield _Filled(half, samples, blocks)

    def _fill(self, half: int, samples: int, lane: int, block: Block) -> None:
        """Write a block's samples to the rows of its lane in a half, of all workers."""
        shared = self._group.ranks is not None
        with ExitStack() as stack:
            targets, start = [], 0
            for number, rows in enumerate(self._rows):
                places = self._places(number, samples, lane)
                count = len(block) if places is None else int(places.max()) + 1
                if not count:
                    continue
                start = rows.row(lane, half * self._steps)
                arrays = [
                    stack.enter_context(uploader.rows(
                        memory, start, count, stride, rows.dtype
                    ))
                    for (memory, stride), uploader in zip(
                        rows.arrays[: 2 if shared else None],
                        self._uploaders[number], strict=False,
                    )
                ]
                targets.append((arrays, block.places(places)))
            placed = self._placement is not None and self._placement.place(
                start, [part[1:3] for part in block.parts], targets[0][1]
            )
            if not placed:
                block.write_samples(targets)
            if not shared:  # ranks have to sum a step's weights first, and by MPI
                block.write_weights(targets)

    def _places(self, number: int, samples: int, lane: int) -> Array | None:
        """Return the row in a half of each sample of a lane, on a numbered worker.

        Those of other workers have -1. None: all are in their order.
        """
        group = self._group
        if group.alone:
            return None
        numbers, steps, indices = located(samples, group.batch, group.shares)
        here = numbers == group.workers[number].numbers[lane]
        places: Array = steps * np.int32(self._rows[number].pitch) + indices
        return np.where(here, places, np.int32(-1)) if group.ranks is None else (
            places[here]
        )

    def _write_weights(
        self, half: int, samples: int, blocks: Sequence[Block | None]
    ) -> None:
        """Write weights with mean 1 in each step of a round or in the set, of ranks."""
        group, (rows,), (uploaders,) = self._group, self._rows, self._uploaders
        assert group.ranks is not None
        numbers, steps, _ = located(samples, group.batch, group.shares)
        lanes = []
        for number, block in zip(group.workers[0].numbers, blocks, strict=True):
            weight = np.zeros(0) if block is None else block.given_weight[:, 0]
            if block is not None and block.order is not None:
                weight = weight[block.order]
            lanes.append((steps[numbers == number], weight))
        sums = np.array([np.bincount(*lane, self._steps) for lane in lanes])
        total = np.concatenate(group.ranks.gathered(sums)).sum(axis=0)
        sizes = np.maximum(np.bincount(steps, minlength=self._steps), 1)
        means = np.where(total > 0, total / sizes, 1)
        if self.data.mean_weight is not None:
            means[:] = self.data.mean_weight
        memory, stride = rows.arrays[2]
        for lane, (lane_steps, weight) in enumerate(lanes):
            if len(lane_steps):
                places = self._places(0, samples, lane)
                assert places is not None
                start = rows.row(lane, half * self._steps)
                with uploaders[2].rows(
                    memory, start, int(places[-1]) + 1, stride, rows.dtype
                ) as target:
                    balanced = weight / means[lane_steps]
                    write_rows(target, places, balanced[:, np.newaxis])


def feed_of(data: AnySet, group: Alone | Group) -> Resident | Streamed:
    """Return the feed of a data set to the devices of a group."""
    if isinstance(data, StreamedSet):
        return Streamed(data, group)
    return Resident(data, group)
