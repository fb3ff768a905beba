"""Kernels stay within their buffers: behind each lies a page that ends the process."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyopencl as cl
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "runtimes"))

from kernel_corpus import cases
from oclgrind_kernels import descriptions, execute

from clnet.opencl.discovery import device
from clnet.opencl.session import Session

DEVICE = device()
CL_BUFFER = cl.Buffer
pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="it has no mprotect"),
    pytest.mark.skipif(DEVICE.type != "cpu", reason="it copies buffers to its memory"),
]


def guarded(context: cl.Context, flags: int, size: int) -> cl.Buffer:
    """Return a buffer in host memory that ends where an inaccessible page begins."""
    guard = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, guard + mmap.PAGESIZE)
    at = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + guard
    none = ctypes.c_int(0)  # PROT_NONE
    libc = ctypes.CDLL(None, use_errno=True)
    assert not libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(mmap.PAGESIZE), none)
    array = np.frombuffer(memory, np.uint8, size, guard - size)
    return CL_BUFFER(context, flags | cl.mem_flags.USE_HOST_PTR, hostbuf=array)


def run_cases(record: str, variant: str) -> None:
    """Run the configurations of a variant, as described for a record of a device."""
    cl.Buffer = guarded
    real = replace(DEVICE, companions=(), fine_svm=False, system_svm=False)
    described = descriptions(real)
    where = Session(replace(real, operator_math=described[record].operator_math))
    ran: set[object] = set()
    for case in cases(described[record]):
        config = tuple(case.config.items())
        if case.variant.name == variant and config not in ran:
            ran.add(config)
            print(case.name, dict(case.config), flush=True)
            execute(case, described[record], where)


@pytest.mark.unoptimised
@pytest.mark.parametrize("variant", ["mma", "mma_chain", "mma_backward"])
def test_kernels_stay_within_their_buffers(variant):
    """The producer's work-items have no rows of a tile."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.variants.test_guard_pages", "warp group mma",
         variant],
        check=False, capture_output=True, text=True, cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, f"{done.stdout[-500:]}{done.stderr[-500:]}"


if __name__ == "__main__":
    run_cases(*sys.argv[1:])
