"""Optimisers, one frozen row of constants each; defaults are FANN's or PyTorch's.

An optimiser is one elementwise rule over the flat buffer (``include/optimisers.h``,
under the row's name in capitals); ``step`` is its meaning in NumPy. Gradients are those
of the *sum* over samples; rules for the mean divide by the samples of the step.

Examples
--------
>>> clnet.optimisers.Adam(learning_rate=3e-3)
Adam(learning_rate=0.003, beta1=0.9, beta2=0.999, eps=1e-08, weight_decay=0.0)
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from clnet.checks import as_finite, check_flag
from clnet.errors import InputError, quoted
from clnet.nn.aliases import OPTIMISER, named_row
from clnet.nn.fann_parameters import FannParameters
from clnet.nn.random import uniform

Array = NDArray[Any]

FANN_CLAMP = 1500.0  # FANN's largest weight in RPROP and quickprop
RPROP_LEAST_STEP = 1e-4  # RPROP raises smaller steps to it
QUICKPROP_LEAST_STEP = 1e-3  # quickprop takes smaller steps as 0
SARPROP_LEAST_STEP = 1e-6
DECAYS = ("beta1", "beta2", "alpha")  # of moving averages, in [0, 1)
MINI_BATCH = 32  # samples a step of stochastic rules, where none are given


@dataclass(frozen=True)
class StepInfo:
    """Arguments of a step other than gradients and state.

    Attributes
    ----------
    rate : float
        Learning rate of this step.
    samples : int
        Samples whose gradients were summed.
    count : int
        Steps taken before.
    mse : float
        The epoch's mean squared error so far.
    seed : int
        Seed of random numbers, for rules that draw some.
    """

    rate: float
    samples: int
    count: int
    mse: float
    seed: int


@dataclass(frozen=True)
class Optimiser:
    """Base of all optimisers.

    Attributes
    ----------
    name : str
        Its name, also its kernel's.
    slots : int
        State values of each parameter.
    batch : int or None
        The only batch size that it accepts; None: any.
    default_batch : int or None
        The batch size where none is given; None: the whole training set.
    reads_error : bool
        Whether its step depends on the epoch's error.
    squares : tuple of int
        Slots of mean squares, which are never negative.
    uses_offset : bool
        Whether the step of an element depends on its offset in the flat buffer:
        another layout gives other results.
    header : str or None
        Path of the file with the rule in OpenCL C; None: it is in ``optimisers.h``.

    Raises
    ------
    InputError
        If a constant is not a finite number of float32's range, a learning rate is
        below 0, or one of ``DECAYS`` is not in [0, 1).
    """

    name: ClassVar[str]
    slots: ClassVar[int]
    batch: ClassVar[int | None] = None
    default_batch: ClassVar[int | None] = None
    reads_error: ClassVar[bool] = False
    squares: ClassVar[tuple[int, ...]] = ()
    uses_offset: ClassVar[bool] = False
    header: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            name, value = f"{field.name} of {self.name}", getattr(self, field.name)
            if field.type == "bool":
                check_flag(name, value)
                continue
            number = as_finite(name, value)
            if field.name == "learning_rate" and number < 0:
                raise InputError(f"{name} must be at least 0, not {quoted(value)}")
            if field.name in DECAYS and not 0 <= number < 1:
                raise InputError(
                    f"{name} must be at least 0 and below 1, not {quoted(value)}"
                )
            object.__setattr__(self, field.name, number)

    @property
    def rate(self) -> float:
        """The learning rate; 0 where the rule has none."""
        return float(getattr(self, "learning_rate", 0.0))

    @property
    def initial(self) -> tuple[float, ...]:
        """The initial value of each slot of the state."""
        return (0.0,) * self.slots

    def initial_state(self, size: int, dtype: str) -> Array:
        """Return the initial state [slots, size]."""
        state = np.zeros((self.slots, size), dtype)
        for row, value in zip(state, self.initial, strict=True):
            if value:
                row.fill(value)
        return state

    @property
    def constants(self) -> dict[str, float]:
        """The kernel's macros, numbers or bools; `learning_rate` is an argument.

        ``1 - decay`` is one of its own: of a decay that is rounded it would be off.
        """
        macros = {
            field.name.upper(): getattr(self, field.name)
            for field in dataclasses.fields(self) if field.name != "learning_rate"
        }
        decays = [name.upper() for name in DECAYS if hasattr(self, name)]
        return {**macros, **{f"{name}_COMPLEMENT": 1 - macros[name] for name in decays}}

    def step(self, w: Array, g: Array, state: Array, now: StepInfo) -> None:
        """Change parameters w [n] and state [slots, n] in place by gradients g [n]."""
        raise NotImplementedError


@dataclass(frozen=True)
class Incremental(Optimiser):
    """FANN's incremental training: a step per sample, with momentum.

    Parameters
    ----------
    learning_rate : float
        Factor of the gradient, at least 0.
    momentum : float
        Factor of the step before.
    """

    name = "incremental"
    slots = 1
    batch: ClassVar[int | None] = 1
    default_batch: ClassVar[int | None] = 1
    learning_rate: float = FannParameters.learning_rate
    momentum: float = FannParameters.learning_momentum

    def step(self, w: Array, g: Array, state: Array, now: StepInfo) -> None:
        """``dw = momentum dw - rate g``."""
        state[0] = _as(w, self.momentum) * state[0] - _as(w, now.rate) * g
        w += state[0]


@dataclass(frozen=True)
class Batch(Optimiser):
    """FANN's batch training: gradient descent by the mean gradient.

    Parameters
    ----------
    learning_rate : float
        Factor of the mean gradient, at least 0.
    """

    name = "batch"
    slots = 0
    learning_rate: float = FannParameters.learning_rate

    def step(self, w: Array, g: Array, state: Array, now: StepInfo) -> None:
        """``w -= rate / n g``."""
        w -= _as(w, now.rate / now.samples) * g


@dataclass(frozen=True)
class Rprop(Optimiser):
    """FANN's iRPROP−: Igel and Hüsken, "Improving the Rprop learning algorithm", 2000.

    With `moves_at_zero` a weight whose slope is zero, or has just changed sign, moves
    up by its step, as in FANN. Weights without slopes, behind inputs that are always 0
    or after convergence, then run away.

    Parameters
    ----------
    increase_factor, decrease_factor : float
        Factors of a weight's step whose slope keeps, or changes, its sign.
    delta_min, delta_max, delta_zero : float
        The smallest, largest and first step.
    moves_at_zero : bool
        Whether a weight without a slope moves, as in FANN.
    """

    name = "rprop"
    slots = 2  # step, previous slope
    increase_factor: float = FannParameters.rprop_increase_factor
    decrease_factor: float = FannParameters.rprop_decrease_factor
    delta_min: float = FannParameters.rprop_delta_min
    delta_max: float = FannParameters.rprop_delta_max
    delta_zero: float = FannParameters.rprop_delta_zero
    moves_at_zero: bool = False

    @property
    def initial(self) -> tuple[float, ...]:
        """Steps start at `delta_zero`."""
        return (self.delta_zero, 0.0)

    @property
    def constants(self) -> dict[str, float]:
        """Without `delta_zero`, which the initial state alone reads."""
        constants = super().constants
        del constants["DELTA_ZERO"]
        return constants

    def step(self, w: Array, g: Array, state: Array, now: StepInfo) -> None:
        """Grow steps while the slope keeps its sign; shrink them when it changes."""
        slope = -g
        before = np.maximum(state[0], _as(w, RPROP_LEAST_STEP))
        # A product of both may underflow. NaN has not turned: it stays, and is told.
        turned = state[1] * np.sign(slope) < 0
        grown = before * _as(w, self.increase_factor)
        grown = np.minimum(grown, _as(w, self.delta_max))
        shrunk = np.maximum(
            before * _as(w, self.decrease_factor), _as(w, self.delta_min)
        )
        state[0] = np.where(turned, shrunk, grown)
        slope = np.where(turned, _as(w, 0), slope)
        up = slope >= 0 if self.moves_at_zero else slope > 0
        move = np.where(up, state[0], np.where(slope < 0, -state[0], _as(w, 0)))
        clamp = _as(w, FANN_CLAMP)
        w[:] = np.clip(w + move, -clamp, clamp)
        state[1] = slope


@dataclass(frozen=True)
class Quickprop(Optimiser):
    """FANN's quickprop: Fahlman, "An empirical study of learning speed", 1988.

    Where slope and previous slope are equal there is no parabola: FANN divides by zero,
    and here the jump is 0.

    Parameters
    ----------
    learning_rate : float
        Factor of the slope, at least 0.
    decay : float
        Factor of a weight, added to its slope.
    mu : float
        The largest step, in steps before; not -1.
    """

    name = "quickprop"
    slots = 2  # step, previous slope
    learning_rate: float = FannParameters.learning_rate
    decay: float = FannParameters.quickprop_decay
    mu: float = FannParameters.quickprop_mu

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mu == -1:
            raise InputError("mu of quickprop must be other than -1, its pole")

    @property
    def constants(self) -> dict[str, float]:
        """With the share of the previous slope below which the parabola is used."""
        return {**super().constants, "SHRINK": self._shrink}

    @property
    def _shrink(self) -> float:
        return self.mu / (1 + self.mu)

    def step(self, w: Array, g: Array, state: Array, now: StepInfo) -> None:
        """Jump to the vertex of the parabola through both slopes, within mu steps."""
        rate, mu = _as(w, now.rate / now.samples), _as(w, self.mu)
        shrink = _as(w, self._shrink)
        step, previous = state[0].copy(), state[1].copy()
        slope = _as(w, self.decay) * w - g
        sign = np.sign(step) * (np.abs(step) > QUICKPROP_LEAST_STEP)
        descent = np.where(sign * slope > 0, rate * slope, _as(w, 0))
        difference = previous - slope
        flat = difference == 0
        parabola = step * np.where(flat, _as(w, 0), slope) / np.where(
            flat, _as(w, 1), difference
        )
        jump = np.where(sign * slope > sign * (shrink * previous), mu * step, parabola)
        moved = np.where(sign == 0, rate * slope, descent + jump)
        clamp = _as(w, FANN_CLAMP)
        w[:] = np.clip(w + moved, -clamp, clamp)
        state[0], state[1] = moved, slope


@dataclass(frozen=True)
class Sarprop(Optimiser):
    """FANN's SARPROP: Treadgold and Gedeon, "The SARPROP algorithm", 1996.

    Its random numbers are hashes of seed, step and element. A weight whose slopes'
    product is zero resets its step, as in FANN's parallel version.

    Parameters
    ----------
    increase_factor, decrease_factor, delta_max : float
        As for `Rprop`.
    weight_decay_shift, step_error_shift : float
        Powers of 2 that are the first weight decay, and the first noise at an error
        of 1.
    step_error_threshold_factor : float
        Steps below this times the error get noise.
    temperature : float
        Halvings of decay and noise in a step.
    """

    name = "sarprop"
    slots = 2  # step, previous slope
    reads_error = True
    uses_offset = True
    increase_factor: float = FannParameters.rprop_increase_factor
    decrease_factor: float = FannParameters.rprop_decrease_factor
    delta_max: float = FannParameters.rprop_delta_max
    weight_decay_shift: float = -6.644
    step_error_threshold_factor: float = 0.1
    step_error_shift: float = 1.385
    temperature: float = 0.015

    def step(self, w: Array, g: Array, state: Array, now: StepInfo) -> None:
        """As RPROP, with weight decay and noise that cool from step to step."""
        heat = -self.temperature * now.count
        slope = g - w * _as(w, np.exp2(heat + self.weight_decay_shift))
        previous = state[1]
        before = np.maximum(state[0], _as(w, SARPROP_LEAST_STEP))
        sign = previous * np.sign(slope)
        grown = before * _as(w, self.increase_factor)
        grown = np.minimum(grown, _as(w, self.delta_max))
        shrunk = before * _as(w, self.decrease_factor)
        noise = uniform(now.seed, now.count, len(w)).astype(w.dtype)
        noise = noise * _as(w, np.sqrt(now.mse) * np.exp2(heat + self.step_error_shift))
        small = before < self.step_error_threshold_factor * now.mse
        shrunk = np.where(
            small, shrunk + noise, np.maximum(shrunk, _as(w, SARPROP_LEAST_STEP))
        )
        kept = np.where(sign > 0, grown, before)
        move = np.where(slope < 0, kept, -kept)
        w += np.where(sign < 0, _as(w, 0), move)
        state[0] = np.where(sign > 0, grown, np.where(sign < 0, shrunk, _as(w, 0)))
        state[1] = np.where(sign < 0, _as(w, 0), slope)


@dataclass(frozen=True)
class SGD(Optimiser):
    """Gradient descent by the mean gradient, as PyTorch's SGD.

    Parameters
    ----------
    learning_rate : float
        Factor of the velocity, at least 0.
    momentum : float
        Factor of the velocity before.
    weight_decay : float
        Factor of a parameter, added to its mean gradient; of biases too.
    nesterov : bool
        Whether the step looks ahead: the mean gradient and `momentum` times the new
        velocity.
    """

    name = "sgd"
    slots = 1
    default_batch: ClassVar[int | None] = MINI_BATCH
    learning_rate: float = 1e-3
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def step(self, w: Array, g: Array, state: Array, now: StepInfo) -> None:
        """``v = momentum v + g``; ``w -= rate v``."""
        momentum = _as(w, self.momentum)
        mean = g / _as(w, now.samples) + _as(w, self.weight_decay) * w
        state[0] = momentum * state[0] + mean
        step = mean + momentum * state[0] if self.nesterov else state[0]
        w -= _as(w, now.rate) * step


@dataclass(frozen=True)
class Adam(Optimiser):
    """Kingma and Ba, "Adam: a method for stochastic optimization", 2015.

    ``weight_decay`` is added to the gradient, as in PyTorch's Adam.

    Parameters
    ----------
    learning_rate : float
        The largest step of a parameter, about; at least 0.
    beta1, beta2 : float
        Decays of the means of gradients and of their squares, in [0, 1).
    eps : float
        Added to the root of the mean square.
    weight_decay : float
        Factor of a parameter, added to its mean gradient; of biases too.
    """

    name = "adam"
    slots = 2  # first and second moment
    default_batch: ClassVar[int | None] = MINI_BATCH
    squares: ClassVar[tuple[int, ...]] = (1,)
    decoupled: ClassVar[bool] = False
    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    @property
    def constants(self) -> dict[str, float]:
        """With the logarithms of the betas, whose powers correct the moments."""
        logs = {
            f"LOG_{name.upper()}": _logarithm(getattr(self, name))
            for name in ("beta1", "beta2")
        }
        return {**super().constants, **logs, "DECOUPLED": self.decoupled}

    def step(self, w: Array, g: Array, state: Array, now: StepInfo) -> None:
        """``w -= rate m / (sqrt(v) + eps)`` with corrected moments m and v."""
        decay = _as(w, self.weight_decay)
        mean = g / _as(w, now.samples)
        if self.decoupled:
            w -= _as(w, now.rate) * decay * w
        else:
            mean = mean + decay * w
        state[0] = _moving_average(state[0], mean, self.beta1)
        state[1] = _moving_average(state[1], mean * mean, self.beta2)
        first, second = (  # 1 - beta^(count + 1), accurate also for beta near 1
            -math.expm1((now.count + 1) * _logarithm(beta))
            for beta in (self.beta1, self.beta2)
        )
        first, second = _as(w, first), _as(w, math.sqrt(second))
        deviation = np.sqrt(state[1]) / second + _as(w, self.eps)
        w -= _as(w, now.rate) / first * (state[0] / deviation)


@dataclass(frozen=True)
class AdamW(Adam):
    """Loshchilov and Hutter, "Decoupled weight decay regularization", 2019.

    Parameters
    ----------
    learning_rate, beta1, beta2, eps : float
        As for `Adam`.
    weight_decay : float
        Times the rate, the share of a parameter that a step takes off.
    """

    name = "adamw"
    decoupled = True
    weight_decay: float = 1e-2


@dataclass(frozen=True)
class RMSprop(Optimiser):
    """Hinton's RMSprop (lecture 6e, 2012), as PyTorch's.

    With `centered` the mean square is about the mean gradient. It is averaged as such:
    PyTorch's difference of mean square and squared mean cancels.

    Parameters
    ----------
    learning_rate : float
        Factor of the velocity, at least 0.
    alpha : float
        Decay of the mean square, in [0, 1).
    eps : float
        Added to its root.
    weight_decay : float
        Factor of a parameter, added to its mean gradient; of biases too.
    momentum : float
        Factor of the velocity before.
    centered : bool
        Whether the mean square is about the mean gradient.
    """

    name = "rmsprop"
    slots = 3  # mean square, mean, velocity
    default_batch: ClassVar[int | None] = MINI_BATCH
    squares: ClassVar[tuple[int, ...]] = (0,)
    learning_rate: float = 1e-2
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False

    def step(self, w: Array, g: Array, state: Array, now: StepInfo) -> None:
        """``v = momentum v + g / (sqrt(mean square) + eps)``; ``w -= rate v``."""
        mean = g / _as(w, now.samples) + _as(w, self.weight_decay) * w
        if self.centered:
            off = mean - state[1]
            grown = state[0] + _as(w, 1 - self.alpha) * off * off
            state[0] = _moving_average(grown, np.zeros_like(w), self.alpha)
            state[1] = _moving_average(state[1], mean, self.alpha)
        else:
            state[0] = _moving_average(state[0], mean * mean, self.alpha)
        deviation = np.sqrt(state[0]) + _as(w, self.eps)
        state[2] = _as(w, self.momentum) * state[2] + mean / deviation
        w -= _as(w, now.rate) * state[2]


def _moving_average(average: Array, value: Array, decay: float) -> Array:
    """Return ``decay average + (1 - decay) value``, by the smaller of both factors.

    The other one, rounded, is off by more than a rounding relative to the smaller.
    """
    if decay < 0.5:
        average, value, decay = value, average, 1 - decay
    return np.asarray(average + _as(value, 1 - decay) * (value - average))


def _logarithm(decay: float) -> float:
    """Return the logarithm of a decay, whose powers correct the moments."""
    return math.log(max(decay, 1e-300))


def _as(w: Array, number: float) -> Any:
    """Return a number in the parameters' type, as in the kernels."""
    return w.dtype.type(number)


