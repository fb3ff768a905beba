"""The passes of a training over samples that are read by parts.

The device holds two blocks of samples. While it computes steps of one, a thread reads
the next, whose samples other threads check, scale and place in the other. On a CPU a
kernel places them, between the steps of two blocks: threads would take the cores that
these need. For the same reason files are decoded there, and only the disk is read
beside the steps.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from clnet.formats.sources import read_ahead
from clnet.opencl.commands import End
from clnet.opencl.memory import Uploader
from clnet.runtime.row_placement import RowPlacement
from clnet.training.passes import NO_RATE, Pass
from clnet.training.streaming import DEVICE_BLOCKS

if TYPE_CHECKING:
    from clnet.opencl.session import Session
    from clnet.planning.training_planner import TrainingPlan
    from clnet.runtime.train_state import TrainState
    from clnet.training.streaming import Block, StreamedSet

Array = NDArray[Any]


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
        inputs, session, replay = plan.program.inputs, self._session, self._replay
        self._uploaders = [Uploader(session) for _ in inputs]
        self._placement: RowPlacement | None = RowPlacement.of(
            session, replay.dtype,
            ((replay.input_memory(value), value.stride) for value in inputs[:2]),
            self._set.scaling is not None,
        )

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
        blocks = self._set.blocks(None if keys is None else keys[0])
        filled = (
            read_ahead(self._filled(blocks, free)) if self._placement is None else
            self._filled(self._set.ahead(blocks), free)
        )
        steps = seen = 0
        busy: list[tuple[int, End]] = []
        try:
            for start, samples in filled:
                if busy and busy[0][1].reached:  # as where a launch ends in its call
                    free.put(busy.pop(0)[0])
                # The rows' numbers tell helpers of the step before, which may still
                # wait for the next, of the block: they keep their kernel's arguments.
                steps += replay.run_pass(samples, count + steps, seen, start)
                seen += samples
                busy.append((start, End(replay.session)))
                if len(busy) > 1:
                    last, end = busy.pop(0)
                    end.wait()
                    free.put(last)
        finally:
            free.put(None)
            filled.close()
        self._count = steps

    def _filled(
        self, blocks: Iterator[Block], free: SimpleQueue[int | None]
    ) -> Generator[tuple[int, int], None, None]:
        """Yield the first row of each block on the device, and its samples.

        Blocks are filled as their rows are free; None: the epoch has ended.
        """
        replay, placement = self._replay, self._placement
        for block in blocks:
            start = free.get()
            if start is None:
                return
            place = None if placement is None else partial(placement.place, start)
            with ExitStack() as stack:
                block.write([
                    stack.enter_context(uploader.rows(
                        replay.input_memory(value), start, len(block), value.stride,
                        replay.dtype,
                    ))
                    for value, uploader in zip(
                        self.plan.program.inputs, self._uploaders, strict=True
                    )
                ], place)
            yield start, len(block)
