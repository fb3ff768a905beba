"""Copies and pickles of networks, patterns and histories."""

import copy
import pickle

import numpy as np
import pytest

from clnet import Dense, Local, Network, Pattern, Sparse

COPIES = {
    "copy": copy.copy, "deepcopy": copy.deepcopy,
    "pickle": lambda one: pickle.loads(pickle.dumps(one)),
}
RNG = np.random.default_rng(0)
CACHES = {"program", "layout", "matrices", "_plans", "_recent"}
OVERHEAD = 6000  # bytes of names and layers, at most


def network_of(kind):
    layers = {
        "dense": [Dense(40, "tanh")],
        "sparse": [Sparse(40, "tanh", density=0.2)],
        "local": [Local(5, "tanh")],
    }[kind]
    return Network(30, [*layers, Dense(3, "softmax")], seed=1)


def samples(n=50):
    return RNG.normal(size=(n, 30)), np.eye(3)[RNG.integers(0, 3, n)]


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("kind", ["dense", "sparse", "local"])
def test_a_copy_of_a_used_network_has_no_cache(kind, copied):
    network = network_of(kind)
    x, t = samples()
    network.fit(x, t, epochs=2, seed=1)
    network.predict(x)
    other = copied(network)
    assert not CACHES & other.__dict__.keys()
    assert {"layout", "_plans"} <= CACHES & network.__dict__.keys()
    assert other.layers == network.layers
    np.testing.assert_array_equal(other.parameters, network.parameters)
    np.testing.assert_array_equal(other.predict(x), network.predict(x))


@pytest.mark.parametrize("kind", ["dense", "sparse", "local"])
def test_a_pickle_is_little_larger_than_its_parameters(kind):
    network = network_of(kind)
    x, t = samples()
    network.fit(x, t, epochs=2, seed=1)
    network.predict(x)
    assert len(pickle.dumps(network)) < network.parameters.nbytes + OVERHEAD


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_copy_trains_alone(copied):
    network = network_of("dense")
    x, t = samples()
    before = network.parameters
    other = copied(network)
    other.fit(x, t, epochs=2, seed=1)
    np.testing.assert_array_equal(network.parameters, before)
    network.fit(x, t, epochs=2, seed=1)
    np.testing.assert_array_equal(network.parameters, other.parameters)


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_copied_pattern_is_equal_and_read_only(copied):
    pattern = Pattern.of(RNG.random((30, 20)) < 0.2)
    hash(pattern)
    assert pattern.lengths.sum() == len(pattern)
    other = copied(pattern)
    assert "lengths" not in other.__dict__
    assert other == pattern
    with pytest.raises(ValueError, match="read-only"):
        other.rows[0] = 1


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_copied_history_is_equal_and_resumes(copied):
    network = network_of("dense")
    x, t = samples()
    history = network.fit(x, t, epochs=5, seed=1)
    other = copied(history)
    assert other.epochs == history.epochs
    assert (other.stopped, other.plan) == (history.stopped, history.plan)
    first, second = copied(network), copied(network)
    first.fit(x, t, epochs=2, state=history.state)
    second.fit(x, t, epochs=2, state=other.state)
    np.testing.assert_array_equal(first.parameters, second.parameters)


def test_a_pickled_history_has_no_room_for_more_epochs():
    network = network_of("dense")
    history = network.fit(*samples(), epochs=1100, optimiser="rprop", seed=1)
    arrays = history.state.parameters.nbytes + history.state.values.nbytes
    rows = len(history) * 7 * 8
    size = len(pickle.dumps(history)) - len(history.plan)
    assert size < arrays + rows + OVERHEAD
