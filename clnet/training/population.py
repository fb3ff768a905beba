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
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.errors import WIDTH, counted
from clnet.nn.conversion import with_dropout
from clnet.nn.copies import cut
from clnet.nn.schedules import schedule as find_schedule
from clnet.opencl.discovery import device_list
from clnet.opencl.session import device_errors, session
from clnet.runtime.ranks import joined
from clnet.training.callbacks import EarlyStopping, progress_bar
from clnet.training.data_set import DataSet
from clnet.training.histories import Histories
from clnet.training.history import INTERRUPTED, History, interrupted_after
from clnet.training.members import members_of, samples_of
from clnet.training.setup import TrainingSetup, initial_state, training_set
from clnet.training.streaming import StreamedSet

if TYPE_CHECKING:
    from clnet.nn.model import Model
    from clnet.opencl.device import Device
    from clnet.training.fit_options import PopulationOptions
    from clnet.training.members import Members, PopulationData
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
    from clnet.training.mpi import options_of_rank

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
            histories, parameters = _fit(
                network, dropout, start, options_of_rank(options, ranks), share
            )
            return list(histories), parameters

        histories, parameters = ranks.together(trained)
        every = list(chain.from_iterable(ranks.gathered(histories)))
        return Histories(len(every), every.__getitem__), ranks.stacked(parameters)


def _fit(
    network: Model, dropout: Array, start: Array, options: PopulationOptions,
    rows: slice,
) -> tuple[Histories, Array]:
    """Train some networks, a share on each device."""
    shares = _shares(network, dropout, options, rows)
    epochs = [share.members.each(lambda one: one.epochs).sum() for share in shares]
    with progress_bar(int(sum(epochs)), "epochs", options.progress) as bar:
        if len(shares) == 1:
            shares[0].fit(start[shares[0].rows], bar)
        else:
            _fit_by_devices(shares, start, bar)
    firsts = np.cumsum([0, *(len(share.members) for share in shares)])

    def history(i: int) -> History:
        number = int(np.searchsorted(firsts, i, "right")) - 1
        return shares[number].history(i - int(firsts[number]))

    return Histories(int(firsts[-1]), history), (
        shares[0].parameters if len(shares) == 1
        else np.concatenate([share.parameters for share in shares])
    )


def _fit_by_devices(shares: list[_Share], start: Array, bar: Any) -> None:
    """Train each share by a thread; Ctrl-C and errors end all."""
    halt = threading.Event()
    with ThreadPoolExecutor(len(shares)) as pool:
        runs = [pool.submit(one.fit, start[one.rows], bar, halt) for one in shares]
        try:
            for run in runs:
                run.result()
        except KeyboardInterrupt:
            halt.set()
        except BaseException:
            halt.set()
            raise


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
        for group in share.groups
    )


class _Share:
    """The networks that train on one device."""

    parameters: Array  # After `fit`

    def __init__(
        self, network: Model, members: Members, samples: PopulationData,
        device: Device, rows: slice, options: PopulationOptions,
    ) -> None:
        from clnet.training.member_training import MemberTraining, kinds_of

        self.members, self.rows = members, rows  # the networks, and which of all
        self._network, self._samples, self._device = network, samples, device
        self._tune = options.tune
        widest = with_dropout(network, members.dropout.max(axis=0))
        kinds = kinds_of(members.options, members.sizes(len(samples.training)))
        number_of = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
        # The launch of each network, and its number there; -1: it trains by itself.
        self._group = np.array([number_of[kind] for kind in kinds])[members.which]
        self._position = np.full(len(members), -1)
        self.groups = [
            MemberTraining(
                widest, members if len(number_of) == 1 else members.part(
                    np.flatnonzero(self._group == number)
                ), samples, device, options.tune, options.progress,
            )
            for number in number_of.values()
        ]
        self._singles: dict[int, History] = {}

    def fit(
        self, start: Array, bar: Any, halt: threading.Event | None = None
    ) -> None:
        """Train all networks; `halt` ends those of all devices as Ctrl-C does."""
        self.parameters, interrupted = start, False
        for number, group in enumerate(self.groups):
            if group.refusal is not None or interrupted:
                continue
            numbers = np.flatnonzero(self._group == number)
            whole = len(numbers) == len(start)
            with device_errors(session(self._device)):
                finite = group.fit(
                    start if whole else start[numbers], bar=bar, halt=halt
                )
            interrupted = group.interrupted
            if whole and finite.all():
                self.parameters = group.parameters
            else:
                self._own(start)[numbers[finite]] = group.parameters[finite]
            self._position[numbers[finite]] = np.flatnonzero(finite)
        for i in np.flatnonzero(self._position < 0).tolist():
            interrupted |= halt is not None and halt.is_set()
            network = with_dropout(self._network, self.members.dropout[i])
            network.parameters = start[i]
            setup = _setup(
                network, self.members, i, self._samples, self._device, self._tune
            )
            if interrupted:
                self._singles[i] = History(setup.state)
                self._singles[i].stopped = interrupted_after(0)
                continue
            from clnet.training.fit import train  # for few populations

            self._singles[i] = history = train(setup)
            self._own(start)[i] = network.parameters
            if bar is not None:
                bar.update(len(history))
            interrupted = history.stopped.startswith(INTERRUPTED)

    def _own(self, start: Array) -> Array:
        """Return parameters that may be written to, at first the initial ones."""
        if self.parameters is start:
            self.parameters = start.copy()
        return self.parameters

    def history(self, i: int) -> History:
        """Return the history of one network."""
        if i in self._singles:
            return self._singles[i]
        group = self.groups[int(self._group[i])]
        return group.history(int(self._position[i]))


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
            data.check(epochs)  # a generator is read once, by one network
    numbers = np.arange(len(members))[rows]
    shares = []
    for device, part in zip(devices, cut(len(numbers), len(devices)), strict=True):
        its = numbers[part]
        if its.size:
            shares.append(_Share(
                network, members if its.size == len(members) else members.part(its),
                samples, device, slice(int(its[0]), int(its[-1]) + 1), options,
            ))
    return shares


def _setup(
    network: Model, members: Members, i: int, samples: PopulationData,
    device: Device, tune: bool | None,
) -> TrainingSetup:
    """Return the setup of one member's training by itself."""
    options = members.options[members.which[i]]
    data: AnySet = samples.training
    if isinstance(data, DataSet):
        rows = slice(None) if members.rows is None else members.rows[i]
        data = data if members.rows is None else data.subset(rows)
        if members.weights is not None:
            weight = members.weights[i][rows]
            data = replace(data, weight=weight[:, np.newaxis] / weight.max())
    validation = samples.validation
    if members.rests is not None:
        assert isinstance(validation, DataSet)
        validation = validation.subset(members.rests[i])
    return TrainingSetup(
        # Plans are of a network's program, which its dropout is part of.
        network=network, options=replace(options, plans={}),
        data=training_set(data, options), validation=validation,
        rates=find_schedule(options.schedule, options.epochs),
        epochs=options.epochs, callbacks=[] if samples.patience is None else [
            EarlyStopping(patience=samples.patience)
        ],
        state=initial_state(network, options, int(members.seeds[i])),
        devices=(device,), classes=network.classes, columns=network.columns, tune=tune,
    )
