"""Functions of one variable, piece by piece, exact at every magnitude.

A function is an expression between two edges each, and numbers at the edges, at the
infinities and at NaN. Nodes of a graph compute with such functions: comparisons,
maxima and absolute values have edges where a difference changes its sign. What has no
such form is an `UnknownError`.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.formats.graphs.algebra import Ratio, UnknownError, X
from clnet.nn.activations import (
    LEAK,
    SELU_ALPHA,
    SELU_SCALE,
    SIGMOID_STEPS,
    TANH_STEPS,
    Steps,
    activation,
)

Array = NDArray[Any]

FAR = (-math.inf, math.inf, math.nan)
MOST_EDGES = 64


@dataclass(frozen=True)
class Piecewise:
    """A function of one variable."""

    edges: tuple[float, ...]  # In rising order
    parts: tuple[Ratio, ...]  # Expressions below, between and above the edges
    values: Array  # The function at the edges, and then at `FAR`

    @classmethod
    def of(cls, number: float) -> Piecewise:
        """Return a constant."""
        return cls((), (_part(number),), np.full(len(FAR), float(number)))

    def refined(self, edges: Sequence[float]) -> Piecewise:
        """Return the same function with more edges."""
        merged = sorted({*self.edges, *edges})
        if len(merged) > MOST_EDGES:
            raise UnknownError
        if len(merged) == len(self.edges):
            return self
        pieces = [bisect_left(self.edges, edge) for edge in merged]
        values = [
            self.values[piece] if edge in self.edges[piece : piece + 1]
            else float(self.parts[piece].at(edge))
            for edge, piece in zip(merged, pieces, strict=True)
        ]
        last = len(self.edges)
        parts = [self.parts[piece] for piece in pieces] + [self.parts[last]]
        return Piecewise(tuple(merged), tuple(parts),
                      np.concatenate([values, self.values[last:]]))

    def at(self, x: Array) -> Array:
        """Return the values at finite points that are no edges."""
        values = np.empty(len(x))
        pieces = np.searchsorted(self.edges, x)
        for place, part in enumerate(self.parts):
            within = pieces == place
            values[within] = part.at(x[within])
        return values

    def signed(self) -> tuple[Piecewise, list[int]]:
        """Return the function with edges at its zeros, and each part's sign."""
        zeros = [zero for part, (low, high) in zip(
            self.parts, _ends(self.edges), strict=True
        ) if (zero := part.over.zero()) is not None and low < zero < high]
        refined = self.refined(zeros)
        values = refined.values.copy()
        values[: len(refined.edges)][np.isin(refined.edges, zeros)] = 0
        refined = replace(refined, values=values)
        return refined, [_sign(part, *ends) for part, ends in zip(
            refined.parts, _ends(refined.edges), strict=True)]

    def __add__(self, other: Piecewise) -> Piecewise:
        return _joined(operator.add, operator.add, self, other)

    def __sub__(self, other: Piecewise) -> Piecewise:
        return _joined(operator.sub, operator.sub, self, other)

    def __neg__(self) -> Piecewise:
        return _joined(operator.neg, operator.neg, self)

    def __mul__(self, other: Piecewise) -> Piecewise:
        return _joined(operator.mul, operator.mul, self, other)

    def __truediv__(self, other: Piecewise) -> Piecewise:
        other, signs = other.signed()
        if 0 in signs:
            raise UnknownError
        return _joined(operator.truediv, operator.truediv, self, other)

    def affine(self, scale: float, bias: float) -> Piecewise:
        """Return ``scale * self + bias``."""
        if not (math.isfinite(scale) and math.isfinite(bias)):
            raise UnknownError
        return self * Piecewise.of(scale) + Piecewise.of(bias)


IDENTITY = Piecewise((), (X,), np.array(FAR))


def _part(number: float) -> Ratio:
    if not math.isfinite(number):
        raise UnknownError
    return Ratio.of(number)


def _joined(
    of_parts: Callable[..., Ratio], of_values: Callable[..., Any], *operands: Piecewise
) -> Piecewise:
    """Return a function of functions: of their parts, and of their values."""
    edges = sorted({edge for operand in operands for edge in operand.edges})
    refined = [operand.refined(edges) for operand in operands]
    parts = [of_parts(*parts) for parts in zip(
        *(operand.parts for operand in refined), strict=True)]
    values = of_values(*(operand.values for operand in refined))
    return Piecewise(tuple(edges), tuple(parts), np.asarray(values, np.float64))


def _ends(edges: Sequence[float]) -> Iterator[tuple[float, float]]:
    """Yield the ends of each part."""
    return pairwise([-math.inf, *edges, math.inf])


def _sign(part: Ratio, low: float, high: float) -> int:
    """Return the sign of a part without a zero between two edges; 0: it is zero."""
    if part.constant() == 0:
        return 0
    if not part.under.is_positive:
        raise UnknownError
    if part.over.zero() is not None:
        return 1 if float(part.over.at(np.array(between(low, high)))) > 0 else -1
    for sign in (1, -1):
        if (Ratio.of(sign).over * part.over).is_positive:
            return sign
    raise UnknownError


