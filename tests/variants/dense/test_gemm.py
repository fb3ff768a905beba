"""gemm and gemm_backward at the edges of every tile shape, by one kernel each."""

from __future__ import annotations

import dataclasses

import pytest
from spans import check, program_of, span_at

from clnet import Dense, Network
from clnet.ir.activation import ActGrad, BiasGrad
from clnet.ir.product import Apply, ApplyT, Outer
from clnet.nn.activations import ACTIVATIONS
from clnet.opencl.discovery import device
from clnet.planning.training_planner import plan_training
from clnet.planning.tuning import times
from clnet.variants.dense.gemm import CONFIGS, Gemm, GemmProduct, items
from clnet.variants.training.gemm_backward import GemmBackward

DEVICE = device()
H200 = dataclasses.replace(
    DEVICE, companions=(), type="gpu", compute_units=132, simd_width=32,
    local_memory=48128, largest_group=1024, launch_cost=5e-6, fp64=True,
    compute_capability=None,
)


def config_id(config):
    return "-".join(str(number) for number in config.values())


@pytest.mark.parametrize("config", CONFIGS[2::3], ids=config_id)
def test_forward(config):
    """The output, and the pre-activations that the derivative of silu reads."""
    m, n, k = (config[key] for key in ("tile_m", "tile_n", "tile_k"))
    function = "silu" if n > 32 else "tanh"
    network = Network(k + 3, [Dense(n + 5, function), Dense(2)], seed=n)
    span = span_at(program_of(network), Apply, 2, m + 1)
    assert len(span.outputs) == 1 + (function == "silu")
    check(network, span, Gemm(), config)


@pytest.mark.parametrize("config", CONFIGS[::3], ids=config_id)
def test_outer(config):
    """Gradients of weights and biases, or of weights; the input is not padded."""
    m, n, k = (config[key] for key in ("tile_m", "tile_n", "tile_k"))
    parts = 1 + n % 3
    network = Network(n + 1 + parts, [Dense(m + 3, bias=parts != 2)], seed=n)
    span = span_at(program_of(network), Outer, 1 + (parts != 2), parts * k + 1)
    check(network, span, GemmBackward(), {**config, "parts": parts})


@pytest.mark.parametrize("config", CONFIGS[1::3], ids=config_id)
def test_apply_t(config):
    """The gradient of a layer's input, alone or times the derivative below."""
    m, n, k = (config[key] for key in ("tile_m", "tile_n", "tile_k"))
    pair = k != 16
    network = Network(3, [Dense(n + 1, "tanh"), Dense(k + 2)], seed=n)
    span = span_at(program_of(network), ApplyT, 1 + pair, m + 1)
    check(network, span, GemmBackward(), config)


@pytest.mark.unoptimised
@pytest.mark.parametrize("fann", [False, True])
@pytest.mark.parametrize("name", ["sigmoid", "gaussian", "elliot", "relu", "gelu"])
def test_derivatives(name, fann):
    network = Network(
        3, [Dense(9, name, 0.7, bias=name != "gelu"), Dense(5, "tanh")], seed=1,
        fann_compatible=fann,
    )
    span = span_at(program_of(network), ApplyT, 2, 11)
    assert any(v.name.startswith("z") for v in span.inputs) == (
        ACTIVATIONS[name].reads == "v"
    )
    check(network, span, GemmBackward(), CONFIGS[-1])


@pytest.mark.parametrize(("kind", "length"), [(Apply, 2), (Outer, 2), (ApplyT, 2)])
def test_doubles(kind, length):
    if not DEVICE.fp64:
        pytest.skip("the device has no float64")
    network = Network(21, [Dense(19, "tanh"), Dense(18, "tanh")], seed=1,
                      dtype="float64")
    span = span_at(program_of(network), kind, length, 70)
    variant = Gemm() if kind is Apply else GemmBackward()
    config = {**CONFIGS[-1], "parts": 2} if kind is Outer else CONFIGS[-1]
    check(network, span, variant, config)