OPTIMISERS: dict[str, type[Optimiser]] = {
    row.name: row
    for row in (
        Incremental, Batch, Rprop, Quickprop, Sarprop, SGD, Adam, AdamW, RMSprop
    )
}

# Of each of FANN's rules, the field of `FannParameters` for each constant.
_FANN_FIELDS = {
    "incremental": {"learning_rate": "learning_rate", "momentum": "learning_momentum"},
    "batch": {"learning_rate": "learning_rate"},
    "rprop": {name: f"rprop_{name}" for name in (
        "increase_factor", "decrease_factor", "delta_min", "delta_max", "delta_zero")},
    "quickprop": {"learning_rate": "learning_rate", "decay": "quickprop_decay",
                  "mu": "quickprop_mu"},
    "sarprop": {name: f"rprop_{name}" for name in (
        "increase_factor", "decrease_factor", "delta_max")},
}

FANN = "fann"  # the optimiser that a network's `FannParameters` describe
OPTIMISER_NAMES = (*OPTIMISERS, FANN)
CASCADE = "cascade"  # no rule: the training of networks that grow, `nn.cascade`


def optimiser(rule: str | Optimiser) -> Optimiser:
    """Return an optimiser by a name, with default constants, or as it is.

    The name is clnet's or another library's; the constants are clnet's.

    Raises
    ------
    InputError
        If there is no optimiser of that name.
    """
    if isinstance(rule, Optimiser):
        return rule
    return named_row(OPTIMISER, rule, OPTIMISERS, [FANN, CASCADE])()


def fann_optimiser(parameters: FannParameters) -> Optimiser:
    """Return the optimiser that FANN's training parameters describe."""
    name = parameters.training_algorithm
    rule = OPTIMISERS[name](**{
        field: getattr(parameters, fann) for field, fann in _FANN_FIELDS[name].items()
    })
    if isinstance(rule, Rprop):
        return dataclasses.replace(rule, moves_at_zero=True)
    return rule


def as_fann_parameters(rule: Optimiser) -> dict[str, Any]:
    """Return the fields of FannParameters that describe a rule; empty: not FANN's."""
    if rule.name not in _FANN_FIELDS:
        return {}
    fields = _FANN_FIELDS[rule.name]
    return {
        "training_algorithm": rule.name,
        **{fann: getattr(rule, name) for name, fann in fields.items()},
    }
