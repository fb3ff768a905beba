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

from clnet.opencl.device import Device
from clnet.opencl.launch import Launch
from clnet.opencl.memory import Memory
from clnet.opencl.session import Session, session
from clnet.runtime.executable import NANOSECOND
from clnet.variants.team import team_group

if TYPE_CHECKING:
    from .cases.training import Workload

LAUNCHES = 5  # the fastest counts
UNROLL = 8  # loads in flight
LARGE = 1 << 30  # bytes read on a GPU: far beyond its caches
READ = 1 << 28  # bytes read on a CPU at least, in passes over one array
SMALL = 1 << 12  # bytes of the smallest array measured on a CPU
ITEMS = 2048  # work-items resident on a GPU's compute unit
GROUP = 256  # work-items of a group there
GROUPS_PER_CORE = 64  # a runtime balances many groups
STEPS = {True: 1 << 18, False: 1 << 12}  # multiply-adds a chain, on a CPU or else


@dataclass(frozen=True)
class Floor:
    """The lower bound of a case's time on a device.

    Attributes
    ----------
    seconds : float
        The larger of the times for bytes and for operations.
    bound : {"bytes", "flops"}
        The larger one.
    bandwidth : float
        Bytes a second.
    rate : float
        Floating-point operations a second.
    """

    seconds: float
    bound: str
    bandwidth: float
    rate: float


def lower_bound(bytes_: float, flops: float, bandwidth: float, rate: float) -> Floor:
    """Return the floor of a number of bytes and of operations."""
    times = {"bytes": bytes_ / bandwidth, "flops": flops / rate}
    bound = max(times, key=lambda name: times[name])
    return Floor(times[bound], bound, bandwidth, rate)


class Roofline:
    """A device's measured speeds; each is measured on first use.

    Parameters
    ----------
    device : Device
        The device to measure.
    """

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
        most = min(LARGE, device.largest_buffer, device.global_memory // 4)
        if device.type == "cpu":
            size = min(most, max(SMALL, 1 << (size - 1).bit_length()))
        else:
            size = most
        if size not in self._bandwidths:
            read = self._read_chunks if device.type == "cpu" else self._read_coalesced
            self._bandwidths[size] = read(size)
        return self._bandwidths[size]

    def rate(self, dtype: str) -> float:
        """Return the FLOP/s of multiply-adds of a dtype."""
        if dtype not in self._rates:
            self._rates[dtype] = self._multiply_add(dtype)
        return self._rates[dtype]

    def _read_coalesced(self, size: int) -> float:
        width, group = 4, team_group(GROUP, self._device)
        items = self._device.compute_units * ITEMS
        vector = width * np.dtype(np.float32).itemsize
        count = _whole(size / (items * vector))
        launch = Launch(
            "probes/bandwidth.cl", "read_coalesced",
            {"REAL": "float", "WIDTH": width, "UNROLL": UNROLL}, (items,), (group,), (),
        )
        data = Memory(self._session, count * items * vector)
        sums = Memory(self._session, items * vector)
        read = count * items * vector
        return read / self._seconds(launch, data, np.int32(count), sums)

    def _read_chunks(self, size: int) -> float:
        width, readers = 8, self._device.compute_units
        vector = width * np.dtype(np.float32).itemsize
        count = _whole(size / (readers * vector))
        read = count * readers * vector
        passes = math.ceil(READ / read)
        launch = Launch(
            "probes/bandwidth.cl", "read_chunks",
            {"REAL": "float", "WIDTH": width, "UNROLL": UNROLL},
            (readers * GROUPS_PER_CORE,), (1,), (),
        )
        data = Memory(self._session, read)
        sums = Memory(self._session, readers * vector)
        tickets = Memory(self._session, np.dtype(np.int32).itemsize)
        numbers = (np.int32(count), np.int32(passes), np.int32(readers))
        seconds = self._seconds(launch, data, *numbers, sums, tickets, zeroed=tickets)
        return read * passes / seconds

    def _multiply_add(self, dtype: str) -> float:
        cpu = self._device.type == "cpu"
        width, chains = (8, 12) if cpu else (4, 4)
        if dtype == "float64":
            width //= 2
        group = 1 if cpu else team_group(GROUP, self._device)
        items = self._device.compute_units * (GROUPS_PER_CORE if cpu else ITEMS)
        steps = STEPS[cpu]
        real = np.dtype(dtype).type
        launch = Launch(
            "probes/rate.cl", "multiply_add",
            {"REAL": "double" if dtype == "float64" else "float", "WIDTH": width,
             "CHAINS": chains},
            (items,), (group,), (),
        )
        sums = Memory(self._session, items * width * np.dtype(dtype).itemsize)
        numbers = (real(0.999), real(0.001), np.int32(steps))
        flops = 2 * width * chains * steps * items
        return flops / self._seconds(launch, *numbers, sums)

    def delay(self, seconds: float) -> Callable[[], object]:
        """Return a function that enqueues a kernel of about a number of seconds.

        The kernel is one work-item, on the profiling session's queue.
        """
        width, chains, trial = 4, 1, STEPS[False]
        launch = Launch(
            "probes/rate.cl", "multiply_add",
            {"REAL": "float", "WIDTH": width, "CHAINS": chains}, (1,), (1,), (),
        )
        sums = Memory(self._session, width * np.dtype(np.float32).itemsize)
        numbers = (np.float32(0.999), np.float32(0.001))
        measured = self._seconds(launch, *numbers, np.int32(trial), sums)
        steps = math.ceil(trial * seconds / measured)
        return enqueuer(self._session, launch, *numbers, np.int32(steps), sums)

    @cached_property
    def _session(self) -> Any:
        return session(self._device, profiling=True)

    def _seconds(
        self, launch: Launch, *arguments: Any, zeroed: Memory | None = None
    ) -> float:
        """Return the fastest launch's seconds, by the device's clock."""
        enqueue = enqueuer(self._session, launch, *arguments)
        times = []
        for _ in range(LAUNCHES):
            if zeroed is not None:
                zeroed.write(self._session, np.zeros(1, np.int32))
            times.append(event_seconds(enqueue()))
        return min(times)


def event_seconds(event: Any) -> float:
    """Wait for a command, and return its seconds by the device's clock."""
    event.wait()
    return NANOSECOND * float(event.profile.end - event.profile.start)


def enqueuer(target: Session, launch: Launch, *arguments: Any) -> Callable[[], Any]:
    """Return a function that enqueues a kernel, and keeps its memory alive.

    Parameters
    ----------
    target : Session
        The session, for its queue and device.
    launch : Launch
        The kernel and its sizes.
    *arguments
        The kernel's arguments: `Memory` and NumPy numbers.
    """
    import pyopencl as cl

    kernel = target.kernel(launch, target.device)
    kernel.set_args(*(a.argument if isinstance(a, Memory) else a for a in arguments))

    def enqueue(_: object = arguments) -> Any:
        return cl.enqueue_nd_range_kernel(
            target.queue, kernel, launch.global_size, launch.local_size
        )

    return enqueue


def _whole(vectors: float) -> int:
    """Return a number of vectors as a multiple of UNROLL, at least one."""
    return max(UNROLL, int(vectors) // UNROLL * UNROLL)
