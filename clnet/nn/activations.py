"""Activation functions, one row each.

A row holds the NumPy pair (value and derivative), the argument that the derivative
reads, and the function's number in FANN's files. The OpenCL pair of row ``name`` is
``act_name`` in ``include/activations.h`` and ``grad_name`` in ``include/gradients.h``;
a row with ``fann_gradient`` has ``fann_grad_name`` there too.

A function with parameters is named with them, as ``clip(-5, inf)``. ``FAMILIES`` has
the makers of such rows; the OpenCL of family ``name`` is ``name_of`` and
``grad_name_of``.

Every function is applied to ``v = steepness * (A x + b)``; ``value(v)`` and
``gradient(v, y)`` are elementwise, and the gradient is ``dy/dv``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clnet.checks import is_among
from clnet.errors import InputError, unknown
from clnet.nn.aliases import ACTIVATION, named_row, own_name

Array = NDArray[Any]

LEAK = 0.01  # slope of leaky_relu below zero, as in FANN and PyTorch
SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772  # its authors'
FANN_SIGMOID_ENDS = (0.01, 0.99)  # FANN's derivatives clip y to these
FANN_TANH_END = 0.98
FANN_SUM_LIMIT = 150.0  # FANN clips steepness * sum to ±150 / steepness


@dataclass(frozen=True)
class Activation:
    """One elementwise activation function."""

    name: str  # The function's name, also the stem of its OpenCL functions
    value: Callable[[Array], Array]  # ``y = value(v)``
    # ``dy/dv = gradient(v, y)``; it reads only the argument that `reads` names
    gradient: Callable[[Array, Array], Array]
    # Argument of the gradient: ``v`` or ``y``. A constant gradient counts as one of
    # ``y``, which is stored anyway
    reads: Literal["v", "y"]
    fann: int | None = None  # The function's number in FANN; None: FANN lacks it
    fann_factor: float = 1.0  # ``steepness = fann_factor * FANN's steepness``
    # Whether FANN takes the output range as [-1, 1] and halves its errors
    symmetric: bool = False
    bounded: bool = True  # Whether ``|f(v)| <= 1`` for all v
    # Bounds of an unbounded function's values
    least: float = -math.inf
    most: float = math.inf
    excess: float = 1.0  # Bound of ``|f(v)| - |v|``
    steepest: float = 2.0  # Bound of ``|f'(v)|``
    # FANN's own gradient where it is inexact, ``fann_gradient(at, steepness)`` with v
    # or y as `reads` says; None: the exact one
    fann_gradient: Callable[[Array, Array], Array] | None = None
    # Those of a family's function, which `name` includes
    parameters: tuple[float, ...] = ()

    @property
    def family(self) -> str:
        """The name without parameters."""
        return self.name.partition("(")[0]

    @property
    def middle(self) -> float | None:
        """Middle of the range, [-1, 1] or [0, 1]; None: the range is unbounded."""
        if not self.bounded:
            return None
        return 0.0 if self.symmetric else 0.5

    @property
    def limits(self) -> tuple[float, float]:
        """Bounds of the function's values."""
        if not self.bounded:
            return self.least, self.most
        return (-1.0, 1.0) if self.symmetric else (0.0, 1.0)


def _sigmoid(v: Array) -> Array:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-v))


def _elu(v: Array) -> Array:
    return np.where(v < 0, np.expm1(np.minimum(v, 0)), v)


def _selu(v: Array) -> Array:
    below = v.dtype.type(SELU_SCALE * SELU_ALPHA) * np.expm1(np.minimum(v, 0))
    return np.asarray(np.where(v < 0, below, v.dtype.type(SELU_SCALE) * v))


# erf is not in NumPy; math.erf is exact to the last bit or two.
_erf = np.frompyfunc(math.erf, 1, 1)


def _normal_cdf(v: Array) -> Array:
    return 0.5 * (1 + np.asarray(_erf(v * math.sqrt(0.5)), v.dtype))


def _gelu(v: Array) -> Array:
    return np.asarray(v * _normal_cdf(v), dtype=v.dtype)


