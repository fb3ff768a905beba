"""The persistent variant against the oracle, its refusals and its timeouts.

One group waits for no other, so that its arithmetic is tested without forward progress
between groups; several groups then time out.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from bounds import span_bound
from devices import CPU_ONLY, DEVICE, H200, posing
from spans import check_calls
from variants.timeouts import assert_timeout_is_recovered

import clnet
from clnet import Dense, Network
from clnet.errors import ClnetWarning
from clnet.nn.activations import ACTIVATIONS
from clnet.opencl.program import inline_ptx
from clnet.opencl.session import session
from clnet.runtime import transfers
from clnet.runtime.binding import PlanStep
from clnet.runtime.executable import Executable
from clnet.variants.dense import persistent
from clnet.variants.dense.persistent import BULK, Persistent

RNG = np.random.default_rng(3)
SMALL = {"group": 64, "depth": 2}


def steps_of(network, device, config, start=0, stop=None):
    program = network.program
    span = program.span(start, stop or len(program.ops), 1)
    assert Persistent().refuse(span, device) is None
    return [PlanStep(span, Persistent(), config, device)]


def check(network, config, device=None):
    (step,) = steps_of(network, device or posing(1), config)
    check_calls(network, step, partial(RNG.uniform, -1, 1))


@pytest.mark.parametrize(("sizes", "group", "depth"), [
    ((1, 1), 32, 1), ((8, 31, 32, 33, 1, 5), 32, 4),
    ((64, 200, 130, 7), 64, 2), ((129, 65, 2, 127, 4), 128, 1),
])
def test_sizes(sizes, group, depth):
    network = Network.mlp(sizes, "sigmoid", seed=1)
    check(network, {"group": group, "depth": depth})


@pytest.mark.parametrize("sizes", [(20, 5, 10), (4000, 2200, 10)])
def test_the_default_config(sizes):
    network = Network.mlp(sizes, "tanh", seed=2)
    span = network.program.span(0, len(network.program.ops), 1)
    check(network, next(iter(Persistent().space(span, posing(1)))))


@pytest.mark.skipif(
    inline_ptx(DEVICE) < BULK, reason=f"{DEVICE.name} has no bulk copies"
)
@pytest.mark.parametrize("sizes", [
    (1, 1), (8, 31, 32, 33, 1, 5), (129, 700, 2, 130, 4), (200, 500, 750, 750, 100),
    (1000, 2000, 2000, 2000, 999, 30), (4000, 4001, 3000, 10),
])
def test_bulk_copies(sizes):
    network = Network.mlp(sizes, "tanh", seed=1)
    span = network.program.span(0, len(network.program.ops), 1)
    for config in Persistent().space(span, DEVICE):
        check(network, config)


def test_ring_shapes():
    for sizes in (
        (1, 1), (4000, 7), (200, *[500] * 9), (2000, *[2000] * 4, 10),
        (1000, *[4000] * 3, 10),
    ):
        network = Network.mlp(sizes, seed=1)
        span = network.program.span(0, len(network.program.ops), 1)
        space = list(Persistent().space(span, H200))
        assert all("piece" in config for config in space)
        for config in space:
            (launch,) = Persistent().launches(span, config, H200)
            d = {k: v for k, v in launch.defines.items() if isinstance(v, int)}
            ring, sums = d["SLOTS"] * (16 * d["SLOT"] + 16), d["GROUP"] >> d["HALVINGS"]
            room = 160 if config["per_unit"] == 1 and d["L2_PERCENT"] < 100 else 48
            assert ring + 8 * d["MAX_SHARE"] * sums <= room << 10
            assert d["SLOTS"] >= max(2, d["IN_FLIGHT"])
            assert d["ROWS"] >> d["HALVINGS"] >= 1
            assert sums % (4 * d["REDUCERS"]) == 0
            assert (max(sizes[1:]) // d["GROUPS"] + 1) * d["REDUCERS"] <= d["GROUP"]
            assert d["ROWS"] % d["COPY_ROWS"] == 0
            assert 4 * d["VECTORS"] * config["group"] >= max(sizes[:-1])
            assert d["MAX_SHARE"] * d["GROUPS"] >= max(sizes[1:])
    wide = Network.mlp([20, 80000], seed=1).program.span(0, 2, 1)
    assert all("depth" in config for config in Persistent().space(wide, H200))


def test_device_inputs():
    network, device = Network.mlp([20, 9, 4], "tanh", seed=2), posing(1)
    (step,) = steps_of(network, device, SMALL)
    (x,), (y,) = step.span.inputs, step.span.outputs
    ours = session(device)
    one = Executable(ours, network, [step], [x], [y], on_device=True)
    rows = RNG.uniform(-1, 1, (1, 20)).astype(np.float32)
    one.bound.write(x, rows)
    one.run()
    ours.finish()
    found = one.bound.memory(y).read(ours, 4, "float32")
    exact, bound = span_bound(step.span, {"x": rows}, network.parameters)
    assert (np.abs(found - exact[y.name]) <= bound[y.name]).all()


def test_functions_and_biases():
    names = [name for name in ACTIVATIONS if name != "softmax"]
    layers = [
        Dense(20, name, 0.5, bias=i % 3 > 0) for i, name in enumerate(names)
    ]
    check(Network(20, layers, seed=4), SMALL)


def test_nan_of_any_bits_is_published():
    network = Network.mlp([3, 4, 2], "identity", seed=1)
    device = posing(1)
    (step,) = steps_of(network, device, SMALL)
    one = Executable(
        session(device), network, [step], step.span.inputs, step.span.outputs
    )
    one.x["x"][...] = np.frombuffer(b"\xff" * 12, np.float32)  # its word would be 0
    one.run()
    y = one.result(step.span.outputs[0].name)
    assert np.isnan(y).all()
    assert not one.result_timed_out(y)


def test_zero_copy_outputs(monkeypatch):
    """Nothing is copied, and after MAX_POLLS polls the host waits for the kernel."""
    monkeypatch.setattr(transfers, "copy_out", None)
    device = replace(posing(1), fine_svm=False, companions=(), emulated=False)
    device = clnet.device(replace(device, mapped_host_memory=None))
    assert device.mapped_host_memory
    for polls in (2000, 1):
        monkeypatch.setattr(transfers, "MAX_POLLS", polls)
        check(Network.mlp([20, 9, 4], "tanh", seed=2), SMALL, device)


def test_refusals():
    network = Network.mlp([3, 4, 2], seed=1)
    span = network.program.span(0, 4, 1)
    refuse = Persistent().refuse
    alone = replace(DEVICE, forward_progress=False)
    assert "forward progress" in refuse(span, alone)
    device = posing(1)
    assert "one sample" in refuse(network.program.span(0, 4, 2), device)
    double = Network.mlp([3, 4, 2], seed=1, dtype="float64")
    assert "float32 only" in refuse(
        double.program.span(0, 4, 1), replace(device, fp64=True)
    )
    wide = Network.mlp([9000, 2], seed=1).program.span(0, 2, 1)
    assert "9000" in refuse(wide, replace(device, local_memory=1 << 15))


@CPU_ONLY
def test_a_timeout_is_reported_and_recovered(monkeypatch):
    monkeypatch.setattr(persistent, "MAX_POLLS", 1000)
    network = Network.mlp([30, 40, 20], "sigmoid", seed=1)
    device = posing(5 * DEVICE.compute_units)
    (waiting,) = steps_of(network, device, {"group": 1, "depth": 1})
    assert_timeout_is_recovered(network, waiting, 1)


@CPU_ONLY
def test_the_planner_leaves_out_what_times_out(monkeypatch):
    monkeypatch.setattr(persistent, "MAX_POLLS", 1000)
    device = posing(5 * DEVICE.compute_units)
    network = Network.mlp([30, 40, 20], "sigmoid", seed=1)
    with pytest.warns(ClnetWarning, match="persistent is left out"):
        plan = network.compile(device, variants=["persistent", "generic"])
    assert {step.variant.name for step in plan.steps} == {"generic"}
