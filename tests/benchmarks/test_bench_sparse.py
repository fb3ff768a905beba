"""The study of partially connected networks."""

from __future__ import annotations

import numpy as np
import pytest

import clnet
from clnet.cli.benchmarks import benchmarks
from clnet.nn.storage import FORMATS

study = benchmarks("sparse")
options = benchmarks("options")
cases = benchmarks("cases")
CPU = clnet.device("cpu")
GPU = clnet.Device("some gpu", "gpu")


@pytest.fixture(scope="module")
def case():
    return study.sparse_case(12, 2, 0.3, 3)


@pytest.mark.unoptimised
@pytest.mark.parametrize("name", ["csr", "dense", "auto"])
def test_formats_are_right(case, name):
    ready = study.Stored(name).prepare(case, CPU)
    assert ready.check() < 1e-4
    assert ready.timers["wall"]()(1) > 0
    if name == "auto":
        assert ready.config.partition(":")[0] in FORMATS


@pytest.mark.parametrize("batch", [1, 3])
def test_scipy_is_right(batch):
    pytest.importorskip("scipy")
    case = study.sparse_case(12, 2, 0.3, batch)
    assert study.SciPy().missing() is None
    assert study.SciPy().prepare(case, CPU).check() < 1e-4


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
        quick = study.trials(device, options.Options(effort="quick"))
        everything = study.trials(device, options.Options())
        assert len(quick) < len(everything)
        tables = {trial.table for trial in quick}
        assert tables == {"neurons", "layers", "density", "large"}
        for trial in everything:
            names = {candidate.name for candidate in trial.candidates}
            assert names >= {*FORMATS, "auto", "scipy", "numpy"} and len(names) == len(
                trial.candidates
            )
            assert trial.on_demand <= names
            assert names - study.PEERS == {*FORMATS, "auto"}
    batches = {
        t.case.batch
        for t in study.trials(CPU, options.Options(batches=(7,)))
        if t.table == "large"
    }
    assert batches == {7}


def test_memory_is_below_dense_where_few_connections_are():
    """HYB against dense: smaller below some 30% by the study's formulas."""
    text = study.memory()
    assert "density" in text
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines()[4:]}
    columns = list(FORMATS)

    def words(density, name):
        return int(rows[density][2 * columns.index(name) + 1])

    assert words("20%", "hyb") < words("20%", "dense")
    assert words("75%", "hyb") > words("75%", "dense")
    # Three words an entry cross at a third, the formulas' two at about a half.
    for line in study.meeting().splitlines()[-2:]:
        stored, formulas, ell, coo = (int(w.strip("%")) for w in line.split()[1:])
        assert coo == 34 and 30 < ell <= formulas <= 50 < stored
