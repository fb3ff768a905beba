"""Memory of a device: buffers, and its copy of a network's parameters."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.errors import OutOfMemoryError
from clnet.ir.ops import Value
from clnet.nn.storage.layout import round_up
from clnet.opencl.session import Session

Array = NDArray[Any]
Action = Callable[..., Any]
ALIGNMENT = 64  # bytes; a cache line, and the widest vector
# Written all over a new buffer; wide, as a driver was seen to fail where it is written
# more than 2^31 times (NVIDIA's 580, single bytes).
ZERO = np.zeros(2, np.uint64)
# One thread copies some 10 GB a second, four 25; the bus of a GPU takes 50 (H200).
COPIERS = 4  # threads
LARGE = 1 << 24  # bytes from which they pay: to ask them takes 50 to 120 us


class Memory:
    """A buffer of a session, zero at first.

    Attributes
    ----------
    argument : object
        What a kernel's `set_arg` takes.
    array : ndarray of uint8 or None
        The host's view of the same bytes, where the device shares memory.

    Raises
    ------
    OutOfMemoryError
        If the device has not enough memory.
    """

    def __init__(self, session: Session, size: int) -> None:
        import pyopencl as cl

        size = max(size, 1)
        device = session.device
        if size > session.free:
            gc.collect()  # a network and its plans refer to each other
        if size > session.free:
            raise OutOfMemoryError(
                f"{device.name} has no room for {size} bytes: {session.free} are left; "
                "take a smaller batch or another device"
            )
        self.array: Array | None = None
        try:
            if device.fine_svm:
                flags = cl.svm_mem_flags
                self.array = cl.svm_empty(
                    session.context,
                    flags.READ_WRITE | flags.SVM_FINE_GRAIN_BUFFER,
                    (size,), np.uint8, alignment=ALIGNMENT,
                )
                self.array[:] = 0
                self.argument: Any = cl.SVM(self.array)
            else:
                size = round_up(size, ZERO.nbytes)
                self.argument = cl.Buffer(
                    session.context, cl.mem_flags.READ_WRITE, size
                )
                cl.enqueue_fill_buffer(
                    session.queue, self.argument, ZERO, 0, size
                ).wait()
        except (cl.Error, MemoryError) as error:
            raise OutOfMemoryError(
                f"{device.name} has no room for {size} bytes: {error}"
            ) from error
        session.allocated += size
        shared = self.array is not None
        self._release = weakref.finalize(self, _released, session, size, shared)

    def write(self, session: Session, values: Array) -> None:
        """Copy an array to the start of the buffer, and wait for it."""
        import pyopencl as cl

        if self.array is not None:
            flat = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
            self.array[: flat.size] = flat
        else:
            cl.enqueue_copy(
                session.queue, self.argument, np.ascontiguousarray(values),
                is_blocking=True,
            )

    def read(self, session: Session, count: int, dtype: str) -> Array:
        """Return the first `count` numbers, once the commands so far are done."""
        import pyopencl as cl

        found = np.empty(count, dtype)
        if self.array is not None:
            session.finish()
            found.view(np.uint8)[...] = self.array[: found.nbytes]
        elif count:
            cl.enqueue_copy(session.queue, found, self.argument, is_blocking=True)
        return found

    def take(self, session: Session, other: Memory) -> None:
        """Copy another buffer of the same size, once the commands so far are done."""
        import pyopencl as cl

        session.settle()
        if self.array is not None:
            session.finish()
            self.array[:] = other.array
            return
        copied = cl.enqueue_copy(session.queue, self.argument, other.argument)
        if len(session.queues) > 1:  # whose commands do not wait for this one
            copied.wait()

    def part(self, start: int, size: int) -> Any:
        """Return the argument for so many bytes; `start` as `part_alignment` wants."""
        import pyopencl as cl

        if self.array is not None:
            return cl.SVM(self.array[start : start + size])
        return self.argument.get_sub_region(start, size)

    def first(self, session: Session) -> int:
        """Return the first byte."""
        return int(self.read(session, 1, "uint8")[0])

    def view(self, dtype: str, batch: int, value: Value) -> Array:
        """Return the host's view [batch, width] of a value in shared memory."""
        assert self.array is not None
        size = batch * value.stride * np.dtype(dtype).itemsize
        rows = self.array[:size].view(dtype).reshape(batch, value.stride)
        return rows[:, : value.width]


def part_alignment(session: Session) -> int:
    """Return what bytes the starts of a buffer's parts are multiples of."""
    bits: int = session.device.handle.mem_base_addr_align
    return max(ALIGNMENT, bits // 8)


@cache
def _copiers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(COPIERS, "clnet-copy")


def copy_rows(target: Array, source: Array) -> None:
    """Copy an array [rows, width] into another: large ones by several threads."""
    if source.nbytes < LARGE:
        target[...] = source
        return
    cuts = [len(source) * i // COPIERS for i in range(COPIERS + 1)]
    parts = [slice(*pair) for pair in pairwise(cuts)]
    done = _copiers().map(lambda part: np.copyto(target[part], source[part]), parts)
    deque(done, maxlen=0)  # waits, and raises what went wrong


def copy_in(session: Session, memory: Memory, host: Array) -> Action:
    """Return the copy of a whole host array to the start of a buffer."""
    import pyopencl as cl

    return partial(
        _direct("_enqueue_write_buffer") or cl.enqueue_copy, session.queue,
        memory.argument, host,
    )


def copy_out(session: Session, memory: Memory, host: Array) -> Action:
    """Return the copy of the start of a buffer to a whole host array."""
    import pyopencl as cl

    direct = _direct("_enqueue_read_buffer")
    if direct is not None:
        return partial(direct, session.queue, memory.argument, host)
    return partial(cl.enqueue_copy, session.queue, host, memory.argument)


def _direct(name: str) -> Action | None:
    """Return a function that pyopencl's `enqueue_copy` calls, if it is there.

    To find out which of them, `enqueue_copy` takes 1 us more (2026.1).
    """
    import pyopencl as cl

    found: Action | None = getattr(cl._cl, name, None)
    return found


def staging(session: Session, shape: tuple[int, ...], dtype: str) -> Array:
    """Return an array of zeros that a device copies from and to at full speed.

    Beside a GPU it lies in pinned memory: what the driver would first copy there, and
    then wait for, is there already.

    Raises
    ------
    OutOfMemoryError
        If there is not enough.
    """
    import pyopencl as cl

    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if session.device.type == "cpu" or not size:
        return np.zeros(shape, dtype)
    flags = cl.map_flags
    try:
        buffer = cl.Buffer(
            session.context, cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR, size
        )
        array: Array = cl.enqueue_map_buffer(
            session.queue, buffer, flags.READ | flags.WRITE, 0, shape, np.dtype(dtype)
        )[0]
    except cl.Error as error:
        raise OutOfMemoryError(
            f"{session.device.name} has no room for {size} bytes of pinned memory: "
            f"{error}"
        ) from error
    array[...] = 0
    return array


def _released(session: Session, size: int, shared: bool) -> None:
    if shared:  # unlike a buffer, it goes even while commands use it
        session.finish()
    session.allocated -= size


