"""Probes: capabilities that only a launch can find.

The tuning store keeps the answers, by the device's name and driver. A probe that fails
or times out has no answer: this process does without the capability, and the next one
probes again. On an untested runtime, a probe runs in a child process first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from clnet.errors import BuildError, DeviceError, warn
from clnet.ir.op import Value
from clnet.opencl.bound import Bound
from clnet.opencl.child_trial import survives
from clnet.opencl.launch import Launch, Scalar, Scratch, ZeroCopyOutput
from clnet.opencl.memory import staging_array
from clnet.opencl.program import source_hash
from clnet.opencl.session import Session
from clnet.opencl.store import Store

if TYPE_CHECKING:
    from clnet.opencl.device import Device

GROUP = 1024  # work-items; the largest work-group of any kernel
MAX_POLLS = 20_000  # some milliseconds; concurrent groups start within microseconds
WORDS = 100  # of pinned memory
LAUNCHES = 5  # all must agree

Probe = Callable[["Device"], "bool | None"]
"""Makes its launches in a new context; returns the answer, or None."""


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
    return _answer(device, "forward_progress", _groups_concurrent)


@functools.cache
def mapped_host_memory(device: Device) -> bool:
    """Return whether kernels can store to mapped host memory at its host address.

    OpenCL does not promise it. The host must see the stores of a small kernel
    (``mapped_host_memory.cl``).
    """
    return _answer(device, "mapped_host_memory", _stores_seen)


def _answer(device: Device, capability: str, probe: Probe) -> bool:
    """Return a probe's answer, from the store if it is there; no answer is False."""
    import pyopencl as cl

    store = Store(device)
    key = f"{capability} {source_hash(f'probes/{capability}.cl')}"
    answer = store.fact(key)
    if answer is not None:
        return answer
    if device.untested and not survives(store, key, probe, device):
        warn(
            f"{device.name} is used without {capability}: its probe ended a child "
            "process"
        )
        return False
    try:
        answer = probe(device)
    except (cl.Error, BuildError, DeviceError):
        return False
    if answer is not None:
        store.put_fact(key, answer)
    return bool(answer)


def _groups_concurrent(device: Device) -> bool | None:
    """Return True if all launches' groups saw each other, else None."""
    group, groups = min(GROUP, device.largest_group), device.compute_units
    counts = Scratch("counts", 3 * np.dtype(np.int32).itemsize)
    launch = Launch(
        "probes/forward_progress.cl", "forward_progress",
        {"GROUP": group, "LOCAL": device.local_memory // 4 * 4, "MAX_POLLS": MAX_POLLS},
        (groups * group,), (group,), (counts,),
    )
    bound = Bound(Session(device))
    met = all(_groups_met(bound, launch, counts) for _ in range(LAUNCHES))
    return True if met else None


def _groups_met(bound: Bound, launch: Launch, counts: Scratch) -> bool:
    """Return whether all groups of one launch saw each other."""
    session, memory = bound.session, bound.memory(counts)
    memory.write(session, np.zeros(3, np.int32))
    bound.launch(launch, session.device)()
    groups = launch.global_size[0] // launch.local_size[0]
    return bool(memory.read(session, 3, "int32").tolist() == [groups, groups, 0])


def _stores_seen(device: Device) -> bool:
    """Return whether the host sees the stores of launches to its memory."""
    output, bound = ZeroCopyOutput(Value("words", WORDS, WORDS)), Bound(Session(device))
    words = staging_array(bound.session, (WORDS,), "float32")
    run = bound.launch(
        Launch(
            "probes/mapped_host_memory.cl", "mapped_host_memory", {}, (WORDS,), (1,),
            (Scalar("first"), output),
        ), device,
    )
    bound.set_argument(output.name, np.uint64(words.ctypes.data))
    for first in range(1, LAUNCHES + 1):
        bound.set(first=first)
        run()
        bound.session.finish()
        if not np.array_equal(words, first + np.arange(WORDS)):
            return False
    return True
