"""The checked arguments of `Network.fit`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clnet.checks import INT_MAX, as_whole, is_number
from clnet.errors import InputError, counted, quoted, unknown
from clnet.formats.named_table import named_inputs
from clnet.nn.activations import SOFTMAXES
from clnet.nn.defaults import default_optimiser
from clnet.nn.description import Description
from clnet.nn.fann_parameters import STOP_FUNCTIONS, FannParameters
from clnet.nn.labels import Classes, encoded
from clnet.nn.layers import Sparse
from clnet.nn.losses import LossFunction, loss_function
from clnet.nn.optimisers import (
    FANN,
    Optimiser,
    as_fann_parameters,
    fann_optimiser,
    optimiser,
)
from clnet.nn.relayout import Relayout
from clnet.nn.schedules import Schedule, predictable
from clnet.nn.schedules import schedule as find_schedule
from clnet.opencl.discovery import Devices, device_list
from clnet.training.callbacks import Checkpoint
from clnet.training.data_set import DataSet, data_set, warn_of_reach
from clnet.training.history import SEEDS, Epoch, Measures, TrainingState
from clnet.training.saved import SavedTraining, settings_of

if TYPE_CHECKING:
    from os import PathLike

    from clnet.nn.columns import Columns
    from clnet.nn.model import Model
    from clnet.nn.regularisation import Regularisation
    from clnet.nn.scaling import Scaling
    from clnet.opencl.device import Device
    from clnet.training.callbacks import Callback


# The limits of an epoch's sums: positive numbers of float32.
TINY, LARGE = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max) / 2

_COLUMNS = {field.name: i for i, field in enumerate(fields(Measures))}


@dataclass(frozen=True)
class DesiredError:
    """The error at which a training stops.

    Attributes
    ----------
    measure : str
        One of `STOP_FUNCTIONS`.
    most : float
        Its largest value.
    """

    measure: str
    most: float

    def reached(self, epoch: Epoch) -> str | None:
        """Return a sentence if an epoch has the error, else None."""
        found = getattr(epoch, self.measure)
        if found > self.most:
            return None
        return (
            f"{self.measure} {found:.6g} of epoch {epoch.number} is at most "
            f"{self.most:g}"
        )

    def reached_by(self, measures: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which epochs have the error, from their measures [epochs, 3]."""
        return np.asarray(measures[:, _COLUMNS[self.measure]] <= self.most)

    def limits(self, targets: int) -> tuple[float, float]:
        """Return the sum of squared errors and the bit fails of an epoch to stop at.

        They are positive numbers of float32; 0 is no limit. `targets` is the number of
        the epoch's outputs.
        """
        sums = self.most * targets if self.measure == "mse" else self.most + 0.5
        limit = min(max(sums, TINY), LARGE)
        return (limit, 0.0) if self.measure == "mse" else (0.0, limit)


@dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """All settings of one training.

    Attributes
    ----------
    data : DataSet
        The training set.
    validation : DataSet or None
        The validation set, measured after each epoch.
    batch : int
        Samples a step, at most all.
    shuffled : bool
        Whether each epoch has its own random order.
    rule : Optimiser
        The update rule of the parameters.
    loss : LossFunction
        The function to minimise.
    regularisation : Regularisation
        Penalties and clipping, applied to the gradients before the rule.
    rates : callable
        Factor of the learning rate for an epoch, counted from 0.
    predictable : bool
        Whether the factor depends on the epoch's number alone.
    epochs : int
        Epochs at most, from the state on.
    desired : DesiredError or None
        The error at which the training stops.
    callbacks : list of callables
        In the order of their calls.
    checkpoints : list of Checkpoint
        Called after all others, whose state they hold.
    state : TrainingState
        The state to start from.
    saved : SavedTraining or None
        The training of the checkpoint that the state is from.
    settings : callable
        Returns the `settings_of` the training.
    devices : tuple of Device
        One, or several that share each batch.
    precision : str
        Precision of products: one of `checks.PRECISIONS`.
    fann : FannParameters or None
        FANN's training parameters, which the network gets after the training.
    classes : tuple of labels, or None
        What the outputs stand for, which the network gets before the training.
    columns : Columns or None
        The names of the inputs, likewise.
    """

    data: DataSet
    validation: DataSet | None
    batch: int
    shuffled: bool
    rule: Optimiser
    loss: LossFunction
    regularisation: Regularisation
    rates: Schedule
    predictable: bool
    epochs: int
    desired: DesiredError | None
    callbacks: list[Callback]
    checkpoints: list[Checkpoint]
    state: TrainingState
    saved: SavedTraining | None
    settings: Callable[[], dict[str, Any]]
    devices: tuple[Device, ...]
    precision: str
    fann: FannParameters | None
    classes: Classes | None
    columns: Columns | None


