"""Plans: host arrays, covers over several devices, executables."""

from __future__ import annotations

import gc
import itertools
import re

import numpy as np
import pytest
from bounds import assert_right, span_bound
from covers import (
    ABSENT,
    CPU,
    DEVICES,
    KINDS,
    NETWORK,
    cover,
    inputs,
    on_device,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from clnet import Dense, Network
from clnet.errors import InputError
from clnet.opencl.session import session
from clnet.runtime import parameter_store
from clnet.runtime.binding import PlanStep
from clnet.runtime.executable import Executable
from clnet.runtime.plan import Plan
from clnet.variants.dense.naive import Naive
from clnet.variants.reference.generic import Generic

FUNCTIONS = ["tanh", "identity", "relu", "identity"]


@DEVICES
@settings(max_examples=40, deadline=None)
@given(
    kinds=st.lists(
        st.sampled_from(sorted(KINDS.keys() - ABSENT)), min_size=4, max_size=4
    ),
    bias=st.booleans(), batch=st.sampled_from([1, 3]),
)
def test_every_cover_computes_the_same(device, kinds, bias, batch):
    layers = [
        Dense(n, f, bias=bias) for n, f in zip((7, 20, 6, 5), FUNCTIONS, strict=True)
    ]
    network = Network(5, layers, seed=1)
    plan = cover(network, device, kinds, batch)
    x = inputs(network, batch)
    y = plan(x)
    assert_right(network, x, y)
    before = y.copy()
    other = inputs(network, batch, seed=1)
    assert_right(network, other, plan(other))
    np.testing.assert_array_equal(y, before)
    network.parameters = network.parameters * np.float32(0.5)
    assert_right(network, x, plan(x))


@DEVICES
@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("width", [4, 5])
def test_results_are_the_callers_own(device, kind, width):
    """Identity layers without bias could return their inputs."""
    layers = [Dense(width, bias=False), Dense(width, bias=False)]
    network = Network(width, layers, seed=1)
    for kinds in ([kind, "host"], ["host", kind], [kind, kind]):
        plan = cover(network, device, kinds, 2)
        x = inputs(network, 2)
        given_x = x.copy()
        first = plan(x)
        assert_right(network, x, first)
        kept = first.copy()
        second = plan(2 * x)
        np.testing.assert_array_equal(first, kept)
        first[...] = np.nan
        second[...] = np.nan
        np.testing.assert_array_equal(plan(x), kept)
        np.testing.assert_array_equal(x, given_x)
        assert first.flags.writeable
        assert first.flags.c_contiguous


@DEVICES
def test_softmax_and_mixed_activations_in_any_cover(device):
    network = Network(
        5,
        [Dense(6, ["tanh", "relu"] * 3), Dense(5, "softmax"), Dense(3, "sigmoid")],
        seed=1,
    )
    x = inputs(network, 3)
    for kinds in (["generic", "host", "naive"], ["host", "naive", "cpu"]):
        assert_right(network, x, cover(network, device, kinds, 3)(x))


@DEVICES
def test_the_host_adds_to_pre_activations_of_the_device(device):
    """Pre-activations of an earlier call are not added to."""
    network = Network(
        3, [Dense(4, "tanh"), Dense(5, "tanh", sources=(0, 1)), Dense(2, "tanh")],
        seed=1,
    )
    for on_host in itertools.product((False, True), repeat=len(network.program.ops)):
        steps = [
            PlanStep(network.program.span(i, i + 1, 2), *KINDS["host"][:2], None)
            if host
            else PlanStep(network.program.span(i, i + 1, 2), Generic(), {}, device)
            for i, host in enumerate(on_host)
        ]
        if not all(on_host):
            plan = Plan(network, device, 2, steps, list, list)
            for seed in range(3):
                x = inputs(network, 2, seed)
                assert_right(network, x, plan(x))


@pytest.mark.skipif(not CPU.fp64, reason="the device has no float64")
def test_a_double_network_runs_in_double():
    network = Network.mlp([5, 7, 3], "tanh", seed=1, dtype="float64")
    x = inputs(network, 3)
    for kinds in (["naive", "host"], ["host", "generic"], ["naive serial", "naive"]):
        y = cover(network, CPU, kinds, 3)(x)
        assert y.dtype == np.float64
        assert_right(network, x, y)


# Host arrays ----------------------------------------------------------------------

def read_only(x):
    x = x.copy()
    x.flags.writeable = False
    return x


@pytest.mark.parametrize(
    "change",
    [
        np.asfortranarray,
        lambda x: np.repeat(np.repeat(x, 2, 0), 3, 1)[::2, ::3],
        lambda x: x[::-1].copy()[::-1],
        read_only,
        lambda x: x.astype(np.float64),
        lambda x: x.astype(">f4"),
        lambda x: x.tolist(),
        lambda x: tuple(map(tuple, x)),
        lambda x: np.broadcast_to(x, (4, 5)),
    ],
    ids=["Fortran", "strided", "reversed", "read-only", "double", "big-endian", "lists",
         "tuples", "broadcast"],
)
def test_inputs_of_any_layout(plan, change):
    x = inputs(NETWORK, 4)
    np.testing.assert_array_equal(plan(change(x)), plan(x))
    assert_right(NETWORK, x, plan(x))


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "bool", "float16"])
def test_inputs_of_any_number_type(plan, dtype):
    x = np.arange(20).reshape(4, 5).astype(dtype)
    assert_right(NETWORK, x.astype(np.float32), plan(x))


