"""Functions of the benchmarks in processes of their own: once, or as often as asked."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import clnet
from clnet.errors import ClnetError
from clnet.opencl.device import Device
from clnet.opencl.discovery import devices

from .candidates import Prepared, Wrapped
from .cases.dense import Case

TINY = Case("tiny", (3, 4, 2), "tanh", 2)
TIMEOUT = 60.0  # seconds for the tiny case
LIMIT = 120.0  # seconds of an answer; the first one waits for the libraries too
END_SECONDS = 5.0
# The child takes the parent's path of the package, which may include the benchmarks.
CHILD = (
    "import pickle, sys, clnet; data = {}; clnet.__path__[:] = pickle.load(data); "
    "function, *values = pickle.load(data); function(*values)"
)


class CrashedError(ClnetError):
    """A process of a measurement failed."""


def run_in_child(
    timeout: float, environment: Mapping[str, str] | None,
    function: Callable[..., object], *values: object,
) -> subprocess.CompletedProcess[bytes]:
    """Call a function of the benchmarks in a new process, and return its output.

    The environment is this process's where it is None.
    """
    return subprocess.run(
        [sys.executable, "-c", CHILD.format("sys.stdin.buffer")],
        input=_pickled(function, *values), capture_output=True, timeout=timeout,
        env=environment, check=False,
    )


def _pickled(*call: object) -> bytes:
    return pickle.dumps(list(clnet.__path__)) + pickle.dumps(call)


class Processes:
    """Processes that repeat a measurement until this object is gone.

    Each calls a module's function with pickled arguments. It reads numbers, a line of
    them a call, and writes a line of JSON each. A `launcher` may start several
    processes of one call. CrashedError, from a call: a process fails, or does not
    answer in `LIMIT` seconds.
    """

    def __init__(
        self, calls: Sequence[tuple[object, ...]], launcher: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        self._errors = (folder / "errors").open("w+b")
        code = CHILD.format("open(sys.argv[1], 'rb')")
        paths = os.pathsep.join([str(Path(clnet.__file__).parents[1]), *sys.path])
        self._processes = []
        for number, call in enumerate(calls):
            file = folder / f"{number}.pickle"
            file.write_bytes(_pickled(*call))
            self._processes.append(subprocess.Popen(
                [*launcher, sys.executable, "-c", code, str(file)],
                env={**os.environ, **(environment or {}), "PYTHONPATH": paths},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            ))

    def __call__(self, *numbers: int) -> Any:
        """Return the first process's answer to some numbers."""
        line = (" ".join(map(str, numbers)) + "\n").encode()
        answers = []
        try:
            for process in self._processes:
                assert process.stdin is not None
                process.stdin.write(line)
                process.stdin.flush()
        except BrokenPipeError:
            raise CrashedError(self._first_error()) from None
        for process in self._processes:
            assert process.stdout is not None
            if not select.select([process.stdout], [], [], LIMIT)[0]:
                self.end()
                raise CrashedError(f"the processes did not answer in {LIMIT:g} s")
            answers.append(process.stdout.readline())
            if not answers[-1]:
                raise CrashedError(self._first_error())
        return json.loads(answers[0])

    def end(self) -> None:
        """End the processes, which end at the end of their input."""
        for process in self._processes:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.terminate()  # a launcher ends what it has started
                process.wait(END_SECONDS)
            assert process.stdout is not None
            process.stdout.close()
        self._errors.close()
        self._folder.cleanup()

    __del__ = end

    def _first_error(self) -> str:
        """Return the first exception that a process wrote."""
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()
        raised = [line for line in lines if "Error: " in line]
        return (raised or ["a process crashed"])[0]


@dataclass(frozen=True)
class Guarded(Wrapped):
    """A baseline that first computes a tiny case in a child process."""

    def prepare(self, case: Any, device: Device) -> Prepared:
        """Return the baseline prepared; CrashedError: the child crashed or hung."""
        reason = _crash(self.candidate, device.index, device.name)
        if reason is not None:
            raise CrashedError(reason)
        prepared: Prepared = self.candidate.prepare(case, device)
        return prepared


@lru_cache
def _crash(baseline: Any, index: str, name: str) -> str | None:
    """Return None if a baseline survives a tiny case or raises; else a sentence."""
    try:
        done = run_in_child(TIMEOUT, None, compute_tiny_case, baseline, index, name)
    except subprocess.TimeoutExpired:
        return f"a tiny case was not done after {TIMEOUT:g} s in a child process"
    if done.returncode < 0:
        ended_by = signal.Signals(-done.returncode).name
        return f"it ended its process by {ended_by} on a tiny case"
    return None


def compute_tiny_case(baseline: Any, index: str, name: str) -> None:
    """Compute a tiny case by a baseline, in the child process."""
    device = next((d for d in devices() if d.index == index), Device(name))
    baseline.prepare(TINY, device).check()
