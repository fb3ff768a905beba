"""Calls between `pyopencl` device arrays: without copies, and in order."""

from __future__ import annotations

import dataclasses
import functools
import gc

import numpy as np
import pyopencl as cl
import pyopencl.array as cla
import pytest
from bounds import assert_right
from covers import CPU, DEVICES, NETWORK, cover, inputs, on_device

from clnet import Network
from clnet.errors import DeviceError, InputError
from clnet.runtime.direct_calls import DeviceCall


@pytest.fixture
def no_copies(monkeypatch):
    """Returns a function from whose call on copies by the host fail."""

    def refuse(*_, **__):
        raise AssertionError("copied")

    def forbid():
        for name in ("enqueue_copy", "enqueue_fill_buffer", "enqueue_map_buffer"):
            monkeypatch.setattr(cl, name, refuse)

    yield forbid
    monkeypatch.undo()


@DEVICES
def test_calls_between_device_arrays_copy_nothing(device, no_copies, monkeypatch):
    network = Network.mlp([5, 7, 3], "tanh", seed=1)
    plan = on_device(network, 4, device)
    x = inputs(network, 4)
    plan(cla.to_device(plan.queue, x))  # allocates the memory
    x = inputs(network, 4, seed=1)
    there, out = cla.to_device(plan.queue, x), cla.zeros(plan.queue, (4, 3), np.float32)
    buffer = out.base_data
    no_copies()
    new = plan(there)
    same = plan(there, out=out)
    monkeypatch.undo()
    assert same is out
    assert out.base_data is buffer
    assert isinstance(new, cla.Array)
    assert new.shape == (4, 3)
    np.testing.assert_array_equal(there.get(), x)
    for y in (new, same):
        assert_right(network, x, y.get())


@pytest.mark.parametrize("kinds", [
    ["naive", "naive"], ["cpu", "cpu"], ["cpu with caller", "cpu with caller"],
    ["cpu with caller", "naive"], ["naive", "generic"],
], ids=" then ".join)
def test_device_arrays_are_used_in_place(kinds):
    """Standby launches must not read the arrays of an earlier call."""
    network = Network.mlp([5, 100, 64], "tanh", seed=1)
    plan = cover(network, CPU, kinds, 2)
    batches = [inputs(network, 2, seed) for seed in range(5)]
    arrays = [cla.to_device(plan.queue, x) for x in batches]
    for _ in range(6):
        results = [
            plan(x, out=cla.zeros(plan.queue, (2, 64), np.float32)) for x in arrays
        ]
        for x, y in zip(batches, results, strict=True):
            assert_right(network, x, y.get())


def test_arrays_of_the_plans_queue_take_the_direct_call(plan, monkeypatch):
    batches = [inputs(NETWORK, 4, seed) for seed in range(3)]
    there = [cla.to_device(plan.queue, x) for x in batches]
    out = cla.zeros(plan.queue, (4, 3), np.float32)
    plan(there[0])
    monkeypatch.setattr(DeviceCall, "run", None)
    for x, array in zip(batches, there, strict=True):
        assert_right(NETWORK, x, plan(array).get())
        assert plan(array, out=out) is out
        assert_right(NETWORK, x, out.get())


def test_results_feed_the_next_plan():
    first = Network.mlp([5, 8], "tanh", seed=1)
    second = Network.mlp([8, 3], "tanh", seed=2)
    one, two = on_device(first, 2), on_device(second, 2)
    x = inputs(first, 2)
    y = two(one(cla.to_device(one.queue, x)))
    assert_right(second, one(x), y.get())


def test_one_sample_on_the_device(single):
    x = inputs(NETWORK, 1)
    flat = cla.to_device(single.queue, x[0])
    y = single(flat)
    assert y.shape == (3,)
    assert_right(NETWORK, x, y.get()[np.newaxis])
    assert single(cla.to_device(single.queue, x)).shape == (1, 3)


def test_replaced_parameters_apply_to_device_arrays():
    network = Network.mlp([5, 40, 3], "tanh", seed=1)
    for variants in (["naive"], ["cpu"]):
        plan = on_device(network, 2, variants=variants)
        x = inputs(network, 2)
        there = cla.to_device(plan.queue, x)
        for _ in range(3):
            assert_right(network, x, plan(there).get())
            network.parameters = network.parameters * np.float32(0.7)


