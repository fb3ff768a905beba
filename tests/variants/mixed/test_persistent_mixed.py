"""Sparse, local and dense layers in one launch, against the oracle.

Without forward progress between groups, several groups can be tested if each waits for
earlier groups only: PoCL starts them in order.
"""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest
from bounds import assert_right, span_bound
from devices import CPU_ONLY, DEVICE, H200, posing
from variant_cases import sparse
from variants.timeouts import assert_timeout_is_recovered

from clnet import Dense, Local, Network, Sparse
from clnet.nn.storage.pattern import Pattern
from clnet.opencl.session import session
from clnet.runtime.binding import PlanStep
from clnet.runtime.executable import Executable
from clnet.variants.mixed import fused_sparse
from clnet.variants.mixed.fused_sparse import PersistentMixed, layers_of, ranges_of

MIXED = PersistentMixed()
RNG = np.random.default_rng(3)
NETWORKS = {
    "sparse": (29, [sparse(33, "csr", "tanh", 0.2), sparse(1, "csr", "sigmoid", 0.1)]),
    "all kinds": (30, [
        Dense(65, "tanh", bias=False), sparse(65, "hyb", "tanh", 0.1), Dense(37, "elu"),
        sparse(9, "ell", "sigmoid", 0.5), sparse(300, "sell", "elliot", 0.2),
        Local(7, "tanh"), Local(3, "relu", bias="shared"), Dense(11, "sigmoid"),
    ]),
    "windows": (64, [
        Local(5, "tanh"), Local(30, "relu", bias="shared"),
        sparse(31, "dia", "identity", 0.5, bias=False), Local(1, "tanh"),
    ]),
    "many inputs": (1030, [sparse(40, "csr", "tanh", 0.3), Local(33, "sigmoid")]),
    "a wide layer": (600, [Local(4, "tanh"), sparse(2100, "coo", "tanh", 0.02)]),
}


def network_of(name):
    n_in, layers = NETWORKS[name]
    return Network(n_in, layers, seed=1)


def step_of(network, config, device):
    span = network.program.span(0, len(network.program.ops), 1)
    assert MIXED.refuse(span, device) is None
    return PlanStep(span, MIXED, config, device)


def check(network, config, device):
    step = step_of(network, config, device)
    (x,), (y,) = step.span.inputs, step.span.outputs
    one = Executable(session(device), network, [step], [x], [y])
    for i in range(4):  # words are double-buffered
        rows = RNG.uniform(-1, 1, (1, network.n_in)).astype(np.float32)
        one.x[x.name][...] = np.nan if i == 1 else rows
        one.run()
        if i == 1:
            assert np.isnan(one.result(y.name)).any()
            assert not one.result_timed_out(one.result(y.name))
            continue
        exact, bound = span_bound(step.span, {x.name: rows}, network.parameters)
        assert (np.abs(one.result(y.name) - exact[y.name]) <= bound[y.name]).all()
        if i == 2:
            network.parameters = network.parameters[::-1].copy()


@pytest.mark.parametrize(("name", "group", "depth"), [
    ("sparse", 32, 1), ("all kinds", 64, 2), ("windows", 32, 3), ("many inputs", 64, 1),
    ("a wide layer", 32, 2),
])
def test_networks(name, group, depth):
    device, network = posing(1), network_of(name)
    units = device.compute_units
    configs = [{"groups": units, "group": group, "depth": depth}]
    if DEVICE.forward_progress:
        span = step_of(network, configs[0], device).span
        configs += list(MIXED.space(span, device))[::3]
    for config in configs:
        check(network, config, device)


