"""The training loop: epochs, stop rules, callbacks.

The data set goes to the device once. Parameters, gradients and the optimiser's state
stay there for the whole of `fit`. The host reads one record an epoch.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.checks import INT_MAX, PRECISIONS, as_whole
from clnet.errors import ClnetWarning, counted
from clnet.ir.lowering import lower_training
from clnet.ir.training_ops import Tally
from clnet.nn.random import keys
from clnet.nn.schedules import constant
from clnet.opencl.discovery import device as find_device
from clnet.opencl.session import device_error, session
from clnet.planning.training_planner import (
    plan_as_saved,
    plan_training,
    saved_plan,
)
from clnet.planning.tuning.search import Search
from clnet.runtime.data_parallel import shares
from clnet.runtime.replay import RECORDS
from clnet.runtime.train_state import TrainState
from clnet.training.bound import MAX_PROGRAMS, Bound, bound, keep, program_of
from clnet.training.history import Epoch, History, TrainingState
from clnet.training.mpi import VALIDATION_BATCH, RankPass, rank_passes
from clnet.training.options import default_loss, rule_of
from clnet.training.parallel import ParallelPass
from clnet.training.passes import Pass, measures
from clnet.training.saved import SavedTraining, take_state

if TYPE_CHECKING:
    from clnet.ir.ops import Program
    from clnet.nn.model import Model
    from clnet.nn.optimisers import Optimiser
    from clnet.opencl.device import Device
    from clnet.planning.training_planner import TrainingPlan
    from clnet.training.data_set import DataSet
    from clnet.training.setup import TrainingSetup

Array = NDArray[Any]

MAX_EPOCHS = RECORDS  # of a segment: their totals are read together
# Bound of the time of one segment of speculative epochs that a callback may have
# recomputed, or that no kernel ends. The host's share of longer epochs is small.
SPECULATION_SECONDS = 2e-3


@dataclass(frozen=True)
class _Segment:
    """Consecutive epochs that are enqueued together after one snapshot.

    Attributes
    ----------
    first : int
        Epochs done before.
    rates : ndarray, shape [epochs]
        The learning rate of each epoch.
    """

    first: int
    rates: Array


class Training:
    """A running training, as callbacks see it; made by `fit`.

    Short epochs are enqueued speculatively, several in a segment, so that the device
    does not wait for the host to report each. Before a segment the device takes a
    snapshot. If a callback reads or replaces the parameters or stops within a segment,
    the training rolls back to the snapshot and recomputes the epochs reported so far,
    bit for bit. Callbacks cannot observe the speculation.

    Attributes
    ----------
    network : Model
        The network in training; it gets the trained parameters at the end.
    history : History
        The epochs so far.
    stopped : str
        Why a stop rule has ended the training; "": none has.
    interrupted : bool
        Whether Ctrl-C has ended the training, maybe amid a call to the device.
    """

    def __init__(
        self, network: Model, setup: TrainingSetup, search: Search,
        tune: bool | None = None,
    ) -> None:
        options, data, state = setup.options, setup.data, setup.state
        batch = options.batch
        self.network = network
        self.history: History = History(state)
        self.stopped: str = ""
        if setup.saved is not None:
            self.history.go_on(setup.saved.measures)
            self.stopped = setup.saved.stopped
        self._setup = setup
        self._sessions = [session(device) for device in setup.devices]
        self._shuffled = options.shuffled
        self._state = state
        self._epoch = self._enqueued = state.epoch  # epochs reported, and enqueued
        # The segments of the last two snapshots of `TrainState`, the newest first.
        self._segments = [_Segment(state.epoch, np.empty(0))] * 2
        # Epochs since a callback last read or replaced the parameters.
        self._observed = bool(setup.callbacks or setup.checkpoints)
        self._unobserved = 0 if self._observed else MAX_EPOCHS
        self._rates, self._rate = setup.rates, options.rule.rate
        self._desired = options.desired
        self._speculates = (
            options.predictable and len(setup.devices) == 1 and setup.ranks is None
        )
        self.interrupted = False
        self._replaced = -1  # the last epoch whose parameters a callback replaced
        self._ended = False  # the device's memory may be another training's
        self._samples = n = len(data)
        self._steps = -(-n // batch)
        epochs = inf if tune else setup.epochs
        search.runs = epochs * self._steps

        def lowered(stored: Model) -> Program:
            return program_of(
                stored, options.loss, options.rule, options.precision,
                samples=n if batch < n and setup.ranks is None else None,
                shuffled=options.shuffled,
                weighted=data.weight is not None,
                regularisation=options.regularisation,
            )

        program = lowered(network)
        planning = _Planning(tune, setup.saved)
        self._bound: Bound | None = None
        self._pass: Pass | ParallelPass | RankPass
        self._validations: Sequence[Pass | RankPass] = []
        if setup.ranks is not None:
            self._train_state = [
                TrainState(self._sessions[0], state.parameters, state.values)
            ]
            self._pass, self._validations = rank_passes(
                setup, network, program, self._train_state[0],
                partial(planning, search=search), _validation_program(network, setup),
            )
        elif len(setup.devices) == 1:
            plan = planning(
                network, program, setup.devices[0], batch, lowered=lowered,
                search=search,
            )
            self._plans, self._sets = [plan], [data]
            if setup.validation is not None:
                size = len(setup.validation)
                self._plans.append(
                    _validation_plan(plan.network, setup, 0, size, search, planning)
                )
                self._sets.append(setup.validation)
            self._bound = bound(self._sessions[0], state, self._plans, self._sets)
            self._train_state = [self._bound.train_state]
            self._pass = self._bound.training
            if self._bound.validation is not None:
                self._validations = [self._bound.validation]
        else:
            self._train_state = [
                TrainState(one, state.parameters, state.values)
                for one in self._sessions
            ]
            self._pass = ParallelPass(
                network, program, data, batch, setup.devices, self._train_state,
                search, planning,
            )
            if setup.validation is not None:
                self._validations = list(self._validation_passes(
                    setup, setup.validation, self._pass.shares, search, planning
                ))
        if options.desired is not None:
            self._pass.limit(*options.desired.limits(n * network.n_out))
        self.history.plan = self.explain()
        self.history.read_by(self._state_now)
        self._validation_samples = len(setup.validation or ())

    def _validation_passes(
        self, setup: TrainingSetup, data: DataSet, sharing: Sequence[int],
        search: Search, planning: _Planning,
    ) -> Iterator[Pass]:
        """Yield each device's pass over its share of the validation set."""
        start = 0
        for number, n in enumerate(shares(len(data), sharing)):
            if n:
                plan = _validation_plan(
                    self.network, setup, number, n, search, planning
                )
                share = data.subset(slice(start, start + n))
                yield Pass(
                    self._sessions[number], plan, share, self._train_state[number]
                )
            start += n

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

    def _values(self) -> tuple[Array, Array]:
        """Return the parameters and the optimiser's state after the last epoch."""
        self._roll_back()
        self._unobserved = 0
        self._sessions[0].finish()
        return self._train_state[0].values()

    def _state_now(self) -> TrainingState:
        parameters, values = self._values()
        return replace(
            self._state, epoch=self._epoch, count=self._steps_before(self._epoch),
            parameters=parameters, values=values,
        )

    def saved(self) -> SavedTraining:
        """Return the training as it is now, for a file."""
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

    def epochs(self, count: int) -> Iterator[Epoch]:
        """Train at most `count` epochs, and yield those that the caller must look at.

        With callbacks these are all; else the last of those that were run together, or
        the one at which the training must stop. The history has all epochs up to it.
        """
        last, seconds = self._epoch + count, self._pass.epoch_seconds or inf
        while self._epoch < last:
            first, length = self._epoch, 1
            if self._speculates and self._train_state[0].can_snapshot_state:
                length = max(1, min(
                    MAX_EPOCHS, self._pass.records, last - first, self._unobserved,
                    self._most_epochs(seconds),
                ))
            segment = _Segment(first, self._rates_of(first, length))
            start = time.perf_counter()
            self._enqueue(segment)
            training, validation = self._measures(length)
            if not np.isfinite(training[:, :2]).all() and self._pass.recovered():
                self.history.plan = self.explain()
                self._restore(first)
                self._enqueued = first
                continue
            if len(training) < length:  # the launch ended early
                length = len(training)
                self._segments[0] = _Segment(first, segment.rates[:length])
                self._enqueued = first + length
            seconds = (time.perf_counter() - start) / length
            self._pass.epoch_seconds = seconds
            yield from self._reported(training, validation, seconds)

    def _reported(
        self, training: Array, validation: Array | None, seconds: float
    ) -> Iterator[Epoch]:
        """Add the epochs of a segment to the history; yield as `epochs` does."""
        length = len(training)
        size = 1 if self._observed else self._first_stop(training)
        for begin in range(0, length, size):
            part = slice(begin, begin + size)
            done = training[part]
            self._epoch += len(done)
            self._unobserved += len(done)
            self.history.epochs.add(
                done, None if validation is None else validation[part], seconds
            )
            yield self.history[-1]
            if self._enqueued == self._epoch:
                return  # the segment's end, or a rollback

    def _first_stop(self, training: Array) -> int:
        """Return how many epochs end with the first at which the training must stop."""
        stops = ~np.isfinite(training[:, :2]).all(axis=1)
        if self._desired is not None:
            stops |= self._desired.reached_by(training)
        return int(stops.argmax()) + 1 if stops.any() else len(training)

    def _most_epochs(self, seconds: float) -> int:
        """Return how many epochs a segment may have, for epochs of so many seconds."""
        most = self._pass.epochs_per_run
        if self._observed or self._validations or not most:
            return int(SPECULATION_SECONDS / seconds)
        return most if seconds < inf else 1

    def _rates_of(self, first: int, length: int) -> Array:
        """Return the learning rates of epochs."""
        if self._rates is constant:
            return np.full(length, self._rate)

        def rates() -> Array:
            return np.array(
                [self._rate * self._rates(first + i) for i in range(length)]
            )

        ranks = self._setup.ranks  # a function of the caller's may read rank 0's state
        return rates() if ranks is None else ranks.from_first(rates)

    def _enqueue(self, segment: _Segment) -> None:
        """Take a snapshot and enqueue a segment, with the validation of each epoch."""
        length = len(segment.rates)
        self._train_state[0].snapshot(with_state=length > 1 or self._pass.may_time_out)
        self._segments = [segment, self._segments[0]]
        self._enqueued = segment.first + length
        self._run(segment.first, segment.rates, self._validations)

    def _run(
        self, first: int, rates: Array, validations: Sequence[Pass | RankPass] = ()
    ) -> None:
        """Enqueue an epoch for each rate."""
        seed, count = self._state.seed, len(rates)
        epochs = keys(seed, first, count) if self._shuffled and count else None
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
        found = measures(self._pass.totals(count), self._samples, n_out)
        if not self._validations:
            return found, None
        totals = np.sum([one.totals(count) for one in self._validations], axis=0)
        return found, measures(totals, self._validation_samples, n_out)

    def _roll_back(self) -> None:
        """Discard the speculative epochs that are not reported yet."""
        if self._enqueued > self._epoch and len(self._segments[0].rates) > 1:
            self._restore(self._epoch)
            self._enqueued = self._epoch
            self._unobserved = 0

    def _restore(self, epoch: int) -> None:
        """Restore the parameters after `epoch` epochs, of the last two segments.

        The optimiser's state is restored if the snapshot has it.
        """
        number = 0 if self._segments[0].first <= epoch else 1
        self._train_state[0].restore(number)
        segment = self._segments[number]
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
        for one in self._sessions:
            one.finish()
        history = self.history
        parameters, values = self._train_state[0].values()
        diverged = bool(history.epochs) and not history[-1].training.finite
        if diverged and self._replaced == self._epoch:
            pass  # early stopping has restored the best ones
        elif diverged:  # the last epoch began with parameters that gave this loss
            parameters = self._parameters_at(self._epoch - 2)
        elif not np.isfinite(parameters).all():
            diverged = True
            parameters = self._parameters_at(self._epoch - 1)
            history.stopped = (
                f"training diverged: epoch {self._epoch} left parameters that are not "
                "finite; the parameters before it are kept, try a smaller learning rate"
            )
        history.diverged = diverged
        if diverged:
            warnings.warn(history.stopped, ClnetWarning, stacklevel=4)
        self.network.parameters = parameters
        history.state = replace(
            self._state, epoch=self._epoch, count=self._steps_before(self._epoch),
            parameters=self.network.parameters.copy(), values=values,
        )
        self._ended = True
        if self._bound is not None and not self.interrupted:
            keep(self._sessions[0], self._bound, self._plans, self._sets)

    def _parameters_at(self, epoch: int) -> Array:
        """Return the parameters after `epoch` epochs, or the initial ones."""
        self._restore(max(epoch, self._state.epoch))
        self._sessions[0].finish()
        return self._train_state[0].values()[0]


