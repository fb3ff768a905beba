"""Penalties of weights and gradient clipping, by finite differences."""

import numpy as np
import pytest
from deviations import differences

from clnet import Dense, Network
from clnet.errors import InputError
from clnet.ir import reference
from clnet.ir.lowering import lower_training
from clnet.nn.losses import loss_function
from clnet.nn.optimisers import SGD
from clnet.nn.regularisation import Regularisation

SAMPLES = 7


def problem():
    rng = np.random.default_rng(3)
    layers = [Dense(5, "tanh", initialiser="uniform"),
              Dense(2, "sigmoid", initialiser="uniform")]
    network = Network(3, layers, seed=1, dtype="float64")
    return network, rng.uniform(-1, 1, (SAMPLES, 3)), rng.uniform(0, 1, (SAMPLES, 2))


def minimised(network, x, t, l1=0.0, l2=0.0):
    """Return the mean loss with the penalties, which exclude biases."""
    program = lower_training(network, loss_function("mse"), None)
    values = {"x": x, "t": t}
    reference.run_ops(program.ops, values, network.parameters)
    loss = values["totals"][0, 0] / SAMPLES
    for number in range(len(network.layers)):
        weights = network.weights(number)
        loss += l1 * np.abs(weights).sum() + l2 * np.square(weights).sum()
    return loss


def whole_gradient(network, x, t, **options):
    return differences(network, lambda: minimised(network, x, t, **options))


def moved(network, x, t, **options):
    """Return the change of parameters by a step of gradient descent at rate 1."""
    program = lower_training(
        network, loss_function("mse"), SGD(1.0),
        regularisation=Regularisation(**options),
    )
    parameters = network.parameters.copy()
    values = {"x": x, "t": t, "samples": SAMPLES, "seen": SAMPLES, "count": 0,
              "rate": 1.0, "seed": 0, "state": np.zeros((1, parameters.size))}
    reference.run_ops(program.ops, values, parameters)
    return network.parameters - parameters


@pytest.mark.parametrize("options", [
    {}, {"l1": 0.05}, {"l2": 0.2}, {"l1": 0.03, "l2": 0.1},
], ids=str)
def test_a_step_is_down_the_whole_gradient(options):
    network, x, t = problem()
    expected = whole_gradient(network, x, t, **options)
    np.testing.assert_allclose(moved(network, x, t, **options), expected, atol=1e-9)


def test_clipping_by_the_norm():
    network, x, t = problem()
    whole = whole_gradient(network, x, t, l2=0.2)
    norm = np.linalg.norm(whole)
    found = moved(network, x, t, l2=0.2, clip_norm=norm / 3)
    np.testing.assert_allclose(found, whole / 3, atol=1e-9)
    found = moved(network, x, t, l2=0.2, clip_norm=norm * 1.01)
    np.testing.assert_allclose(found, whole, atol=1e-9)


def test_clipping_by_value():
    network, x, t = problem()
    whole = whole_gradient(network, x, t, l1=0.05)
    limit = np.abs(whole).max() / 2
    found = moved(network, x, t, l1=0.05, clip_value=limit)
    np.testing.assert_allclose(found, np.clip(whole, -limit, limit), atol=1e-9)


@pytest.mark.parametrize(("options", "sentence"), [
    ({"l1": -1}, "l1 must be a number of at least 0, not -1"),
    ({"l2": "much"}, "l2 must be a number, not 'much'"),
    ({"l2": None}, "l2 must be a number"),
    ({"l1": True}, "l1 must be a number"),
    ({"l1": np.nan}, "l1 must be a finite number, not nan"),
    ({"l2": np.inf}, "l2 must be a finite number, not inf"),
    ({"clip_norm": 0}, "clip_norm must be a number above 0, or None, not 0"),
    ({"clip_value": -1}, "clip_value must be a number above 0"),
    ({"clip_value": [1]}, "clip_value must be a number, not"),
    ({"clip_norm": 1, "clip_value": 1}, "give clip_norm or clip_value, not both"),
])
def test_bad_numbers(options, sentence):
    with pytest.raises(InputError, match=sentence):
        Regularisation(**options)
