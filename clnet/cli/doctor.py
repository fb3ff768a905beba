"""``clnet doctor``: examine the OpenCL set-up, name faults and their cures.

``python -m clnet.cli.doctor INDEX…`` runs the probe kernel on devices. The doctor runs
it in child processes, and loads drivers in others: a bad driver may kill its process.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from clnet.cli import json_output
from clnet.errors import ASK_DOCTOR, WIDTH, ClnetError, DeviceError, counted, reason
from clnet.opencl.bound import Bound
from clnet.opencl.child_trial import run_child
from clnet.opencl.discovery import GET_PLATFORM, NO_PLATFORM, device, discover
from clnet.opencl.launch import Launch, Scratch
from clnet.opencl.quirks import (
    LINKER,
    NVIDIA,
    NVIDIA_DRIVER,
    NVIDIA_LIBRARY,
    NVIDIA_TOOL,
    POCL,
)
from clnet.opencl.session import Session

if TYPE_CHECKING:
    from clnet.opencl.device import Device

VENDORS = Path("/etc/OpenCL/vendors")
DEV = Path("/dev")
GPU_NODES = ("dri/renderD*", "kfd")  # that drivers open, below DEV
LOAD = (sys.executable, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])")
PROBE = (sys.executable, "-m", "clnet.cli.doctor")


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    subject: str  # The thing that was checked
    ok: bool | None  # None: neither good nor bad, but worth knowing
    found: str  # The result, and the cause of a fault
    cure: str = ""  # The action to take; empty if none is needed


def report(as_json: bool = False) -> int:
    """Print every finding, `WIDTH` columns wide unless a word is longer."""
    marks, bad = {True: "ok", False: "BAD", None: "note"}, 0
    if as_json:
        findings = list(examine())
        bad = sum(finding.ok is False for finding in findings)
        json_output.show({"findings": [*map(asdict, findings)], "faults": bad})
        return 1 if bad else 0
    for finding in examine():  # printed as they come: a driver may take a minute
        bad += finding.ok is False
        head = f"{marks[finding.ok]:4}  "
        print(_wrapped(head, f"{finding.subject}: {finding.found}"))
        if finding.cure:
            print(_wrapped("      -> ", finding.cure))
    print(f"\n{counted(bad, 'thing')} to cure." if bad else "\nAll is well.")
    return 1 if bad else 0


def _wrapped(head: str, text: str) -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head),
        break_on_hyphens=False, break_long_words=False,
    )


def examine() -> Iterator[Finding]:
    """Examine the set-up, from the files that name drivers to a kernel on each device.

    Causes come before their effects, so that the first cure may cure them all.
    """
    files = icd_files()
    if platform.system() == "Linux":  # Windows has a registry, macOS one driver
        yield from driver_findings(files)
    yield from cache_findings()
    outcome = run_child(PROBE)
    if outcome:
        yield Finding(
            "platforms", False,
            f"the query of OpenCL's platforms failed: {outcome}",
            "move the .icd files away one by one to find the faulty driver, then update"
            " or remove it",
        )
        return
    yield from platform_findings(files)
    yield from gpu_findings(discover().devices)
    for main in discover().devices:
        for place in main.places:
            yield device_finding(place)


# Drivers ----------------------------------------------------------------------------


def icd_folder() -> Path:
    """Return the folder, or the file, where the loader in pyopencl's wheel looks."""
    named = os.environ.get("OCL_ICD_VENDORS")
    if named:
        file = VENDORS / named  # the loader looks there for a name without a folder
        return file if file.exists() else Path(named)
    return Path(os.environ.get("OPENCL_VENDOR_PATH") or VENDORS)


def hides_drivers() -> bool:
    """Return whether a variable keeps the loader from all drivers."""
    return bool(os.environ.get("OCL_ICD_VENDORS")) and not icd_folder().exists()


def icd_files() -> dict[Path, str]:
    """Return the library that each file of the OpenCL loader names; Linux has them."""
    if platform.system() != "Linux" or hides_drivers():
        return {}
    vendors = icd_folder()
    if vendors.is_file():  # the loader also accepts one file or library
        return {vendors: _library(vendors)}
    folders = filter(None, (vendors, _wheel()))
    return {
        file: _library(file)
        for folder in folders for file in sorted(folder.glob("*.icd"))
    }


