"""Predictions for sparse matrices of many inputs: those for the dense array."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from bounds import assert_right

import clnet
from clnet import Dense, Network, Sparse
from clnet.planning import predictions
from clnet.planning.sparse_plan import SparsePlan

N_IN = 1300


def matrix(n, density=0.01, dtype=np.float32):
    return sp.random(n, N_IN, density, "csr", dtype, random_state=n)


@pytest.fixture
def calls(monkeypatch):
    """Let all matrices count as large, in steps of 16; return the sparse calls."""
    shapes, start = [], SparsePlan.start

    def counted(self, x, parameters):
        shapes.append(x.shape)
        start(self, x, parameters)

    monkeypatch.setattr(SparsePlan, "start", counted)
    monkeypatch.setattr(predictions, "CHUNK_BYTES", 0)
    monkeypatch.setattr(predictions, "SPARSE_CHUNK", 16)
    return shapes


@pytest.mark.parametrize("n", [7, 15, 16, 17, 40])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_outputs_are_those_of_the_dense_array(calls, n, dtype):
    if dtype == "float64" and not clnet.device().fp64:
        pytest.skip("the device has no float64")
    net = Network.mlp([N_IN, 5, 3], ["tanh", "softmax"], seed=1, dtype=dtype)
    x = matrix(n)
    out = np.empty((n, 3), dtype)
    found = net.predict(x, out=out)
    assert found is out
    assert calls == [(min(16, n - i), N_IN) for i in range(0, n, 16)]
    assert_right(net, x.toarray(), found)
    net.set_layer(1, np.zeros((3, 5)), np.zeros(3))
    np.testing.assert_array_equal(net.predict(x), np.full((n, 3), 1 / 3, dtype))


def test_small_matrices_and_other_layers_become_dense(calls):
    net = Network.mlp([N_IN, 50, 3], seed=1)
    net.predict(matrix(20))  # smaller than the parameters
    net.predict(matrix(60, 0.3))
    layers = [Sparse(4, density=0.1, seed=1), Dense(2)]
    Network(N_IN, layers, seed=1).predict(matrix(20))
    assert not calls
    net.predict(matrix(60))
    assert calls


def test_layers_that_skip_others(calls):
    net = Network(N_IN, [Dense(3, "tanh"), Dense(2, sources=(0, 1))], seed=1)
    x = matrix(33)
    assert_right(net, x.toarray(), net.predict(x))
    assert calls
