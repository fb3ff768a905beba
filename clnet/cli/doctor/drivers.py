"""The files that name OpenCL's drivers, and the libraries that they name.

Libraries are loaded in child processes, since a bad one may kill the process.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from clnet.cli.doctor.finding import Finding
from clnet.opencl.child_process import run_child

VENDORS = Path("/etc/OpenCL/vendors")
NVIDIA_DRIVER = Path("/proc/driver/nvidia")
NVIDIA_LIBRARY = "libnvidia-opencl.so.1"

_LOAD = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"


def icd_folder() -> Path:
    """Return the folder, or the file, where the loader in pyopencl's wheel looks."""
    named = os.environ.get("OCL_ICD_VENDORS")
    if named:
        file = VENDORS / named  # the loader looks there for a name without a folder
        return file if file.exists() else Path(named)
    return Path(os.environ.get("OPENCL_VENDOR_PATH") or VENDORS)


def names_no_folder() -> bool:
    """Return whether a variable keeps the loader from all drivers."""
    return bool(os.environ.get("OCL_ICD_VENDORS")) and not icd_folder().exists()


def icd_files() -> dict[Path, str]:
    """Return the library that each file of the OpenCL loader names; Linux has them."""
    if platform.system() != "Linux" or names_no_folder():
        return {}
    vendors = icd_folder()
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


def icd_findings(files: Mapping[Path, str]) -> Iterator[Finding]:
    """Load the library that each file names, and tell variables that hide all files."""
    if platform.system() != "Linux":  # Windows has a registry, macOS one driver
        return
    folder = icd_folder()
    if "OCL_ICD_FILENAMES" in os.environ:
        yield Finding(
            "OCL_ICD_FILENAMES",
            None,
            "is set, but the loader in pyopencl's wheel does not read it",
            "set OCL_ICD_VENDORS to the folder of the .icd file instead",
        )
    if names_no_folder():
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


def names_nvidia(files: Mapping[Path, str]) -> bool:
    """Return whether one of the libraries is NVIDIA's."""
    return any("nvidia" in library for library in files.values())


def nvidia_findings(files: Mapping[Path, str]) -> Iterator[Finding]:
    """Report NVIDIA's driver or OpenCL library where no file names it."""
    if platform.system() != "Linux" or names_no_folder() or names_nvidia(files):
        return
    loads = not run_child([sys.executable, "-c", _LOAD, NVIDIA_LIBRARY])
    folder = icd_folder()
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