def _library(file: Path) -> str:
    """Return the library that a file names, or the file if it is the library."""
    if file.suffix != ".icd":
        return str(file)
    try:
        return file.read_text(errors="replace").strip()
    except OSError:  # reported as a library that does not load
        return ""


def _wheel() -> Path | None:
    """Return the other folder that the loader in pyopencl's wheel searches."""
    spec = importlib.util.find_spec("pyopencl")
    return Path(spec.origin).parent / ".libs" if spec and spec.origin else None


def driver_findings(files: Mapping[Path, str]) -> Iterator[Finding]:
    """Load the library that each file names; report drivers that no file names."""
    folder = icd_folder()
    if hides_drivers():
        yield Finding(
            "OCL_ICD_VENDORS", False,
            f"is {folder}, which does not exist, so no driver is found",
            "unset it, or set it to a folder of .icd files",
        )
        return
    if not files:
        yield Finding(
            "drivers", False,
            f"there is no .icd file in {folder} or beside pyopencl",
            "pip install 'clnet[cpu]' (Linux, x86-64), or install PoCL or the driver"
            " of a GPU",
        )
    for file, library in files.items():
        sibling = file.parent / library
        outcome = run_child([*LOAD, str(sibling if sibling.exists() else library)])
        if outcome:
            yield Finding(
                str(file), False,
                f"names {library or 'nothing'}, which does not load: {outcome}",
                "install this driver, or the library that the reason names; or remove"
                " the file",
            )
        else:
            yield Finding(str(file), True, f"names {library}, which loads")
    if _name_nvidia(files):
        return
    if not run_child([*LOAD, NVIDIA_LIBRARY]):
        yield Finding(
            "NVIDIA", False,
            f"{NVIDIA_LIBRARY} is installed, but no .icd file names it",
            "unset OCL_ICD_VENDORS, which names one driver alone" if folder.is_file()
            else f"make the folder {folder}, and write that name into"
            f" {folder / 'nvidia.icd'}",
        )
    elif NVIDIA_DRIVER.exists() or shutil.which(NVIDIA_TOOL):
        yield Finding(
            "NVIDIA", False,
            f"the driver is installed, but not its OpenCL library {NVIDIA_LIBRARY}",
            "install it (libnvidia-compute or nvidia-opencl-icd); for a container, set"
            " NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        )


def _name_nvidia(files: Mapping[Path, str]) -> bool:
    return any("nvidia" in library for library in files.values())


# Caches -----------------------------------------------------------------------------


def pocl_cache() -> Path:
    """Return the folder of PoCL's compiled programs."""
    folder = os.environ.get("POCL_CACHE_DIR")
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) if folder else Path(user) / "pocl" / "kcache"


def cache_findings() -> Iterator[Finding]:
    """Try to write into the folders of compiled programs and of measured times."""
    from clnet.opencl.store import cache_directory

    for subject, folder, variable, effect in (
        ("PoCL's cache", pocl_cache(), "POCL_CACHE_DIR", "so PoCL shows no devices"),
        ("clnet's cache", cache_directory(), "CLNET_CACHE_DIR",
         "so measured times are lost"),
    ):
        # A folder that is not there yet is made in its nearest parent that exists.
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        try:
            with tempfile.TemporaryFile(dir=existing):
                yield Finding(subject, True, f"{folder} is writable")
        except OSError as error:
            yield Finding(
                subject, False,
                f"{folder} is not writable ({reason(error)}), {effect}",
                f"make it writable, or set {variable} to a folder that is",
            )


# Platforms and devices --------------------------------------------------------------


def platform_findings(files: Mapping[Path, str]) -> Iterator[Finding]:
    """Compare the platforms that show with the drivers that files name."""
    result = discover()
    platforms = {shown.platform for shown in result.devices}
    for fault in result.faults:
        if fault != NO_PLATFORM:
            yield Finding(
                "platforms", False, fault,
                "fix the faults above; for PoCL, unset POCL_DEVICES; otherwise update"
                " the driver",
            )
            continue
        yield Finding(
            "platforms", False, "OpenCL finds none",
            "unset OCL_ICD_VENDORS" if hides_drivers() else
            "fix the faults above; a driver that loads but finds no device of its own"
            " shows no platform" if files else GET_PLATFORM,
        )
    if platforms and POCL not in platforms and (
        importlib.util.find_spec("pocl_binary_distribution") is None
        and (platform.system(), platform.machine()) == ("Linux", "x86_64")
    ):
        yield Finding(
            "the extra cpu", None, "is not installed, and there is no other PoCL",
            "pip install 'clnet[cpu]' to run on the CPU",
        )
    if NVIDIA not in platforms and _name_nvidia(files):
        yield Finding(
            "NVIDIA", None, "its OpenCL library is installed but shows no GPU",
            "check whether nvidia-smi shows one (a container needs its devices; driver"
            " and library must have the same version)",
        )
    if POCL in platforms and platform.system() == "Linux" and not shutil.which(LINKER):
        yield Finding(
            "PoCL's linker", False,
            f"the program {LINKER} is not in PATH, so no new kernel can be linked, and"
            " PoCL ends the process",
            "apt install binutils (dnf, apk likewise), or add its folder to PATH",
        )
    if platforms:
        yield _default_finding()


