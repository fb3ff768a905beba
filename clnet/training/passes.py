"""A pass over a data set by one device: an epoch's steps, or a validation."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import replace
from math import isfinite
from operator import add
from typing import Any

from numpy.typing import NDArray

from clnet.errors import ClnetWarning
from clnet.ir.training_ops import RECORD
from clnet.opencl.session import Session
from clnet.planning.training_planner import TrainingPlan, plan_training
from clnet.runtime.replay import Replay
from clnet.runtime.train_state import TrainState
from clnet.training.data_set import DataSet
from clnet.training.history import Measures

Array = NDArray[Any]

AHEAD = 64  # epochs whose totals may be read together


class Pass:
    """A planned program run over a data set, batch by batch.

    Parameters
    ----------
    session : Session
        Where.
    plan : TrainingPlan
        Of one step.
    data : DataSet
        Uploaded here.
    train_state : TrainState
        Parameters and state.
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
        self._replay.spread(self._totals, AHEAD)
        for value, array in zip(plan.program.inputs, self._data.arrays, strict=True):
            self._replay.write(value, array)

    def run(
        self, words: Iterable[int] = (), rate: float = 0.0, seed: int = 0,
        count: int = 0, place: int = 0, epochs: int = 1,
    ) -> None:
        """Enqueue an epoch, or several: see `does_epochs`.

        Parameters
        ----------
        words : iterable of int
            The key of its order; empty: none is shuffled.
        rate : float
            The learning rate.
        seed : int
            Of the optimiser's random numbers.
        count : int
            Steps taken before.
        place : int
            Of its totals, among those of the epochs that are read together.
        epochs : int
            How many, in places one behind the other.
        """
        self._replay.session.settle()  # another pass may be under way
        self._replay.select_place(self._totals, place)
        self._replay.set(rate=rate, seed=seed & 0xFFFFFFFF)
        self._replay.set(**{f"key{i}": int(word) for i, word in enumerate(words)})
        if epochs == 1:
            self._replay.run_pass(len(self._data), count)
        else:
            self._replay.run_epochs(len(self._data), count, epochs, place)

    def totals(self, count: int = 1) -> Array:
        """Wait for the epochs' end, and return their totals [count, 6] (`Tally`)."""
        return self._replay.read_places(self._totals, count)

    @property
    def does_epochs(self) -> bool:
        """Whether several epochs of one order and rate go in a run."""
        return self._replay.epochs_a_run(len(self._data)) > 0

    @property
    def may_fail(self) -> bool:
        """Whether kernels wait for each other."""
        return self._replay.may_fail

    def recovered(self) -> bool:
        """Wait for the epochs' end; if kernels timed out, do so no more.

        Returns
        -------
        bool
            Whether they did. What they have computed since is wrong.

        Warns
        -----
        ClnetWarning
            If so.
        """
        if not self._replay.timed_out():
            return False
        plan, device = self._plan, self._session.device
        names = ", ".join(step.variant.name for step in plan.steps)
        text = (
            f"{names} timed out on {device.name}, which may have other work: the "
            "training goes on, and has computed these epochs again, without it"
        )
        warnings.warn(text, ClnetWarning, stacklevel=5)
        other = plan_training(
            plan.network, plan.program, replace(device, forward_progress=False),
            self._replay.batch, tune=False,
        )
        self._bind(replace(other, explanation=f"{other.explanation}\n\n{text}"))
        return True

    def explain(self) -> str:
        """Return how a step is computed, and why."""
        return self._plan.explain()


def measures(totals: Array, samples: int, outputs: int) -> list[Measures]:
    """Return what epochs' totals [epochs, 6] say of so many samples and outputs."""
    # As Python's floats: the sums are of the type's own precision, and what rounding
    # took from them is added in float64.
    rows: list[list[float]] = totals.tolist()
    found, outputs = [], outputs * samples
    for numbers in rows:
        loss, squares, fails = map(add, numbers, numbers[len(RECORD) :])
        bit_fail = round(fails) if isfinite(fails) else outputs
        found.append(Measures(loss / samples, squares / outputs, bit_fail))
    return found
