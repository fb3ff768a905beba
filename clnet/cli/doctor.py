"""``clnet doctor``: examine the OpenCL set-up, name faults and their cures.

Drivers are loaded in child processes, since a bad one may kill the process.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import struct
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from clnet.cli import json_output
from clnet.errors import ASK_DOCTOR, WIDTH, ClnetError, DeviceError, counted
from clnet.opencl.child_process import run_child
from clnet.opencl.discovery import GET_PLATFORM, NO_PLATFORM, device, discover
from clnet.opencl.program import build, source_text
from clnet.opencl.quirks import LINKER, NVIDIA, POCL
from clnet.opencl.session import Session

if TYPE_CHECKING:
    from clnet.opencl.device import Device

VENDORS = Path("/etc/OpenCL/vendors")
DEV = Path("/dev")
GPU_NODES = ("dri/renderD*", "kfd")  # that drivers open, below DEV
NVIDIA_DRIVER = Path("/proc/driver/nvidia")
NVIDIA_LIBRARY = "libnvidia-opencl.so.1"

_LOAD = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
_PROBE = (sys.executable, "-m", "clnet.cli.doctor", "--probe")


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes
    ----------
    subject : str
        The thing that was checked.
    ok : bool or None
        None: neither good nor bad, but worth knowing.
    found : str
        The result, and the cause of a fault.
    cure : str
        The action to take; empty if none is needed.
    """

    subject: str
    ok: bool | None
    found: str
    cure: str = ""


def examine() -> Iterator[Finding]:
    """Examine the set-up, from the files that name drivers to a kernel on each device.

    Yields
    ------
    Finding
        The result of each check. A device that hangs takes `run_child`'s time.
    """
    files = _icd_files()
    yield from _icd_findings(files)
    yield from _nvidia_findings(files)
    yield from _cache_findings()
    outcome = run_child(_PROBE)
    if outcome:
        yield Finding(
            "platforms",
            False,
            f"the query of OpenCL's platforms failed: {outcome}",
            "move the .icd files away one by one to find the faulty driver, then update"
            " or remove it",
        )
        return
    yield from _platform_findings(files)
    yield from _gpu_findings(discover().devices)
    for main in discover().devices:
        for one in main.places:
            yield _device_finding(one)


def report(as_json: bool = False) -> int:
    """Print every finding, `WIDTH` columns wide unless a word is longer.

    Parameters
    ----------
    as_json : bool
        Whether to print them as JSON.

    Returns
    -------
    int
        1 if something is wrong, else 0: the exit status of ``clnet doctor``.
    """
    if as_json:
        findings = list(examine())
        bad = sum(finding.ok is False for finding in findings)
        json_output.show({"findings": [*map(asdict, findings)], "faults": bad})
        return 1 if bad else 0
    marks = {True: "ok", False: "BAD", None: "note"}
    bad = 0
    for finding in examine():
        bad += finding.ok is False
        text = f"{finding.subject}: {finding.found}"
        print(_wrapped(f"{marks[finding.ok]:4}  ", text))
        if finding.cure:
            print(_wrapped("      -> ", finding.cure))
    print(f"\n{counted(bad, 'thing')} to cure." if bad else "\nAll is well.")
    return 1 if bad else 0


def _wrapped(head: str, text: str) -> str:
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_on_hyphens=False,
        break_long_words=False,
    )


# The files that name drivers ------------------------------------------------------


def _icd_folder() -> Path:
    """Return the folder, or the file, where the loader in pyopencl's wheel looks."""
    named = os.environ.get("OCL_ICD_VENDORS")
    if named:
        file = VENDORS / named  # the loader looks there for a name without a folder
        return file if file.exists() else Path(named)
    return Path(os.environ.get("OPENCL_VENDOR_PATH") or VENDORS)


def _names_no_folder() -> bool:
    """Return whether a variable keeps the loader from all drivers."""
    return bool(os.environ.get("OCL_ICD_VENDORS")) and not _icd_folder().exists()


def _icd_files() -> dict[Path, str]:
    """Return the library that each file of the OpenCL loader names; Linux has them."""
    if platform.system() != "Linux" or _names_no_folder():
        return {}
    vendors = _icd_folder()
    if vendors.is_file():  # the loader also accepts one file or library
        files = [vendors]
    else:
        files = [file for folder in (vendors, _wheel()) for file in _icds(folder)]
    return {file: _library(file) for file in files}


