"""Child trials: on an untested runtime, a call runs in a child process first.

A kernel that kills its compiler or its process then costs a candidate or a capability.
The store remembers the outcome: each call is tried once per driver. So its limit is
that of the child's own processor time, which other programs do not use up.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clnet.errors import DeviceError

if TYPE_CHECKING:
    from clnet.opencl.device import Device
    from clnet.opencl.store import Store

CHILD_SECONDS = 120  # timeout; a cold compiler needs a few
PROCESSOR_SECONDS = 120  # a compiler may need a third of them
SECONDS = 10 * PROCESSOR_SECONDS  # of the wait, for a child that computes nothing
UNTRIED = "the call was not made"


def child_environment(**environment: str) -> dict[str, str]:
    """Return the variables of a child, which finds this clnet even if not installed.

    And not another one in the folder where it is started, from Python 3.11 on.
    """
    path = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    paths = os.pathsep.join(filter(None, path))
    safe = {"PYTHONPATH": paths, "PYTHONSAFEPATH": "1"}
    return {**os.environ, **safe, **environment}


def run_child(
    command: Sequence[str], written: bytes = b"", seconds: float = CHILD_SECONDS,
    **environment: str,
) -> str:
    """Run a command with further environment variables."""
    try:
        done = subprocess.run(
            command,
            env=child_environment(**environment),
            input=written,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {seconds} s"
    if done.returncode < 0:
        names = {number.value: number.name for number in signal.Signals}
        return f"killed by {names.get(-done.returncode, f'signal {-done.returncode}')}"
    if done.returncode > 0:
        lines = (done.stderr or done.stdout).decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        return last.strip() or f"exit status {done.returncode}"
    return ""


def survives(
    store: Store, key: str, function: Callable[..., object], *arguments: object
) -> bool:
    """Return whether a call leaves its process alive, tried once per driver."""
    name = f"survives {key}"
    survived = store.fact(name)
    if survived is None:
        try:
            call = pickle.dumps((function, arguments))
        except (pickle.PicklingError, AttributeError, TypeError):
            return True
        outcome = run_child((sys.executable, "-m", __name__), call, SECONDS)
        survived = not outcome
        if outcome != UNTRIED:
            store.put_fact(name, survived)
    return survived


def death(name: str, device: Device) -> str:
    """Return the sentence of a variant whose call did not survive."""
    return f"{name} would end the process on {device.name}, as it did a child process"


def _limit_processor_time() -> None:
    """Let the system end this process after `PROCESSOR_SECONDS`; not on Windows."""
    with contextlib.suppress(ImportError):
        import resource

        limit = resource.RLIMIT_CPU
        _, most = resource.getrlimit(limit)
        with contextlib.suppress(ValueError):  # beyond the user's own limit
            resource.setrlimit(limit, (PROCESSOR_SECONDS, most))


def _run() -> None:
    """Make the call that the parent has written."""
    _limit_processor_time()
    with contextlib.suppress(Exception):  # the parent meets it too
        try:
            function, arguments = pickle.load(sys.stdin.buffer)
        except DeviceError:  # under load, a driver may show no devices to one process
            sys.exit(UNTRIED)
        function(*arguments)


if __name__ == "__main__":
    _run()
