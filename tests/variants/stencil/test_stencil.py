"""The variants of locally connected layers against the float64 oracle."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spans import check_calls, results_of

import clnet
from clnet import Dense, Local, Network
from clnet.ir import reference
from clnet.ir.activation import BiasGrad
from clnet.ir.loss import Loss
from clnet.ir.lowering import lower_training
from clnet.ir.product import ApplyT, Outer
from clnet.nn.losses import loss_function
from clnet.opencl.session import session
from clnet.runtime.binding import PlanStep
from clnet.runtime.executable import Executable
from clnet.variants.reference.generic import MAX_ENTRIES, Generic, GenericBackward
from clnet.variants.stencil.stencil import (
    Stencil,
    StencilCpu,
    StencilReduction,
    Trapezoid,
    streams,
)
from clnet.variants.training.stencil_backward import StencilBackward

DEVICE = clnet.device()
GPU = dataclasses.replace(
    DEVICE, type="gpu", simd_width=32, local_memory=min(DEVICE.local_memory, 47 << 10),
    largest_group=min(DEVICE.largest_group, 1024),
)
CPU = dataclasses.replace(DEVICE, type="cpu")
WINDOWS = (1, 2, 3, 4, 5, 7, 16, 33)
EACH = [
    pytest.param(window, marks=[
        *[pytest.mark.unoptimised] * (window != 3),
        *[pytest.mark.sweep] * (window in (2, 4, 5, 7)),
    ])
    for window in WINDOWS
]
BIASES = ("shared", "neuron", None)
RNG = np.random.default_rng(3)


def deep(n, window, depth, bias="shared", activation="tanh", **options):
    layer = Local(window, activation, bias=bias, initialiser="uniform")
    return Network(n, [layer] * depth, seed=n, **options)


def check(network, ops, batch, variant, config):
    """Compare a span's outputs with the oracle, twice."""
    step = PlanStep(network.program.span(*ops, batch), variant, config, DEVICE)
    check_calls(network, step, RNG.standard_normal, 2)


def configs(variant, network, ops, batch, device):
    span = network.program.span(*ops, batch)
    assert variant.refuse(span, device) is None
    return list(variant.space(span, device))


@pytest.mark.parametrize("window", EACH)
def test_a_layer(window):
    """First and inner layers, pre-activations alone; windows share configurations."""
    bias, number = BIASES[window % 3], WINDOWS.index(window)
    for n_out, batch in ((1, 1), (3, 2), (130, 1), (257, 5)):
        network = deep(n_out + 2 * window - 2, window, 2, bias)
        for ops in ((0, 2), (2, 4), (2, 3)):
            listed = configs(Stencil(), network, ops, batch, GPU)
            later = n_out == 257 and ops == (2, 4)
            for config in listed[number :: len(WINDOWS)] if later else listed[:1]:
                stream = n_out == 130 and streams(config["vec"], "float32", DEVICE)
                config = {**config, "stream": int(stream)}
                check(network, ops, batch, Stencil(), config)
        listed = configs(StencilReduction(), network, (2, 4), batch, GPU)
        config = listed[number % len(listed)]
        check(network, (2, 4), batch, StencilReduction(), config)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("lanes", [(1, 1), (1, 2), (2, 1), (1, 32)], ids=str)
def test_inline_ptx_streams_vectors_of_four_floats_only(lanes, dtype):
    """Whatever the device's preferred width: other vectors have no such instruction."""
    vector_width, simd_width = lanes
    device = dataclasses.replace(
        GPU, vector_width=vector_width, simd_width=simd_width, fp64=True,
        compute_capability=(9, 0),
    )
    for window in WINDOWS:
        network = deep(4096, window, 1, dtype=dtype)
        listed = configs(Stencil(), network, (0, 2), 1, device)
        streamed = {config["vec"] for config in listed if config["stream"]}
        assert streamed == ({4} if dtype == "float32" and simd_width > 1 else set())
    for vec in (1, 2, 4):
        assert streams(vec, dtype, device) is (vec == 4 and dtype == "float32")
        plain = dataclasses.replace(device, compute_capability=None)
        assert streams(vec, dtype, plain)


@pytest.mark.parametrize("window", EACH)
def test_layers_on_cores(window):
    bias = BIASES[(window + 1) % 3]
    for n_out, batch, depth, workers, tile, stream in (
        (1, 1, 1, 1, 16, 0), (9, 3, 3, 3, 256, 1), (1000, 2, 3, 8, 1008, 0),
    ):
        network = deep(n_out + depth * (window - 1), window, depth, bias)
        config = {"workers": workers, "tile": tile, "stream": stream}
        check(network, (0, 2 * depth), batch, StencilCpu(), config)


@given(
    st.sampled_from((2, 3)), st.integers(1, 3000), st.integers(1, 3),
    st.sampled_from((16, 64, 1024)), st.integers(1, 9),
)
@settings(max_examples=25, deadline=None)
def test_tiles_of_cores(window, n_out, batch, tile, workers):
    """Around the edges of tiles; the kernels are built once per window."""
    network = deep(n_out + 2 * (window - 1), window, 2)
    config = {"workers": workers, "tile": tile, "stream": 0}
    check(network, (0, 4), batch, StencilCpu(), config)