def between(low: float, high: float) -> float:
    """Return a number between two edges."""
    if math.isinf(low) and math.isinf(high):
        return 0.0
    if math.isinf(low):
        return high - max(1.0, abs(high))
    if math.isinf(high):
        return low + max(1.0, abs(low))
    return low + (high - low) / 2


# --- functions of functions ----------------------------------------------------------


def exp(a: Piecewise) -> Piecewise:
    """Return the exponential."""
    return _joined(Ratio.exp, np.exp, a)


def log(a: Piecewise) -> Piecewise:
    """Return the logarithm of what is positive."""
    a, signs = a.signed()
    if set(signs) != {1}:
        raise UnknownError
    return _joined(Ratio.log, np.log, a)


def sinh(a: Piecewise) -> Piecewise:
    """Return the hyperbolic sine."""
    return (exp(a) - exp(-a)).affine(0.5, 0)


def cosh(a: Piecewise) -> Piecewise:
    """Return the hyperbolic cosine."""
    return (exp(a) + exp(-a)).affine(0.5, 0)


_ERF = np.frompyfunc(math.erf, 1, 1)


def erf(a: Piecewise) -> Piecewise:
    """Return the error function."""
    return _joined(lambda part: part.function("erf"), _ERF, a)


def sin(a: Piecewise) -> Piecewise:
    """Return the sine."""
    return _joined(lambda part: part.function("sin"), np.sin, a)


def cos(a: Piecewise) -> Piecewise:
    """Return the cosine."""
    return _joined(lambda part: part.function("cos"), np.cos, a)


def power(a: Piecewise, exponent: Piecewise) -> Piecewise:
    """Return a power whose exponent is a whole number."""
    number = exponent.parts[0].constant()
    if exponent.edges or number is None or number != round(number) or abs(number) > 8:
        raise UnknownError
    product = Piecewise.of(1.0)
    for _ in range(abs(round(number))):
        product = product * a
    product = Piecewise.of(1.0) / product if number < 0 else product
    with_values = a.refined(product.edges)
    return Piecewise(product.edges, product.parts, np.power(with_values.values, number))


def sqrt(a: Piecewise) -> Piecewise:
    """Return the root of a constant."""
    number = a.parts[0].constant()
    if a.edges or number is None or number < 0:
        raise UnknownError
    return Piecewise((), (_part(math.sqrt(number)),), np.sqrt(a.values))


def compared(name: str, a: Piecewise, b: Piecewise) -> Piecewise:
    """Return 1 where a comparison of NumPy holds, as ``greater``, and 0 elsewhere."""
    function = getattr(np, name)
    difference, signs = (a - b).signed()
    parts = tuple(Ratio.of(float(function(sign, 0))) for sign in signs)
    last = len(difference.edges)
    a, b = a.refined(difference.edges), b.refined(difference.edges)
    values = function(a.values, b.values)
    zeros = difference.values[:last] == 0  # but for rounding of both
    values[:last][zeros] = function(0, 0)
    decided = {*(part.constant() for part in parts), *values[:last].astype(float)}
    if len(decided) == 1 and values[-1] not in decided:
        raise UnknownError  # it decides at NaN alone
    return Piecewise(difference.edges, parts, values.astype(np.float64))


def chosen(condition: Piecewise, a: Piecewise, b: Piecewise) -> Piecewise:
    """Return a where a condition of 0 and 1 holds, elsewhere b."""
    return _joined(
        lambda decided, part, other: part if _holds(decided) else other,
        lambda decided, value, other: np.where(decided != 0, value, other),
        condition, a, b,
    )


def _holds(part: Ratio) -> bool:
    """Return whether a condition holds in a part."""
    decided = part.constant()
    if decided not in (0.0, 1.0):
        raise UnknownError
    return bool(decided)


def logical(name: str, *operands: Piecewise) -> Piecewise:
    """Return ``logical_and`` or another function of conditions of 0 and 1."""
    function = getattr(np, name)
    return _joined(
        lambda *decided: Ratio.of(float(function(*map(_holds, decided)))), function,
        *operands,
    )


def maximum(a: Piecewise, b: Piecewise) -> Piecewise:
    """Return the larger of two functions; NaN where one is."""
    larger = chosen(compared("greater", a, b), a, b)
    a, b = a.refined(larger.edges), b.refined(larger.edges)
    return Piecewise(larger.edges, larger.parts, np.maximum(a.values, b.values))


def minimum(a: Piecewise, b: Piecewise) -> Piecewise:
    """Return the smaller of two functions; NaN where one is."""
    return -maximum(-a, -b)


def absolute(a: Piecewise) -> Piecewise:
    """Return the absolute value."""
    return maximum(a, -a)


