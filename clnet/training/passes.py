"""Passes over a data set: epochs of steps, or a validation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.ir.loss import RECORD
from clnet.ir.reference import silent
from clnet.opencl.session import KEPT_BYTES
from clnet.planning.format_planner import NetworkView
from clnet.runtime.train_state import TrainState
from clnet.training.data_set import DataSet
from clnet.training.feed import Resident, Streamed, feed_of
from clnet.training.group import Alone, Group, training_group, validation_group
from clnet.training.streaming import AnySet, StreamedSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clnet.opencl.device import Device
    from clnet.opencl.session import Session
    from clnet.planning.training_planner import TrainingPlan
    from clnet.runtime.binding import PlanStep
    from clnet.training.history import TrainingState
    from clnet.training.plans import Planning

Array = NDArray[Any]

NO_RATE = np.zeros(1)  # of a validation


class Pass:
    """A planned program, run by a group over a data set that a feed brings to it."""

    def __init__(self, group: Alone | Group, data: AnySet) -> None:
        self._samples = len(data)
        self.falls_back: bool = False
        self._bind(group, data)

    def _bind(self, group: Alone | Group, data: AnySet) -> None:
        self._group: Alone | Group = group
        self._replay = group.workers[0].replay
        self._steps = -(-self._samples // group.batch)  # of an epoch
        self._feed: Resident | Streamed = feed_of(data, group)
        # The group, where its launches may compute whole epochs of resident samples
        self._whole_epochs = group.whole_epochs if self._feed.resident else None

    def reset(self, plan: TrainingPlan, data: AnySet) -> None:
        """Take another resident data set of as many samples, and an equal plan."""
        assert isinstance(self._feed, Resident) and isinstance(data, DataSet)
        self._group.plans = [(plan, self._replay.session.device)]
        self._feed.reset(data)

    def release(self) -> None:
        """Drop the plan and the data set until `reset`, but not the memory."""
        assert isinstance(self._feed, Resident)
        self._group.plans, self._feed.data = [], None

    @property
    def plans(self) -> list[tuple[TrainingPlan, Device]]:
        """The plans of this process's devices."""
        return self._group.plans

    def run(
        self, rates: Array = NO_RATE, keys: Array | None = None, seed: int = 0,
        count: int = 0, record: int = 0,
    ) -> None:
        """Enqueue an epoch for each rate, in as few launches as possible.

        Samples that are read by parts are all read when it returns.
        """
        group, epochs = self._group, len(rates)
        for worker in group.workers:
            worker.replay.session.barrier()  # another pass may be in flight
        if self._whole_epochs is not None and epochs > 1 and self.epochs_per_run:
            self._whole_epochs.run_epochs(
                self._samples, rates, keys, seed, count, record
            )
            return
        for number in range(epochs):
            key = None if keys is None else keys[number]
            group.begin(float(rates[number]), seed, key, record + number)
            steps = seen = 0
            rounds = self._feed.rounds(key)
            try:
                for slot, samples in rounds:
                    steps += group.run(slot, samples, seen, count + steps)
                    seen += samples
            finally:
                rounds.close()
            count += steps
            self._steps = steps

    def totals(self, count: int = 1) -> Array:
        """Wait for the epochs, and return their totals [count, 6] (`Tally`).

        They are fewer if `limit` ended the last launch early.
        """
        return self._group.totals(count)

    def limit(self, squares: float, fails: float) -> None:
        """Let launches end after an epoch whose totals may be below a limit.

        Where launches take less than an epoch, the host alone looks at its totals.
        """
        if self._whole_epochs is not None:
            self._whole_epochs.limit(squares, fails)

    @property
    def records(self) -> int:
        """Number of epochs whose totals are kept until they are read."""
        return 1 if self._whole_epochs is None else self._whole_epochs.records

    @property
    def epochs_per_run(self) -> int:
        """Number of epochs that a launch computes at most; 0: launches take less."""
        if self._whole_epochs is None:
            return 0
        return self._whole_epochs.epochs_per_run(self._samples, self._feed.weighted)

    @property
    def epoch_seconds(self) -> float | None:
        """The time of an epoch, measured or set."""
        seconds = self._replay.step_seconds
        return None if seconds is None else seconds * self._steps

    @epoch_seconds.setter
    def epoch_seconds(self, seconds: float) -> None:
        self._replay.step_seconds = seconds / self._steps

    @property
    def may_time_out(self) -> bool:
        """Whether kernels wait for other work-groups, and may time out."""
        return self._replay.bound.can_time_out

    def recovered(self) -> bool:
        """Wait for the epochs; if kernels timed out, switch to a fallback plan.

        Warns
        -----
        ClnetWarning
            If kernels timed out.
        """
        fallback, data = self._group.fallback(), self._feed.data
        if fallback is None:
            return False
        assert data is not None
        self.falls_back = True
        self._bind(fallback, data)
        return True

    def explain(self) -> str:
        """Return how a step is computed, and why that way."""
        return self._group.explain(self._replay.step_seconds)


