"""Searches beside the work: a child process builds and measures for better plans.

The store and the driver's cache keep its results, from which a thread makes plans. So
no call waits for a search, and the child ends with its parent, even amid a build. A
process has one search at a time: two would disturb each other's measurements.

The child measures the best cover by the model first, and then all that may be better.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from clnet.opencl.child_trial import child_environment

if TYPE_CHECKING:
    from clnet.runtime.plan import Plan

LIMITS = 0.0, 30.0  # seconds of measuring, of each stage: nobody waits for it
MARK = b"\0"  # written when the call has been read, and after each stage
INTERPRETERS = "python", "pypy"  # an application that embeds one would start again

_free = threading.Lock()  # held while a child searches


class BackgroundSearch:
    """The search for a plan, in a child process from now on.

    The child calls `measure` with each of `LIMITS`. `make` returns the plan of the
    times that the store then has.
    """

    def __init__(
        self, measure: Callable[[float], object], make: Callable[[], Plan]
    ) -> None:
        self._make = make
        self._marks = 0
        self._taken = 1  # marks whose times are in plans: the first one has none
        self._maker: threading.Thread | None = None
        self._plan: Plan | None = None
        self._child = _started(measure)
        if self._child is not None:
            weakref.finalize(self, _end, self._child, os.getpid()).atexit = False

    @staticmethod
    def is_free() -> bool:
        """Return whether no search goes on in this process."""
        return not _free.locked()

    def take(self) -> Plan | None:
        """Return a better plan that is ready, once; None: there is none yet."""
        if self._makes:
            return None
        plan, self._plan = self._plan, None
        self._read()
        if self._taken < self._marks:
            self._taken = self._marks
            try:
                self._maker = threading.Thread(target=self._made, name="clnet-plan")
                self._maker.start()
            except RuntimeError:  # no thread can start any more
                self._maker = None
                self._made()
        return plan

    @property
    def understood(self) -> bool:
        """Whether the child has read what to call."""
        return self._marks > 0

    @property
    def ended(self) -> bool:
        """Whether no further plan will come."""
        return self._child is None and not self._makes and self._plan is None

    @property
    def _makes(self) -> bool:
        return self._maker is not None and self._maker.is_alive()

    def _read(self) -> None:
        """Count the marks that the child has written; forget a child that has ended."""
        child = self._child
        if child is None:
            return
        assert child.stdout is not None
        while written := child.stdout.read(1):
            self._marks += written == MARK
        if written is not None or self._marks > len(LIMITS):  # its end is closed
            self._child = None
            _end(child, os.getpid())

    def _made(self) -> None:
        with contextlib.suppress(Exception):  # calls go on as before
            self._plan = self._make()


def _started(measure: Callable[[float], object]) -> subprocess.Popen[bytes] | None:
    """Return a child that is to make calls; None: it cannot start."""
    name = Path(sys.executable or "").name.lower()
    can_poll = hasattr(os, "set_blocking")  # not on Windows before Python 3.12
    if not (name.startswith(INTERPRETERS) and can_poll) or hasattr(sys, "frozen"):
        return None
    try:
        order = pickle.dumps(measure)
    except Exception:  # a network of the user's own class: its methods decide
        return None
    if not _free.acquire(blocking=False):
        return None
    try:
        child = subprocess.Popen(
            (sys.executable, "-m", __name__), env=child_environment(),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is this process's
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
    except OSError:
        _free.release()
        return None
    # Before the process waits for threads that use OpenCL: those are registered first.
    atexit.register(_end, child, os.getpid())
    assert child.stdout is not None
    try:
        os.set_blocking(child.stdout.fileno(), False)
        # A thread: a pipe holds less than a large network.
        threading.Thread(
            target=_write, args=(child, order), name="clnet-search", daemon=True
        ).start()
    except (OSError, RuntimeError):
        _end(child, os.getpid())
        return None
    return child


def _write(child: subprocess.Popen[bytes], order: bytes) -> None:
    """Write what to call; the pipe stays open as long as this process lives."""
    assert child.stdin is not None
    with contextlib.suppress(OSError, ValueError):  # the child has ended
        child.stdin.write(len(order).to_bytes(8, "little") + order)
        child.stdin.flush()


def _end(child: subprocess.Popen[bytes], parent: int) -> None:
    """End a child once, unless this process is a fork of its parent.

    Nobody waits for it: its driver takes a while to leave a GPU.
    """
    assert child.stdin is not None and child.stdout is not None
    if os.getpid() != parent or child.stdout.closed:
        return
    atexit.unregister(_end)  # there is one child at a time
    child.stdout.close()
    child.kill()
    with contextlib.suppress(OSError):  # what was not written
        child.stdin.close()
    try:
        threading.Thread(target=child.wait, name="clnet-search", daemon=True).start()
    except RuntimeError:  # this process ends too
        child.returncode = 1
    _free.release()


def _end_with_parent() -> None:
    """End this process when the parent's end of the pipe is closed."""
    sys.stdin.buffer.read(1)
    os._exit(1)


def _search() -> None:
    """Make the calls that the parent has written."""
    marks = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no mark
    try:
        size = int.from_bytes(sys.stdin.buffer.read(8), "little")
        measure = pickle.loads(sys.stdin.buffer.read(size))
        threading.Thread(target=_end_with_parent, daemon=True).start()
        os.write(marks, MARK)
        for seconds in LIMITS:
            measure(seconds)
            os.write(marks, MARK)
    finally:
        os._exit(0)  # the watching thread holds standard input


if __name__ == "__main__":
    _search()
