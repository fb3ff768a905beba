"""The one table of what drivers report wrongly or do not report at all.

Names of platforms, vendors and versions stand here and nowhere else: a row edits the
capabilities of a device record and says why, and everything else in clnet reads only
the capabilities. Rows of a second table set environment variables that drivers read
when they are loaded. To add a quirk, add a row.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clnet.opencl.device import Device

POCL = "Portable Computing Language"
NVIDIA = "NVIDIA CUDA"


@dataclass(frozen=True)
class Quirk:
    """One row of the table.

    Attributes
    ----------
    match : callable
        Whether the row is about a device, read from its record alone.
    effect : mapping of str to value or callable
        The fields to edit; a callable is given the record and returns the new value.
    reason : str
        One sentence: what the driver does, and the drivers affected.
    """

    match: Callable[[Device], bool]
    effect: Mapping[str, Any]
    reason: str


@dataclass(frozen=True)
class EnvironmentQuirk:
    """One row of the table of environment variables.

    Attributes
    ----------
    match : callable
        Whether the row applies, read from the environment as it is.
    effect : mapping of str to str
        The variables to set.
    reason : str
        One sentence: what the driver does, and the drivers affected.
    """

    match: Callable[[Mapping[str, str]], bool]
    effect: Mapping[str, str]
    reason: str


@functools.cache
def host_memory() -> int:
    """Return the bytes of memory this process may use: the host's or its container's.

    Returns
    -------
    int
        The least of the physical memory and the control group's limit, in bytes.
    """
    limits = [
        _limit(Path("/sys/fs/cgroup/memory.max")),
        _limit(Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")),
    ]
    if hasattr(os, "sysconf"):  # not on Windows
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(limits)


def _limit(path: Path) -> int:
    """Return the bytes a control group's file allows; without limit, no limit."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such group, or the word "max"
        return sys.maxsize


def _pocl_cpu(device: Device) -> bool:
    return device.platform == POCL and device.type == "cpu"


def _pocl_serial(device: Device) -> bool:
    # "basic" until PoCL 3, "cpu-minimal" since PoCL 4.
    return _pocl_cpu(device) and device.name.startswith(("basic", "cpu-minimal"))


def _emulated(device: Device) -> bool:
    words = f"{device.platform} {device.name}".lower()
    return any(
        emulator in words
        for emulator in ("oclgrind", "fpga emulation", "llvmpipe", "swiftshader")
    )


# Rows apply in order; a row sees what those before it have edited.
QUIRKS: tuple[Quirk, ...] = (
    Quirk(
        match=_emulated,
        effect={"emulated": True, "type": "cpu", "simd_width": 1},
        reason="software that poses as another kind of processor, so it ranks last and"
        " counts as a CPU (Oclgrind, Intel's FPGA emulator, llvmpipe, SwiftShader)",
    ),
    Quirk(
        match=lambda device: (
            device.type == "cpu" and device.global_memory > host_memory()
        ),
        effect={
            "global_memory": lambda _: host_memory(),
            "largest_buffer": lambda device: min(device.largest_buffer, host_memory()),
        },
        reason="reports more memory than this process may use, so the host's limit"
        " counts (PoCL, all versions, mostly in containers)",
    ),
    Quirk(
        match=_pocl_cpu,
        effect={"operator_math": True},
        reason="built-in functions are calls that stop vectorisation, so kernels use"
        " operators alone (PoCL on CPUs, 3.0 and 3.1 measured)",
    ),
    Quirk(
        match=_pocl_serial,
        effect={"serial": True, "launch_cost": 1e-6},
        reason="runs kernels in the calling thread on one core, so launches are cheap"
        " (PoCL's basic device, called cpu-minimal since 4.0)",
    ),
    Quirk(
        match=lambda device: _pocl_cpu(device) and not device.serial,
        effect={"launch_cost": 3e-5},
        reason="hands every launch to worker threads, which takes some 30 us (PoCL's"
        " pthread device, called cpu since 4.0)",
    ),
    Quirk(
        match=lambda device: device.platform == NVIDIA,
        effect={
            "launch_cost": 5e-6,
            "local_memory": lambda device: device.local_memory - 1024,
        },
        reason="a kernel that asks at its launch for all of the local memory reported"
        " fails with OUT_OF_RESOURCES, so 1 KiB stays free (NVIDIA, driver 580)",
    ),
    Quirk(
        match=lambda device: (
            device.platform == NVIDIA and device.compute_capability == (9, 0)
        ),
        effect={"unit_local_memory": 226 << 10},
        reason="a compute unit has 228 KiB of local memory, of which arrays that a"
        " kernel declares may have more than the 48 KiB reported: 205 KiB were built"
        " and run, 227 were not built (NVIDIA, compute capability 9.0, driver 580)",
    ),
    Quirk(
        match=lambda device: device.platform == NVIDIA,
        effect={"mapped_host_memory": None},
        reason="kernels can write to pinned memory at the host's own address, which"
        " OpenCL does not promise: it is tried (NVIDIA, driver 580)",
    ),
)

# Set before the first platform is loaded; a user's own setting stays.
ENVIRONMENT_QUIRKS: tuple[EnvironmentQuirk, ...] = (
    EnvironmentQuirk(
        match=lambda environment: "POCL_DEVICES" not in environment,
        effect={"POCL_DEVICES": "pthread basic"},
        reason="shows its serial device, thirty times cheaper to launch, beside the"
        " parallel one only if asked before it is loaded (PoCL, all versions)",
    ),
)


def apply_environment_quirks(environment: MutableMapping[str, str]) -> None:
    """Set the variables of every matching row.

    Parameters
    ----------
    environment : mutable mapping of str to str
        The process's, before OpenCL is loaded.
    """
    for quirk in ENVIRONMENT_QUIRKS:
        if quirk.match(environment):
            environment.update(quirk.effect)


def apply_quirks(device: Device) -> Device:
    """Return the record with every matching row's edits, each reason in its notes.

    Parameters
    ----------
    device : Device
        Capabilities as the driver reports them.

    Returns
    -------
    Device
        The same record where no row matches.
    """
    for quirk in QUIRKS:
        if quirk.match(device):
            edits = {
                field: value(device) if callable(value) else value
                for field, value in quirk.effect.items()
            }
            device = dataclasses.replace(
                device, **edits, notes=(*device.notes, quirk.reason)
            )
    return device
