"""`fit_population`: trainings of many networks of one shape, side by side.

Members whose steps are the same program train in one launch (`MemberReplay`). They may
differ in parameters, seed, rates, samples, limits and the number of epochs. Those that
differ in more form groups. Where no kernel takes a group, its members train one after
the other as `Network.fit` does, and so does one whose training is not finite.
"""

from __future__ import annotations

import textwrap
import time
import zlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.checks import all_finite
from clnet.errors import WIDTH, DeviceError, OutOfMemoryError, counted
from clnet.nn.conversion import with_dropout
from clnet.nn.schedules import schedule as find_schedule
from clnet.opencl.discovery import device as find_device
from clnet.opencl.session import device_errors, session
from clnet.planning.training_planner import plan_training
from clnet.planning.tuning.search import Search
from clnet.runtime.data_parallel import device_of_rank
from clnet.runtime.ranks import cut, joined
from clnet.runtime.replay import RUN_SECONDS
from clnet.training.bound import program_of
from clnet.training.callbacks import EarlyStopping, progress_bar
from clnet.training.histories import Histories, MemberLog
from clnet.training.history import (
    INTERRUPTED,
    History,
    TrainingState,
    diverged_state,
    interrupted_after,
)
from clnet.training.member_bound import MemberLaunches, Rates
from clnet.training.members import members_of, samples_of
from clnet.training.passes import measures
from clnet.training.plans import without_backward
from clnet.training.setup import TrainingSetup, initial_state
from clnet.variants.members import members_variants
from clnet.variants.members.members import exact_factors

if TYPE_CHECKING:
    from clnet.ir.program import Program
    from clnet.nn.model import Model
    from clnet.nn.regularisation import Regularisation
    from clnet.opencl.device import Device
    from clnet.planning.training_planner import TrainingPlan
    from clnet.training.data_set import DataSet
    from clnet.training.fit_options import PopulationOptions
    from clnet.training.members import Member, Members, Samples
    from clnet.training.options import TrainingOptions

Array = NDArray[Any]

TOTALS_SHARE = 16  # of a device's memory is for totals that are not read yet
# Why a member has stopped.
RUNNING, ALL_DONE, REACHED, WAITED, DIVERGED = range(5)
PENALTY = 1e-3  # of a program's weights, whose networks have penalties of their own
GROWTH = 8  # of a launch's epochs, at most: the first ones also compile


def fit_population(
    network: Model, dropout: Array, start: Array, options: PopulationOptions
) -> tuple[Histories, Array]:
    """Train networks of parameters [networks, size]; return histories and parameters.

    Labels set the classes of `network`, whose layers, but for dropout [networks,
    layers], are those of all.
    """
    if options.comm is None:
        return _fit(network, dropout, start, options, slice(None))
    with joined(options.comm, "Population.fit") as ranks:
        assert ranks is not None
        ranks.check_alike({
            "networks": len(start), "parameters of checksum": zlib.crc32(start.data),
        })
        part = cut(len(start), ranks.size)[ranks.rank]

        def trained() -> tuple[list[History], Array]:
            options.check()
            if part.start == part.stop:
                return [], start[part]
            device: Any = device_of_rank(ranks.local, options.device)
            histories, parameters = _fit(network, dropout, start, replace(
                options, device=device,
                progress=options.progress if ranks.first else False,
            ), part)
            return list(histories), parameters

        histories, parameters = ranks.together(trained)
        every = list(chain.from_iterable(ranks.gathered(histories)))
        return Histories(len(every), every.__getitem__), ranks.stacked(parameters)


