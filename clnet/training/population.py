"""`fit_population`: trainings of many networks of one shape, side by side.

Networks of one kind train in one launch (`MemberTraining`). Where no kernel takes a
kind, its networks train one after the other as `Network.fit` does, and so does one
whose training is not finite. Ranks and devices train a share of the networks each.
"""

from __future__ import annotations

import textwrap
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.errors import WIDTH, counted
from clnet.nn.conversion import with_dropout
from clnet.nn.schedules import schedule as find_schedule
from clnet.opencl.discovery import device_list
from clnet.opencl.session import device_errors, session
from clnet.runtime.data_parallel import device_of_rank
from clnet.runtime.ranks import cut, joined
from clnet.training.callbacks import EarlyStopping, progress_bar
from clnet.training.data_set import DataSet
from clnet.training.histories import Histories
from clnet.training.history import INTERRUPTED, History, interrupted_after
from clnet.training.members import members_of, samples_of
from clnet.training.setup import TrainingSetup, initial_state
from clnet.training.streaming import StreamedSet

if TYPE_CHECKING:
    from clnet.nn.model import Model
    from clnet.opencl.device import Device
    from clnet.training.fit_options import PopulationOptions
    from clnet.training.member_training import MemberTraining
    from clnet.training.members import Members, Samples
    from clnet.training.streaming import AnySet

Array = NDArray[Any]


def fit_population(
    network: Model, dropout: Array, start: Array, options: PopulationOptions
) -> tuple[Histories, Array]:
    """Train networks of parameters [networks, size]; return histories and parameters.

    Labels set the classes of `network`, whose layers, but for dropout [networks,
    layers], are those of all.
    """
    if options.comm is None:
        return _fit(network, dropout, start, options, slice(0, len(start)))
    with joined(options.comm, "Population.fit") as ranks:
        assert ranks is not None
        ranks.check_alike({
            "networks": len(start), "parameters of checksum": zlib.crc32(start.data),
        })
        share = cut(len(start), ranks.size)[ranks.rank]

        def trained() -> tuple[list[History], Array]:
            options.check()
            if share.start == share.stop:
                return [], start[share]
            device: Any = options.device
            if options.devices is None:
                device = device_of_rank(ranks.local, device)
            histories, parameters = _fit(network, dropout, start, replace(
                options, device=device,
                progress=options.progress if ranks.first else False,
            ), share)
            return list(histories), parameters

        own, parameters = ranks.together(trained)
        every = list(chain.from_iterable(ranks.gathered(own)))
        return Histories(len(every), every.__getitem__), ranks.stacked(parameters)


def _fit(
    network: Model, dropout: Array, start: Array, options: PopulationOptions,
    rows: slice,
) -> tuple[Histories, Array]:
    """Train some networks, a share on each device."""
    shares = _shares(network, dropout, options, rows)
    total = sum(int(share.members.each(lambda one: one.epochs).sum())
                for share in shares)
    with progress_bar(total, "epochs", options.progress) as bar:
        trainings = [
            _Training(share, start[share.rows], bar, options.tune) for share in shares
        ]
        if len(shares) == 1:
            trainings[0].run()
        else:
            halt = threading.Event()
            with ThreadPoolExecutor(len(shares)) as pool:
                runs = [pool.submit(training.run, halt) for training in trainings]
                try:
                    for run in runs:
                        run.result()
                except BaseException as error:
                    halt.set()
                    if not isinstance(error, KeyboardInterrupt):
                        raise
    owner = np.repeat(np.arange(len(shares)), [len(share.members) for share in shares])
    return Histories(len(owner), lambda i: (
        trainings[owner[i]].history(i - int(np.searchsorted(owner, owner[i])))
    )), (
        trainings[0].parameters if len(shares) == 1
        else np.concatenate([training.parameters for training in trainings])
    )


def explain_population(
    network: Model, dropout: Array, options: PopulationOptions
) -> str:
    """Return how `fit_population` would train, and why."""
    return "\n\n".join(
        group.explanation if group.refusal is None else textwrap.fill(
            f"{counted(len(group.members), 'network')} one after the other: "
            f"{group.refusal}", WIDTH,
        )
        for share in _shares(network, dropout, options, slice(0, len(dropout)))
        for group, _ in share.groups
    )


@dataclass
class _Share:
    """Networks that train on one device."""

    network: Model  # Whose layers, but for dropout, are those of all
    members: Members
    samples: Samples
    device: Device
    rows: slice  # The networks among all
    # Those that may train in one launch, and their numbers in the share
    groups: list[tuple[MemberTraining, Array]] = field(default_factory=list)

    def group(self, options: PopulationOptions) -> None:
        """Plan the launches of each kind."""
        from clnet.training.member_training import MemberTraining, kinds_of

        members = self.members
        widest = with_dropout(self.network, members.dropout.max(axis=0))
        kinds = kinds_of(members.options, members.sizes(len(self.samples.training)))
        number_of = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
        group_of = np.array([number_of[kind] for kind in kinds])[members.which]
        for number in number_of.values():
            numbers = np.flatnonzero(group_of == number)
            alike = members if len(number_of) == 1 else members.part(numbers)
            self.groups.append((MemberTraining(
                widest, alike, self.samples, self.device, options.tune, options.progress
            ), numbers))


