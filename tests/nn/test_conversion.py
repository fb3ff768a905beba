"""Pruned networks, and networks in other formats, keep their weights."""

import numpy as np
import pytest
from test_layers import SHORTCUT, check_by_hand, sparse_net

from clnet import Dense, Network
from clnet.errors import InputError
from clnet.nn.storage.formats import FORMATS
from clnet.nn.storage.sparse import CsrStorage


def test_pruning_keeps_the_largest_weights():
    network = Network.mlp([20, 30, 4], seed=1)
    pruned = network.prune(density=0.1)
    assert [m.count for m in pruned.matrices] == [60, 12]
    for number in range(2):
        full, kept = network.weights(number), pruned.weights(number)
        least = np.sort(np.abs(full), axis=None)[-np.count_nonzero(kept)]
        np.testing.assert_array_equal(kept, np.where(np.abs(full) >= least, full, 0))
        np.testing.assert_array_equal(pruned.biases(number), network.biases(number))
    again = pruned.prune(density=0.05, layers=[0])
    assert [m.count for m in again.matrices] == [30, 12]
    more = pruned.prune(density=0.9)  # above the present density
    assert [m.count for m in more.matrices] == [60, 12]


def test_pruning_by_threshold():
    network = Network(3, [Dense(2)], seed=1)
    network.set_layer(0, [[0.5, -1, 0], [0.25, 2, 0.5]])
    pruned = network.prune(threshold=0.25, format="coo")
    np.testing.assert_array_equal(pruned.weights(0), [[0.5, -1, 0], [0, 2, 0.5]])
    assert pruned.matrices[0].format == "coo"
    assert network.prune(threshold=0).matrices[0].count == 5
    with pytest.raises(InputError, match="no weight of layer 0 is larger than"):
        network.prune(threshold=2)


def test_pruned_networks_train():
    network = Network.mlp([6, 20, 1], "tanh", seed=1)
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (60, 6)).astype("float32")
    t = np.tanh(x[:, :1] - x[:, 1:2])
    network.fit(x, t, epochs=60)
    pruned = network.prune(density=0.4)
    worse = pruned.evaluate(x, t).mse
    pruned.fit(x, t, epochs=60)
    assert pruned.evaluate(x, t).mse < worse / 2
    assert [m.count for m in pruned.matrices] == [48, 8]


@pytest.mark.parametrize(("options", "sentence"), [
    ({}, "either a density or a threshold"),
    ({"density": 0.5, "threshold": 0.1}, "either a density or a threshold"),
    ({"density": 0}, r"density must be in \(0, 1\], not 0"),
    ({"density": float("nan")}, r"density must be in \(0, 1\], not nan"),
    ({"density": "half"}, "density must be a number, not 'half'"),
    ({"threshold": -1}, "threshold must be at least 0, not -1"),
    ({"density": 0.5, "layers": [2]}, "layer 2 of 2 does not exist"),
    ({"density": 0.5, "format": "hyp"}, "did you mean 'hyb'"),
])
def test_bad_pruning(options, sentence):
    with pytest.raises(InputError, match=sentence):
        Network.mlp([3, 4, 2]).prune(**options)


@pytest.mark.parametrize("form", FORMATS)
def test_conversions_keep_every_bit(form):
    network = sparse_net()
    dense = network.to_dense()
    assert all(isinstance(layer, Dense) for layer in dense.layers)
    other = network.stored_as(form)
    back = other.stored_as("auto")
    np.testing.assert_array_equal(back.parameters, network.parameters)
    assert back.layers == network.layers
    for number in range(3):
        expected = network.weights(number).tobytes()
        assert dense.weights(number).tobytes() == expected
        assert other.weights(number).tobytes() == expected
    assert isinstance(back.storages[0], CsrStorage)


def test_conversions_of_chosen_layers():
    network = sparse_net().stored_as("ell", [1])
    assert [m.format for m in network.matrices] == ["csr", "ell", "dense"]
    dense = network.to_dense([0])
    assert [m.format for m in dense.matrices] == ["dense", "ell", "dense"]
    with pytest.raises(InputError, match="layer 3 of 3 does not exist"):
        network.to_dense([3])
    with pytest.raises(InputError, match="unknown format"):
        network.stored_as("csx")


def test_pruning_of_shortcut_networks():
    network = Network(4, SHORTCUT, seed=1)
    pruned = network.prune(density=0.5)
    check_by_hand(pruned, 7)
    np.testing.assert_array_equal(pruned.to_dense().weights(2), pruned.weights(2))
    assert [layer.sources for layer in pruned.layers] == [(0,), (0, 1), (0, 1, 2)]
