"""Locally connected layers: description, storage, meaning, generic kernels, files."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storages import entry_matrix

import clnet
from clnet import Dense, InputError, Local, Network, Sparse
from clnet.cli.summary import network_text
from clnet.ir import reference
from clnet.nn.storage.layout import live_elements
from clnet.nn.storage.local import LocalStorage

WINDOWS = (1, 2, 3, 4, 5, 7, 16, 33)
RNG = np.random.default_rng(5)


def spelled_out(network, x):
    """Return the outputs by the layers' definition, in float64."""
    y = x.astype(np.float64)
    for number, layer in enumerate(network.layers):
        w = network.weights(number).astype(np.float64)
        b = network.biases(number).astype(np.float64)
        sums = np.stack(
            [y[:, i : i + layer.window] @ w[i] for i in range(layer.n_out)], axis=1
        )
        y = np.tanh(sums + (b if layer.bias else 0))
    return y


# The description --------------------------------------------------------------------


def test_sizes_follow_from_the_layer_before():
    network = Network(
        30, [Local(3), Dense(20), Local(5, sources=(2,)), Local(4, sources=(0,)),
             Dense(2, sources=(3, 4))],
    )
    assert network.sizes == (30, 28, 20, 16, 27, 2)
    again = Network(12, network.layers[:1])
    assert again.sizes == (12, 10)


@pytest.mark.parametrize(("n", "window"), [(20, 3), (21, 3), (33, 33), (7, 2)])
def test_a_stack_that_would_vanish(n, window):
    depth = (n - 1) // (window - 1)
    network = Network(n, [Local(window)] * depth)
    assert 1 <= network.n_out < window
    with pytest.raises(InputError, match=f"can be {depth} layers? deep at most"):
        Network(n, [Local(window)] * (depth + 1))


def test_a_window_wider_than_the_inputs():
    with pytest.raises(InputError, match="window of 9, and 8 inputs"):
        Network(8, [Local(9)])


def test_bad_layers():
    for arguments, words in {
        (0,): "window", (2.5,): "window", (3, "sigmoyd"): "sigmoid",
        (3, "tanh", float("nan")): "finite", (3, "tanh", 1.0, "all"): "shared",
        (3, "tanh", 1.0, True): "shared",
    }.items():
        with pytest.raises(InputError, match=words):
            Local(*arguments)
    with pytest.raises(InputError, match="one source"):
        Local(3, sources=(0, 1))
    with pytest.raises(InputError, match="wider"):
        Local(3, n_in=2)
    with pytest.raises(InputError, match="put it into a network"):
        Local(3).n_out  # noqa: B018
    with pytest.raises(InputError, match="2 entries for 8 neurons"):
        Network(10, [Local(3, ("tanh", "relu"))])
    with pytest.raises(InputError, match="bias must be True or False"):
        Dense(3, bias="shared")


def test_parameters():
    network = Network(20, [Local(3), Local(2, bias="neuron"), Local(4, bias=None)])
    assert [w.shape for w in map(network.weights, range(3))] == [
        (18, 3), (17, 2), (14, 4),
    ]
    assert [network.biases(i).size for i in range(3)] == [1, 17, 0]
    live = live_elements(network.layout, network.storages)
    assert live.sum() == 18 * 3 + 1 + 17 * 3 + 14 * 4
    assert [m.count for m in network.matrices] == [54, 34, 56]
    assert not network.parameters[~live].any()
    shown = network_text(network)
    assert "shared" in shown and "neuron" in shown and "local" in shown


def test_weights_start_by_the_window():
    network = Network(2000, [Local(3, initialiser="uniform")], seed=1)
    assert 0.99 / np.sqrt(3) < np.abs(network.weights(0)).max() <= 1 / np.sqrt(3)
    assert network.biases(0)[0] != 0


