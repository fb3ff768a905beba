"""Probes: capabilities that only a launch can find.

The tuning store keeps the answers, by the device's name and driver. A probe that fails
or times out has no answer: this process does without the capability, and the next one
probes again. On an untested runtime, a probe runs in a child process first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from clnet.errors import BuildError, DeviceError, warn
from clnet.opencl.child_trial import survives
from clnet.opencl.memory import staging_array
from clnet.opencl.program import build, source_hash, source_text
from clnet.opencl.session import Session
from clnet.opencl.store import Store

if TYPE_CHECKING:
    from clnet.opencl.device import Device

GROUP = 1024  # work-items; the largest work-group of any kernel
MAX_POLLS = 20_000  # some milliseconds; concurrent groups start within microseconds
WORDS = 100  # of pinned memory
LAUNCHES = 5  # all must agree

Probe = Callable[[Session, Any], "bool | None"]
"""Takes a session and the built program; returns the answer, or None."""


def probed(device: Device) -> Device:
    """Return the record with its capabilities of None probed."""
    if device.emulated:
        return device
    if device.forward_progress is None:
        device = replace(device, forward_progress=forward_progress(device))
    if device.mapped_host_memory is None:
        device = replace(device, mapped_host_memory=mapped_host_memory(device))
    return device


@functools.cache
def forward_progress(device: Device) -> bool:
    """Return whether as many work-groups as compute units run concurrently.

    Each group takes the maximum of work-items and local memory, so that a compute unit
    holds one. The groups of one small kernel wait for each other, with a bound
    (``forward_progress.cl``). A launch that times out may have met another program's
    work: only True is an answer.
    """
    defines = {
        "GROUP": _group(device), "LOCAL": device.local_memory // 4 * 4,
        "MAX_POLLS": MAX_POLLS,
    }
    return _answer(device, "forward_progress", defines, _groups_concurrent)


@functools.cache
def mapped_host_memory(device: Device) -> bool:
    """Return whether kernels can store to mapped host memory at its host address.

    OpenCL does not promise it. The host must see the stores of a small kernel
    (``mapped_host_memory.cl``).
    """
    return _answer(device, "mapped_host_memory", {}, _stores_seen)


def _answer(
    device: Device,
    capability: str,
    defines: Mapping[str, int | str],
    probe: Probe,
) -> bool:
    """Return a probe's answer, from the store if it is there; no answer is False."""
    import pyopencl as cl

    store, source = Store(device), f"probes/{capability}.cl"
    key = f"{capability} {source_hash(source)}"
    answer = store.fact(key)
    if answer is not None:
        return answer
    launch = device, source, defines, probe
    if device.untested and not survives(store, key, _launched, *launch):
        warn(
            f"{device.name} is used without {capability}: its probe ended a child "
            "process"
        )
        return False
    try:
        answer = _launched(*launch)
    except (cl.Error, BuildError, DeviceError):
        return False
    if answer is not None:
        store.put_fact(key, answer)
    return bool(answer)


def _launched(
    device: Device, source: str, defines: Mapping[str, int | str], probe: Probe
) -> bool | None:
    """Return the answer of a probe with a kernel file, in a new context."""
    session = Session(device)
    text = source_text(source, defines, device)
    return probe(session, build(session.context, device, text, source))


def _group(device: Device) -> int:
    return min(GROUP, device.largest_group)


def _groups_concurrent(session: Session, program: Any) -> bool | None:
    """Return True if all launches' groups saw each other, else None."""
    kernel, device = program.forward_progress, session.device
    concurrent = all(
        _groups_met(session.queue, kernel, device.compute_units, _group(device))
        for _ in range(LAUNCHES)
    )
    return True if concurrent else None


def _groups_met(queue: Any, kernel: Any, groups: int, group: int) -> bool:
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


def _stores_seen(session: Session, program: Any) -> bool:
    """Return whether the host sees the stores of launches to its memory."""
    kernel = program.mapped_host_memory
    words = staging_array(session, (WORDS,), "float32")
    for first in range(1, LAUNCHES + 1):
        kernel(
            session.queue, (WORDS,), None, np.int32(first),
            np.uint64(words.ctypes.data),
        )
        session.finish()
        if not np.array_equal(words, first + np.arange(WORDS)):
            return False
    return True