@pytest.mark.parametrize("name", ["tanh", "sin", "softplus", "gelu", "tanh_stepwise"])
def test_vectors_of_both_widths_have_the_same_bits(name, monkeypatch):
    """With rests of rows, through one layer and through three."""
    for depth in 1, 3:
        network = deep(75, 4, depth, "neuron", name)
        span = network.program.span(0, 2 * depth, 2)
        rows = RNG.uniform(-1, 1, (2, 75))
        found = []
        for floats in 8, 16:
            monkeypatch.setattr(
                "clnet.variants.stencil.stencil.lanes", lambda device, n=floats: n
            )
            config = {"workers": 2, "tile": 32, "stream": int(depth == 1)}
            step = PlanStep(span, StencilCpu(), config, DEVICE)
            values = span.inputs, span.outputs
            run = Executable(session(DEVICE), network, [step], *values)
            run.x[span.inputs[0].name][...] = rows
            run.run()
            found.append(run.result(span.outputs[0].name).copy())
        np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("window", EACH[:-1])
def test_trapezoids(window):
    bias = BIASES[(window + 2) % 3]
    for n_out, batch, depth, first, which in ((1, 1, 3, 0, 0), (50, 3, 5, 2, -1)):
        network = deep(n_out + depth * (window - 1), window, depth, bias)
        listed = configs(Trapezoid(), network, (0, 2 * depth), batch, GPU)
        check(network, (first, 2 * depth), batch, Trapezoid(), listed[which])


@given(st.integers(1, 700), st.integers(2, 9), st.integers(1, 3), st.data())
@settings(max_examples=20, deadline=None)
def test_tiles_of_trapezoids(n_out, layers, batch, data):
    """Many small overlapping tiles, in several launches of some layers each."""
    vec = data.draw(st.sampled_from((1, 4)))
    config = {
        "group": 16 if vec == 4 else 64, "vec": vec, "ahead": 2, "samples": 2,
        "depth": data.draw(st.sampled_from((2, 3, 7))),
    }
    network = deep(n_out + 2 * layers, 3, layers)
    check(network, (0, 2 * layers), batch, Trapezoid(), config)


@pytest.mark.parametrize("n", [499, 500])
def test_as_deep_as_can_be(n):
    """A stack that shrinks to one or two values, in one launch."""
    depth = (n - 1) // 2
    network = deep(n, 3, depth)
    assert network.n_out == n - 2 * depth
    x = RNG.standard_normal((1, n)).astype("float32")
    exact = reference.run(network.program, x.astype("float64"), network.parameters)
    span = network.program.span(0, 2 * depth, 1)
    for variant, device in ((StencilCpu(), CPU), (Trapezoid(), GPU)):
        assert variant.refuse(span, device) is None
        step = PlanStep(span, variant, next(iter(variant.space(span, device))), DEVICE)
        run = Executable(session(DEVICE), network, [step], span.inputs, span.outputs)
        run.x["x"][...] = x
        run.run()
        np.testing.assert_allclose(run.result(network.program.output.name), exact,
                                   atol=1e-5)


def test_activations_and_doubles():
    one, stack = (Stencil(), (2, 4), GPU), (Trapezoid(), (0, 6), GPU)
    cores = (StencilCpu(), (0, 6), CPU)
    for activation, options, variants in (
        ("gelu", {}, (one, cores)), ("sin", {"fann_compatible": True}, (stack, cores)),
        ("identity", {}, (stack,)),
        *((("tanh", {"dtype": "float64"}, (one, stack)),) if DEVICE.fp64 else ()),
    ):
        network = deep(41, 3, 3, "neuron", activation, **options)
        for variant, ops, device in variants:
            listed = configs(variant, network, ops, 3, device)
            check(network, ops, 3, variant, listed[0])


# Backward ---------------------------------------------------------------------------


def backward(network, batch, device, choose):
    """Compare the products of a training step, op by op, with the oracle."""
    program = lower_training(network, loss_function("mse"), None)
    values = {
        "x": RNG.standard_normal((batch, network.n_in)),
        "t": RNG.standard_normal((batch, network.n_out)),
        "batch": np.array(batch),
    }
    parameters = network.parameters.astype("float64")
    reference.run_ops(program.ops, values, parameters)
    tolerance = 1e-12 if network.dtype == "float64" else 1e-4
    tried = 0
    for i, op in enumerate(program.ops):
        if not isinstance(op, (ApplyT, Outer, BiasGrad)):
            continue
        span = program.span(i, i + 1, batch)
        variant = StencilBackward()
        if isinstance(op, BiasGrad):
            variant = GenericBackward()
        if variant.refuse(span, device) is not None:
            continue
        (value,), after = span.outputs, dict(values)
        op.run(after, parameters)
        exact = after[value.name]
        bound = tolerance * max(1, np.abs(exact).max())
        for config in choose(list(variant.space(span, device))):
            results = results_of(network, span, variant, config, values)
            np.testing.assert_allclose(
                results[value.name], exact, atol=bound,
                err_msg=f"{op.signature} {config}",
            )
            tried += 1
    return tried