def test_one_sample_without_batch_axis(single):
    x = inputs(NETWORK, 1)
    y = single(x)
    assert y.shape == (1, 3)
    flat = single(x[0])
    assert flat.shape == (3,)
    np.testing.assert_array_equal(flat, y[0])
    assert single(x[0].tolist()).shape == (3,)


@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        (np.zeros((3, 5)), r"x has shape \[3, 5\], expected \[4, 5\]: this plan is for "
                           "a batch of 4"),
        (np.zeros((4, 6)), r"x has shape \[4, 6\], expected \[4, 5\]"),
        (np.zeros((0, 5)), r"x has shape \[0, 5\]"),
        (np.zeros(5), r"x has shape \[5\]"),
        (np.zeros((1, 4, 5)), r"x has shape \[1, 4, 5\]"),
        (np.zeros((5, 4)), r"x has shape \[5, 4\]"),
        (1.0, r"x has shape \[\]"),
        (np.zeros((4, 5), complex), "numbers"),
        (np.full((4, 5), "1"), "numbers"),
        (np.full((4, 5), None), "numbers"),
        (None, "numbers"),
        ([[1.0], [2.0, 3.0]], "x must be a rectangular array of numbers"),
    ],
)
def test_wrong_inputs_are_refused_in_one_sentence(plan, x, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        plan(x)
    assert "\n" not in str(caught.value)
    assert_right(NETWORK, inputs(NETWORK, 4), plan(inputs(NETWORK, 4)))


def test_a_wrong_sample_is_refused(single):
    with pytest.raises(InputError, match=r"x has shape \[4\], expected \[1, 5\]"):
        single(np.zeros(4))


def test_outputs_in_a_given_array(plan):
    x, out = inputs(NETWORK, 4), np.full((9, 3), np.nan, "float32")
    given = out[::2][:4]
    assert plan(x, out=given) is given
    np.testing.assert_array_equal(out[:8:2], plan(x))
    assert np.isnan(out[1::2]).all()


@pytest.mark.parametrize(
    "out, sentence",
    [
        ([[0.0]], "out is of type list, expected an ndarray, as x is one"),
        (np.zeros((4, 3)), "out is an array [4, 3] of float64, expected [4, 3] of"),
        (np.zeros((3, 3), "float32"), "out is an array [3, 3] of float32"),
        (np.broadcast_to(np.float32(0), (4, 3)), "out is read-only"),
    ],
)
def test_a_wrong_out_is_refused(plan, out, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)):
        plan(inputs(NETWORK, 4), out=out)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["naive", "generic", "cpu", "cpu with caller", "host"])
