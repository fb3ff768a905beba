"""Training: epochs and batches, stop rules, callbacks; all data stays on the device.

The data set goes to the device once; parameters, gradients and the optimiser's state
stay there for the whole of `fit`. The host reads one record an epoch.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from math import isfinite
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clnet.activations import SOFTMAX
from clnet.callbacks import Callback
from clnet.checks import as_numbers, check_count
from clnet.device import Device
from clnet.device import device as find_device
from clnet.errors import ClnetWarning, InputError, unknown
from clnet.formats.fann_parameters import STOP_FUNCTIONS, FannParameters
from clnet.history import Epoch, History, Measures, TrainingState
from clnet.losses import LossFunction, loss_function
from clnet.lowering import lower_training
from clnet.ops import Program
from clnet.optimisers import (
    Optimiser,
    as_fann_parameters,
    fann_optimiser,
    optimiser,
)
from clnet.replay import Learnt, Replay
from clnet.schedules import Schedule
from clnet.schedules import schedule as find_schedule
from clnet.session import Session, failed, session
from clnet.shuffling import key
from clnet.training_ops import RECORD, Tally
from clnet.training_planner import plan_training

if TYPE_CHECKING:
    from clnet.network import Network
    from clnet.regularisation import Regularisation
    from clnet.scaling import Scaling

Array = NDArray[Any]

CHUNK = 8192  # samples of a validation set that are computed at once
SEEDS = 1 << 63


@dataclass(frozen=True)
class DataSet:
    """Samples of one network.

    Attributes
    ----------
    x, t : ndarray, shape [n, n_in] and [n, n_out]
        Inputs and targets.
    weight : ndarray, shape [n, 1], or None
        Factor of each sample's loss.
    """

    x: Array
    t: Array
    weight: Array | None = None

    def __len__(self) -> int:
        return len(self.x)

    @property
    def arrays(self) -> list[Array]:
        """The arrays in the order of a program's inputs."""
        return [a for a in (self.x, self.t, self.weight) if a is not None]


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

    def __init__(
        self,
        network: Network,
        where: Device,
        loss: LossFunction,
        rule: Optimiser,
        data: DataSet,
        batch: int,
        shuffled: bool,
        validation: DataSet | None,
        state: TrainingState,
        regularisation: Regularisation,
    ) -> None:
        self.network = network
        self.history = History(state)
        self._rule = rule
        self._session = session(where)
        self._shuffled = shuffled
        self._epoch, self._count, self._seed = state.epoch, state.count, state.seed
        n = len(data)
        self._learnt = Learnt(self._session, state.parameters, state.values)
        self._training = Pass(
            self._session, network,
            lower_training(
                network, loss, rule, samples=n if batch < n else None,
                shuffled=shuffled, weighted=data.weight is not None,
                regularisation=regularisation,
            ),
            data, batch, self._learnt,
        )
        self.history.plan = self.explain()
        self._validation = None
        if validation is not None:
            size = min(len(validation), CHUNK)
            samples = len(validation) if size < len(validation) else None
            program = lower_training(
                network, loss, None, samples=samples, dropout=False
            )
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


