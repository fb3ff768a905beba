"""Which device is the fastest for a network and a batch: by whole calls, measured.

On a GPU's host a small network is done on one core of the CPU before the GPU has begun,
a large one is not. Each device is planned for by itself, since a plan stays on one
OpenCL platform (and in NumPy); calls from host array to host array are then compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clnet.errors import DeviceError
from clnet.opencl.device import Device
from clnet.opencl.discovery import FASTEST
from clnet.planning.planner import Planner
from clnet.runtime.data_parallel import alike


def kinds(devices: Sequence[Device]) -> list[Device]:
    """Return of devices that compute the same as fast the first."""
    found: list[Device] = []
    for device in devices:
        if not any(alike((device, other)) for other in found):
            found.append(device)
    return found


def fastest_planner(
    devices: Sequence[Device], planner: Callable[[Device], Planner]
) -> Planner:
    """Return the planner of the device on which a whole call takes the shortest time.

    Its survey tells of the others.

    Parameters
    ----------
    devices : sequence of Device
        At least one; of equal ones the first counts.
    planner : callable
        Makes the planner of a device.

    Raises
    ------
    DeviceError
        If no device computes the network, or a time is neither remembered nor may be
        measured.
    """
    told: list[tuple[float, Device, Planner]] = []
    faults = []
    for device in kinds(devices):
        try:
            one = planner(device)
            cover = one.timed()
        except DeviceError as error:
            faults.append(f"{device.name}: {error}")
            continue
        if cover is None:
            raise DeviceError(
                f"which device is the fastest is not known: of {device.name} no time "
                f"is remembered, and with tune=False none may be measured; name a "
                f'device instead of "{FASTEST}"'
            )
        told.append((cover.seconds, device, one))
    if not told:
        raise DeviceError("; ".join(faults))
    told.sort(key=lambda found: found[0])
    _, _, best = told[0]
    best.report.devices = [(device.name, seconds) for seconds, device, _ in told]
    best.report.failures += faults
    return best
