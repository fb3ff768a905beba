"""Pages of memory maps: read from the disk, past the page cache too, or dropped.

Files that the page cache cannot hold gain nothing from it. To fill it and to map its
pages takes a core 0.4 to 0.7 s/GB, which a training on a CPU needs: NOTES.md has rates
of 0.54 GB/s by touched pages, and the disk's 0.63 past the cache.
"""

from __future__ import annotations

import io
import mmap
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from threading import Event
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SHARE = 0.5  # of the machine's memory, which the page cache may fill


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
    """Fault rows in by reading a byte of each page; return None for each array.

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


def touch_ranges(
    mapped: mmap.mmap, ranges: Iterable[tuple[int, int]], stopped: Event
) -> None:
    """Read ranges of a map, each a start and a size, to the page cache alone."""
    for first, count in ranges:
        if stopped.is_set():
            return
        start = max(0, first) // mmap.PAGESIZE * mmap.PAGESIZE
        size = min(first + count, len(mapped)) - start
        if size > 0:  # damaged files have any numbers
            touch_pages(mapped, start, size)
            drop_pages(mapped, start, size)


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


class DirectFile(io.FileIO):
    """A file for direct reads, closed when it is dropped, as an interrupt may do."""

    def __del__(self) -> None:
        self.close()


class DirectRows:
    """Arrays of one map that are read past the page cache."""

    def __init__(self, file: DirectFile, arrays: Sequence[Any]) -> None:
        self._file, self._arrays = file, arrays
        mapped = next(array for array in arrays if array is not None)
        self._start = mapped.offset // mmap.ALLOCATIONGRANULARITY * (
            mmap.ALLOCATIONGRANULARITY
        )
        self._map = mapped._mmap

    def read(self, rows: slice) -> list[Array | None]:
        """Read rows of the mapped arrays into new memory; None for the others."""
        pieces = [None if array is None else array[rows] for array in self._arrays]
        spans = [pages_of(self._map, array) for array in pieces if array is not None]
        begin = min(start for start, _ in spans)
        size = max(start + size for start, size in spans) - begin
        room = read_pages(self._file, self._start + begin, size)
        base = np.frombuffer(self._map, np.uint8).ctypes.data + begin
        return [
            None if array is None else np.ndarray(
                array.shape, array.dtype, room, array.ctypes.data - base, array.strides
            )
            for array in pieces
        ]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def direct_rows(arrays: Sequence[Any]) -> DirectRows | None:
    """Return the reader of the memory maps among some arrays.

    None unless all maps are read-only, and of one file that is too large for the page
    cache, on a system with O_DIRECT.
    """
    maps = [
        array if getattr(array, "_mmap", None) is not None else None for array in arrays
    ]
    mapped = [array for array in maps if array is not None]
    if not mapped:
        return None
    first = mapped[0]
    if any(array._mmap is not first._mmap or array.mode != "r" for array in mapped):
        return None
    file = open_direct(first.filename, len(first._mmap))
    if file is None:
        return None
    reader = DirectRows(file, maps)
    with suppress(OSError):
        reader.read(slice(0, 1))
        return reader
    return None


def open_direct(path: str | os.PathLike[str], size: int) -> DirectFile | None:
    """Return a file for reads past the page cache.

    None: the page cache may hold so many bytes, or the system has no such reads.
    """
    if not (hasattr(os, "O_DIRECT") and hasattr(os, "preadv")):
        return None
    if size < SHARE * os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE:
        return None
    try:
        # `map` calls from C: no interrupt comes between the handle and its owner.
        handles = map(os.open, [path], [os.O_RDONLY | os.O_DIRECT])
        return next(map(DirectFile, handles, ["rb"]))
    except OSError:  # the file system has no such reads
        return None


def read_pages(file: DirectFile, start: int, size: int) -> Array:
    """Return bytes of a file, from a page's begin on, in memory of their own.

    There may be more of them, to the end of the last page.
    """
    page = mmap.PAGESIZE
    room = np.empty((-(-size // page) + 1) * page, np.uint8)
    room = room[-room.ctypes.data % page :]
    done = 0
    while done < size:  # a signal may end a call early, at a page's begin
        left: Any = room[done : done + -(-(size - done) // page) * page]
        count = os.preadv(file.fileno(), [left], start + done)
        if count <= 0:
            raise OSError("the file is shorter than before")
        done += count
    return room
