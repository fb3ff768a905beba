"""One device's pass over a data set: an epoch's steps, or a validation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.errors import warn
from clnet.ir.batch import Gather
from clnet.ir.loss import RECORD
from clnet.ir.reference import silent
from clnet.nn.random import permuted
from clnet.opencl.launch import EPOCH
from clnet.runtime.replay import Replay

if TYPE_CHECKING:
    from clnet.opencl.device import Device
    from clnet.opencl.session import Session
    from clnet.planning.training_planner import TrainingPlan
    from clnet.runtime.train_state import TrainState
    from clnet.training.data_set import DataSet

Array = NDArray[Any]

NO_RATE = np.zeros(1)  # of a validation
LIMIT_MARGIN = 1e-6  # of a sum of float32 and its compensation


class Pass:
    """A planned program, run over a data set batch by batch."""

    def __init__(
        self, session: Session, plan: TrainingPlan, data: DataSet,
        train_state: TrainState,
    ) -> None:
        self._session, self._train_state = session, train_state
        self._data: DataSet | None = data
        self._totals = plan.program.output
        self._samples = len(data)
        self._plan: TrainingPlan | None = plan
        self.falls_back: bool = False
        self._bind(plan)

    def reset(self, plan: TrainingPlan, data: DataSet) -> None:
        """Take another data set of as many samples, and an equal plan."""
        self._plan, self._data = plan, data
        self._write()

    def release(self) -> None:
        """Drop the plan and the data set until `reset`, but not the memory."""
        self._plan = self._data = None

    def _write(self) -> None:
        inputs = self.plan.program.inputs
        for value, array in zip(inputs, self.data.arrays, strict=True):
            self._replay.write(value, array)

    @property
    def plan(self) -> TrainingPlan:
        """The plan of one step."""
        assert self._plan is not None
        return self._plan

    @property
    def plans(self) -> list[tuple[TrainingPlan, Device]]:
        """The plan with its device."""
        return [(self.plan, self._session.device)]

    @property
    def data(self) -> DataSet:
        """The samples."""
        assert self._data is not None
        return self._data

    def _bind(self, plan: TrainingPlan) -> None:
        self._plan = plan
        self._replay = Replay(
            self._session, plan.steps, plan.network.layout, self._train_state
        )
        self.records: int = self._replay.add_records(self._totals)
        self._count = -(-self._samples // self._replay.batch)
        self._write()

    def run(
        self, rates: Array = NO_RATE, keys: Array | None = None, seed: int = 0,
        count: int = 0, record: int = 0,
    ) -> None:
        """Enqueue an epoch for each rate, in as few launches as possible."""
        replay, n = self._replay, self._samples
        replay.session.barrier()  # another pass may be in flight
        replay.set(seed=seed & 0xFFFFFFFF)
        epochs = len(rates)
        if epochs > 1 and self.epochs_per_run:
            schedule = None
            if keys is not None or np.count_nonzero(rates != rates[0]):
                schedule = np.zeros(epochs, EPOCH)
                schedule["rate"] = rates
                if keys is not None:
                    schedule["key"] = keys
            replay.set(rate=float(rates[0]))
            replay.run_epochs(n, count, epochs, record, schedule)
            return
        for number in range(epochs):
            replay.select_record(self._totals, record + number)
            replay.set(rate=float(rates[number]))
            if keys is not None:
                replay.set(key=keys[number])
                if self.data.weight is not None:
                    replay.session.finish()  # the steps of the epoch before read them
                    weights = shuffled_weights(self.data, replay.batch, keys[number])
                    replay.write(self.plan.program.inputs[-1], weights)
            replay.run_pass(n, count + number * self._count)

    def totals(self, count: int = 1) -> Array:
        """Wait for the epochs, and return their totals [count, 6] (`Tally`).

        They are fewer if `limit` ended the last launch early.
        """
        return self._replay.read_records(self._totals, count)

    def limit(self, squares: float, fails: float) -> None:
        """Let launches end after an epoch whose totals may be below a limit."""
        margin = 1 + LIMIT_MARGIN
        self._replay.set(squares_limit=squares * margin, fails_limit=fails * margin)

    @property
    def epochs_per_run(self) -> int:
        """Number of epochs that a launch computes at most; 0: launches take less."""
        op = self.plan.program.ops[0]
        if self.data.weight is not None and isinstance(op, Gather) and op.shuffled:
            return 0  # the host balances the weights of each epoch
        return self._replay.epochs_per_run(self._samples)

    @property
    def epoch_seconds(self) -> float | None:
        """The time of an epoch, measured or set."""
        seconds = self._replay.step_seconds
        return None if seconds is None else seconds * self._count

    @epoch_seconds.setter
    def epoch_seconds(self, seconds: float) -> None:
        self._replay.step_seconds = seconds / self._count

    @property
    def may_time_out(self) -> bool:
        """Whether kernels wait for other work-groups, and may time out."""
        return self._replay.may_time_out

    def recovered(self) -> bool:
        """Wait for the epochs; if kernels timed out, switch to a fallback plan.

        Warns
        -----
        ClnetWarning
            If kernels timed out.
        """
        if not self._replay.timed_out():
            return False
        from clnet.planning.training_planner import plan_training

        plan, device = self.plan, self._session.device
        names = ", ".join(step.variant.name for step in plan.steps)
        text = (
            f"{names} timed out on {device.name} (is another program using it?); these "
            "epochs are recomputed by a fallback, and the training continues with it"
        )
        warn(text)
        other = plan_training(
            plan.network, plan.program, replace(device, forward_progress=False),
            self._replay.batch, tune=False,
        )
        self.falls_back = True
        self._bind(replace(other, explanation=f"{other.explanation}\n\n{text}"))
        return True

    def explain(self) -> str:
        """Return how a step is computed, and why that way."""
        return self.plan.explain()


def shuffled_weights(data: DataSet, batch: int, words: Array) -> Array:
    """Return the weights [n, 1] for an epoch of random order, given its key."""
    order = permuted(np.arange(len(data)), len(data), words)
    weights = data.balanced(batch, order).weight
    assert weights is not None
    return weights


def measures(totals: Array, samples: int, outputs: int) -> Array:
    """Return the measures of epochs [epochs, 3]: loss, mse, bit_fail."""
    # The sums have the network's precision; the compensation of their rounding errors
    # is added in float64.
    sums, errors = totals[:, : len(RECORD)], totals[:, len(RECORD) :]
    with silent():
        found: Array = np.add(sums, errors, dtype=np.float64)
    targets = samples * outputs
    if np.count_nonzero(np.isfinite(found)) < found.size:
        overflown = np.isinf(sums)  # the error of such a sum is NaN
        found[overflown] = sums[overflown]
        fails = found[:, 2]
        fails[~np.isfinite(fails)] = targets
    found /= (samples, targets, 1.0)
    np.rint(found[:, 2], found[:, 2])
    return found
