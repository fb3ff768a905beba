"""Initial values: seeds, statistics, and FANN's Widrow-Nguyen."""

import math

import numpy as np
import pytest

from clnet import Dense, Network
from clnet.errors import InputError
from clnet.nn.initialisers import INITIALISERS, initialiser


def test_seeds():
    def made(seed):
        return np.array(Network.mlp([20, 30, 10], seed=seed).parameters)

    np.testing.assert_array_equal(made(3), made(3))
    assert (made(3) != made(4)).any()
    assert (made(None) != made(None)).any()


N_IN, N_OUT = 300, 400


@pytest.mark.parametrize(("name", "deviation", "largest", "bias_deviation"), [
    ("glorot", math.sqrt(2 / (N_IN + N_OUT)), math.sqrt(6 / (N_IN + N_OUT)), 0),
    ("he", math.sqrt(2 / N_IN), math.inf, 0),
    ("uniform", 1 / math.sqrt(3 * N_IN), 1 / math.sqrt(N_IN),
     1 / math.sqrt(3 * N_IN)),
    ("fann", 0.1 / math.sqrt(3), 0.1, 0.1 / math.sqrt(3)),
])
def test_statistics_of_initialisers(name, deviation, largest, bias_deviation):
    network = Network(N_IN, [Dense(N_OUT, initialiser=name)], seed=5, dtype="float64")
    weights, biases = network.weights(0), network.biases(0)
    n = weights.size
    assert abs(weights.mean()) < 5 * deviation / math.sqrt(n)
    # Both distributions have a fourth moment of at most 3 deviations to the fourth.
    assert abs(weights.std() / deviation - 1) < 5 / math.sqrt(2 * n)
    assert np.abs(weights).max() <= largest
    if math.isfinite(largest):
        assert np.abs(weights).max() > 0.999 * largest
    assert abs(biases.std() - bias_deviation) <= 0.2 * bias_deviation


def test_every_initialiser_has_its_statistics():
    assert set(INITIALISERS) == {"glorot", "he", "uniform", "fann"}
    with pytest.raises(InputError, match="unknown initialiser"):
        initialiser("")


def test_widrow_nguyen_is_fanns():
    """f = (0.7 H)^(1/I) / (high - low): biases within ±f, weights from 0 to f."""
    network = Network.mlp([3, 40, 30, 2], "tanh", seed=1)
    x = np.array([[-1.0, 0, 0], [0, 3, 1]])
    network.initialise("widrow_nguyen", x, seed=4)
    limit = (0.7 * 70) ** (1 / 3) / 4
    for number in range(3):
        weights = network.weights(number)
        assert weights.min() >= 0
        assert 0.9 * limit < weights.max() <= limit * (1 + 1e-6)
    biases = np.concatenate([network.biases(number) for number in range(3)])
    assert np.abs(biases).max() <= limit * (1 + 1e-6)
    assert biases.min() < 0 < biases.max()
    first = network.parameters
    network.initialise("widrow_nguyen", x, seed=4)
    assert np.array_equal(network.parameters, first)
    network.initialise("widrow_nguyen", x, seed=5)
    assert not np.array_equal(network.parameters, first)


def test_initialising_again():
    network = Network.mlp([3, 4, 2], "tanh", seed=1)
    version = network.version
    network.initialise(seed=7)
    assert np.array_equal(
        network.parameters, Network.mlp([3, 4, 2], "tanh", seed=7).parameters
    )
    assert network.version > version
    network.initialise("fann", seed=7)
    other = Network.mlp([3, 4, 2], "tanh", initialiser="fann", seed=7)
    assert np.array_equal(network.parameters, other.parameters)


@pytest.mark.parametrize(("name", "x", "sentence"), [
    ("widrow_nguyen", None, "reads the inputs' range: give x"),
    ("he", [[1.0, 2, 3]], "leave out x"),
    (None, [[1.0, 2, 3]], "leave out x"),
    ("widrow", None, "did you mean 'widrow_nguyen'"),
    ("widrow_nguyen", [[1.0, 2]], r"shape \[1, 2\], expected \[samples, 3\]"),
    ("widrow_nguyen", [[1.0, 1, 1]], "inputs of a finite range, found one of 0"),
    ("widrow_nguyen", [[1.0, np.nan, 1]], "a finite range"),
    ("widrow_nguyen", np.zeros((0, 3)), "a finite range"),
    ("widrow_nguyen", [["a", "b", "c"]], "expected numbers"),
])
def test_initialising_wrongly(name, x, sentence):
    network = Network.mlp([3, 4, 2], "tanh", seed=1)
    with pytest.raises(InputError, match=sentence):
        network.initialise(name, x)


def test_widrow_nguyen_needs_data_and_hidden_neurons():
    with pytest.raises(InputError, match=r'call network.initialise\("widrow_nguyen"'):
        Dense(3, initialiser="widrow_nguyen")
    with pytest.raises(InputError, match="spreads hidden neurons"):
        Network.mlp([3, 2], seed=1).initialise("widrow_nguyen", [[0.0, 1, 2]])
