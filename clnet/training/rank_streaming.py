"""Training by several ranks on samples that are read by parts.

The samples are cut into as many lanes as a step has blocks: consecutive rows, of which
a step takes some of each. A rank reads those of its blocks alone. A round is the steps
whose samples are read together: the device holds two, one that steps read and one that
is filled, as in `streaming_pass`. Orders depend on the lane, not on the rank.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from math import gcd
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.formats.sources import read_ahead
from clnet.nn.storage.layout import round_up
from clnet.opencl.memory import Memory, Uploader, sub_buffer_alignment
from clnet.runtime.ranks import size_of
from clnet.runtime.row_placement import RowPlacement
from clnet.training.rank_pass import RankPass
from clnet.training.streaming import DEVICE_BLOCKS, Block, StreamedSet, write_rows

if TYPE_CHECKING:
    from clnet.ir.op import Value

Array = NDArray[Any]
Round = list[Block | None]
"""The samples of a round, of each of this rank's lanes; None: there are none."""


class StreamedRankPass(RankPass):
    """A pass over samples that are read by parts, with the interface of `RankPass`.

    Its data is a `StreamedSet` of the pass's batches.
    """

    def _prepare(self, inputs: Sequence[Value]) -> None:
        session, replay, data = self._session, self._replay, self._data
        assert isinstance(data, StreamedSet)
        self._ahead = data.ahead
        self._round_steps = data.rows // data.batch
        self._rounds = range(0, len(self._cuts), self._round_steps)
        self._lanes = list(self._lanes_of(data))
        item = np.dtype(replay.dtype).itemsize
        alignment = sub_buffer_alignment(session)
        self._sizes = [value.stride * item for value in inputs]  # of rows
        # Rows from a block's samples to the next one's, the same of all inputs.
        self._pitch = max(
            round_up(replay.batch, alignment // gcd(alignment, size))
            for size in self._sizes
        )
        rows = DEVICE_BLOCKS * len(self._mine) * self._round_steps * self._pitch
        self._memory = [
            (value, Memory(session, rows * size))
            for value, size in zip(inputs, self._sizes, strict=True)
        ]
        self._arguments: dict[int, list[tuple[Value, Any]]] = {}
        self._uploaders = [Uploader(session) for _ in inputs]
        self._placement: RowPlacement | None = RowPlacement.of(
            session, replay.dtype,
            ((memory, value.stride) for value, memory in self._memory[:2]),
            data.scaling is not None,
        )

    def _lanes_of(self, data: StreamedSet) -> Iterator[StreamedSet | None]:
        """Yield the samples of each of this rank's blocks."""
        sizes = np.array([[size_of(part) for part in cuts] for cuts in self._cuts])
        ends = np.cumsum(sizes.sum(axis=0)).tolist()
        for lane in self._mine:
            rows = slice(ends[lane - 1] if lane else 0, ends[lane])
            size = max(1, int(sizes[0, lane]))  # of all steps but the last
            yield data.section(
                rows, size, self._round_steps * size, lane
            ) if size_of(rows) else None

    def run(
        self, rates: Array | None = None, keys: Array | None = None, seed: int = 0,
        count: int = 0, record: int = 0,
    ) -> None:
        """Train one epoch, or validate; the parameters are those of `Pass.run`."""
        self._session.finish()  # the epoch before reads the samples
        free: SimpleQueue[int | None] = SimpleQueue()
        for half in range(DEVICE_BLOCKS):
            free.put(half)
        rounds = self._read(None if keys is None else keys[0])
        filled = (
            read_ahead(self._filled(rounds, free)) if self._placement is None else
            self._filled(self._ahead(rounds), free)
        )
        try:
            for first, (half, blocks) in zip(self._rounds, filled, strict=True):
                if self._data.weighted:
                    self._write_weights(first, half, blocks)
                for number, step in enumerate(self._steps(first)):
                    place = half * self._round_steps + number
                    self._run_step(step, place, rates, seed, count)
                self._session.finish()
                free.put(half)
        finally:
            free.put(None)
            filled.close()

    def _steps(self, first: int) -> range:
        """Return the steps of a round, by its first one."""
        return range(first, min(first + self._round_steps, len(self._cuts)))

    def _read(self, key: Array | None) -> Iterator[Round]:
        """Yield the samples of rounds, as they are read."""
        lanes = [None if lane is None else lane.blocks(key) for lane in self._lanes]
        for first in self._rounds:
            yield [
                next(blocks) if blocks is not None and len(self._rows(index, first))
                else None
                for index, blocks in enumerate(lanes)
            ]

    def _rows(self, index: int, first: int) -> Array:
        """Return the row of each of a lane's samples of a round, from its first one."""
        lane = self._mine[index]
        return np.concatenate([
            np.arange(size_of(self._cuts[step][lane]), dtype=np.int32)
            + np.int32(number * self._pitch)
            for number, step in enumerate(self._steps(first))
        ])

    def _filled(
        self, rounds: Iterator[Round], free: SimpleQueue[int | None]
    ) -> Generator[tuple[int, Round], None, None]:
        """Yield the half of the memory that a round's samples are in, and these.

        Halves are filled as they are free; None: the epoch has ended.
        """
        for first, blocks in zip(self._rounds, rounds, strict=True):
            half = free.get()
            if half is None:
                return
            for index, block in enumerate(blocks):
                if block is not None:
                    self._fill(half, index, block, self._rows(index, first))
            yield half, blocks

    def _fill(self, half: int, index: int, block: Block, rows: Array) -> None:
        """Write the inputs and targets of a lane's samples of a round."""
        start = self._start(half, index)
        place = None if self._placement is None else partial(
            self._placement.place, start
        )
        with ExitStack() as stack:
            arrays = [
                stack.enter_context(uploader.rows(
                    memory, start, int(rows[-1]) + 1, value.stride, self._replay.dtype
                ))
                for (value, memory), uploader in zip(
                    self._memory[:2], self._uploaders, strict=False
                )
            ]
            block.write_samples(arrays, place, block.places(rows))

    def _start(self, half: int, index: int) -> int:
        """Return the first row of a lane's samples in a half of the memory."""
        return (half * len(self._mine) + index) * self._round_steps * self._pitch

    def _write_weights(self, first: int, half: int, blocks: Round) -> None:
        """Write weights with mean 1 in each step of a round or in the set, of ranks."""
        given, sums = [], np.zeros((len(blocks), self._round_steps))
        for index, block in enumerate(blocks):
            rows = self._rows(index, first)
            weight = np.zeros(0) if block is None else block.given_weight[:, 0]
            if block is not None and block.order is not None:
                weight = weight[block.order]
            steps = rows // self._pitch
            sums[index] = np.bincount(steps, weight, self._round_steps)
            given.append((rows, steps, weight))
        total = np.concatenate(self._ranks.gathered(sums)).sum(axis=0)
        samples = np.ones(self._round_steps)
        for number, step in enumerate(self._steps(first)):
            samples[number] = sum(map(size_of, self._cuts[step]))
        means = np.where(total > 0, total / samples, 1)
        if isinstance(self._data, StreamedSet) and self._data.mean_weight is not None:
            means[:] = self._data.mean_weight
        (value, memory), uploader = self._memory[2], self._uploaders[2]
        for index, (rows, steps, weight) in enumerate(given):
            if len(rows):
                with uploader.rows(
                    memory, self._start(half, index), int(rows[-1]) + 1, value.stride,
                    self._replay.dtype,
                ) as found:
                    balanced = weight / means[steps]
                    write_rows(found, rows, balanced[:, np.newaxis])

    def _inputs(self, place: int, index: int) -> Iterator[tuple[Value, Any]]:
        half, step = divmod(place, self._round_steps)
        row = self._start(half, index) + step * self._pitch
        if row not in self._arguments:
            self._arguments[row] = [
                (value, memory.sub_buffer(row * size, self._replay.batch * size))
                for (value, memory), size in zip(
                    self._memory, self._sizes, strict=True
                )
            ]
        return iter(self._arguments[row])
