"""Populations as sequences of networks: parameters, votes, files, wrong arguments."""

from __future__ import annotations

from copy import copy

import numpy as np
import pytest

import clnet
from clnet import Dense, InputError, Network, Population
from clnet.errors import FormatError
from clnet.formats import safetensors

SAMPLES = 60
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (SAMPLES, 3))
T = np.stack([X[:, 0] * X[:, 1], X[:, 2] ** 2], axis=1)


def shape():
    return Network.mlp([3, 9, 2], "tanh", seed=0)


def test_labels_set_the_classes():
    population = Population(Network.mlp([3, 8, 3], output="softmax"), 4)
    labels = np.array(["a", "b", "c"])[np.digitize(X[:, 0], [-0.3, 0.3])]
    histories = population.fit(X, labels, epochs=150, optimiser="rprop", seed=0)
    assert population.network.classes == population[1].classes == ("a", "b", "c")
    assert (population.classify(X) == labels).mean() > 0.9
    assert len(histories) == 4


def test_votes():
    nets = [Network(2, [Dense(3)], seed=0) for _ in range(3)]
    for net, biases in zip(nets, ([3, 0, 0], [0, 1, 0], [0, 2, 0]), strict=True):
        net.set_layer(0, np.zeros((3, 2)), biases)
    population = Population.of(nets)
    assert population.classify(np.zeros((2, 2))).tolist() == [1, 1]
    tie = population[[0, 1]]  # one vote each: the larger mean decides
    assert tie.classify(np.zeros(2)).tolist() == 0
    found = population.evaluate(np.zeros((2, 2)), np.eye(3)[[0, 1]])
    assert [one.accuracy for one in found] == [0.5, 0.5, 0.5]
    assert found[0] == population[0].evaluate(np.zeros((2, 2)), np.eye(3)[[0, 1]])
    y = population.predict(np.zeros((4, 2)))
    assert y.shape == (3, 4, 3)
    np.testing.assert_array_equal(y[0, 0], [3, 0, 0])


def test_a_sequence_of_networks():
    population = Population(shape(), [7, 8, 9])
    assert repr(population) == "<Population of 3 networks 3-9-2 float32>"
    for network, seed in zip(population, (7, 8, 9), strict=True):
        other = copy(shape())
        other.initialise(seed=seed)
        np.testing.assert_array_equal(network.parameters, other.parameters)
    assert len(population[1:]) == len(population[np.array([2, 0])]) == 2
    np.testing.assert_array_equal(population[-1].parameters, population.parameters[2])
    network = population[0]
    network.initialise(seed=5)  # a copy
    assert (population.parameters[0] != network.parameters).any()
    population.parameters = population.parameters[[2, 2]]
    assert len(population) == 2


def test_files(tmp_path):
    path = tmp_path / "x.safetensors"
    network = Network.mlp([2, 3, 2], output="softmax", classes=["a", "b"])
    population = Population(network, 4)
    population.save(path)
    found = Population.load(path)
    np.testing.assert_array_equal(found.parameters, population.parameters)
    assert found.network.classes == ("a", "b")
    assert not found.dropout.any()
    np.testing.assert_array_equal(clnet.load(path).parameters, population.parameters[0])


def test_files_of_networks_that_drop_other_outputs(tmp_path):
    path = tmp_path / "x.safetensors"
    population = Population.of([
        Network.mlp([2, 3, 2], seed=0, dropout=fraction) for fraction in (0.0, 0.1, 0.5)
    ])
    population[1:].save(path)
    found = Population.load(path)
    np.testing.assert_array_equal(found.dropout, [[0.1, 0], [0.5, 0]])
    assert [one.layers for one in found] == [one.layers for one in population[1:]]


@pytest.mark.parametrize("dropout", [
    np.zeros((1, 2)), np.ones((2, 2)), np.full((2, 2), 0.5), np.full((2, 2), np.nan),
    np.zeros((2, 2), np.float32),
])
def test_damaged_dropout_is_refused(dropout, tmp_path):
    path = tmp_path / "x.safetensors"
    population = Population(shape(), 2)
    safetensors.save(population[0], path, population=(
        {"version": 1}, {"parameters": population.parameters, "dropout": dropout}
    ))
    with pytest.raises(FormatError, match="dropout"):
        Population.load(path)