def _gelu_gradient(v: Array, _: Array) -> Array:
    density = np.exp(-0.5 * v * v) / math.sqrt(2 * math.pi)
    return np.asarray(_normal_cdf(v) + v * density, dtype=v.dtype)


def _gelu_tanh(v: Array) -> Array:
    return np.asarray(v * _sigmoid(_twice_gelu_argument(v)), dtype=v.dtype)


def _twice_gelu_argument(v: Array) -> Array:
    """Return 2 u of ``(1 + tanh u) / 2 = sigmoid(2 u)`` (Hendrycks, Gimpel, 2016)."""
    with np.errstate(over="ignore"):
        u: Array = math.sqrt(8 / math.pi) * v * (1 + 0.044715 * v * v)
        return u


def _gelu_tanh_gradient(v: Array, _: Array) -> Array:
    v = np.clip(v, -20, 20)  # beyond, it is 0 or 1
    s = _sigmoid(_twice_gelu_argument(v))
    slope = math.sqrt(8 / math.pi) * (1 + 3 * 0.044715 * v * v)
    return np.asarray(s + v * s * (1 - s) * slope, dtype=v.dtype)


def _mish(v: Array) -> Array:
    return np.asarray(v * np.tanh(_softplus(v)), dtype=v.dtype)


def _mish_gradient(v: Array, _: Array) -> Array:
    v = np.clip(v, -80, 20)  # beyond, it is 0 or 1
    t = np.tanh(_softplus(v))
    return np.asarray(t + v * (1 - t * t) * _sigmoid(v), dtype=v.dtype)


def _hardswish(v: Array) -> Array:
    return np.asarray(v * np.clip(v / 6 + v.dtype.type(0.5), 0, 1))


def _hardswish_gradient(v: Array, _: Array) -> Array:
    inside = v / 3 + v.dtype.type(0.5)
    slope = np.where(v < -3, 0, np.where(v > 3, 1, inside))
    return np.asarray(slope, dtype=v.dtype)


def _silu_gradient(v: Array, _: Array) -> Array:
    s = _sigmoid(v)
    return np.asarray(s * (1 + v * (1 - s)))


def _softplus(v: Array) -> Array:
    return np.asarray(np.maximum(v, 0) + np.log1p(np.exp(-np.abs(v))))


class Steps(NamedTuple):
    """FANN's piecewise linear function, with a small jump at both ends."""

    abscissae: tuple[float, ...]
    heights: tuple[float, ...]

    def value(self, v: Array) -> Array:
        """Return the function of v."""
        low, high = round(self.heights[0]), round(self.heights[-1])
        y: Array = np.interp(v, self.abscissae, self.heights)
        y = np.where(v >= self.abscissae[-1], high, y)
        y = np.where(v < self.abscissae[0], low, y)
        return np.asarray(np.where(np.isnan(v), v, y), dtype=v.dtype)


# FANN's tables, `fann_sigmoid_stepwise` at v = 2 * FANN's v so that it follows sigmoid.
SIGMOID_STEPS = Steps(
    (
        -5.2933049201965332,
        -2.94443893432617188,
        -1.098612308502197266,
        1.098612308502197266,
        2.94443869590759278,
        5.2933058738708496,
    ),
    (
        0.00499999988824129,
        0.0500000007450581,
        0.25,
        0.75,
        0.949999988079071,
        0.995000004768372,
    ),
)
TANH_STEPS = Steps(
    (
        -2.64665293693542480,
        -1.47221934795379639,
        -0.549306154251098633,
        0.549306154251098633,
        1.47221934795379639,
        2.64665293693542480,
    ),
    (
        -0.990000009536743,
        -0.899999976158142,
        -0.5,
        0.5,
        0.899999976158142,
        0.990000009536743,
    ),
)


def _zero(v: Array, *_: Array) -> Array:
    return np.zeros_like(v)


def _one(v: Array, *_: Array) -> Array:
    return np.ones_like(v)


def _threshold(v: Array) -> Array:
    return np.asarray(~(v < 0), dtype=v.dtype)  # NaN gives 1, as in FANN