def _fit(
    network: Model, dropout: Array, start: Array, options: PopulationOptions,
    part: slice,
) -> tuple[Histories, Array]:
    """Train some networks; return their histories and parameters."""
    from clnet.training.fit import train  # for few populations

    groups, members, samples = _groups(network, dropout, options, part)
    start, device = start[part], groups[0].device
    position = np.full(len(members), -1)  # of a member in its group
    group_of = np.zeros(len(members), int)
    interrupted = False
    trained: Array | None = None
    whole = len(groups) == 1
    total = int(members.each(lambda one: one.epochs).sum())
    with progress_bar(total, "epochs", options.progress) as bar:
        for number, group in enumerate(groups):
            numbers = group.numbers
            group_of[numbers] = number
            if group.refusal is None and not interrupted:
                with device_errors(session(device)):
                    finite = group.fit(start if whole else start[numbers], bar)
                interrupted = group.interrupted
                if whole and finite.all():
                    trained = group.parameters
                else:
                    trained = start.copy() if trained is None else trained
                    trained[numbers[finite]] = group.parameters[finite]
                position[numbers[finite]] = np.flatnonzero(finite)
        trained = start.copy() if trained is None else trained
        others: dict[int, History] = {}
        for i in np.flatnonzero(position < 0).tolist():
            single = with_dropout(network, members.dropout[i])
            single.parameters = start[i]
            if interrupted:
                others[i] = History(initial_state(
                    single, members[i].options, members[i].seed
                ))
                others[i].stopped = interrupted_after(0)
                continue
            others[i] = train(_setup(single, members[i], samples, device, options.tune))
            trained[i] = single.parameters
            interrupted = others[i].stopped.startswith(INTERRUPTED)
            if bar is not None:
                bar.update(len(others[i]))
    return Histories(len(members), lambda i: (
        others[i] if i in others else groups[group_of[i]].history(int(position[i]))
    )), trained


def explain_population(
    network: Model, dropout: Array, options: PopulationOptions
) -> str:
    """Return how `fit_population` would train, and why."""
    return "\n\n".join(
        group.explanation if group.refusal is None else textwrap.fill(
            f"{counted(len(group.numbers), 'network')} one after the other: "
            f"{group.refusal}", WIDTH,
        )
        for group in _groups(network, dropout, options, slice(None))[0]
    )


def _groups(
    network: Model, dropout: Array, options: PopulationOptions, part: slice
) -> tuple[list[MemberGroup], Members, Samples]:
    """Return the groups of members that may train in one launch."""
    device = find_device(options.device)
    samples = samples_of(network, options)
    members = members_of(network, samples, dropout, options)
    if part != slice(None):
        members = members.part(np.arange(len(members))[part])
    network = with_dropout(network, members.dropout.max(axis=0))
    kinds = kinds_of(members.options, members.sizes(len(samples.training)))
    number_of = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    group_of = np.array([number_of[kind] for kind in kinds])[members.which]
    return [
        MemberGroup(
            network, members, np.flatnonzero(group_of == number), samples, device,
            options.tune, options.progress,
        )
        for number in number_of.values()
    ], members, samples


def _setup(
    network: Model, member: Member, samples: Samples, device: Device,
    tune: bool | None,
) -> TrainingSetup:
    """Return the setup of one member's training by itself."""
    def of(data: DataSet, rows: Array | None) -> DataSet:
        return data if rows is None else data.subset(rows)

    options, weight = member.options, member.weight
    data, validation = of(samples.training, member.rows), samples.validation
    if weight is not None:
        weight = weight if member.rows is None else weight[member.rows]
        data = replace(data, weight=weight[:, np.newaxis] / weight.max())
    if validation is not None:
        validation = of(validation, member.rest)
        validation = validation.balanced(len(validation))
    # Plans are of a network's program, which its dropout is part of.
    return TrainingSetup(
        network=network, options=replace(options, plans={}),
        data=data if options.shuffled else data.balanced(options.batch),
        validation=validation, rates=find_schedule(options.schedule, options.epochs),
        epochs=options.epochs, callbacks=[] if samples.patience is None else [
            EarlyStopping(patience=samples.patience)
        ],
        state=initial_state(network, options, member.seed), devices=(device,),
        classes=network.classes, columns=network.columns, tune=tune,
    )


def kinds_of(options: Sequence[TrainingOptions], sizes: Sequence[int]) -> list[Any]:
    """Return what the members of one launch have in common: a key of each options.

    `sizes` are the samples of a training by each.
    """
    penalises = any(one.regularisation.penalises for one in options)

    def kind(one: TrainingOptions, n: int) -> Any:
        rule = one.rule
        if hasattr(rule, "learning_rate"):
            rule = replace(rule, learning_rate=0.0)  # type: ignore[call-arg]
        return (
            rule, _shared(one.regularisation, penalises), one.loss.name, one.precision,
            one.shuffled, None if one.batch == n else one.batch,
        )

    return [kind(one, n) for one, n in zip(options, sizes, strict=True)]


def _shared(regularisation: Regularisation, penalises: bool) -> Regularisation:
    """Return the regularisation of a program whose networks have their own penalties.

    `penalises`: whether any of them has.
    """
    factor = PENALTY if penalises else 0.0
    return replace(regularisation, l1=factor, l2=factor)