def _shares(
    network: Model, dropout: Array, options: PopulationOptions, rows: slice
) -> list[_Share]:
    """Return the networks of each device, of some of all."""
    devices = device_list(
        options.device if options.devices is None else options.devices
    )
    samples = samples_of(network, options)
    members = members_of(network, samples, dropout, options)
    for data, epochs in (
        (samples.training, int(members.each(lambda one: one.epochs).sum())),
        (samples.validation, len(members)),
    ):
        if isinstance(data, StreamedSet):
            data.check(epochs, 1)  # a generator is read once, by one network
    numbers = np.arange(len(members))[rows]
    shares = []
    for device, part in zip(devices, cut(len(numbers), len(devices)), strict=True):
        own = numbers[part]
        if own.size:
            share = _Share(
                network, members if own.size == len(members) else members.part(own),
                samples, device, slice(int(own[0]), int(own[-1]) + 1),
            )
            share.group(options)
            shares.append(share)
    return shares


class _Training:
    """The training of the networks of one device."""

    def __init__(
        self, share: _Share, start: Array, bar: Any, tune: bool | None
    ) -> None:
        self._share, self._start, self._bar, self._tune = share, start, bar, tune
        # The group of each network, and its number there; -1: it trains by itself.
        self._group = np.zeros(len(start), int)
        self._position = np.full(len(start), -1)
        self._singles: dict[int, History] = {}
        self.parameters: Array = start

    def run(self, halt: threading.Event | None = None) -> None:
        """Train all networks; `halt` ends all devices' trainings as Ctrl-C does."""
        share, start, interrupted = self._share, self._start, False
        for index, (group, numbers) in enumerate(share.groups):
            self._group[numbers] = index
            if group.refusal is not None or interrupted:
                continue
            whole = len(share.groups) == 1
            with device_errors(session(share.device)):
                finite = group.fit(
                    start if whole else start[numbers], bar=self._bar, halt=halt
                )
            interrupted = group.interrupted
            if whole and finite.all():
                self.parameters = group.parameters
            else:
                if self.parameters is start:
                    self.parameters = start.copy()
                self.parameters[numbers[finite]] = group.parameters[finite]
            self._position[numbers[finite]] = np.flatnonzero(finite)
        for i in np.flatnonzero(self._position < 0).tolist():
            if self.parameters is start:
                self.parameters = start.copy()
            interrupted |= halt is not None and halt.is_set()
            interrupted = self._train_alone(i, interrupted)

    def _train_alone(self, i: int, interrupted: bool) -> bool:
        """Train a network by itself; return whether an interrupt ended it."""
        from clnet.training.fit import train  # for few populations

        share = self._share
        network = with_dropout(share.network, share.members.dropout[i])
        network.parameters = self._start[i]
        setup = _setup(
            network, share.members, i, share.samples, share.device, self._tune
        )
        if interrupted:
            history = self._singles[i] = History(setup.state)
            history.stopped = interrupted_after(0)
            return True
        history = self._singles[i] = train(setup)
        self.parameters[i] = network.parameters
        if self._bar is not None:
            self._bar.update(len(history))
        return history.stopped.startswith(INTERRUPTED)

    def history(self, i: int) -> History:
        """Return the history of one network."""
        if i in self._singles:
            return self._singles[i]
        training, _ = self._share.groups[int(self._group[i])]
        return training.history(int(self._position[i]))


def _setup(
    network: Model, members: Members, i: int, samples: Samples, device: Device,
    tune: bool | None,
) -> TrainingSetup:
    """Return the setup of one member's training by itself."""
    options = members.options[members.which[i]]
    data: AnySet = samples.training
    if isinstance(data, StreamedSet):
        data = data.balanced(options.batch)
        data.check_batch()
    else:
        rows = slice(None) if members.rows is None else members.rows[i]
        data = data if members.rows is None else data.subset(rows)
        if members.weights is not None:
            weight = members.weights[i][rows]
            data = replace(data, weight=weight[:, np.newaxis] / weight.max())
        if not options.shuffled:
            data = data.balanced(options.batch)
    validation = samples.validation
    if members.rests is not None:
        assert isinstance(validation, DataSet)
        validation = validation.subset(members.rests[i])
    return TrainingSetup(
        # Plans are of a network's program, which its dropout is part of.
        network=network, options=replace(options, plans={}), data=data,
        validation=validation, rates=find_schedule(options.schedule, options.epochs),
        epochs=options.epochs, callbacks=[] if samples.patience is None else [
            EarlyStopping(patience=samples.patience)
        ],
        state=initial_state(network, options, int(members.seeds[i])),
        devices=(device,), classes=network.classes, columns=network.columns, tune=tune,
    )
