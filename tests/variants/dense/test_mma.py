"""mma, mma_backward, fused_mma at the edges of tiles, by the plain-C path."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from devices import H200
from spans import DEVICE, SESSION, check, program_of, span_at
from variant_cases import alternate

from clnet import Dense, Local, Network
from clnet.checks import PRECISIONS
from clnet.errors import InputError
from clnet.ir.product import Apply, ApplyT, Outer
from clnet.opencl.program import WARP_GROUP_MMA, WARP_MMA
from clnet.runtime.binding import PlanStep
from clnet.runtime.replay import Replay
from clnet.runtime.train_state import TrainState
from clnet.variants.dense.fused_mma import KEYS as FUSED_KEYS
from clnet.variants.dense.fused_mma import FusedMma
from clnet.variants.dense.mma import (
    KEYS,
    SHAPES,
    Mma,
    local_bytes,
    shapes_of,
    tile_memory,
)
from clnet.variants.packing import SPLITS, Packing
from clnet.variants.training.gemm_backward import MmaBackward

EPS = {"highest": 2.0**-23, "high": 2.0**-12, "medium": 2.0**-8}


def forward(network, batch, precision="highest"):
    program = dataclasses.replace(program_of(network), precision=precision)
    return span_at(program, Apply, 2, batch)


def config_of(shape, parts=1):
    return {**dict(zip(KEYS, shape, strict=True)), "parts": parts}


def checked(network, span, config, variant=None):
    check(
        network, span, variant or Mma(), config, eps=EPS[span.precision], capable=H200
    )


@pytest.mark.parametrize(("precision", "index"), [
    pytest.param(name, i, marks=() if i in (0, 3, last) else pytest.mark.sweep)
    for name in PRECISIONS[:2] for last in [len(SHAPES[SPLITS[name]]) - 1]
    for i in range(last + 1)
])
def test_edges(precision, index):
    """Outputs, and the pre-activations that the derivative of silu reads."""
    shape = SHAPES[SPLITS[precision]][index]
    function = "silu" if index % 2 else "tanh"
    network = Network(37 + index, [Dense(shape[2] + 5, function), Dense(2)], seed=1)
    span = forward(network, shape[1] + 1, precision)
    assert len(span.outputs) == 1 + (function == "silu")
    checked(network, span, config_of(shape, parts=1 + index % 3))


@pytest.mark.unoptimised
@pytest.mark.parametrize("sizes", [(1, 1, 1), (4, 4, 4), (33, 3, 2), (64, 16, 16)])
def test_small(sizes):
    n_in, n_out, batch = sizes
    network = Network(n_in, [Dense(n_out, "tanh", bias=n_in > 1)], seed=1)
    checked(network, forward(network, batch), config_of(SHAPES[2][-1]))


def test_packings_in_one_launch_stay_right():
    """Weights and inputs are packed by groups of one launch, which take turns."""
    network = Network(5, [Dense(65, "tanh")], seed=1)
    span = forward(network, 63)
    config = config_of((WARP_GROUP_MMA, 64, 32, 4, 1, 4, 3, 4, 1))
    train_state = TrainState(SESSION, network.parameters, np.zeros((0, 0)))
    step = PlanStep(span, Mma(), config, DEVICE)
    replay = Replay(SESSION, [step], network.layout, train_state)
    rows = np.random.default_rng(0).uniform(-1, 1, (63, 5))
    (x,), (y,) = span.inputs, span.outputs
    replay.write(x, rows)
    replay.run()
    expected = replay.read(y)
    for _ in range(100):
        replay.run()
        np.testing.assert_array_equal(replay.read(y), expected)


@pytest.mark.parametrize("units", [0, -1])
@pytest.mark.parametrize("precision", PRECISIONS[:2])
def test_run_of_layers(units, precision):
    """Bounded outputs stay packed between layers; others are refused."""
    layers = [Dense(45, "tanh"), Dense(70, "sigmoid"), Dense(3, "relu")]
    network = Network(37, layers, seed=1)
    program = network.program.at(precision)
    span = program.span(0, len(program.ops), 66)
    shape = SHAPES[SPLITS[precision]][units]
    checked(network, span, config_of(shape, parts=2 + units))
    layers = [Dense(4, "relu"), Dense(4)]
    span = forward(Network(3, layers), 4)
    assert Mma().refuse(span, H200) is None
    program = Network(3, layers).program
    assert "relu is unbounded" in Mma().refuse(program.span(0, 4, 4), H200)


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e4, 1e20])
def test_any_scale(scale):
    """Rows far beyond the range of halves are scaled into it."""
    network = Network(40, [Dense(20, "identity")], seed=1)
    network.parameters = network.parameters * scale
    checked(network, forward(network, 17), config_of(SHAPES[2][-1]))


SIZES = [(37, 41, 50), (1, 1, 1), (64, 33, 16), (5, 70, 131)]


@pytest.mark.unoptimised
@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_apply_t(sizes, pair):
    """Gradients of a layer's input, alone or times the derivative below."""
    n_in, n_out, batch = sizes
    function = "silu" if n_in == 37 else "tanh"
    network = Network(3, [Dense(n_in, function), Dense(n_out)], seed=1)
    span = span_at(program_of(network), ApplyT, 1 + pair, batch)
    checked(network, span, config_of(SHAPES[2][-4 + 3 * pair]), MmaBackward())


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_outer(sizes, biased):
    """The gradient of a layer's weights, alone or with that of its biases."""
    n_in, n_out, batch = sizes
    network = Network(n_in, [Dense(n_out, bias=biased)], seed=1)
    span = span_at(program_of(network), Outer, 1 + biased, batch)
    checked(network, span, config_of(SHAPES[2][-4 + 3 * biased]), MmaBackward())


