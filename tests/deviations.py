"""Deviations of programs' values by rounding: runs that are perturbed at random."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import reduce
from typing import Any

import numpy as np
from bounds import (
    Arithmetic,
    activation_errors,
    largest_slope,
    sum_error,
    tiny,
    unit,
)
from numpy.typing import NDArray

from clnet import Network
from clnet.ir.activation import ActGrad, BiasAct, BiasGrad
from clnet.ir.loss import Loss, Tally
from clnet.ir.op import Op
from clnet.ir.product import Apply, ApplyT, Outer
from clnet.ir.update import GradientNorm, Update
from clnet.nn.losses import FANN_TANH_LIMIT, loss_function, sigmoid, softmax
from clnet.nn.optimisers import DECAYS, Optimiser
from clnet.nn.storage.layout import live_elements

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
    "identity", "threshold", "threshold_symmetric", "relu", "leaky_relu", "clip",
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
                    op.run(found, weights)
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
                op.run(found, weights)
                if isinstance(op, Update):
                    found["rate"] = rate
                if terms:
                    op.run(sizes, np.abs(weights))
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
    """Return the relative error of the learning rate, in units u.

    Adam divides it by 1 - beta^n of both betas. Each has the errors of a logarithm, of
    its product by n, and of expm1 (3 ulp).
    """
    return 1 + 8 * sum(hasattr(rule, name) for name in ("beta1", "beta2"))


def _terms(op: Op, samples: int) -> int:
    """Return the number of terms in an op's sums; 0: it forms none."""
    if isinstance(op, Apply):
        return op.storage.n_in
    if isinstance(op, ApplyT):
        return op.storage.n_out
    return samples if isinstance(op, (Outer, BiasGrad, Tally)) else 0


def family(name: str) -> str:
    """Return an activation's name without parameters."""
    return name.partition("(")[0]


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
            0.0 if family(name) in PIECEWISE_LINEAR
            else activation_errors(name)[0] + underflow for name in names
        ])
        return {op.y.name: np.broadcast_to(absolute, found[op.y.name].shape)}
    if isinstance(op, ActGrad):
        function, dy = op.nonlinearity, found[op.dy.name]
        names = np.resize(np.asarray(function.names), dy.shape[1])
        steepness = np.resize(np.asarray(function.steepness), dy.shape[1])
        slopes = np.array([
            0.0 if family(name) in PIECEWISE_LINEAR else largest_slope(name)
            for name in names
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
    """Return an op whose constants are rounded to a type of unit u, up or down.

    Of the decay of a moving average, and what it lacks of 1, the smaller is.
    """
    def rounded(row: Any) -> Any:
        numbers = {}
        for field in fields(row):
            if isinstance(value := getattr(row, field.name), float):
                factor = 1 + u * rng.choice((-1, 1))
                complement = field.name in DECAYS and value >= 0.5
                numbers[field.name] = (
                    1 - (1 - value) * factor if complement else value * factor
                )
        return replace(row, **numbers)

    regularisation = rounded(op.regularisation)
    if isinstance(op, GradientNorm):
        return replace(op, regularisation=regularisation)
    return replace(
        op, regularisation=regularisation, optimiser=rounded(op.optimiser)
    )


def differences(network: Network, loss: Callable[[], float]) -> NDArray[Any]:
    """Return the gradient of a loss by central differences, element by element."""
    before, step = network.parameters.copy(), 1e-6
    found = np.zeros_like(before)
    for i in np.flatnonzero(live_elements(network.layout, network.storages)):
        ends = []
        for sign in (1, -1):
            moved = before.copy()
            moved[i] += sign * step
            network.parameters = moved
            ends.append(loss())
        found[i] = (ends[0] - ends[1]) / (2 * step)
    network.parameters = before
    return found
