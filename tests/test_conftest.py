"""Tests that need more than the machine has are skipped, and no others."""

from children import child_environment, run_python

GPU_ALONE = """
from dataclasses import replace
from clnet.opencl import discovery
found = [replace(one, type="gpu", companions=()) for one in discovery.devices()]
discovery.devices = lambda: found
"""
IMPORTS = """
import clnet
CPU = clnet.device("cpu")

def test_it():
    pass
"""
TESTS = """
import clnet, pytest

def test_in_a_call():
    clnet.Network.mlp([3, 2]).compile("cpu", 1)

def test_in_a_fixture(cpu):
    pass

@pytest.mark.usefixtures("cpu")
def test_marked():
    pass

def test_another_error():
    clnet.device("no such device")

def test_any_device():
    assert clnet.device().type == "gpu"
"""


def test_a_machine_without_a_cpu_device(tmp_path):
    for name, content in (
        ("gpu_alone", GPU_ALONE), ("test_import", IMPORTS), ("test_calls", TESTS),
    ):
        (tmp_path / f"{name}.py").write_text(content)
    done = run_python(
        "-m", "pytest", "-q", "-rs", "-p", "conftest", "-p", "gpu_alone",
        "-p", "no:cacheprovider", ".", cwd=tmp_path,
        env=child_environment(PYTEST_ADDOPTS="", CLNET_DEVICE=""),
    )
    counts = "\n1 failed, 1 passed, 4 skipped in"
    assert counts in done.stdout, done.stdout + done.stderr
    reasons = [row for row in done.stdout.splitlines() if row.startswith("SKIPPED")]
    assert all(row.endswith("needs an OpenCL device for the CPU") for row in reasons)
