"""The meaning of cascade training's epochs, in NumPy: the oracle of its kernels.

Inputs are the values of all earlier neurons [n_in, samples], of which one is the
constant 1. Neurons' weights are [neurons, n_in]; those of candidates [neurons, n_in +
outputs], with the weights to the outputs last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.nn.activations import activation
from clnet.nn.cascade import Neuron, candidate_gradient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clnet.nn.losses import LossFunction

Array = NDArray[Any]


def value(neuron: Neuron, sums: Array) -> Array:
    """Return a neuron's outputs of sums, of any shape."""
    x = np.clip(sums, -neuron.limit, neuron.limit)
    return activation(neuron.activation).value(neuron.steepness * x)


def derivative(
    neuron: Neuron, sums: Array, *, candidate: bool, fann_compatible: bool = False
) -> Array:
    """Return the derivative of `value` by the sums, as the training takes it."""
    row = activation(neuron.activation)
    x = np.clip(sums, -neuron.limit, neuron.limit)
    v = neuron.steepness * x
    y = row.value(v)
    fann, reads = (
        candidate_gradient(neuron.activation) if candidate
        else (fann_compatible, row.reads)
    )
    if fann and row.fann_gradient is not None:
        at = y if reads == "y" else v
        slope = row.fann_gradient(at, np.asarray(neuron.steepness, v.dtype))
    else:
        slope = row.gradient(x if reads == "x" else v, y)
    return np.asarray(slope * neuron.steepness)


def candidates_epoch(
    inputs: Array, residuals: Array, neurons: Sequence[Neuron], weights: Array
) -> tuple[Array, Array]:
    """Return gradients and squared errors of candidates.

    Candidate c's squared error is the sum over samples and outputs j of ``(y_c u_cj -
    r_j)^2``. Its gradient by the output weights u is exact, that by the input weights
    half of it, as in FANN.
    """
    n_in = len(inputs)
    gradients, squares = np.empty_like(weights), np.empty(len(weights), weights.dtype)
    for c, neuron in enumerate(neurons):
        w, u = weights[c, :n_in], weights[c, n_in:]
        sums = w @ inputs
        y = value(neuron, sums)
        difference = np.outer(u, y) - residuals
        slope = (u @ difference) * derivative(neuron, sums, candidate=True)
        gradients[c] = np.concatenate([inputs @ slope, 2 * difference @ y])
        squares[c] = (difference**2).sum()
    return gradients, squares


def outputs_epoch(
    inputs: Array, targets: Array, neurons: Sequence[Neuron], weights: Array,
    loss: LossFunction, scales: Array, bit_fail_limit: float, fann_compatible: bool,
) -> tuple[Array, Array]:
    """Return gradients [outputs, n_in] and records [outputs, 3] of outputs.

    A record is the sum over samples of the loss, of squared errors, and of bit fails.
    `scales` [outputs] are 0.5 where FANN halves errors; other arguments as for
    `candidates_epoch`.
    """
    gradients = np.empty_like(weights)
    records = np.empty((len(weights), 3), weights.dtype)
    factor = 1 / len(weights) if loss.mean else 1.0
    for j, neuron in enumerate(neurons):
        sums = weights[j] @ inputs
        y = value(neuron, sums)
        t, half = targets[j], scales[j]
        dy = derivative(
            neuron, sums, candidate=False, fann_compatible=fann_compatible
        )
        gradients[j] = inputs @ (loss.gradient(y, t, half) * factor * dy)
        error = half * (t - y)
        records[j] = (
            loss.value(y, t, half).sum() * factor, (error**2).sum(),
            np.count_nonzero(np.abs(error) >= bit_fail_limit),
        )
    return gradients, records