def fit(
    network: Network,
    x: ArrayLike,
    t: ArrayLike,
    *,
    optimiser: str | Optimiser,
    loss: str | None,
    epochs: int,
    batch_size: int | None,
    shuffle: bool | None,
    validation: tuple[ArrayLike, ArrayLike] | None,
    sample_weight: ArrayLike | None,
    callbacks: Iterable[Callback],
    seed: int | None,
    device: str | Device | None,
    desired_error: float | None,
    stop: str | None,
    schedule: str | Schedule | None,
    regularisation: Regularisation,
    state: TrainingState | None,
    progress: bool,
    scaling: Scaling | None,
) -> History:
    """Train a network; see `Network.fit`."""
    check_count("epochs", epochs)
    data = _data_set(network, x, t, sample_weight, scaling=scaling)
    rule = rule_of(network, optimiser)
    batch = _batch(rule, batch_size, len(data))
    if shuffle is None:
        shuffle = rule.batch is None
    shuffled = bool(shuffle) and batch < len(data)
    other = None
    if validation is not None:
        if not isinstance(validation, (tuple, list)) or len(validation) != 2:
            raise InputError("validation must be a pair (x, t)")
        other = _data_set(network, *validation, what="validation ", scaling=scaling)
    reached = _reached(network, desired_error, stop)
    if not isinstance(callbacks, Iterable):
        raise InputError(
            f"callbacks must be a list of callables, not {type(callbacks).__name__}"
        )
    calls = list(callbacks)
    for callback in calls:
        if not callable(callback):
            raise InputError(f"{callback!r} is no callback: it cannot be called")
    where = find_device(device)
    row = loss_function(_default_loss(network, optimiser) if loss is None else loss)
    begin = _begin(network, rule, seed) if state is None else _resumed(
        network, rule, seed, state
    )
    rates = find_schedule(schedule, begin.epoch + epochs)
    if schedule is not None and not hasattr(rule, "learning_rate"):
        raise InputError(f"{rule.name} has no learning rate: leave out the schedule")
    fann = _fann_of(network, rule, row, stop)
    memory = session(where)
    try:
        training = Training(
            network, where, row, rule, data, batch, shuffled, other, begin,
            regularisation,
        )
        for callback in calls:
            if hasattr(callback, "start"):
                callback.start(training)
        try:
            _run(training, rule, epochs, calls, reached, rates, progress)
        except Exception:  # a callback's: what was learnt is not lost with it
            with suppress(*memory.errors):
                training.update_network()
            raise
        for callback in calls:
            if hasattr(callback, "end"):
                callback.end(training)
        training.finish()
    except memory.errors as error:
        raise failed(where, error) from error
    network.fann = fann
    return training.history


