"""Learning-rate schedules: their factors, and their effect in `fit`."""

import math

import numpy as np
import pytest

from clnet import InputError, Network
from clnet.nn.optimisers import SGD
from clnet.nn.schedules import Cosine, Exponential, Step, schedule

X, T = np.linspace(-1, 1, 20).reshape(10, 2), np.zeros((10, 1))


def test_factors():
    assert [Step(3, 0.5)(e) for e in range(7)] == [1, 1, 1, 0.5, 0.5, 0.5, 0.25]
    assert [Exponential(0.5)(e) for e in range(3)] == [1, 0.5, 0.25]
    half = (1 + math.cos(math.pi / 4)) / 2
    assert [Cosine(4)(e) for e in (0, 1, 4, 9)] == pytest.approx([1, half, 0, 0])
    assert Cosine(4, 0.2)(4) == pytest.approx(0.2)
    assert Cosine(4, 0.2)(0) == 1


def test_names():
    assert schedule("cosine", 40)(20) == pytest.approx(0.5)
    assert schedule("step", 9)(30) == pytest.approx(0.1)
    assert schedule("exponential", 9)(2) == pytest.approx(0.97**2)
    assert schedule(None, 9)(5) == 1
    assert schedule(lambda epoch: 1 / (1 + epoch), 9)(1) == 0.5


def test_the_rate_follows():
    """Each epoch of plain gradient descent moves by rate times factor."""
    factors = [1.0, 0.5, 0.0, 2.0]
    network = Network.mlp([2, 1], "identity", seed=1)
    seen = [network.parameters.copy()]
    network.fit(
        X, T, optimiser=SGD(0.1), epochs=4, schedule=lambda epoch: factors[epoch],
        callbacks=[lambda training, epoch: seen.append(training.parameters)],
    )
    for number, factor in enumerate(factors):
        other = Network.mlp([2, 1], "identity", parameters=seen[number])
        other.fit(X, T, optimiser=SGD(0.1 * factor), epochs=1)
        np.testing.assert_allclose(other.parameters, seen[number + 1], atol=1e-7)


@pytest.mark.parametrize(("chosen", "sentence"), [
    ("cosin", "did you mean 'cosine'"),
    (0.5, "must be one of step, exponential, cosine, or a function"),
    (Step, "must be one of step"),
    (lambda epoch: math.nan, "returned nan for epoch 0"),
    (lambda epoch: -1.0, "returned -1.0 for epoch 0"),
    (lambda epoch: "fast", "returned 'fast' for epoch 0"),
    (lambda epoch: None, "returned None for epoch 0"),
])
def test_bad_schedules(chosen, sentence):
    network = Network.mlp([2, 1], "identity", seed=1)
    before = network.parameters.copy()
    with pytest.raises(InputError, match=sentence):
        network.fit(X, T, optimiser="sgd", schedule=chosen)
    assert np.array_equal(network.parameters, before)


def test_an_optimiser_without_a_rate():
    with pytest.raises(InputError, match="rprop has no learning rate"):
        Network.mlp([2, 1], "identity").fit(X, T, schedule="step")


@pytest.mark.parametrize("make", [
    lambda: Step(0), lambda: Step(2.5), lambda: Step(3, 0), lambda: Exponential(-1),
    lambda: Exponential(math.inf), lambda: Exponential("x"), lambda: Cosine(0),
    lambda: Cosine(3, 2), lambda: Cosine(3, "x"),
])
def test_bad_constants(make):
    with pytest.raises(InputError, match="must be a"):
        make()
