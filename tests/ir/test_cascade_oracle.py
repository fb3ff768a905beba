"""The oracle of cascade training: by hand, and by finite differences."""

import math

import numpy as np
import pytest

from clnet.ir.cascade import candidates_epoch, derivative, outputs_epoch, value
from clnet.nn.cascade import Cascade, Neuron, network_neuron
from clnet.nn.losses import loss_function


def test_one_candidate_by_hand():
    """Two samples, one input and the constant, one output; the numbers are FANN's."""
    inputs = np.array([[0.5, -1.0], [1.0, 1.0]])
    residuals = np.array([[0.25, -0.5]])
    neuron = Neuron("elliot_symmetric", 2.0, 75.0)
    weights = np.array([[0.5, 0.25, 0.75]])
    sums = [0.5 * 0.5 + 0.25, 0.5 * -1.0 + 0.25]  # 0.5, -0.25
    y = [2 * 0.5 / (1 + 1.0), -0.5 / (1 + 0.5)]  # 1/2, -1/3
    differences = [0.75 / 2 - 0.25, -0.75 / 3 + 0.5]  # 1/8, 1/4
    slopes = [  # the derivative is taken at the sum, not at 2 times the sum
        0.75 * d * 2 / (1 + abs(x)) ** 2
        for d, x in zip(differences, sums, strict=True)
    ]
    gradients, squares = candidates_epoch(inputs, residuals, [neuron], weights)
    np.testing.assert_allclose(gradients, [[
        0.5 * slopes[0] - slopes[1], slopes[0] + slopes[1],
        2 * (differences[0] * y[0] + differences[1] * y[1]),
    ]])
    np.testing.assert_allclose(squares, [1 / 64 + 1 / 16])


def test_one_output_by_hand():
    inputs = np.array([[2.0], [1.0]])
    neuron = network_neuron("tanh", 0.5, True)
    weights, target = np.array([[0.25, 0.5]]), np.array([[0.75]])
    y = math.tanh(0.5)
    gradients, records = outputs_epoch(
        inputs, target, [neuron], weights, loss_function("fann_linear"),
        np.array([0.5]), 0.1, True,
    )
    error = (0.75 - y) / 2
    slope = -error * (1 - y * y) * 0.5
    np.testing.assert_allclose(gradients, [[2 * slope, slope]])
    np.testing.assert_allclose(records, [[(0.75 - y) ** 2 / 4, error**2, 1]])


@pytest.mark.parametrize("name", [
    name for name in Cascade().activation_functions if not name.startswith("elliot")
])
def test_gradients_of_candidates_by_finite_differences(name):
    """That by input weights is half the derivative of the squared error, as in FANN.

    FANN bounds the slopes of sigmoids; sums are small here. Its elliots' are inexact.
    """
    rng = np.random.default_rng(1)
    inputs, residuals = rng.normal(size=(3, 7)), rng.normal(size=(2, 7))
    neuron = Neuron(name, 0.75, 200.0)
    weights = rng.uniform(-0.5, 0.5, (1, 5))
    gradients, _ = candidates_epoch(inputs, residuals, [neuron], weights)
    numeric = np.empty(5)
    for i in range(5):
        step = 1e-6 * np.eye(5)[i]
        numeric[i] = np.subtract(*(
            candidates_epoch(inputs, residuals, [neuron], weights + sign * step)[1][0]
            for sign in (1, -1)
        )) / 2e-6
    numeric[:3] /= 2
    np.testing.assert_allclose(gradients[0], numeric, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("loss", ["mse", "fann_linear", "fann_tanh"])
def test_gradients_of_outputs_by_finite_differences(loss):
    rng = np.random.default_rng(2)
    inputs, targets = rng.normal(size=(3, 7)), rng.uniform(0, 1, (2, 7))
    neurons = [network_neuron("sigmoid", 1.0, False)] * 2
    row = loss_function(loss)

    def epoch(weights):
        return outputs_epoch(
            inputs, targets, neurons, weights, row, np.ones(2), 0.35, False
        )

    weights = rng.normal(size=(2, 3))
    gradients, _ = epoch(weights)
    for j in range(2):
        for i in range(3):
            step = np.zeros((2, 3))
            step[j, i] = 1e-6
            up, down = (epoch(weights + s * step)[1][:, 0].sum() for s in (1, -1))
            # Of FANN's linear error the loss is half a square, its gradient the error.
            assert gradients[j, i] == pytest.approx((up - down) / 2e-6, rel=1e-6)


def test_candidates_are_clipped_as_fann_clips_them():
    neuron = Neuron("identity", 0.5, 300.0)
    np.testing.assert_array_equal(value(neuron, np.array([1e3, -1e3])), [150, -150])
    fann = network_neuron("identity", 0.5, True)
    np.testing.assert_array_equal(value(fann, np.array([1e3, -1e3])), [300, -300])


def test_derivatives_of_candidates_and_of_networks():
    """FANN's sines contain the steepness twice, but not those of candidates."""
    neuron, x = Neuron("sin_symmetric", 0.5), np.array([1.0])
    one = derivative(neuron, x, candidate=True)
    other = derivative(neuron, x, candidate=False, fann_compatible=True)
    np.testing.assert_allclose(one, 0.5 * np.cos(0.5))
    np.testing.assert_allclose(other, 0.5 * np.cos(0.25))
