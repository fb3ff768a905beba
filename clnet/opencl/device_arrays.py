"""Device arrays of callers: checks, and their order with a plan's commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from clnet.errors import InputError
from clnet.opencl.commands import marker, wait_on_queue

if TYPE_CHECKING:
    from clnet.opencl.session import Session


def array_form(session: Session, shape: tuple[int, int], dtype: np.dtype[Any]) -> Any:
    """Return a device array of the session's queue, without memory for its elements.

    New arrays are made like it, and callers' arrays are compared with it.
    """
    import pyopencl.array

    nothing = pyopencl.Buffer(
        session.context, pyopencl.mem_flags.READ_WRITE, dtype.itemsize
    )
    return pyopencl.array.Array(session.queue, shape, dtype, data=nothing)


def array_maker() -> Callable[[Any], Any]:
    """Return the function that makes an array like another one."""
    import pyopencl.array

    # A twentieth of the time of `empty`.
    maker: Callable[[Any], Any] = pyopencl.array.empty_like
    return maker


def check_device_array(
    name: str, array: Any, shape: tuple[int, int], dtype: np.dtype[Any], context: Any
) -> None:
    """Raise an error unless an argument is a device array that kernels can use."""
    import pyopencl.array

    if not isinstance(array, pyopencl.array.Array):
        raise InputError(
            f"{name} is of type {type(array).__name__}, expected a device array "
            "(pyopencl.array.Array)"
        )
    shapes = [shape, shape[1:]] if shape[0] == 1 else [shape]
    if array.shape not in shapes or array.dtype != dtype:
        raise InputError(
            f"{name} is a device array {list(array.shape)} of {array.dtype}, "
            f"expected {list(shape)} of {dtype}"
        )
    if not array.flags.c_contiguous or array.offset:
        raise InputError(
            f"{name} is a device array that is not contiguous from its buffer's "
            "start: pass a copy"
        )
    if array.context != context:
        raise InputError(
            f"{name} lives in another OpenCL context than the plan: make it on "
            "plan.queue"
        )


def wait_for_arrays(queue: Any, *arrays: Any) -> None:
    """Let the next commands of a queue wait for the events and queues of arrays."""
    events = [
        event for array in arrays for event in array.events
        if event.command_queue != queue
    ]
    for other in {event.command_queue for event in events} - {None}:
        other.flush()
    events += [marker(other) for other in _other_queues(queue, arrays)]
    if events:
        wait_on_queue(queue, events)


def order_arrays_after(queue: Any, *arrays: Any) -> None:
    """Let later commands of arrays' queues wait for a queue's commands so far."""
    others = [array for array in arrays if array.queue != queue]
    if not others:
        return
    done = marker(queue)
    for array in others:
        array.add_event(done)
    for other in _other_queues(queue, others):
        if other.device == queue.device:
            wait_on_queue(other, [done])
        else:  # PoCL 3.0's calling thread would wait there, holding a lock
            done.wait()


def _other_queues(queue: Any, arrays: Iterable[Any]) -> set[Any]:
    """Return the other queues of arrays; an array may have none."""
    return {array.queue for array in arrays} - {None, queue}
