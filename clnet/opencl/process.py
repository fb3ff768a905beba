"""The process that uses OpenCL: its forks may not, nor its threads while it ends.

A driver's threads do not survive a fork: a child would wait for them forever. And a
thread that returns from a driver's C++ while the interpreter ends aborts the process:
Python unwinds it through functions that allow no unwinding.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from pathlib import Path
from types import FrameType

from clnet.errors import DeviceError

PACKAGE = str(Path(__file__).parents[1])
EXIT_SECONDS = 30.0  # limit of the wait for other threads at exit, as for a build
EXIT_PAUSE = 1e-3  # seconds between two looks at them

_used = False  # by this process, or by the one that it was forked from
_forked = False  # after the use
_ends = False
_ending: set[threading.Thread] = set()  # other threads, from their next call on


def check_process() -> None:
    """Note that this process uses OpenCL, which it may do no longer.

    Called before the first of several enqueued commands, and before locks.
    """
    global _used
    if _used and not _forked and not _ends:
        return
    if _forked:
        raise DeviceError(
            "this process was forked from one that had used OpenCL, whose threads are "
            "missing here: start it by spawn, as in "
            'multiprocessing.get_context("spawn"), or fork before the first use'
        )
    if _ends and threading.current_thread() is not threading.main_thread():
        _ending.add(threading.current_thread())
        raise SystemExit
    if not _used:
        _used = True
        # The first finalizer registers the exit of them all. After it none is called,
        # and memory would be freed while commands use it: so it comes after `_end`.
        weakref.finalize(check_process, bool)
        atexit.register(_end)


def is_forked() -> bool:
    """Return whether the process is a fork of one that has used OpenCL."""
    return _forked


def _after_fork() -> None:
    global _forked
    _forked = _used


def _end() -> None:
    """Wait, for a limited time, for other threads' calls of the package.

    Later calls but finalizers compute no more, and are not waited for: a thread may
    load or store in a loop for ever. Threads that are ending are waited for until they
    have: their last frames hold OpenCL's objects.
    """
    global _ends
    if _forked:
        return
    _ends = True
    end = time.monotonic() + EXIT_SECONDS
    calls = _calls()
    while time.monotonic() < end and _go_on(calls):
        time.sleep(EXIT_PAUSE)
    for thread in tuple(_ending):
        thread.join(max(0.0, end - time.monotonic()))


def _go_on(calls: dict[int, FrameType]) -> bool:
    """Return whether a call or a finalizer goes on; drop calls that have ended.

    A thread that waits for another one is not counted: it may be a callback that never
    returns.
    """
    now = _calls()
    for thread, call in tuple(calls.items()):
        if now.get(thread) is not call:
            del calls[thread]  # and OpenCL's objects, which its frame holds
    waiting = {
        thread for thread, frame in sys._current_frames().items()
        if frame.f_code.co_filename == threading.__file__
    }
    return any(
        thread not in waiting and (thread in calls or _is_finalizer(call))
        for thread, call in now.items()
    )


def _calls() -> dict[int, FrameType]:
    """Return the frame of each other thread's call of this package."""
    this_thread = threading.get_ident()
    return {
        thread: call for thread, frame in sys._current_frames().items()
        if thread != this_thread and (call := _call(frame)) is not None
    }


def _call(frame: FrameType | None) -> FrameType | None:
    """Return the outermost frame of this package from an innermost one on, if any."""
    outermost = None
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            outermost = frame
        frame = frame.f_back
    return outermost


def _is_finalizer(call: FrameType) -> bool:
    """Return whether a call is that of an object that is dropped."""
    caller = call.f_back
    return caller is not None and caller.f_code.co_filename == weakref.__file__


if hasattr(os, "register_at_fork"):  # else there is no fork
    os.register_at_fork(after_in_child=_after_fork)
