"""Plans: host arrays, covers over several devices, memory, threads."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import re
import threading

import numpy as np
import pyopencl as cl
import pyopencl.array as cla
import pytest
from bounds import assert_right, span_bound
from hypothesis import given, settings
from hypothesis import strategies as st
from waits import join

import clnet
from clnet import Dense, Network
from clnet.errors import DeviceError, InputError
from clnet.ir.ops import Apply
from clnet.opencl import memory
from clnet.opencl.session import session
from clnet.runtime import parameter_store
from clnet.runtime.binding import Step
from clnet.runtime.executable import Executable
from clnet.runtime.plan import Plan
from clnet.variants.dense.cpu import Cpu, serial_companion
from clnet.variants.dense.naive import Naive
from clnet.variants.reference.generic import Generic
from clnet.variants.reference.host import Host

CPU = clnet.device("cpu")
NO_SVM = dataclasses.replace(
    CPU, fine_svm=False,
    companions=tuple(dataclasses.replace(c, fine_svm=False) for c in CPU.companions),
)
DEVICES = pytest.mark.parametrize("device", [CPU, NO_SVM], ids=["shared", "buffers"])


def inputs(network, batch, seed=0):
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, (batch, network.n_in)).astype(network.dtype)


def on_device(network, batch=1, device=CPU, variants=("naive", "generic")):
    return network.compile(device, batch, tune=False, variants=list(variants))


# Covers over several devices ------------------------------------------------------

KINDS = {
    "host": (Host(), {}, None),
    "naive": (Naive(), {}, 0),
    "generic": (Generic(), {}, 0),
    "naive serial": (Naive(), {}, 1),
    "generic serial": (Generic(), {}, 1),
    "cpu": (Cpu(), {"workers": 2, "group": 2, "caller": 0}, 0),
    "cpu with caller": (Cpu(), {"workers": 2, "group": 2, "caller": 1}, 0),
    "cpu serial": (Cpu(), {"workers": 1, "group": 2, "caller": 0}, 1),
}


# The kinds that need a companion in the calling thread, if there is none.
ABSENT = set() if serial_companion(CPU) else {
    name for name, (_, config, index) in KINDS.items() if index or config.get("caller")
}


def cover(network, device, kinds, batch):
    """A plan with layers of the named kinds, in order."""
    if not ABSENT.isdisjoint(kinds):
        pytest.skip("the device has no serial companion")
    program, steps, start = network.program, [], 0
    kinds = iter(kinds)
    while start < len(program.ops):
        whole = isinstance(program.ops[start], Apply)
        variant, config, index = KINDS[next(kinds) if whole else "generic"]
        step_device = None if index is None else device.places[index]
        size = 2 if whole and variant.reach != "op" else 1
        for first in range(start, start + (2 if whole else 1), size):
            span = program.span(first, first + size, batch)
            assert variant.refuse(span, device) is None
            steps.append(Step(span, variant, config, step_device))
        start += 2 if whole else 1
    device_steps = lambda: [s for s in steps if s.device is not None]  # noqa: E731
    return Plan(network, device, batch, steps, device_steps, device_steps, "")


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
            Step(network.program.span(i, i + 1, 2), *KINDS["host"][:2], None) if host
            else Step(network.program.span(i, i + 1, 2), Generic(), {}, device)
            for i, host in enumerate(on_host)
        ]
        if not all(on_host):
            plan = Plan(network, device, 2, steps, list, list, "")
            for seed in range(3):
                x = inputs(network, 2, seed)
                assert_right(network, x, plan(x))


def test_a_double_network_runs_in_double():
    network = Network.mlp([5, 7, 3], "tanh", seed=1, dtype="float64")
    x = inputs(network, 3)
    for kinds in (["naive", "host"], ["host", "generic"], ["naive serial", "naive"]):
        y = cover(network, CPU, kinds, 3)(x)
        assert y.dtype == np.float64
        assert_right(network, x, y)


# Host arrays ----------------------------------------------------------------------

NETWORK = Network.mlp([5, 7, 3], "tanh", seed=1)


@pytest.fixture(scope="module")
def plan():
    return on_device(NETWORK, 4)


@pytest.fixture(scope="module")
def single():
    return on_device(NETWORK, 1)


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


# Memory ---------------------------------------------------------------------------


@DEVICES
@pytest.mark.parametrize("kinds", [
    ["naive", "naive"], ["host", "naive"], ["naive", "host"],
    ["cpu with caller", "cpu serial"],
], ids=" then ".join)
def test_a_second_call_allocates_nothing(device, kinds, monkeypatch):
    network = Network.mlp([5, 7, 3], "tanh", seed=1)
    plan = cover(network, device, kinds, 2)
    x = inputs(network, 2)
    plan(x)
    made = []
    real = memory.Memory.__init__

    def count(self, *arguments):
        made.append(arguments)
        real(self, *arguments)

    monkeypatch.setattr(memory.Memory, "__init__", count)
    monkeypatch.setattr(cl, "Buffer", count)
    monkeypatch.setattr(cl, "Kernel", count)
    before = session(device).allocated
    for _ in range(3):
        plan(x)
        network.parameters = network.parameters * np.float32(0.9)
    assert made == []
    assert session(device).allocated == before


def test_a_second_call_with_device_arrays_allocates_nothing(plan, monkeypatch):
    there = cla.to_device(plan.queue, inputs(NETWORK, 4))
    out = plan(there)

    def refuse(*_, **__):
        raise AssertionError("allocated")

    for name in ("Buffer", "svm_empty", "Kernel"):
        monkeypatch.setattr(cl, name, refuse)
    plan(there, out=out)
    plan(there, out=out)


@DEVICES
def test_memory_is_released(device):
    gc.collect()
    before = session(device).allocated
    network = Network.mlp([50, 70, 30], "tanh", seed=1)
    for kinds in (["naive", "cpu"], ["host", "naive"], ["cpu with caller", "host"]):
        cover(network, device, kinds, 8)(inputs(network, 8))
    assert session(device).allocated > before
    del network
    gc.collect()
    assert session(device).allocated == before


@DEVICES
def test_errors_of_a_small_device_name_both_sizes(device):
    network = Network.mlp([50, 70, 30], "tanh", seed=1)
    size = network.parameters.nbytes
    small = dataclasses.replace(device, global_memory=size - 1, index="9:9")
    with pytest.raises(
        DeviceError, match=f"has no room for {size} bytes: {size - 1} are left"
    ):
        on_device(network, 1, small)
    gc.collect()
    assert session(small).allocated == 0
    enough = dataclasses.replace(device, global_memory=size + 4 * 50 - 1, index="9:9")
    with pytest.raises(DeviceError, match="has no room for 200 bytes: 199 are left"):
        on_device(network, 1, enough)


def test_a_buffer_too_large_is_an_error(monkeypatch):
    network = Network.mlp([50, 70, 30], "tanh", seed=1)
    small = dataclasses.replace(CPU, largest_buffer=4096)
    with pytest.raises(DeviceError, match="bytes: 4096 are left; take a smaller batch"):
        on_device(network, 1, small)


@DEVICES
def test_unused_memory_is_collected(device):
    """A network and its plans in a reference cycle are freed before an error."""
    gc.collect()
    network = Network.mlp([500, 700], "tanh", seed=1)
    room = network.parameters.nbytes + 40_000
    small = dataclasses.replace(device, global_memory=room, index="8:8")
    gc.disable()
    try:
        for _ in range(4):
            network = Network.mlp([500, 700], "tanh", seed=1)
            plan = on_device(network, 1, small)
            network._plans["key"] = plan  # as predict does
            assert_right(network, inputs(network, 1), plan(inputs(network, 1)))
            del plan
    finally:
        gc.enable()


def test_a_failing_device_is_an_error(plan, monkeypatch):
    def fail():
        raise cl.RuntimeError("OUT_OF_RESOURCES")

    monkeypatch.setattr(plan._executable, "run", fail)
    sentence = re.escape(f"{CPU.name} failed while running: OUT_OF")
    with pytest.raises(DeviceError, match=sentence):
        plan(inputs(NETWORK, 4))
    monkeypatch.undo()
    assert_right(NETWORK, inputs(NETWORK, 4), plan(inputs(NETWORK, 4)))


def test_a_device_without_context_is_an_error(monkeypatch):
    def fail(_):
        raise cl.LogicError("INVALID_DEVICE")

    monkeypatch.setattr(cl, "Context", fail)
    broken = dataclasses.replace(CPU, name="broken")
    with pytest.raises(DeviceError, match="broken gives no context: INVALID_DEVICE"):
        on_device(NETWORK, 1, broken)


# Threads --------------------------------------------------------------------------


def run_threads(*works):
    errors = []

    def guarded(work):
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    join(threads)
    assert errors == []


@pytest.mark.parametrize("kinds", [
    ["naive", "host"], ["cpu with caller", "cpu"], ["cpu serial", "naive"],
], ids=" then ".join)
def test_threads_call_one_plan(kinds):
    network = Network.mlp([5, 40, 3], "tanh", seed=1)
    plan = cover(network, CPU, kinds, 2)

    def work(seed):
        x = inputs(network, 2, seed)
        expected = plan(x)
        assert_right(network, x, expected)
        for _ in range(30):
            np.testing.assert_array_equal(plan(x), expected)

    run_threads(*(lambda seed=seed: work(seed) for seed in range(4)))


def test_threads_call_plans_of_one_network():
    network = Network.mlp([5, 40, 3], "tanh", seed=1)

    def work(kind):
        x = inputs(network, 2)
        for _ in range(5):
            plan = cover(network, CPU, [kind, kind], 2)
            for _ in range(5):
                assert_right(network, x, plan(x))

    kinds = {"cpu", "cpu with caller", "naive", "host"} - ABSENT
    run_threads(*(lambda kind=kind: work(kind) for kind in kinds))


def powers():
    """A network of eight layers, and two states whose mixtures give other outputs."""
    layers = [Dense(16, "identity", bias=False) for _ in range(8)]
    network = Network(16, layers, seed=1)
    states = [np.full(network.parameters.shape, v, np.float32) for v in (1 / 16, 1 / 8)]
    return network, states, (1.0, 256.0)


@DEVICES
@pytest.mark.parametrize("name", ["host", "naive", "split", "gemm", "generic", "cpu"])
def test_a_run_reads_the_parameters_of_one_moment(device, name):
    """Another plan uploads new ones while a run is being enqueued."""
    network, (old, new), outputs = powers()
    network.parameters = old
    one, other = (on_device(network, b, device, [name]) for b in (1, 2))
    results = []

    def replace():
        network.parameters = new
        results.append(other(np.ones((2, 16), np.float32)))

    thread = threading.Thread(target=replace)

    def meanwhile():
        if thread.ident is None:
            thread.start()
            thread.join(0.1)  # it waits for the run

    actions = one._executable._actions
    actions.insert(len(actions) // 2, meanwhile)
    results.append(one(np.ones((1, 16), np.float32)))
    join([thread])
    assert {float(y) for result in results for y in result.flat} <= {*outputs}
    np.testing.assert_array_equal(one(np.ones((1, 16), np.float32)), outputs[1])


@pytest.mark.parametrize("name", ["host", "naive", "split", "cpu"])
def test_threads_replace_parameters(name):
    network, states, outputs = powers()
    network.parameters = states[0]
    plans = [on_device(network, batch, CPU, [name]) for batch in (1, 2, 3)]

    def call(plan):
        x = np.ones((plan.batch, 16), np.float32)
        for _ in range(200):
            y = plan(x)
            assert y.flat[0] in outputs
            np.testing.assert_array_equal(y, y.flat[0])

    def replace():
        for number in range(1000):
            network.parameters = states[number % 2]

    run_threads(*(lambda plan=plan: call(plan) for plan in plans), replace)


def test_an_executable_made_meanwhile_disturbs_no_run():
    """It adds a packed buffer, which makes the store refill all before the next run."""
    network = Network.mlp([5, 40, 3], "tanh", seed=1)
    plan = cover(network, CPU, ["host", "host"], 2)
    x = inputs(network, 2)
    plan(x)
    plan._executable._actions.insert(0, lambda: cover(network, CPU, ["cpu", "cpu"], 2))
    assert_right(network, x, plan(x))


def test_threads_get_one_session():
    device = dataclasses.replace(CPU, index="7:7")
    found = []
    run_threads(*[lambda: found.append(session(device))] * 4)
    assert len(set(map(id, found))) == 1


def test_threads_mix_host_and_device_arrays(plan):
    def host():
        for seed in range(20):
            x = inputs(NETWORK, 4, seed)
            assert_right(NETWORK, x, plan(x))

    def there():
        for seed in range(20):
            x = inputs(NETWORK, 4, seed)
            assert_right(NETWORK, x, plan(cla.to_device(plan.queue, x)).get())

    run_threads(host, there)


# Executables ----------------------------------------------------------------------


def test_an_executable_of_a_part_of_a_network():
    network = Network.mlp([5, 7, 6, 3], "tanh", seed=1)
    span = network.program.span(2, 4, 3)
    executable = Executable(
        session(CPU), network, [Step(span, Naive(), {}, CPU)], span.inputs, span.outputs
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
