"""Training: epochs and batches, stop rules, callbacks; all data stays on the device.

The data set goes to the device once; parameters, gradients and the optimiser's state
stay there for the whole of `fit`. The host reads one record an epoch.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from dataclasses import replace
from math import isfinite
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.checks import check_count
from clnet.data_set import DataSet
from clnet.device import Device
from clnet.device import device as find_device
from clnet.errors import ClnetWarning
from clnet.history import Epoch, History, Measures
from clnet.lowering import lower_training
from clnet.ops import PRECISIONS, Program
from clnet.optimisers import Optimiser
from clnet.replay import Learnt, Replay
from clnet.session import Session, failed, session
from clnet.shuffling import key
from clnet.training_ops import RECORD, Tally
from clnet.training_planner import plan_training
from clnet.training_setup import TrainingSetup, default_loss, rule_of

if TYPE_CHECKING:
    from clnet.network import Network

Array = NDArray[Any]

CHUNK = 8192  # samples of a validation set that are computed at once


class Pass:
    """A program run over a data set, batch by batch.

    Parameters
    ----------
    session : Session
        Where.
    network : Network
        What the program was lowered from.
    program : Program
        One step.
    data : DataSet
        Uploaded here.
    batch : int
        Samples a step.
    learnt : Learnt
        Parameters and state.

    Attributes
    ----------
    plan : TrainingPlan
        How a step is computed.
    """

    def __init__(
        self,
        session: Session,
        network: Network,
        program: Program,
        data: DataSet,
        batch: int,
        learnt: Learnt,
    ) -> None:
        self.plan = plan_training(network, program, session.device, batch)
        self._replay = Replay(session, self.plan.steps, network.layout, learnt)
        self._totals = program.output
        self._n, self._n_out = len(data), network.n_out
        for value, array in zip(program.inputs, data.arrays, strict=True):
            self._replay.write(value, array)

    def run(
        self, words: Iterable[int] = (), rate: float = 0.0, seed: int = 0,
        count: int = 0,
    ) -> int:
        """Enqueue an epoch, and return how many steps it has.

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
        """
        self._replay.set(rate=rate, seed=seed & 0xFFFFFFFF)
        self._replay.set(**{f"key{i}": int(word) for i, word in enumerate(words)})
        return self._replay.run_pass(self._n, count)

    def measures(self) -> Measures:
        """Wait for the epoch's end, and return what it added up to."""
        # As Python's floats: the sums are of the type's own precision, and what
        # rounding took from them is added in float64.
        totals: list[float] = self._replay.read(self._totals)[0].tolist()
        loss, squares, fails = map(add, totals, totals[len(RECORD) :])
        outputs = self._n * self._n_out
        bit_fail = round(fails) if isfinite(fails) else outputs
        return Measures(loss / self._n, squares / outputs, bit_fail)


