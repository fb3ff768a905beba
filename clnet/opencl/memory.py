"""Memory: device buffers, pinned host arrays, and copies between them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.errors import OutOfMemoryError
from clnet.nn.copies import by_threads, cut, pieces
from clnet.nn.storage.layout import round_up
from clnet.opencl.process import is_forked

if TYPE_CHECKING:
    from clnet.ir.op import Value
    from clnet.opencl.commands import Action
    from clnet.opencl.session import Session

Array = NDArray[Any]
ALIGNMENT = 64  # bytes; a cache line, and the widest vector
# The fill pattern of a new buffer. It is 16 bytes wide: with single bytes a driver
# failed beyond 2^31 repetitions (NVIDIA, 580).
ZERO = np.zeros(2, np.uint64)
LARGE_COPY = 1 << 22  # bytes from which threads pay: their start takes 50 to 120 us


class Memory:
    """A buffer of a session, zero at first."""

    def __init__(self, session: Session, size: int) -> None:
        import pyopencl as cl

        size = max(size, 1)
        device = session.device
        if size > session.free:
            session.release()
        if size > session.free:
            raise OutOfMemoryError(
                f"{device.name} has no room for {size} bytes: {session.free} are left; "
                "take a smaller batch, fewer samples or another device"
            )
        self.array: Array | None = None
        try:
            if device.fine_svm:
                self.array = _shared_bytes(session, size)
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
        self.size = size
        session.count(self)
        if self.array is not None:
            weakref.finalize(self, _wait_for_commands, session)

    def write(self, session: Session, values: Array) -> None:
        """Copy an array to the start of the buffer, and wait for it."""
        if self.array is not None:
            self.array[: values.nbytes] = values.reshape(-1).view(np.uint8)
        else:
            self.upload(session.queue, np.ascontiguousarray(values), blocking=True)

    def write_repeated(self, session: Session, values: Array, count: int) -> None:
        """Write an array `count` times in a row, and wait for it.

        The device copies what is there, twice as much each time.
        """
        done, size = values.nbytes, count * values.nbytes
        if self.array is not None:
            rows = self.array[:size].reshape(count, -1)
            rows[...] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
            return
        import pyopencl as cl

        self.write(session, values)
        while done < size:
            copied = min(done, size - done)
            cl.enqueue_copy(
                session.queue, self.argument, self.argument, byte_count=copied,
                dst_offset=done,
            ).wait()
            done += copied

    def read(
        self, session: Session, count: int, dtype: str, start: int = 0
    ) -> Array:
        """Return `count` numbers from `start` on, after all enqueued commands."""
        values = np.empty(count, dtype)
        self.read_into(session, values, start)
        return values

    def read_into(self, session: Session, values: Array, start: int = 0) -> None:
        """Fill an array by the numbers from `start` on, after all enqueued commands."""
        begin = start * values.itemsize
        if self.array is not None:
            session.finish()
            values.view(np.uint8)[...] = self.array[begin : begin + values.nbytes]
        elif values.size:
            session.barrier()
            self.download(session.queue, values, begin, blocking=True)

    def download(
        self, queue: Any, host: Array, begin: int = 0, *,
        after: Sequence[Any] = (), blocking: bool = False,
    ) -> Any:
        """Copy the bytes from `begin` on to the host, and return the copy's event."""
        import pyopencl as cl

        return cl.enqueue_copy(
            queue, host, self.argument, src_offset=begin, is_blocking=blocking,
            wait_for=after,
        )

    def upload(
        self, queue: Any, host: Array, begin: int = 0, *,
        after: Sequence[Any] = (), blocking: bool = False,
    ) -> Any:
        """Copy an array to the bytes from `begin` on, and return the copy's event."""
        import pyopencl as cl

        return cl.enqueue_copy(
            queue, self.argument, host, dst_offset=begin, is_blocking=blocking,
            wait_for=after,
        )

    def copy_from(self, session: Session, other: Memory) -> None:
        """Copy another buffer of the same size, after all enqueued commands."""
        if self.array is not None:
            session.finish()
            self.array[:] = other.array
            return
        import pyopencl as cl

        session.barrier()
        copied = cl.enqueue_copy(session.queue, self.argument, other.argument)
        if len(session.queues) > 1:  # the other queues do not wait for the copy
            copied.wait()

    def sub_buffer(self, start: int, size: int) -> Any:
        """Return the kernel argument for `size` bytes from `start` on.

        `start` is a multiple of `sub_buffer_alignment`.
        """
        import pyopencl as cl

        if self.array is not None:
            return cl.SVM(self.array[start : start + size])
        return self.argument.get_sub_region(start, size)

    def flag(self, session: Session) -> bool:
        """Return whether an `int` flag is set, after all enqueued commands."""
        return bool(self.read(session, 1, "int32")[0])

    def clear_flag(self, session: Session) -> None:
        """Reset an `int` flag to 0."""
        self.write(session, np.zeros(1, np.int32))

    def view(self, dtype: str, batch: int, value: Value) -> Array:
        """Return the host's view of a value [batch, width] in shared memory."""
        assert self.array is not None
        size = batch * value.stride * np.dtype(dtype).itemsize
        rows = self.array[:size].view(dtype).reshape(batch, value.stride)
        return rows[:, : value.width]


