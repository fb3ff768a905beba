"""Baselines that may crash the process: run in a child process first."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import clnet
from clnet.errors import ClnetError
from clnet.opencl.device import Device
from clnet.opencl.discovery import devices

from .candidates import Candidate, Prepared
from .cases.dense import Case

TINY = Case("tiny", (3, 4, 2), "tanh", 2)
TIMEOUT = 60.0  # seconds for the child
# The child takes the parent's path of the package, which may include the benchmarks.
CHILD = (
    "import pickle, sys, clnet; data = sys.stdin.buffer; "
    "clnet.__path__[:] = pickle.load(data); function, *values = pickle.load(data); "
    "function(*values)"
)


class CrashedError(ClnetError):
    """A baseline ended its process."""


@dataclass(frozen=True)
class Guarded(Candidate):
    """A baseline that first computes a tiny case in a child process.

    Attributes
    ----------
    baseline : Candidate
        The baseline.
    """

    baseline: Candidate
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.baseline.name)
        object.__setattr__(self, "timeout", self.baseline.timeout)

    def missing(self) -> str | None:
        """Return the baseline's reason."""
        return self.baseline.missing()

    def prepare(self, case: Any, device: Device) -> Prepared:
        """Return the baseline prepared.

        Raises
        ------
        CrashedError
            If the child process crashes, or does not end.
        """
        baseline: Any = self.baseline  # a frozen dataclass, which is hashable
        reason = _crash(baseline, device.index, device.name)
        if reason is not None:
            raise CrashedError(reason)
        return self.baseline.prepare(case, device)


def run_in_child(
    timeout: float, environment: Mapping[str, str] | None,
    function: Callable[..., object], *values: object,
) -> subprocess.CompletedProcess[bytes]:
    """Call a function of the benchmarks in a new process, and return its output.

    Parameters
    ----------
    timeout : float
        Seconds until `subprocess.TimeoutExpired`.
    environment : mapping or None
        Its environment variables; None: this process's.
    function : callable
        A module's function.
    *values
        Its arguments, pickled.
    """
    data = pickle.dumps(list(clnet.__path__)) + pickle.dumps((function, *values))
    return subprocess.run(
        [sys.executable, "-c", CHILD], input=data, capture_output=True,
        timeout=timeout, env=environment, check=False,
    )


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
