"""Floors: the least time that a case can take, by this device's measured speeds.

A case must move its bytes and do its operations; neither can go faster than a kernel
that does nothing else (the roofline of Williams, Waterman and Patterson, 2009). The
floor is the larger of the two times. Operations are counted against plain
multiply-adds, so matrix units can pass below it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from clnet.opencl.device import Device
from clnet.opencl.launch import Launch
from clnet.opencl.memory import Memory
from clnet.opencl.session import session
from clnet.runtime.executable import NANOSECOND
from clnet.variants.team import team_group

from .cases import Work

LAUNCHES = 5  # the fastest counts: a floor must not be passed by accident
UNROLL = 8  # loads under way
LARGE = 1 << 30  # bytes read on a GPU: far more than its caches hold
READ = 1 << 28  # bytes that all readings of one array on a CPU make up at least
SMALL = 1 << 12  # bytes of the smallest array that is measured on a CPU
ITEMS = 2048  # work-items that a GPU's compute unit holds at once
GROUP = 256  # work-items of a group there
TURNS = 64  # groups a core; a runtime hands out many in fair shares
STEPS = {True: 1 << 18, False: 1 << 12}  # multiply-adds a chain, on a CPU or else


@dataclass(frozen=True)
class Floor:
    """The least time of a case on a device.

    Attributes
    ----------
    seconds : float
        The larger of the times for bytes and for operations.
    bound : {"bytes", "flops"}
        Which one it is.
    bandwidth : float
        Bytes a second.
    rate : float
        Floating-point operations a second.
    """

    seconds: float
    bound: str
    bandwidth: float
    rate: float


def least(bytes_: float, flops: float, bandwidth: float, rate: float) -> Floor:
    """Return the floor of work with so many bytes and operations."""
    times = {"bytes": bytes_ / bandwidth, "flops": flops / rate}
    bound = max(times, key=lambda name: times[name])
    return Floor(times[bound], bound, bandwidth, rate)


class Machine:
    """A device's measured speeds; each is measured when it is first asked for.

    Parameters
    ----------
    device : Device
        Where.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._bandwidths: dict[int, float] = {}
        self._rates: dict[str, float] = {}

    def floor(self, case: Work) -> Floor:
        """Return the least time of a case.

        On a CPU, whose caches hold many a network, the bandwidth is that of an array of
        the case's size; on a GPU it is that of the device's memory.
        """
        return least(
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
            read = self._read_chunks if device.type == "cpu" else self._read_beside
            self._bandwidths[size] = read(size)
        return self._bandwidths[size]

    def rate(self, dtype: str) -> float:
        """Return multiply-adds a second of a dtype, times two."""
        if dtype not in self._rates:
            self._rates[dtype] = self._multiply_add(dtype)
        return self._rates[dtype]

    def _read_beside(self, size: int) -> float:
        width, group = 4, team_group(GROUP, self._device)
        items = self._device.compute_units * ITEMS
        vector = width * np.dtype(np.float32).itemsize
        count = _whole(size / (items * vector))
        launch = Launch(
            "probes/bandwidth.cl", "read_beside",
            {"REAL": "float", "WIDTH": width, "UNROLL": UNROLL}, (items,), (group,), (),
        )
        data = Memory(self._session, count * items * vector)
        sums = Memory(self._session, items * vector)
        arguments = (data.argument, np.int32(count), sums.argument)
        return count * items * vector / self._seconds(launch, arguments)

    def _read_chunks(self, size: int) -> float:
        width, readers = 8, self._device.compute_units
        vector = width * np.dtype(np.float32).itemsize
        count = _whole(size / (readers * vector))
        read = count * readers * vector
        passes = math.ceil(READ / read)
        launch = Launch(
            "probes/bandwidth.cl", "read_chunks",
            {"REAL": "float", "WIDTH": width, "UNROLL": UNROLL}, (readers * TURNS,),
            (1,), (),
        )
        data = Memory(self._session, read)
        sums = Memory(self._session, readers * vector)
        tickets = Memory(self._session, np.dtype(np.int32).itemsize)
        arguments = (
            data.argument, np.int32(count), np.int32(passes), np.int32(readers),
            sums.argument, tickets.argument,
        )
        return read * passes / self._seconds(launch, arguments, tickets)

    def _multiply_add(self, dtype: str) -> float:
        cpu = self._device.type == "cpu"
        width, chains = (8, 12) if cpu else (4, 4)
        if dtype == "float64":
            width //= 2
        group = 1 if cpu else team_group(GROUP, self._device)
        items = self._device.compute_units * (TURNS if cpu else ITEMS)
        steps = STEPS[cpu]
        real = np.dtype(dtype).type
        launch = Launch(
            "probes/rate.cl", "multiply_add",
            {"REAL": "double" if dtype == "float64" else "float", "WIDTH": width,
             "CHAINS": chains},
            (items,), (group,), (),
        )
        sums = Memory(self._session, items * width * np.dtype(dtype).itemsize)
        arguments = (real(0.999), real(0.001), np.int32(steps), sums.argument)
        flops = 2 * width * chains * steps * items
        return flops / self._seconds(launch, arguments)

    def delay(self, seconds: float) -> Callable[[], object]:
        """Return what enqueues work, for one work-item, that lasts about so long.

        On the queue of the profiling session.
        """
        import pyopencl as cl

        width, chains, trial = 4, 1, STEPS[False]
        launch = Launch(
            "probes/rate.cl", "multiply_add",
            {"REAL": "float", "WIDTH": width, "CHAINS": chains}, (1,), (1,), (),
        )
        sums = Memory(self._session, width * np.dtype(np.float32).itemsize)
        numbers = (np.float32(0.999), np.float32(0.001))
        lasted = self._seconds(launch, (*numbers, np.int32(trial), sums.argument))
        kernel = self._session.kernel(launch, self._device)
        steps = math.ceil(trial * seconds / lasted)
        kernel.set_args(*numbers, np.int32(steps), sums.argument)
        queue = self._session.queue

        # A kernel does not keep its arguments' memory alive: the default does.
        def enqueue(_: Memory = sums) -> object:
            return cl.enqueue_nd_range_kernel(queue, kernel, (1,), (1,))

        return enqueue

    @cached_property
    def _session(self) -> Any:
        return session(self._device, profiling=True)

    def _seconds(
        self, launch: Launch, arguments: tuple[Any, ...], zeroed: Memory | None = None
    ) -> float:
        """Return the fastest launch's seconds, by the device's clock."""
        import pyopencl as cl

        queue = self._session.queue
        kernel = self._session.kernel(launch, self._device)
        kernel.set_args(*arguments)
        times = []
        for _ in range(LAUNCHES):
            if zeroed is not None:
                zeroed.write(self._session, np.zeros(1, np.int32))
            event = cl.enqueue_nd_range_kernel(
                queue, kernel, launch.global_size, launch.local_size
            )
            queue.finish()
            times.append(event.profile.end - event.profile.start)
        return NANOSECOND * float(min(times))


def _whole(vectors: float) -> int:
    """Return a number of vectors as a multiple of UNROLL, at least one."""
    return max(UNROLL, int(vectors) // UNROLL * UNROLL)