def filled_memory(session: Session, values: Array) -> Memory:
    """Return a buffer that holds an array."""
    memory = Memory(session, values.nbytes)
    memory.write(session, values)
    return memory


def _shared_bytes(session: Session, size: int) -> Array:
    """Return zeros that host and device share, aligned to `ALIGNMENT`."""
    import pyopencl as cl

    if session.device.system_svm:
        zeros = np.zeros(size + ALIGNMENT, np.uint8)
        start = -zeros.ctypes.data % ALIGNMENT
        return zeros[start : start + size]
    flags = cl.svm_mem_flags
    array: Array = cl.svm_empty(
        session.context, flags.READ_WRITE | flags.SVM_FINE_GRAIN_BUFFER, (size,),
        np.uint8, alignment=ALIGNMENT,
    )
    array[:] = 0
    return array


def sub_buffer_alignment(session: Session) -> int:
    """Return the alignment of sub-buffers, in bytes."""
    bits: int = session.device.handle.mem_base_addr_align
    return max(ALIGNMENT, bits // 8)


def copy_rows(target: Array, source: Array) -> None:
    """Copy an array [rows, width] into another; large ones by several threads."""
    if source.nbytes < LARGE_COPY:
        target[...] = source
    else:
        _by_chunks(len(source), lambda i: np.copyto(target[i], source[i]))


def has_nan(rows: Array) -> bool:
    """Return whether an array [rows, width] has NaN; large ones by several threads."""
    if rows.nbytes < LARGE_COPY:
        least = rows.min()  # NaN, if there is one
        return bool(least != least)
    parts: list[Any] = []
    _by_chunks(len(rows), lambda i: parts.append(rows[i].min()))
    return bool(np.isnan(parts).any())


def _by_chunks(rows: int, call: Callable[[slice], object]) -> None:
    """Call a function for some rows at a time, by several threads."""
    with pieces() as count:
        count = max(1, min(count, rows))
        by_threads(call, cut(rows, count))


def copier(target: Array) -> Callable[[Array], None]:
    """Return `copy_rows` to an array, for arrays of its shape and dtype."""
    if target.nbytes < LARGE_COPY:
        return partial(target.__setitem__, ...)
    return partial(copy_rows, target)


def copy_in(session: Session, memory: Memory, host: Array) -> Action:
    """Return the upload of a whole host array to the start of a buffer."""
    import pyopencl as cl

    return partial(
        _direct("_enqueue_write_buffer") or cl.enqueue_copy, session.queue,
        memory.argument, host,
    )


def copy_out(session: Session, memory: Memory, host: Array) -> Action:
    """Return the download of the start of a buffer to a whole host array."""
    import pyopencl as cl

    direct = _direct("_enqueue_read_buffer")
    if direct is not None:
        return partial(direct, session.queue, memory.argument, host)
    return partial(cl.enqueue_copy, session.queue, host, memory.argument)


def _direct(name: str) -> Action | None:
    """Return the function behind pyopencl's `enqueue_copy`, if this version has it.

    The dispatch of `enqueue_copy` takes 1 us (2026.1).
    """
    import pyopencl as cl

    function: Action | None = getattr(cl._cl, name, None)
    return function


def staging_array(session: Session, shape: tuple[int, ...], dtype: str) -> Array:
    """Return a host array of zeros that a device copies from and to at full speed.

    For a GPU it is pinned memory: the driver needs no copy of its own, and no wait.
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


def host_buffer(session: Session, array: Array) -> Any:
    """Return the argument for a host array that a CPU's kernels read in place."""
    import pyopencl as cl

    flags = cl.mem_flags.READ_ONLY | cl.mem_flags.USE_HOST_PTR
    return cl.Buffer(session.context, flags, hostbuf=array)


class Uploader:
    """Copies to buffers on a queue of its own, while the session's computes."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._queue = None if session.device.fine_svm else session.new_queue()
        self._staging: Array = np.zeros(0, np.uint8)

    @contextmanager
    def rows(
        self, memory: Memory, first: int, count: int, stride: int, dtype: str
    ) -> Iterator[Array]:
        """Yield rows [count, stride] to be filled: a buffer's, from row `first` on.

        They are in the buffer when the context ends. The padding of each row stays as
        it is: zero.
        """
        row = stride * np.dtype(dtype).itemsize
        start, size = first * row, count * row
        if memory.array is not None:
            block = memory.array[start : start + size]
            yield block.view(dtype).reshape(count, stride)
            return
        if self._staging.size < size:
            self._staging = staging_array(self._session, (size,), "uint8")
        rows = self._staging[:size].view(dtype).reshape(count, stride)
        yield rows
        memory.upload(self._queue, rows, start, blocking=True)


def _wait_for_commands(session: Session) -> None:
    """Wait before shared memory is freed: unlike a buffer, it is freed while in use."""
    if not is_forked():
        with suppress(*session.errors):  # a device that failed runs no command
            session.finish()
