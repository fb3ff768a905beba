"""The choice of the fastest device, by whole calls."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from bounds import assert_right

import clnet
from clnet import DeviceError, InputError, Network
from clnet.opencl.device import Device
from clnet.opencl.store import Timing
from clnet.planning.cover import Cover, PlanReport
from clnet.planning.format_planner import distinct, fastest_planner

GPU = Device("gpu", index="0:0", type="gpu", compute_units=132)
CPU = Device("cpu", index="1:0", compute_units=2)


@dataclass
class Known:
    """A planner whose best cover takes the given seconds."""

    seconds: float | None
    report: PlanReport = field(default_factory=PlanReport)

    def timed_cover(self):
        if self.seconds is None:
            return None
        if self.seconds < 0:
            raise DeviceError("out of memory")
        return Cover((), 0.0, Timing(self.seconds, self.seconds, 0.0))


@pytest.mark.parametrize(("gpu", "cpu", "best"), [(1, 2, "gpu"), (3, 2, "cpu")])
def test_the_device_of_the_shortest_call_is_taken(gpu, cpu, best):
    planners = {"gpu": Known(gpu), "cpu": Known(cpu)}
    found = fastest_planner((GPU, CPU), lambda device: planners[device.name])
    assert found is planners[best]
    times = sorted([("gpu", gpu), ("cpu", cpu)], key=lambda pair: pair[1])
    assert found.report.devices == times


def test_a_failing_device_is_left_out_and_reported():
    planners = {"gpu": Known(-1), "cpu": Known(2)}
    found = fastest_planner((GPU, CPU), lambda device: planners[device.name])
    assert found.report.failures == ["gpu: out of memory"]
    with pytest.raises(DeviceError, match="gpu: out of memory; cpu: out of memory"):
        fastest_planner((GPU, CPU), lambda device: Known(-1))


def test_of_equal_devices_one_is_measured():
    assert distinct((GPU, replace(GPU, index="0:1"), CPU)) == [GPU, CPU]


@pytest.mark.usefixtures("own_store")
def test_a_network_runs_on_the_fastest_device():
    network = Network.mlp([5, 7, 3], seed=1)
    x = np.random.default_rng(0).uniform(-1, 1, (2, 5)).astype("float32")
    with pytest.raises(DeviceError, match="with tune=False none may be measured"):
        network.compile("fastest", tune=False)
    assert_right(network, x, network.predict(x, device="Fastest"))
    text = network.plan_for("fastest", 2).explain()
    assert "devices, by whole calls\n  " in text
    assert clnet.devices()[0].name in text
    with pytest.raises(InputError, match='"fastest" is accepted by compile and'):
        network.predict(x, device=["fastest"])
    with pytest.raises(InputError, match="name the device here"):
        network.fit(x, np.zeros((2, 3)), device="fastest")
    with pytest.raises(InputError, match="batch must be a whole number"):
        network.compile("fastest", 0)
