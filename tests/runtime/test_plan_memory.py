"""Plans: memory, which calls reuse and plans release, and devices that fail."""

from __future__ import annotations

import dataclasses
import gc
import re

import numpy as np
import pyopencl as cl
import pyopencl.array as cla
import pytest
from bounds import assert_right
from covers import (
    CPU,
    DEVICES,
    NETWORK,
    cover,
    inputs,
    on_device,
)

from clnet import Network
from clnet.errors import DeviceError
from clnet.opencl import memory
from clnet.opencl.session import session


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
    gc.collect()  # plans of other tests
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
        DeviceError, match="has no room for the parameters of this network, at least "
        f"{size} bytes: it has {size - 1}; take sparser layers or another device"
    ):
        on_device(network, 1, small)
    gc.collect()
    assert session(small).allocated == 0
    held = size + 4 * (50 + 30)  # but not the values between the layers
    enough = dataclasses.replace(device, global_memory=held, index="9:9")
    with pytest.raises(DeviceError, match=r"no room for .* bytes: .* are left; take"):
        on_device(network, 1, enough)


def test_a_buffer_too_large_is_an_error(monkeypatch):
    network = Network.mlp([50, 70, 30], "tanh", seed=1)
    small = dataclasses.replace(CPU, largest_buffer=4096)
    sentence = "bytes in a buffer: 4096 are the most; take sparser layers or another"
    with pytest.raises(DeviceError, match=sentence):
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
            network._plans.plans["key"] = plan  # as predict does
            assert_right(network, inputs(network, 1), plan(inputs(network, 1)))
            del plan
    finally:
        gc.enable()


def test_a_failing_device_is_an_error(plan, monkeypatch):
    def fail():
        raise cl.RuntimeError("OUT_OF_RESOURCES")

    x = inputs(NETWORK, 4)
    monkeypatch.setattr(plan._executable, "compute", fail)
    sentence = re.escape(f"{CPU.name} failed while running: OUT_OF")
    for call in (lambda: plan(x), lambda: plan(x, np.empty((4, 3), np.float32))):
        with pytest.raises(DeviceError, match=sentence):
            call()
    monkeypatch.undo()
    assert_right(NETWORK, inputs(NETWORK, 4), plan(inputs(NETWORK, 4)))


def test_a_device_without_context_is_an_error(monkeypatch):
    def fail(_):
        raise cl.LogicError("INVALID_DEVICE")

    monkeypatch.setattr(cl, "Context", fail)
    broken = dataclasses.replace(CPU, name="broken")
    with pytest.raises(DeviceError, match="broken gives no context: INVALID_DEVICE"):
        on_device(NETWORK, 1, broken)
