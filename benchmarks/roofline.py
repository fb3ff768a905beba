"""The roofline: a lower bound of a case's time, from the device's measured speeds.

A case moves at least its bytes and does its operations; neither is faster than a kernel
that does nothing else (Williams, Waterman and Patterson, "Roofline", 2009). The floor
is the larger of the two times. The rate is that of plain multiply-adds, so matrix units
can be faster than the floor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from clnet.opencl import rate_probes
from clnet.opencl.bound import Bound
from clnet.opencl.device import Device
from clnet.opencl.launch import Launch, Scratch
from clnet.opencl.session import session

if TYPE_CHECKING:
    from .cases.training import Workload

SMALL = 1 << 12  # bytes of the smallest array measured on a CPU


@dataclass(frozen=True)
class Floor:
    """The lower bound of a case's time on a device."""

    seconds: float  # The larger of the times for bytes and for operations
    bound: str  # The larger one
    bandwidth: float  # Bytes a second
    rate: float  # Floating-point operations a second


def lower_bound(bytes_: float, flops: float, bandwidth: float, rate: float) -> Floor:
    """Return the floor of a number of bytes and of operations."""
    times = {"bytes": bytes_ / bandwidth, "flops": flops / rate}
    bound = max(times, key=lambda name: times[name])
    return Floor(times[bound], bound, bandwidth, rate)


class Roofline:
    """A device's measured speeds; each is measured on first use."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._bandwidths: dict[int, float] = {}
        self._rates: dict[str, float] = {}

    def floor(self, case: Workload) -> Floor:
        """Return the lower bound of a case's time.

        On a CPU, whose caches hold many networks, the bandwidth is that of an array of
        the case's size; on a GPU it is that of the device's memory.
        """
        return lower_bound(
            case.bytes, case.flops, self.bandwidth(case.footprint),
            self.rate(case.dtype),
        )

    def bandwidth(self, size: int) -> float:
        """Return bytes a second of reading an array of about `size` bytes."""
        device = self._device
        most = min(rate_probes.LARGE, device.largest_buffer, device.global_memory // 4)
        if device.type == "cpu":
            size = min(most, max(SMALL, 1 << (size - 1).bit_length()))
        else:
            size = most
        if size not in self._bandwidths:
            cpu = device.type == "cpu"
            read = rate_probes.read_chunks if cpu else rate_probes.read_coalesced
            self._bandwidths[size] = read(self._session, size)
        return self._bandwidths[size]

    def rate(self, dtype: str) -> float:
        """Return the FLOP/s of multiply-adds of a dtype."""
        if dtype not in self._rates:
            self._rates[dtype] = rate_probes.multiply_add(self._session, dtype)
        return self._rates[dtype]

    def delay(self, seconds: float) -> Callable[[], object]:
        """Return a function that enqueues a kernel of about a number of seconds.

        The kernel is one work-item, on the profiling session's queue.
        """
        width, chains, trial = 4, 1, rate_probes.STEPS[False]
        sums = Scratch("sums", width * np.dtype(np.float32).itemsize)
        bound = Bound(self._session)

        def launch(steps: int) -> Launch:
            return Launch(
                "probes/rate.cl", "multiply_add",
                {"REAL": "float", "WIDTH": width, "CHAINS": chains}, (1,), (1,),
                (0.999, 0.001, steps, sums),
            )

        measured = rate_probes.least_seconds(bound, launch(trial))
        steps = math.ceil(trial * seconds / measured)
        run = bound.launch(launch(steps), self._device)

        def delay(_: Bound = bound) -> object:  # which holds the memory
            return run()

        return delay

    @cached_property
    def _session(self) -> Any:
        return session(self._device, profiling=True)