@pytest.mark.parametrize(("sizes", "shape"), alternate(SIZES, SHAPES[2][-4::3]))
def test_both_products(sizes, shape):
    """Of a layer, in one launch; of two layers, none."""
    n_in, n_out, batch = sizes
    function = "silu" if n_in == 37 else "tanh"
    network = Network(3, [Dense(n_in, function), Dense(n_out)], seed=1)
    program = program_of(network)
    checked(network, span_at(program, Outer, 4, batch), config_of(shape), MmaBackward())
    assert "these ops are others" in MmaBackward().refuse(
        span_at(program, Outer, 3, batch), H200
    )


def fused(network, batch, shape, precision):
    program = network.program.at(precision)
    span = program.span(0, len(program.ops), batch)
    checked(
        network, span, dict(zip(FUSED_KEYS, shape, strict=True)), FusedMma()
    )


@pytest.mark.unoptimised
@pytest.mark.parametrize("precision", PRECISIONS[:2])
@pytest.mark.parametrize(
    ("sizes", "batch", "shape"),
    [
        ((20, 33, 7), 40, (1, 1, 1, 1)),
        ((4, 48), 17, (8, 1, 1, 1)),  # arrays of one row
        pytest.param((9, 31), 17, (4, 1, 1, 0), marks=pytest.mark.sweep),
        pytest.param((20, 33, 33, 33, 5), 40, (2, 2, 1, 2), marks=pytest.mark.sweep),
        pytest.param((64,) * 8, 33, (8, 1, 1, 0), marks=pytest.mark.sweep),
    ],
)
def test_fused(sizes, batch, shape, precision):
    """Layers of any widths, their weights resident or through the pipeline."""
    names = ("tanh", "relu", "silu")
    layers = [Dense(n, names[i % 3], bias=i != 1) for i, n in enumerate(sizes[1:])]
    fused(Network(sizes[0], layers, seed=1), batch, shape, precision)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e5])
def test_fused_at_any_scale(scale):
    """Values far beyond the range of halves, and biases far beyond the values."""
    network = Network.mlp([20, 17, 17, 17, 17, 17, 5], "relu", seed=1)
    parameters = network.parameters * scale
    span = network.program.span(0, len(network.program.ops), 1)
    for layer in span.layers[:-2]:
        parameters[layer.act.bias.offset + np.arange(3)] = scale, 1e3 * scale, 1e-3
    network.parameters = parameters
    fused(network, 20, (1, 1, 1, 1), "high")


def test_packing_sizes():
    packing = Packing(rows=129, terms=33, splits=2)
    assert (packing.row_blocks, packing.blocks) == (16, 4)
    assert packing.size == 256 * 64 * 2 * 2
    assert packing.scales_size == 256 * 4


