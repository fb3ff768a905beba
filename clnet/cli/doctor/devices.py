"""OpenCL's platforms and devices: those that show, those that do not, their kernels."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clnet.cli.doctor import probe
from clnet.cli.doctor.caches import pocl_cache
from clnet.cli.doctor.drivers import names_no_folder, names_nvidia
from clnet.cli.doctor.finding import Finding
from clnet.errors import ASK_DOCTOR, ClnetError
from clnet.opencl.child_process import run_child
from clnet.opencl.discovery import GET_PLATFORM, NO_PLATFORM, device, discover
from clnet.opencl.quirks import LINKER, NVIDIA, POCL

if TYPE_CHECKING:
    from clnet.opencl.device import Device

DEV = Path("/dev")
GPU_NODES = ("dri/renderD*", "kfd")  # that drivers open, below DEV


def platform_findings(files: Mapping[Path, str]) -> Iterator[Finding]:
    """Compare the platforms that show with the drivers that files name."""
    found = discover()
    for fault in found.faults:
        yield Finding(
            "platforms",
            False,
            "OpenCL finds none" if fault == NO_PLATFORM else fault,
            _cure_of_none(files)
            if fault == NO_PLATFORM
            else "fix the faults above; for PoCL, unset POCL_DEVICES; otherwise update"
            " the driver",
        )
    if (
        found.devices
        and importlib.util.find_spec("pocl_binary_distribution") is None
        and (platform.system(), platform.machine()) == ("Linux", "x86_64")
        and all(d.platform != POCL for d in found.devices)
    ):
        yield Finding(
            "the extra cpu",
            None,
            "is not installed, and there is no other PoCL",
            "pip install 'clnet[cpu]' to run on the CPU",
        )
    if names_nvidia(files) and all(d.platform != NVIDIA for d in found.devices):
        yield Finding(
            "NVIDIA",
            None,
            "its OpenCL library is installed but shows no GPU",
            "check whether nvidia-smi shows one (a container needs its devices; driver"
            " and library must have the same version)",
        )
    yield from _twin_findings(found.devices)
    yield from _linker_findings(found.devices)
    for main in found.devices:
        if main.platform == POCL and main.type == "cpu" and not main.companions:
            yield Finding(
                f"device {main.index}",
                None,
                f"PoCL shows {main.name} without its other device, so small and large"
                " work run on the same one",
                "unset POCL_DEVICES",
            )
    if found.devices:
        yield _choice_finding()


def _linker_findings(devices: Iterable[Device]) -> Iterator[Finding]:
    """Report that the program is missing by which PoCL makes a library of a kernel."""
    has_pocl = any(one.platform == POCL for one in devices)
    if has_pocl and platform.system() == "Linux" and not shutil.which(LINKER):
        yield Finding(
            "PoCL's linker",
            False,
            f"the program {LINKER} is not in PATH, so no new kernel can be linked, and"
            " PoCL ends the process",
            "apt install binutils (dnf, apk likewise), or add its folder to PATH",
        )


def _cure_of_none(files: Mapping[Path, str]) -> str:
    if names_no_folder():
        return "unset OCL_ICD_VENDORS"
    if files:
        return (
            "fix the faults above; a driver that loads but finds no device of its own"
            " shows no platform"
        )
    return GET_PLATFORM


def gpu_findings(devices: Sequence[Device]) -> Iterator[Finding]:
    """Report that no GPU is there, and those that the user may not open."""
    if any(one.type == "gpu" for one in devices):
        return
    nodes = [node for names in GPU_NODES for node in sorted(DEV.glob(names))]
    closed = [node for node in nodes if not os.access(node, os.R_OK | os.W_OK)]
    for node in closed:
        yield Finding(
            str(node),
            None,
            "is a GPU's, but this user may not read and write it, so OpenCL shows none",
            "add the user to the group of this file (sudo usermod -aG GROUP USER; `ls"
            " -l` shows the group), then log in again",
        )
    if devices and not closed:
        yield Finding(
            "GPU",
            None,
            "OpenCL shows none",
            "if there is one, install the OpenCL of its driver"
            " (docs/how_to/drivers.md), and give it to the container",
        )


def _twin_findings(devices: Iterable[Device]) -> Iterator[Finding]:
    """Report platforms with the same name, such as two versions of PoCL."""
    by_name: dict[str, dict[str, Device]] = {}
    for one in devices:
        number = one.index.split(":")[0]
        by_name.setdefault(one.platform, {}).setdefault(number, one)
    for name, platforms in by_name.items():
        if len(platforms) > 1:
            best, *others = platforms.values()
            yield Finding(
                name,
                None,
                f"is installed {len(platforms)} times: clnet takes {best.index}"
                f" ({best.name}, {best.driver}) before "
                + ", ".join(f"{d.index} ({d.name}, {d.driver})" for d in others),
                f"set CLNET_DEVICE={others[0].index} to take the other",
            )


def _choice_finding() -> Finding:
    try:
        chosen = device()
    except ClnetError as error:
        return Finding(
            "the default", False, str(error).removesuffix(f"; {ASK_DOCTOR}"),
            "unset CLNET_DEVICE or name one of these",
        )
    return Finding("the default", True, f"clnet takes {chosen.index} {chosen.name}")


def device_finding(one: Device) -> Finding:
    """Run a kernel on a device; where it fails on PoCL, with an empty cache too."""
    subject = f"device {one.index}"
    command = (*probe.COMMAND, one.index)
    outcome = run_child(command).removesuffix(f"; {ASK_DOCTOR}")
    if not outcome:
        return Finding(subject, True, f"{one.name} builds and runs a kernel")
    if one.platform == POCL:
        with tempfile.TemporaryDirectory() as empty:
            if not run_child(command, POCL_CACHE_DIR=empty):
                return Finding(
                    subject,
                    False,
                    f"a kernel failed on {one.name} ({outcome}), but not with an"
                    f" empty cache: {pocl_cache()} is corrupt, or mounted noexec",
                    "remove that folder, which PoCL fills again; or set POCL_CACHE_DIR"
                    " to a folder elsewhere",
                )
    return Finding(
        subject,
        False,
        f"a kernel failed on {one.name}: {outcome}",
        f"update the driver ({one.platform}, {one.driver}); until then select another"
        " device with CLNET_DEVICE",
    )