def sign(a: Piecewise) -> Piecewise:
    """Return -1, 0 or 1."""
    return compared("greater", a, ZERO) - compared("less", a, ZERO)


def clipped(a: Piecewise, low: float = -math.inf, high: float = math.inf) -> Piecewise:
    """Return a function between two bounds."""
    if low > -math.inf:
        a = maximum(a, Piecewise.of(low))
    return minimum(a, Piecewise.of(high)) if high < math.inf else a


def below_zero(a: Piecewise, b: Piecewise) -> Piecewise:
    """Return b where a is negative, elsewhere a."""
    return chosen(compared("less", a, ZERO), b, a)


def summed(*terms: Piecewise) -> Piecewise:
    """Return the sum of functions."""
    return reduce(operator.add, terms)


# --- activations ---------------------------------------------------------------------


def _sigmoid(v: Piecewise) -> Piecewise:
    return UNIT / (UNIT + exp(-v))


def _tanh(v: Piecewise) -> Piecewise:
    return UNIT - Piecewise.of(2.0) / (exp(v + v) + UNIT)


def _softplus(v: Piecewise) -> Piecewise:
    return log(UNIT + exp(v))


def _gaussian(v: Piecewise) -> Piecewise:
    return exp(-(v * v))


def _elliot(v: Piecewise) -> Piecewise:
    return v / (UNIT + absolute(v))


def _gelu(v: Piecewise) -> Piecewise:
    return v * (UNIT + erf(v.affine(math.sqrt(0.5), 0))).affine(0.5, 0)


def _gelu_tanh(v: Piecewise) -> Piecewise:
    cubic = v + (v * v * v).affine(0.044715, 0)
    return v * _sigmoid(cubic.affine(math.sqrt(8 / math.pi), 0))


def _steps(table: Steps, v: Piecewise) -> Piecewise:
    ends = table.abscissae[0], table.abscissae[-1]
    total = Piecewise.of(table.heights[0])
    points = list(zip(table.abscissae, table.heights, strict=True))
    for (low, y), (high, other) in pairwise(points):
        slope = (other - y) / (high - low)
        total = total + clipped(v, low, high).affine(slope, -slope * low)
    for comparison, end, height in zip(("less", "greater_equal"), ends, (
        table.heights[0], table.heights[-1]), strict=True):
        outside = compared(comparison, v, Piecewise.of(end))
        total = chosen(outside, Piecewise.of(round(height)), total)
    return total


def _threshold(v: Piecewise) -> Piecewise:
    return UNIT - compared("less", v, ZERO)


ZERO, UNIT = Piecewise.of(0.0), Piecewise.of(1.0)
FORMULAS: dict[str, Callable[..., Piecewise]] = {
    "identity": lambda v: v,
    "threshold": _threshold,
    "threshold_symmetric": lambda v: _threshold(v).affine(2, -1),
    "sigmoid": _sigmoid,
    "sigmoid_stepwise": lambda v: _steps(SIGMOID_STEPS, v),
    "tanh": _tanh,
    "tanh_stepwise": lambda v: _steps(TANH_STEPS, v),
    "gaussian": _gaussian,
    "gaussian_symmetric": lambda v: _gaussian(v).affine(2, -1),
    "gaussian_stepwise": lambda v: ZERO,
    "elliot": lambda v: _elliot(v).affine(0.5, 0.5),
    "elliot_symmetric": _elliot,
    "linear_piece": lambda v: clipped(v, 0, 1),
    "linear_piece_symmetric": lambda v: clipped(v, -1, 1),
    "sin_symmetric": sin,
    "cos_symmetric": cos,
    "sin": lambda v: sin(v).affine(0.5, 0.5),
    "cos": lambda v: cos(v).affine(0.5, 0.5),
    "relu": lambda v: clipped(v, 0),
    "leaky_relu": lambda v, slope=LEAK: below_zero(v, v.affine(slope, 0)),
    "elu": lambda v, alpha=1.0: below_zero(v, exp(v).affine(alpha, -alpha)),
    "selu": lambda v: below_zero(
        v, exp(v).affine(SELU_ALPHA, -SELU_ALPHA)).affine(SELU_SCALE, 0),
    "gelu": _gelu,
    "silu": lambda v: v * _sigmoid(v),
    "gelu_tanh": _gelu_tanh,
    "mish": lambda v: v * _tanh(_softplus(v)),
    "hardswish": lambda v: v * clipped(v.affine(1 / 6, 0.5), 0, 1),
    "softplus": _softplus,
    "clip": clipped,
}
"""Activations by their families, of an argument and the parameters."""


def activated(name: str, argument: Piecewise) -> Piecewise:
    """Return an activation of a function."""
    row = activation(name)
    result = FORMULAS[row.family](argument, *row.parameters).refined(argument.edges)
    values = np.asarray(row.value(argument.refined(result.edges).values), np.float64)
    return Piecewise(result.edges, result.parts, values)
