"""The choice of the fastest device for a network and a batch size, by whole calls.

One core of the host computes a small network before a GPU has started; a large network
is faster on the GPU. Each device has its own plan, since a plan stays on one OpenCL
platform (and in NumPy). Whole calls, host arrays to host arrays, are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from clnet.errors import DeviceError
from clnet.opencl.discovery import FASTEST
from clnet.runtime.data_parallel import alike

if TYPE_CHECKING:
    from clnet.opencl.device import Device
    from clnet.planning.planner import Planner


def distinct(devices: Sequence[Device]) -> list[Device]:
    """Return the first of each group of devices that are alike."""
    found: list[Device] = []
    for device in devices:
        if not any(alike((device, other)) for other in found):
            found.append(device)
    return found


def fastest_planner(
    devices: Sequence[Device], planner: Callable[[Device], Planner]
) -> Planner:
    """Return the planner of the device on which a whole call takes the shortest time.

    Its report lists the others.
    """
    timed: list[tuple[float, Device, Planner]] = []
    faults = []
    for device in distinct(devices):
        try:
            candidate = planner(device)
            cover = candidate.timed_cover()
        except DeviceError as error:
            named = device.name in str(error)
            faults.append(str(error) if named else f"{device.name}: {error}")
            continue
        if cover is None:
            raise DeviceError(
                f'"{FASTEST}" needs a time of every device: none is remembered of '
                f"{device.name}, and with tune=False none may be measured; name a "
                "device instead"
            )
        timed.append((cover.seconds, device, candidate))
    if not timed:
        raise DeviceError("; ".join(faults))
    timed.sort(key=lambda entry: entry[0])
    _, _, best = timed[0]
    best.report.devices = [(device.name, seconds) for seconds, device, _ in timed]
    best.report.failures += faults
    return best
