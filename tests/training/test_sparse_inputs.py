"""Trainings on sparse matrices: those on the same numbers in a dense array."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import clnet
from clnet import Dense, Network, Sparse
from clnet.errors import InputError
from clnet.ir.lowering import reads_sparse

N, N_IN = 90, 1100
RNG = np.random.default_rng(0)
X = sp.random(N, N_IN, 0.01, "csr", np.float32, random_state=1)
T = np.eye(3)[RNG.integers(0, 3, N)]
WEIGHT = RNG.uniform(0.5, 2, N)


def network(**options):
    return Network.mlp([N_IN, 12, 3], ["tanh", "softmax"], seed=1, **options)


def chosen(history):
    """Whether products with sparse samples are among the chosen kernels."""
    return "sparse_input" in history.plan.partition("\nrefused")[0]


def both(x, make=network, **options):
    """Train on a sparse matrix and on its dense array; return both networks."""
    nets, histories = [make(), make()], []
    for net, inputs in zip(nets, (x, x.toarray()), strict=True):
        histories.append(net.fit(inputs, T, seed=2, epochs=4, **options))
    assert [*map(chosen, histories)] == [True, False]
    return nets, histories


def agree(nets, histories):
    atol = 2e-6 if nets[0].dtype == "float32" else 1e-13
    np.testing.assert_allclose(
        nets[0].parameters, nets[1].parameters, rtol=0, atol=atol
    )
    losses = [[epoch.loss for epoch in history] for history in histories]
    np.testing.assert_allclose(*losses, rtol=10 * atol)


@pytest.mark.parametrize("options", [
    {"batch_size": 16}, {"batch_size": N}, {"batch_size": 1, "shuffle": False},
    {"batch_size": 32, "sample_weight": WEIGHT}, {"batch_size": 40, "l2": 0.1},
    {"batch_size": 16, "clip_norm": 0.1},
], ids=lambda options: " ".join(options))
def test_sparse_inputs_train_as_dense_ones(options):
    agree(*both(X, optimiser="sgd", **options))


def test_adam_in_float64():
    if not clnet.device().fp64:
        pytest.skip("the device has no float64")
    agree(*both(X, lambda: network(dtype="float64"), optimiser="adam", batch_size=32))


def test_validation_sets_may_be_sparse_too():
    nets, found = [network(), network()], []
    for net, x in zip(nets, (X, X.toarray()), strict=True):
        history = net.fit(
            x, T, optimiser="sgd", seed=2, epochs=3, batch_size=32,
            validation=(X[:30], T[:30]),
        )
        found.append([epoch.validation.loss for epoch in history])
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_layers_that_skip_others_read_sparse_inputs():
    layers = [Dense(6, "tanh", dropout=0.3), Dense(3, sources=(0, 1))]
    agree(*both(X, lambda: Network(N_IN, layers, seed=1), optimiser="sgd",
                batch_size=32))


@pytest.mark.parametrize("form", ["csc", "coo", "lil", "dok"])
def test_all_forms_of_matrices_are_read(form):
    agree(*both(X.asformat(form), optimiser="sgd", batch_size=32))


def test_duplicates_and_zeros_count_once():
    row, column = X.nonzero()
    data = np.concatenate([X.data - 1, np.ones(X.nnz), np.zeros(50)])
    row = np.concatenate([row, row, RNG.integers(0, N, 50)])
    column = np.concatenate([column, column, RNG.integers(0, N_IN, 50)])
    order = np.lexsort((RNG.permutation(len(row)), row))
    starts = np.append(0, np.cumsum(np.bincount(row, minlength=N)))
    x = sp.csr_matrix((data[order], column[order], starts), (N, N_IN))
    given = [array.copy() for array in (x.data, x.indices, x.indptr)]
    agree(*both(x, optimiser="sgd", batch_size=32))
    for before, array in zip(given, (x.data, x.indices, x.indptr), strict=True):
        np.testing.assert_array_equal(before, array)  # the caller's are not changed


def test_rows_without_entries():
    x = X.tolil()
    x[:20] = 0
    agree(*both(x.tocsr(), optimiser="sgd", batch_size=16))
    agree(*both(sp.csr_matrix((N, N_IN), dtype=np.float32), optimiser="sgd",
                batch_size=16))


def test_numbers_that_are_not_finite_are_named_by_their_place():
    for value, expected in ((np.nan, "finite"), (1e300, "within float32's range")):
        x = X.astype(np.float64)
        x.data[37] = value
        row = int(np.searchsorted(x.indptr, 37, side="right")) - 1
        place = rf"\[{row}, {x.indices[37]}\]"
        with pytest.raises(InputError, match=f"{place}.*{expected}"):
            network().fit(x, T, epochs=1)


def test_a_training_goes_on_with_sparse_inputs(tmp_path):
    options = {"optimiser": "adam", "batch_size": 32}
    whole, net = network(), network()
    whole.fit(X, T, seed=2, epochs=4, **options)
    file = tmp_path / "training.safetensors"
    net.fit(X, T, seed=2, epochs=2, callbacks=[clnet.Checkpoint(file)], **options)
    other = network()
    other.fit(X, T, resume=file, epochs=4, **options)
    np.testing.assert_array_equal(other.parameters, whole.parameters)


def test_other_layers_and_full_matrices_train_dense():
    assert reads_sparse(network(), X)
    assert not reads_sparse(network(), sp.random(N, N_IN, 0.5, "csr"))
    assert not reads_sparse(network(), X[:, :-1])
    assert not reads_sparse(Network(1000, [Dense(3)]), X[:, :1000])
    assert not reads_sparse(network(), X.toarray())
    layers = [Sparse(9, density=0.5, seed=1), Dense(3)]
    net = Network(N_IN, layers, seed=1)
    assert not reads_sparse(net, X)
    assert not chosen(net.fit(X, T, epochs=1, seed=0))
