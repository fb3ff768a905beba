"""Memory: bytes behind buffers, which no kernel may write; what a call allocates."""

from __future__ import annotations

import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pyopencl as cl

from clnet.opencl.memory import Memory

GUARD_BYTES = 4096
PATTERN = 0xFF  # of floats, NaN: kernels that read it give NaN


class GuardedMemory:
    """The buffers made in `installed`, which live until `written` is called."""

    def __init__(self) -> None:
        self._new: list[Memory] = []
        self._made: weakref.WeakKeyDictionary[Memory, tuple[Any, int]] = (
            weakref.WeakKeyDictionary()
        )

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Add a guard to each `Memory` that is made in the context."""
        make = Memory.__init__

        def guarded(memory: Memory, session: Any, size: int) -> None:
            size = max(size, 1)
            make(memory, session, size + GUARD_BYTES)
            memory.size = size  # callers decide by it whether their data fit
            guard = np.full(GUARD_BYTES, PATTERN, np.uint8)
            if memory.array is not None:
                memory.array[size : size + GUARD_BYTES] = guard
            else:
                cl.enqueue_copy(
                    session.queue, memory.argument, guard, dst_offset=size,
                    is_blocking=True,
                )
            self._made[memory] = session, size
            self._new.append(memory)

        with mock.patch.object(Memory, "__init__", guarded):
            yield

    def written(self) -> list[int]:
        """Return the sizes of buffers whose guard was written, in bytes.

        Waits for all commands.
        """
        found = []
        for memory, (session, size) in list(self._made.items()):
            session.finish()
            guard = np.empty(GUARD_BYTES, np.uint8)
            if memory.array is not None:
                guard[:] = memory.array[size : size + GUARD_BYTES]
            else:
                cl.enqueue_copy(
                    session.queue, guard, memory.argument, src_offset=size,
                    is_blocking=True,
                )
            if (guard != PATTERN).any():
                found.append(size)
                del self._made[memory]
        self._new.clear()
        return found


def peak_of(call: Callable[[], object]) -> int:
    """Return the most bytes that a call allocates."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
