"""`FitOptions` resolved for a network and a number of samples."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.checks import (
    as_whole,
    check_name,
    check_precision,
    is_among,
    is_number,
)
from clnet.errors import InputError, quoted
from clnet.nn.activations import SOFTMAX, SOFTMAXES, activation
from clnet.nn.cascade import Cascade
from clnet.nn.defaults import default_optimiser
from clnet.nn.fann_parameters import STOP_FUNCTIONS, FannParameters
from clnet.nn.labels import output_activations
from clnet.nn.losses import LossFunction, loss_function
from clnet.nn.optimisers import (
    CASCADE,
    FANN,
    Optimiser,
    as_fann_parameters,
    fann_optimiser,
    optimiser,
)
from clnet.nn.regularisation import Regularisation
from clnet.nn.schedules import Schedule, predictable
from clnet.training.history import Epoch, Measures

if TYPE_CHECKING:
    from clnet.nn.model import Model
    from clnet.planning.training_planner import TrainingPlan
    from clnet.training.fit_options import FitOptions


# The limits of an epoch's sums: positive numbers of float32.
TINY, LARGE = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max) / 2
LIMIT_MARGIN = 1e-6  # of a sum of float32 and its compensation

_COLUMNS = {field.name: i for i, field in enumerate(fields(Measures))}


@dataclass(frozen=True)
class DesiredError:
    """The error at which a training stops."""

    measure: str  # One of `STOP_FUNCTIONS`
    most: float  # Its largest value

    def met_by(self, measures: Measures) -> bool:
        """Return whether measures have the error."""
        return bool(getattr(measures, self.measure) <= self.most)

    def reached(self, epoch: Epoch) -> str | None:
        """Return a sentence if an epoch has the error, else None."""
        value = getattr(epoch, self.measure)
        if value > self.most:
            return None
        return (
            f"{self.measure} {value:.6g} of epoch {epoch.number} is at most "
            f"{self.most:g}"
        )

    def reached_by(self, measures: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which epochs have the error, from their measures [..., 3]."""
        return np.asarray(measures[..., _COLUMNS[self.measure]] <= self.most)

    def limits(self, targets: int) -> tuple[float, float]:
        """Return the sum of squared errors and the bit fails of an epoch to stop at.

        A launch never misses the limit; it may stop a rounding error above it. They are
        positive numbers of float32; 0 is no limit. `targets` is the number of the
        epoch's outputs.
        """
        sums = self.most * targets if self.measure == "mse" else self.most + 0.5
        limit = min(max(sums, TINY), LARGE) * (1 + LIMIT_MARGIN)
        return (limit, 0.0) if self.measure == "mse" else (0.0, limit)


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainingOptions:
    """What `FitOptions` mean for a network and a number of samples."""

    epochs: int  # Epochs at most
    batch: int  # Samples a step, at most all
    shuffled: bool  # Whether each epoch has its own random order
    rule: Optimiser  # The update rule of the parameters
    rule_text: str  # The rule with its constants, as a `TrainingState` names it
    loss: LossFunction  # The function to minimise
    # Penalties and clipping, applied to the gradients before the rule
    regularisation: Regularisation
    schedule: str | Schedule | None  # As given
    predictable: bool  # Whether the rate depends on the epoch's number alone
    desired: DesiredError | None  # The error at which the training stops
    precision: str  # Precision of products: one of `checks.PRECISIONS`
    # FANN's training parameters, which the network gets after the training
    fann: FannParameters | None
    reach: tuple[tuple[float, float], ...]  # Bounds of the outputs' functions
    # Plans of earlier trainings by these options
    plans: dict[Any, list[TrainingPlan]] = field(default_factory=dict)


_ARGUMENTS = attrgetter(  # of `FitOptions`, those that `resolved` reads
    "optimiser", "loss", "epochs", "batch_size", "shuffle", "desired_error", "stop",
    "schedule", "l1", "l2", "clip_norm", "clip_value", "precision",
)


def resolved(network: Model, options: FitOptions, n: int) -> TrainingOptions:
    """Return the options of a training on n samples; the network keeps some results."""
    arguments = _ARGUMENTS(options)
    # True is no number of epochs, and the network may get other parameters of FANN.
    key = n, network.fann, arguments, *map(type, arguments)
    kept = network.results
    try:
        chosen: TrainingOptions | None = kept.get(key)
    except TypeError:  # an argument is no key
        return _resolved(network, options, n)
    if chosen is None:
        chosen = _resolved(network, options, n)
        kept[key] = chosen
    return chosen


