"""Killed, interrupted and full: files stay whole, and the next call is right."""

import signal

import pytest
from children import child_environment, run_python

import clnet
from faults.kills import FILES, HEAD, WORK, outcome
from faults.resumed import differences


@pytest.mark.parametrize("work", FILES)
def test_a_killed_process_leaves_whole_files(work, tmp_path):
    """``python -m tests.faults`` kills many more."""
    found = outcome(work, signal.SIGKILL, tmp_path, FILES.index(work))
    assert found.problems == []
    assert found.processes == 1
    assert found.files > 0


def test_a_terminated_process_leaves_whole_files(tmp_path):
    assert outcome("checkpoint", signal.SIGTERM, tmp_path, 1).problems == []


@pytest.mark.parametrize("work", WORK)
def test_after_an_interrupt_the_next_call_is_right(work, tmp_path):
    assert outcome(work, signal.SIGINT, tmp_path, 0).problems == []


FULL = HEAD + """
import resource, signal, warnings
network.fit(x, t, device=CPU, epochs=1, seed=1)  # PoCL builds kernels into files
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
network.parameters = network.parameters * 0
for path in (folder / "net.safetensors", folder / "net.net"):
    try:
        network.save(path)
    except clnet.FormatError as error:
        print(error)
try:
    network.fit(
        x, t, device=CPU, epochs=2, seed=1,
        callbacks=[clnet.Checkpoint(folder / "net.safetensors")],
    )
except clnet.FormatError as error:
    print(error)
store = Store(CPU, folder)
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    for number in range(100):
        store.put("span", f"key {number}" * 50, Timing(1.0, 2.0, 0.5))
assert store.get("span", "key 7" * 50) == Timing(1.0, 2.0, 0.5)
print([str(one.message) for one in warned])
"""


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize("limit", [0, 4096])
def test_on_a_full_disk_files_stay_as_they_were(limit, tmp_path):
    network = clnet.Network.mlp([20, 40, 30], "tanh", seed=2)
    files = tmp_path / "net.safetensors", tmp_path / "net.net"
    for path in files:
        network.save(path)
    before = [path.read_bytes() for path in files]
    child = run_python(
        "-c", FULL, tmp_path, limit, env=child_environment(CLNET_CACHE_DIR=tmp_path)
    )
    assert child.returncode == 0, child.stderr
    *errors, warned = child.stdout.splitlines()
    assert len(errors) == 3
    assert all(error.startswith("cannot write ") for error in errors)
    assert warned.count("measured times are not remembered") == 1
    assert [path.read_bytes() for path in files] == before
    assert list(tmp_path.glob(".clnet-*")) == []


@pytest.mark.parametrize(("case", "every"), [
    ("shuffled", 1), pytest.param("sparse", 3, marks=pytest.mark.sweep),
])
def test_a_killed_training_that_resumes_ends_with_the_same_bits(case, every, tmp_path):
    """``python -m tests.faults.resumed`` kills many more, in all cases."""
    _, wrong = differences(case, tmp_path, every, 24, 1)
    assert wrong == []