@pytest.mark.unoptimised
@pytest.mark.parametrize("sizes", [(1, 1, 1), (4, 4, 4), (5, 3, 2), (64, 16, 16)])
def test_small(sizes):
    n_in, n_out, batch = sizes
    network = Network(n_in, [Dense(n_out, "tanh"), Dense(n_out)], seed=1)
    program = program_of(network)
    for config in (CONFIGS[-1], CONFIGS[-2]):
        check(network, span_at(program, Apply, 2, batch), Gemm(), config)
        for parts in (1, 3):
            check(network, span_at(program, Outer, 2, batch), GemmBackward(),
                  {**config, "parts": parts})
        check(network, span_at(program, ApplyT, 1, batch), GemmBackward(), config)


def test_shapes_meet_the_kernels_limits():
    for config in CONFIGS:
        assert config["tile_m"] % config["item_m"] == 0
        assert config["tile_n"] % config["item_n"] == 0
        assert config["tile_n"] // config["item_n"] % config["lanes"] == 0
        assert config["tile_m"] // config["item_m"] % config["depth"] == 0
        assert config["tile_k"] % 8 == config["tile_k"] % config["teams"] == 0
        assert items(config) % (config["tile_m"] // 4) == 0
    assert len({tuple(config.items()) for config in CONFIGS}) == len(CONFIGS)


def test_the_model_fills_the_device():
    """Small products have small tiles, and long sums are divided (slice-k)."""
    large = GemmProduct(1024, 1024, 1024, 4).space(H200)
    assert (large[0]["tile_m"], large[0]["tile_n"]) == (128, 64)
    thin = GemmProduct(1024, 10, 1024, 4).space(H200)
    assert thin[0]["tile_n"] == 16
    assert thin[0]["teams"] > 1
    for product in (GemmProduct(1, 1, 1, 4), GemmProduct(10, 1024, 1024, 8)):
        found = product.space(H200, (1, 4))
        assert 0 < len(found) <= 6
        assert all(product.fits(config, H200) for config in found)


def test_refusals():
    names = ("tanh",) * 8 + ("sigmoid",)
    network = Network(3, [Dense(9, names), Dense(4, "tanh"), Dense(2)], seed=1)
    program = program_of(network)
    variant = GemmBackward()

    def refusal(span, where=DEVICE):
        return variant.refuse(span, where)

    assert "derivative a layer" in refusal(span_at(program, ApplyT, 2, 5, which=1))
    assert "this op does not" in refusal(span_at(program, BiasGrad, 1, 5))
    assert "this op does not" in refusal(span_at(program, ActGrad, 2, 5))
    assert refusal(span_at(program, ApplyT, 2, 5)) is None
    small = dataclasses.replace(DEVICE, local_memory=1000)
    assert "bytes of local memory" in refusal(span_at(program, Outer, 1, 5), small)
    span = span_at(program, ApplyT, 1, 5)
    added = dataclasses.replace(span.ops[0], accumulate=True)
    assert "other readers" in refusal(dataclasses.replace(span, ops=(added,)))
    span = span_at(program, ApplyT, 2, 5)
    kept = dataclasses.replace(span, outputs=(*span.outputs, span.ops[0].dx))
    assert "does not store" in refusal(kept)
    network = Network(3, [Dense(9), Dense(4, bias=False), Dense(2)], seed=1)
    program = program_of(network)
    assert "not these" in refusal(span_at(program, Outer, 2, 5, which=1))
    assert "another's" in refusal(span_at(program, ApplyT, 2, 5))


@pytest.mark.parametrize("activation", ["tanh", "silu"])
def test_planned_for_a_gpu(activation, monkeypatch):
    """All three products of every hidden layer are chosen, fused with the next op."""
    # The choice alone: other tests compare these kernels with the oracle.
    monkeypatch.setattr(times.Times, "wrong", lambda *parts: [])
    layers = [Dense(1024, activation), Dense(1024, activation), Dense(10)]
    network = Network(784, layers)
    steps = plan_training(
        network, program_of(network), H200, 1024, tune=False
    ).steps
    pairs = [
        tuple(type(op) for op in step.span.ops) for step in steps
        if step.variant.name in ("gemm", "gemm_backward")
    ]
    # Those of the last layer are computed with the loss.
    assert [step.variant.name for step in steps].count("output_loss") == 1
    assert pairs.count((Outer, BiasGrad)) == 2
    assert pairs.count((ApplyT, ActGrad)) == 1
    assert sum(pair[0] is Apply for pair in pairs) >= 2
