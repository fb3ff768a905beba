"""The kernels of cascade training beside the oracle, around edges of tiles, blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from bounds import unit
from differential.cascade_bounds import candidate_bounds, output_bounds, propagated

from clnet.ir.cascade import candidates_epoch, outputs_epoch
from clnet.nn.activations import ACTIVATIONS
from clnet.nn.cascade import Cascade, network_neuron
from clnet.nn.losses import loss_function
from clnet.nn.optimisers import Batch, Quickprop, Rprop, Sarprop
from clnet.opencl.discovery import device
from clnet.opencl.session import session
from clnet.training.cascade.launches import Workspace
from clnet.variants.cascade.cascade import (
    BLOCK,
    TILE,
    CascadeSamples,
    NeuronsTraining,
    NeuronValues,
    neuron_table,
)

DEVICE = device()
SESSION = session(DEVICE)
# The kernels of GPUs run on CPUs too; those of CPUs are for these alone.
KINDS = {
    "gpu": replace(DEVICE, type="gpu", companions=()),
    **({"cpu": DEVICE} if DEVICE.type == "cpu" else {}),
}
SPARE = 3  # rows of inputs that no neuron reads yet: NaN
U = unit("float32")
FUNCTIONS = tuple(
    row.name for row in ACTIVATIONS.values()
    if row.fann is not None and row.name not in ("leaky_relu", "gaussian_stepwise")
)
RATE, LIMIT = 0.25, 0.35


@dataclass
class Case:
    """Neurons on a device, with their data in float64."""

    training: NeuronsTraining
    workspace: Workspace
    inputs: Any
    targets: Any
    weights: Any

    def run(self, kind, epochs=1, start=0, first=0, seed=3):
        """Run a launch from one half of the parameters to the other."""
        half = self.training.size
        launch = self.workspace.bound(self.training.launch(KINDS[kind]))
        launch(**{
            "from": start * half, "to": (1 - start) * half, "n_in": len(self.inputs),
            "epochs": epochs, "steps": first * (not self.training.candidates),
            "rate": RATE, "error": 0.5, "seed": seed + first,
        })
        count = len(self.training.neurons)
        records = self.workspace.read(self.training.records, epochs * count * 3)
        found = self.workspace.read(self.training.parameters, 2 * half)
        return (
            found.reshape(2, *self.training.shape)[1 - start],
            records.reshape(epochs, count, 3),
        )


def case(samples, n_in, outputs, count, candidates, rule=None, fann=False,
         loss="mse"):
    rng = np.random.default_rng([samples, n_in, outputs, count])
    described = CascadeSamples("training", samples, n_in + SPARE, outputs)
    if candidates:
        cascade = Cascade(activation_functions=FUNCTIONS, num_candidate_groups=3)
        neurons = cascade.neurons()
        neurons = tuple(neurons[i] for i in rng.choice(len(neurons), count, False))
    else:
        neurons = tuple(
            network_neuron(name, float(s), fann) for name, s in zip(
                rng.choice(["sigmoid", "tanh", "identity", "gaussian"], count),
                rng.uniform(0.3, 1, count), strict=True,
            )
        )
    training = NeuronsTraining(
        described, neurons, candidates, rule or Batch(learning_rate=RATE), loss, LIMIT,
        4, fann, fann,
    )
    inputs = rng.uniform(-1, 1, (n_in, samples)).astype(np.float32)
    targets = rng.uniform(-0.9, 0.9, (outputs, samples)).astype(np.float32)
    read = n_in + outputs * candidates
    weights = rng.uniform(-1, 1, (count, read)).astype(np.float32)
    workspace = Workspace(SESSION)
    rows = np.full((n_in + SPARE, samples), np.nan, np.float32)
    rows[:n_in] = inputs
    workspace.write(described.inputs, described.tiled(rows))
    workspace.write(
        described.residuals if candidates else described.targets,
        described.tiled(targets),
    )
    workspace.write(training.table, neuron_table(training))
    _, slots, stride = training.shape
    parameters = np.full((2, count, slots, stride), np.nan, np.float32)
    parameters[0] = 0
    parameters[0, :, 0, :read] = weights
    parameters[0, :, 1:, :read] = training.rule.initial_state(read, "float32")
    workspace.write(training.parameters, parameters)
    workspace.write(
        training.records, np.full(training.records.size // 4, np.nan, np.float32)
    )
    return Case(training, workspace, *(
        array.astype(np.float64) for array in (inputs, targets, weights)
    ))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("samples, n_in, outputs, count", [
    pytest.param(*sizes, marks=[pytest.mark.unoptimised] * (sizes[0] < TILE))
    for sizes in (
        (1, 1, 1, 1), (7, 2, 1, BLOCK - 1), (TILE - 1, 9, 2, BLOCK),
        (TILE, 8, 1, BLOCK + 1), (TILE + 1, 17, 3, 2 * BLOCK),
        (4 * TILE + 9, 33, 2, 30),
    )
])
def test_gradients_of_candidates(kind, samples, n_in, outputs, count):
    found = case(samples, n_in, outputs, count, True)
    expected, squares = candidates_epoch(
        found.inputs, found.targets, found.training.neurons, found.weights
    )
    parameters, records = found.run(kind)
    read = found.weights.shape[1]
    rate = RATE / samples
    bounds = candidate_bounds(found)
    bound = bounds.gradients
    moved = found.weights - rate * expected
    error = np.abs(parameters[:, 0, :read] - moved)
    assert (error <= rate * bound + 4 * U * (np.abs(moved) + rate * bound)).all()
    assert (np.abs(records[0, :, 1] - squares) <= bounds.records[:, 1]).all()


@pytest.mark.unoptimised
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss, fann, samples, n_in, count", [
    ("mse", False, 1, 1, 1), ("fann_tanh", True, TILE - 1, 9, BLOCK - 1),
    ("fann_linear", True, TILE, 8, BLOCK), ("mse", False, TILE + 1, 5, 2),
    ("fann_tanh", True, 3 * TILE + 1, 21, BLOCK + 3),
])
def test_gradients_of_outputs(kind, loss, fann, samples, n_in, count):
    found = case(samples, n_in, count, count, False, fann=fann, loss=loss)
    row, training = loss_function(loss), found.training
    half = neuron_table(training)["error_scale"].astype(float)
    expected, exact = outputs_epoch(
        found.inputs, found.targets, training.neurons, found.weights, row, half, LIMIT,
        fann,
    )
    parameters, records = found.run(kind)
    rate = RATE / samples
    bounds = output_bounds(found)
    moved = found.weights - rate * expected
    error = np.abs(parameters[:, 0, :n_in] - moved)
    rounding = 4 * U * (np.abs(moved) + rate * bounds.gradients)
    assert (error <= rate * bounds.gradients + rounding).all()
    assert (np.abs(records[0] - exact) <= bounds.records).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("candidates", [True, False], ids=["candidates", "outputs"])
@pytest.mark.parametrize(
    "rule", [Rprop(moves_at_zero=True), Quickprop(), Sarprop()],
    ids=lambda rule: rule.name,
)
@pytest.mark.unoptimised
def test_epochs_of_a_launch_are_those_of_several(kind, candidates, rule):
    """Bit for bit: a launch of three epochs, and three of one each."""
    count = 5
    outputs = 2 if candidates else count
    one = case(70, 6, outputs, count, candidates, rule)
    other = case(70, 6, outputs, count, candidates, rule)
    expected, records = one.run(kind, epochs=3)
    assert np.isfinite(expected).all()
    for epoch in range(3):
        parameters, record = other.run(kind, start=epoch % 2, first=epoch)
        np.testing.assert_array_equal(record[0], records[epoch])
    np.testing.assert_array_equal(parameters, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_rprop_moves_by_the_gradients_signs(kind):
    rule = Rprop()
    found = case(100, 5, 2, 6, True, rule)
    gradients, _ = candidates_epoch(
        found.inputs, found.targets, found.training.neurons, found.weights
    )
    parameters, _ = found.run(kind)
    bound = candidate_bounds(found).gradients
    sure = np.abs(gradients) > bound
    assert sure.mean() > 0.8  # those of thresholds are 0
    step = rule.delta_zero * rule.increase_factor
    moved = parameters[:, 0, : gradients.shape[1]] - found.weights
    error = np.abs(moved + step * np.sign(gradients))[sure]
    assert (error <= 4 * U).all()


@pytest.mark.unoptimised
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("residuals", [False, True])
@pytest.mark.parametrize("samples", [1, TILE, TILE + 1])
def test_values_and_errors(kind, residuals, samples):
    found = case(samples, 6, 3, 3, False, fann=True)
    described, n_in = found.training.samples, len(found.inputs)
    values = NeuronValues(
        described, found.training.neurons, found.training.parameters, residuals, True,
        True,
    )
    found.workspace.write(values.table, neuron_table(values))
    launch = found.workspace.bound(values.launch(KINDS[kind]))
    _, slots, stride = found.training.shape
    launch(number=2, offset=2 * slots * stride, n_in=n_in, row=1 if residuals else n_in)
    where = described.residuals if residuals else described.inputs
    tiled = found.workspace.read(where, where.size // 4)
    rows = described.plain(tiled)
    neuron = found.training.neurons[2]
    y, error, _, _ = propagated(found, neuron, found.weights[2])
    got, expected = rows[1 if residuals else n_in], y
    if residuals:
        half = neuron_table(values)["error_scale"][2]
        expected = half * (found.targets[1] - y)
    assert (np.abs(got - expected) <= error + 2 * U * (1 + np.abs(y))).all()
    padding = tiled.reshape(-1, rows.shape[0], TILE).transpose(1, 0, 2).reshape(
        rows.shape[0], -1)[1 if residuals else n_in, samples:]
    assert not padding.any()