def test_nan_and_infinity_propagate(kind, value):
    network = Network(5, [Dense(7, "tanh"), Dense(3)], seed=1)
    plan = cover(network, CPU, [kind, kind], 4)
    x = inputs(network, 4)
    good = plan(x)
    x[2, 1] = value
    y = plan(x)
    with np.errstate(invalid="ignore"):
        hidden = np.tanh(x.astype(np.float64) @ network.weights(0).T)
        expected = hidden @ network.weights(1).T
    np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))
    rows = [0, 1, 3]
    np.testing.assert_array_equal(y[rows], good[rows])
    np.testing.assert_array_equal(plan(inputs(network, 4)), good)


def test_replaced_parameters_apply_to_every_plan():
    network = Network.mlp([5, 40, 3], "tanh", seed=1)
    x = inputs(network, 2)
    plans = [
        cover(network, CPU, [kind, other], 2)
        for kind, other in (("cpu", "host"), ("naive", "cpu with caller"),
                            ("host", "naive"), ("cpu", "cpu"))
    ]
    rng = np.random.default_rng(0)
    for _ in range(3):
        for plan in plans:
            assert_right(network, x, plan(x))
        network.parameters = rng.uniform(-1, 1, network.parameters.shape)
    network.set_layer(1, np.zeros((3, 40)), [0, 1, -1])
    for plan in plans:
        assert_right(network, x, plan(x))


def test_a_plan_made_after_a_change_of_parameters():
    """A packed buffer outlives the plan that made it."""
    network = Network.mlp([5, 40, 3], "tanh", seed=1)
    x = inputs(network, 2)
    first = cover(network, CPU, ["cpu", "cpu"], 2)
    first(x)
    second = cover(network, CPU, ["cpu", "cpu"], 2)
    del first
    gc.collect()
    network.parameters = network.parameters * np.float32(2)
    assert_right(network, x, second(x))
    del second
    gc.collect()
    assert_right(network, x, cover(network, CPU, ["cpu", "cpu"], 2)(x))


def test_a_packed_buffer_freed_meanwhile_is_refilled(monkeypatch):
    """The plan that filled it may be garbage-collected at any moment."""
    network = Network.mlp([5, 40, 3], "tanh", seed=1)
    x = inputs(network, 2)
    real = parameter_store.ParameterStore.packed

    def collect_first(self, packed):
        gc.collect()
        return real(self, packed)

    gc.disable()
    try:
        cover(network, CPU, ["cpu", "host"], 2)(x)
        monkeypatch.setattr(parameter_store.ParameterStore, "packed", collect_first)
        plan = cover(network, CPU, ["cpu", "host"], 2)
    finally:
        gc.enable()
    assert_right(network, x, plan(x))


# Executables ----------------------------------------------------------------------


def test_an_executable_of_a_part_of_a_network():
    network = Network.mlp([5, 7, 6, 3], "tanh", seed=1)
    span = network.program.span(2, 4, 3)
    executable = Executable(
        session(CPU), network, [PlanStep(span, Naive(), {}, CPU)], span.inputs,
        span.outputs
    )
    (source,), (result,) = span.inputs, span.outputs
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (3, 7)).astype(np.float32)
    executable.x[source.name][...] = x
    executable.run()
    exact, bound = span_bound(span, {source.name: x}, network.parameters)
    y = executable.result(result.name)
    assert (np.abs(y - exact[result.name]) <= bound[result.name]).all()


def test_a_second_call_before_the_first_is_finished_is_refused():
    """It would wait for itself."""
    plan = on_device(NETWORK, 2)
    x = inputs(NETWORK, 2)
    expected = plan(x).copy()
    plan.start(x)
    for second in (plan.start, plan):
        with pytest.raises(InputError, match="finish it before the next"):
            second(x)
    assert np.array_equal(plan.finish(), expected)
    plan.start(x)
    plan.cancel()
    plan.cancel()  # nothing is started
    assert np.array_equal(plan(x), expected)
