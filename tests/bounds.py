"""Error bounds for kernels' arithmetic, from rounding analysis.

A dot product of n terms, summed in any order, differs from the exact one by at most
``n u sum |a_i| |b_i|`` to first order (Higham, "Accuracy and Stability of Numerical
Algorithms", 2nd ed., section 3.1), u being half the type's spacing at 1. Rounding
errors of independent terms cancel: n may be replaced by ``LAMBDA sqrt(n)``, which fails
with a probability of at most ``2 exp(-LAMBDA^2 / 2)`` per sum (Higham and Mary, "A new
approach to probabilistic rounding error analysis", 2019, theorem 2.4). That bound is
tight enough to notice one weight left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.ir.activation import BiasAct, Nonlinearity, Softmax
from clnet.ir.product import Apply
from clnet.ir.program import Span
from clnet.nn.activations import activation

LAMBDA = 6.0  # probability 3e-8 per sum
OVERFLOWS = 1e30  # a target whose squared error overflows in float32

# Errors of computing f(v), as (absolute, relative to the exact value) in units u. They
# hold for builtins as inexact as OpenCL allows (section 7.4 of its specification: exp
# 3 ulp, tanh 5, erf 16, division 2.5 …) and for the forms made of operators.
ACTIVATION_ERRORS = {
    "identity": (0, 0),
    "threshold": (0, 0),
    "threshold_symmetric": (0, 0),
    "sigmoid": (0, 14),
    "sigmoid_stepwise": (4, 4),
    "tanh": (0, 10),
    "tanh_stepwise": (4, 4),
    "gaussian": (0, 8),
    "gaussian_symmetric": (16, 2),
    "gaussian_stepwise": (0, 0),
    "elliot": (8, 2),
    "elliot_symmetric": (0, 8),
    "linear_piece": (0, 0),
    "linear_piece_symmetric": (0, 0),
    "sin_symmetric": (0, 8),
    "cos_symmetric": (0, 8),
    "sin": (4, 2),
    "cos": (4, 2),
    "relu": (0, 0),
    "leaky_relu": (0, 3),
    "elu": (0, 12),
    "selu": (0, 14),
    "gelu": (24, 8),
    "silu": (0, 14),
    "gelu_tanh": (1, 24),
    "mish": (0, 24),
    "hardswish": (4, 4),
    "softplus": (0, 12),
}
FAMILY_ERRORS = {"clip": (0, 0), "leaky_relu": (0, 3), "elu": (0, 14)}
WITH_PARAMETERS = (
    "clip(-10, 10)", "clip(2, inf)", "clip(-inf, 0.125)", "leaky_relu(0.2)",
    "leaky_relu(-0.5)", "elu(0.5)", "elu(-3)",
)
# Points where f jumps, and the height of the jump.
JUMPS = {
    "threshold": ((0.0,), 1.0),
    "threshold_symmetric": ((0.0,), 2.0),
    "sigmoid_stepwise": ((-5.2933049201965332, 5.2933058738708496), 0.005),
    "tanh_stepwise": ((-2.64665293693542480, 2.64665293693542480), 0.01),
}


def activation_errors(name: str) -> tuple[int, int]:
    """Return an activation's errors, absolute and relative, in units u."""
    row = activation(name)
    return (FAMILY_ERRORS if row.parameters else ACTIVATION_ERRORS)[row.family]


def unit(dtype: str) -> float:
    """Return u, half the spacing at 1: the largest relative error of a rounding."""
    return float(np.finfo(dtype).eps) / 2


def tiny(dtype: str) -> float:
    """Return the smallest normal number: devices may flush those below it to zero."""
    return float(np.finfo(dtype).tiny)


def sum_error(n: float, dtype: str) -> float:
    """Return the error bound of a sum of n products over the sum of their sizes."""
    return min(n, LAMBDA * np.sqrt(n)) * unit(dtype)


CURVATURE = 4.0  # bound of all activations' second derivatives, kinks aside


