"""Models: their parameters, how they are replaced, and the memory that takes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory import peak_of

from clnet import Dense, Local, Network, Sparse
from clnet.errors import InputError
from clnet.nn.initialisers import INITIALISERS, initialiser
from clnet.nn.matrix import CHUNK

SIZES = [1001, 800, 10]
CONSTANT = 8 * (4 * CHUNK)  # bytes: some draws in float64, and small objects
LAYERS = [Dense(n, initialiser="uniform") for n in SIZES[1:]]


@pytest.mark.parametrize("make", [
    lambda: Network.mlp(SIZES),
    lambda: Network.mlp(SIZES, initialiser="he"),
    lambda: Network(SIZES[0], LAYERS),
    lambda: Network.mlp([CHUNK + 3, 10]),
], ids=["mlp", "he", "network", "long rows"])
def test_constructing_allocates_the_networks_bytes(make):
    nbytes = make().parameters.nbytes
    assert nbytes > 2.5e6
    assert peak_of(make) <= nbytes + CONSTANT


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_replacing_allocates_the_new_bytes(dtype):
    """The old ones exist before the call, and may be referenced elsewhere."""
    network = Network.mlp(SIZES, seed=1)
    flat = network.parameters.astype(dtype)
    weights = network.weights(0).astype(dtype)
    inputs = np.array([[0.0] * SIZES[0], [1.0] * SIZES[0]])

    def assign():
        network.parameters = flat

    for work in (
        assign,
        lambda: network.set_layer(0, weights, np.zeros(SIZES[1])),
        lambda: network.initialise("he"),
        lambda: network.initialise("widrow_nguyen", inputs),
        lambda: Network(SIZES[0], LAYERS, parameters=flat),
    ):
        assert peak_of(work) <= network.parameters.nbytes + CONSTANT


@pytest.mark.parametrize("name", sorted(INITIALISERS))
@pytest.mark.parametrize("sizes", [(700, 300), (2 * CHUNK + 5, 3), (1, 2)])
def test_draws_in_chunks_are_those_of_one_draw(name, sizes):
    network = Network.mlp(sizes, initialiser=name, seed=3)
    n_in, n_out = sizes
    draws = initialiser(name)(np.random.default_rng(3), n_in, n_out)
    weights = draws[0](n_in * n_out).reshape(n_out, n_in).astype(np.float32)
    assert np.array_equal(network.weights(0), weights)
    assert np.array_equal(network.biases(0), draws[1](n_out).astype(np.float32))


@pytest.mark.parametrize("layer", [
    Local(window=5), Sparse(400, density=0.5, format="dense"),
    Sparse(400, density=0.5, format="ell"),
])
def test_draws_of_other_layers_are_those_of_one_draw(layer):
    network = Network(700, [layer], seed=3)
    matrix = network.matrices[0]
    weights, _ = initialiser("glorot")(
        np.random.default_rng(3), matrix.count / matrix.n_out,
        matrix.count / matrix.n_in,
    )
    found = matrix.live_values(network.parameters)
    assert np.array_equal(found, weights(matrix.count).astype(np.float32))


@pytest.mark.parametrize("layers", [
    [Dense(3)], [Local(window=3)], [Sparse(4, pattern=np.eye(4, 7, dtype=bool))],
])
def test_padding_is_set_to_zero(layers):
    network = Network(7, layers, seed=1)
    before = network.parameters
    network.parameters = np.full(network.layout.size, np.nan)
    live = np.isnan(network.parameters)
    assert (network.parameters[~live] == 0).all()
    assert live.sum() == network.matrices[0].count + network.biases(0).size
    assert np.isfinite(before).all()


# Replacing parameters ---------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=2, max_size=4),
    bias=st.booleans(),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_padding_is_zero_from_the_start_and_stays_zero(sizes, bias, dtype):
    layers = [Dense(n, bias=bias, initialiser="fann") for n in sizes[1:]]
    network = Network(sizes[0], layers, seed=1, dtype=dtype)
    live = sum(w.size for w in map(network.weights, range(len(layers))))
    live += sum(b.size for b in map(network.biases, range(len(layers))))
    assert np.count_nonzero(network.parameters) == live
    network.parameters = np.full(network.parameters.shape, 7)
    assert np.count_nonzero(network.parameters) == live
    assert network.parameters.dtype == dtype
    network.parameters = np.full(network.parameters.shape, np.nan)
    assert np.isnan(network.parameters).sum() == live


def test_parameters_are_replaced_not_mutated():
    network = Network.mlp([3, 2], seed=1)
    before = network.parameters
    copy = np.array(before)
    assert network.version == 0
    with pytest.raises(ValueError, match="read-only"):
        before[0] = 1
    mine = np.ones(before.shape, np.float32)
    network.parameters = mine
    mine[:] = 2  # the network has its own copy
    assert network.version == 1
    np.testing.assert_array_equal(before, copy)
    np.testing.assert_array_equal(network.weights(0), np.ones((2, 3)))
    np.testing.assert_array_equal(network.biases(0), [1, 1])


@pytest.mark.parametrize(("values", "sentence"), [
    (np.zeros(63), r"shape \[63\], expected \[64\]"),
    (np.zeros((1, 64)), r"shape \[1, 64\], expected \[64\]"),
    (1.0, r"shape \[\], expected \[64\]"),
    ([], r"shape \[0\]"),
    (np.zeros(64, complex), "complex128"),
    (["a"] * 64, "expected numbers"),
    ([None] * 64, "expected numbers"),
    ([[1, 2], [3]], "rectangular"),
    (None, "expected numbers"),
])
def test_parameters_that_do_not_fit(values, sentence):
    network = Network.mlp([3, 2], seed=1)
    before = np.array(network.parameters)
    with pytest.raises(InputError, match=sentence):
        network.parameters = values
    np.testing.assert_array_equal(network.parameters, before)
    assert network.version == 0


def test_layers_are_set_and_read():
    network = Network(3, [Dense(2), Dense(4, bias=False)], seed=1)
    weights = np.arange(6).reshape(2, 3)
    other = np.array(network.weights(1))
    network.set_layer(0, weights, [5, 6])
    np.testing.assert_array_equal(network.weights(0), weights)
    np.testing.assert_array_equal(network.biases(0), [5, 6])
    network.set_layer(0, -weights)
    np.testing.assert_array_equal(network.weights(0), -weights)
    np.testing.assert_array_equal(network.biases(0), [5, 6])
    np.testing.assert_array_equal(network.weights(1), other)
    assert network.biases(1).shape == (0,)
    network.set_layer(1, other, [])
    assert network.version == 3
    for array in (network.weights(0), network.biases(0), network.biases(1)):
        assert array.size == 0 or not array.flags.writeable


@pytest.mark.parametrize(("layer", "weights", "biases", "sentence"), [
    (2, np.zeros((2, 3)), None, "layer 2 of 2 does not exist"),
    (-1, np.zeros((2, 3)), None, "layer -1 of 2"),
    (0, np.zeros((3, 2)), None, r"shape \[3, 2\], expected \[2, 3\]"),
    (0, np.zeros(6), None, r"shape \[6\]"),
    (0, "weights", None, "expected numbers"),
    (0, np.zeros((2, 3)), [1], r"shape \[1\], expected \[2\]"),
    (0, np.zeros((2, 3)), [[1, 2]], r"shape \[1, 2\]"),
    (1, np.zeros((4, 2)), [1, 2, 3, 4], r"expected \[0\]"),
])
def test_layers_that_do_not_fit(layer, weights, biases, sentence):
    network = Network(3, [Dense(2), Dense(4, bias=False)], seed=1)
    with pytest.raises(InputError, match=sentence):
        network.set_layer(layer, weights, biases)
    assert network.version == 0
    if sentence.startswith("layer"):
        for read in (network.weights, network.biases):
            with pytest.raises(InputError, match=sentence):
                read(layer)


def test_numbers_of_other_types_are_converted():
    network = Network.mlp([3, 2], seed=1)
    for values in (np.ones(64, bool), np.ones(64, np.int8), np.ones(64), [1] * 64):
        network.parameters = values
        assert network.parameters.dtype == np.float32
        np.testing.assert_array_equal(network.weights(0), np.ones((2, 3)))


def test_parameters_of_the_constructor_are_copied():
    one = Network.mlp([3, 2], seed=1)
    other = Network(3, one.layers, parameters=one.parameters)
    np.testing.assert_array_equal(one.parameters, other.parameters)
    assert not np.shares_memory(one.parameters, other.parameters)
