"""Faults: the n-th call of OpenCL, of the file system or of NumPy's memory fails.

The functions that clnet calls are replaced by ones that count, for as long as an
`Injector` is installed: actions that bind them at their making keep the counting ones.
"""

from __future__ import annotations

import contextlib
import dis
import errno
import gc
import io
import mmap
import os
import sqlite3
import sys
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl
import pytest
from waits import until

import clnet
from clnet.errors import ClnetError
from clnet.opencl import commands
from clnet.opencl.session import Session

OPENCL_CLASSES = ("Buffer", "CommandQueue", "Context", "Kernel", "Program")
OPENCL_FUNCTIONS = (
    "enqueue_copy", "enqueue_fill_buffer", "enqueue_map_buffer",
    "enqueue_nd_range_kernel", "svm_empty",
)
OPENCL_DIRECT = ("_enqueue_read_buffer", "_enqueue_write_buffer")
OPENCL_METHODS = (
    (cl.Buffer, "get_sub_region"), (cl.CommandQueue, "finish"),
    (cl.CommandQueue, "flush"), (cl.Event, "wait"), (cl.Kernel, "set_arg"),
    (cl.Kernel, "_set_arg_buf"), (cl.Program, "build"),
)
FILE_FUNCTIONS = ("open", "preadv", "fsync", "replace", "unlink", "chmod", "mkdir",
                  "stat")
MEMORY_FUNCTIONS = (
    "empty", "zeros", "full", "array", "ascontiguousarray", "concatenate", "resize",
    "empty_like", "where",
)
OUT_OF_RESOURCES = -5
RELEASE_SECONDS = 60.0  # until a device's threads have released a command's memory
CALLS = {"CALL", "CALL_FUNCTION", "CALL_FUNCTION_EX", "CALL_FUNCTION_KW", "CALL_KW",
         "CALL_METHOD", "JUMP_BACKWARD"}
PACKAGE = str(Path(clnet.__file__).parent)


