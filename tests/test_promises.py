"""Promises of docs/reference/promises.md that no other test holds; a test for each."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest
from bounds import assert_right

import clnet
from clnet import Dense, Network, Scaling, Sparse, TrainingState

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "reference" / "promises.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)
CPU = clnet.device("cpu")


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_every_promise_has_its_test(file, name):
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    assert name in {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
    }


def test_the_page_names_tests():
    assert len(NAMED) > 20


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("batch", [1, 33])
def test_a_plan_gives_the_same_bits(dtype, batch):
    network = Network.mlp([60, 70, 30], "tanh", seed=1, dtype=dtype)
    x = np.random.default_rng(0).uniform(-1, 1, (batch, 60)).astype(dtype)
    for variants in (["generic"], ["split"], ["cpu", "gemm", "generic"]):
        plan = network.compile(CPU, batch, variants=variants, tune=False)
        first = plan(x).copy()
        assert all(np.array_equal(plan(x), first) for _ in range(5))


@pytest.mark.parametrize("variant", ["generic", "split", "cpu", "gemm"])
def test_overflow_is_not_finite(variant):
    network = Network(8, [Dense(6, "relu"), Dense(3)], seed=1)
    network.parameters = np.full_like(network.parameters, 1e25)
    x = np.full((9, 8), 1e20, np.float32)
    plan = network.compile(CPU, 9, variants=[variant, "generic"], tune=False)
    assert not np.isfinite(plan(x)).any()


@pytest.mark.parametrize("variant", ["generic", "split", "cpu", "gemm"])
@pytest.mark.parametrize("where", ["inputs", "weights", "results"])
def test_denormals_are_themselves_or_zero(variant, where):
    network = Network(8, [Dense(6), Dense(3)], seed=1)
    tiny = float(np.finfo(np.float32).tiny)
    scale = {"inputs": (tiny / 5, 1.0), "weights": (1.0, tiny / 5),
             "results": (1e-20, 1e-19)}[where]
    x = np.random.default_rng(0).uniform(0.5, 1, (9, 8)) * scale[0]
    network.parameters = network.parameters * np.float32(scale[1])
    plan = network.compile(CPU, 9, variants=[variant, "generic"], tune=False)
    weights = [network.weights(i).astype(np.float64) for i in (0, 1)]
    exact = x.astype(np.float32).astype(np.float64) @ weights[0].T @ weights[1].T
    # Each of the terms of a sum, and each value read, may count as zero.
    flushed = tiny * (8 + 6 * (1 + np.abs(weights[1]).max()) + 8 * 6)
    error = np.abs(plan(x.astype(np.float32)) - exact)
    assert (error <= flushed + 1e-5 * np.abs(exact)).all()


def test_files_of_every_version_are_read():
    """The files were written by 0.1.0; the network is of these layers."""
    network = clnet.load(TESTS / "data" / "network-1.safetensors")
    first, second, last = network.layers
    assert first == Dense(4, "tanh", steepness=0.5)
    assert isinstance(second, Sparse)
    assert second.n_out == 3
    assert last == Dense(2, "softmax", sources=[0, 2])
    assert network.scaling == Scaling.of(np.eye(3), np.eye(3)[:, :2])
    x = np.eye(3, dtype=np.float32)
    meaning = np.array([
        [0.263065502, 0.736934498], [0.370083702, 0.629916298],
        [0.663792868, 0.336207132],
    ])
    assert_right(network, x, network.predict(x, CPU, scale=False))
    assert np.abs(network.predict(x, CPU, scale=False) - meaning).max() < 1e-5
    state = TrainingState.load(TESTS / "data" / "state-1.npz")
    assert (state.epoch, state.count, state.seed) == (2, 2, 7)
    history = network.fit(
        x, x[:, :2], optimiser="adam", epochs=1, seed=7, device=CPU, state=state,
        scale=False,
    )
    assert history.state.epoch == 3
