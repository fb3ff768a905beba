"""Searches beside the work: a child process builds and measures for better plans.

The store and the driver's cache keep its results, from which a thread makes plans. So
no call waits for a search, and the child ends with its parent, even amid a build.

The child measures the best cover by the model first, and then all that may be better.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from clnet.errors import ClnetError
from clnet.opencl.child_trial import child_environment

if TYPE_CHECKING:
    from clnet.runtime.plan import Plan

LIMITS = 0.0, 30.0  # seconds of measuring, of each stage: nobody waits for it


class BackgroundSearch:
    """The search for a plan, in a child process from now on.

    The child calls `measure` with each of `LIMITS`. `make` returns the plan of the
    times that the store then has.
    """

    def __init__(
        self, measure: Callable[[float], object], make: Callable[[], Plan]
    ) -> None:
        self._make = make
        self._child: subprocess.Popen[bytes] | None = None
        self._stages = 0  # whose times are taken into plans
        self._maker: threading.Thread | None = None
        self._plan: Plan | None = None
        if getattr(sys, "frozen", False):
            return  # the interpreter is an application, which would start again
        with contextlib.suppress(
            OSError, pickle.PicklingError, AttributeError, TypeError
        ):
            order = pickle.dumps(measure)
            child = self._child = subprocess.Popen(
                (sys.executable, "-m", __name__), env=child_environment(),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            weakref.finalize(self, _end, child, os.getpid())
            assert child.stdout is not None
            os.set_blocking(child.stdout.fileno(), False)
            # A thread: a pipe holds less than a large network.
            threading.Thread(
                target=_write, args=(child, order), name="clnet-search", daemon=True
            ).start()

    def take(self) -> Plan | None:
        """Return a better plan that is ready, once; None: there is none yet."""
        if self._maker is not None and self._maker.is_alive():
            return None
        plan, self._plan = self._plan, None
        if self._measured():
            self._stages += 1
            self._maker = threading.Thread(target=self._made, name="clnet-plan")
            self._maker.start()
        return plan

    @property
    def ended(self) -> bool:
        """Whether no further plan will come."""
        if self._stages == len(LIMITS):
            making = self._maker is not None and self._maker.is_alive()
            return not making and self._plan is None
        return self._child is None or self._child.poll() not in (None, 0)

    def _measured(self) -> bool:
        """Return whether a further stage has come to its end."""
        if self._child is None or self._stages == len(LIMITS):
            return False
        assert self._child.stdout is not None
        return bool(self._child.stdout.read(1))

    def _made(self) -> None:
        with contextlib.suppress(ClnetError, MemoryError):  # calls go on as before
            self._plan = self._make()


def _write(child: subprocess.Popen[bytes], order: bytes) -> None:
    """Write what to call; the pipe stays open as long as this process lives."""
    assert child.stdin is not None
    with contextlib.suppress(OSError, ValueError):  # the child has ended
        child.stdin.write(len(order).to_bytes(8, "little") + order)
        child.stdin.flush()


def _end(child: subprocess.Popen[bytes], parent: int) -> None:
    """End a child, unless this process is a fork of its parent.

    Nobody waits for it: its driver takes half a second to leave a GPU.
    """
    if os.getpid() != parent:
        return
    child.kill()
    try:
        threading.Thread(target=child.wait, name="clnet-search", daemon=True).start()
    except RuntimeError:  # this process ends too
        child.returncode = -signal.SIGKILL
    for pipe in (child.stdin, child.stdout):
        assert pipe is not None
        with contextlib.suppress(OSError):
            pipe.close()


def _end_with_parent() -> None:
    """End this process when the parent's end of the pipe is closed."""
    sys.stdin.buffer.read(1)
    os._exit(1)


def _search() -> None:
    """Make the calls that the parent has written."""
    size = int.from_bytes(sys.stdin.buffer.read(8), "little")
    measure = pickle.loads(sys.stdin.buffer.read(size))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    warnings.simplefilter("ignore")
    for seconds in LIMITS:
        measure(seconds)
        os.write(sys.stdout.fileno(), b".")
    os._exit(0)  # the watching thread holds standard input


if __name__ == "__main__":
    _search()