class Injector:
    """Counts the calls of a kind, and makes one of them fail."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self._kind = ""
        self._at = -1
        self._given: BaseException | None = None
        self._lock = threading.Lock()
        self._failing = False  # a launch by ctypes, which pyopencl is to repeat
        for name in OPENCL_CLASSES:
            patch.setattr(cl, name, self._made(getattr(cl, name), f"cl.{name}"))
        for name in OPENCL_FUNCTIONS:
            patch.setattr(cl, name, self._counted(getattr(cl, name), f"cl.{name}"))
        for name in OPENCL_DIRECT:
            if hasattr(cl._cl, name):
                direct = self._counted(getattr(cl._cl, name), f"cl.{name}")
                patch.setattr(cl._cl, name, direct)
        for kind, name in OPENCL_METHODS:
            if hasattr(kind, name):
                method = self._counted(getattr(kind, name), f"{kind.__name__}.{name}")
                patch.setattr(kind, name, method)
        enqueue = commands._enqueue_function()
        if enqueue is not None:
            launched = self._launched(enqueue)
            patch.setattr(commands, "_enqueue_function", lambda: launched)
        for name in FILE_FUNCTIONS:
            if hasattr(os, name):
                real = getattr(os, name)
                patch.setattr(os, name, self._counted(real, f"os.{name}"))
        patch.setattr(io, "open", self._opened(io.open))
        patch.setattr("builtins.open", io.open)
        patch.setattr(sqlite3, "connect", self._connected(sqlite3.connect))
        patch.setattr(mmap, "mmap", self._mapped())
        for name in MEMORY_FUNCTIONS:
            patch.setattr(np, name, self._counted(getattr(np, name), f"np.{name}"))

    @contextlib.contextmanager
    def interrupted(self, at: int = -1) -> Iterator[None]:
        """Interrupt the process at one point in clnet, as Ctrl-C does.

        The points are those where Python handles signals: the begin of a function, and
        the return from a call, where both have the same handler. They are counted from
        0 in the order in which they run; -1: at none.
        """
        self.calls = []
        codes: dict[Any, tuple[bytes, dict[int, int]]] = {}

        def traced(frame: Any) -> Any:
            handles = True  # the begin
            handler = -1  # of the call before; -1: of none

            def opcode(frame: Any, event: str, argument: object) -> Any:
                nonlocal handles, handler
                if event != "opcode":
                    return opcode
                if frame.f_code not in codes:
                    codes[frame.f_code] = frame.f_code.co_code, handlers(frame.f_code)
                code, found = codes[frame.f_code]
                now = found.get(frame.f_lasti, 0)
                if handles and handler in (-1, now):
                    self.calls.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
                    if len(self.calls) - 1 == at:
                        raise KeyboardInterrupt
                handles = dis.opname[code[frame.f_lasti]] in CALLS
                handler = now
                return opcode

            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            return opcode

        def called(frame: Any, event: str, argument: object) -> Any:
            inside = frame.f_code.co_filename.startswith(PACKAGE)
            return traced(frame) if inside else None

        before, hook = sys.gettrace(), sys.unraisablehook
        # Python drops an interrupt of a finalizer; pytest would keep it for the test's
        # end, with the frames that it ended, and their buffers.
        sys.unraisablehook = lambda dropped: None
        sys.settrace(called)
        try:
            yield
        finally:
            sys.settrace(before)
            sys.unraisablehook = hook

    @contextlib.contextmanager
    def failing(
        self, kind: str, at: int = -1, error: BaseException | None = None
    ) -> Iterator[None]:
        """Let the call number `at` of a kind fail, counted from 0; -1: none.

        With the error of its library, or with another one.
        """
        self.calls, self._kind, self._at, self._failing = [], kind, at, False
        self._given = error
        try:
            yield
        finally:
            self._kind, self._given = "", None

    def hit(self, name: str) -> None:
        """Count a call, and raise its error if it is its turn."""
        kind = _kind(name)
        if kind != self._kind:
            return
        with self._lock:
            if self._failing and name == "cl.enqueue_nd_range_kernel":
                self._failing = False
                raise _error(name)
            self.calls.append(name)
            mine = len(self.calls) - 1 == self._at
        if mine:
            raise self._given or _error(name)

    def _counted(self, real: Callable[..., Any], name: str) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            self.hit(name)
            return real(*args, **options)

        return counted

    def _made(self, real: type, name: str) -> type:
        """Return a class whose making counts; it is a class still to `isinstance`."""
        hit = self.hit

        def make(self: Any, *args: Any, **options: Any) -> None:
            hit(name)
            real.__init__(self, *args, **options)

        return type(real.__name__, (real,), {"__init__": make})

    def _launched(self, real: Callable[..., int]) -> Callable[..., int]:
        def launched(*args: Any) -> int:
            try:
                self.hit("cl.clEnqueueNDRangeKernel")
            except cl.Error:
                self._failing = True
                return OUT_OF_RESOURCES
            return real(*args)

        return launched

    def _opened(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def opened(*args: Any, **options: Any) -> Any:
            self.hit("io.open")
            return _File(real(*args, **options), self)

        return opened

    def _mapped(self) -> type:
        hit = self.hit

        class Mapped(mmap.mmap):
            def __new__(cls, *args: Any, **options: Any) -> Any:
                hit("mmap.mmap")
                return super().__new__(cls, *args, **options)

        return Mapped

    def _connected(self, real: Callable[..., Any]) -> Callable[..., Any]:
        hit = self.hit

        class Connection(sqlite3.Connection):
            def execute(self, *args: Any) -> Any:
                hit("sqlite3.execute")
                return super().execute(*args)

            def executescript(self, *args: Any) -> Any:
                hit("sqlite3.executescript")
                return super().executescript(*args)

        def connected(*args: Any, **options: Any) -> Any:
            hit("sqlite3.connect")
            return real(*args, **options, factory=Connection)

        return connected


class _File:
    """A file whose reads, writes and close count."""

    def __init__(self, file: Any, injector: Injector) -> None:
        self._file, self._injector = file, injector

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._file, name)
        if name in ("read", "write", "readline", "readinto", "flush", "close"):
            def counted(*args: Any) -> Any:
                try:
                    self._injector.hit(f"file.{name}")
                except BaseException:
                    if name == "close":  # it closes whatever it reports
                        found()
                    raise
                return found(*args)

            return counted
        return found

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._file)


def _kind(name: str) -> str:
    library = name.split(".", maxsplit=1)[0]
    if library in ("os", "io", "file", "mmap", "sqlite3"):
        return "file"
    return "memory" if library == "np" else "opencl"


def _error(name: str) -> Exception:
    if _kind(name) == "memory":
        return MemoryError("injected")
    if name.startswith("sqlite3"):
        return sqlite3.OperationalError("disk I/O error (injected)")
    if _kind(name) == "file":
        return OSError(errno.ENOSPC, "No space left on device (injected)")
    if name in ("cl.Buffer", "cl.enqueue_fill_buffer", "cl.svm_empty"):
        return cl.MemoryError("injected", OUT_OF_RESOURCES, name)
    return cl.RuntimeError("injected", OUT_OF_RESOURCES, name)


class Resources:
    """Resources that a failing call may leak, of sessions, the process and a folder."""

    def __init__(self, sessions: Sequence[Session], folder: Path) -> None:
        gc.collect()
        for session in sessions:
            session.finish()
        gc.collect()
        descriptors = Path("/proc/self/fd")
        self.found: dict[str, Counter[Any]] = {
            "bytes of buffers": Counter(
                dict(enumerate(session.allocated for session in sessions))
            ),
            "references to contexts": Counter(dict(enumerate(
                session.context.reference_count - _cached_programs(session)
                for session in sessions
            ))),
            "threads": Counter(thread.name for thread in threading.enumerate()),
            "open files": Counter(
                {"": len(list(descriptors.iterdir())) if descriptors.is_dir() else 0}
            ),
            "temporary files": Counter(
                path.name for path in folder.rglob("*") if path.name.endswith(".tmp")
            ),
        }

    def leaked_since(self, before: Resources) -> list[str]:
        """Return what is more than before, in words."""
        return [
            f"{name}: {dict(was)} before, {dict(self.found[name])} after"
            for name, was in before.found.items() if self.found[name] - was
        ]


def _cached_programs(session: Session) -> int:
    """Return the number of programs that a session keeps: measuring builds others."""
    return len(session._programs)


def leaks_since(
    before: Resources, sessions: Sequence[Session], folder: Path
) -> tuple[Resources, list[str]]:
    """Return the resources of now, and what is more than before for long."""
    leaked: list[str] = []
    now = before

    def none() -> bool:
        nonlocal now, leaked
        now = Resources(sessions, folder)
        leaked = now.leaked_since(before)
        return not leaked

    until(none, RELEASE_SECONDS)
    return now, leaked


def handlers(code: Any) -> dict[int, int]:
    """Return the place of the handler of each instruction that has one.

    Before Python 3.11 an instruction begins and ends a handler's part.
    """
    table = getattr(dis, "_parse_exception_table", lambda code: ())(code)
    found: dict[int, int] = {}
    for part in table:
        for at in range(part.start, part.end, 2):
            found.setdefault(at, part.target)
    return found


def outcome(scenario: Callable[[], Any]) -> Any:
    """Return a scenario's result, or the exception that it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return scenario()
        except BaseException as error:
            return error


def is_clear(error: BaseException, kind: str) -> bool:
    """Return whether an error is a sentence of clnet's, or Python's own.

    Of NumPy's memory, MemoryError; of Ctrl-C, KeyboardInterrupt.
    """
    if kind == "memory" and type(error) is MemoryError:
        return True
    if kind == "interrupt":
        return type(error) is KeyboardInterrupt
    text = str(error)
    return isinstance(error, ClnetError) and bool(text) and "\n" not in text.strip()


def assert_keeps_nothing(
    context: contextlib.AbstractContextManager[None], error: type[BaseException],
    becomes: type[BaseException],
) -> None:
    """Raise an error in a context that makes another one of it; no collector runs."""
    kept: list[weakref.ref[Any]] = []

    def fail() -> None:
        content = {"of a frame"}
        kept.append(weakref.ref(content))
        raise error

    gc.disable()
    try:
        with contextlib.suppress(becomes), context:
            fail()
        assert kept[0]() is None
    finally:
        gc.enable()
