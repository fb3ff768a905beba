"""Trainings by ranks of MPI: the same bits for any number of them."""

from __future__ import annotations

import json
import subprocess

import numpy as np
import pytest
from children import MPIEXEC, TESTS, by_ranks
from faults.ranks import differing_settings
from waits import HANG_SECONDS

pytest.importorskip("mpi4py")
if MPIEXEC is None:
    pytest.skip("there is no mpiexec: pip install mpich", allow_module_level=True)

CHILD = TESTS / "training" / "mpi_child.py"
FAULT = """
import os, signal, sys
from mpi4py import MPI
from clnet.runtime.ranks import joined

with joined(MPI.COMM_WORLD, "gather") as ranks:
    for number in range(5):
        ranks.gathered(number)
    if not ranks.first:
        if sys.argv[1] == "RAISES":
            raise ZeroDivisionError("by no number")
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    ranks.gathered(number)
"""


def run(ranks, *arguments):
    return subprocess.run(
        **by_ranks(ranks, *arguments), capture_output=True, timeout=HANG_SECONDS
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The results of 1, 2 and 4 ranks, whose steps all have the same blocks."""
    results, folder = {}, tmp_path_factory.mktemp("ranks")
    for ranks in 1, 2, 4:
        done = run(ranks, CHILD, folder)
        assert done.returncode == 0, done.stderr[-3000:]
        results[ranks] = json.loads(done.stdout)
        assert results[ranks]["size"] == ranks
        results[ranks]["stderr"] = done.stderr
    return results


def test_any_number_of_ranks_gives_the_same_bits(found):
    for ranks in 2, 4:
        assert found[ranks]["same_bits"] == found[1]["same_bits"]


@pytest.mark.sweep
def test_eight_ranks_give_the_same_bits():
    """In random settings, which `tests.faults.ranks` draws."""
    assert differing_settings(0, 5) == []


def test_samples_that_are_read_by_parts_give_the_same_bits(found):
    """Also where trainings are resumed; each rank reads its samples alone."""
    for ranks in 1, 2, 4:
        assert found[ranks]["by_parts"] == found[1]["by_parts"]
    first, *others = found[1]["by_parts"]
    assert all(other == first for other in others)


def test_losses_are_those_of_the_oracle(found):
    """Each sample counts, also of blocks that have some in the last step alone."""
    exact, bound = map(np.array, found[1]["exact_losses"])
    assert (bound < exact / 1e4).all()  # a sample left out is some hundredth
    for ranks in 1, 2:
        assert (abs(found[ranks]["losses"] - exact) <= bound).all()
        with_weights, without = found[ranks]["ignored"]
        assert with_weights < 2 < 1e9 < without


def test_sums_during_the_backward_pass_have_the_same_bits(found):
    """By SGD, whose steps show a wrong scale; with shared memory and with copies."""
    for ranks in 1, 2, 4:
        checksums, plans = found[ranks]["in_pieces"]
        assert set(checksums) == {found[1]["in_pieces"][0][0]}
        early = ["\n0% of the gradients" not in plan for plan in plans]
        assert early == [True, False] * 2


def test_ranks_share_the_networks_of_a_population(found):
    """Of five networks, four ranks have one or two each; bits are those of none."""
    for ranks in 1, 2, 4:
        alone, shared = found[ranks]["population"]
        assert shared == alone
        assert shared == found[1]["population"][0]
    assert shared[2] == [1, 2, 3, 2, 1]


def test_ranks_share_a_population_on_samples_that_are_read_by_parts(found):
    """Of three networks, one of four ranks has none."""
    for ranks in 1, 2, 4:
        alone, shared = found[ranks]["population_by_parts"]
        assert shared == alone
        assert shared == found[1]["population_by_parts"][0]
    assert shared[2][0].startswith("the epoch is done")


def test_the_restored_network_has_the_reported_loss(found):
    for reported, expected in found[2]["restored"]:
        assert reported == pytest.approx(expected, rel=1e-5)


def test_ranks_train_as_one_process(found):
    """Exactly, where sums of few digits have no rounding."""
    alone, ordered, fast = found[2]["exact"]
    assert any(alone)
    assert ordered == alone
    assert fast == alone


def test_ranks_predict_as_one_process(found):
    """Exactly, as above."""
    (alone, error), *others, (written, _), of_file = found[2]["predictions"]
    assert [*others, of_file] == [[alone, error]] * 2
    assert written == alone


def test_the_command_line_trains_by_ranks(found):
    *statuses, checksum = found[1]["command_line"]
    assert statuses == [0, 2]
    assert found[2]["command_line"] == [0, 2, checksum]
    assert found[2]["stderr"].count("there is no") == 1, "each rank tells it"


@pytest.mark.parametrize(("wrong", "words"), [
    ("x", "rank 1 of 2 has an x of shape [101, 4], and rank 0 [101, 5]"),
    ("t", "targets have shape [100, 2], expected [101, 2]"),
    ("call", "rank 1 of 2 has called evaluate, and rank 0 predict"),
    ("iterable", "whose rows ranks cannot share"),
    ("batches", "x is 'BatchSource', whose rows ranks cannot share"),
    ("network", "rank 1 of 2 has network 5-7-2 float32, and rank 0 5-6-2 float32"),
    ("samples", "rank 1 of 2 has samples 100, and rank 0 101"),
    ("tune", "tune must be True, False or None, not 'yes'"),
    ("blocks", "blocks is 3, expected a power of two"),
    ("incremental", "a step of incremental has"),
    ("alone", "blocks is 4, and no ranks share them: give comm"),
    ("comm", "comm must be a communicator of mpi4py"),
])
def test_all_ranks_raise_what_is_wrong_on_one(found, wrong, words):
    texts = found[2]["errors"][wrong]
    assert len(texts) == 2
    assert all(words in text for text in texts), texts


@pytest.mark.parametrize(("fault", "sentence"), [
    ("RAISES", "clnet: rank 1 of 2 failed: ZeroDivisionError: by no number"),
    ("SIGKILL", ""),  # mpiexec tells of it, and ends the others
])
def test_all_ranks_end_when_one_fails(fault, sentence):
    """``python -m tests.faults.ranks`` lets ranks fail while they train."""
    done = run(2, "-c", FAULT, fault)
    assert done.returncode != 0
    assert sentence in done.stderr
    assert done.stderr.count("clnet:") == bool(sentence)