def test_shapes_meet_the_kernels_conditions():
    for splits, shapes in SHAPES.items():
        assert len(set(shapes)) == len(shapes)
        for shape in shapes:
            units, m, n, warps_m, warps_n, step, _, part, _ = shape
            assert m % (16 * warps_m) == n % (16 * warps_n) == 0
            if units == WARP_GROUP_MMA:
                assert (16 * warps_m, warps_n) == (m, 1) and m % 64 == 0
                assert n in (32, 64, 96, 128, 192, 256)
                assert 4 % part == part % step == 0
            else:
                assert 128 % m == 128 % n == 2 % step == step % part == 0
                assert warps_m * warps_n >= step * splits
            assert local_bytes(config_of(shape), splits) <= tile_memory(units, H200)


@pytest.mark.parametrize("splits", SHAPES)
def test_shapes_fit_the_device(splits):
    def eligible(**edits):
        device = dataclasses.replace(H200, **edits)
        return [tuple(c.values()) for c in shapes_of(splits, device)]

    assert eligible() == list(SHAPES[splits])
    declared = eligible(unit_local_memory=H200.declared_local_memory)
    warps = [shape for shape in SHAPES[splits] if shape[0] == WARP_MMA]
    assert declared[: len(warps)] == warps
    assert all(local_bytes(config_of(s), splits) <= 48 << 10 for s in declared)
    assert not eligible(unit_local_memory=2048, declared_local_memory=1024)
    small = dataclasses.replace(
        H200, unit_local_memory=2048, declared_local_memory=1024
    )
    network = Network.mlp([30, 20], seed=1)
    assert "more local memory than the 1024" in Mma().refuse(
        forward(network, 64), small
    )


def test_the_model_fills_the_device():
    def space(on, *sizes):
        network = Network.mlp(sizes[1:], activation="tanh")
        return tuple(Mma().space(forward(network, sizes[0]), on))

    def first(*sizes):
        return space(H200, *sizes)[0]

    large = first(8192, 1024, 1024)
    assert (large["units"], large["parts"]) == (WARP_GROUP_MMA, 1)
    older = dataclasses.replace(H200, compute_capability=(8, 6))
    assert {c["units"] for c in space(older, 8192, 1024, 1024)} == {WARP_MMA}
    assert space(H200, 8192, 1024, 1024)[-1]["units"] == WARP_MMA
    assert first(128, 2048, 128)["parts"] > 1
    assert first(1024, 1024, 10)["tile_n"] <= 32


def test_refusals():
    network = Network(3, [Dense(4, "tanh")])
    span = forward(network, 4)
    old = dataclasses.replace(H200, compute_capability=(7, 5))
    assert "matrix units" in Mma().refuse(span, old)
    without = dataclasses.replace(H200, compute_capability=None)
    assert "matrix units" in Mma().refuse(span, without)
    double = Network(3, [Dense(4, "tanh")], dtype="float64")
    assert "float32" in Mma().refuse(
        forward(double, 4), dataclasses.replace(H200, fp64=True)
    )
    local = Network(9, [Local(window=3)])
    assert "dense layers" in Mma().refuse(forward(local, 4), H200)


def test_precision_is_part_of_the_signature():
    network = Network(3, [Dense(4, "tanh")])
    texts = {forward(network, 4, p).signature for p in PRECISIONS}
    assert len(texts) == 3
    with np.testing.assert_raises(KeyError):
        Mma().launches(forward(network, 4, "low"), config_of(SHAPES[2][-1]), H200)


@pytest.mark.parametrize("precision", PRECISIONS[1:])
def test_any_precision_runs_anywhere(precision):
    network = Network.mlp([5, 4, 3], seed=1)
    x = np.random.default_rng(1).uniform(-1, 1, (9, 5))
    np.testing.assert_allclose(
        network.predict(x, precision=precision), network.predict(x), atol=1e-2
    )
    history = network.fit(x, np.zeros((9, 3)), epochs=2, precision=precision)
    assert len(history.epochs) == 2


def test_bad_precision():
    network = Network.mlp([5, 4, 3])
    x, t = np.zeros((2, 5)), np.zeros((2, 3))
    for call in (
        lambda p: network.compile(batch=2, precision=p),
        lambda p: network.predict(x, precision=p),
        lambda p: network.fit(x, t, precision=p),
    ):
        with pytest.raises(InputError, match="precision 'hihg'"):
            call("hihg")
    double = Network.mlp([5, 4, 3], dtype="float64")
    with pytest.raises(InputError, match="float64"):
        double.predict(x, precision="high")
