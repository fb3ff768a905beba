"""Memory alone: candidates that move as many bytes as a case must, and compute nothing.

Measured in turn with the others, so that a share of their speed is of the same minute.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from clnet.opencl.device import Device
from clnet.opencl.launch import Launch
from clnet.opencl.memory import Memory
from clnet.opencl.session import Session, session
from clnet.runtime.executable import NANOSECOND
from clnet.variants.team import team_group

from .candidates import Prepared, Timer
from .cases import Work
from .floor import GROUP, ITEMS, UNROLL

SHARES = 4  # work-items a core
WIDTHS = {"cpu": 8, "gpu": 4}  # numbers of a vector


@dataclass(frozen=True)
class Traffic:
    """A kernel that reads a case's bytes, or reads half of them and writes them again.

    Attributes
    ----------
    name : {"read", "copy"}
        Which.
    """

    name: str
    patience: float | None = None

    def missing(self) -> str | None:
        """Return None: it is ours."""
        return None

    def prepare(self, case: Work, device: Device) -> Prepared:
        """Return its launches, on every basis but with no host's arrays."""
        size = int(case.bytes)

        def clock() -> Timer:
            run = _launcher(self.name, size, session(device, profiling=True))

            def timer(repeats: int) -> float:
                times = []
                for _ in range(repeats):
                    event = run()
                    event.wait()
                    times.append(event.profile.end - event.profile.start)
                return NANOSECOND * float(statistics.median(times))

            return timer

        def stream() -> Timer:
            here = session(device)
            run = _launcher(self.name, size, here)

            def timer(repeats: int) -> float:
                start = time.perf_counter()
                for _ in range(repeats):
                    run()
                here.queue.finish()
                return (time.perf_counter() - start) / repeats

            return timer

        return Prepared(
            lambda: 0.0, {"stream": stream, "device": clock, "busy": clock},
            threads=device.compute_units if device.type == "cpu" else None,
        )


def _launcher(name: str, size: int, here: Session) -> Callable[[], Any]:
    """Return what enqueues the kernel that moves about so many bytes."""
    import pyopencl as cl

    device = here.device
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
        kernel = "read_shares" if cpu else "read_beside"
        sizes = (items * count * vector, items * vector)
        numbers = (np.int32(count),)
    launch = Launch(
        "probes/bandwidth.cl", kernel,
        {"REAL": "float", "WIDTH": width, "UNROLL": UNROLL},
        (items,), (group,), (),
    )
    data, result = (Memory(here, size) for size in sizes)
    built = here.kernel(launch, device)
    built.set_args(data.argument, *numbers, result.argument)

    # A kernel does not keep its arguments' memory alive: the default does.
    def run(_: tuple[Memory, Memory] = (data, result)) -> Any:
        return cl.enqueue_nd_range_kernel(
            here.queue, built, launch.global_size, launch.local_size
        )

    return run
