"""The processor that PoCL compiles for, on one that its LLVM does not know.

PoCL hands LLVM's name of the processor to clang as ``-target-cpu``. LLVM calls each
processor newer than itself "generic", a name that clang refuses on x86-64: no kernel
builds. LLVM 14 calls AMD's Zen 4 by the name of Zen 3, which lacks AVX-512. PoCL
chooses its library by the machine's features, so that it takes vectors of 64 bytes in
registers; kernels pass them in memory: numbers are wrong, or the process ends.

PoCL 5.0 and later read another name from a variable. Earlier ones read none, so the
name is replaced in PoCL's own record of the device, where it follows the target triple
(PoCL 1.8 to 4.0, ``struct _cl_device_id`` in ``pocl_cl.h``).
"""

from __future__ import annotations

import ctypes
import os
import struct
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

VARIABLE = "POCL_LLVM_CPU_NAME"  # as PoCL 5.0 calls it
UNKNOWN = "generic"
WITHOUT_AVX512 = {"znver1", "znver2", "znver3"}  # Zen 4 and later have it
RECORD = 4096  # bytes of PoCL's record in which the name is looked for
LONGEST = 64  # bytes of a name
TRIPLE = b"x86_64-"
# Names that LLVM has known since 2015, and the features that Linux lists for each. The
# functions of PoCL's library are inlined only where the name has all their features.
HASWELL = {"avx2", "bmi1", "bmi2", "fma", "f16c", "abm", "movbe"}
SKYLAKE = HASWELL | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
NAMES = (("skylake-avx512", SKYLAKE), ("haswell", HASWELL), ("x86-64", set[str]()))

_replaced: set[int] = set()  # addresses of the names that were put in place


def is_unknown(handle: Any) -> bool:
    """Return whether PoCL's LLVM did not know the processor of a device."""
    entry = _find(handle)
    return entry is not None and (entry[1] in _replaced or _is_wrong(entry[2]))


@cache
def best_name() -> str:
    """Return the name of the best processor whose features this one has."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    return next(name for name, features in NAMES if features <= set(flags))


def set_name(handle: Any, name: str) -> None:
    """Have PoCL compile for another processor, if it does not know the device's."""
    entry = _find(handle)
    if entry is None or not _is_wrong(entry[2]):
        return
    duplicate = ctypes.CDLL(None).strdup  # memory that PoCL may free
    duplicate.restype = ctypes.c_void_p
    address = duplicate(name.encode())
    if address:
        _replaced.add(address)
        ctypes.c_void_p.from_address(entry[0]).value = address


def _is_wrong(name: str) -> bool:
    """Return whether the name is none of clang's, or lacks the machine's AVX-512."""
    return name == UNKNOWN or (name in WITHOUT_AVX512 and best_name() == NAMES[0][0])


def _find(handle: Any) -> tuple[int, int, str] | None:
    """Return where the name's address stands, the address, and the name; else None."""
    try:
        # Reading an address without memory is an error here, not a fault.
        memory = os.open("/proc/self/mem", os.O_RDONLY)
    except OSError:
        return None
    try:
        record = os.pread(memory, RECORD, handle.int_ptr)
        words = struct.unpack_from(f"{len(record) // 8}Q", record)
        for number, (triple, name) in enumerate(pairwise(words)):
            if _read(memory, triple, len(TRIPLE)) == TRIPLE:
                text = _read(memory, name, LONGEST).split(b"\0")[0]
                return handle.int_ptr + 8 * (number + 1), name, text.decode("ascii")
    except (AttributeError, OSError, OverflowError, ValueError):
        pass  # a record without a device, no memory, no text
    finally:
        os.close(memory)
    return None


def _read(memory: int, address: int, size: int) -> bytes:
    """Return up to so many bytes at an address; none where there is no memory."""
    try:
        return os.pread(memory, size, address)
    except (OSError, OverflowError):
        return b""
