"""The study of partially connected networks."""

import numpy as np
import pytest
from clnet.benchmarks import harness
from clnet.benchmarks.studies import sparse
from studies import GPU

import clnet
from clnet.nn.storage.formats import FORMATS

CPU = clnet.device("cpu")


@pytest.fixture(scope="module")
def case():
    return sparse.sparse_case(12, 2, 0.3, 3)


@pytest.mark.parametrize("name", ["csr", "dense", "auto"])
def test_formats_are_right(case, name):
    prepared = sparse.Stored(name).prepare(case, CPU)
    assert prepared.check() < 1e-4
    assert prepared.timers["wall"]()(1) > 0
    if name == "auto":
        assert prepared.config.partition(":")[0] in FORMATS


@pytest.mark.parametrize("batch", [1, 3])
def test_scipy_is_right(batch):
    pytest.importorskip("scipy")
    case = sparse.sparse_case(12, 2, 0.3, batch)
    assert sparse.SciPy().missing() is None
    assert sparse.SciPy().prepare(case, CPU).check() < 1e-4


def test_formats_hold_the_same_weights(case):
    from dataclasses import replace

    for name in FORMATS:
        other = replace(case, stored=name).network
        for number in range(2):
            np.testing.assert_array_equal(
                other.weights(number), case.network.weights(number)
            )


def test_trials():
    for device in (CPU, GPU):
        quick = sparse.trials(device, harness.Options(effort="quick"))
        everything = sparse.trials(device, harness.Options())
        assert len(quick) < len(everything)
        tables = {trial.table for trial in quick}
        assert tables == {"neurons", "layers", "density", "large"}
        for trial in everything:
            names = {candidate.name for candidate in trial.candidates}
            assert names >= {*FORMATS, "auto", "scipy", "numpy"} and len(names) == len(
                trial.candidates
            )
            assert trial.on_demand <= names
            assert names - sparse.BASELINES == {*FORMATS, "auto"}
    batches = {
        t.case.batch
        for t in sparse.trials(CPU, harness.Options(batches=(7,)))
        if t.table == "large"
    }
    assert batches == {7}


def test_formats_are_smaller_than_dense_at_low_density():
    """HYB against dense: smaller below some 30% by the study's formulas."""
    words = sparse.memory(sparse.study_bytes)
    assert words.loc["20%", "hyb"] < words.loc["20%", "dense"]
    assert words.loc["75%", "hyb"] > words.loc["75%", "dense"]
    # Three words an entry cross at a third, the formulas' two at about a half.
    for _, (stored, formulas, ell, coo) in sparse.break_even().iterrows():
        assert coo == 34 and 30 < ell <= formulas <= 50 < stored
