"""Quirks: the one table of wrong or missing reports of drivers.

Names of platforms, vendors and versions stand here and nowhere else. A row edits the
capabilities of a device record and says why; the rest of clnet reads the capabilities
only. Rows of a second table set environment variables that drivers read when they are
loaded. To add a quirk, add a row.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs

from clnet.opencl import target_cpu

if TYPE_CHECKING:
    from clnet.opencl.device import Device

# Without the warning of a keyword's macro.
ALL_INLINE = ("-w", "-Dinline=__attribute__((always_inline))")
POCL = "Portable Computing Language"
NVIDIA = "NVIDIA CUDA"
NVIDIA_DRIVER = Path("/proc/driver/nvidia")  # of the kernel
NVIDIA_LIBRARY = "libnvidia-opencl.so.1"
NVIDIA_TOOL = "nvidia-smi"  # of the driver's package
LINKER = "ld"  # of PoCL
# Platforms, and types of their devices, on which the suite ends without a crash.
TESTED = {
    (POCL, "cpu"), (NVIDIA, "gpu"), ("Intel(R) OpenCL", "cpu"), ("Oclgrind", "gpu")
}


@dataclass(frozen=True)
class Quirk:
    """One row of the table."""

    # Whether the row applies to a device, from its record alone
    match: Callable[[Device], bool]
    # The fields to edit; a callable takes the record and returns the new value
    effect: Mapping[str, Any]
    reason: str  # One sentence: what the driver does, and the drivers affected


@dataclass(frozen=True)
class EnvironmentQuirk:
    """One row of the table of environment variables."""

    effect: Mapping[str, str]  # The variables to set, unless the user did
    reason: str  # One sentence: what the driver does, and the drivers affected
    match: Callable[[], bool] = lambda: True  # Whether the row applies


@functools.cache
def host_memory() -> int:
    """Return the memory available to this process, of the host or its container."""
    limits = [
        _limit(Path("/sys/fs/cgroup/memory.max")),
        _limit(Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")),
    ]
    if hasattr(os, "sysconf"):  # not on Windows
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(limits)


def _limit(path: Path) -> int:
    """Return the limit in a control group's file, in bytes; `sys.maxsize`: none."""
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


def _lacks_linker() -> bool:
    return sys.platform == "linux" and shutil.which(LINKER) is None


def _llvmpipe(device: Device) -> bool:
    return device.platform == "rusticl" and device.name.startswith("llvmpipe")


def _pocl_7(device: Device) -> bool:
    return _pocl_cpu(device) and device.driver.startswith("7.")


# Rows apply in order; a row sees the edits of the rows before it.
QUIRKS: tuple[Quirk, ...] = (
    Quirk(
        match=_emulated,
        effect={"emulated": True, "type": "cpu", "simd_width": 1},
        reason="emulates another kind of processor in software, so it ranks last and"
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
        " applies (PoCL, all versions, mostly in containers)",
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
        reason="passes every launch to worker threads, which takes some 30 us (PoCL's"
        " pthread device, called cpu since 4.0)",
    ),
    Quirk(
        match=lambda device: (
            _pocl_cpu(device) and device.driver.startswith(("6.", "7."))
        ),
        effect={"build_options": ALL_INLINE},
        reason="passes wrong addresses of local memory to functions that its compiler"
        " does not inline, so all are inlined (PoCL 6.0 and 7.1; see its issues 617 and"
        " 668)",
    ),
    Quirk(
        match=_llvmpipe,
        effect={"barrier_build_options": ALL_INLINE},
        reason="ends the process at a barrier of a function that its compiler does not"
        " inline, so all are inlined in programs with barriers; others would take it"
        " several times as long (llvmpipe by Mesa's rusticl, 25.0)",
    ),
    Quirk(
        match=lambda device: (
            _pocl_cpu(device) and target_cpu.is_unknown(device.handle)
        ),
        effect={
            "environment": lambda _: ((target_cpu.VARIABLE, target_cpu.best_name()),)
        },
        reason="compiles no kernel for a processor newer than its LLVM, or without the"
        " AVX-512 that its library takes for granted, so it is told to compile for an"
        " older one with the same vectors (PoCL before 5.0)",
    ),
    Quirk(
        match=_pocl_7,
        effect={"environment": (("POCL_FORCE_PARALLEL_OUTER_LOOP", "0"),)},
        reason="adds barriers to loops of kernels that have none, and then runs the"
        " body of a loop once too often, beyond the ends of arrays, if the number of"
        " its turns is odd (PoCL 7.1, whose default is 1)",
    ),
    Quirk(
        match=_pocl_7,
        effect={
            "environment": lambda device: (
                *device.environment, ("POCL_WORK_GROUP_METHOD", "cbs")
            )
        },
        reason="computes wrong numbers by its loops over the work-items of kernels with"
        " barriers, so these are compiled by continuations (PoCL 7.1; its later commit"
        " d7c16d77a names loads repeated after a barrier)",
    ),
    Quirk(
        match=_pocl_7,
        effect={"late_errors": True},
        reason="compiles kernels when they are first launched; if it cannot, for lack"
        " of a linker or of its cache's folder, only the launch's event tells, and"
        " results stay as they were (PoCL 7.1; its serial device aborts instead)",
    ),
    Quirk(
        match=lambda device: _pocl_cpu(device) and _lacks_linker(),
        effect={"untested": True},
        reason="ends the process at each kernel that it has not compiled before, as its"
        f" linker, the program {LINKER}, is not in PATH; so steps run in a child"
        " process first (PoCL on Linux, 3.0)",
    ),
    Quirk(
        match=lambda device: device.platform == NVIDIA,
        effect={
            "launch_cost": 5e-6,
            "local_memory": lambda device: device.local_memory - 1024,
        },
        reason="a launch that asks for all of the reported local memory fails with"
        " OUT_OF_RESOURCES, so 1 KiB stays free (NVIDIA, driver 580)",
    ),
    Quirk(
        match=lambda device: device.platform == NVIDIA,
        effect={"registers_option": "-cl-nv-maxrregcount="},
        reason="gives work-items registers without regard to how many groups could"
        " share a compute unit, but has an option that limits them (NVIDIA, driver"
        " 580)",
    ),
    Quirk(
        match=lambda device: (
            device.platform == NVIDIA and device.compute_capability == (9, 0)
        ),
        effect={"unit_local_memory": 226 << 10},
        reason="a compute unit has 228 KiB of local memory, and arrays declared in a"
        " kernel may have more than the 48 KiB reported: 205 KiB built and ran, 227 did"
        " not build (NVIDIA, compute capability 9.0, driver 580)",
    ),
    Quirk(
        match=lambda device: device.platform == NVIDIA,
        effect={"mapped_host_memory": None},
        reason="kernels can store to pinned memory at its host address, which OpenCL"
        " does not promise, so it is probed (NVIDIA, driver 580)",
    ),
)


