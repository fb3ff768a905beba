"""Kernels enqueued without an event each, where nobody asks for one.

pyopencl makes an event of every launch, and one costs the device as well: what follows
starts 1.5 to 2 us later (NVIDIA's driver 580, H200).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, partial
from typing import Any

Function = Callable[..., Any]


def launching(
    queue: Any, kernel: Any, global_size: tuple[int, ...], local_size: tuple[int, ...],
    *, events: bool,
) -> Function:
    """Return what enqueues a kernel with the arguments that it has then.

    Parameters
    ----------
    queue : pyopencl.CommandQueue
        Where.
    kernel : pyopencl.Kernel
        What.
    global_size, local_size : tuple of int
        Work-items of the launch, and of a group.
    events : bool
        Whether each call must return its event; else it may return None.
    """
    import pyopencl as cl

    whole = partial(
        cl.enqueue_nd_range_kernel, queue, kernel, global_size, local_size
    )
    enqueue = None if events else _enqueue()
    if enqueue is None:
        return whole
    sizes = [(ctypes.c_size_t * len(size))(*size) for size in (global_size, local_size)]
    arguments = (
        ctypes.c_void_p(queue.int_ptr), ctypes.c_void_p(kernel.int_ptr),
        ctypes.c_uint(len(global_size)), None, *sizes, ctypes.c_uint(0), None, None,
    )
    return partial(_launch, enqueue, arguments, whole)


def _launch(enqueue: Function, arguments: tuple[Any, ...], whole: Function) -> None:
    if enqueue(*arguments):
        whole()  # which raises what is wrong


@cache
def _enqueue() -> Function | None:
    """Return OpenCL's own function of the library that pyopencl has loaded."""
    import pyopencl as cl

    try:
        # Python's lock is kept, as by pyopencl: no two threads' kernels then run in
        # their callers at once. Looked for in what the library depends on, too, but
        # not on Windows.
        found: Function = ctypes.PyDLL(cl._cl.__file__).clEnqueueNDRangeKernel
    except (AttributeError, OSError):
        return None
    return found
