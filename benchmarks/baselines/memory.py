"""Memory bandwidth: kernels that move as many bytes as a case, and compute nothing."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from clnet.opencl.bound import Bound
from clnet.opencl.commands import seconds_of
from clnet.opencl.device import Device
from clnet.opencl.launch import Launch, Scratch
from clnet.opencl.rate_probes import GROUP, ITEMS, UNROLL
from clnet.opencl.session import Session, session
from clnet.variants.base import team_group

from ..candidates import Candidate, Prepared, Timer, back_to_back
from ..cases.training import Workload

SHARES = 4  # work-items a core
WIDTHS = {"cpu": 8, "gpu": 4}  # numbers of a vector


@dataclass(frozen=True)
class MemoryKernel(Candidate):
    """A kernel that reads a case's bytes, or copies half of them."""

    name: str

    def prepare(self, case: Workload, device: Device) -> Prepared:
        """Return its launches, with timers for data on the device."""
        size = int(case.bytes)

        def clock() -> Timer:
            run = _launcher(self.name, size, session(device, profiling=True))

            def seconds(event: Any) -> float:
                event.wait()
                return seconds_of(event)

            def timer(repeats: int) -> float:
                return statistics.median(seconds(run()) for _ in range(repeats))

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
        numbers: tuple[int, ...] = ()
    else:
        items = device.compute_units * (SHARES if cpu else ITEMS)
        count = max(1, size // (items * vector * UNROLL)) * UNROLL
        kernel = "read_shares" if cpu else "read_coalesced"
        sizes = (items * count * vector, items * vector)
        numbers = (count,)
    launch = Launch(
        "probes/bandwidth.cl", kernel,
        {"REAL": "float", "WIDTH": width, "UNROLL": UNROLL}, (items,), (group,),
        (Scratch("data", sizes[0]), *numbers, Scratch("result", sizes[1])),
    )
    bound = Bound(target)
    run = bound.launch(launch, device)

    def enqueue(_: Bound = bound) -> Any:  # which holds the memory
        return run()

    return enqueue
