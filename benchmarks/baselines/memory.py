"""Memory bandwidth: kernels that move as many bytes as a case, and compute nothing."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from clnet.opencl.device import Device
from clnet.opencl.launch import Launch
from clnet.opencl.memory import Memory
from clnet.opencl.rate_probes import GROUP, ITEMS, UNROLL, enqueuer, event_seconds
from clnet.opencl.session import Session, session
from clnet.variants.base import team_group

from ..candidates import Candidate, Prepared, Timer, back_to_back
from ..cases.training import Workload

SHARES = 4  # work-items a core
WIDTHS = {"cpu": 8, "gpu": 4}  # numbers of a vector


@dataclass(frozen=True)
class MemoryKernel(Candidate):
    """A kernel that reads a case's bytes, or copies half of them.

    Attributes
    ----------
    name : {"read", "copy"}
        Of the kernel.
    """

    name: str

    def prepare(self, case: Workload, device: Device) -> Prepared:
        """Return its launches, with timers for data on the device."""
        size = int(case.bytes)

        def clock() -> Timer:
            run = _launcher(self.name, size, session(device, profiling=True))

            def timer(repeats: int) -> float:
                return statistics.median(event_seconds(run()) for _ in range(repeats))

            return timer

        def stream() -> Timer:
            plain = session(device)
            return back_to_back(_launcher(self.name, size, plain), plain.queue.finish)

        return Prepared(
            lambda: 0.0, {"stream": stream, "device": clock, "busy": clock},
            threads=device.compute_units if device.type == "cpu" else None,
        )


def _launcher(name: str, size: int, target: Session) -> Callable[[], Any]:
    """Return a function that enqueues the kernel for about a number of bytes."""
    device = target.device
    cpu = device.type == "cpu"
    width = WIDTHS["cpu" if cpu else "gpu"]
    vector = width * np.dtype(np.float32).itemsize
    group = 1 if cpu else team_group(GROUP, device)
    if name == "copy":
        items = max(1, size // (2 * vector * group)) * group
        kernel, sizes = "copy", (items * vector, items * vector)
        numbers: tuple[Any, ...] = ()
    else:
        items = device.compute_units * (SHARES if cpu else ITEMS)
        count = max(1, size // (items * vector * UNROLL)) * UNROLL
        kernel = "read_shares" if cpu else "read_coalesced"
        sizes = (items * count * vector, items * vector)
        numbers = (np.int32(count),)
    launch = Launch(
        "probes/bandwidth.cl", kernel,
        {"REAL": "float", "WIDTH": width, "UNROLL": UNROLL},
        (items,), (group,), (),
    )
    data, result = (Memory(target, size) for size in sizes)
    return enqueuer(target, launch, data, *numbers, result)
