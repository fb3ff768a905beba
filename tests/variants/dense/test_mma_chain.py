"""mma_chain by the plain-C path, of one group, which never waits for another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from bounds import FP16_SPLIT, LAMBDA
from deviations import deviations
from devices import CPU_ONLY, DEVICE, H200, ONE_GROUP
from variants.timeouts import assert_timeout_is_recovered

from clnet import Dense, Local, Network
from clnet.checks import PRECISIONS
from clnet.opencl.session import session
from clnet.runtime.binding import PlanStep
from clnet.runtime.executable import Executable
from clnet.variants.dense import mma
from clnet.variants.dense.mma import (
    CHAIN_KEYS,
    CHAIN_SHAPES,
    MmaChain,
    Tiling,
)
from clnet.variants.packing import SPLITS

DECLARED_BYTES = 205 << 10  # of local memory that a group may declare there


def config_of(*shape):
    return dict(zip(CHAIN_KEYS, shape, strict=True))


def whole(network, batch, precision="highest"):
    program = network.program.at(precision)
    return program.span(0, len(program.ops), batch)


def check(network, batch, config, precision="highest", device=ONE_GROUP):
    span = whole(network, batch, precision)
    assert MmaChain().refuse(span, H200) is None
    step = PlanStep(span, MmaChain(), config, device)
    (y,) = span.outputs
    one = Executable(session(device), network, [step], span.inputs, (y,))
    rng = np.random.default_rng(batch)
    last = span.chain[-1].apply.z.name
    tiny = float(np.finfo(np.float32).tiny)  # below it, devices may flush to zero
    x = rng.uniform(-1, 1, (batch, network.n_in)).astype(np.float32)
    inputs = {span.inputs[0].name: x, "samples": batch}
    exact, deviation = deviations(
        span.ops, inputs, network.parameters, FP16_SPLIT[precision]
    )
    flushed = tiny * (1 + np.abs(exact[last]))  # silu has the sum as a factor
    bound = LAMBDA * deviation[y.name] + flushed
    for shift in range(3):  # counters grow from launch to launch
        one.x[span.inputs[0].name][...] = np.roll(x, shift, 0)
        one.run()
        found = one.result(y.name)
        assert not one.result_timed_out(found)
        off = np.abs(found - np.roll(exact[y.name], shift, 0))
        assert (off <= np.roll(bound, shift, 0)).all()


def mixed(*sizes):
    """Several activations, the last unbounded, with bias and without."""
    names = ("tanh", "sigmoid", "gaussian")
    layers = [Dense(n, names[i % 3], bias=i != 1) for i, n in enumerate(sizes[1:-1])]
    return Network(sizes[0], [*layers, Dense(sizes[-1], "silu")], seed=1)


@pytest.mark.parametrize("scale", [1e-8, 1, 1e6])
def test_scales_of_rows(scale):
    """Unbounded values are scaled by bounds known in advance."""
    names = ("relu", "tanh", "gelu", "identity", "silu")
    layers = [Dense(n, name) for n, name in zip((40, 9, 33, 20, 5), names, strict=True)]
    network = Network(30, layers, seed=1)
    network.parameters = network.parameters * scale
    check(network, 65, config_of(64, 32, 32, 4, 2))


@pytest.mark.parametrize(("sizes", "batch", "shape", "precision"), [
    ((20, 33, 50, 7), 66, (64, 64, 32, 4, 2), "highest"),
    ((65, 97, 35, 3), 64, (64, 96, 96, 4, 2), "medium"),
    pytest.param(
        (1, 1, 200, 1), 130, (128, 64, 64, 4, 2), "high", marks=pytest.mark.sweep
    ),
])
def test_sizes(sizes, batch, shape, precision):
    """At the edges of tiles, some layers of one tile and some of several."""
    check(mixed(*sizes), batch, config_of(*shape), precision)


@pytest.mark.skipif(
    not DEVICE.forward_progress or MmaChain().refuse(
        whole(mixed(3, 4, 2), 64), DEVICE
    ) is not None,
    reason=f"{DEVICE.name} runs no concurrent groups with matrix units",
)
@pytest.mark.parametrize("precision", PRECISIONS[:2])
@pytest.mark.parametrize("batch", [200, 2500])
def test_all_units_at_once(batch, precision):
    """Layers of fewer tiles than groups, and of more."""
    sizes = 203, 1500, 700, 2100, 33
    networks = mixed(*sizes), Network.mlp(sizes, "relu", seed=1)
    for number, shape in enumerate(CHAIN_SHAPES[SPLITS[precision]][batch > 200 :: 2]):
        check(networks[number % 2], batch, config_of(*shape), precision, device=DEVICE)


def test_shapes_fit_local_memory():
    for precision, splits in SPLITS.items():
        span, shapes = whole(mixed(3, 4, 2), 2, precision), CHAIN_SHAPES[splits]
        assert len(set(shapes)) == len(shapes)
        for shape in shapes:
            tiling = Tiling(span, config_of(*shape), H200)
            assert tiling.local_bytes <= DECLARED_BYTES


@pytest.mark.parametrize(("batch", "sizes", "tile", "narrow"), [
    (1024, (200, 1000, *[2000] * 7, 1000, 100), (128, 128), 64),
    (1024, (200, 1000, *[4000] * 3, 1000, 100), (128, 256), 64),
    (1024, (200, 400, *[500] * 7, 400, 100), (64, 64), 32),
    (8192, (200, 1000, *[2000] * 7, 1000, 100), (128, 256), 64),
])
def test_the_model_prefers_the_shape_measured_fastest(batch, sizes, tile, narrow):
    span = whole(Network.mlp(sizes, "sigmoid"), batch, "medium")
    first = next(iter(MmaChain().space(span, H200)))
    assert (first["tile_m"], first["tile_n"]) == tile
    widths = Tiling(span, first, H200).widths
    assert widths[-1] == narrow
    assert widths[3] == tile[1]


def test_refusals():
    refuse = MmaChain().refuse
    network = mixed(3, 4, 2)
    assert refuse(whole(network, 64), H200) is None
    assert "64 samples" in refuse(whole(network, 63), H200)
    alone = replace(H200, forward_progress=False)
    assert "forward progress" in refuse(whole(network, 64), alone)
    for capability, sentence in (((7, 5), "matrix units"), ((8, 6), "9.0")):
        old = replace(H200, compute_capability=capability)
        assert sentence in refuse(whole(network, 64), old)
    double = Network.mlp([3, 4, 2], seed=1, dtype="float64")
    assert "float32 only" in refuse(whole(double, 64), replace(H200, fp64=True))
    small = replace(H200, unit_local_memory=140 << 10)
    span = whole(network, 64, "medium")
    found = list(MmaChain().space(span, small))
    assert found
    tilings = [Tiling(span, config, H200) for config in found]
    assert all(tiling.local_bytes < 140 << 10 for tiling in tilings)
    none = replace(H200, unit_local_memory=2 << 10)
    assert "more local memory" in refuse(whole(network, 64), none)
    local = Network(9, [Local(window=3), Dense(2)])
    assert "dense layers" in refuse(whole(local, 64), H200)
    assert "two layers" in refuse(whole(mixed(3, 2), 64), H200)
    unbounded = Network(3, [Dense(4, "softplus"), Dense(4)])
    assert "unlike softplus" in refuse(whole(unbounded, 64), H200)


@CPU_ONLY
def test_a_timeout_is_reported_and_computed_again(monkeypatch):
    """More groups than run at once, all with tiles of both layers.

    When the last group starts, another has ended, which had to wait for it.
    """
    monkeypatch.setattr(mma, "MAX_POLLS", 100)
    groups = DEVICE.compute_units + 1
    config = config_of(64, 64, 32, 4, 2)
    width = groups * config["tile_n"]
    network = mixed(30, width, width)
    device = replace(ONE_GROUP, compute_units=groups)
    assert_timeout_is_recovered(
        network, PlanStep(whole(network, 3), MmaChain(), config, device), 3
    )
