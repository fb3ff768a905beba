"""Error bounds of an epoch of cascade training's neurons, from rounding analysis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from bounds import CURVATURE, activation_bound, sum_error, unit
from deviations import OUTPUT_ROUNDINGS

from clnet.ir.cascade import derivative, value
from clnet.ir.loss import RECORD
from clnet.nn.cascade import Neuron
from clnet.nn.losses import loss_function
from clnet.variants.cascade.cascade import NeuronsTraining, neuron_table

U = unit("float32")


class Epoch(Protocol):
    """Neurons and their data in float64: residuals are the targets of candidates."""

    training: NeuronsTraining
    inputs: Any
    targets: Any
    weights: Any


@dataclass(frozen=True)
class Bounds:
    """Bounds of an epoch's gradients [neurons, read] and records [neurons, RECORD]."""

    gradients: Any
    records: Any


def propagated(found: Epoch, neuron: Neuron, w: Any) -> tuple[Any, Any, Any, Any]:
    """Return y, its error bound, |derivative| and its bound, of each sample."""
    sums = w @ found.inputs
    sums_error = sum_error(len(w) + 1, "float32") * (np.abs(w) @ np.abs(found.inputs))
    x = np.clip(sums, -neuron.limit, neuron.limit)
    v_error = abs(neuron.steepness) * sums_error + 3 * U * np.abs(neuron.steepness * x)
    y_error = activation_bound(neuron.activation, neuron.steepness * x, v_error,
                               "float32")
    below, slope, above = (
        np.abs(derivative(
            neuron, at, candidate=found.training.candidates,
            fann_compatible=found.training.fann_compatible,
        ))
        for at in (sums - sums_error, sums, sums + sums_error)
    )
    slope_error = abs(neuron.steepness) * (
        2 * y_error + CURVATURE * (v_error + sums_error) + OUTPUT_ROUNDINGS * U
    )
    # Kinks: the sum may round to their other side.
    kinks = np.maximum(np.abs(below - slope), np.abs(above - slope))
    return value(neuron, sums), y_error, slope, slope_error + kinks


def candidate_bounds(found: Epoch) -> Bounds:
    """Return bounds of the errors of candidates."""
    n_in, n = found.inputs.shape
    sums = sum_error(n + 4, "float32")
    gradients = np.empty_like(found.weights)
    records = np.zeros((len(found.weights), len(RECORD)))
    for c, neuron in enumerate(found.training.neurons):
        w, u = found.weights[c, :n_in], np.abs(found.weights[c, n_in:])
        y, y_error, slope, slope_error = propagated(found, neuron, w)
        size = np.outer(u, np.abs(y)) + np.abs(found.targets)
        error = np.outer(u, y_error) + 2 * U * size
        along, along_error = u @ size, u @ error + 4 * U * (u @ size)
        d_error = along_error * slope + along * slope_error
        gradients[c, :n_in] = np.abs(found.inputs) @ (d_error + sums * along * slope)
        gradients[c, n_in:] = 2 * (
            error @ np.abs(y) + size @ y_error + sums * (size @ np.abs(y))
        )
        records[c, 1] = (2 * size * error + sums * size**2).sum()
    return Bounds(gradients, records)


def output_bounds(found: Epoch) -> Bounds:
    """Return bounds of the errors of outputs.

    Losses' gradients are monotone, so that they change most at the ends of an interval.
    """
    training, samples = found.training, found.inputs.shape[1]
    row, sums = loss_function(training.loss), sum_error(samples + 4, "float32")
    factor = 1 / len(training.neurons) if row.mean else 1.0
    gradients = np.empty_like(found.weights)
    records = np.empty((len(found.weights), len(RECORD)))
    scales = neuron_table(training)["error_scale"].astype(float)
    for j, neuron in enumerate(training.neurons):
        y, y_error, slope, slope_error = propagated(found, neuron, found.weights[j])
        t, half = found.targets[j], scales[j]
        size = np.abs(t) + np.abs(y)
        moved = y_error + 4 * U * size

        def change(of: Any, y: Any = y, t: Any = t, half: Any = half,
                   moved: Any = moved) -> tuple[Any, Any]:
            at = factor * of(y, t, half)
            ends = (np.abs(factor * of(y + by, t, half) - at) for by in (-moved, moved))
            return np.abs(at), np.maximum(*ends)

        along, error = change(row.gradient)
        error += 16 * U * (along + factor * size)
        d_error = error * slope + along * slope_error
        gradients[j] = np.abs(found.inputs) @ (d_error + sums * along * slope)
        value, error = change(row.value)
        error += 16 * U * (value + factor * size)
        near = np.abs(np.abs(half * (t - y)) - training.bit_fail_limit) <= moved + 4 * U
        records[j] = (
            (error + sums * value).sum(),
            (half**2 * (2 * size * moved + sums * size**2)).sum(),
            np.count_nonzero(near),
        )
    return Bounds(gradients, records)
