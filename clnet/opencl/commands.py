"""Commands: kernels enqueued on a queue, and the events that tell their end."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from clnet.opencl.process import is_forked

if TYPE_CHECKING:
    from clnet.opencl.device import Device
    from clnet.opencl.launch import Launch
    from clnet.opencl.session import Session

Action = Callable[..., Any]
NANOSECOND = 1e-9  # seconds; the unit of OpenCL's clocks


def argument_setter(kernel: Any) -> Callable[[int, Any], None]:
    """Return the function that sets a kernel's argument to a number or array."""
    # `_set_arg_buf` takes 0.1 us, `set_arg` 6.5, as it tries other types first
    # (pyopencl 2026.1).
    setter: Callable[[int, Any], None] = getattr(kernel, "_set_arg_buf", kernel.set_arg)
    return setter


def prepared_launch(
    queue: Any, kernel: Any, global_size: tuple[int, ...], local_size: tuple[int, ...],
    *, events: bool, late_errors: bool = False,
) -> Action:
    """Return the action that enqueues a kernel with its arguments at that time.

    Launches have no events unless asked for. pyopencl makes an event of every launch,
    which costs device time too: the next command starts 1.5 to 2 us later, by NVIDIA's
    driver 580.
    """
    import pyopencl as cl

    checked = partial(
        cl.enqueue_nd_range_kernel, queue, kernel, global_size, local_size
    )
    enqueue = None if events else _enqueue_function()
    if enqueue is None:
        return _awaited_once(checked, checked) if late_errors else checked
    sizes = [(ctypes.c_size_t * len(size))(*size) for size in (global_size, local_size)]
    arguments = (
        ctypes.c_void_p(queue.int_ptr), ctypes.c_void_p(kernel.int_ptr),
        ctypes.c_uint(len(global_size)), None, *sizes, ctypes.c_uint(0), None, None,
    )
    launch = partial(_launch, enqueue, arguments, checked)
    return _awaited_once(launch, checked) if late_errors else launch


def _awaited_once(launch: Action, checked: Action) -> Action:
    """Return a launch that waits for its event until one has ended without an error."""
    remaining = [checked]

    def call() -> Any:
        if not remaining:
            return launch()
        event = checked()
        event.wait()
        remaining.clear()
        return event

    return call


def _launch(enqueue: Action, arguments: tuple[Any, ...], checked: Action) -> None:
    if enqueue(*arguments):
        checked()  # raises the error


@cache
def _enqueue_function() -> Action | None:
    """Return `clEnqueueNDRangeKernel` of the library that pyopencl has loaded."""
    import pyopencl as cl

    try:
        # PyDLL holds Python's lock, as pyopencl does: kernels that run in the calling
        # thread then never run concurrently. Except on Windows, the symbol is found in
        # the library's dependencies too.
        function: Action = ctypes.PyDLL(cl._cl.__file__).clEnqueueNDRangeKernel
    except (AttributeError, OSError):
        return None
    return function


class Standby:
    """A launch that runs beside calls, on a queue of its own.

    It must end before the memory that it uses is freed: a finalizer of its binding
    waits for it.
    """

    def __init__(
        self, session: Session, device: Device, kernel: Any, launch: Launch
    ) -> None:
        self._queue = session.new_queue(device)
        self._enqueue = prepared_launch(
            self._queue, kernel, launch.global_size, launch.local_size, events=True
        )
        self._event: Any = None

    def start(self) -> None:
        """Start it unless it is still running."""
        if self._event is None or has_ended(self._event):
            self._event = self._enqueue()
            self._queue.flush()

    def finish(self) -> None:
        """Wait for its end."""
        if not is_forked():
            self._queue.finish()


def has_ended(event: Any) -> bool:
    """Return whether an event's command has ended without an error."""
    import pyopencl as cl

    return bool(event.command_execution_status == cl.command_execution_status.COMPLETE)


def marker(queue: Any) -> Any:
    """Return the event of the end of all commands that are enqueued on a queue."""
    import pyopencl as cl

    event = cl.enqueue_marker(queue)
    queue.flush()  # without it, another queue's wait may never end
    return event


def wait_on_queue(queue: Any, events: Iterable[Any]) -> None:
    """Let the next commands of a queue wait for events; the host does not wait."""
    import pyopencl as cl

    cl.enqueue_barrier(queue, wait_for=list(events))


class End:
    """The end of all commands that a session has enqueued so far.

    Those of several queues are waited for at once: of a CPU, whose launches take far
    longer than the wait's end.
    """

    def __init__(self, session: Session) -> None:
        self._marker: Any = None
        if len(session.queues) == 1:
            self._marker = marker(session.queue)
        else:
            session.finish()

    @property
    def reached(self) -> bool:
        """Whether it is known to be reached."""
        return self._marker is None or has_ended(self._marker)

    def wait(self) -> None:
        """Wait for it."""
        if self._marker is not None:
            self._marker.wait()


def seconds_of(event: Any) -> float:
    """Return the seconds of an ended command, by the device's clock."""
    return NANOSECOND * float(event.profile.end - event.profile.start)


def copy_direction(event: Any) -> str:
    """Return ``"upload"``, ``"download"``, or ``""`` for an event of no copy."""
    import pyopencl as cl

    kinds = {
        cl.command_type.WRITE_BUFFER: "upload", cl.command_type.READ_BUFFER: "download",
    }
    return kinds.get(event.command_type, "")
