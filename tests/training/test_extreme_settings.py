"""Settings of any size: trained as the rule says, or told to diverge."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from clnet import Dense, Network, Population
from clnet.errors import ClnetWarning
from clnet.nn.optimisers import (
    SGD,
    Adam,
    AdamW,
    Quickprop,
    RMSprop,
    Rprop,
    Sarprop,
)
from clnet.training.passes import measures

N = 12
RNG = np.random.default_rng(0)
X, T = RNG.uniform(-1, 1, (N, 3)), RNG.uniform(0, 1, (N, 2))


def net() -> Network:
    return Network.mlp([3, 4, 2], "tanh", seed=0)


def fit(**options):
    """Return the history of a network of few neurons, and its parameters."""
    network = net()
    return network.fit(X, T, epochs=3, tune=False, **options), network.parameters


@pytest.mark.parametrize("options", [
    {"optimiser": "adam", "l2": 100}, {"optimiser": AdamW(), "l1": 100},
    {"optimiser": Adam(1e25)}, {"optimiser": SGD(), "l1": 1e30},
    {"optimiser": Adam(weight_decay=1e15)}, {"optimiser": Quickprop(1e30)},
    {"optimiser": Quickprop(1e-6, decay=1.8e9), "l1": 3e4, "batch_size": 4},
], ids=str)
def test_what_the_oracle_computes_is_trained(options):
    history, parameters = fit(**options)
    assert len(history) == 3
    assert np.isfinite(parameters).all()
    assert not history.diverged


@pytest.mark.parametrize("options", [
    {"optimiser": "adam", "l2": 1e30}, {"optimiser": RMSprop(weight_decay=1e30)},
    {"optimiser": "adam", "l2": 1e30, "clip_norm": 1.0},
    {"optimiser": Sarprop(step_error_shift=1e3, weight_decay_shift=1e3)},
    *(
        {"optimiser": rule, "l2": 9e25, "clip_norm": 3e25}
        for rule in (Rprop(), Rprop(moves_at_zero=True), Quickprop(), Sarprop())
    ),
], ids=str)
def test_what_overflows_is_told(options):
    """Moments, norms, and the state alone: no step is left out in silence."""
    with pytest.warns(ClnetWarning, match="training diverged"):
        history, parameters = fit(**options)
    assert history.diverged
    assert history.stopped.startswith("training diverged: ")
    assert np.isfinite(parameters).all()
    population = Population.of([net()])
    with warnings.catch_warnings():  # of its own or of the network trained alone
        warnings.simplefilter("ignore", ClnetWarning)
        (other,) = population.fit(X, T, epochs=3, **options)
    assert other.diverged


@pytest.mark.usefixtures("own_store")
def test_a_population_of_steps_that_saturate_is_trained():
    """Weights jump to their clamp, and signs of slopes near 0 follow roundings."""
    rule = Rprop(delta_zero=7e20, delta_max=9e27)
    population = Population.of([net(), net()])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        histories = population.fit(X, T, epochs=3, optimiser=rule, batch_size=1)
    assert not any(history.diverged for history in histories)


@pytest.mark.parametrize("epochs", [2, 3, 50])
def test_parameters_that_are_infinite_where_the_loss_is_not(epochs):
    """Outputs of tanh hide them: the last finite ones are some epochs before."""
    network = Network(2, [Dense(1), Dense(3, "tanh")], seed=0)
    rule = SGD(9.4e12, momentum=0.5)
    with pytest.warns(ClnetWarning, match="the last finite (ones|parameters) are kept"):
        history = network.fit(
            X[:1, :2], np.zeros((1, 3)), epochs=epochs, optimiser=rule, loss="mae",
            l1=7e19, l2=4.8e23,
        )
    assert history.diverged
    assert np.isfinite(network.parameters).all()


def test_sums_of_nan_and_infinity_are_warned_of_as_a_divergence_alone():
    totals = np.array([[np.inf, np.inf, 1.0, -np.inf, np.nan, 0.0]], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert measures(totals, 1, 1)[0, 0] == np.inf


@pytest.mark.parametrize("weights", [np.ones(N), np.linspace(0, 1, N)], ids=str)
def test_sarprop_takes_weights(weights):
    """Its step reads the root of the weighted error: trials draw none below 0."""
    history, _ = fit(optimiser="sarprop", sample_weight=weights)
    assert np.isfinite(history.loss).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("value", [1e300, np.inf, -np.inf, np.nan])
def test_the_reference_warns_of_nothing(dtype, value):
    network = Network.mlp([3, 4, 2], ["tanh", "softmax"], seed=0, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network.predict(np.full((2, 3), value))