class Training:
    """A training under way: what callbacks see.

    Made by `fit`.

    Attributes
    ----------
    network : Network
        What is trained; its parameters are the new ones when the training is over.
    history : History
        The epochs so far.
    """

    def __init__(self, network: Network, setup: TrainingSetup) -> None:
        data, batch, validation = setup.data, setup.batch, setup.validation
        state = setup.state
        self.network = network
        self.history = History(state)
        self._session = session(setup.device)
        self._shuffled = setup.shuffled
        self._epoch, self._count, self._seed = state.epoch, state.count, state.seed
        n = len(data)
        self._learnt = Learnt(self._session, state.parameters, state.values)
        self._training = Pass(
            self._session, network,
            lower_training(
                network, setup.loss, setup.rule, samples=n if batch < n else None,
                shuffled=setup.shuffled, weighted=data.weight is not None,
                regularisation=setup.regularisation,
            ).at(setup.precision),
            data, batch, self._learnt,
        )
        self.history.plan = self.explain()
        self._validation = None
        if validation is not None:
            size = min(len(validation), CHUNK)
            samples = len(validation) if size < len(validation) else None
            program = lower_training(
                network, setup.loss, None, samples=samples, dropout=False
            ).at(setup.precision)
            self._validation = Pass(
                self._session, network, _without_backward(program), validation, size,
                self._learnt,
            )

    @property
    def validates(self) -> bool:
        """Whether a validation set is measured after each epoch."""
        return self._validation is not None

    @property
    def parameters(self) -> Array:
        """The flat buffer as it is now, read from the device; assign to replace it."""
        self._session.finish()
        return self._learnt.values()[0]

    @parameters.setter
    def parameters(self, values: Array) -> None:
        self._session.finish()
        self._learnt.parameters.write(self._session, values)

    def explain(self) -> str:
        """Return how a step is computed, and why, as `Plan.explain` does."""
        return self._training.plan.explain()

    def update_network(self) -> None:
        """Give the network the parameters as they are now."""
        self.network.parameters = self.parameters

    def epoch(self, rate: float) -> Epoch:
        """Train one epoch at a learning rate."""
        start = time.perf_counter()
        self._learnt.keep()
        words = key(self._seed, self._epoch) if self._shuffled else ()
        self._count += self._training.run(words, rate, self._seed, self._count)
        measures = self._training.measures()
        self._epoch += 1
        validation = None if self._validation is None else self._validated()
        seconds = time.perf_counter() - start
        done = Epoch(self._epoch, measures, validation, seconds)
        self.history.epochs.append(done)
        return done

    def _validated(self) -> Measures:
        assert self._validation is not None
        self._validation.run()
        return self._validation.measures()

    def finish(self) -> None:
        """Give the network what was learnt, and the history its state.

        Warns
        -----
        ClnetWarning
            If that is not finite: the last finite parameters are taken.
        """
        self._session.finish()
        history = self.history
        parameters, values = self._learnt.values()
        diverged = bool(history.epochs) and not history[-1].training.finite
        newest, before = self._learnt.kept()
        if diverged:  # the last epoch began with what gave the loss that overflowed
            parameters = before
        elif not np.isfinite(parameters).all():
            diverged = True
            parameters = newest
            history.stopped = (
                f"training diverged: epoch {self._epoch} left parameters that are not "
                "finite; those before it are kept, try a smaller learning rate"
            )
        if diverged:
            warnings.warn(history.stopped, ClnetWarning, stacklevel=4)
        self.network.parameters = parameters
        history.state = replace(
            history.state, epoch=self._epoch, count=self._count,
            parameters=self.network.parameters.copy(), values=values,
        )


def _without_backward(program: Program) -> Program:
    """Return a training program as far as its totals."""
    stop = next(i for i, op in enumerate(program.ops) if isinstance(op, Tally)) + 1
    return replace(program, ops=program.ops[:stop], outputs=(program.output,))


def fit(network: Network, setup: TrainingSetup, progress: bool) -> History:
    """Train a network; see `Network.fit`."""
    memory = session(setup.device)
    try:
        training = Training(network, setup)
        for callback in setup.callbacks:
            if hasattr(callback, "start"):
                callback.start(training)
        try:
            _run(training, setup, progress)
        except Exception:  # a callback's: what was learnt is not lost with it
            with suppress(*memory.errors):
                training.update_network()
            raise
        for callback in setup.callbacks:
            if hasattr(callback, "end"):
                callback.end(training)
        training.finish()
    except memory.errors as error:
        raise failed(setup.device, error) from error
    network.fann = setup.fann
    return training.history


def explain(
    network: Network,
    optimiser: str | Optimiser,
    device: str | Device | None,
    batch: int,
    tune: bool | None = None,
    precision: str = PRECISIONS[0],
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
    precision : str
        Likewise.

    Raises
    ------
    InputError, DeviceError
        If an argument is wrong, or no such device exists.
    """
    check_count("batch", batch)
    rule, where = rule_of(network, optimiser), find_device(device)
    program = lower_training(network, default_loss(network, optimiser), rule)
    return plan_training(
        network, program.at(precision), where, batch, tune=tune
    ).explain()


def _run(training: Training, setup: TrainingSetup, progress: bool) -> None:
    """Train epoch by epoch until something says stop; the history says what."""
    history, epochs, callbacks = training.history, setup.epochs, setup.callbacks
    first = history.state.epoch
    numbers = range(first, first + epochs)
    try:
        with _bar(epochs) if progress else nullcontext() as bar:
            for number in numbers:
                epoch = training.epoch(setup.rule.rate * setup.rates(number))
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
        history.stopped = f"all {epochs} epochs are done"
    except KeyboardInterrupt:
        done = len(history)
        history.stopped = f"interrupted after {done} epochs; what was learnt is kept"


def _bar(epochs: int) -> Any:
    """Return a progress bar on stderr."""
    from tqdm import tqdm

    return tqdm(total=epochs, unit=" epochs", dynamic_ncols=True)
