"""Profiles of calls: the parts add up to no more than the wall time."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import clnet
from clnet.errors import DeviceError
from clnet.runtime.executable import Executable
from clnet.runtime.profiling import PARTS, CallTimes, call_times

NETWORK = clnet.Network.mlp([5, 7, 3], seed=1)
CPU = clnet.device("cpu")
BUFFERS = dataclasses.replace(CPU, fine_svm=False)  # as GPUs: with copies


@pytest.mark.parametrize("device", [CPU, BUFFERS], ids=["shared", "buffers"])
@pytest.mark.parametrize("variant", ["naive", "host"])
def test_the_parts_add_up(device, variant):
    plan = NETWORK.compile(device, 2, tune=False, variants=[variant])
    times = call_times(plan, np.ones((2, 5), np.float32))
    assert 0 < times.sum <= times.wall * (1 + 1e-6)
    assert times.upload > 0 and times.download > 0
    assert (times.host > 0, times.device > 0) == (variant == "host", variant == "naive")
    lines = times.table().splitlines()
    names = [line.split()[0] for line in lines[2:]]
    assert names == [part for part in PARTS if part != "host" or variant == "host"]
    assert max(map(len, lines)) <= 80


def test_the_table_is_in_microseconds():
    text = CallTimes(1e-6, 2e-6, 3e-6, 4e-6, 0.0, 20e-6).table()
    assert [line.split() for line in text.splitlines()[2:]] == [
        ["upload", "1.0", "5%"], ["launch", "2.0", "10%"], ["device", "3.0", "15%"],
        ["download", "4.0", "20%"], ["sum", "10.0", "50%"], ["wall", "20.0", "100%"],
    ]


def test_a_failing_device_is_an_error(monkeypatch):
    plan = NETWORK.compile(CPU, 1, tune=False, variants=["naive"])

    def fail(self):
        raise MemoryError("none left")

    monkeypatch.setattr(Executable, "traced_run", fail)
    with pytest.raises(DeviceError, match="failed while running: none left"):
        call_times(plan, np.ones((1, 5), np.float32))