def test_a_plan_may_be_deleted_before_its_result_is_computed():
    """Its memory must last until the end of the computation."""
    network = Network.mlp([600, 600, 600], "tanh", seed=1)
    x = inputs(network, 8)
    for _ in range(3):
        plan = on_device(network, 8)
        y = plan(cla.to_device(plan.queue, x))
        del plan
        gc.collect()
        assert_right(network, x, y.get())


def test_replaced_parameters_leave_the_earlier_call_alone():
    network = Network.mlp([600, 600], "tanh", seed=1)
    plan = on_device(network, 8)
    x = inputs(network, 8)
    there = cla.to_device(plan.queue, x)
    expected = plan(there).get()
    y = plan(there)  # may still be running when the parameters are replaced
    network.parameters = np.zeros_like(network.parameters)
    np.testing.assert_array_equal(plan(there).get(), 0)
    np.testing.assert_array_equal(y.get(), expected)


def test_double_networks_take_double_device_arrays():
    network = Network.mlp([5, 7, 3], "tanh", seed=1, dtype="float64")
    plan = on_device(network, 2)
    x = inputs(network, 2)
    y = plan(cla.to_device(plan.queue, x)).get()
    assert y.dtype == np.float64
    assert_right(network, x, y)
    with pytest.raises(InputError, match="of float32, expected"):
        plan(cla.to_device(plan.queue, x.astype(np.float32)))


def test_calls_wait_for_work_on_another_queue(plan):
    other = cl.CommandQueue(plan.queue.context, plan.device.handle)
    x = inputs(NETWORK, 4)
    there = cla.to_device(other, np.zeros((4, 5), np.float32))
    out = cla.zeros(other, (4, 3), np.float32)
    for _ in range(20):
        there.fill(0)
        there += cla.to_device(other, x)
        assert_right(NETWORK, x, plan(there, out=out).get())


ALONE = dataclasses.replace(CPU, companions=())  # one queue
ON_ONE_QUEUE_OR_TWO = pytest.mark.parametrize(
    "device", [CPU, ALONE], ids=["with companion", "alone"]
)
LARGE = Network.mlp([600, 600, 600], "tanh", seed=1)  # some milliseconds


@pytest.fixture(scope="module")
def large_plan():
    return functools.cache(lambda device: on_device(LARGE, 8, device))


@ON_ONE_QUEUE_OR_TWO
def test_an_input_of_another_queue_may_be_overwritten_after_the_call(
    large_plan, device
):
    plan, x = large_plan(device), inputs(LARGE, 8)
    expected = plan(cla.to_device(plan.queue, x)).get()
    other = cl.CommandQueue(plan.queue.context, device.handle)
    nothing = np.zeros_like(x)
    for _ in range(5):
        there = cla.to_device(other, x)
        y = plan(there)
        cl.enqueue_copy(other, there.data, nothing, is_blocking=False)
        np.testing.assert_array_equal(y.get(), expected)


@ON_ONE_QUEUE_OR_TWO
def test_an_input_without_a_queue_may_be_overwritten_after_its_events(
    large_plan, device
):
    plan, x = large_plan(device), inputs(LARGE, 8)
    expected = plan(cla.to_device(plan.queue, x)).get()
    other = cl.CommandQueue(plan.queue.context, device.handle)
    nothing = np.zeros_like(x)
    for _ in range(5):
        there = cla.to_device(other, x).with_queue(None)
        y = plan(there)
        cl.enqueue_copy(
            other, there.data, nothing, is_blocking=False, wait_for=there.events
        )
        np.testing.assert_array_equal(y.get(), expected)


@ON_ONE_QUEUE_OR_TWO
def test_a_result_of_another_queue_is_read_there_after_the_call(large_plan, device):
    plan, x = large_plan(device), inputs(LARGE, 8)
    there = cla.to_device(plan.queue, x)
    expected = plan(there).get()
    other = cl.CommandQueue(plan.queue.context, device.handle)
    for _ in range(5):
        out = cla.zeros(other, expected.shape, np.float32)
        np.testing.assert_array_equal(plan(there, out=out).get(), expected)


@pytest.mark.skipif(not CPU.companions, reason="no second device in the context")
@pytest.mark.parametrize("kinds", [["naive"], ["cpu with caller"]])
def test_arrays_of_a_companions_queue(kinds):
    network = Network.mlp([300, 300], "tanh", seed=1)
    plan, x = cover(network, CPU, kinds, 8), inputs(network, 8)
    (other,) = set(plan._session.queues.values()) - {plan.queue}
    for _ in range(5):
        there, out = cla.to_device(other, x), cla.zeros(other, x.shape, np.float32)
        plan(there, out=out)
        cl.enqueue_copy(other, there.data, np.zeros_like(x), is_blocking=False)
        assert_right(network, x, out.get())


