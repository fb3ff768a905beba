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

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.ir import reference
from clnet.ir.ops import Apply, BiasAct, Nonlinearity, Op, Softmax, Span
from clnet.ir.training_ops import (
    ActGrad,
    ApplyT,
    BiasGrad,
    GradientNorm,
    Loss,
    Outer,
    Tally,
    Update,
)
from clnet.nn.activations import ACTIVATIONS
from clnet.nn.losses import FANN_TANH_LIMIT, loss_function, sigmoid, softmax
from clnet.nn.optimisers import Optimiser

LAMBDA = 6.0  # probability 3e-8 per sum

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
    "gelu": (24, 8),
    "silu": (0, 14),
    "gelu_tanh": (1, 24),
    "mish": (0, 24),
    "hardswish": (4, 4),
    "softplus": (0, 12),
}
# Points where f jumps, and the height of the jump.
JUMPS = {
    "threshold": ((0.0,), 1.0),
    "threshold_symmetric": ((0.0,), 2.0),
    "sigmoid_stepwise": ((-5.2933049201965332, 5.2933058738708496), 0.005),
    "tanh_stepwise": ((-2.64665293693542480, 2.64665293693542480), 0.01),
}


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
    row = ACTIVATIONS[name]
    v = np.linspace(-10, 10, 20001)
    return float(np.abs(row.gradient(v, row.value(v))).max())


def slope(name: str, v: NDArray[Any], error: NDArray[Any]) -> NDArray[Any]:
    """Return the largest ``|dy/dv|`` of an activation within `error` of v."""
    row = ACTIVATIONS[name]
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
        y = np.abs(ACTIVATIONS[name].value(v))
    absolute, relative = ACTIVATION_ERRORS[name]
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
        reference.run_op(op, exact, weights)
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
    """How a kernel rounds.

    Attributes
    ----------
    factor : float
        Relative error of a product's factors, at most.
    product : float
        Relative error of a product by its omitted splits.
    addition : float
        Relative error of an addition.
    underflow : float
        Absolute error of a factor, relative to the largest of its row.
    dtype : str
        Type of values other than factors.
    """

    factor: float
    product: float
    addition: float
    underflow: float = 0.0
    dtype: str = "float32"


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
DRAWS = 16  # a power of two
# Column c of an orthogonal array of two levels and strength two: the parities of the
# bits that c and a draw have in common (Hedayat, Sloane and Stufken, "Orthogonal
# Arrays", 1999, section 3.2). A column has each level in half of the draws, and any two
# have both levels together in some draw.
PARITIES = np.array([
    [(column & draw).bit_count() % 2 for column in range(DRAWS)]
    for draw in range(DRAWS)
])
FUNCTION_ROUNDINGS = 10  # of the functions and rules that ops apply
OUTPUT_ROUNDINGS = 16  # of sigmoid, softmax, and slopes (`ACTIVATION_ERRORS`)
# Functions whose derivative is one of few numbers, exact but where it jumps.
PIECEWISE_LINEAR = {
    "identity", "threshold", "threshold_symmetric", "relu", "leaky_relu",
    "linear_piece", "linear_piece_symmetric", "gaussian_stepwise",
}


