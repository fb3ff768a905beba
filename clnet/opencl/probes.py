"""Capabilities that only a probe kernel can tell.

The tuning store keeps the answers, by the device's name and driver. A probe that fails
or times out gives none: this process does without the capability, the next asks again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from clnet.errors import BuildError, DeviceError
from clnet.opencl.device import Device
from clnet.opencl.memory import staging
from clnet.opencl.program import build, source_hash, source_text
from clnet.opencl.session import Session
from clnet.opencl.store import Store

GROUP = 1024  # work-items: no kernel has more
MAX_POLLS = 20_000  # some milliseconds, where the last group has long begun
WORDS = 100  # of pinned memory
LAUNCHES = 5  # which must all agree


def probed(device: Device) -> Device:
    """Return the record with the capabilities that it leaves open."""
    if device.emulated:
        return device
    if device.forward_progress is None:
        device = replace(device, forward_progress=forward_progress(device))
    if device.mapped_host_memory is None:
        device = replace(device, mapped_host_memory=mapped_host_memory(device))
    return device


@functools.cache
def forward_progress(device: Device) -> bool:
    """Return whether as many groups as there are compute units run concurrently.

    Each has as many work-items and as much local memory as a kernel may have, so that a
    unit has room for no second one. The groups of one small kernel wait for each other,
    with a bound (``forward_progress.cl``): a launch that times out may have met other
    work on the device, so that only a yes is an answer.
    """
    group = min(GROUP, device.largest_group)
    defines = {
        "GROUP": group, "LOCAL": device.local_memory // 4 * 4, "MAX_POLLS": MAX_POLLS
    }

    def probe(session: Session, program: Any) -> bool | None:
        kernel = program.forward_progress
        meet = all(
            _met(session.queue, kernel, device.compute_units, group)
            for _ in range(LAUNCHES)
        )
        return True if meet else None

    return _asked(device, "forward_progress", defines, probe)


@functools.cache
def mapped_host_memory(device: Device) -> bool:
    """Return whether kernels write to the host's pinned memory at its own address.

    OpenCL does not promise it. The host must see what a small kernel has written
    (``mapped_host_memory.cl``).
    """
    return _asked(device, "mapped_host_memory", {}, _seen)


def _asked(
    device: Device,
    capability: str,
    defines: Mapping[str, int | str],
    probe: Callable[[Session, Any], bool | None],
) -> bool:
    """Return a probe's answer, the remembered one if there is one; none is a no.

    Parameters
    ----------
    device : Device
        Probed in a context of its own.
    capability : str
        Stem of the kernel's file; with the file's hash the answer's name in the store.
    defines : mapping
        The kernel's macros.
    probe : callable
        Returns the answer, or None if there is none, from the session and the built
        program.
    """
    import pyopencl as cl

    store, source = Store(device), f"probes/{capability}.cl"
    key = f"{capability} {source_hash(source)}"
    found = store.fact(key)
    if found is not None:
        return found
    try:
        session = Session(device)
        text = source_text(source, defines, device)
        found = probe(session, build(session.context, device, text, source))
    except (cl.Error, BuildError, DeviceError):
        return False
    if found is not None:
        store.put_fact(key, found)
    return bool(found)


def _met(queue: Any, kernel: Any, groups: int, group: int) -> bool:
    """Return whether all groups of one launch saw each other."""
    import pyopencl as cl

    counts = np.zeros(3, np.int32)
    flags = cl.mem_flags
    buffer = cl.Buffer(
        queue.context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=counts
    )
    kernel(queue, (groups * group,), (group,), buffer)
    cl.enqueue_copy(queue, counts, buffer, is_blocking=True)
    return counts.tolist() == [groups, groups, 0]


def _seen(session: Session, program: Any) -> bool:
    """Return whether the host sees what launches write to its memory."""
    kernel, words = program.mapped_host_memory, staging(session, (WORDS,), "float32")
    for first in range(1, LAUNCHES + 1):
        kernel(
            session.queue, (WORDS,), None, np.int32(first),
            np.uint64(words.ctypes.data),
        )
        session.finish()
        if not np.array_equal(words, first + np.arange(WORDS)):
            return False
    return True
