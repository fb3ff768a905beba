"""The watch over a thread: whether it stands still, and in whose code."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from types import FrameType
from typing import ClassVar, NamedTuple

from clnet.errors import InputError, quoted

VARIABLE = "CLNET_HANG_SECONDS"
CALLER_SECONDS = 8.0  # that code of the caller's may stand still, without the variable
# That clnet's own may: for a device, a child process, a file. More than the timeout of
# a child process.
OWN_SECONDS = 150.0
IDLE = 0.02  # of a core: less is no work
TASKS = Path("/proc/self/task")  # of Linux: the process's threads
RUNNING, DISK = "R", "D"  # states: it has a core or waits for one; it waits for a disk
# Their calls are their caller's: the standard library, and packages that clnet calls.
LIBRARIES = (sys.stdlib_module_names - {"__main__"}) | {
    "h5py", "numpy", "pyarrow", "pyopencl", "safetensors", "scipy",
}
THREADING = {"concurrent", "queue", "threading"}  # where threads wait for threads


class Place(NamedTuple):
    """Where a thread is."""

    name: str  # The innermost function that is no library's, with its file and line
    own: bool  # Whether it is clnet's, and waits for no thread of Python

    @classmethod
    def of(cls, frame: FrameType | None) -> Place:
        """Return the place of a thread from its innermost frame."""
        frames = list(_outward(frame))
        calls = list(takewhile(lambda one: _package(one) in LIBRARIES, frames))
        if len(calls) == len(frames):
            return cls("a library", False)
        found = frames[len(calls)]
        waits_for_thread = bool(calls) and _package(calls[0]) in THREADING
        file = Path(found.f_code.co_filename).name
        return cls(
            f"{found.f_code.co_name} ({file}, line {found.f_lineno})",
            _package(found) == "clnet" and not waits_for_thread,
        )


class Watch:
    """The watch over the thread that makes it."""

    # Of all ranks' waits for each other, in which a thread may stay for long
    polls: ClassVar[int] = 0
    _watchers: ClassVar[set[int]] = set()  # native numbers of the threads that watch

    def __init__(self, limit: float) -> None:
        self._thread = threading.current_thread()
        self._limit = limit
        self._seen: tuple[object, ...] = ()
        self._still, self._used = 0.0, time.process_time()

    def hangs(self, seconds: float) -> str | None:
        """Return how long the thread has stood still, and where; None: not too long.

        It stands still if it is in one place, waits for no rank, and has not woken up
        since; no thread of the process has a core or waits for one; and the process
        uses no processor. A thread of its own calls this.
        """
        Watch._watchers.add(threading.get_native_id())
        frames = sys._current_frames()
        del frames[threading.get_ident()]
        frame = frames.pop(self._thread.ident or 0, None)
        states, used = set(_states(Watch._watchers)), time.process_time()
        seen = (
            id(frame), 0 if frame is None else frame.f_lasti, Watch.polls,
            _wake_ups(self._thread.native_id),
        )
        worked = used - self._used > IDLE * max(1.0, self._still + seconds)
        if worked or RUNNING in states or seen != self._seen:
            self._seen, self._still, self._used = seen, 0.0, used
            return None
        self._still += seconds
        place = Place.of(frame)
        own = (
            not states or DISK in states or place.own
            or any(Place.of(other).own for other in frames.values())
        )
        if self._still <= (OWN_SECONDS if own else self._limit):
            return None
        return f"for {self._still:.0f} s it has stood still in {place.name}"


def caller_seconds() -> float:
    """Return the seconds that code of the caller's may stand still."""
    text = os.environ.get(VARIABLE)
    if text is None:
        return CALLER_SECONDS
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not found > 0:
        raise InputError(f"{VARIABLE} is {quoted(text)}, expected seconds above 0")
    return found


def _outward(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _states(but: set[int]) -> Iterator[str]:
    """Yield the states of the process's threads; none where the system tells none."""
    try:
        tasks = list(TASKS.iterdir())
    except OSError:
        return
    for task in tasks:
        try:
            text = (task / "stat").read_text(errors="replace")
        except OSError:  # it has ended
            continue
        if int(task.name) not in but:
            yield text.rpartition(")")[2].split()[0]


def _wake_ups(thread: int | None) -> str:
    """Return how often a thread has run, as the system tells it; empty: unknown."""
    try:
        text = (TASKS / f"{thread}" / "status").read_text(errors="replace")
    except OSError:
        return ""
    return text[text.find("voluntary_ctxt_switches"):]