@cache
def largest_slope(name: str) -> float:
    """Return the largest ``|dy/dv|`` of an activation, jumps aside."""
    row = activation(name)
    grid = np.linspace(-10, 10, 20001)
    v = np.nextafter(grid, [[-np.inf], [np.inf]])  # both sides of each kink
    return float(np.abs(row.gradient(v, row.value(v))).max())


def slope(name: str, v: NDArray[Any], error: NDArray[Any]) -> NDArray[Any]:
    """Return the largest ``|dy/dv|`` of an activation within `error` of v."""
    row = activation(name)
    largest = np.full(v.shape, largest_slope(name))
    if name.endswith("_stepwise"):  # their gradients are those of the smooth functions
        return largest
    with np.errstate(all="ignore"):
        near = [
            np.abs(row.gradient(at, row.value(at))) for at in (v - error, v, v + error)
        ]
    return np.fmin(np.max(near, axis=0) + CURVATURE * error, largest)


def activation_bound(
    name: str, v: NDArray[Any], v_error: NDArray[Any] | float, dtype: str
) -> NDArray[Any]:
    """Return the error bound of f(v) for v known up to `v_error`."""
    v = np.asarray(v, np.float64)
    with np.errstate(all="ignore"):
        y = np.abs(activation(name).value(v))
    absolute, relative = activation_errors(name)
    # Squaring and scaling v act as one more rounding of v.
    v_error = v_error + unit(dtype) * np.abs(v) * (relative > 0)
    error = slope(name, v, v_error) * v_error
    error += unit(dtype) * (absolute + relative * y) + tiny(dtype)
    points, height = JUMPS.get(name, ((), 0.0))
    for point in points:
        error += height * (np.abs(v - point) <= v_error + unit(dtype) * abs(point))
    # Where f maps NaN to a number, that number is exact.
    return np.where(np.isnan(error) & ~np.isnan(y), tiny(dtype), error)


def _nonlinearity_bound(
    function: Nonlinearity, sums: NDArray[Any], error: NDArray[Any], dtype: str
) -> NDArray[Any]:
    """Return the error bound of f(clip(steepness * sums)), sums known up to `error`."""
    width = sums.shape[1]
    steepness = np.resize(np.asarray(function.steepness), width)
    limits = np.resize(np.asarray(function.limits or (np.inf,)), width)
    v = np.clip(sums * steepness, -limits, limits)
    v_error = np.abs(steepness) * error + 3 * unit(dtype) * np.abs(v)
    names = np.resize(np.asarray(function.names), width)
    bound = np.empty_like(v)
    for name in sorted(set(function.names)):
        part = names == name
        bound[:, part] = activation_bound(name, v[:, part], v_error[:, part], dtype)
    return bound


