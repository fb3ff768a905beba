"""`Trainer`: segments of epochs on the device, reported one by one.

The data set goes to the device once. Parameters, gradients and the optimiser's state
stay there for the whole of `fit`. The host reads one record an epoch.
"""

from __future__ import annotations

import time
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clnet.checks import all_finite
from clnet.errors import warn
from clnet.nn.random import keys
from clnet.nn.schedules import constant
from clnet.opencl.session import session
from clnet.runtime.replay import RECORDS, RUN_SECONDS
from clnet.runtime.train_state import TrainState
from clnet.training.callbacks import progress_bar, stopping
from clnet.training.data_set import advice
from clnet.training.history import (
    Epoch,
    History,
    TrainingState,
    all_done,
    diverged_state,
    finite_epochs,
    interrupted_after,
)
from clnet.training.passes import (
    BoundPasses,
    Pass,
    bound_passes,
    keep,
    measures,
    shared_passes,
)
from clnet.training.saved import SavedTraining

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clnet.nn.model import Model
    from clnet.training.plans import Planning
    from clnet.training.setup import TrainingSetup

Array = NDArray[Any]

MAX_EPOCHS = RECORDS  # of a segment: their totals are read together
# Bound of the time of one segment of speculative epochs that a callback may have
# recomputed, or that the desired error ends. Other segments take `RUN_SECONDS`.
SPECULATION_SECONDS = 5e-3


class _Segment(NamedTuple):
    """Consecutive epochs that are enqueued together after one snapshot."""

    first: int  # Epochs done before
    rates: Array  # The learning rate of each epoch
    snapshot: int  # Number of the snapshot in `TrainState`


