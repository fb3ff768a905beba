"""Tests' child processes: their environment, and MPI's launcher."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from waits import HANG_SECONDS

import clnet

TESTS = Path(__file__).parent
CHECKOUT = Path(clnet.__file__).parents[1]

MPIEXEC = shutil.which("mpiexec", path=Path(sys.executable).parent) or shutil.which(
    "mpiexec"
)
OPEN_MPI = {  # which refuses more ranks than cores, and root
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_ALLOW_RUN_AS_ROOT": 1, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": 1,
}


def child_environment(**variables: object) -> dict[str, str]:
    """Return this process's environment and paths of imports, with other variables.

    None removes a variable.
    """
    paths = os.pathsep.join([str(CHECKOUT), str(TESTS), *filter(None, sys.path)])
    found = {**os.environ, "PYTHONPATH": paths, **variables}
    return {name: str(value) for name, value in found.items() if value is not None}


def run_python(*arguments, **options):
    """Run this Python to its end, by `subprocess.run`; one that hangs is an error."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        **{
            "env": child_environment(), "text": True, "check": False,
            "stdout": subprocess.PIPE, "stderr": subprocess.PIPE,
            "timeout": HANG_SECONDS,
        } | options,
    )


def signalled(process, number, seconds):
    """Send a signal to a process some seconds after its first line of output.

    Return its output and its errors at its end; None: it hangs, and is killed.
    """
    first = process.stdout.readline()
    try:
        process.wait(seconds if first else HANG_SECONDS)
    except subprocess.TimeoutExpired:
        process.send_signal(number)
    try:
        out, errors = process.communicate(timeout=HANG_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return None
    return first + out, errors


def by_ranks(ranks, *arguments):
    """Return keywords of `subprocess` for so many ranks of MPI of this Python."""
    return {
        "args": [MPIEXEC, "-n", str(ranks), sys.executable, *map(str, arguments)],
        "env": child_environment(**OPEN_MPI), "text": True,
    }
