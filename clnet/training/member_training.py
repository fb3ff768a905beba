"""`MemberTraining`: many networks of one kind, trained by launches of all of them.

They may differ in parameters, seed, rates, samples, penalties, dropout, limits and the
number of epochs, for which a launch has tables; `kinds_of` tells what they share.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.checks import all_finite
from clnet.errors import DeviceError, OutOfMemoryError
from clnet.nn.random import keys
from clnet.nn.schedules import schedule as find_schedule
from clnet.opencl.launch import EPOCH
from clnet.opencl.session import KEPT_BYTES, session
from clnet.planning.training_planner import plan_training
from clnet.planning.tuning.budget import Budget
from clnet.runtime.member_replay import MAX_EPOCHS, MemberReplay
from clnet.runtime.replay import RUN_SECONDS
from clnet.runtime.train_state import TrainState
from clnet.training.data_set import DataSet
from clnet.training.histories import MemberLog
from clnet.training.history import (
    History,
    TrainingState,
    best_was,
    diverged_state,
    state_after,
)
from clnet.training.passes import measures
from clnet.training.programs import program_of, without_backward
from clnet.training.trainer import CALLED, DIVERGED, Segment, Trainer, reason
from clnet.variants.members import members_variants
from clnet.variants.members.members import exact_factors
from clnet.variants.training.whole_step import accepted_step

if TYPE_CHECKING:
    from clnet.ir.program import Program
    from clnet.nn.model import Model
    from clnet.nn.regularisation import Regularisation
    from clnet.opencl.device import Device
    from clnet.planning.training_planner import TrainingPlan
    from clnet.runtime.binding import PlanStep
    from clnet.training.members import Members, PopulationData
    from clnet.training.options import TrainingOptions

Array = NDArray[Any]

Callback = Callable[["MemberTraining", Array], Array]
"""Called after each epoch with the training and the numbers of the networks that it
trained [n], but for those that diverged; returns which of them stop [n]."""

TOTALS_SHARE = 16  # of a device's memory is for totals that are not read yet
KEPT_SHARE = 128  # of a device's memory is for launches that are kept
PENALTY = 1e-3  # of a program's weights, whose networks have penalties of their own
GROWTH = 8  # of a launch's epochs, at most: the first ones also compile


def kinds_of(options: Sequence[TrainingOptions], sizes: Sequence[int]) -> list[Any]:
    """Return what the members of one launch have in common: a key of each options.

    `sizes` are the samples of a training by each.
    """
    kinds: list[Any] = []
    for own, n in zip(options, sizes, strict=True):
        clips = own.regularisation.clip_norm, own.regularisation.clip_value
        constants = vars(own.rule).items()
        kinds.append((
            type(own.rule),
            *(value for name, value in constants if name != "learning_rate"),
            clips, own.loss.name, own.precision, own.shuffled,
            None if own.batch == n else own.batch,
        ))
    return kinds


def _shared(regularisation: Regularisation, penalises: bool) -> Regularisation:
    """Return the regularisation of a program whose networks have their own penalties.

    `penalises`: whether any of them has.
    """
    factor = PENALTY if penalises else 0.0
    return replace(regularisation, l1=factor, l2=factor)


@dataclass
class _Launches:
    """Launches of steps bound to memory, kept for a later training that is alike."""

    program: Program  # Of a step; held so that no other gets its id
    train_state: TrainState  # Parameters [members, size] and state
    replay: MemberReplay  # The launches
    keeps: bool  # Whether they are small enough to be kept, and of no rows of their own
    data: tuple[Array, ...]  # The inputs and targets on the device, where they are kept
    epochs: int = 1  # Of the next launch, by the time of the last one
    # The step and the launch that measure the last training's validation
    validation: tuple[PlanStep, MemberReplay] | None = None


class MemberTraining:
    """A training of many networks; where no kernel takes them, `refusal` says why."""

    refusal: str | None = None
    explanation: str = ""  # Of the plan
    interrupted: bool = False
    last: Array  # Measures of each member's last epoch [members, 3]
    checks: Array  # Those of its validation
    ahead = False  # no launch runs before the one before it is reported
    _best: BestEpochs | None = None

    def __init__(
        self, network: Model, members: Members, samples: PopulationData, device: Device,
        tune: bool | None = None, progress: bool | None = False,
    ) -> None:
        self.members: Members = members
        self.device: Device = device
        self._network, self._samples = network, samples
        self._tune, self._progress = tune, progress
        data, validation = samples.training, samples.validation
        if not isinstance(data, DataSet) or not isinstance(
            validation, DataSet | None
        ):
            self.refusal = "their samples are read by parts"
            return
        if not all(one.predictable for one in members.options):
            self.refusal = "a schedule reads the training"
            return
        try:
            plan = self._training_plan(data)
            self._step, self._validation_step = plan.steps[0], None
            self._program, self.explanation = plan.program, plan.explain()
            if validation is not None:
                self._validation_step = self._validation_plan(validation).steps[0]
        except OutOfMemoryError:
            raise
        except DeviceError as error:
            self.refusal = str(error)

    def _training_plan(self, data: DataSet) -> TrainingPlan:
        members = self.members
        first, batch = members.options[0], max(one.batch for one in members.options)
        subsets, weighted = members.rows is not None, members.weights is not None
        gathers = subsets or weighted or batch < len(data)
        penalises = any(one.regularisation.penalises for one in members.options)
        program = program_of(
            self._network, first.loss, first.rule, first.precision,
            samples=len(data) if gathers else None, shuffled=first.shuffled,
            weighted=weighted, regularisation=_shared(first.regularisation, penalises),
        )
        alike = not first.shuffled or len(set(members.seeds.tolist())) == 1
        return self._plan(program, batch, data, subsets, alike)

    def _validation_plan(self, data: DataSet) -> TrainingPlan:
        rests, first = self.members.rests, self.members.options[0]
        batch = len(data) if rests is None else max(map(len, rests))
        program = without_backward(program_of(
            self._network, first.loss, None, first.precision, dropout=False,
            samples=None if rests is None and not data.weighted else len(data),
            weighted=data.weighted,
        ))
        return self._plan(program, batch, data, rests is not None, rests is None)

    def _plan(
        self, program: Program, batch: int, data: DataSet, subsets: bool, alike: bool
    ) -> TrainingPlan:
        """Return plan of a program; `subsets`, `alike` as for `members_variants`."""
        exact = exact_factors(data.x, self.device)
        variants: list[Any] = [
            one.of_data(exact) for one in members_variants(
                self.device, len(self.members), len(data), subsets, alike
            )
        ]
        epochs = max(one.epochs for one in self.members.options)
        with Budget(progress=self._progress) as budget:
            if not self._tune:
                budget.runs = epochs * -(-len(data) // batch)
            return plan_training(
                self._network, program, self.device, batch, tune=self._tune,
                variants=variants, budget=budget,
            )

    def _key(self) -> tuple[Any, ...]:
        """Return the key of the launches of members that train alike."""
        step, checks = self._step, self._samples.validation
        return (
            id(self._program), step.span.batch, step.variant, *step.config.items(),
            len(self.members), len(self._samples.training), self._most_epochs,
            0 if checks is None else len(checks),
        )

    @property
    def _most_epochs(self) -> int:
        return min(MAX_EPOCHS, max(one.epochs for one in self.members.options))

    def _bind(self, start: Array) -> _Launches:
        """Return the launches of steps that begin at parameters [members, size]."""
        where, (count, size) = session(self.device), start.shape
        data, members = self._samples.training, self.members
        assert isinstance(data, DataSet)
        state = members.options[0].rule.initial_state(size, start.dtype.name)
        bound: _Launches | None = where.kept.pop(self._key(), None)
        if bound is not None:
            bound.train_state.reset(start.reshape(-1), state)
            if not all(map(_same, bound.data, (data.x, data.t))):
                _write(bound.replay, self._step, data)
                bound.data = data.x.copy(), data.t.copy()
        else:
            train_state = TrainState(where, start.reshape(-1), state, members=count)
            held = start.nbytes + train_state.state.size
            for samples in data, self._samples.validation:
                if isinstance(samples, DataSet):
                    held += sum(array.nbytes for array in samples.arrays)
            most = max(KEPT_BYTES, self.device.global_memory // KEPT_SHARE)
            keeps = members.rows is None and held <= most
            bound = _Launches(
                self._program, train_state,
                self._replay(
                    self._step, train_state, members.rows, data, self._most_epochs
                ),
                keeps, (data.x.copy(), data.t.copy()) if keeps else (),
            )
        self._fill_tables(bound.replay)
        return bound

    def _fill_tables(self, replay: MemberReplay) -> None:
        """Write what the members differ in."""
        members = self.members
        if members.dropout.any():
            replay.set_dropout(members.dropout)
        if members.weights is not None:
            replay.write_weights(members.balanced_weights())
        sizes = members.sizes(len(self._samples.training))
        limits = np.array([
            (0.0, 0.0) if one.desired is None else
            one.desired.limits(n * self._network.n_out)
            for one, n in zip(members.options, sizes, strict=True)
        ])[members.which]
        replay.set_members(
            seed=(members.seeds & 0xFFFFFFFF).astype(np.uint32),
            squares_limit=limits[:, 0], fails_limit=limits[:, 1],
            l1=members.each(lambda one: one.regularisation.l1),
            l2=members.each(lambda one: one.regularisation.l2),
        )

    def _validation_launch(self, bound: _Launches) -> MemberReplay | None:
        """Return the launch that measures the validation, if there is one."""
        data, step, rests = (
            self._samples.validation, self._validation_step, self.members.rests
        )
        if step is None:
            return None
        assert isinstance(data, DataSet)
        # A plan that is kept has the same step, whose program tells the samples.
        if rests is None and bound.validation and bound.validation[0] is step:
            replay = bound.validation[1]
            _write(replay, step, data)
        else:
            replay = self._replay(step, bound.train_state, rests, data, 1)
            bound.validation = step, replay
        if data.weight is not None:
            shape = len(self.members), len(data)
            replay.write_weights(np.broadcast_to(data.weight[:, 0], shape))
        return replay

    def _replay(
        self, step: PlanStep, train_state: TrainState, subsets: Sequence[Array] | None,
        data: DataSet, epochs: int,
    ) -> MemberReplay:
        replay = MemberReplay(
            session(self.device), step, self._network.layout, train_state,
            subsets or [None] * len(self.members), len(data), epochs,
        )
        _write(replay, step, data)
        return replay

    def fit(
        self, start: Array, callbacks: Sequence[Callback] = (), bar: Any = None,
        halt: threading.Event | None = None,
    ) -> Array:
        """Train all members; return which ones are finite [members].

        `start` are the initial parameters [members, size]. `halt` ends the training as
        Ctrl-C does.
        """
        members, bound = self.members, self._bind(start)
        if self._samples.patience is not None:
            self._best = BestEpochs(self._samples.patience, start)
            callbacks = *callbacks, self._best
        self._bound, self._train_state = bound, bound.train_state
        self._validation = self._validation_launch(bound)
        self._callbacks, self._bar = callbacks, bar
        self._halt = halt or threading.Event()
        # Callbacks and a validation look at each epoch.
        self.each_epoch: bool = bool(callbacks) or self._validation is not None
        self._rates = [
            (one.rule.rate, find_schedule(one.schedule, one.epochs))
            for one in members.options
        ]
        count = len(start)
        self._start, self._ended = start, False
        self._log = MemberLog(count, self.device.global_memory // TOTALS_SHARE)
        measured = self._validation or bound.replay
        self._sizes = bound.replay.samples, measured.samples
        self.last: Array = np.zeros((count, 3))
        self.checks: Array = np.zeros((count, 3))
        trainer = Trainer(
            self, self._report, members.each(lambda one: one.epochs),
            [one.desired for one in members.options], members.which,
        )
        self.codes: Array = trainer.codes
        try:
            trainer.run()
        except KeyboardInterrupt:
            self.interrupted = True
            self._halt.set()
        self._values = self.parameters
        self._ended, self._states = True, bound.train_state.member_states()
        if bound.keeps and not self.interrupted:
            session(self.device).kept[self._key()] = bound
        if self._best is not None:
            self._best.restore(self)
        finite = np.isfinite(self.parameters).all(axis=1)
        return np.asarray(finite & (self.codes != DIVERGED))

    # The loop ---------------------------------------------------------------------

    @property
    def done(self) -> Array:
        """The epochs of each member [members]."""
        return self._log.done

    def run(self, active: Array, left: Array) -> Segment:
        """Train the active members by one launch, and measure the validation."""
        if self._halt.is_set():
            raise KeyboardInterrupt
        bound, before, epochs = self._bound, self.done[active], 1
        if not self.each_epoch:
            epochs = min(bound.epochs, bound.replay.epochs, int(left.min()))
        schedule, plans = self._schedule(active, before, epochs)
        begin = time.perf_counter()
        launch = bound.replay.run_members(active, before, schedule, plans)
        seconds = time.perf_counter() - begin
        self.last[active] = last = self._measures(0, active, launch.last)
        checked = checks = None
        if self._validation is not None:
            validated = active, before, schedule[:1, :2]
            try:
                checked = self._validation.run_members(*validated)
            except KeyboardInterrupt:  # the epoch is trained: it is measured, and ends
                self._halt.set()
                checked = self._validation.run_members(*validated)
            self.checks[active] = held_out = self._measures(1, active, checked.last)
            checks = held_out[:, np.newaxis]
        elif not self.each_epoch:
            fitting = int(epochs * RUN_SECONDS / seconds)
            bound.epochs = max(1, min(GROWTH * bound.epochs, fitting))
        self._launch = launch, checked
        return Segment(launch.ran, last[:, np.newaxis], checks, seconds / epochs)

    def _report(self, active: Array, segment: Segment, codes: Array) -> None:
        """Log the last launch, and call all callbacks."""
        self._log.add(active, *self._launch, segment.seconds)
        finite = np.flatnonzero(codes != DIVERGED)
        for callback in self._callbacks if finite.size else ():
            codes[finite[callback(self, active[finite])]] = CALLED
        if self._bar is not None:
            self._bar.update(int(segment.ran.sum()))

    @property
    def parameters(self) -> Array:
        """Those of all networks [members, size]; in a training from the device."""
        return self._values if self._ended else self._train_state.member_parameters()

    def _schedule(
        self, active: Array, done: Array, epochs: int
    ) -> tuple[Array, Array]:
        """Return orders and rates of the epochs after those done.

        There is a row for members that differ, and the number [active] of each one's.
        """
        which, seeds = self.members.which, self.members.seeds
        shuffled = self.members.options[0].shuffled
        differing = [which[active], done, *([seeds[active]] if shuffled else [])]
        plans, number = np.zeros(len(active), np.int64), 1
        for column in differing:
            if (column != column[0]).any():
                values, inverse = np.unique(column, return_inverse=True)
                plans = plans * len(values) + inverse
                number *= len(values)
        first = np.zeros(1, int)
        if number > 1:
            _, first, plans = np.unique(plans, return_index=True, return_inverse=True)
        table = np.zeros((len(first), epochs + 1), EPOCH)
        rates: dict[tuple[int, int], list[float]] = {}
        orders: dict[tuple[int, int], Array] = {}
        for row, at in zip(table, first.tolist(), strict=True):
            begin, member = int(done[at]), active[at]
            key = int(which[member]), begin
            if key not in rates:
                rate, factor = self._rates[key[0]]
                rates[key] = [rate * factor(begin + i) for i in range(epochs)]
            row["rate"][:epochs] = rates[key]
            if shuffled:
                order = int(seeds[member]), begin
                if order not in orders:
                    orders[order] = keys(*order, epochs)
                row["key"][:epochs] = orders[order]
        return table, plans

    def _measures(self, data: int, active: Array, totals: Array) -> Array:
        """Return `Measures` [active, 3] of an epoch; `data` is 1 for validations."""
        return measures(totals, self._sizes[data][active], self._network.n_out)

    def history(self, number: int) -> History:
        """Return the history of one member."""
        members, best, epochs = self.members, self._best, int(self.done[number])
        options, start = members.options[members.which[number]], self._start[number]
        samples = (
            self._samples.training if members.rows is None else members.rows[number]
        )
        history = History(TrainingState(
            options.rule_text, 0, 0, int(members.seeds[number]), start,
            np.zeros((0, 0), start.dtype), self._network.formats,
        ))
        self._log.fill(history, number, np.array([
            [int(sizes[number]), self._network.n_out] for sizes in self._sizes
        ]))
        history.stopped = reason(
            self.codes[number], history, options.desired, "EarlyStopping"
        )
        if best is not None and best.loss[number] < np.inf:
            history.best_epoch = int(best.epoch[number])
            history.stopped += best_was(
                history.best_epoch, "validation_loss", restored=True
            )
        history.tell_validation()
        history.state = state_after(
            history.state, epochs, -(-len(samples) // options.batch),
            self.parameters[number].copy(), self._states.of(number),
        )
        if not all_finite(history.state.values):
            history.diverged, history.stopped = True, diverged_state(epochs)
        history.plan = self.explanation
        return history


class BestEpochs:
    """A callback of `MemberTraining`: `EarlyStopping` by the validation's loss."""

    def __init__(self, patience: int, start: Array) -> None:
        self._patience, self._parameters = patience, start.copy()
        self.loss: Array = np.full(len(start), np.inf)
        self.epoch: Array = np.zeros(len(start), int)
        self._taken: tuple[Array, ...] = np.zeros(0, int), *np.zeros((3, 0))

    def __call__(self, training: MemberTraining, active: Array) -> Array:
        """Take the best epochs; return which networks have none since `patience`."""
        loss = training.checks[active, 0]
        better = loss < self.loss[active]
        if better.any():
            numbers = active[better]
            self._taken = (
                numbers, loss[better], training.done[numbers],
                training.parameters[numbers],
            )
            self._take()
        waited: Array = training.done[active] - self.epoch[active] >= self._patience
        return waited

    def _take(self) -> None:
        numbers, loss, epoch, parameters = self._taken
        if len(numbers):
            self.loss[numbers], self.epoch[numbers] = loss, epoch
            self._parameters[numbers] = parameters

    def restore(self, training: MemberTraining) -> None:
        """Give the networks the parameters of their best epochs."""
        self._take()  # again: an interrupt may have come amid
        improved = self.loss < np.inf
        training.parameters[improved] = self._parameters[improved]


def _write(replay: MemberReplay, step: PlanStep, data: DataSet) -> None:
    x, t, *_ = accepted_step(step.span).data
    replay.write(x, data.x)
    replay.write(t, data.t)


def _same(values: Array, others: Array) -> bool:
    """Return whether two arrays of a dtype have the same bits."""
    return values.shape == others.shape and np.array_equal(
        values.view(np.uint8), np.ascontiguousarray(others).view(np.uint8)
    )