@pytest.mark.parametrize("window", EACH)
@pytest.mark.parametrize("device", [CPU, GPU], ids=["cores", "gpu"])
def test_backward(window, device):
    network = deep(2 * (window - 1) + 40 + window, window, 2, BIASES[window % 3])
    assert backward(network, 5, device, lambda listed: listed[-1:]) >= 3
    network = deep(2 * window, window, 2)
    assert backward(network, 1, device, lambda listed: listed[:1]) >= 3


def test_backward_split_k():
    """A batch large enough for split-k; doubles; sums that accumulate."""
    network = Network(
        30, [Local(3, "tanh"), Local(2, "tanh", sources=(1,)),
             Dense(2, sources=(1, 2))], seed=1,
        dtype="float64" if DEVICE.fp64 else "float32",
    )
    for device in (CPU, GPU):
        assert backward(network, 300, device, lambda listed: listed) >= 4


def test_the_loss_of_many_outputs():
    """The sum of a million terms is exact to the last bits."""
    width = 1 << 20
    network = Network(
        width, [Local(1)], parameters=np.zeros(width + 32, "float32")
    )
    program = lower_training(network, loss_function("mse"), None)
    (number,) = [i for i, op in enumerate(program.ops) if isinstance(op, Loss)]
    op, span = program.ops[number], program.span(number, number + 1, 1)
    y, t = RNG.uniform(1, 2, (2, 1, width)).astype("float32")
    values = {op.y.name: y, op.t.name: t}
    results = results_of(network, span, GenericBackward(), {}, values, {"samples": 1})
    squares = np.square(y.astype("float64") - t).sum()
    assert results[op.record.name][0, 1] == pytest.approx(squares, rel=3e-7)


# Plans ------------------------------------------------------------------------------


def test_refusals():
    local, chain = Local(3, "tanh"), Trapezoid()

    def refusal(variant, layers, ops=None, device=GPU, **options):
        network = Network(60, layers, **options)
        ops = ops or (0, len(network.program.ops))
        return variant.refuse(network.program.span(*ops, 1), device)

    assert "3 and 2" in refusal(chain, [local, Local(2, "tanh")])
    assert "activation" in refusal(chain, [local, Local(3)])
    assert "bias" in refusal(chain, [local, Local(3, "tanh", bias=None)])
    assert "this is one" in refusal(chain, [local])
    assert "at most 16" in refusal(chain, [Local(17)] * 2)
    assert "not dense" in refusal(chain, [local, Dense(4, "tanh")])
    assert "not dense" in refusal(Stencil(), [Dense(4)])
    assert "CPU" in refusal(StencilCpu(), [local])
    if DEVICE.fp64:
        assert "float32 only" in refusal(StencilCpu(), [local], device=CPU,
                                         dtype="float64")
    small = dataclasses.replace(GPU, largest_group=16, local_memory=1 << 10)
    assert "no room" in chain.refuse(deep(700, 16, 40).program.span(0, 80, 1), small)
    backward_ops = lower_training(Network(5, [Dense(3), Dense(2)]),
                                  loss_function("mse"), None)
    (number,) = [i for i, op in enumerate(backward_ops.ops) if isinstance(op, ApplyT)]
    span = backward_ops.span(number, number + 1, 2)
    assert "not dense" in StencilBackward().refuse(span, GPU)


def test_no_tables_of_large_layers():
    """Large layers go to variants without lists of entries."""
    network = Network(
        MAX_ENTRIES, [Local(2)],
        parameters=np.zeros(2 * MAX_ENTRIES + 32, "float32"),
    )
    span = network.program.span(0, 1, 1)
    assert f"{MAX_ENTRIES}" in Generic().refuse(span, DEVICE)
    assert Stencil().refuse(span, DEVICE) is None


@pytest.mark.parametrize("tune", [False, None])
def test_a_mixture(tune):
    network = Network(
        40, [*[Local(3, "tanh")] * 5, Dense(20, "tanh"), Local(4, "gelu"),
             Local(2, ("tanh", "relu") * 8), Dense(3, "softmax")], seed=1,
    )
    x = RNG.standard_normal((3, 40)).astype("float32")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = network.compile(batch=3, tune=tune)
    np.testing.assert_allclose(
        plan(x), reference.run(network.program, x, network.parameters), atol=1e-5
    )


def test_training():
    network = deep(50, 3, 3)
    x = RNG.uniform(-1, 1, (30, 50)).astype("float32")
    t = deep(50, 3, 3).predict(x)
    network.initialise(seed=2)
    history = network.fit(x, t, epochs=50, seed=1)
    losses = [epoch.loss for epoch in history.epochs]
    assert losses[-1] < losses[0] / 10