def _resolved(network: Model, options: FitOptions, n: int) -> TrainingOptions:
    _check_softmaxes(network)
    regularisation = Regularisation(
        options.l1, options.l2, options.clip_norm, options.clip_value
    )
    check_precision(options.precision)
    epochs = as_whole("epochs", options.epochs)
    chosen = chosen_optimiser(network, options.optimiser, options.batch_size, n)
    rule = rule_of(network, chosen)
    batch, shuffle = _batch(rule, options.batch_size, n), options.shuffle
    if shuffle is None:
        shuffle = rule.batch is None
    schedule = options.schedule
    if schedule is not None and not hasattr(rule, "learning_rate"):
        raise InputError(f"{rule.name} has no learning rate: leave out the schedule")
    loss = loss_of(network, chosen, options.loss)
    return TrainingOptions(
        epochs=epochs, batch=batch, shuffled=bool(shuffle) and batch < n, rule=rule,
        rule_text=repr(rule), loss=loss, regularisation=regularisation,
        schedule=schedule, predictable=predictable(schedule),
        desired=desired_error(network, options.desired_error, options.stop),
        precision=options.precision,
        fann=_fann_parameters(network, rule, loss, options.stop),
        reach=tuple(
            (0.0, 1.0) if name in SOFTMAXES else activation(name).limits
            for name in output_activations(network)
        ),
    )


def with_rate(
    network: Model, options: TrainingOptions, rate: float, stop: str | None
) -> TrainingOptions:
    """Return options whose rule has another learning rate; `stop` is `FitOptions`'."""
    if not hasattr(options.rule, "learning_rate"):
        raise InputError(
            f"{options.rule.name} has no learning rate: leave out learning_rate"
        )
    rule = replace(options.rule, learning_rate=rate)  # type: ignore[call-arg]
    return replace(
        options, rule=rule, rule_text=repr(rule), plans={},
        fann=_fann_parameters(network, rule, options.loss, stop),
    )


def _check_softmaxes(network: Model) -> None:
    """Raise InputError if a softmax has one neuron: no weight changes its output."""
    for number, layer in enumerate(network.layers):
        if layer.activation in SOFTMAXES and layer.n_out == 1:
            raise InputError(
                f"layer {number} is {layer.activation} of one neuron, which is "
                f"{int(layer.activation == SOFTMAX)} for any weights and learns "
                "nothing: expected sigmoid, or a neuron for each class"
            )


def chosen_optimiser(
    network: Model, chosen: str | Optimiser | Cascade | None, batch_size: int | None,
    n: int,
) -> str | Optimiser | Cascade:
    """Return the optimiser of a training on n samples, as given or by default."""
    if batch_size is not None:
        batch_size = as_whole("batch_size", batch_size)
    return default_optimiser(network, n, batch_size) if chosen is None else chosen


def rule_of(network: Model, chosen: str | Optimiser | Cascade) -> Optimiser:
    """Return optimiser of a name or row; ``"fann"``: the one of the network's file."""
    if is_among(chosen, [FANN]):
        if network.fann is None:
            raise InputError(
                'optimiser "fann" takes the training parameters of a .net file, and '
                "this network carries none"
            )
        return fann_optimiser(network.fann)
    if isinstance(chosen, Cascade) or is_among(chosen, [CASCADE]):
        raise InputError(
            "cascade training grows one network, by Network.fit: give another optimiser"
        )
    return optimiser(chosen)


def _batch(rule: Optimiser, size: int | None, n: int) -> int:
    """Return the samples of a step, at most all n."""
    if size is not None:
        size = as_whole("batch_size", size)
    if size is not None and rule.batch not in (None, size):
        raise InputError(
            f"{rule.name} trains with a batch_size of {rule.batch}, not {size}"
        )
    return min(size or rule.default_batch or n, n)


def loss_of(
    network: Model, chosen: str | Optimiser | Cascade, name: str | None = None
) -> LossFunction:
    """Return the loss of a name, or the default one of an optimiser."""
    if name is not None:
        return loss_function(name)
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


def desired_error(
    network: Model, desired: float | None, stop: str | None
) -> DesiredError | None:
    """Return the error at which a training stops, or None; see `Network.fit`."""
    if stop is None:
        stop = "mse" if network.fann is None else network.fann.train_stop_function
    check_name("stop function", stop, STOP_FUNCTIONS)
    if desired is None:
        return None
    if not is_number(desired) or not desired >= 0:
        raise InputError(
            f"desired_error must be a number of at least 0: {quoted(desired)}"
        )
    # A whole number may be beyond float64's range.
    return DesiredError(stop, float(min(desired, sys.float_info.max)))