class MemberGroup:
    """Members of one kind, and the program of their steps."""

    members: Members  # Of one kind
    numbers: Array  # Of these among all
    device: Device  # Where they train
    launches: MemberLaunches  # Of the steps, where there is no refusal
    parameters: Array  # Those that `fit` has trained
    explanation: str  # Of the plan, where there is no refusal

    def __init__(
        self, network: Model, members: Members, numbers: Array, samples: Samples,
        device: Device, tune: bool | None = None, progress: bool | None = False,
    ) -> None:
        if len(numbers) < len(members):
            members = members.part(numbers)
        self.numbers = numbers
        self._network, self.members, self._samples = network, members, samples
        self.device, self._tune, self._progress = device, tune, progress
        self.interrupted: bool = False
        self.refusal: str | None = None
        first, data = members.options[0], samples.training
        batch = max(one.batch for one in members.options)
        subsets, weighted = members.rows is not None, members.weights is not None
        gathers = subsets or weighted or batch < len(data)
        penalises = any(one.regularisation.penalises for one in members.options)
        self._program = program_of(
            network, first.loss, first.rule, first.precision,
            samples=len(data) if gathers else None, shuffled=first.shuffled,
            weighted=weighted,
            regularisation=_shared(first.regularisation, penalises),
        )
        same_order = not first.shuffled or len(set(members.seeds.tolist())) == 1
        if not all(one.predictable for one in members.options):
            self.refusal = "a schedule reads the training"
            return
        try:
            plans = [self._plan(self._program, batch, data, subsets, same_order)]
            if samples.validation is not None:
                plans.append(self._validation_plan(samples.validation))
        except OutOfMemoryError:
            raise
        except DeviceError as error:
            self.refusal = str(error)
            return
        self.launches = MemberLaunches(
            network, members, samples, device, self._program,
            *(one.steps[0] for one in plans),
        )
        self.explanation = plans[0].explain()

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
        with Search(progress=self._progress) as search:
            if not self._tune:
                search.runs = epochs * -(-len(data) // batch)
            return plan_training(
                self._network, program, self.device, batch, tune=self._tune,
                variants=variants, search=search,
            )

    def fit(self, start: Array, bar: Any = None) -> Array:
        """Train all members; return which ones are finite [members].

        `start` are the initial parameters [members, size].
        """
        count = len(start)
        members = self.members
        bound = self.launches.bound(start)
        train_state, replay = bound.train_state, bound.replay
        validation = self.launches.validation_replay(train_state)
        rates = Rates(members)
        patience = self._samples.patience
        most = members.each(lambda one: one.epochs)
        self._start = start
        self._log = MemberLog(count, self.device.global_memory // TOTALS_SHARE)
        self._best = best = _Best(start if patience is None else start.copy())
        self._targets = [
            replay.samples, replay.samples if validation is None else validation.samples
        ]
        self._done = done = np.zeros(count, int)
        self._stopped = np.full(count, RUNNING)
        active = np.arange(count)
        try:
            while active.size:
                before = done[active]
                left = int((most[active] - before).min())
                epochs = min(bound.epochs, replay.epochs, left)
                schedule = rates.schedule(active, before, epochs)
                begin = time.perf_counter()
                launch = replay.run_members(active, before, *schedule)
                seconds = time.perf_counter() - begin
                done[active] += launch.ran
                last = self.measures(launch.last, replay.samples[active])
                stopped = np.where(done[active] == most[active], ALL_DONE, RUNNING)
                stopped[self._reached(active, last)] = REACHED
                if validation is None:
                    self._log.add(active, launch, seconds / epochs)
                    fitting = int(epochs * RUN_SECONDS / seconds)
                    bound.epochs = max(1, min(GROWTH * bound.epochs, fitting))
                else:
                    totals = validation.run_members(active, before, schedule[0][:1, :2])
                    self._log.add_checked(
                        active, before, launch.last, totals.last, seconds
                    )
                    checks = self.measures(totals.last, validation.samples[active])
                    if patience is not None:
                        better = checks[:, 0] < best.loss[active]
                        if better.any():
                            numbers = active[better]
                            found = train_state.member_parameters()
                            best.take(
                                numbers, checks[better, 0], done[numbers],
                                found[numbers],
                            )
                        waited = done[active] - best.epoch[active]
                        stopped[waited >= patience] = WAITED
                stopped[~np.isfinite(last[:, :2]).all(axis=1)] = DIVERGED
                self._stopped[active] = stopped
                if bar is not None:
                    bar.update(int(launch.ran.sum()))
                active = active[stopped == RUNNING]
        except KeyboardInterrupt:
            self.interrupted = True
        self.parameters = train_state.member_parameters()
        self._states = train_state.member_states()
        if bound.keeps and not self.interrupted:
            self.launches.keep(bound)
        if patience is not None:
            best.write()
            improved = best.loss < np.inf
            self.parameters[improved] = best.parameters[improved]
        finite = np.isfinite(self.parameters).all(axis=1)
        return np.asarray(finite & (self._stopped != DIVERGED))

    def _reached(self, active: Array, last: Array) -> Array:
        """Return which members [active] have their desired error, by measures."""
        found = np.zeros(len(active), bool)
        which = self.members.which[active]
        for number, options in enumerate(self.members.options):
            if options.desired is not None:
                own = which == number
                found[own] = options.desired.reached_by(last[own])
        return found

    def history(self, number: int) -> History:
        """Return the history of one member."""
        member, epochs = self.members[number], int(self._done[number])
        options, start = member.options, self._start[number]
        history = History(TrainingState(
            options.rule_text, 0, 0, member.seed, start.copy(),
            options.rule.initial_state(start.size, start.dtype.name),
            self._network.formats,
        ))
        self._log.fill(history, number, epochs, np.array([
            [int(samples[number]), self._network.n_out] for samples in self._targets
        ]))
        history.stopped = self._reason(number, history)
        if self._samples.patience is not None and self._best.loss[number] < np.inf:
            history.best_epoch = int(self._best.epoch[number])
            history.stopped += (
                f"; epoch {history.best_epoch} was the best by validation_loss, and "
                "its parameters are restored"
            )
        history.tell_validation()
        samples = self._samples.training if member.rows is None else member.rows
        history.state = replace(
            history.state, epoch=epochs,
            count=epochs * -(-len(samples) // member.options.batch),
            parameters=self.parameters[number].copy(),
            values=self._states.of(number),
        )
        if not all_finite(history.state.values):
            history.diverged, history.stopped = True, diverged_state(epochs)
        history.plan = self.explanation
        return history

    def _reason(self, number: int, history: History) -> str:
        """Return why a member has stopped."""
        epochs, code = len(history), self._stopped[number]
        if code == RUNNING:
            return interrupted_after(epochs)
        if code == WAITED:
            return f"EarlyStopping stopped after epoch {epochs}"
        if code == REACHED:
            desired = self.members[number].options.desired
            assert desired is not None
            return str(desired.reached(history[-1]))
        subject = f"all {epochs} epochs are" if epochs > 1 else "the epoch is"
        return f"{subject} done"

    def _validation_plan(self, samples: DataSet) -> TrainingPlan:
        """Return the plan of the validation, as `_plan` does."""
        lists, first = self.members.rests, self.members.options[0]
        batch = len(samples) if lists is None else max(
            len(samples) if rows is None else len(rows) for rows in lists
        )
        program = without_backward(program_of(
            self._network, first.loss, None, first.precision, dropout=False,
            samples=None if lists is None and not samples.weighted else len(samples),
            weighted=samples.weighted,
        ))
        return self._plan(
            program, batch, samples, lists is not None, lists is None
        )

    def measures(self, totals: Array, samples: Array) -> Array:
        """Return the `Measures` of an epoch of each member [active, 3]."""
        found = measures(totals, 1, 1)
        found[:, :2] /= samples[:, np.newaxis]
        found[:, 1] /= self._network.n_out
        return found


class _Best:
    """The best epoch of each member, by the loss of its validation."""

    def __init__(self, parameters: Array) -> None:
        self.parameters = parameters
        self.loss = np.full(len(parameters), np.inf)
        self.epoch = np.zeros(len(parameters), int)
        none = np.zeros(0, int)
        self._last = none, self.loss[none], self.epoch[none], parameters[none]

    def take(
        self, members: Array, loss: Array, epoch: Array, parameters: Array
    ) -> None:
        """Take an epoch of some members, which is their best."""
        self._last = members, loss, epoch, parameters
        self.write()

    def write(self) -> None:
        """Write the last ones that were taken, again after an interrupt amid."""
        members, *found = self._last
        for one, values in zip(
            (self.loss, self.epoch, self.parameters), found, strict=True
        ):
            one[members] = values
