"""A session: a device's context, its queues, and its built programs."""

from __future__ import annotations

import gc
import threading
import weakref
from contextlib import AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from clnet.errors import ASK_DOCTOR, DeviceError
from clnet.nn.copies import Cache
from clnet.opencl.process import check_process
from clnet.opencl.program import build, source_text
from clnet.opencl.quirks import prepare_compiler

if TYPE_CHECKING:
    from clnet.opencl.device import Device
    from clnet.opencl.launch import Launch

BINDINGS = 8  # that a session keeps
KEPT_BYTES = 1 << 24  # of data and parameters: to bind more is a small part of the time
PROGRAMS = 256  # that a session keeps built


class Allocation(Protocol):
    """Device memory of a size in bytes: `memory.Memory`."""

    size: int


class Session:
    """One context of a device and its companions, with an in-order queue for each."""

    def __init__(self, device: Device, profiling: bool = False) -> None:
        import pyopencl as cl

        self.device = device
        self.profiling = profiling
        self.errors: tuple[type[Exception], ...] = (cl.Error, MemoryError)
        prepare_compiler(device)
        properties = cl.command_queue_properties.PROFILING_ENABLE if profiling else 0
        try:
            self.context: Any = cl.Context([place.handle for place in device.places])
            self.queues: dict[Device, Any] = {
                place: cl.CommandQueue(self.context, place.handle, properties)
                for place in device.places
            }
        except cl.Error as error:
            raise DeviceError(
                f"{device.name} gives no context: {error}; {ASK_DOCTOR}"
            ) from error
        self.queue: Any = self.queues[device]
        self._sizes: dict[weakref.ref[Allocation], int] = {}  # of all buffers, in bytes
        self._programs = Cache(PROGRAMS)  # kernels in use hold theirs
        self.kept: Cache = Cache(BINDINGS)  # for later trainings, which take them out
        self.unread: weakref.WeakSet[Any] = weakref.WeakSet()
        self.parameter_stores: weakref.WeakKeyDictionary[Any, Any] = (
            weakref.WeakKeyDictionary()
        )

    def count(self, buffer: Allocation) -> None:
        """Count a new buffer as allocated, until it is dropped."""
        # No interrupt comes within either line, nor while a buffer is dropped.
        dropped = weakref.ref(buffer, self._sizes.pop)
        self._sizes[dropped] = buffer.size

    @property
    def allocated(self) -> int:
        """The size of all buffers, in bytes."""
        return sum(self._sizes.copy().values())

    @property
    def free(self) -> int:
        """The largest size of one more buffer, in bytes."""
        device = self.device
        left = max(0, device.global_memory - self.allocated)
        return min(device.largest_buffer, left)

    def new_queue(self, device: Device | None = None) -> Any:
        """Return a further in-order queue of a device; None: the session's own."""
        import pyopencl as cl

        return cl.CommandQueue(self.context, (device or self.device).handle)

    def finish(self) -> None:
        """Wait for all enqueued commands."""
        for queue in self.queues.values():
            queue.finish()

    def barrier(self) -> None:
        """Order later commands after all enqueued ones.

        One in-order queue does so itself; several are waited for.
        """
        if len(self.queues) > 1:
            self.finish()

    def release(self) -> None:
        """Free the memory of what is kept for later use, and of results."""
        self.kept.clear()
        for states in list(self.unread):
            states.read()
        gc.collect()  # a network and its plans form a reference cycle

    def kernel(self, launch: Launch, device: Device) -> Any:
        """Return a new kernel object for a launch; programs are cached."""
        import pyopencl as cl

        check_process()
        text = source_text(launch.source, launch.defines, device)
        parts = device, text, launch.source, launch.registers
        program = self._programs.get(parts) or build(self.context, *parts)
        self._programs[parts] = program
        return cl.Kernel(program, launch.kernel)


def session(device: Device, profiling: bool = False) -> Session:
    """Return the process's session of a device: creating a context is slow."""
    check_process()
    with _lock:
        return _session(device, profiling)


_session = cache(Session)
_lock = threading.Lock()


def device_error(device: Device, error: BaseException, *others: Device) -> DeviceError:
    """Return the error of a device, or one of several, that failed at run time."""
    names = " or ".join(place.name for place in (device, *others))
    return DeviceError(f"{names} failed while running: {error}")


def device_errors(session: Session, *others: Session) -> AbstractContextManager[None]:
    """Return the context that raises errors of OpenCL and of memory as DeviceError."""
    return _DeviceErrors(session, others)


class _DeviceErrors(AbstractContextManager[None]):
    """No generator: since Python 3.12 its frame keeps the error, and thus buffers."""

    def __init__(self, session: Session, others: tuple[Session, ...]) -> None:
        self._session, self._others = session, others

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if isinstance(error, self._session.errors):
            others = (other.device for other in self._others)
            raise device_error(self._session.device, error, *others) from error
