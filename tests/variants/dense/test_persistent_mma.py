"""persistent_mma against the oracle by its plain-C path, and its schedule.

One group waits for no other, so that its arithmetic is tested without forward progress
between groups. Slices then exchange partial sums in the order of the group's tasks.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from devices import CPU_ONLY, DEVICE, H200, ONE_GROUP
from spans import check_calls
from variants.timeouts import assert_timeout_is_recovered

from clnet import Dense, Local, Network
from clnet.opencl.session import session
from clnet.runtime.binding import PlanStep
from clnet.runtime.executable import Executable
from clnet.variants.dense import persistent
from clnet.variants.dense.persistent import (
    KEYS,
    LARGEST_BATCH,
    SHAPES,
    PersistentMma,
    TaskCut,
    TaskSchedule,
    reduced_by,
)


def config_of(*shape):
    return dict(zip(KEYS, shape, strict=True))


SMALL = config_of(2, 2, 1, 2)


def whole(network, batch):
    return network.program.span(0, len(network.program.ops), batch)


def check(network, batch, config, scale=1.0, seed=0, device=ONE_GROUP):
    step = PlanStep(whole(network, batch), PersistentMma(), config, device)
    rng = np.random.default_rng(seed)
    check_calls(network, step, partial(rng.uniform, -scale, scale))


@pytest.mark.parametrize(("sizes", "batch", "shape"), [
    ((20, 33, 50, 7), 5, (2, 1, 1, 1)),
    ((16, 65, 65, 4), 8, (16, 3, 1, 2)),  # a row of blocks too many
    pytest.param((16, 17, 1, 31), 16, (4, 2, 2, 2), marks=pytest.mark.sweep),
    pytest.param((130, 130, 66, 15), 17, (8, 2, 4, 1), marks=pytest.mark.sweep),
])
def test_sizes(sizes, batch, shape):
    check(Network.mlp(sizes, "sigmoid", seed=batch), batch, config_of(*shape))


def mixed():
    """Return a network of bounded and other activations, with and without bias."""
    layers = [
        Dense(35, "tanh"), Dense(33, "relu", bias=False), Dense(20, "silu", 0.5),
        Dense(18, "identity"),
    ]
    return Network(40, layers, seed=1)


@pytest.mark.parametrize("scale", [1e-10, 1e3])
def test_functions_and_scales(scale):
    check(mixed(), 9, SMALL, scale)


@pytest.mark.skipif(
    not DEVICE.forward_progress or PersistentMma().refuse(
        whole(Network.mlp([3, 4, 2], seed=1), 2), DEVICE
    ) is not None,
    reason=f"{DEVICE.name} has no concurrent groups with matrix units",
)
@pytest.mark.parametrize(
    ("batch", "hidden"), [(2, "sigmoid"), (16, "relu"), (64, "sigmoid"), (128, "relu")]
)
def test_on_all_compute_units(batch, hidden):
    """Layers of one task per group, of several tasks, and of slices, in every shape."""
    network = Network.mlp([200, 1500, 700, 2100, 33], hidden, seed=1)
    span = whole(network, batch)
    for config in PersistentMma().space(span, DEVICE):
        check(network, batch, config, device=DEVICE)


def test_split_k(monkeypatch):
    """The last slice, which the only group computes last, adds the partial sums."""
    monkeypatch.setattr(
        persistent, "reduced_by",
        lambda cut, slice_, columns: range(
            cut.rows * columns * (slice_ == cut.slices - 1)
        ),
    )
    monkeypatch.setattr(
        TaskSchedule, "cuts",
        property(lambda self: [
            TaskCut(2, 2,
            -(-p.row_blocks // 2) * 2 * self.tiles // self.config["columns"])
            for p in self.packings
        ]),
    )
    check(Network.mlp([80, 50, 33], "relu", seed=3), 11, SMALL)


def test_nan_stays_in_its_sample():
    network = mixed()
    span = whole(network, 9)
    step = PlanStep(span, PersistentMma(), SMALL, ONE_GROUP)
    one = Executable(session(ONE_GROUP), network, [step], span.inputs, span.outputs)
    x = np.ones((9, 40), np.float32)
    x[4, 7:10] = np.frombuffer(b"\xff" * 12, np.float32)  # its word would be 0
    one.x[span.inputs[0].name][...] = x
    one.run()
    y = one.result(span.outputs[0].name)
    assert (np.isnan(y).any(axis=1) == (np.arange(9) == 4)).all()
    assert not one.result_timed_out(y)


@pytest.mark.parametrize("batch", [2, 32, 100])
@pytest.mark.parametrize("sizes", [
    (200, 400, 500, 100), (200, 1000, 2000, 2000, 1000, 100), (33, 9000, 5),
])
def test_schedules_cover_each_block_once(sizes, batch):
    span = whole(Network.mlp(sizes, "sigmoid"), batch)
    configs = list(PersistentMma().space(span, H200))
    assert configs
    for config in configs:
        schedule = TaskSchedule(span, config, H200)
        done = [0] * len(schedule.packings)
        for weights, _, _, blocks, rows, *_, neuron, _, _, _, _, _ in (
            task for tasks in schedule.tasks.tolist() for task in tasks if task[3]
        ):
            starts = [before // 1024 for before, _ in schedule.packed_before]
            layer = np.searchsorted(starts, weights, "right") - 1
            height = schedule.packings[layer].row_blocks - neuron // 16
            done[layer] += blocks * min(rows, height)
        columns = schedule.tiles // config["columns"]
        assert done == [p.row_blocks * p.blocks * columns for p in schedule.packings]
        for cut in schedule.cuts:
            assert cut.slices == 1 or cut.tasks <= schedule.groups
            columns = config["columns"]
            finished = [
                c for q in range(cut.slices) for c in reduced_by(cut, q, columns)
            ]
            assert sorted(finished) == list(range(cut.rows * columns))


def test_shapes_meet_the_kernels_limits():
    assert len(set(SHAPES)) == len(SHAPES)
    for shape in SHAPES:
        config = config_of(*shape)
        assert config["rows"] * config["columns"] <= config["warps"] <= 16


def test_refusals():
    network = Network.mlp([3, 4, 2], seed=1)
    refuse = PersistentMma().refuse
    assert refuse(whole(network, 2), H200) is None
    assert "samples at a time" in refuse(whole(network, 1), H200)
    assert "samples at a time" in refuse(whole(network, LARGEST_BATCH + 1), H200)
    alone = replace(H200, forward_progress=False)
    assert "forward progress" in refuse(whole(network, 4), alone)
    small = replace(H200, local_memory=1 << 12)
    assert "4096 bytes" in refuse(whole(network, 4), small)
    old = replace(H200, compute_capability=(7, 5))
    assert "matrix units" in refuse(whole(network, 4), old)
    double = Network.mlp([3, 4, 2], seed=1, dtype="float64")
    assert "float32 only" in refuse(whole(double, 4), replace(H200, fp64=True))
    local = Network(9, [Local(window=3)])
    assert "dense layers" in refuse(whole(local, 4), H200)


@CPU_ONLY
def test_a_timeout_is_reported_and_recovered(monkeypatch):
    monkeypatch.setattr(persistent, "MAX_POLLS", 100)
    network = Network.mlp([30, 40, 20], "sigmoid", seed=1)
    device = replace(ONE_GROUP, compute_units=5 * DEVICE.compute_units)
    config = config_of(1, 1, 1, 1)
    assert_timeout_is_recovered(
        network, PlanStep(whole(network, 3), PersistentMma(), config, device), 3
    )