@ON_ONE_QUEUE_OR_TWO
@pytest.mark.parametrize("has_queue", [True, False])
def test_a_call_waits_on_the_device_for_an_inputs_own_commands(device, has_queue):
    """The host does not wait: it opens the gate after the call."""
    plan, x = on_device(NETWORK, 4, device), inputs(NETWORK, 4)
    other = cl.CommandQueue(plan.queue.context, device.handle)
    there = cla.zeros(other, (4, 5), np.float32)
    plan(there).get()
    gate = cl.UserEvent(plan.queue.context)
    written = cl.enqueue_copy(
        other, there.data, x, is_blocking=False, wait_for=[gate]
    )
    if not has_queue:
        there.add_event(written)
        there = there.with_queue(None)
    y = plan(there)
    gate.set_status(cl.command_execution_status.COMPLETE)
    assert_right(NETWORK, x, y.get())


@pytest.mark.parametrize(
    ("shape", "dtype", "sentence"),
    [
        ((3, 5), "float32", r"x is a device array \[3, 5\] of float32, expected "
                            r"\[4, 5\] of float32"),
        ((4, 6), "float32", r"\[4, 6\] of float32, expected \[4, 5\]"),
        ((20,), "float32", r"\[20\] of float32, expected"),
        ((4, 5), "float64", r"of float64, expected \[4, 5\] of float32"),
        ((4, 5), "int32", r"of int32, expected"),
    ],
)
def test_wrong_device_arrays_are_refused(plan, shape, dtype, sentence):
    with pytest.raises(InputError, match=sentence):
        plan(cla.zeros(plan.queue, shape, dtype))
    if shape != (4, 5):
        return
    good = cla.zeros(plan.queue, (4, 5), np.float32)
    with pytest.raises(InputError, match=f"out is a device array .*{dtype}, expected"):
        plan(good, out=cla.zeros(plan.queue, (4, 3), dtype))


def test_parts_of_device_arrays_are_refused(plan):
    wide = cla.zeros(plan.queue, (4, 10), np.float32)
    tall = cla.zeros(plan.queue, (8, 5), np.float32)
    transposed = cla.zeros(plan.queue, (4, 5), np.float32, order="F")
    sentence = "x is a device array that is not contiguous from its buffer's start"
    for array in (wide[:, :5], tall[4:], transposed):
        with pytest.raises(InputError, match=sentence):
            plan(array)
    assert plan(tall[:4]).shape == (4, 3)


def test_arrays_of_another_context_are_refused(plan):
    context = cl.Context([plan.device.handle])  # a queue may not keep it alive
    other = cl.CommandQueue(context)
    foreign = cla.zeros(other, (4, 5), np.float32)
    with pytest.raises(InputError, match="x lives in another OpenCL context"):
        plan(foreign)
    good = cla.zeros(plan.queue, (4, 5), np.float32)
    with pytest.raises(InputError, match="out lives in another OpenCL context"):
        plan(good, out=cla.zeros(other, (4, 3), np.float32))


@pytest.mark.parametrize("out", [np.zeros((4, 3), np.float32), [[0.0] * 3] * 4, 3])
def test_out_must_be_a_device_array(plan, out):
    x = cla.zeros(plan.queue, (4, 5), np.float32)
    with pytest.raises(InputError, match=r"out is of type \w+, expected a device"):
        plan(x, out=out)


def test_other_objects_with_a_queue_are_refused(plan):
    class Impostor:
        queue = None

    with pytest.raises(InputError, match="x is of type Impostor, expected a device"):
        plan(Impostor())


def test_out_may_not_be_x():
    network = Network.mlp([5, 5], "tanh", seed=1)
    plan = on_device(network, 2)
    x = cla.to_device(plan.queue, inputs(network, 2))
    with pytest.raises(InputError, match="out is x's own memory"):
        plan(x, out=x)


def test_plans_on_the_host_refuse_device_arrays():
    plan = on_device(NETWORK, 2, variants=["host"])
    assert_right(NETWORK, inputs(NETWORK, 2), plan(inputs(NETWORK, 2)))
    with pytest.raises(DeviceError, match="pass host arrays"):
        plan(cla.zeros(plan.queue, (2, 5), np.float32))