@dataclass(frozen=True)
class BoundPasses:
    """Passes bound to one device, which a later training that is alike may take.

    To bind a plan takes some milliseconds: kernels, tables and buffers.
    """

    train_state: TrainState  # Parameters and optimiser state
    # Over the training set, and over the validation set if there is one
    passes: list[Pass]
    key: tuple[int, ...]  # The ids of their plans' steps, and their numbers of samples
    # Those steps, held so that no others get their ids
    steps: list[tuple[PlanStep, ...]]
    keeps: bool  # Whether they are small enough to be kept


def bound_passes(
    session: Session,
    state: TrainingState,
    plans: Sequence[TrainingPlan],
    sets: Sequence[AnySet],
) -> BoundPasses:
    """Return the passes of a training by its plans, from kept ones where there are."""
    key = *[id(plan.steps) for plan in plans], *[data.rows for data in sets]
    kept: BoundPasses | None = session.kept.pop(key, None)
    if kept is not None:
        kept.train_state.reset(state.parameters, state.values)
        for each, plan, data in zip(kept.passes, plans, sets, strict=True):
            each.reset(plan, data)
        return kept
    network = plans[0].network
    relayout = network.relayout if isinstance(network, NetworkView) else None
    train_state = TrainState(session, state.parameters, state.values, relayout)
    passes = [
        Pass(Alone(session, plan, train_state), data)
        for plan, data in zip(plans, sets, strict=True)
    ]
    streams = any(isinstance(data, StreamedSet) for data in sets)
    size = train_state.parameters.size + train_state.state.size + sum(
        array.nbytes for data in sets for array in data.arrays
    )
    return BoundPasses(
        train_state, passes, key, [plan.steps for plan in plans],
        relayout is None and not streams and size <= KEPT_BYTES,
    )


def keep(session: Session, used: BoundPasses) -> None:
    """Keep the passes of a training that has ended well, unless they are large."""
    if not used.keeps or any(each.falls_back for each in used.passes):
        return
    for each in used.passes:
        each.release()
    session.kept[used.key] = used


def shared_passes(planning: Planning, states: Sequence[TrainState]) -> list[Pass]:
    """Return the passes of a training that several devices or ranks share.

    The second one, if any, is over the validation set.
    """
    setup = planning.setup
    with planning:
        group = training_group(planning, states)
        passes, held_out = [Pass(group, setup.data)], setup.validation
        if held_out is not None:
            measuring = validation_group(planning, states, group)
            if isinstance(held_out, StreamedSet):
                held_out = replace(held_out, batch=measuring.batch)
            passes.append(Pass(measuring, held_out))
    return passes


def measures(totals: Array, samples: int | Array, outputs: int) -> Array:
    """Return the measures of epochs [epochs, 3]: loss, mse, bit_fail.

    `samples` are those of each epoch, or of all [epochs].
    """
    # The sums have the network's precision; the compensation of their rounding errors
    # is added in float64.
    sums, errors = totals[:, : len(RECORD)], totals[:, len(RECORD) :]
    with silent():
        values: Array = np.add(sums, errors, dtype=np.float64)
    targets = samples * outputs
    if np.count_nonzero(np.isfinite(values)) < values.size:
        overflown = np.isinf(sums)  # the error of such a sum is NaN
        values[overflown] = sums[overflown]
        fails = values[:, 2]
        np.copyto(fails, targets, where=~np.isfinite(fails))
    values[:, 0] /= samples
    values[:, 1] /= targets
    np.rint(values[:, 2], values[:, 2])
    return values