@pytest.mark.parametrize(("described", "change"), [
    ({"version": 2}, lambda p: p), ([], lambda p: p), ({"version": 1}, lambda p: p[0]),
    ({"version": 1}, lambda p: p[:, 1:]), ({"version": 1}, lambda p: p[:0]),
    ({"version": 1}, lambda p: p.astype("float64")), ({}, lambda p: p),
])
def test_damaged_files_are_refused(described, change, tmp_path):
    path = tmp_path / "x.safetensors"
    population = Population(shape(), 2)
    safetensors.save(population[0], path, population=(
        described, {"parameters": change(population.parameters)}
    ))
    with pytest.raises(FormatError, match=r"population|parameters") as raised:
        Population.load(path)
    assert "\n" not in str(raised.value)


def test_a_network_is_no_population(tmp_path):
    shape().save(tmp_path / "x.safetensors")
    with pytest.raises(FormatError, match="without a population"):
        Population.load(tmp_path / "x.safetensors")
    with pytest.raises(FormatError, match="safetensors"):
        Population.load(tmp_path / "x.net")


@pytest.mark.parametrize(("options", "sentence"), [
    ({"epochs": [1, 2]}, "epochs has 2 values, expected one, or one for each of the 3"),
    ({"epochs": 0}, "epochs"),
    ({"seed": [1, 2, -3]}, "seed"),
    ({"learning_rate": 0.1, "optimiser": "rprop"}, "no learning rate"),
    ({"learning_rate": "fast"}, "learning_rate"),
    ({"rows": [[0]]}, "rows has 1 list"), ({"rows": 5}, "rows has 0 lists"),
    ({"rows": [[0], [1], []]}, "rows of network 2"),
    ({"rows": [[0], [1], [0.5]]}, "rows of network 2"),
    ({"rows": [[0], [1], [SAMPLES]]}, "expected 0 to 59"),
    ({"rows": [[0], [1], [-1]]}, "expected 0 to 59"),
    ({"validation": "others"}, "rest"),
    ({"validation": "rest"}, "network 0 has none"),
    ({"validation": (X,)}, "validation"),
    ({"patience": 3}, "patience takes a validation"),
    ({"patience": 0, "validation": (X, T)}, "patience"),
    ({"sample_weight": np.ones((2, SAMPLES))}, "sample_weight has shape"),
    ({"sample_weight": -np.ones(SAMPLES)}, "sample_weight holds -1.0 at"),
    ({"sample_weight": np.outer([1, 0, 1], np.ones(SAMPLES))}, "samples of network 1"),
    ({"optimiser": "none"}, "optimiser"), ({"batch_size": "full"}, "batch_size"),
    ({"l2": [0, 0]}, "l2 has 2 values"),
    ({"l2": -1.0}, "l2"),
    ({"precision": "none"}, "precision"),
])
def test_wrong_arguments(options, sentence):
    population = Population(shape(), 3)
    before = population.parameters
    with pytest.raises(InputError, match=sentence) as raised:
        population.fit(X, T, **options)
    assert "\n" not in str(raised.value)
    assert population.parameters is before


@pytest.mark.parametrize("make", [
    lambda: Population(shape(), 0), lambda: Population(shape(), []),
    lambda: Population(shape(), 1 << 40),
    lambda: Population(shape(), 1.5), lambda: Population(shape(), ["a"]),
    lambda: Population.of([]), lambda: Population.of([1]),
    lambda: Population.of([shape(), Network.mlp([3, 8, 2])]),
    lambda: Population(shape(), 2)[2], lambda: Population(shape(), 2)[[]],
    lambda: Population(shape(), 2)[[5]], lambda: Population(shape(), 2)["a"],
    lambda: setattr(Population(shape(), 2), "parameters", np.ones(4)),
    lambda: setattr(Population(shape(), 2), "parameters", np.ones((2, 3))),
    lambda: Population("net", 2),
])
def test_wrong_populations(make):
    with pytest.raises(InputError) as raised:
        make()
    assert "\n" not in str(raised.value)


def test_errors_of_classes_and_validations_speak_of_populations():
    population, x = Population(Network.mlp([2, 3, 2], seed=0), 2), np.zeros((5, 2))
    x[3] = np.nan
    parameters = population.parameters.copy()
    parameters[0] = 0.0
    population.parameters = parameters
    with pytest.raises(InputError, match=r"^the outputs of sample 3 hold NaN, which"):
        population.classify(x)
    with pytest.raises(InputError, match=r'^validation must .*, or "rest"$'):
        population.fit(x[:3], x[:3], validation=3)