def _has_no_cache() -> bool:
    """Return whether pyopencl's folder of generated code can be neither made nor used.

    It is the one of pytools' persistent dictionaries.
    """
    folder = Path(platformdirs.user_cache_dir("pytools", "pytools"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return True
    return not os.access(folder, os.W_OK)


# Set before the first platform is loaded.
ENVIRONMENT_QUIRKS: tuple[EnvironmentQuirk, ...] = (
    EnvironmentQuirk(
        effect={"POCL_DEVICES": "pthread basic"},
        reason="lists its serial device, with launches thirty times cheaper, beside the"
        " parallel one only if asked before it is loaded (PoCL, all versions)",
    ),
    EnvironmentQuirk(
        match=_has_no_cache,
        effect={"PYOPENCL_NO_CACHE": "1"},
        reason="fails at the first kernel of a user whose folder of caches can neither"
        " be made nor written, as in containers (pyopencl 2026.1)",
    ),
)


def apply_environment_quirks(environment: MutableMapping[str, str]) -> None:
    """Set the variables of every row that applies; a user's own setting stays."""
    for quirk in ENVIRONMENT_QUIRKS:
        if quirk.match():
            set_variables(quirk.effect, environment)


def set_variables(
    variables: Mapping[str, str], environment: MutableMapping[str, str]
) -> None:
    """Set variables of an environment; a user's own setting stays."""
    for variable, value in variables.items():
        environment.setdefault(variable, value)


def prepare_compiler(device: Device) -> None:
    """Set what the compiler of a device reads; a user's own setting stays."""
    set_variables(dict(device.environment), os.environ)
    if target_cpu.VARIABLE in dict(device.environment):
        for place in device.places:
            target_cpu.set_name(place.handle, os.environ[target_cpu.VARIABLE])


def variables_option(
    device: Device, environment: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the build option that tells apart a compiler's variables, if it has any.

    A driver's cache of compiled kernels knows the options, but not all variables: PoCL
    7.1 would find kernels that it compiled without POCL_FORCE_PARALLEL_OUTER_LOOP.
    """
    if not device.environment:
        return ()
    values = [(name, environment.get(name)) for name, _ in device.environment]
    digest = hashlib.sha256(repr(values).encode()).hexdigest()
    return (f"-DVARIABLES=0x{digest[:8]}",)


def registers_option(device: Device, registers: int | None) -> tuple[str, ...]:
    """Return the build option that limits the registers of a work-item, if any does."""
    if registers is None or not device.registers_option:
        return ()
    return (f"{device.registers_option}{registers}",)


def apply_quirks(device: Device) -> Device:
    """Return the record with the edits and reasons of every matching row."""
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