def training_setup(
    network: Model,
    x: ArrayLike,
    t: ArrayLike,
    *,
    optimiser: str | Optimiser | None,
    loss: str | None,
    epochs: int,
    batch_size: int | None,
    shuffle: bool | None,
    validation: tuple[ArrayLike, ...] | None,
    sample_weight: ArrayLike | None,
    callbacks: Iterable[Callback],
    seed: int | None,
    device: Devices,
    devices: Devices,
    desired_error: float | None,
    stop: str | None,
    schedule: str | Schedule | None,
    regularisation: Regularisation,
    state: TrainingState | None,
    resume: str | PathLike[str] | None,
    scaling: Scaling | None,
    precision: str,
) -> TrainingSetup:
    """Return the checked arguments of `Network.fit`.

    Raises
    ------
    InputError, DeviceError
        If an argument is wrong, or no such device exists.
    """
    epochs = as_whole("epochs", epochs)
    t, classes = encoded(network, t, network.classes)
    x, columns = named_inputs(network.columns, x)
    data = data_set(network, x, t, sample_weight, scaling=scaling)
    if batch_size is not None:
        batch_size = as_whole("batch_size", batch_size)
    if optimiser is None:
        optimiser = default_optimiser(network, len(data), batch_size)
    rule = rule_of(network, optimiser)
    batch = _batch(rule, batch_size, len(data))
    if shuffle is None:
        shuffle = rule.batch is None
    other = None
    if validation is not None:
        if not isinstance(validation, (tuple, list)) or len(validation) not in (2, 3):
            raise InputError("validation must be (x, t) or (x, t, sample_weight)")
        what = "validation "
        other_t, classes = encoded(network, validation[1], classes, f"{what}t")
        other_x, _ = named_inputs(columns, validation[0], f"{what}x")
        weight = validation[2] if len(validation) > 2 else None
        other = data_set(network, other_x, other_t, weight, what, scaling)
        other = other.balanced(len(other))
    desired = _desired_error(network, desired_error, stop)
    checked = _checked_callbacks(callbacks)
    if None not in (device, devices):
        raise InputError("give device or devices, not both")
    chosen = device_list(device if devices is None else devices)
    row = default_loss(network, optimiser) if loss is None else loss_function(loss)
    shuffled = bool(shuffle) and batch < len(data)
    settings = partial(
        settings_of, network, data, other, batch, shuffled, rule, row, regularisation,
        schedule, precision,
    )
    saved = None
    if resume is not None:
        if state is not None:
            raise InputError("give state or resume, not both")
        saved = SavedTraining.load(resume)
        saved.check_settings(resume, settings())
        state = saved.state
        if state.epoch > epochs:
            raise InputError(
                f"{resume} is of a training after {counted(state.epoch, 'epoch')}, "
                f"expected epochs of at least as many, not {epochs}"
            )
        epochs -= state.epoch
    start = _initial_state(network, rule, seed) if state is None else _resumed_state(
        network, rule, seed, state
    )
    shuffled = bool(shuffle) and batch < len(data)
    if not shuffled:
        data = data.balanced(batch)
    steps = -(-len(data) // batch)
    if state is not None and start.count + epochs * steps > INT_MAX:
        raise InputError(
            f"{epochs} epochs of {counted(steps, 'step')}, after the {start.count} "
            f"steps of the state, are more than {INT_MAX} steps"
        )
    rates = find_schedule(schedule, start.epoch + epochs)
    if schedule is not None and not hasattr(rule, "learning_rate"):
        raise InputError(f"{rule.name} has no learning rate: leave out the schedule")
    warn_of_reach(network, data.t)
    return TrainingSetup(
        data=data, validation=other, batch=batch,
        shuffled=shuffled, rule=rule, loss=row,
        regularisation=regularisation, rates=rates, predictable=predictable(schedule),
        epochs=epochs, desired=desired,
        callbacks=[one for one in checked if not isinstance(one, Checkpoint)],
        checkpoints=[one for one in checked if isinstance(one, Checkpoint)],
        state=start, saved=saved, settings=settings, devices=chosen,
        precision=precision, fann=_fann_parameters(network, rule, row, stop),
        classes=classes, columns=columns,
    )


def rule_of(network: Model, chosen: str | Optimiser) -> Optimiser:
    """Return the optimiser of a name or row; ``"fann"``: the one of the network's file.

    Raises
    ------
    InputError
        If the name is unknown, or the network carries no training parameters.
    """
    if isinstance(chosen, str) and chosen == FANN:
        if network.fann is None:
            raise InputError(
                'optimiser "fann" takes the training parameters of a .net file, and '
                "this network carries none"
            )
        return fann_optimiser(network.fann)
    return optimiser(chosen)


def _batch(rule: Optimiser, size: int | None, n: int) -> int:
    """Return the samples of a step, at most all n."""
    if size is not None and rule.batch not in (None, size):
        raise InputError(
            f"{rule.name} trains with a batch_size of {rule.batch}, not {size}"
        )
    return min(size or rule.default_batch or n, n)


def default_loss(network: Model, chosen: str | Optimiser) -> LossFunction:
    """Return the default loss of `Network.fit`."""
    if network.fann is not None and (network.fann_compatible or chosen == FANN):
        return loss_function(f"fann_{network.fann.train_error_function}")
    softmax = network.layers[-1].activation in SOFTMAXES
    return loss_function("categorical_cross_entropy" if softmax else "mse")


def _fann_parameters(
    network: Model, rule: Optimiser, loss: LossFunction, stop: str | None
) -> FannParameters | None:
    """Return the network's FANN parameters, updated if the rule is one of FANN's."""
    changes = as_fann_parameters(rule)
    if not changes:
        return network.fann
    error = {"mse": "linear", "fann_linear": "linear", "fann_tanh": "tanh"}
    if loss.name in error:
        changes["train_error_function"] = error[loss.name]
    if stop is not None:
        changes["train_stop_function"] = stop
    return _changed(network.fann, tuple(changes.items()))


@lru_cache
def _changed(
    parameters: FannParameters | None, changes: tuple[tuple[str, Any], ...]
) -> FannParameters:
    """Return the parameters with changes; to check all takes a tenth of a `fit`."""
    return replace(parameters or FannParameters(), **dict(changes))


def _checked_callbacks(callbacks: Iterable[Callback]) -> list[Callback]:
    if not isinstance(callbacks, Iterable):
        raise InputError(
            f"callbacks must be a list of callables, not {type(callbacks).__name__}"
        )
    calls = list(callbacks)
    for callback in calls:
        if not callable(callback):
            raise InputError(f"a callback must be callable, not {callback!r}")
    return calls


def _desired_error(
    network: Model, desired: float | None, stop: str | None
) -> DesiredError | None:
    if stop is None:
        stop = "mse" if network.fann is None else network.fann.train_stop_function
    if stop not in STOP_FUNCTIONS:
        raise unknown("stop function", stop, STOP_FUNCTIONS)
    if desired is None:
        return None
    if not is_number(desired) or not desired >= 0:
        raise InputError(f"desired_error must be a number of at least 0: {desired!r}")
    # A whole number may be beyond float64's range.
    return DesiredError(stop, float(min(desired, sys.float_info.max)))


def _initial_state(network: Model, rule: Optimiser, seed: int | None) -> TrainingState:
    if seed is None:
        seed = int(np.random.default_rng().integers(SEEDS))
    seed = as_whole("a seed", seed, 0, SEEDS - 1)
    parameters = network.parameters.copy()
    values = rule.initial_state(parameters.size, network.dtype)
    return TrainingState(repr(rule), 0, 0, seed, parameters, values, network.formats)


def _described(network: Model, formats: Sequence[str]) -> Description:
    """Return the description of a network, or one of other formats."""
    if not formats or formats == network.formats:
        return network
    if len(formats) != len(network.formats):
        raise InputError(
            f"the state is for {counted(len(formats), 'sparse layer')}, but this "
            f"network has {len(network.formats)}"
        )
    names = iter(formats)
    return Description(
        network.n_in,
        [
            replace(layer, format=next(names)) if isinstance(layer, Sparse) else layer
            for layer in network.layers
        ],
        network.dtype, network.fann_compatible,
    )


def _resumed_state(
    network: Model, rule: Optimiser, seed: int | None, state: TrainingState
) -> TrainingState:
    """Return the state to resume from, if it matches the network and optimiser."""
    if not isinstance(state, TrainingState):
        raise InputError(f"state must be a TrainingState or None, not {state!r}")
    state.check()
    if state.optimiser != repr(rule):
        raise InputError(
            f"the state was saved with optimiser {quoted(state.optimiser)[1:-1]}, but "
            f"fit was called with {rule!r}"
        )
    source = _described(network, state.formats)
    size = source.layout.size
    shapes = (state.parameters.shape, state.values.shape)
    if shapes != ((size,), (rule.slots, size)):
        formats = f" as {', '.join(state.formats)}" if state.formats else ""
        raise InputError(
            f"the state is for a network of {state.parameters.size} parameters, but "
            f"this one has {size}{formats}"
        )
    if source is not network:
        relayout = Relayout.between(source, network)
        state = replace(
            state, parameters=relayout.forward(state.parameters),
            values=relayout.forward(state.values),
        )
    if seed is not None and as_whole("a seed", seed, 0, SEEDS - 1) != state.seed:
        raise InputError(f"the state's seed is {state.seed}, not {seed}")
    with np.errstate(over="ignore", invalid="ignore"):
        state = replace(
            state,
            parameters=np.asarray(state.parameters, network.dtype),
            values=np.asarray(state.values, network.dtype),
            formats=network.formats,
        )
    state.check()  # of float64 in a network of float32 too
    for slot in rule.squares:
        if (state.values[slot] < 0).any():
            raise InputError(
                f"the state's values {slot} hold negative numbers, expected the mean "
                f"squares of {rule.name}"
            )
    return state