def _library(file: Path) -> str:
    """Return the library that a file names, or the file if it is the library."""
    if file.suffix != ".icd":
        return str(file)
    try:
        return file.read_text(errors="replace").strip()
    except OSError:  # reported as a library that does not load
        return ""


def _icds(folder: Path | None) -> list[Path]:
    return sorted(folder.glob("*.icd")) if folder else []


def _wheel() -> Path | None:
    """Return the other folder that the loader in pyopencl's wheel searches."""
    spec = importlib.util.find_spec("pyopencl")
    return Path(spec.origin).parent / ".libs" if spec and spec.origin else None


def _icd_findings(files: Mapping[Path, str]) -> Iterator[Finding]:
    if platform.system() != "Linux":  # Windows has a registry, macOS one driver
        return
    folder = _icd_folder()
    if "OCL_ICD_FILENAMES" in os.environ:
        yield Finding(
            "OCL_ICD_FILENAMES",
            None,
            "is set, but the loader in pyopencl's wheel does not read it",
            "set OCL_ICD_VENDORS to the folder of the .icd file instead",
        )
    if _names_no_folder():
        yield Finding(
            "OCL_ICD_VENDORS",
            False,
            f"is {folder}, which does not exist, so no driver is found",
            "unset it, or set it to a folder of .icd files",
        )
    elif not files:
        yield Finding(
            "drivers",
            False,
            f"there is no .icd file in {folder} or beside pyopencl",
            "pip install 'clnet[cpu]' (Linux, x86-64), or install PoCL or the driver"
            " of a GPU",
        )
    for file, library in files.items():
        sibling = file.parent / library
        outcome = run_child(
            [sys.executable, "-c", _LOAD, str(sibling if sibling.exists() else library)]
        )
        if outcome:
            yield Finding(
                str(file),
                False,
                f"names {library or 'nothing'}, which does not load: {outcome}",
                "install this driver, or the library that the reason names; or remove"
                " the file",
            )
        else:
            yield Finding(str(file), True, f"names {library}, which loads")


def _names_nvidia(files: Mapping[Path, str]) -> bool:
    return any("nvidia" in library for library in files.values())


def _nvidia_findings(files: Mapping[Path, str]) -> Iterator[Finding]:
    if platform.system() != "Linux" or _names_no_folder() or _names_nvidia(files):
        return
    loads = not run_child([sys.executable, "-c", _LOAD, NVIDIA_LIBRARY])
    folder = _icd_folder()
    if loads:
        yield Finding(
            "NVIDIA",
            False,
            f"{NVIDIA_LIBRARY} is installed, but no .icd file names it",
            "unset OCL_ICD_VENDORS, which names one driver alone"
            if folder.is_file()
            else f"make the folder {folder}, and write that name into"
            f" {folder / 'nvidia.icd'}",
        )
    elif NVIDIA_DRIVER.exists() or shutil.which("nvidia-smi"):
        yield Finding(
            "NVIDIA",
            False,
            f"the driver is installed, but not its OpenCL library {NVIDIA_LIBRARY}",
            "install it (libnvidia-compute or nvidia-opencl-icd); for a container, set"
            " NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        )


# Caches ---------------------------------------------------------------------------


def _pocl_cache() -> Path:
    """Return the folder of PoCL's compiled programs."""
    folder = os.environ.get("POCL_CACHE_DIR")
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) if folder else Path(user) / "pocl" / "kcache"


def _cache_findings() -> Iterator[Finding]:
    from clnet.opencl.store import cache_directory

    cache = _pocl_cache()
    yield _folder_finding(
        "PoCL's cache",
        cache,
        "so PoCL shows no devices",
        "make it writable, or set POCL_CACHE_DIR to a folder that is",
    )
    if _is_noexec(cache):
        yield Finding(
            "PoCL's cache",
            False,
            f"{cache} is on a file system that is mounted noexec, so the kernels in it"
            " cannot be loaded, and PoCL ends the process",
            "mount it with exec (docker run --tmpfs FOLDER:exec), or set POCL_CACHE_DIR"
            " to a folder elsewhere",
        )
    damaged = [path for path in cache.rglob("*") if _is_damaged(path)]
    if damaged:
        yield Finding(
            "PoCL's cache",
            False,
            f"{len(damaged)} of its files are unreadable, truncated or foreign, the"
            f" first is {damaged[0]}; kernels that need them fail or kill the process",
            f"remove the folder {cache}; PoCL fills it again",
        )
    yield _folder_finding(
        "clnet's cache",
        cache_directory(),
        "so measured times are lost",
        "make it writable, or set CLNET_CACHE_DIR to a folder that is",
    )


