"""Error bounds for float arithmetic, from standard rounding analysis.

Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., section 3.1: a dot
product of n terms in any order differs from the exact one by at most
``gamma(n) * sum |a_i| |b_i|`` with ``gamma(n) = n u / (1 - n u)``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet import reference
from clnet.activations import activation
from clnet.ops import Apply, BiasAct, Softmax, Span

# Largest |dy/dv| of each activation that is not at most 1, and jumps (None).
_SLOPES = {"gelu": 1.13, "silu": 1.1, "gaussian_symmetric": 1.72}
_JUMPS = ("threshold", "threshold_symmetric", "sigmoid_stepwise", "tanh_stepwise")
# What an activation's own evaluation may add, in units of the type's rounding: the
# operator-only forms are good to about 3e-7 of a value below 1.
_OWN = 12.0


def span_bound(
    span: Span, inputs: dict[str, NDArray[Any]], parameters: NDArray[Any]
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """Return the exact values of a span in float64, and bounds of a kernel's errors.

    Errors that enter an op are carried through it with its largest slope.
    """
    exact = {name: np.asarray(x, np.float64) for name, x in inputs.items()}
    weights = np.asarray(parameters, np.float64)
    error = {name: np.zeros_like(x) for name, x in exact.items()}
    unit = float(np.finfo(span.dtype).eps) / 2
    for op in span.ops:
        reference.run_op(op, exact, weights)
        if isinstance(op, Apply):
            values = weights[op.weights.offset : op.weights.offset + op.weights.size]
            size = np.abs(op.storage.matrix(values))
            n = op.storage.n_in + 4
            gamma = n * unit / (1 - n * unit)
            before = error.get(op.sums.name, 0) if op.accumulate else 0
            error[op.sums.name] = (
                gamma * (np.abs(exact[op.x.name]) @ size.T)
                + gamma * np.abs(exact[op.sums.name])
                + error[op.x.name] @ size.T * (1 + gamma) + before
            )
        elif isinstance(op, BiasAct):
            function = op.nonlinearity
            slope = max(_SLOPES.get(name, 1.0) for name in function.names)
            steep = np.abs(np.asarray(function.steepness))
            bias = 0.0
            if op.bias is not None:
                bias = weights[op.bias.offset : op.bias.offset + op.bias.size]
            sums = np.abs(exact[op.sums.name]) + np.abs(bias)
            carried = slope * steep * (error[op.sums.name] + 4 * unit * sums)
            error[op.y.name] = carried + _OWN * unit * (
                1 + np.abs(exact[op.y.name]) + steep * sums
            )
        elif isinstance(op, Softmax):
            largest = error[op.x.name].max(axis=1, keepdims=True)
            spread = np.abs(exact[op.x.name]).max(axis=1, keepdims=True)
            error[op.y.name] = exact[op.y.name] * np.expm1(
                2 * largest + (8 + op.y.width + 4 * spread) * unit
            ) + _OWN * unit
    return exact, error


def continuous(span: Span) -> bool:
    """Return whether no activation of the span jumps (a bound then holds)."""
    return not any(
        name in _JUMPS and activation(name)
        for op in span.ops if isinstance(op, BiasAct)
        for name in op.nonlinearity.names
    )
