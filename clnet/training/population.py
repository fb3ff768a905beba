"""`fit_members`: trainings of many networks of one shape, side by side.

Members whose steps are the same program train in one launch (`MemberReplay`). They may
differ in parameters, seed, rates, samples, limits and the number of epochs. Those that
differ in more form groups. Where no kernel takes a group, its members train one after
the other as `Network.fit` does, and so does one whose training is not finite.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.errors import counted
from clnet.nn.random import keys
from clnet.nn.schedules import schedule as find_schedule
from clnet.opencl.launch import EPOCH
from clnet.opencl.session import device_errors, session
from clnet.runtime.binding import Step
from clnet.runtime.member_replay import MemberReplay
from clnet.runtime.replay import RUN_SECONDS
from clnet.runtime.train_state import TrainState
from clnet.training.bound import program_of
from clnet.training.history import (
    INTERRUPTED,
    History,
    TrainingState,
    interrupted_after,
)
from clnet.training.passes import LIMIT_MARGIN, measures
from clnet.training.plans import without_backward
from clnet.variants.members.group_members import GroupMembers
from clnet.variants.members.members import TrainMembers
from clnet.variants.training.whole_step import accepted_step

if TYPE_CHECKING:
    from clnet.ir.ops import Program
    from clnet.nn.model import Model
    from clnet.opencl.device import Device
    from clnet.training.data_set import DataSet
    from clnet.training.members import Member, Samples

Array = NDArray[Any]

MAX_EPOCHS = 1 << 10  # of a launch
GROWTH = 8  # of a launch's epochs, at most: the first ones also compile


def fit_members(
    network: Model, parameters: Array, members: Sequence[Member], samples: Samples,
    device: Device, alone: Callable[[int], History], report: Callable[[int], object],
) -> list[History]:
    """Train all members, and replace their parameters.

    Parameters
    ----------
    network : Model
        The shape of all.
    parameters : ndarray, shape [members, size]
        Initial values, replaced by the trained ones.
    members : sequence of Member
        Their trainings.
    samples : Samples
        Their data.
    device : Device
        Where they train.
    alone : callable
        Trains one member by `Network.fit`, and replaces its parameters.
    report : callable
        Called with numbers of epochs that are done.
    """
    groups: dict[Any, list[int]] = {}
    for number, one in enumerate(members):
        groups.setdefault(_kind(one, len(samples.training)), []).append(number)
    found: dict[int, History] = {}
    interrupted = False
    for numbers in groups.values():
        group = _Group(network, [members[i] for i in numbers], samples, device)
        if group.refusal is None and not interrupted:
            with device_errors(session(device)):
                trained = group.fit(parameters[numbers], report)
            interrupted = group.interrupted
            for number, (history, values) in zip(numbers, trained, strict=True):
                if history is not None:
                    found[number], parameters[number] = history, values
    for number in range(len(members)):
        if number not in found and not interrupted:
            found[number] = alone(number)
            interrupted = found[number].stopped.startswith(INTERRUPTED)
    untrained = [i for i in range(len(members)) if i not in found]
    for number, history in zip(
        untrained,
        _histories(network, [members[i] for i in untrained], parameters[untrained]),
        strict=True,
    ):
        found[number] = history
        history.stopped = interrupted_after(0)
    return [found[i] for i in range(len(members))]


def _histories(
    network: Model, members: Sequence[Member], parameters: Array
) -> list[History]:
    """Return histories of no epoch yet; `parameters` [members, size] are initial."""
    found = []
    for one, row in zip(members, parameters, strict=True):
        options = one.options
        state = options.rule.initial_state(row.size, row.dtype.name)
        found.append(History(TrainingState(
            options.rule_text, 0, 0, one.seed, row.copy(), state, network.formats
        )))
    return found


def _kind(member: Member, samples: int) -> Any:
    """Return what the members of one launch have in common."""
    options = member.options
    rule = options.rule
    if hasattr(rule, "learning_rate"):
        rule = replace(rule, learning_rate=0.0)  # type: ignore[call-arg]
    n = samples if member.rows is None else len(member.rows)
    return (
        rule, options.regularisation, options.loss.name, options.precision,
        options.shuffled, None if options.batch == n else options.batch,
    )


def members_variant(
    device: Device, members: int, subsets: bool
) -> TrainMembers | GroupMembers:
    """Return the variant for a device, without a measurement.

    Parameters
    ----------
    device : Device
        Where the members train.
    members : int
        Their number.
    subsets : bool
        Whether one may train on some of the data set's rows.
    """
    if device.type == "cpu":
        return TrainMembers(min(device.compute_units, members), subsets)
    return GroupMembers(members, subsets)


class _Group:
    """Members of one kind, and the program of their steps."""

    def __init__(
        self, network: Model, members: list[Member], samples: Samples, device: Device
    ) -> None:
        self._network, self._members, self._samples = network, members, samples
        self._device = device
        self.interrupted = False  # by Ctrl-C
        first, data = members[0].options, samples.training
        batch = max(one.options.batch for one in members)
        self._variant = members_variant(
            device, len(members), any(one.rows is not None for one in members)
        )
        gathers = self._variant.subsets or batch < len(data)
        self._program = program_of(
            network, first.loss, first.rule, first.precision,
            samples=len(data) if gathers else None, shuffled=first.shuffled,
            weighted=False, regularisation=first.regularisation,
        )
        self._step, self.refusal = self._step_of(self._program, batch, self._variant)
        weighted = samples.validation is not None and samples.validation.weighted
        if weighted or any(one.weight is not None for one in members):
            self.refusal = "it takes samples without weights"
        if not all(one.options.predictable for one in members):
            self.refusal = "a schedule reads the training"

    def _step_of(
        self, program: Program, batch: int, variant: TrainMembers | GroupMembers
    ) -> tuple[Step, str | None]:
        """Return the launch of a program, or its span alone and why there is none."""
        span = program.span(0, len(program.ops), batch)
        refusal = variant.refuse(span, self._device)
        configs = () if refusal else variant.space(span, self._device)
        return Step(span, variant, next(iter(configs), {}), self._device), refusal

    def fit(
        self, start: Array, report: Callable[[int], object]
    ) -> list[tuple[History | None, Array]]:
        """Return the history and parameters of each; None: one is not finite.

        `start` are the initial parameters [members, size].
        """
        count, size = start.shape
        place, options = session(self._device), [one.options for one in self._members]
        state = options[0].rule.initial_state(size, start.dtype.name)
        train_state = TrainState(
            place, start.reshape(-1),
            np.tile(state, (count, 1)).reshape(len(state), count * size),
        )
        replay = self._training_replay(train_state)
        validation = self._validation_replay(train_state)
        histories = _histories(self._network, self._members, start)
        most = np.array([one.epochs for one in options])
        rates = self._rates(int(most.max()))
        stoppable = np.array([
            self._samples.patience is not None or one.desired is not None
            for one in options
        ])
        best = _Best(start.copy())
        active, per_launch = np.arange(count), 1
        done = np.zeros(count, int)
        try:
            while active.size:
                left = int((most - done)[active].min())
                epochs = min(per_launch, replay.epochs, left)
                schedule = self._schedule(active, rates, done[active], epochs)
                begin = time.perf_counter()
                totals, ran = replay.run_members(active, done[active], schedule)
                seconds = time.perf_counter() - begin
                rows = self._measures(totals, replay.samples[active])
                checks: Array | None = None
                if validation is not None:
                    checked, _ = validation.run_members(
                        active, done[active], schedule[:, :2]
                    )
                    checks = self._measures(checked, validation.samples[active])
                    better = best.improved(active, checks[:, 0, 0], done[active] + 1)
                    if self._samples.patience is not None and better.size:
                        best.parameters[better] = train_state.values()[0].reshape(
                            count, size
                        )[better]
                else:
                    growth = min(GROWTH, RUN_SECONDS / seconds)
                    per_launch = max(1, int(per_launch * growth))
                done[active] += ran
                finite = np.isfinite(rows[:, epochs - 1]).all(axis=1)
                may_stop = (
                    stoppable[active] | (done == most)[active] | (ran < epochs)
                    | ~finite
                )
                stays = np.ones(active.size, bool)
                for at, i in enumerate(active.tolist()):
                    history = histories[i]
                    history.epochs.add(
                        rows[at, : ran[at]], None if checks is None else checks[at],
                        seconds / epochs,
                    )
                    if may_stop[at]:
                        waited = len(history) - int(best.epoch[i])
                        history.stopped = self._stopped(i, history, waited)
                        stays[at] = not history.stopped
                report(int(ran.sum()))
                active = active[stays]
        except KeyboardInterrupt:
            self.interrupted = True
            for i in active.tolist():
                histories[i].stopped = interrupted_after(len(histories[i]))
        values, states = train_state.values()
        parameters = values.reshape(count, size)
        states = states.reshape(count, len(state), size)
        return [
            (self._ended(i, one, parameters[i], states[i], best), parameters[i])
            for i, one in enumerate(histories)
        ]

    def _stopped(self, number: int, history: History, waited: int) -> str:
        """Return why a member stops after its last epoch, or an empty text.

        `waited` are the epochs since the best one.
        """
        options, last, patience = (
            self._members[number].options, history[-1], self._samples.patience
        )
        if not last.training.finite:
            history.diverged = True
            return "not finite"
        if patience is not None and waited >= patience:
            return f"EarlyStopping stopped after epoch {last.number}"
        reached = options.desired and options.desired.reached(last)
        if reached:
            return reached
        if last.number < options.epochs:
            return ""
        subject = f"all {last.number} epochs are" if last.number > 1 else "the epoch is"
        return f"{subject} done"

    def _ended(
        self, number: int, history: History, parameters: Array, values: Array,
        best: _Best,
    ) -> History | None:
        """Complete a history, and set the parameters to those of the best epoch."""
        if self._samples.patience is not None and best.loss[number] < np.inf:
            parameters[...] = best.parameters[number]
            history.best_epoch = int(best.epoch[number])
            history.stopped += (
                f"; epoch {history.best_epoch} was the best by validation_loss, and "
                "its parameters are restored"
            )
        if history.diverged or not np.isfinite(parameters).all():
            return None
        member, epochs = self._members[number], len(history)
        samples = self._samples.training if member.rows is None else member.rows
        history.state = replace(
            history.state, epoch=epochs,
            count=epochs * -(-len(samples) // member.options.batch),
            parameters=parameters.copy(), values=values.copy(),
        )
        history.plan = (
            f"{self._variant.name} of {self._device.name}: "
            f"{counted(len(self._members), 'network')} together"
        )
        return history

    def _training_replay(self, train_state: TrainState) -> MemberReplay:
        """Return the launches of steps, which end at the members' limits."""
        members, samples = self._members, self._samples.training
        replay = self._replay(
            self._step, train_state, [one.rows for one in members], samples,
            min(MAX_EPOCHS, max(one.options.epochs for one in members)),
        )
        limits = np.array([
            (0.0, 0.0) if one.options.desired is None else
            one.options.desired.limits(n * self._network.n_out)
            for one, n in zip(members, replay.samples.tolist(), strict=True)
        ]) * (1 + LIMIT_MARGIN)
        replay.set_members(
            seed=np.array([one.seed & 0xFFFFFFFF for one in members], np.uint32),
            squares_limit=limits[:, 0], fails_limit=limits[:, 1],
        )
        return replay

    def _validation_replay(self, train_state: TrainState) -> MemberReplay | None:
        """Return the launches that measure the validation, if there is one."""
        samples, first = self._samples.validation, self._members[0].options
        if samples is None:
            return None
        lists = [one.rest for one in self._members]
        subsets = any(rows is not None for rows in lists)
        batch = max(len(samples) if rows is None else len(rows) for rows in lists)
        program = without_backward(program_of(
            self._network, first.loss, None, first.precision, dropout=False,
            samples=len(samples) if subsets else None, weighted=False,
        ))
        step, _ = self._step_of(
            program, batch, replace(self._variant, subsets=subsets)
        )
        return self._replay(step, train_state, lists, samples, 1)

    def _replay(
        self, step: Step, train_state: TrainState, subsets: list[Array | None],
        samples: DataSet, epochs: int,
    ) -> MemberReplay:
        replay = MemberReplay(
            session(self._device), step, self._network.layout, train_state, subsets,
            len(samples), epochs,
        )
        inputs = accepted_step(step.span).data
        for value, array in zip(inputs, samples.arrays, strict=True):
            replay.write(value, array)
        return replay

    def _rates(self, epochs: int) -> Array:
        """Return the learning rate of each member and epoch [members, epochs]."""
        found = np.empty((len(self._members), epochs))
        for row, member in zip(found, self._members, strict=True):
            options = member.options
            factor = find_schedule(options.schedule, options.epochs)
            row[:] = options.rule.rate
            if options.schedule is not None:
                row[: options.epochs] *= [factor(i) for i in range(options.epochs)]
        return found

    def _schedule(
        self, active: Array, rates: Array, done: Array, epochs: int
    ) -> Array:
        """Return order and rate of the epochs after those done, and a row of zeros.

        They are of shape [active, epochs + 1].
        """
        found = np.zeros((active.size, epochs + 1), EPOCH)
        columns = done[:, np.newaxis] + np.arange(epochs)
        found["rate"][:, :epochs] = rates[active[:, np.newaxis], columns]
        if self._members[0].options.shuffled:
            seeds = [self._members[i].seed for i in active.tolist()]
            starts = list(zip(seeds, done.tolist(), strict=True))
            known = {start: keys(*start, epochs) for start in set(starts)}
            found["key"][:, :epochs] = [known[start] for start in starts]
        return found

    def _measures(self, totals: Array, samples: Array) -> Array:
        """Return the `Measures` of each member and epoch [active, epochs, 3]."""
        found = measures(totals.reshape(-1, totals.shape[-1]), 1, 1)
        found = found.reshape(*totals.shape[:2], -1)
        found[..., :2] /= samples[:, np.newaxis, np.newaxis]
        found[..., 1] /= self._network.n_out
        return found


class _Best:
    """The best epoch of each member, by the loss of its validation."""

    def __init__(self, parameters: Array) -> None:
        self.parameters = parameters
        self.loss = np.full(len(parameters), np.inf)
        self.epoch = np.zeros(len(parameters), int)

    def improved(self, members: Array, loss: Array, epoch: Array) -> Array:
        """Note the losses of an epoch of each member; return those it is the best of.

        All arrays are of shape [active].
        """
        better = loss < self.loss[members]
        found: Array = members[better]
        self.loss[found], self.epoch[found] = loss[better], epoch[better]
        return found
