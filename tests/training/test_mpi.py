"""Trainings by ranks of MPI: the same bits for any number of them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from children import TESTS, child_environment

pytest.importorskip("mpi4py")
MPIEXEC = shutil.which("mpiexec", path=Path(sys.executable).parent) or shutil.which(
    "mpiexec"
)
if MPIEXEC is None:
    pytest.skip("there is no mpiexec: pip install mpich", allow_module_level=True)

CHILD = TESTS / "training" / "mpi_child.py"
HANGS_SECONDS = 240
OPEN_MPI = {  # which refuses more ranks than cores, and root
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_ALLOW_RUN_AS_ROOT": 1, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": 1,
}


def run(ranks, *arguments):
    return subprocess.run(
        [MPIEXEC, "-n", str(ranks), sys.executable, *map(str, arguments)], text=True,
        env=child_environment(**OPEN_MPI), capture_output=True, timeout=HANGS_SECONDS,
    )


@pytest.fixture(scope="module")
def found():
    """The results of 1, 2 and 4 ranks."""
    results = []
    for ranks in 1, 2, 4:
        done = run(ranks, CHILD)
        assert done.returncode == 0, done.stderr[-3000:]
        results.append(json.loads(done.stdout))
    assert [one["size"] for one in results] == [1, 2, 4]
    return results


def test_any_number_of_ranks_gives_the_same_bits(found):
    for other in found[1:]:
        assert other["same_bits"] == found[0]["same_bits"]


def test_ranks_train_as_one_process(found):
    """Exactly, where sums of few digits have no rounding."""
    for one in found:
        alone, ordered, fast = one["exact"]
        assert any(alone)
        assert ordered == alone
        assert fast == alone
