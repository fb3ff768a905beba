"""The environment of a measurement: versions, threads, load, date; no host names."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

from threadpoolctl import threadpool_info

import clnet
from clnet.opencl.device import Device


def versions() -> dict[str, str]:
    """Return the versions of the libraries; empty if not installed."""
    others = {name: _installed(name) for name in ("numpy", "pyopencl", "torch")}
    return {"clnet": clnet.__version__, **others, "python": platform.python_version()}


def device_identity(device: Device) -> dict[str, str]:
    """Return the names and versions of a device and its driver."""
    return {
        "device": device.name,
        "platform": device.platform,
        "platform_version": device.platform_version,
        "driver": device.driver,
    }


def load() -> float | None:
    """Return the load average of the last minute; None where there is none."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def worked() -> float | None:
    """Return the seconds that all cores have worked since they started; None: unknown.

    Less this process's own they tell of other programs, during a measurement.
    """
    try:
        first, *_ = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return None
    user, nice, system, _idle, _wait, *interrupts = map(int, first.split()[1:8])
    return sum((user, nice, system, *interrupts)) / os.sysconf("SC_CLK_TCK")


def now() -> str:
    """Return the date and time, UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def cores() -> int:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def blas_threads() -> int | None:
    """Return the threads of NumPy's BLAS; None if its library is unknown."""
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    return max((int(pool["num_threads"]) for pool in pools), default=None)


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
