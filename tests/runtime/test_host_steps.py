"""Steps on the host: what the reference computes, bit for bit, with fewer steps."""

from __future__ import annotations

import numpy as np
import pytest
from covers import CPU, cover, inputs, on_device

from clnet import Dense, Local, Network, Sparse
from clnet.ir import reference

NETWORKS = {
    "dense": lambda: Network.mlp([5, 7, 3], "sigmoid", seed=1),
    "float64": lambda: Network.mlp([5, 7, 3], "gelu", seed=1, dtype="float64"),
    "linear": lambda: Network(5, [Dense(3, "identity", bias=False)], seed=1),
    "softmax": lambda: Network(5, [Dense(4, "tanh"), Dense(3, "softmax")], seed=1),
    "steep": lambda: Network(5, [Dense(4, "tanh", steepness=0.3), Dense(2)], seed=1),
    "FANN": lambda: Network(
        5, [Dense(4, "sigmoid", steepness=0.7), Dense(2, "linear")], seed=1,
        fann_compatible=True,
    ),
    "mixed": lambda: Network(
        5, [Dense(3, ("tanh", "relu", "sin")), Dense(2, "elliot")], seed=1
    ),
    "shortcuts": lambda: Network(
        5, [Dense(4, "tanh"), Dense(3, "sigmoid", sources=[0, 1])], seed=1
    ),
    "sparse": lambda: Network(5, [Sparse(8, density=0.4, seed=1), Dense(2)], seed=1),
    "local": lambda: Network(9, [Local(3), Local(3)], seed=1),
}


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("batch", [1, 4])
def test_a_host_plan_gives_the_references_bits(make, batch):
    network = make()
    plan = on_device(network, batch, variants=["host"])
    for seed in (1, 2):
        x = 3 * inputs(network, batch, seed)
        x[0, 0] = np.nan if seed == 2 else x[0, 0]
        for _ in range(2):
            y = plan(x)
            expected = reference.run(network.program, x, network.parameters)
            np.testing.assert_array_equal(y, expected)
            assert y.dtype == expected.dtype
        network.initialise(seed=seed)


def test_steps_in_a_row_are_one_action():
    network = Network.mlp([5, 7, 6, 3], "tanh", seed=1)
    assert len(on_device(network, 2, variants=["host"])._executable._actions) == 1


@pytest.mark.parametrize("kinds", [
    ["host", "naive", "host"], ["naive", "host", "host"], ["host", "host", "naive"],
], ids=" ".join)
def test_steps_between_kernels(kinds):
    network = Network.mlp([5, 7, 6, 3], "tanh", seed=1)
    whole = cover(network, CPU, ["naive"] * 3, 2)
    plan = cover(network, CPU, kinds, 2)
    for seed in range(3):
        x = inputs(network, 2, seed)
        np.testing.assert_allclose(plan(x), whole(x), rtol=1e-5, atol=1e-6)