def explain(
    network: Network,
    optimiser: str | Optimiser,
    device: str | Device | None,
    batch: int,
    tune: bool | None = None,
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

    Raises
    ------
    InputError, DeviceError
        If an argument is wrong, or no such device exists.
    """
    check_count("batch", batch)
    rule, where = rule_of(network, optimiser), find_device(device)
    loss = loss_function(_default_loss(network, optimiser))
    program = lower_training(network, loss, rule)
    return plan_training(network, program, where, batch, tune=tune).explain()


def _run(
    training: Training,
    rule: Optimiser,
    epochs: int,
    callbacks: Sequence[Callback],
    reached: Callable[[Epoch], str | None],
    schedule: Schedule,
    progress: bool,
) -> None:
    """Train epoch by epoch until something says stop; the history says what."""
    history = training.history
    first = history.state.epoch
    numbers = range(first, first + epochs)
    try:
        with _bar(epochs) if progress else nullcontext() as bar:
            for number in numbers:
                epoch = training.epoch(rule.rate * schedule(number))
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
                sentence = reached(epoch)
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


def _data_set(
    network: Network,
    x: ArrayLike,
    t: ArrayLike,
    weight: ArrayLike | None = None,
    what: str = "",
    scaling: Scaling | None = None,
) -> DataSet:
    """Return checked samples, scaled."""
    dtype = network.dtype if scaling is None else "float64"
    arrays = {"x": as_numbers(f"{what}x", x, dtype),
              "t": as_numbers(f"{what}t", t, dtype)}
    widths = {"x": network.n_in, "t": network.n_out}
    for name, array in arrays.items():
        if array.ndim != 2 or array.shape[1] != widths[name]:
            raise InputError(
                f"{what}{name} has shape {list(array.shape)}, expected "
                f"[samples, {widths[name]}]"
            )
    if scaling is not None:
        scaled = scaling.scale_input(arrays["x"]), scaling.scale_output(arrays["t"])
        arrays = {
            name: as_numbers(name, array, network.dtype)
            for name, array in zip(arrays, scaled, strict=True)
        }
    n = len(arrays["x"])
    if n != len(arrays["t"]):
        raise InputError(f"{what}x has {n} samples and t {len(arrays['t'])}")
    if n == 0:
        raise InputError(f"{what}x has no sample: give at least one")
    if weight is not None:
        arrays["sample_weight"] = as_numbers("sample_weight", weight, network.dtype)
        if arrays["sample_weight"].shape != (n,):
            raise InputError(
                f"sample_weight has shape {list(arrays['sample_weight'].shape)}, "
                f"expected [{n}]"
            )
    for name, array in arrays.items():
        bad = np.argwhere(~np.isfinite(array))
        if bad.size:
            raise InputError(
                f"{what}{name} holds {array[tuple(bad[0])]} at {bad[0].tolist()}, "
                "expected finite numbers"
            )
    weights = arrays.get("sample_weight")
    return DataSet(
        arrays["x"], arrays["t"], None if weights is None else weights[:, np.newaxis]
    )


def rule_of(network: Network, chosen: str | Optimiser) -> Optimiser:
    """Return the optimiser that a name or row stands for: ``"fann"`` by the network.

    Raises
    ------
    InputError
        If there is none of that name, or the network carries no training parameters.
    """
    if isinstance(chosen, str) and chosen == "fann":
        if network.fann is None:
            raise InputError(
                'optimiser "fann" takes the training parameters of a .net file, and '
                "this network carries none"
            )
        return fann_optimiser(network.fann)
    return optimiser(chosen)


def _batch(rule: Optimiser, size: int | None, n: int) -> int:
    """Return the samples a step, at most all n."""
    if size is not None:
        check_count("batch_size", size)
        if rule.batch not in (None, size):
            raise InputError(
                f"{rule.name} trains with a batch_size of {rule.batch}, not {size}"
            )
    return min(size or rule.batch or n, n)


def _default_loss(network: Network, chosen: str | Optimiser) -> str:
    if network.fann is not None and (network.fann_compatible or chosen == "fann"):
        return f"fann_{network.fann.train_error_function}"
    softmax = network.layers[-1].activation == SOFTMAX
    return "categorical_cross_entropy" if softmax else "mse"


def _fann_of(
    network: Network, rule: Optimiser, loss: LossFunction, stop: str | None
) -> FannParameters | None:
    """Return FANN's parameters with the rule, if it is FANN's; else those there are."""
    found = as_fann_parameters(rule)
    if not found:
        return network.fann
    error = {"mse": "linear", "fann_linear": "linear", "fann_tanh": "tanh"}
    if loss.name in error:
        found["train_error_function"] = error[loss.name]
    if stop is not None:
        found["train_stop_function"] = stop
    return replace(network.fann or FannParameters(), **found)


def _reached(
    network: Network, desired: float | None, stop: str | None
) -> Callable[[Epoch], str | None]:
    """Return what tells, in a sentence, that the desired error is reached."""
    if stop is None:
        stop = "mse" if network.fann is None else network.fann.train_stop_function
    if stop not in STOP_FUNCTIONS:
        raise unknown("stop function", stop, STOP_FUNCTIONS)
    if desired is None:
        return lambda epoch: None
    number = isinstance(desired, (int, float, np.number)) and desired >= 0
    if not number or isinstance(desired, bool):
        raise InputError(f"desired_error must be a number of at least 0: {desired!r}")

    def reached(epoch: Epoch) -> str | None:
        found = getattr(epoch, stop)
        if found > desired:
            return None
        return f"{stop} {found:.6g} of epoch {epoch.number} is at most {desired:g}"

    return reached


def _begin(network: Network, rule: Optimiser, seed: int | None) -> TrainingState:
    if seed is None:
        seed = int(np.random.default_rng().integers(SEEDS))
    whole = isinstance(seed, (int, np.integer)) and not isinstance(seed, bool)
    if not whole or not 0 <= seed < SEEDS:
        raise InputError(f"a seed must be a whole number from 0 to 2**63-1: {seed!r}")
    parameters = network.parameters.copy()
    values = np.empty((rule.slots, parameters.size), parameters.dtype)
    values[...] = np.reshape(rule.initial, (rule.slots, 1))
    return TrainingState(repr(rule), 0, 0, int(seed), parameters, values)


def _resumed(
    network: Network, rule: Optimiser, seed: int | None, state: TrainingState
) -> TrainingState:
    """Return the state to go on from, if it fits."""
    if not isinstance(state, TrainingState):
        raise InputError(f"state must be a TrainingState or None, not {state!r}")
    if state.optimiser != repr(rule):
        raise InputError(f"the state is of {state.optimiser}, not of {rule!r}")
    size = network.layout.size
    shapes = (state.parameters.shape, state.values.shape)
    if shapes != ((size,), (rule.slots, size)):
        raise InputError(
            f"the state is of a network of {state.parameters.size} parameters, this "
            f"one has {size}"
        )
    if seed not in (None, state.seed):
        raise InputError(f"the state's seed is {state.seed}, not {seed}")
    return replace(
        state,
        parameters=np.asarray(state.parameters, network.dtype),
        values=np.asarray(state.values, network.dtype),
    )
