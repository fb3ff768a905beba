"""One device's pass over a data set: an epoch's steps, or a validation."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import replace
from math import isfinite
from operator import add
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from clnet.errors import ClnetWarning
from clnet.ir.training_ops import RECORD
from clnet.planning.training_planner import TrainingPlan, plan_training
from clnet.runtime.replay import Replay
from clnet.training.history import Measures

if TYPE_CHECKING:
    from clnet.opencl.session import Session
    from clnet.runtime.train_state import TrainState
    from clnet.training.data_set import DataSet

Array = NDArray[Any]

MAX_EPOCHS = 64  # per segment: their totals are read together


class Pass:
    """A planned program, run over a data set batch by batch.

    Parameters
    ----------
    session : Session
        The device's.
    plan : TrainingPlan
        The plan of one step.
    data : DataSet
        The samples; the constructor uploads them.
    train_state : TrainState
        Parameters and optimiser state on the device.
    """

    def __init__(
        self, session: Session, plan: TrainingPlan, data: DataSet,
        train_state: TrainState,
    ) -> None:
        self._session, self._data, self._train_state = session, data, train_state
        self._totals = plan.program.output
        self._bind(plan)

    def _bind(self, plan: TrainingPlan) -> None:
        self._plan = plan
        self._replay = Replay(
            self._session, plan.steps, plan.network.layout, self._train_state
        )
        self._replay.add_records(self._totals, MAX_EPOCHS)
        for value, array in zip(plan.program.inputs, self._data.arrays, strict=True):
            self._replay.write(value, array)

    def run(
        self, words: Iterable[int] = (), rate: float = 0.0, seed: int = 0,
        count: int = 0, record: int = 0, epochs: int = 1,
    ) -> None:
        """Enqueue an epoch, or several (see `fuses_epochs`).

        Parameters
        ----------
        words : iterable of int
            The key of the epoch's random order; empty: not shuffled.
        rate : float
            The learning rate.
        seed : int
            Seed of the optimiser's random numbers.
        count : int
            Steps taken before.
        record : int
            Row of the epoch's totals in `totals`.
        epochs : int
            Number of epochs; their totals take consecutive rows.
        """
        self._replay.session.barrier()  # another pass may be in flight
        self._replay.select_record(self._totals, record)
        self._replay.set(rate=rate, seed=seed & 0xFFFFFFFF)
        self._replay.set(**{f"key{i}": int(word) for i, word in enumerate(words)})
        if epochs == 1:
            self._replay.run_pass(len(self._data), count)
        else:
            self._replay.run_epochs(len(self._data), count, epochs, record)

    def totals(self, count: int = 1) -> Array:
        """Wait for the epochs, and return their totals [count, 6] (`Tally`)."""
        return self._replay.read_records(self._totals, count)

    @property
    def fuses_epochs(self) -> bool:
        """Whether one run computes several epochs of the same order and rate."""
        return self._replay.epochs_per_run(len(self._data)) > 0

    @property
    def may_time_out(self) -> bool:
        """Whether kernels wait for other work-groups, and may time out."""
        return self._replay.may_time_out

    def recovered(self) -> bool:
        """Wait for the epochs; if kernels timed out, switch to a fallback plan.

        Returns
        -------
        bool
            Whether kernels timed out. All results since the timeout are then wrong.

        Warns
        -----
        ClnetWarning
            If kernels timed out.
        """
        if not self._replay.timed_out():
            return False
        plan, device = self._plan, self._session.device
        names = ", ".join(step.variant.name for step in plan.steps)
        text = (
            f"{names} timed out on {device.name} (is another program using it?); these "
            "epochs are recomputed by a fallback, and the training continues with it"
        )
        warnings.warn(text, ClnetWarning, stacklevel=5)
        other = plan_training(
            plan.network, plan.program, replace(device, forward_progress=False),
            self._replay.batch, tune=False,
        )
        self._bind(replace(other, explanation=f"{other.explanation}\n\n{text}"))
        return True

    def explain(self) -> str:
        """Return how a step is computed, and why that way."""
        return self._plan.explain()


def measures(totals: Array, samples: int, outputs: int) -> list[Measures]:
    """Return the measures of epochs from their totals [epochs, 6].

    Parameters
    ----------
    totals : ndarray, shape [epochs, 6]
        As `Pass.totals` returns them.
    samples, outputs : int
        Samples of the data set, and outputs of the network.
    """
    # As Python's floats: the sums have the network's precision, and the compensation of
    # their rounding errors is added in float64.
    rows: list[list[float]] = totals.tolist()
    found, targets = [], outputs * samples
    for numbers in rows:
        loss, squares, fails = map(add, numbers, numbers[len(RECORD) :])
        bit_fail = round(fails) if isfinite(fails) else targets
        found.append(Measures(loss / samples, squares / targets, bit_fail))
    return found
