"""A device's context and queues, and the programs and parameters that live there."""

from __future__ import annotations

import threading
import weakref
from functools import cache, lru_cache
from typing import Any

from clnet.errors import DeviceError
from clnet.opencl.device import Device
from clnet.opencl.launch import Launch
from clnet.opencl.program import build, source_text

PROGRAMS = 256  # that a session keeps built: those used last


class Session:
    """One context of a device and its companions, with a queue for each place.

    Parameters
    ----------
    device : Device
        As `clnet.device` gives it.
    profiling : bool
        Whether queues record the device's own times.
    """

    def __init__(self, device: Device, profiling: bool = False) -> None:
        import pyopencl as cl

        self.device = device
        self.profiling = profiling
        self.errors: tuple[type[Exception], ...] = (cl.Error, MemoryError)
        properties = cl.command_queue_properties.PROFILING_ENABLE if profiling else 0
        try:
            self.context = cl.Context([place.handle for place in device.places])
            self.queues = {
                place: cl.CommandQueue(self.context, place.handle, properties)
                for place in device.places
            }
        except cl.Error as error:
            raise DeviceError(f"{device.name} gives no context: {error}") from error
        self.queue = self.queues[device]
        self.allocated = 0
        context = self.context
        # Kernels in use keep their programs anyway.
        self._program = lru_cache(PROGRAMS)(lambda *parts: build(context, *parts))
        self.stores: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    @property
    def free(self) -> int:
        """Bytes that one more buffer may have."""
        device = self.device
        left = max(0, device.global_memory - self.allocated)
        return min(device.largest_buffer, left)

    def finish(self) -> None:
        """Wait for all that was enqueued."""
        for queue in self.queues.values():
            queue.finish()

    def settle(self) -> None:
        """Wait for all that was enqueued where several queues know no common order."""
        if len(self.queues) > 1:
            self.finish()

    def kernel(self, launch: Launch, place: Device) -> Any:
        """Return a new kernel object for a launch; its program may be built already."""
        import pyopencl as cl

        text = source_text(launch.source, launch.defines, place)
        return cl.Kernel(self._program(place, text, launch.source), launch.kernel)


def session(device: Device, profiling: bool = False) -> Session:
    """Return the process's session of a device; contexts are slow to make."""
    with _one_at_a_time:
        return _session(device, profiling)


_session = cache(Session)
_one_at_a_time = threading.Lock()


def failed(device: Device, error: BaseException, *others: Device) -> DeviceError:
    """Return the error for a device, or one of several, that failed while it ran."""
    names = " or ".join(one.name for one in (device, *others))
    return DeviceError(f"{names} failed while running: {error}")