# FANN's own derivatives: those of sigmoids and linear pieces do not vanish at the ends;
# those of gaussians, sines and cosines contain steepness once too often.
def _fann_sigmoid(y: Array, _: Array) -> Array:
    y = np.clip(y, *(y.dtype.type(limit) for limit in FANN_SIGMOID_ENDS))
    return np.asarray(y * (1 - y))


def _fann_tanh(y: Array, _: Array) -> Array:
    end = y.dtype.type(FANN_TANH_END)
    y = np.clip(y, -end, end)
    return np.asarray(1 - y * y)


def _fann_gaussian(factor: float) -> Callable[[Array, Array], Array]:
    def gradient(v: Array, steepness: Array) -> Array:
        return np.asarray(v.dtype.type(-2 * factor) * v * np.exp(-v * v) * steepness)

    return gradient


def _inside(low: float, high: float) -> Callable[[Array, Array], Array]:
    def gradient(v: Array, _: Array) -> Array:
        return np.asarray((v > low) & (v < high), dtype=v.dtype)

    return gradient


_ROWS = (
    Activation("identity", lambda v: v, _one, "y", 0, bounded=False, excess=0.0),
    Activation("threshold", _threshold, _zero, "y", 1),
    Activation("threshold_symmetric", lambda v: 2 * _threshold(v) - 1, _zero, "y",
               2, symmetric=True),
    Activation("sigmoid", _sigmoid, lambda v, y: y * (1 - y), "y", 3,
               fann_factor=2.0, fann_gradient=_fann_sigmoid),
    Activation("sigmoid_stepwise", SIGMOID_STEPS.value, lambda v, y: y * (1 - y), "y",
               4, fann_factor=2.0, fann_gradient=_fann_sigmoid),
    Activation("tanh", np.tanh, lambda v, y: 1 - y * y, "y", 5, symmetric=True,
               fann_gradient=_fann_tanh),
    Activation("tanh_stepwise", TANH_STEPS.value, lambda v, y: 1 - y * y, "y", 6,
               symmetric=True, fann_gradient=_fann_tanh),
    Activation("gaussian", lambda v: np.exp(-v * v),
               lambda v, y: -2 * v * np.exp(-v * v), "v", 7,
               fann_gradient=_fann_gaussian(1)),
    Activation("gaussian_symmetric", lambda v: 2 * np.exp(-v * v) - 1,
               lambda v, y: -4 * v * np.exp(-v * v), "v", 8, symmetric=True,
               fann_gradient=_fann_gaussian(2)),
    # FANN lists this one without an implementation: it returns 0.
    Activation("gaussian_stepwise", _zero, _zero, "y", 9),
    Activation("elliot", lambda v: v / (2 * (1 + np.abs(v))) + v.dtype.type(0.5),
               lambda v, y: 1 / (2 * (1 + np.abs(v)) ** 2), "v", 10),
    Activation("elliot_symmetric", lambda v: v / (1 + np.abs(v)),
               lambda v, y: 1 / (1 + np.abs(v)) ** 2, "v", 11, symmetric=True),
    Activation("linear_piece", lambda v: np.clip(v, 0, 1), _inside(0, 1), "v", 12,
               fann_gradient=_one),
    Activation("linear_piece_symmetric", lambda v: np.clip(v, -1, 1), _inside(-1, 1),
               "v", 13, symmetric=True, fann_gradient=_one),
    Activation("sin_symmetric", np.sin, lambda v, y: np.cos(v), "v", 14,
               symmetric=True, fann_gradient=lambda v, s: np.cos(s * v)),
    Activation("cos_symmetric", np.cos, lambda v, y: -np.sin(v), "v", 15,
               symmetric=True, fann_gradient=lambda v, s: -np.sin(s * v)),
    Activation("sin", lambda v: np.sin(v) / 2 + v.dtype.type(0.5),
               lambda v, y: np.cos(v) / 2, "v", 16,
               fann_gradient=lambda v, s: np.cos(s * v) / 2),
    Activation("cos", lambda v: np.cos(v) / 2 + v.dtype.type(0.5),
               lambda v, y: -np.sin(v) / 2, "v", 17,
               fann_gradient=lambda v, s: -np.sin(s * v) / 2),
    Activation("relu", lambda v: np.maximum(v, 0),
               lambda v, y: np.asarray(y > 0, dtype=y.dtype), "y", 18,
               bounded=False, excess=0.0, least=0.0, fann_gradient=_one),
    Activation("leaky_relu", lambda v: np.where(v < 0, v * v.dtype.type(LEAK), v),
               lambda v, y: np.where(y < 0, y.dtype.type(LEAK), y.dtype.type(1)),
               "y", 19, bounded=False, excess=0.0),
    Activation("elu", _elu, lambda v, y: np.where(y < 0, y + 1, y.dtype.type(1)),
               "y", bounded=False, excess=0.0, least=-1.0),
    Activation("selu", _selu,
               lambda v, y: np.where(y < 0, y + y.dtype.type(SELU_SCALE * SELU_ALPHA),
                                     y.dtype.type(SELU_SCALE)),
               "y", bounded=False, least=-SELU_SCALE * SELU_ALPHA, excess=math.inf),
    Activation("gelu", _gelu, _gelu_gradient, "v", bounded=False,
               excess=0.0, least=-0.17),
    Activation("silu", lambda v: v * _sigmoid(v), _silu_gradient, "v", bounded=False,
               excess=0.0, least=-0.2785),
    Activation("gelu_tanh", _gelu_tanh, _gelu_tanh_gradient, "v", bounded=False,
               excess=0.0, least=-0.1701),
    Activation("mish", _mish, _mish_gradient, "v", bounded=False, excess=0.0,
               least=-0.3089),
    Activation("hardswish", _hardswish, _hardswish_gradient, "v", bounded=False,
               excess=0.0, least=-0.375),
    Activation("softplus", _softplus, lambda v, y: _sigmoid(v), "v", bounded=False,
               least=0.0),
)