class Trainer:
    """A running training, as callbacks see it; made by `fit`.

    Short epochs are enqueued speculatively, several in a segment, so that the device
    does not wait for the host to report each. Before a segment the device takes a
    snapshot. If a callback reads or replaces the parameters or stops within a segment,
    or an interrupt ends it, the training rolls back to the snapshot and recomputes the
    epochs reported so far, bit for bit. Callbacks cannot observe the speculation. An
    interrupt may come between any two statements: one assignment each tells which
    epochs are enqueued (`_segments`), and which are reported (the history).
    """

    def __init__(self, setup: TrainingSetup, planning: Planning) -> None:
        options, data, state = setup.options, setup.data, setup.state
        network = setup.network
        self.network: Model = network
        self.history: History = History(state)
        self.stopped: str = ""
        if setup.saved is not None:
            self.history.go_on(setup.saved.measures)
            self.stopped = setup.saved.stopped
        self._setup = setup
        self._sessions = [session(device) for device in setup.devices]
        self._state = state
        # Of the two snapshots, the newest first.
        self._segments = [_Segment(state.epoch, np.empty(0), i) for i in range(2)]
        # Epochs since a callback last read or replaced the parameters.
        self._observed = bool(setup.callbacks or setup.checkpoints)
        self._unobserved = 0 if self._observed else MAX_EPOCHS
        self._speculates = (
            options.predictable and len(setup.devices) == 1 and setup.ranks is None
        )
        desired = options.desired
        may_stop = self._observed or desired is not None
        self._segment_seconds = SPECULATION_SECONDS if may_stop else RUN_SECONDS
        self.interrupted: bool = False
        self._replaced = -1  # the last epoch whose parameters a callback replaced
        # While the device has the parameters before the last epoch: those that a
        # callback has put in place of the epoch's, or None.
        self._before_last: tuple[Array | None] | None = None
        self._ended = False  # the device's memory may be another training's
        self._bound: BoundPasses | None = None
        self._validations: list[Pass] = []
        if setup.ranks is None and len(setup.devices) == 1:
            plans = planning.plans(setup.devices[0])
            sets = [data] if setup.validation is None else [data, setup.validation]
            self._bound = bound_passes(self._sessions[0], state, plans, sets)
            self._train_state = [self._bound.train_state]
            self._pass, *self._validations = self._bound.passes
        else:
            self._train_state = [
                TrainState(each, state.parameters, state.values)
                for each in self._sessions
            ]
            self._pass, *self._validations = shared_passes(planning, self._train_state)
        self._pass.limit(
            *((0.0, 0.0) if desired is None else
              desired.limits(len(data) * network.n_out))
        )
        self.history.plan = self.explain()
        self.history.read_by(self._state_now)

    @property
    def _epoch(self) -> int:
        """Number of epochs reported."""
        return self.history.epochs.last

    @property
    def _enqueued(self) -> int:
        """Number of epochs enqueued."""
        return self._segments[0].first + len(self._segments[0].rates)

    @property
    def _steps(self) -> int:
        """Steps of an epoch."""
        return -(-len(self._setup.data) // self._setup.options.batch)

    @property
    def validates(self) -> bool:
        """Whether a validation set is measured after each epoch."""
        return bool(self._validations)

    @property
    def parameters(self) -> Array:
        """The flat buffer, read from the device; assign to replace it."""
        return self.network.parameters if self._ended else self._values()[0]

    @parameters.setter
    def parameters(self, values: Array) -> None:
        if self._ended:
            self.network.parameters = values
            return
        self._roll_back()
        self._replaced = self._epoch
        for train_state in self._train_state:
            train_state.replace(values)

    def parameters_of(self, measure: str) -> Array | None:
        """Return the parameters that a measure of the last epoch is of; or None."""
        if measure.startswith("validation_"):
            return self.parameters
        resumes = self._epoch == self._state.epoch  # the epoch is the checkpoint's
        counted = self._setup.data.counts["samples"] is not None
        if resumes and (self._steps == 1 or not counted):
            return None
        if self._steps > 1:
            return self.parameters
        self._roll_back()
        self._unobserved = 0
        segment, train_state = self._segments[0], self._train_state[0]
        if len(segment.rates) == 1:
            return train_state.kept_parameters(segment.snapshot)
        self._before_last = (
            self.parameters if self._replaced == self._epoch else None,
        )
        self._restore(self._epoch - 1)
        parameters = train_state.values()[0]
        self._roll_back()
        return parameters

    def _values(self) -> tuple[Array, Array]:
        """Return the parameters and the optimiser's state after the last epoch."""
        self._roll_back()
        self._unobserved = 0
        return self._train_state[0].values()

    def _state_now(self) -> TrainingState:
        return self._state_of(*self._values())

    def _state_of(self, parameters: Array, values: Array) -> TrainingState:
        """Return the state after the last epoch, which has these arrays."""
        start = self._state
        return TrainingState(
            start.optimiser, self._epoch, self._steps_before(self._epoch), start.seed,
            parameters, values, start.formats,
        )

    def saved(self) -> SavedTraining:
        """Return the training as it is now, for a file."""
        from clnet.planning.training_planner import saved_plan

        plans = [
            saved_plan(plan, device) for one in (self._pass, *self._validations)
            for plan, device in one.plans
        ]
        return SavedTraining(
            self.history.state, self.history.epochs.rows, self.stopped,
            self._settings, plans,
            [
                (type(callback).__name__, callback.state_dict())
                for callback in self._setup.callbacks if hasattr(callback, "state_dict")
            ],
        )

    @cached_property
    def _settings(self) -> dict[str, Any]:
        return self._setup.settings()

    def explain(self) -> str:
        """Return how a step is computed, and why, as `Plan.explain` does."""
        return self._pass.explain()

    def agree(self, stopped: str = "") -> str:
        """Return rank 0's reason to stop; all ranks take the parameters it replaced."""
        ranks = self._setup.ranks
        if ranks is None:
            return stopped
        replaced = self._replaced == self._epoch
        reason, values = ranks.from_first(
            lambda: (stopped, self._values()[0] if replaced else None)
        )
        if values is not None and not ranks.first:
            self.parameters = values
        return reason

    def update_network(self) -> None:
        """Copy the present parameters to the network."""
        self.network.parameters = self.parameters

    def run(self) -> None:
        """Train epoch by epoch until a rule stops it; `history.stopped` names it."""
        history, setup, done = self.history, self._setup, len(self.history)
        if self.stopped:  # before the checkpoint was written
            history.stopped = self.stopped
            return
        try:
            with progress_bar(
                done + setup.epochs, "epochs", setup.progress, done
            ) as bar:
                for epoch in self._epochs(setup.epochs):
                    if bar is not None:
                        bar.update(len(history) - bar.n)
                        bar.set_postfix(loss=f"{epoch.loss:.4g}", refresh=False)
                    if not epoch.training.finite:
                        name = "mse" if np.isfinite(epoch.loss) else "loss"
                        history.stopped = (
                            f"training diverged: the {name} of epoch {epoch.number} is "
                            f"{getattr(epoch, name)}; the last finite parameters are "
                            f"kept, {advice(setup.data.t)}"
                        )
                        return
                    self.stopped = history.stopped = self.agree(self._reason(epoch))
                    for checkpoint in setup.checkpoints:
                        checkpoint(self, epoch)
                    if self.stopped:
                        return
            history.stopped = all_done(len(history))
        except KeyboardInterrupt:
            if setup.ranks is not None:
                raise  # it ends all ranks
            self.interrupted = True
            history.stopped = interrupted_after(len(history))

    def _reason(self, epoch: Epoch) -> str:
        """Return why the training stops after an epoch, or an empty text."""
        name = stopping(self._setup.callbacks, self, epoch)
        if name:
            return f"{name} stopped after epoch {epoch.number}"
        desired = self._setup.options.desired
        return "" if desired is None else desired.reached(epoch) or ""

    def _epochs(self, count: int) -> Iterator[Epoch]:
        """Train at most `count` epochs, and yield those that the caller must look at.

        With callbacks these are all; else the last of those that were run together, or
        the one at which the training must stop. The history has all epochs up to it.
        """
        last, seconds = self._epoch + count, self._pass.epoch_seconds or inf
        while self._epoch < last:
            first, length, one_run = self._epoch, 1, False
            if self._speculates and self._train_state[0].can_snapshot_state:
                most = self._pass.epochs_per_run
                one_run = most > 0 and not (self._observed or self._validations)
                if not one_run:
                    most = int(self._segment_seconds / seconds)
                elif seconds == inf:
                    most = 1
                length = max(1, min(
                    MAX_EPOCHS, self._pass.records, last - first, self._unobserved, most
                ))
            rates = self._rates_of(first, length)
            start = time.perf_counter()
            self._enqueue(first, rates)
            training, validation = self._measures(length)
            if self._pass.may_time_out and not finite_epochs(training).all() and (
                self._pass.recovered()
            ):
                self.history.plan = self.explain()
                self._restore(first)
                self._discard(first)
                continue
            if len(training) < length:  # the launch ended early
                length = len(training)
                self._discard(first + length)
            seconds = (time.perf_counter() - start) / length
            self._pass.epoch_seconds = seconds
            if len(self._sessions) > 1:  # the bus has a share of it
                self.history.plan = self.explain()
            # A run of several epochs ends with the first at which they must stop.
            size = 1 if self._observed else length if one_run else self._first_stop(
                training
            )
            yield from self._reported(training, validation, seconds, size)

    def _reported(
        self, training: Array, validation: Array | None, seconds: float, size: int
    ) -> Iterator[Epoch]:
        """Add the epochs of a segment to the history, so many at a time.

        Yields the last ones, up to the segment's end or a rollback.
        """
        for begin in range(0, len(training), size):
            part = slice(begin, begin + size)
            done = training[part]
            self._unobserved += len(done)
            self.history.epochs.add(
                done, None if validation is None else validation[part], seconds
            )
            yield self.history[-1]
            if self._enqueued == self._epoch:
                return

    def _first_stop(self, training: Array) -> int:
        """Return how many epochs end with the first at which the training must stop."""
        stops = ~finite_epochs(training)
        desired = self._setup.options.desired
        if desired is not None:
            stops |= desired.reached_by(training)
        return int(stops.argmax()) + 1 if stops.any() else len(training)

    def _rates_of(self, first: int, length: int) -> Array:
        """Return the learning rates of epochs."""
        rate, factor = self._setup.options.rule.rate, self._setup.rates
        rates = np.empty(length)
        if factor is constant:
            rates.fill(rate)
            return rates

        def scheduled() -> Array:
            rates[:] = [rate * factor(first + i) for i in range(length)]
            return rates

        ranks = self._setup.ranks  # a function of the caller's may read rank 0's state
        return scheduled() if ranks is None else ranks.from_first(scheduled)

    def _enqueue(self, first: int, rates: Array) -> None:
        """Take a snapshot and enqueue a segment, with the validation of each epoch."""
        train_state, last = self._train_state[0], self._segments[0]
        number = 1 - last.snapshot
        restorable = self._setup.ranks is None and (
            train_state.can_snapshot_state or train_state.host_is_apart
        )
        train_state.snapshot(number, self._pass.may_time_out or restorable)
        self._segments = [_Segment(first, rates, number), last]
        self._run(first, rates, self._validations)

    def _run(
        self, first: int, rates: Array, validations: Sequence[Pass] = ()
    ) -> None:
        """Enqueue an epoch for each rate."""
        seed, count = self._state.seed, len(rates)
        shuffled = self._setup.options.shuffled and count
        epochs = keys(seed, first, count) if shuffled else None
        size = 1 if validations else max(count, 1)
        for index in range(0, count, size):
            part = slice(index, index + size)
            self._pass.run(
                rates[part], None if epochs is None else epochs[part], seed,
                self._steps_before(first + index), index,
            )
            for one in validations:
                one.run(record=index)

    def _steps_before(self, epoch: int) -> int:
        """Return the number of steps of the first `epoch` epochs."""
        return self._state.count + (epoch - self._state.epoch) * self._steps

    def _measures(self, count: int) -> tuple[Array, Array | None]:
        """Wait for the segment's epochs, and return their measures [epochs, 3]."""
        n_out = self.network.n_out
        training = measures(self._pass.totals(count), len(self._setup.data), n_out)
        if self._setup.validation is None:
            return training, None
        totals = np.sum([one.totals(count) for one in self._validations], axis=0)
        return training, measures(totals, len(self._setup.validation), n_out)

    def _roll_back(self) -> None:
        """Discard the epochs that are not reported yet.

        The optimiser's state of a discarded epoch stays on a CPU without memory for a
        snapshot of it.
        """
        if self._enqueued > self._epoch or self._before_last is not None:
            self._restore(self._epoch)
            self._discard(self._epoch)
            self._unobserved = 0
            replaced, = self._before_last or (None,)
            if replaced is not None:
                self._train_state[0].replace(replaced)
            self._before_last = None

    def _discard(self, epoch: int) -> None:
        """Forget the last segment's epochs after `epoch`, and it if none is left."""
        last, before = self._segments
        rates = last.rates[: epoch - last.first]
        self._segments = (
            [last._replace(rates=rates), before] if len(rates) else [before, last]
        )

    def _restore(self, epoch: int) -> None:
        """Restore the parameters after `epoch` epochs, of the last two segments.

        The optimiser's state is restored if the snapshot has it.
        """
        segment = self._segments[0 if self._segments[0].first <= epoch else 1]
        self._train_state[0].restore(segment.snapshot)
        self._run(segment.first, segment.rates[: epoch - segment.first])
        if self._pass.recovered():
            self._restore(epoch)

    def finish(self) -> None:
        """Give the network the trained parameters, and the history its state.

        Warns
        -----
        ClnetWarning
            If they are not finite: the network gets the last finite ones.
        """
        self._roll_back()
        for one in self._sessions[1:]:
            one.finish()
        history = self.history
        last = history[-1] if history.epochs else None
        parameters, values = self._train_state[0].values()
        diverged = last is not None and not last.training.finite
        if diverged and self._replaced == self._epoch:
            pass  # early stopping has restored the best ones
        elif diverged:  # the last epoch began with parameters that gave this loss
            parameters = self._finite_parameters(self._epoch - 2)
        elif not all_finite(parameters):
            diverged = True
            parameters = self._finite_parameters(self._epoch - 1)
            history.stopped = (
                f"training diverged: epoch {self._epoch} left parameters that are not "
                f"finite; the last finite ones are kept, {advice(self._setup.data.t)}"
            )
        elif not all_finite(values):
            diverged = True
            history.stopped = diverged_state(self._epoch)
        history.diverged = diverged
        warning = history.stopped if diverged else history.tell_validation()
        if warning:
            warn(warning)
        self.network.parameters = parameters
        history.state = self._state_of(self.network.parameters.copy(), values)
        self._ended = True
        if self._bound is not None and not self.interrupted:
            keep(self._sessions[0], self._bound)

    def _finite_parameters(self, epoch: int) -> Array:
        """Return the last finite parameters after at most `epoch` epochs.

        Losses may stay finite while parameters are not. They are looked for in the last
        two segments; before these there are the initial ones.
        """
        first = self._state.epoch
        if self._enqueued == first:  # no epoch, and no snapshot
            return self._state.parameters
        low, high = min(one.first for one in self._segments), max(epoch, first)
        finite, at = self._state.parameters, high
        while low <= high:  # once they are not finite, they stay so
            self._restore(at)
            parameters, _ = self._train_state[0].values()
            if all_finite(parameters):
                finite, low = parameters, at + 1
            else:
                high = at - 1
            at = (low + high) // 2
        return finite
