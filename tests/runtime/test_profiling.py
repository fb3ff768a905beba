"""Profiles of calls: the parts add up to no more than the wall time."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

import clnet
from clnet.errors import DeviceError
from clnet.runtime import profiling
from clnet.runtime.profiling import PARTS, CallTimes, call_timeline, call_times

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


@pytest.mark.parametrize("device", [CPU, BUFFERS], ids=["shared", "buffers"])
@pytest.mark.parametrize("variant", ["naive", "host"])
def test_a_timeline_is_in_order(device, variant):
    plan = NETWORK.compile(device, 2, tune=False, variants=[variant])
    found = json.loads(json.dumps(call_timeline(plan, np.ones((2, 5), np.float32))))
    tracks = {
        one["tid"]: one["args"]["name"]
        for one in found["traceEvents"] if one["ph"] == "M"
    }
    spans = [one for one in found["traceEvents"] if one["ph"] == "X"]
    host = [one for one in spans if tracks[one["tid"]] == "host"]
    assert [host[0]["name"], host[-1]["name"]] == [
        "fill the inputs", "return the outputs"
    ]
    ends = [one["ts"] + one["dur"] for one in host]
    assert all(
        end <= one["ts"] + 1e-2 for end, one in zip(ends, host[1:], strict=False)
    )
    kernels = [one["name"] for one in spans if one not in host]
    assert kernels.count("naive") == (2 if variant == "naive" else 0)
    assert ("host" in {one["name"] for one in host}) == (variant == "host")


def test_the_table_is_in_microseconds():
    text = CallTimes(1e-6, 2e-6, 3e-6, 4e-6, 0.0, 20e-6).table()
    assert [line.split() for line in text.splitlines()[2:]] == [
        ["upload", "1.0", "5%"], ["launch", "2.0", "10%"], ["device", "3.0", "15%"],
        ["download", "4.0", "20%"], ["sum", "10.0", "50%"], ["wall", "20.0", "100%"],
    ]


def test_a_failing_device_is_an_error(monkeypatch):
    plan = NETWORK.compile(CPU, 1, tune=False, variants=["naive"])

    def fail(executable):
        raise MemoryError("none left")

    monkeypatch.setattr(profiling, "traced", fail)
    with pytest.raises(DeviceError, match="failed while running: none left"):
        call_times(plan, np.ones((1, 5), np.float32))