ACTIVATIONS: dict[str, Activation] = {row.name: row for row in _ROWS}


def _clip(name: str, low: float, high: float) -> Activation:
    """Return ``min(max(v, low), high)``, of the rows that have it by their bounds."""
    plain = {
        (-math.inf, math.inf): "identity", (0.0, math.inf): "relu",
        (0.0, 1.0): "linear_piece", (-1.0, 1.0): "linear_piece_symmetric",
    }
    if (low, high) in plain:
        return ACTIVATIONS[plain[low, high]]
    if not low < high:
        raise InputError(
            f"activation {name} has the bounds {low:g} and {high:g}, expected rising "
            "ones"
        )
    return Activation(
        name, lambda v: np.clip(v, v.dtype.type(low), v.dtype.type(high)),
        lambda v, y: np.asarray(
            (y > y.dtype.type(low)) & (y < y.dtype.type(high)), y.dtype),
        "y", bounded=False, least=low, most=high, excess=max(0.0, low, -high),
        parameters=(low, high),
    )


def _leaky_relu_of(name: str, slope: float) -> Activation:
    """Return ``v``, or ``slope v`` below zero."""
    if slope in (LEAK, 1.0):
        return ACTIVATIONS["leaky_relu" if slope == LEAK else "identity"]
    return Activation(
        name, lambda v: np.where(v < 0, v * v.dtype.type(slope), v),
        lambda v, y: np.where(
            (y if slope > 0 else v) < 0, v.dtype.type(slope), v.dtype.type(1)),
        "y" if slope > 0 else "v", bounded=False, least=-math.inf if slope > 0 else 0.0,
        excess=0.0 if abs(slope) <= 1 else math.inf, steepest=max(1.0, abs(slope)),
        parameters=(slope,),
    )


