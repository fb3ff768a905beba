"""fused_group against the oracle by its plain-C path, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import clnet
from clnet import Dense, Local, Network
from clnet.binding import Step
from clnet.executable import Executable
from clnet.session import session
from clnet.variants.fused_group import TEAMS, FusedGroup

DEVICE = clnet.device()
H200 = replace(
    DEVICE, companions=(), type="gpu", compute_units=132, simd_width=32,
    local_memory=48 << 10, largest_group=1024, compute_capability=(9, 0),
)


def whole(network, batch, precision="medium"):
    program = network.program.at(precision)
    return program.span(0, len(program.ops), batch)


def check(network, batch, config, device=DEVICE, scale=1.0):
    span = whole(network, batch)
    assert FusedGroup().refuse(span, H200) is None
    (y,) = span.outputs
    step = Step(span, FusedGroup(), config, device)
    one = Executable(session(device), network, [step], span.inputs, (y,))
    rng = np.random.default_rng(batch)
    x = (scale * rng.uniform(-1, 1, (batch, network.n_in))).astype(np.float32)
    one.x[span.inputs[0].name][...] = x
    one.run()
    exact = clnet.reference.run(network.program, x, network.parameters)
    np.testing.assert_allclose(
        one.result(y.name), exact, rtol=0, atol=5e-3 * np.abs(exact).max()
    )


def mixed(*sizes):
    names = ("tanh", "relu", "silu")
    layers = [Dense(n, names[i % 3], bias=i != 1) for i, n in enumerate(sizes[1:])]
    return Network(sizes[0], layers, seed=1)


@pytest.mark.parametrize(("sizes", "batch", "teams"), [
    ((33, 20, 50, 7), 70, 2),
    pytest.param((100, 128, 65), 64, 1, marks=pytest.mark.sweep),
])
def test_sizes(sizes, batch, teams):
    check(mixed(*sizes), batch, {"teams": teams})


def test_any_scale():
    check(mixed(5, 9, 6), 3, {"teams": 1}, scale=1e15)


@pytest.mark.skipif(
    FusedGroup().refuse(whole(mixed(3, 4, 2), 2), DEVICE) is not None,
    reason=f"{DEVICE.name} has no matrix units of warp groups",
)
@pytest.mark.parametrize("wide", sorted(TEAMS))
def test_all_units(wide):
    network = mixed(wide - 1, wide, wide, wide - 3)
    for config in FusedGroup().space(whole(network, 64), DEVICE):
        check(network, 70_001, config)


def test_refusals():
    refuse = FusedGroup().refuse
    network = mixed(3, 4, 2)
    assert refuse(whole(network, 2), H200) is None
    assert "float32's precision" in refuse(whole(network, 2, "highest"), H200)
    old = replace(H200, compute_capability=(8, 6))
    assert "9.0" in refuse(whole(network, 2), old)
    assert "129" in refuse(whole(mixed(129, 4), 2), H200)
    assert "bytes of weights" in refuse(whole(mixed(*[128] * 9), 2), H200)
    local = Network(9, [Local(window=3), Dense(2)])
    assert "dense layers" in refuse(whole(local, 2), H200)
