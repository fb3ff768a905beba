"""Kernels stay within their buffers: behind each lies a page that ends the process."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pyopencl as cl
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "runtimes"))

from children import CHECKOUT, run_python
from kernel_corpus import KernelCase, cases, sample, small
from oclgrind_kernels import PTX_ONLY, descriptions, execute, kernels

from clnet.opencl.device import Device
from clnet.opencl.discovery import device
from clnet.opencl.session import Session

DEVICE = device()
CL_BUFFER = cl.Buffer
SWEPT = {"host", "fused_step"}  # without kernels, and with builds of many seconds
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


def new_kernels(described: Mapping[str, Device]) -> Iterator[tuple[str, KernelCase]]:
    """Yield cases of every kernel, swept ones left out, with the name of a record."""
    seen: set[tuple[str, str]] = set()
    for name, record in described.items():
        for case in cases(record, sample):
            ran = set() if case.variant.name in SWEPT else kernels(case, record)
            if ran - seen and not ran & PTX_ONLY:
                seen |= ran
                yield name, case


def configurations(
    described: Mapping[str, Device], name: str, variant: str
) -> Iterator[tuple[str, KernelCase]]:
    """Yield a case for each configuration of a variant, or of all, on a record."""
    seen: set[object] = set()
    record, networks = described[name], small if variant else sample
    for case in cases(record, networks):
        config = (case.variant.name, *case.config.items())
        if (
            variant in ("", case.variant.name) and config not in seen
            and case.variant.name != "host" and not kernels(case, record) & PTX_ONLY
        ):
            seen.add(config)
            yield name, case


def run_cases(*chosen: str) -> None:
    """Run a case of every kernel, or the configurations of a record and variants."""
    cl.Buffer = guarded
    real = replace(DEVICE, companions=(), fine_svm=False, system_svm=False)
    described = descriptions(real)
    where = {
        operators: Session(replace(real, operator_math=operators))
        for operators in (False, True)
    }
    rows = new_kernels(described)
    if chosen:
        record, *variants = chosen
        rows = chain.from_iterable(
            configurations(described, record, variant) for variant in variants
        )
    for name, case in rows:
        print(name, case.name, dict(case.config), flush=True)
        execute(case, described[name], where[described[name].operator_math])


def check(*chosen: str) -> None:
    done = run_python(
        "-m", "tests.variants.test_guard_pages", *chosen, cwd=CHECKOUT, timeout=None
    )
    assert done.returncode == 0, f"{done.stdout[-500:]}{done.stderr[-500:]}"


@pytest.mark.unoptimised
def test_kernels_stay_within_their_buffers():
    check()


@pytest.mark.unoptimised
def test_producers_stay_within_their_buffers():
    """Their work-items have no rows of a tile."""
    check("warp group mma", "mma", "mma_chain", "mma_backward")


@pytest.mark.sweep
@pytest.mark.unoptimised
@pytest.mark.parametrize("record", descriptions(DEVICE))
def test_all_configurations_stay_within_their_buffers(record):
    check(record, "")


if __name__ == "__main__":
    run_cases(*sys.argv[1:])