def _elu_of(name: str, alpha: float) -> Activation:
    """Return ``v``, or ``alpha (e^v - 1)`` below zero."""
    if alpha == 1:
        return ACTIVATIONS["elu"]
    size = abs(alpha)
    return Activation(
        name, lambda v: np.where(
            v < 0, v.dtype.type(alpha) * np.expm1(np.minimum(v, 0)), v),
        lambda v, y: np.where(
            v < 0, v.dtype.type(alpha) * np.exp(np.minimum(v, 0)), v.dtype.type(1)),
        "v", bounded=False, least=min(0.0, -alpha),
        # alpha (1 - e^-t) - t is largest at t = ln alpha.
        excess=0.0 if size <= 1 else size - 1 - math.log(size),
        steepest=max(1.0, size), parameters=(alpha,),
    )


FAMILIES: dict[str, tuple[Callable[..., Activation], tuple[str, ...]]] = {
    "clip": (_clip, ("low", "high")),
    "leaky_relu": (_leaky_relu_of, ("slope",)),
    "elu": (_elu_of, ("alpha",)),
}
"""The makers of functions with parameters, and the names of these."""
_CALL = re.compile(r"\s*(\w+)\s*\(([^()]*)\)\s*")

_BY_FANN = {row.fann: row for row in _ROWS if row.fann is not None}

SOFTMAX = "softmax"  # not elementwise: it is lowered to an op of its own
LOG_SOFTMAX = "log_softmax"  # likewise: its logarithm
SOFTMAXES = (SOFTMAX, LOG_SOFTMAX)
OTHER_NAMES = (
    *SOFTMAXES,
    *(f"{family}({','.join(names)})" for family, (_, names) in FAMILIES.items()),
)
ACTIVATION_NAMES = (*ACTIVATIONS, *OTHER_NAMES)


def each_activation(names: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return a layer's activations as a tuple: one for all neurons, or one each."""
    return (names,) if isinstance(names, str) else names


def activation(name: str) -> Activation:
    """Return the row of an activation, by its name here or in another library.

    InputError: no elementwise activation has that name, or parameters are wrong.
    """
    known = own_name(ACTIVATION, name)
    call = _CALL.fullmatch(known) if isinstance(known, str) else None
    if call is not None and call[1] in FAMILIES:
        return _of_family(call[1], tuple(call[2].split(",")))
    return named_row(ACTIVATION, name, ACTIVATIONS, OTHER_NAMES)


def with_parameters(family: str, *parameters: float) -> str:
    """Return the name of a family's function, as ``clip(-5, inf)``."""
    numbers = (repr(float(number)).removesuffix(".0") for number in parameters)
    return activation(f"{family}({', '.join(numbers)})").name


@cache
def _of_family(family: str, texts: tuple[str, ...]) -> Activation:
    """Return the row of a function with parameters, given as texts."""
    make, names = FAMILIES[family]
    largest = float(np.finfo(np.float32).max)  # kernels' type
    try:
        numbers = tuple(float(text) + 0.0 for text in texts)  # no -0
    except ValueError:
        numbers = ()
    endless = family == "clip"
    if len(numbers) != len(names) or not all(
        abs(number) <= largest or (endless and math.isinf(number))
        for number in numbers
    ):
        raise InputError(
            f"activation {family}({','.join(texts)}) has wrong parameters, expected "
            f"{family}({', '.join(names)}) of numbers within float32's range"
            + (", or inf" if endless else "")
        )
    listed = ", ".join(repr(number).removesuffix(".0") for number in numbers)
    return make(f"{family}({listed})", *numbers)


def activation_name(name: str) -> str:
    """Return clnet's name of an activation or a softmax; errors as `activation`."""
    known = own_name(ACTIVATION, name)
    return known if is_among(known, SOFTMAXES) else activation(name).name


def sum_limit(row: Activation, steepness: float) -> float:
    """Return FANN's bound of ``|steepness * sum|``.

    FANN's v is ours over the factor, and FANN's steepness likewise.
    """
    if not steepness:
        return math.inf
    return abs(FANN_SUM_LIMIT * row.fann_factor**2 / steepness)


def fann_activation(number: int) -> Activation:
    """Return the row of an activation by FANN's number (0 to 19)."""
    row = _BY_FANN.get(number)
    if row is None:
        raise unknown("FANN activation number", number, map(str, sorted(_BY_FANN)))
    return row
