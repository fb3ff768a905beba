"""Whole networks with sparse layers in one launch, against the oracle."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from bounds import close
from devices import CPU, DEVICE, GPU, LaunchesFor
from spans import results_of
from variant_cases import sparse

from clnet import Dense, Local, Network
from clnet.ir import reference
from clnet.planning.candidates import eligible
from clnet.variants.mixed.fused_sparse import FusedSparse

FUSED = FusedSparse()
NETWORKS = {
    "one format": [sparse(33, "csr", "tanh", 0.2), sparse(40, "csr", "sigmoid", 0.1)],
    "hyb, ell and dense rows": [
        sparse(65, "hyb", "tanh", 0.1), Dense(37, "relu"),
        sparse(9, "ell", "sigmoid", 0.5), sparse(300, "sell", "elliot", 0.2),
    ],
    "local, dia, no bias": [
        sparse(64, "coo", "tanh", 0.3, bias=False), Local(5, "relu", bias="shared"),
        Local(3, "tanh"), sparse(31, "dia", "identity", 0.1),
    ],
    "shortcuts": [
        sparse(60, "csr", "tanh", 0.1), Dense(12, "sigmoid", sources=(0, 1)),
        sparse(37, "coo", "sigmoid", 0.4, sources=(0, 1, 2)),
        sparse(5, "dense", "tanh", 0.9, sources=(2, 3)),
    ],
    "wide offsets": [sparse(9, "csr", "tanh", 0.0001), sparse(3, "ell", "tanh", 1.0)],
}


def network_of(name, dtype="float32"):
    network = Network(
        70_000 if name == "wide offsets" else 29, NETWORKS[name], seed=1, dtype=dtype
    )
    network.parameters = np.random.default_rng(1).uniform(
        -1, 1, network.parameters.shape
    )
    return network


def run(network, span, config, device):
    """Compare a second call with the oracle; the first call's inputs are NaN."""
    (x,), (y,) = span.inputs, span.outputs
    rows = np.random.default_rng(span.batch).uniform(-1, 1, (span.batch, x.width))
    rows = rows.astype(network.dtype)
    variant = LaunchesFor(FUSED, device)
    results = results_of(
        network, span, variant, config, {x.name: rows}, second=True
    )
    values = {"batch": np.array(span.batch), x.name: rows.astype(np.float64)}
    reference.run_ops(span.ops, values, network.parameters.astype(np.float64))
    close(results[y.name], values[y.name], 40.0, 100)


@pytest.mark.parametrize("device", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.unoptimised] * (i % 2))
    for i, name in enumerate(NETWORKS)
])
def test_networks(name, device):
    number = list(NETWORKS).index(name)
    if name == "wide offsets":  # the only offsets of 32 bits
        device = dataclasses.replace(device, local_memory=1 << 20)
        if DEVICE.local_memory < 1 << 20 and device.type == "gpu":
            pytest.skip("the device has not that much local memory")
    for i, batch in enumerate((1, 9, 33) if name != "wide offsets" else (3,)):
        dtype = "float64" if DEVICE.fp64 and i == number % 3 else "float32"
        network = network_of(name, dtype)
        span = network.program.span(0, len(network.program.ops), batch)
        assert FUSED.refuse(span, device) is None
        listed = list(FUSED.space(span, device))
        run(network, span, listed[(number + i) % len(listed)], device)


def test_layers_of_several_products():
    """The planner's runs: layers of HYB and with shortcuts have two products."""
    for name, stop in (("hyb, ell and dense rows", 5), ("shortcuts", 10)):
        program = network_of(name).program
        listed = eligible(
            program, 2, 2, (FUSED,), CPU, lambda v, s, p: list(v.space(s, p)), {}
        )
        assert {(c.start, c.stop) for c in listed} >= {(0, len(program.ops))}
        assert len(program.ops) >= stop


def test_refusals():
    program = network_of("shortcuts").program
    n = len(program.ops)
    assert "this is one" in FUSED.refuse(program.span(0, 2, 1), GPU)
    assert "not whole layers" in FUSED.refuse(program.span(0, 3, 1), GPU)
    assert "more is read later" in FUSED.refuse(program.span(0, 5, 1), GPU)
    assert "have several" in FUSED.refuse(program.span(2, n, 1), GPU)
    tiny = dataclasses.replace(GPU, local_memory=300)
    assert "has 300" in FUSED.refuse(program.span(0, n, 1), tiny)
    dense = Network.mlp([3, 4, 5]).program
    assert "there is none here" in FUSED.refuse(dense.span(0, 4, 1), GPU)
    mixed = Network(9, [
        sparse(4, "csr", "tanh", 0.5), sparse(2, "csr", ("tanh", "relu"), 0.5)
    ]).program
    assert "neurons differ" in FUSED.refuse(mixed.span(0, 4, 1), GPU)
    old = dataclasses.replace(GPU, fp64=False)
    double = network_of("one format", "float64").program
    assert "no float64" in FUSED.refuse(double.span(0, 4, 1), old)
