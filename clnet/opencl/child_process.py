"""Child processes: a bad driver kills one of them, not the caller's process."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

SECONDS = 120  # timeout; a cold compiler needs a few


def run_child(
    command: Sequence[str], given: bytes = b"", seconds: float = SECONDS,
    **environment: str,
) -> str:
    """Run a command with further environment variables."""
    # The child finds this clnet even if it is not installed.
    path = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    paths = os.pathsep.join(filter(None, path))
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": paths, **environment},
            input=given,
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