def _is_damaged(path: Path) -> bool:
    """Return whether a file of PoCL's cache contradicts its suffix."""
    if path.suffix not in (".bc", ".so") or sys.platform != "linux":
        return False
    try:
        with path.open("rb") as file:
            head, size = file.read(64), os.fstat(file.fileno()).st_size
    except OSError:
        return True
    if path.suffix == ".bc":
        return not head.startswith(b"BC\xc0\xde")
    if len(head) < 64 or not head.startswith(b"\x7fELF\x02\x01"):
        return True
    # A linker writes the section header table last (64-bit ELF: its offset at byte 40,
    # the size and number of its entries at 58), so a truncated file ends before it.
    (offset,) = struct.unpack_from("<Q", head, 40)
    width, count = struct.unpack_from("<HH", head, 58)
    return bool(size < offset + width * count)


def _existing(folder: Path) -> Path:
    """Return a folder, or its nearest parent that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _is_noexec(folder: Path) -> bool:
    """Return whether a folder's file system lets no code in it run."""
    if sys.platform != "linux":
        return False
    return bool(os.statvfs(_existing(folder)).f_flag & os.ST_NOEXEC)


def _folder_finding(subject: str, folder: Path, effect: str, cure: str) -> Finding:
    """Try to write in a folder, or in its nearest existing parent."""
    existing = _existing(folder)
    try:
        with tempfile.TemporaryFile(dir=existing):
            return Finding(subject, True, f"{folder} is writable")
    except OSError as error:
        reason = error.strerror or str(error)
        return Finding(
            subject, False, f"{folder} is not writable ({reason}), {effect}", cure
        )


# Platforms and devices ------------------------------------------------------------


def _platform_findings(files: Mapping[Path, str]) -> Iterator[Finding]:
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
    if _names_nvidia(files) and all(d.platform != NVIDIA for d in found.devices):
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
    if _names_no_folder():
        return "unset OCL_ICD_VENDORS"
    if files:
        return (
            "fix the faults above; a driver that loads but finds no device of its own"
            " shows no platform"
        )
    return GET_PLATFORM


def _gpu_findings(devices: Sequence[Device]) -> Iterator[Finding]:
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


def _device_finding(one: Device) -> Finding:
    subject = f"device {one.index}"
    command = (*_PROBE, one.index)
    outcome = run_child(command)
    if not outcome:
        return Finding(subject, True, f"{one.name} builds and runs a kernel")
    if one.platform == POCL:
        with tempfile.TemporaryDirectory() as empty:
            if not run_child(command, POCL_CACHE_DIR=empty):
                return Finding(
                    subject,
                    False,
                    f"a kernel failed on {one.name} ({outcome}), but not with an"
                    f" empty cache: {_pocl_cache()} is corrupt, or mounted noexec",
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


def probe(index: str) -> None:
    """Build the probe kernel on a device, run it and check its result.

    Parameters
    ----------
    index : str
        As in `Device.index`.

    Raises
    ------
    DeviceError
        If it does not build or run, or its result is wrong.
    """
    import pyopencl as cl

    one = device(index)
    size, groups = 16, 64
    x = np.linspace(-0.1, 0.1, groups * size, dtype=np.float32)
    y = np.zeros(groups, dtype=np.float32)
    session = Session(one)
    context, queue = session.context, session.queue
    flags = cl.mem_flags
    source = cl.Buffer(context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=x)
    target = cl.Buffer(context, flags.WRITE_ONLY, y.nbytes)
    text = source_text("probes/doctor.cl", {"SIZE": size}, one)
    kernel = build(context, one, text, "probes/doctor.cl").probe
    kernel(queue, x.shape, (size,), source, target)
    cl.enqueue_copy(queue, y, target)
    expected = np.tanh(x.reshape(groups, size).sum(axis=1, dtype=np.float64))
    error = float(np.abs(y - expected).max())
    if not error < 1e-5:
        raise DeviceError(
            f"{one.name} computes wrong results: off by {error:.2g}, expected < 1e-05"
        )


def _main(arguments: Sequence[str]) -> int:
    """List the platforms with ``--probe``; try one device with ``--probe INDEX``."""
    discover()
    try:
        for index in arguments[1:]:
            probe(index)
    except Exception as error:  # the parent reports any failure
        print(str(error).partition("\n")[0], file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
