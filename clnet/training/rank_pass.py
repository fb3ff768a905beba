"""The passes of a training by several ranks: each computes its blocks of a step.

The bits of a training depend on the number of blocks, not on that of the ranks: a block
is computed by the same plan on whichever rank owns it, and sums over blocks have one
order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.ir.update import Update
from clnet.nn.random import permuted
from clnet.runtime.rank_sums import RankSums
from clnet.runtime.ranks import cut, size_of
from clnet.runtime.replay import Replay
from clnet.training.data_set import DataSet

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clnet.ir.op import Value
    from clnet.opencl.device import Device
    from clnet.opencl.session import Session
    from clnet.planning.training_planner import TrainingPlan
    from clnet.runtime.ranks import Ranks
    from clnet.runtime.replay import Blocks
    from clnet.runtime.train_state import TrainState
    from clnet.training.streaming import AnySet

Array = NDArray[Any]


class RankPass:
    """A pass over a data set by all ranks, with the interface of `Pass`."""

    records = 1
    epochs_per_run = 0
    epoch_seconds: float | None = None
    may_time_out = False  # no kernel of a program of gradients alone waits for groups

    def __init__(
        self, ranks: Ranks, blocks: int | None, session: Session, plan: TrainingPlan,
        update: TrainingPlan | None, data: AnySet, batch: int, train_state: TrainState,
    ) -> None:
        self._ranks, self._session = ranks, session
        self._plan, self._data, self._batch = plan, data, batch
        self._blocks = blocks or ranks.size
        mine = cut(self._blocks, ranks.size)
        self._mine = range(self._blocks)[mine[ranks.rank]]
        self._owned = mine
        program, layout = plan.program, plan.network.layout
        self._replay = Replay(session, plan.steps, layout, train_state)
        steps, left = divmod(len(data), batch)
        # The rows of each step's blocks, all ranks' included, from the step's first.
        self._cuts = [cut(batch, self._blocks)] * steps
        if left:
            self._cuts.append(cut(left, self._blocks))
        # The first step in which each of this rank's blocks has samples; None: in none.
        self._starts = [
            next((step for step, cuts in enumerate(self._cuts) if size_of(cuts[block])),
                 None)
            for block in self._mine
        ]
        self._totals = program.output
        self._records = self._replay.add_blocks(self._totals, len(self._mine))
        self._prepare(program.inputs)
        self._update: Replay | None = None
        self._read_totals: Value | None = None
        if update is not None:
            self._sums = RankSums(
                ranks, session, train_state.gradients, layout, plan.steps,
                program.dtype, ordered=blocks is not None,
            )
            self._update_plan = update
            self._update = Replay(session, update.steps, layout, train_state)
            (op,) = (op for op in update.program.ops if isinstance(op, Update))
            self._read_totals = op.totals if op.optimiser.reads_error else None

    def _prepare(self, inputs: Sequence[Value]) -> None:
        """Make the memory of this rank's samples, and write them."""
        count = len(self._mine) * len(self._cuts)
        self._stores: list[tuple[Value, Blocks]] = [
            (value, self._replay.add_blocks(value, count)) for value in inputs
        ]
        self._write()

    def _write(self, order: Array | None = None) -> None:
        """Write this rank's samples, in an order [n]."""
        data = self._data
        assert isinstance(data, DataSet)
        if order is not None:
            data = data.balanced(self._batch, order)
        rows = [
            slice(first + part.start, first + part.stop)
            for first, cuts in zip(
                range(0, len(data), self._batch), self._cuts, strict=True
            )
            for part in cuts[self._mine.start : self._mine.stop]
        ]
        for (_, store), array in zip(self._stores, data.arrays, strict=True):
            store.write(
                array[part if order is None else order[part]] for part in rows
            )

    def run(
        self, rates: Array | None = None, keys: Array | None = None, seed: int = 0,
        count: int = 0, record: int = 0,
    ) -> None:
        """Train one epoch, or validate; the parameters are those of `Pass.run`."""
        if keys is not None:
            n = len(self._data)
            order = permuted(np.arange(n), n, keys[0])
            self._session.finish()  # the epoch before reads the samples
            self._write(order)
        for step in range(len(self._cuts)):
            self._run_step(step, step, rates, seed, count)

    def _run_step(
        self, step: int, place: int, rates: Array | None, seed: int, count: int
    ) -> None:
        """Compute a step of the epoch, whose samples are at a place of the memory."""
        cuts = self._cuts[step]
        self._run_blocks(step, place, seed, count + step)
        if self._update is None:
            return
        assert rates is not None
        samples = cuts[-1].stop
        if self._read_totals is not None:
            totals = self.totals().astype(self._replay.dtype)
            self._update.write(self._read_totals, totals)
        self._update.set(
            rate=float(rates[0]), seed=seed & 0xFFFFFFFF, samples=samples,
            seen=step * self._batch + samples, count=count + step,
        )
        self._update.run()
        self._session.barrier()

    def _run_blocks(self, step: int, place: int, seed: int, count: int) -> None:
        """Compute this rank's blocks of a step, and the sum of all ranks' gradients."""
        replay, own, cuts = self._replay, len(self._mine), self._cuts[step]
        present = [any(map(size_of, cuts[owned])) for owned in self._owned]
        for index, block in enumerate(self._mine):
            size = size_of(cuts[block])
            if size:
                for value, argument in self._inputs(place, index):
                    replay.select(value, argument, is_input=True)
                replay.select(self._totals, self._records.argument(index))
                replay.set(
                    # Dropout hashes the seed and a sample's index in its block.
                    seed=(seed + block) & 0xFFFFFFFF,
                    first=0, samples=size, seen=size, fresh=step == self._starts[index],
                    count=count, steps=1,
                )
            last = self._update is not None and index == own - 1
            if size and not last:
                replay.run()
            if last:
                pauses = self._sums.pauses
                self._sums.sum_up(replay.run_to(pauses) if size else None, present)
            elif self._update is not None:
                self._sums.add(bool(size))

    def _inputs(self, place: int, index: int) -> Iterator[tuple[Value, Any]]:
        """Yield the inputs of one of this rank's blocks, with their memory."""
        number = place * len(self._mine) + index
        return ((value, store.argument(number)) for value, store in self._stores)

    def totals(self, count: int = 1) -> Array:
        """Wait for the epoch, and return its totals [1, 6] in float64."""
        own = self._records.read()[:, 0].astype(np.float64)
        own[[start is None for start in self._starts]] = 0
        found: Array = np.concatenate(self._ranks.gathered(own)).sum(axis=0)
        return found[np.newaxis]

    def recovered(self) -> bool:
        """Return False: no kernel can time out."""
        return False

    def limit(self, squares: float, fails: float) -> None:
        """Do nothing: the host looks at each epoch's totals."""

    @property
    def plans(self) -> list[tuple[TrainingPlan, Device]]:
        """The plan of a block with its device."""
        return [(self._plan, self._session.device)]

    def explain(self) -> str:
        """Return the ranks' shares, and how a block is computed, and why that way."""
        blocks = self._blocks
        text = (
            f"shared among {self._ranks.size} ranks: a step's {self._batch} samples in "
            f"{blocks} blocks\n\n{self._plan.explain()}"
        )
        if self._update is None:
            return text
        return (
            f"{text}\n\n{self._sums.early:.0%} of the gradients are summed while "
            "others are computed\n\nthe update, on every rank\n\n"
            f"{self._update_plan.explain()}"
        )