def span_bound(
    span: Span, inputs: dict[str, NDArray[Any]], parameters: NDArray[Any],
    arithmetic: Arithmetic | None = None,
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """Return the exact values of a span in float64, and bounds of a kernel's errors.

    Errors that enter an op propagate with its largest slope. The products round as
    `arithmetic` says; None: as the span's dtype.
    """
    exact = {name: np.asarray(x, np.float64) for name, x in inputs.items()}
    weights = np.asarray(parameters, np.float64)
    error: dict[str, Any] = {name: np.zeros_like(x) for name, x in exact.items()}
    sums: dict[str, float] = {}  # relative errors of pre-activations
    for op in span.ops:
        before = dict(exact)
        op.run(exact, weights)
        if isinstance(op, Apply):
            values = weights[op.weights.offset : op.weights.offset + op.weights.size]
            size = np.abs(op.storage.matrix(values))
            # NaN reaches only those who read it, in the exact values too.
            terms = np.nan_to_num(np.abs(before[op.x.name])) @ size.T
            carried = np.nan_to_num(error[op.x.name]) @ size.T
            if op.accumulate:
                terms += np.abs(before[op.z.name])
                carried += error[op.z.name]
            n = op.storage.n_in + 1
            relative = sum_error(n, span.dtype)
            if arithmetic is not None:
                relative *= arithmetic.addition / unit(span.dtype)
                relative += 2 * arithmetic.factor + arithmetic.product
                x = np.nan_to_num(np.abs(before[op.x.name]))
                carried += arithmetic.underflow * (
                    x.max(axis=1, keepdims=True) * size.sum(axis=1)
                    + x.sum(axis=1, keepdims=True) * size.max(axis=1)
                )
            error[op.z.name] = relative * terms + carried
            before_it = sums.get(op.z.name, 0.0) if op.accumulate else 0.0
            sums[op.z.name] = relative + before_it
        elif isinstance(op, BiasAct):
            bias: NDArray[Any] | float = 0.0
            if op.bias is not None:
                bias = weights[op.bias.offset : op.bias.offset + op.bias.size]
            # A kernel may add the bias first: it is then a term of every sum.
            added = 2 * unit(span.dtype) * (np.abs(exact[op.z.name]) + np.abs(bias))
            added = added + sums.get(op.z.name, 0.0) * np.abs(bias)
            error[op.y.name] = _nonlinearity_bound(
                op.nonlinearity, exact[op.z.name] + bias, error[op.z.name] + added,
                span.dtype,
            )
        elif isinstance(op, Softmax):
            x = exact[op.x.name]
            below = x.max(axis=1, keepdims=True) - x
            one = 2 * error[op.x.name].max(axis=1, keepdims=True)
            one = one + unit(span.dtype) * (below + 8)
            total = one.max(axis=1, keepdims=True) + sum_error(x.shape[1], span.dtype)
            error[op.y.name] = np.expm1(one + total)
            if op.log:  # the sum's relative error is the logarithm's absolute one
                error[op.y.name] += 4 * unit(span.dtype) * np.abs(exact[op.y.name])
            else:
                error[op.y.name] *= exact[op.y.name]
            error[op.y.name] += tiny(span.dtype)
    return exact, error


@dataclass(frozen=True)
class Arithmetic:
    """How a kernel rounds."""

    factor: float  # Relative error of a product's factors, at most
    product: float  # Relative error of a product by its omitted splits
    addition: float  # Relative error of an addition
    # Absolute error of a factor, relative to the largest of its row
    underflow: float = 0.0
    dtype: str = "float32"  # Type of values other than factors


# Factors as float32, or as one or two fp16 splits of 11 bits (fp16_split.h): of the
# four products of two splits the smallest is omitted. Matrix units truncate sums, which
# is up to twice a rounding.
FLOAT32 = Arithmetic(0.0, 0.0, unit("float32"))
FLOAT64 = Arithmetic(0.0, 0.0, unit("float64"), dtype="float64")
ONE_SPLIT = Arithmetic(2.0**-11, 0.0, 2.0**-23, 2.0**-39)
FP16_SPLIT = {  # as promised or better: TF32's 11 bits for high, 8 for medium
    "highest": Arithmetic(2.0**-22, 2.0**-22, 2.0**-23, 2.0**-50),
    "high": ONE_SPLIT,
    "medium": ONE_SPLIT,
}
# fused_step.cl aligns the deltas of 16 samples to one scale: the largest is above 2^8,
# the smallest half 2^-24, and low halves are 2^11 times as fine.
FUSED_STEP = {
    "highest": replace(FP16_SPLIT["highest"], underflow=2.0**-44),
    "high": replace(ONE_SPLIT, underflow=2.0**-33),
    "medium": replace(ONE_SPLIT, underflow=2.0**-33),
}


def assert_right(network, x, y):
    """Assert that outputs y [batch, n_out] of inputs x are within their bounds."""
    program = network.program
    span = program.span(0, len(program.ops), len(x))
    exact, bound = span_bound(span, {program.input.name: x}, network.parameters)
    name = program.output.name
    assert y.dtype == network.dtype
    assert y.shape == exact[name].shape
    assert (np.abs(y - exact[name]) <= bound[name]).all()


def close(result: NDArray[Any], expected: NDArray[Any], sizes: Any, terms: Any) -> None:
    """Assert that sums are within rounding; sizes: sums of the terms' magnitudes."""
    unit = np.finfo(result.dtype).eps
    allowed = unit * (LAMBDA * np.sqrt(terms) + 16) * (sizes + 1)
    assert not np.isnan(result).any()
    assert (np.abs(result - expected) <= allowed).all()