class _Planning:
    """`plan_training` with an argument of `fit`, or the plans of a checkpoint."""

    def __init__(self, tune: bool | None, saved: SavedTraining | None) -> None:
        self.tune = tune
        self._saved = [] if saved is None else saved.plans

    def __call__(
        self, network: Model, program: Program, device: Device, batch: int,
        **options: Any,
    ) -> TrainingPlan:
        for saved in self._saved:
            plan = plan_as_saved(saved, network, program, device, batch, **options)
            if plan is not None:
                return plan
        if self._saved:
            warnings.warn(
                "the checkpoint's plan is none for these devices: the training goes on "
                "with another one, which rounds differently",
                ClnetWarning, stacklevel=6,
            )
        if self.tune is not None:
            options["tune"] = self.tune
        return plan_training(network, program, device, batch, **options)


def _validation_plan(
    network: Model, setup: TrainingSetup, number: int, samples: int, search: Search,
    planning: _Planning,
) -> TrainingPlan:
    """Return the plan of a validation of so many samples on a numbered device."""
    size = min(samples, VALIDATION_BATCH)
    search.runs = (inf if planning.tune else setup.epochs) * -(-samples // size)
    program = _validation_program(network, setup, samples if size < samples else None)
    return planning(network, program, setup.devices[number], size, search=search)


def _validation_program(
    network: Model, setup: TrainingSetup, samples: int | None = None
) -> Program:
    """Return the program of a validation, gathered from samples if they are given."""
    return _without_backward(program_of(
        network, setup.options.loss, None, setup.options.precision, samples=samples,
        dropout=False,
        weighted=setup.validation is not None and setup.validation.weight is not None,
    ))


@lru_cache(MAX_PROGRAMS)
def _without_backward(program: Program) -> Program:
    """Return a training program up to its totals: the forward pass and the loss."""
    stop = next(i for i, op in enumerate(program.ops) if isinstance(op, Tally)) + 1
    return replace(program, ops=program.ops[:stop], outputs=(program.output,))


def fit(
    network: Model, setup: TrainingSetup, progress: bool | None = None,
    tune: bool | None = None,
) -> History:
    """Train a network; see `Network.fit`."""
    errors = session(setup.devices[0]).errors
    if setup.ranks is not None and not setup.ranks.first:
        progress = False
    try:
        with Search(progress=progress) as search:
            training = Training(network, setup, search, tune)
        network.classes, network.columns = setup.classes, setup.columns
        states = [] if setup.saved is None else list(setup.saved.callbacks)
        for callback in (*setup.callbacks, *setup.checkpoints):
            state = take_state(states, callback)
            if state is not None and hasattr(callback, "load_state_dict"):
                callback.load_state_dict(state)
            if hasattr(callback, "start"):
                callback.start(training)
        training.agree()
        try:
            _train(training, setup, progress)
        except Exception:  # a callback's: the network gets the parameters so far
            with suppress(*errors):
                training.update_network()
            raise
        for callback in (*setup.checkpoints, *setup.callbacks):
            if hasattr(callback, "end"):
                callback.end(training)
        training.agree()
        training.finish()
    except errors as error:
        raise device_error(setup.devices[0], error, *setup.devices[1:]) from error
    network.fann = setup.options.fann
    return training.history


def explain(
    network: Model,
    optimiser: str | Optimiser,
    device: str | Device | None,
    batch: int,
    tune: bool | None = None,
    precision: str = PRECISIONS[0],
    progress: bool = False,
) -> str:
    """Return how a training step over all samples would be computed, and why.

    Parameters
    ----------
    network, optimiser, device
        As for `Network.fit`; the loss is its default.
    batch : int
        Samples a step.
    tune : bool or None
        As for `Network.compile`.
    precision, progress
        As for `Network.compile`.

    Raises
    ------
    InputError, DeviceError
        If an argument is wrong, or no such device exists.
    """
    batch = as_whole("batch", batch, most=INT_MAX)
    rule, where = rule_of(network, optimiser), find_device(device)
    loss = default_loss(network, optimiser)

    def lowered(stored: Model) -> Program:
        return lower_training(stored, loss, rule).at(precision)

    with Search(progress=progress) as search:
        return plan_training(
            network, lowered(network), where, batch, tune=tune, lowered=lowered,
            search=search,
        ).explain()


def _train(
    training: Training, setup: TrainingSetup, progress: bool | None
) -> None:
    """Train epoch by epoch until a stop rule holds; `history.stopped` names it."""
    history = training.history
    if training.stopped:  # before the checkpoint was written
        history.stopped = training.stopped
        return
    try:
        with _bar(history, setup.epochs) if progress else nullcontext() as bar:
            for epoch in training.epochs(setup.epochs):
                if bar is not None:
                    bar.update(len(history) - bar.n)
                    bar.set_postfix(loss=f"{epoch.loss:.4g}", refresh=False)
                if not epoch.training.finite:
                    name = "mse" if np.isfinite(epoch.loss) else "loss"
                    history.stopped = (
                        f"training diverged: the {name} of epoch {epoch.number} is "
                        f"{getattr(epoch, name)}; the last finite parameters are "
                        "kept, try a smaller learning rate"
                    )
                    return
                training.stopped = history.stopped = training.agree(
                    _stopped(training, setup, epoch)
                )
                for checkpoint in setup.checkpoints:
                    checkpoint(training, epoch)
                if training.stopped:
                    return
        n = len(history)
        subject = f"all {n} epochs are" if n > 1 else "the epoch is"
        history.stopped = f"{subject} done"
    except KeyboardInterrupt:
        if setup.ranks is not None:
            raise  # it ends all ranks
        training.interrupted = True
        done = counted(len(history), "epoch")
        history.stopped = f"interrupted after {done}; the trained parameters are kept"


def _stopped(training: Training, setup: TrainingSetup, epoch: Epoch) -> str:
    """Return why the training stops after an epoch, or an empty text."""
    stops = [bool(callback(training, epoch)) for callback in setup.callbacks]
    if any(stops):
        first = setup.callbacks[stops.index(True)]
        name = getattr(first, "__name__", type(first).__name__)
        return f"{name} stopped after epoch {epoch.number}"
    desired = setup.options.desired
    return "" if desired is None else desired.reached(epoch) or ""


def _bar(history: History, epochs: int) -> Any:
    """Return a progress bar on stderr."""
    from tqdm.auto import tqdm

    done = len(history)
    return tqdm(
        total=done + epochs, initial=done, unit=" epochs", dynamic_ncols=True
    )