@pytest.mark.parametrize("units", [2, 5])
def test_groups_publish_values(units):
    """Rows read no vector of a later group: no wait times out."""
    layers = [Dense(40, "tanh")]
    for n, reach in ((40, 40), (40, 3), (40, 12), (4, 9)):
        row, column = np.indices((n, 40))
        last = row * (40 // n)
        below = (column <= last) & (column > last - reach)
        layers.append(Sparse(n, "sigmoid", pattern=Pattern.of(below), format="csr"))
    device = posing(units)
    config = {"groups": device.compute_units, "group": 32, "depth": 2}
    check(Network(7, layers, seed=3), config, device)


def test_lists_outlive_their_first_executable():
    network, device = network_of("sparse"), posing(1)
    step = step_of(network, {"groups": 1, "group": 32, "depth": 1}, device)
    ends = step.span.inputs, step.span.outputs
    one, two = (Executable(session(device), network, [step], *ends) for _ in "12")
    store = two.store
    del one
    gc.collect()
    network.parameters = network.parameters[::-1].copy()
    two.x["x"][...] = 1
    two.run()
    assert any(key.endswith("sources") for key in store._tables)
    assert_right(network, two.x["x"], two.result(step.span.outputs[0].name))


def test_ranges():
    network = Network(70, [
        Local(7, "tanh"), sparse(61, "hyb", "tanh", 0.01), Local(4, "tanh"),
    ], seed=1)
    program = network.program
    one, two, three = layers_of(program.span(0, len(program.ops), 1))
    first = np.array([0, 13, 26, 39, 52])  # 64 rows: shares of 13, and 12 at last
    past = np.array([13, 26, 39, 52, 64]) + 6
    expected = np.stack([first // 4, -(-past // 4)], axis=1)
    assert (ranges_of(one, 5) == expected).all()
    assert (np.diff(ranges_of(three, 5)) <= 5).all()  # 12 rows and 3 values more
    patterns = [apply.storage.pattern for apply in two.applies]
    for group, (low, high) in enumerate(ranges_of(two, 61)):
        columns = np.concatenate([p.columns[p.rows == group] for p in patterns])
        assert (columns >= 4 * low).all()
        assert (columns < 4 * high).all()
        assert high - low == (
            columns.max() // 4 - columns.min() // 4 + 1 if columns.size else 0
        )


def test_shapes_fit_local_memory():
    for n, layers in (*NETWORKS.values(), (100_000, [Local(3, "tanh")] * 9)):
        network = Network(n, layers, seed=1)
        span = network.program.span(0, len(network.program.ops), 1)
        space = list(MIXED.space(span, H200))
        assert space
        for config in space:
            *_, launch = MIXED.launches(span, config, H200)
            assert 2 * (launch.defines["ROOM"] + 4) * 4 < H200.local_memory
            assert MIXED.cost(span, config, H200).compute_units == config["groups"]


def test_refusals():
    refuse, device = MIXED.refuse, posing(1)
    program = network_of("all kinds").program
    n = len(program.ops)
    assert "forward progress" in refuse(
        program.span(0, n, 1), replace(DEVICE, forward_progress=False)
    )
    assert "one sample" in refuse(program.span(0, n, 2), device)
    assert "float32 only" in refuse(
        replace(program.span(0, n, 1), dtype="float64"), replace(device, fp64=True)
    )
    assert "this is one" in refuse(program.span(n - 6, n - 4, 1), device)
    assert "more is read later" in refuse(
        replace(program.span(0, n, 1), outputs=program.ops[1].writes), device
    )
    dense = Network.mlp([3, 4, 2]).program
    assert "there is none here" in refuse(dense.span(0, 4, 1), device)
    several = Network(9, [
        sparse(4, "csr", "tanh", 0.5), sparse(5, "csr", "tanh", 0.5, sources=(0, 1)),
    ]).program
    assert "reads others" in refuse(several.span(0, len(several.ops), 1), device)
    small = replace(device, local_memory=1 << 10)
    assert "1024 bytes" in refuse(program.span(0, n, 1), small)


@CPU_ONLY
def test_a_timeout_is_reported_and_recovered(monkeypatch):
    monkeypatch.setattr(fused_sparse, "MAX_POLLS", 1000)
    network, device = network_of("windows"), posing(5 * DEVICE.compute_units)
    waiting = step_of(network, {"groups": 4, "group": 1, "depth": 1}, device)
    assert_timeout_is_recovered(network, waiting, 1)