def _default_finding() -> Finding:
    try:
        default = device()
    except ClnetError as error:
        return Finding(
            "the default", False, str(error).removesuffix(f"; {ASK_DOCTOR}"),
            "unset CLNET_DEVICE or name one of these",
        )
    return Finding("the default", True, f"clnet takes {default.index} {default.name}")


def gpu_findings(devices: Iterable[Device]) -> Iterator[Finding]:
    """Report that no GPU is there, and those that the user may not open."""
    types = {shown.type for shown in devices}
    if "gpu" in types:
        return
    nodes = [node for names in GPU_NODES for node in sorted(DEV.glob(names))]
    closed = [node for node in nodes if not os.access(node, os.R_OK | os.W_OK)]
    for node in closed:
        yield Finding(
            str(node), None,
            "is a GPU's, but this user may not read and write it, so OpenCL shows none",
            "add the user to the group of this file (sudo usermod -aG GROUP USER; `ls"
            " -l` shows the group), then log in again",
        )
    if types and not closed:
        yield Finding(
            "GPU", None, "OpenCL shows none",
            "if there is one, install the OpenCL of its driver"
            " (docs/how_to/drivers.md), and give it to the container",
        )


def device_finding(target: Device) -> Finding:
    """Run a kernel on a device; where it fails on PoCL, with an empty cache too."""
    subject, command = f"device {target.index}", (*PROBE, target.index)
    outcome = run_child(command).removesuffix(f"; {ASK_DOCTOR}")
    if not outcome:
        return Finding(subject, True, f"{target.name} builds and runs a kernel")
    if target.platform == POCL:
        with tempfile.TemporaryDirectory() as empty:
            fails = run_child(command, POCL_CACHE_DIR=empty)
        if not fails:
            return Finding(
                subject, False,
                f"a kernel failed on {target.name} ({outcome}), but not with an"
                f" empty cache: {pocl_cache()} is corrupt, or mounted noexec",
                "remove that folder, which PoCL fills again; or set POCL_CACHE_DIR"
                " to a folder elsewhere",
            )
    return Finding(
        subject, False, f"a kernel failed on {target.name}: {outcome}",
        f"update the driver ({target.platform}, {target.driver}); until then select"
        " another device with CLNET_DEVICE",
    )


# The probe, in a child process ------------------------------------------------------


def probe(index: str) -> None:
    """Build the probe kernel on a device, run it and check its result."""
    target, size, groups = device(index), 16, 64
    x = np.linspace(-0.1, 0.1, groups * size, dtype=np.float32)
    session = Session(target)
    inputs, sums = Scratch("x", x.nbytes), Scratch("sums", 4 * groups)
    bound = Bound(session)
    bound.memory(inputs).write(session, x)
    launch = Launch(
        "probes/doctor.cl", "probe", {"SIZE": size}, x.shape, (size,), (inputs, sums)
    )
    bound.launch(launch, target)()
    y = bound.memory(sums).read(session, groups, "float32")
    expected = np.tanh(x.reshape(groups, size).sum(axis=1, dtype=np.float64))
    error = float(np.abs(y - expected).max())
    if not error < 1e-5:
        raise DeviceError(
            f"{target.name} computes wrong results: off by {error:.2g}, expected < "
            "1e-05"
        )


def _probes(indices: Sequence[str]) -> int:
    """List the platforms; run the kernel on each device that is named by its index."""
    discover()
    try:
        for index in indices:
            probe(index)
    except Exception as error:  # the parent reports any failure
        print(str(error).partition("\n")[0], file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_probes(sys.argv[1:]))