def deviations(
    ops: Sequence[Op], inputs: Mapping[str, Any], parameters: NDArray[Any],
    arithmetic: Arithmetic, passes: Sequence[Mapping[str, Any]] = ({},),
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """Return the exact values of ops in float64, and their deviations by rounding.

    Through many layers and back, bounds of the largest errors are far above the actual
    errors, which cancel. So the values that an op writes, and the weights, are
    perturbed several times, by random numbers whose root mean square is the largest
    rounding error possible there: a value's deviation is the root mean square. A
    kernel's errors are no larger and as independent, so that its values stay within
    `LAMBDA` deviations.

    The random numbers are uniform: errors of one size and random signs, of two steps,
    cancel in all draws for one value in 2^DRAWS.

    Results that underflow may be flushed to zero: each product and each result has an
    absolute error of the smallest normal number, unless it is an exact zero (Higham,
    section 2.8, with flushing in place of gradual underflow).

    Each of the passes runs all ops, with some values set before.
    """
    runs = perturbed_runs(ops, inputs, parameters, arithmetic, passes)
    exact, draws = next(runs), list(runs)
    written = {value.name for op in ops for value in op.writes}
    return exact, {
        name: deviation(exact[name], [draw[name] for draw in draws]) for name in written
    }


def deviation(exact: NDArray[Any], draws: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the root mean square of draws about exact values.

    Squares of numbers below 1e-154 would underflow, so none is formed.
    """
    distances = [draw - exact for draw in draws]
    return np.asarray(reduce(np.hypot, distances, 0.0) / np.sqrt(len(draws)))


def perturbed_runs(
    ops: Sequence[Op], inputs: Mapping[str, Any], parameters: NDArray[Any],
    arithmetic: Arithmetic, passes: Sequence[Mapping[str, Any]] = ({},),
) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield the exact values of ops, then those of `DRAWS` perturbed runs.

    See `deviations`; the state of an optimiser, ``state``, is perturbed too.
    """
    rng, columns = np.random.default_rng(0), np.random.default_rng(1)
    parities = PARITIES[0]
    # An error is beside the limit's rounded value or beyond it: no rounding errs there.
    ops = [
        replace(op, bit_fail_limit=float(np.dtype(arithmetic.dtype).type(
            op.bit_fail_limit
        ))) if isinstance(op, Loss) else op
        for op in ops
    ]
    initial = {
        name: np.array(x, np.float64) if np.ndim(x) == 2 else np.array(x)
        for name, x in inputs.items()
    }
    start = np.asarray(parameters, np.float64)
    fan_in = Counter[str]()
    for op in ops:
        if isinstance(op, Apply):
            fan_in[op.z.name] += op.storage.n_in

    def perturbed(values: NDArray[Any], by: NDArray[Any] | float) -> NDArray[Any]:
        found = values + rng.uniform(-np.sqrt(3), np.sqrt(3), values.shape) * by
        # A sigmoid's output rounds to 1, its slope then to 0: rules that know signs
        # treat 0 as neither. Each value near -1, 0 or 1 is drawn as that in half of the
        # draws, and any two both are, and both are not, in some draw.
        nearest = np.clip(np.rint(values), -1.0, 1.0)
        at_end = np.abs(values - nearest) <= by
        ends = parities[columns.integers(1, DRAWS, values.shape)]
        return np.where(at_end & (ends == 0), nearest, found)

    def run(rounded: Arithmetic | None) -> dict[str, NDArray[Any]]:
        found = {name: x.copy() for name, x in initial.items()}
        weights = start.copy()
        if rounded is not None:
            weights = perturbed(weights, factor_error(weights, rounded))
        for values in passes:
            found.update({name: np.asarray(x) for name, x in values.items()})
            for op in ops:
                if rounded is None:
                    reference.run_op(op, found, weights)
                    continue
                terms = _terms(op, int(found["samples"]))
                sizes = {
                    value.name: np.abs(found[value.name]) for value in op.reads
                } if terms else {}
                rate = found.get("rate")
                if isinstance(op, (GradientNorm, Update)):
                    op = _with_rounded_constants(op, unit(rounded.dtype), rng)
                if isinstance(op, Update):
                    by = unit(rounded.dtype) * _rate_roundings(op.optimiser)
                    found["rate"] = perturbed(np.asarray(rate), by * rate)
                if isinstance(op, BiasAct) and op.bias is not None:
                    # A kernel may add the bias first: it is then a term of every sum.
                    bias = weights[op.bias.offset : op.bias.offset + op.bias.size]
                    by = fan_in[op.z.name] * rounded.addition * np.abs(bias)
                    found[op.z.name] = perturbed(found[op.z.name], by)
                reference.run_op(op, found, weights)
                if isinstance(op, Update):
                    found["rate"] = rate
                if terms:
                    reference.run_op(op, sizes, np.abs(weights))
                round_off(op, terms, found, sizes, weights, rounded)
        return found

    def round_off(
        op: Op, terms: int, found: dict[str, NDArray[Any]],
        sizes: dict[str, NDArray[Any]], weights: NDArray[Any], rounded: Arithmetic,
    ) -> None:
        u = unit(rounded.dtype)
        more = _cancellations(op, found, tiny(rounded.dtype) / u)
        for value in op.writes:
            by = FUNCTION_ROUNDINGS * u * np.abs(found[value.name])
            by += factor_error(found[value.name], rounded)
            by += u * more.get(value.name, 0.0)
            if terms:
                sums = rounded.product + terms * rounded.addition
                by = by + sums * sizes[value.name]
            by = by + np.where(by > 0, (1 + terms) * tiny(rounded.dtype), 0.0)
            found[value.name] = perturbed(found[value.name], by)
        if isinstance(op, Tally):  # a sum of squares, whose root a rule takes
            squares = found[op.totals.name][:, 1]
            np.maximum(squares, 0.0, out=squares)
        if isinstance(op, GradientNorm):
            norm = found[op.norm.name]
            found[op.norm.name] = perturbed(norm, sum_error(
                op.layout.size, rounded.dtype
            ) * norm)
        if isinstance(op, Update):
            weights[...] = found[op.parameters.name][0]
            state = found["state"]
            found["state"] = perturbed(state, FUNCTION_ROUNDINGS * u * np.abs(state))

    yield run(None)
    for draw in range(DRAWS):  # the columns are the same in each
        parities, columns = PARITIES[draw], np.random.default_rng(1)
        yield run(arithmetic)


def factor_error(factors: NDArray[Any], arithmetic: Arithmetic) -> NDArray[Any]:
    """Return the errors of an array's elements as factors of products."""
    size: NDArray[Any] = np.abs(factors)
    return arithmetic.factor * size + arithmetic.underflow * size.max(initial=0.0)


def _rate_roundings(rule: Optimiser) -> float:
    """Return the relative error of the learning rate by constants, in units u.

    Adam weighs gradients by 1 - beta, of a rounded beta, and corrects by another.
    """
    betas = [getattr(rule, name, 0.0) for name in ("beta1", "beta2")]
    return 1 + sum(beta / (1 - beta) for beta in betas)


def _terms(op: Op, samples: int) -> int:
    """Return the number of terms in an op's sums; 0: it forms none."""
    if isinstance(op, Apply):
        return op.storage.n_in
    if isinstance(op, ApplyT):
        return op.storage.n_out
    return samples if isinstance(op, (Outer, BiasGrad, Tally)) else 0


def _cancellations(
    op: Op, found: Mapping[str, NDArray[Any]], underflow: float
) -> dict[str, NDArray[Any]]:
    """Return errors of written values that may be large beside them, in units u.

    These are differences of inexact terms: an activation near its zeros; a loss that
    includes the activation, as it subtracts the target from it; a derivative, as
    1 - y^2. And FANN's tanh error is steep where the difference is near 1. A function
    may be off by `underflow` where it underflows in float64 too.
    """
    if isinstance(op, BiasAct):
        names = np.resize(np.asarray(op.nonlinearity.names), op.y.width)
        absolute = np.array([
            0.0 if name in PIECEWISE_LINEAR else ACTIVATION_ERRORS[name][0] + underflow
            for name in names
        ])
        return {op.y.name: np.broadcast_to(absolute, found[op.y.name].shape)}
    if isinstance(op, ActGrad):
        function, dy = op.nonlinearity, found[op.dy.name]
        names = np.resize(np.asarray(function.names), dy.shape[1])
        steepness = np.resize(np.asarray(function.steepness), dy.shape[1])
        slopes = np.array([
            0.0 if name in PIECEWISE_LINEAR else largest_slope(name) for name in names
        ])
        return {op.dz.name: OUTPUT_ROUNDINGS * np.abs(dy * steepness) * slopes}
    if not isinstance(op, Loss):
        return {}
    z, t = found[op.y.name], found[op.t.name]
    weight = 1.0 if op.weight is None else np.abs(found[op.weight.name])
    record = np.zeros_like(found[op.record.name])
    if op.loss == "fann_tanh":  # log((1 + d) / (1 - d)), and its antiderivative
        half = np.where(op.halved, 0.5, 1.0)
        d = np.minimum(np.abs(t - z) * half, FANN_TANH_LIMIT)
        record[:, 0] = FUNCTION_ROUNDINGS * (d / half * weight).sum(axis=1)
        error = (FUNCTION_ROUNDINGS + 2 * d / (1 - d * d)) * weight
        return {op.dy.name: error, op.record.name: record}
    fused = loss_function(op.loss).fused
    if fused is None:
        return {}
    factor = weight
    largest, t = np.abs(z).max(axis=1, keepdims=True), np.abs(t)
    if loss_function(op.loss).mean:
        weight = weight / op.y.width
    y = sigmoid(z) if fused == "sigmoid" else softmax(z) * t.sum(axis=1, keepdims=True)
    terms = ((1 + t) * (np.abs(z) + largest) * weight).sum(axis=1)
    record[:, 0] = FUNCTION_ROUNDINGS * terms
    record[:, 1] = 2 * OUTPUT_ROUNDINGS * (factor * np.square(y + t)).sum(axis=1)
    error = (OUTPUT_ROUNDINGS * (y + t) + underflow) * weight
    return {op.dy.name: error, op.record.name: record}


def _with_rounded_constants(
    op: GradientNorm | Update, u: float, rng: np.random.Generator
) -> GradientNorm | Update:
    """Return an op whose constants are rounded to a type of unit u, up or down."""
    def rounded(row: Any) -> Any:
        numbers = {
            field.name: value * (1 + u * rng.choice((-1, 1)))
            for field in fields(row)
            if isinstance(value := getattr(row, field.name), float)
        }
        return replace(row, **numbers)

    regularisation = rounded(op.regularisation)
    if isinstance(op, GradientNorm):
        return replace(op, regularisation=regularisation)
    return replace(
        op, regularisation=regularisation, optimiser=rounded(op.optimiser)
    )


def assert_right(network, x, y):
    """Assert that outputs y [batch, n_out] of inputs x are within their bounds."""
    program = network.program
    span = program.span(0, len(program.ops), len(x))
    exact, bound = span_bound(span, {program.input.name: x}, network.parameters)
    name = program.output.name
    assert y.dtype == network.dtype
    assert y.shape == exact[name].shape
    assert (np.abs(y - exact[name]) <= bound[name]).all()
