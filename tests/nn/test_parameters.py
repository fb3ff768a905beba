"""Parameters cost their own bytes: constructing and replacing them, traced."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from clnet import Dense, Local, Network, Sparse
from clnet.nn.initialisers import INITIALISERS, initialiser
from clnet.nn.matrix import CHUNK

SIZES = [1001, 800, 10]
CONSTANT = 8 * (4 * CHUNK)  # bytes: some draws in float64, and what else is small
LAYERS = [Dense(n, initialiser="uniform") for n in SIZES[1:]]


def peak(work):
    """Return the bytes that a call allocates at one time, beside older ones."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("make", [
    lambda: Network.mlp(SIZES),
    lambda: Network.mlp(SIZES, initialiser="he"),
    lambda: Network(SIZES[0], LAYERS),
    lambda: Network.mlp([CHUNK + 3, 10]),
], ids=["mlp", "he", "network", "long rows"])
def test_constructing_costs_a_networks_own_bytes(make):
    nbytes = make().parameters.nbytes
    assert nbytes > 2.5e6
    assert peak(make) <= nbytes + CONSTANT


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_replacing_costs_the_bytes_of_old_and_new(dtype):
    """The old ones are there before the call, and may be held by others."""
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
        assert peak(work) <= network.parameters.nbytes + CONSTANT


@pytest.mark.parametrize("name", sorted(INITIALISERS))
@pytest.mark.parametrize("sizes", [(700, 300), (2 * CHUNK + 5, 3), (1, 2)])
def test_numbers_are_those_of_one_draw(name, sizes):
    """However many are drawn at a time."""
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
def test_numbers_of_other_layers_are_those_of_one_draw(layer):
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
