"""Pages of memory maps: read from the disk, or dropped from the process's memory."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def pages_of(mapped: mmap.mmap, array: Array) -> tuple[int, int]:
    """Return the first byte and the number of bytes of an array's pages in a map."""
    base = np.frombuffer(mapped, np.uint8).ctypes.data
    low = array.ctypes.data - base
    high = low + array.itemsize
    for size, stride in zip(array.shape, array.strides, strict=True):
        span = (size - 1) * stride
        low, high = low + min(span, 0), high + max(span, 0)
    start = low // mmap.PAGESIZE * mmap.PAGESIZE
    return start, high - start


def touch(arrays: Sequence[Any], rows: slice) -> list[Array | None]:
    """Read rows of memory maps from the disk: a byte of each page; return none of them.

    The system's advice to do so reads no more than its read-ahead at a time.
    """
    for array in arrays:
        mapped = getattr(array, "_mmap", None)
        if mapped is not None:
            touch_pages(mapped, *pages_of(mapped, array[rows]))
    return [None] * len(arrays)


def touch_pages(mapped: mmap.mmap, start: int, size: int) -> None:
    """Read pages of a map from the disk."""
    np.frombuffer(mapped, np.uint8, size, start)[:: mmap.PAGESIZE].max(initial=0)


def forget(array: Any) -> None:
    """Let the system drop the pages of a memory map from the process's memory.

    They stay in the page cache and in the file. Maps of mode ``"c"`` are left alone:
    their pages may differ from the file's.
    """
    mapped = getattr(array, "_mmap", None)
    if mapped is not None and getattr(array, "mode", "c") != "c":
        drop_pages(mapped, *pages_of(mapped, array))


def drop_pages(mapped: mmap.mmap, start: int = 0, size: int | None = None) -> None:
    """Let the system drop pages of a map from the process's memory, where it can."""
    advice = getattr(mmap, "MADV_DONTNEED", None)
    if advice is not None:
        mapped.madvise(advice, start, len(mapped) - start if size is None else size)
