"""Training: epochs and batches, stop rules, callbacks; all data stays on the device.

The data set goes to the device once; parameters, gradients and the optimiser's state
stay there for the whole of `fit`. The host reads one record an epoch.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.checks import check_count
from clnet.errors import ClnetWarning, counted
from clnet.ir.lowering import lower_training
from clnet.ir.ops import PRECISIONS, Program
from clnet.ir.training_ops import Tally
from clnet.nn.model import Model
from clnet.nn.optimisers import Optimiser
from clnet.nn.random import key
from clnet.opencl.device import Device
from clnet.opencl.discovery import device as find_device
from clnet.opencl.session import failed, session
from clnet.planning.format_planner import NetworkView
from clnet.planning.training_planner import plan_training
from clnet.planning.tuning.search import Search
from clnet.runtime.data_parallel import shares
from clnet.runtime.train_state import TrainState
from clnet.training.data_set import DataSet
from clnet.training.history import Epoch, History, Measures, TrainingState
from clnet.training.parallel import ParallelPass
from clnet.training.passes import AHEAD, Pass, measures
from clnet.training.setup import TrainingSetup, default_loss, rule_of

Array = NDArray[Any]

CHUNK = 8192  # samples of a validation set that are computed at once
# Epochs that are begun before the first of them is told take no longer than this: of
# longer ones the host's share is small, and all were in vain if a callback looks.
AHEAD_SECONDS = 2e-3


@dataclass(frozen=True)
class _Stretch:
    """Epochs that were begun together.

    Attributes
    ----------
    first : int
        Epochs done before.
    rates : list of float
        The learning rate of each.
    """

    first: int
    rates: list[float]


class Training:
    """A training under way: what callbacks see.

    Made by `fit`. Where it can, it begins epochs before those in front of them are
    told, so that the device need not wait for the host. Nobody sees that: who looks at
    the parameters, or stops, has all goes back to where the stretch began, and those up
    to there done again, which gives the same bits.

    Attributes
    ----------
    network : Model
        What is trained; its parameters are the new ones when the training is over.
    history : History
        The epochs so far.
    """

    def __init__(
        self, network: Model, setup: TrainingSetup, search: Search
    ) -> None:
        data, batch, state = setup.data, setup.batch, setup.state
        self.network = network
        self.history = History(state)
        self._sessions = [session(device) for device in setup.devices]
        self._shuffled = setup.shuffled
        self._state = state
        self._epoch = self._begun = state.epoch
        self._stretches = [_Stretch(state.epoch, [])] * 2  # as `TrainState` keeps
        self._quiet = 0 if setup.callbacks else AHEAD  # epochs since somebody looked
        self._goes_ahead = setup.foreseen and len(setup.devices) == 1
        self._samples = n = len(data)
        self._steps = -(-n // batch)

        def lowered(stored: Model) -> Program:
            return lower_training(
                stored, setup.loss, setup.rule, samples=n if batch < n else None,
                shuffled=setup.shuffled, weighted=data.weight is not None,
                regularisation=setup.regularisation,
            ).at(setup.precision)

        program = lowered(network)
        self._stored = network  # as it is trained: maybe in other formats
        self._training: Pass | ParallelPass
        if len(setup.devices) == 1:
            plan = plan_training(
                network, program, setup.devices[0], batch, lowered=lowered,
                search=search,
            )
            self._stored = plan.network
            self._train_state = self._started(state)
            self._training = Pass(self._sessions[0], plan, data, self._train_state[0])
            sharing = [1]
        else:
            self._train_state = self._started(state)
            self._training = ParallelPass(
                network, program, data, batch, setup.devices, self._train_state, search
            )
            sharing = self._training.shares
        self.history.plan = self.explain()
        self._validations = [] if setup.validation is None else list(
            self._validating(setup, setup.validation, sharing, search)
        )
        self._validation_samples = len(setup.validation or ())

    def _started(self, state: TrainingState) -> list[TrainState]:
        """Return a state on each device, in the layout that is trained."""
        stored = self._stored
        relayout = stored.relayout if isinstance(stored, NetworkView) else None
        return [
            TrainState(one, state.parameters, state.values, relayout)
            for one in self._sessions
        ]

    def _validating(
        self, setup: TrainingSetup, data: DataSet, sharing: Sequence[int],
        search: Search,
    ) -> Iterator[Pass]:
        """Yield the passes of devices over their shares of a validation set."""
        start = 0
        for number, n in enumerate(shares(len(data), sharing)):
            if n:
                size = min(n, CHUNK)
                program = lower_training(
                    self._stored, setup.loss, None, samples=n if size < n else None,
                    dropout=False,
                ).at(setup.precision)
                plan = plan_training(
                    self._stored, _without_backward(program), setup.devices[number],
                    size, search=search,
                )
                yield Pass(
                    self._sessions[number], plan, data.part(slice(start, start + n)),
                    self._train_state[number],
                )
            start += n

    @property
    def validates(self) -> bool:
        """Whether a validation set is measured after each epoch."""
        return bool(self._validations)

    @property
    def parameters(self) -> Array:
        """The flat buffer as it is now, read from the device; assign to replace it."""
        self._go_back()
        self._quiet = 0
        self._sessions[0].finish()
        return self._train_state[0].values()[0]

    @parameters.setter
    def parameters(self, values: Array) -> None:
        self._go_back()
        for train_state in self._train_state:
            train_state.replace(values)

    def explain(self) -> str:
        """Return how a step is computed, and why, as `Plan.explain` does."""
        return self._training.explain()

    def update_network(self) -> None:
        """Give the network the parameters as they are now."""
        self.network.parameters = self.parameters

    def epochs(self, count: int, rate: Callable[[int], float]) -> Iterator[Epoch]:
        """Train so many epochs, and yield each when it is done.

        Parameters
        ----------
        count : int
            How many at most.
        rate : callable
            Gives the learning rate of an epoch, counted from 0.
        """
        last, seconds = self._epoch + count, inf
        while self._epoch < last:
            first, together = self._epoch, 1
            if self._goes_ahead and self._train_state[0].keeps_states:
                together = min(
                    AHEAD, last - first, self._quiet, int(AHEAD_SECONDS / seconds)
                )
            rates = [rate(n) for n in range(first, first + max(1, together))]
            start = time.perf_counter()
            self._begin(rates)
            records = self._records(len(rates))
            whole = all(trained.finite for trained, _ in records)
            if not whole and self._training.recovered():
                self.history.plan = self.explain()
                self._restore(first)
                self._begun = first
                continue
            seconds = (time.perf_counter() - start) / len(rates)
            for trained, validation in records:
                self._epoch += 1
                self._quiet += 1
                done = Epoch(self._epoch, trained, validation, seconds)
                self.history.epochs.append(done)
                yield done
                if self._begun == self._epoch:
                    break  # the last of them, or one that somebody looked at

    def _begin(self, rates: list[float]) -> None:
        """Enqueue epochs, one for each rate."""
        self._train_state[0].keep(whole=len(rates) > 1 or self._training.may_fail)
        self._stretches = [_Stretch(self._epoch, rates), self._stretches[0]]
        self._begun = self._epoch + len(rates)
        self._enqueue(self._epoch, rates, self._validations)

    def _enqueue(
        self, first: int, rates: list[float], validations: Sequence[Pass] = ()
    ) -> None:
        """Enqueue epochs, one for each rate, in one run if nothing is between them."""
        seed, alike = self._state.seed, len(set(rates)) == 1
        if alike and not self._shuffled and not validations:
            together = len(rates) if self._training.does_epochs else 1
        else:
            together = 1
        for place in range(0, len(rates), together):
            epoch = first + place
            words = key(seed, epoch) if self._shuffled else ()
            self._training.run(
                words, rates[place], seed, self._count(epoch), place, together
            )
            for one in validations:
                one.run(place=place)

    def _count(self, epoch: int) -> int:
        """Return the steps done when so many epochs are."""
        return self._state.count + (epoch - self._state.epoch) * self._steps

    def _records(self, count: int) -> list[tuple[Measures, Measures | None]]:
        """Wait for the epochs that were begun, and return what they gave."""
        n_out = self.network.n_out
        found = measures(self._training.totals(count), self._samples, n_out)
        if not self._validations:
            return [(trained, None) for trained in found]
        totals = np.sum([one.totals(count) for one in self._validations], axis=0)
        others = measures(totals, self._validation_samples, n_out)
        return list(zip(found, others, strict=True))

    def _go_back(self) -> None:
        """Take back the epochs that were begun and not yet told."""
        if self._begun > self._epoch and len(self._stretches[0].rates) > 1:
            self._restore(self._epoch)
            self._begun = self._epoch
            self._quiet = 0

    def _restore(self, epoch: int) -> None:
        """Have the parameters again as they were when so many epochs were done.

        That is in the last two stretches; only where the state was kept it is restored.
        """
        number = 0 if self._stretches[0].first <= epoch else 1
        self._train_state[0].restore(number)
        stretch = self._stretches[number]
        self._enqueue(stretch.first, stretch.rates[: epoch - stretch.first])
        if self._training.recovered():
            self._restore(epoch)

    def finish(self) -> None:
        """Give the network what was learnt, and the history its state.

        Warns
        -----
        ClnetWarning
            If that is not finite: the last finite parameters are taken.
        """
        self._go_back()
        for one in self._sessions:
            one.finish()
        history = self.history
        parameters, values = self._train_state[0].values()
        diverged = bool(history.epochs) and not history[-1].training.finite
        if diverged:  # the last epoch began with what gave the loss that overflowed
            parameters = self._parameters_at(self._epoch - 2)
        elif not np.isfinite(parameters).all():
            diverged = True
            parameters = self._parameters_at(self._epoch - 1)
            history.stopped = (
                f"training diverged: epoch {self._epoch} left parameters that are not "
                "finite; those before it are kept, try a smaller learning rate"
            )
        if diverged:
            warnings.warn(history.stopped, ClnetWarning, stacklevel=4)
        self.network.parameters = parameters
        history.state = replace(
            history.state, epoch=self._epoch, count=self._count(self._epoch),
            parameters=self.network.parameters.copy(), values=values,
        )

    def _parameters_at(self, epoch: int) -> Array:
        """Return the parameters when so many epochs were done, or the first ones."""
        self._restore(max(epoch, self._state.epoch))
        self._sessions[0].finish()
        return self._train_state[0].values()[0]


def _without_backward(program: Program) -> Program:
    """Return a training program as far as its totals."""
    stop = next(i for i, op in enumerate(program.ops) if isinstance(op, Tally)) + 1
    return replace(program, ops=program.ops[:stop], outputs=(program.output,))


def fit(network: Model, setup: TrainingSetup, progress: bool) -> History:
    """Train a network; see `Network.fit`."""
    errors = session(setup.devices[0]).errors
    try:
        with Search(progress=progress) as search:
            training = Training(network, setup, search)
        for callback in setup.callbacks:
            if hasattr(callback, "start"):
                callback.start(training)
        try:
            _run(training, setup, progress)
        except Exception:  # a callback's: what was learnt is not lost with it
            with suppress(*errors):
                training.update_network()
            raise
        for callback in setup.callbacks:
            if hasattr(callback, "end"):
                callback.end(training)
        training.finish()
    except errors as error:
        raise failed(setup.devices[0], error, *setup.devices[1:]) from error
    network.fann = setup.fann
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
    """Return how a step of training over all samples would be computed, and why.

    Parameters
    ----------
    network, optimiser, device
        As for `Network.fit`, whose default is the loss.
    batch : int
        Samples.
    tune : bool or None
        As for `Network.compile`.
    precision, progress
        Likewise.

    Raises
    ------
    InputError, DeviceError
        If an argument is wrong, or no such device exists.
    """
    check_count("batch", batch)
    rule, where = rule_of(network, optimiser), find_device(device)
    loss = default_loss(network, optimiser)

    def lowered(stored: Model) -> Program:
        return lower_training(stored, loss, rule).at(precision)

    with Search(progress=progress) as search:
        return plan_training(
            network, lowered(network), where, batch, tune=tune, lowered=lowered,
            search=search,
        ).explain()


def _run(training: Training, setup: TrainingSetup, progress: bool) -> None:
    """Train epoch by epoch until something says stop; the history says what."""
    history, epochs, callbacks = training.history, setup.epochs, setup.callbacks

    def rate(epoch: int) -> float:
        return setup.rule.rate * setup.rates(epoch)

    try:
        with _bar(epochs) if progress else nullcontext() as bar:
            for epoch in training.epochs(epochs, rate):
                if bar is not None:
                    bar.update()
                    bar.set_postfix(loss=f"{epoch.loss:.4g}", refresh=False)
                if not epoch.training.finite:
                    what = "mse" if np.isfinite(epoch.loss) else "loss"
                    history.stopped = (
                        f"training diverged: the {what} of epoch {epoch.number} is "
                        f"{getattr(epoch, what)}; the last finite parameters are "
                        "kept, try a smaller learning rate"
                    )
                    return
                if callbacks:
                    stops = [callback(training, epoch) for callback in callbacks]
                    if any(stops):
                        who = callbacks[[bool(s) for s in stops].index(True)]
                        name = getattr(who, "__name__", type(who).__name__)
                        history.stopped = f"{name} stopped after epoch {epoch.number}"
                        return
                sentence = setup.reached(epoch)
                if sentence is not None:
                    history.stopped = sentence
                    return
        all_ = f"all {epochs} epochs are" if epochs > 1 else "the epoch is"
        history.stopped = f"{all_} done"
    except KeyboardInterrupt:
        done = counted(len(history), "epoch")
        history.stopped = f"interrupted after {done}; what was learnt is kept"


def _bar(epochs: int) -> Any:
    """Return a progress bar on stderr."""
    from tqdm import tqdm

    return tqdm(total=epochs, unit=" epochs", dynamic_ncols=True)
