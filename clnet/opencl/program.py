"""Programs: kernel text and macros → a built OpenCL program.

A kernel file is plain OpenCL C. Macros become ``#define`` lines before it, and
``#include "name.h"`` lines are replaced by the file's text. The full source of a
program is thus one text, which build errors show and the tuning store hashes. Its
``#line`` directives give each line the file and the number that a compiler names.
"""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clnet.errors import ASK_DOCTOR, BuildError, InputError
from clnet.nn.activations import LEAK
from clnet.opencl.quirks import registers_option, variables_option

if TYPE_CHECKING:
    from clnet.opencl.device import Device

WARP = 32  # work-items
POLICIES = 80  # the first PTX generation with them
WARP_MMA, WARP_GROUP_MMA = 80, 90
"""Matrix units of a warp and of a warp group, by the generation of PTX of each."""
RULE_HEADER = "RULE_HEADER"  # macro: the file, in quotes, with a rule of the user's own
_SM_90A = "//sm_90a "  # prefix of instructions hidden from the compiler as comments
# An include; and the end of a branch, where an include that was left out has no #line.
_INCLUDE = re.compile(
    r'^#(?:include "([\w./]+)"|(?:else|endif)\b)[^\n]*$', re.MULTILINE
)


@cache
def kernel_directory() -> Path:
    """Return the folder of the kernel files: in the package, else in the checkout."""
    here = Path(__file__).resolve().parents[1]
    for folder in (here / "kernels", here.parent / "kernels"):
        if (folder / "include/activations.h").is_file():
            return folder
    raise BuildError(
        f"the kernel files are missing: expected a folder 'kernels' in {here} or "
        "beside it; install clnet again",
        "",
        "",
    )


@cache
def kernel_text(source: str) -> str:
    """Return a kernel file's text with its includes in place."""
    path = kernel_directory() / source
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(
            f"there is no kernel file {path}: expected one in kernels/, or an absolute "
            "path"
        ) from None

    def included(match: re.Match[str]) -> str:
        after = text.count("\n", 0, match.start()) + 2
        lines = match[0]
        if match[1] is not None:
            lines = f'#line 1 "{match[1]}"\n' + kernel_text(match[1]).rstrip("\n")
        return f'{lines}\n#line {after} "{source}"'

    return _INCLUDE.sub(included, text) if '#include "' in text else text


@cache
def source_hash(source: str) -> str:
    """Return a short hash of a kernel file's text, includes in place."""
    return hashlib.sha256(kernel_text(source).encode()).hexdigest()[:16]


def source_text(source: str, defines: Mapping[str, int | str], device: Device) -> str:
    """Return the full text of a program: macros, then the kernel file."""
    double = defines.get("REAL") == "double"
    shared: dict[str, int | str] = {
        # The operator-only forms are for float32.
        "OPERATOR_MATH": int(device.operator_math and not double),
        "RATIONAL_TANH": 0,  # unless the launch has it
        "LEAK": str(LEAK) if double else f"{LEAK}f",
        "PTX": inline_ptx(device),
    }
    lines = [
        f"#define {name} {value}" for name, value in {**shared, **defines}.items()
    ]
    if double:
        lines.insert(0, "#pragma OPENCL EXTENSION cl_khr_fp64 : enable")
    text = kernel_text(source)
    if RULE_HEADER in defines:
        header = str(defines[RULE_HEADER])
        own = f"#line 1 {header}\n{kernel_text(header[1:-1])}"
        text = text.replace(f"#include {RULE_HEADER}\n", own)
    return "\n".join([*lines, f'#line 1 "{source}"', text])


def inline_ptx(device: Device) -> int:
    """Return the generation of PTX that kernels may inline: 90 for 9.0; 0: none."""
    major, minor = device.compute_capability or (0, 0)
    return 10 * major + minor


def warp_team(device: Device) -> int:
    """Return the work-items that may share a row's sum by shuffles: a warp, or one."""
    return WARP if inline_ptx(device) else 1


def kept_cache(device: Device, share: float) -> int:
    """Return the MiB that are a share of the cache; 0 without policies."""
    if inline_ptx(device) < POLICIES:
        return 0
    return int(share * device.rates.cache_bytes) >> 20


def cached_percent(kept: int, size: int) -> int:
    """Return the percent of `size` bytes that ``kept`` MiB are."""
    return 100 * (kept << 20) // size


def matrix_units(device: Device) -> tuple[int, ...]:
    """Return the kinds of matrix units that kernels can use, the oldest first."""
    generation = inline_ptx(device)
    if generation == WARP_GROUP_MMA:  # no later generation has them
        return WARP_MMA, WARP_GROUP_MMA
    return (WARP_MMA,) if generation >= WARP_MMA else ()


def build(
    context: Any, device: Device, text: str, source: str, registers: int | None = None
) -> Any:
    """Return a `pyopencl.Program` built for one device of a context.

    `registers` is the limit of `Launch`.
    """
    import pyopencl as cl

    options = [
        *device.build_options, *variables_option(device, os.environ),
        *registers_option(device, registers),
    ]
    if "barrier(" in text:
        options += device.barrier_build_options
    devices = [device.handle]
    try:
        # Users need no remarks of compilers on successful builds. The filter stays:
        # other threads may change the filters of the process meanwhile.
        warnings.simplefilter("ignore", cl.CompilerWarning)
        program = cl.Program(context, text)
        # Not with the cache that pyopencl has where no driver's own is known: a killed
        # process leaves its lock, for which each build waits a minute, and errors other
        # than of the build become a KeyError (2026.1).
        program.build(options, devices=devices, cache_dir=False)
        if _SM_90A in text and WARP_GROUP_MMA in matrix_units(device):
            built = dict(zip(program.devices, program.binaries, strict=True))
            binary = retargeted(built[device.handle])
            program = cl.Program(context, devices, [binary]).build(options)
        return program
    except cl.Error as error:
        raise BuildError(
            f"kernel {source} does not build on {device.name}: "
            f"{_first_error(str(error))}",
            str(error),
            text,
        ) from error


def retargeted(binary: bytes) -> bytes:
    """Return a program's PTX with the target changed from sm_90 to sm_90a.

    OpenCL's compiler emits PTX for sm_90, which lacks the instructions of a warp
    group's matrix units: kernels hide them as comments, uncommented here.
    """
    text = binary.rstrip(b"\0").replace(_SM_90A.encode(), b"")
    return text.replace(b".target sm_90,", b".target sm_90a,")


def _first_error(log: str) -> str:
    """Return the log's first line with the word error, or where to look without one."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next(
        (line for line in lines if "error" in line.lower()),
        f"the compiler wrote no error; {ASK_DOCTOR}",
    )
