"""Peers that may take the process with them: tried in a child process first."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from clnet.errors import ClnetError
from clnet.opencl.device import Device
from clnet.opencl.discovery import devices

from .candidates import Candidate, Prepared
from .cases import Case

TINY = Case("tiny", (3, 4, 2), "tanh", 2)
PATIENCE = 60.0  # seconds for the child
CHILD = (
    "import sys; from clnet.cli.benchmarks import benchmarks; "
    "benchmarks('guard').try_out(sys.stdin.buffer.read())"
)


class DeadError(ClnetError):
    """A peer ended its process."""


@dataclass(frozen=True)
class Guarded:
    """A peer that is asked for a tiny case in a child process before it is used.

    Attributes
    ----------
    peer : Candidate
        Who.
    """

    peer: Candidate

    @property
    def name(self) -> str:
        """The peer's."""
        return self.peer.name

    @property
    def patience(self) -> float | None:
        """The peer's."""
        return self.peer.patience

    def missing(self) -> str | None:
        """Return what the peer says."""
        return self.peer.missing()

    def prepare(self, case: Any, device: Device) -> Prepared:
        """Return it ready.

        Raises
        ------
        DeadError
            If it ends a child process, or does not let it end.
        """
        peer: Any = self.peer  # a frozen record, which can be hashed
        reason = _death(peer, device.index, device.name)
        if reason is not None:
            raise DeadError(reason)
        return self.peer.prepare(case, device)


@lru_cache
def _death(peer: Any, *device: str) -> str | None:
    """Return None if a peer survives a tiny case, or only raises; else a sentence."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", CHILD], input=pickle.dumps((peer, device)),
            capture_output=True, timeout=PATIENCE, check=False,
        )
    except subprocess.TimeoutExpired:
        return f"a tiny case was not done after {PATIENCE:g} s in a process of its own"
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        return f"it ended its process by {name} on a tiny case"
    return None


def try_out(pickled: bytes) -> None:
    """Let a peer compute a tiny case: what the child process does."""
    peer, (index, name) = pickle.loads(pickled)
    device = next((d for d in devices() if d.index == index), Device(name))
    peer.prepare(TINY, device).check()