def test_set_layer_in_each_shape():
    network = Network(9, [Local(4, "tanh")], seed=1)
    windows = RNG.standard_normal((6, 4)).astype("float32")
    whole = np.zeros((6, 9), "float32")
    for i in range(6):
        whole[i, i : i + 4] = windows[i]
    for weights in (windows, windows.ravel(), whole):
        network.set_layer(0, np.zeros((6, 4)), [0])
        network.set_layer(0, weights, [0.5])
        np.testing.assert_array_equal(network.weights(0), windows)
        assert network.biases(0) == 0.5
    whole[0, 8] = 1
    with pytest.raises(InputError, match="1 numbers where there is no connection"):
        network.set_layer(0, whole)
    for weights, biases in (((6, 3), 1), ((6, 4), 6)):
        with pytest.raises(InputError, match="shape"):
            network.set_layer(0, np.zeros(weights), np.zeros(biases))


# The storage and its meaning --------------------------------------------------------


@given(st.integers(1, 40), st.sampled_from(WINDOWS))
@settings(max_examples=40, deadline=None)
def test_storage(n_out, window):
    storage = LocalStorage(n_out, n_out + window - 1, window)
    live = storage.live()
    np.testing.assert_array_equal(np.flatnonzero(live), storage.entries().slots)
    assert storage.count == live.sum()
    values = np.where(live, RNG.standard_normal(storage.size), 0)
    matrix = storage.matrix(values)
    np.testing.assert_array_equal(matrix, entry_matrix(storage, values))
    assert storage.bands(values).base is not None
    assert storage.nbytes(4) == 4 * storage.size


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_reference(data):
    window = data.draw(st.sampled_from(WINDOWS))
    depth = data.draw(st.integers(1, 4))
    n = data.draw(st.integers(1, 70)) + depth * (window - 1)
    bias = data.draw(st.sampled_from(("shared", "neuron", None)))
    network = Network(
        n, [Local(window, "tanh", bias=bias, initialiser="uniform")] * depth, seed=1,
        dtype="float64",
    )
    x = RNG.standard_normal((data.draw(st.integers(1, 4)), n))
    np.testing.assert_allclose(
        reference.run(network.program, x, network.parameters), spelled_out(network, x),
        atol=1e-12,
    )


# Devices ----------------------------------------------------------------------------


@pytest.mark.parametrize("window", WINDOWS)
def test_generic_kernels(window):
    for n, batch in ((window, 1), (window + 1, 3), (window + 50, 2)):
        network = Network(
            n, [Local(window, "tanh", initialiser="uniform")], seed=1
        )
        x = RNG.standard_normal((batch, n)).astype("float32")
        plan = network.compile(batch=batch, tune=False, variants=["generic"])
        np.testing.assert_allclose(plan(x), spelled_out(network, x), atol=2e-6)


def test_training_a_mixture():
    x = RNG.uniform(-1, 1, (40, 24)).astype("float32")
    t = x[:, :1] * x[:, 1:2]
    network = Network(
        24, [Local(3, "tanh"), Local(4, "gelu", bias="neuron"),
             Sparse(19, "tanh", density=0.5), Local(2, "elliot"), Dense(1)], seed=2,
    )
    history = network.fit(x, t, epochs=60, seed=1)
    losses = [epoch.loss for epoch in history.epochs]
    assert losses[-1] < losses[0] / 4
    live = live_elements(network.layout, network.storages)
    assert not network.parameters[~live].any()


# Files and conversions --------------------------------------------------------------


def test_files(tmp_path):
    network = Network(
        11, [Local(3, "tanh"), Dense(9), Local(2, bias="neuron"), Local(1, bias=None)],
        seed=1,
    )
    path = tmp_path / "net.safetensors"
    network.save(path)
    again = clnet.load(path)
    assert again.layers == network.layers
    np.testing.assert_array_equal(again.parameters, network.parameters)


def test_as_other_layers():
    network = Network(15, [Local(3, "tanh"), Local(2, "tanh")], seed=1)
    network.set_layer(0, network.weights(0), [0.25])
    x = RNG.standard_normal((4, 15))
    exact = spelled_out(network, x)
    for other in (network.to_dense(), network.to_dense([0]), network.prune(density=1)):
        found = reference.run(other.program, x, other.parameters.astype("float64"))
        np.testing.assert_allclose(found, exact, atol=1e-12)
