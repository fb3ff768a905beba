"""The study of populations, at tiny sizes; no test asserts a time."""

from dataclasses import replace

import pytest
from clnet.benchmarks import command, harness
from clnet.benchmarks.baselines.fann import FannTraining
from clnet.benchmarks.baselines.jax import JaxTraining
from clnet.benchmarks.studies import population, small
from clnet.benchmarks.studies.population import OneByOne, ScikitLearnProcesses, Together
from studies import CPU, rows_of

pytestmark = pytest.mark.usefixtures("hurried")
CASES = {case.name: case for case in population.population_cases(small.DATA)}


@pytest.mark.parametrize("name", ["xor-1000", "iris-200"])
def test_candidates_find_the_oracles_errors(name, cpu):
    if CASES[name].missing() is not None:
        pytest.skip(CASES[name].missing())
    case = replace(CASES[name], networks=3)
    peer = ScikitLearnProcesses() if case.by_loss else FannTraining()
    for one in (Together(), OneByOne(), peer, JaxTraining()):
        if one.missing() is None:
            prepared = one.prepare(case, cpu)
            assert prepared.check() < case.tolerance
            prepared.train(case.checked + 2)  # more epochs than are checked


def test_cases_are_full_batches():
    assert {case.name.rpartition("-")[0] for case in CASES.values()} == {
        "xor", "parity", "robot", "gene", "mushroom", "iris", "digits", "fold"
    }
    assert all(case.batch == case.samples for case in CASES.values())
    more = population.population_cases(small.DATA, full=True)
    assert len(more) > len(CASES)


def test_the_study_reports_both_bases(cpu):
    trials = population.trials(CPU, harness.Options(effort="quick"))
    chosen = command.select(
        trials, harness.Options(baselines=["none"], cases=["xor-1000"]),
        population.BASELINES,
    )
    kept = [
        row for trial in chosen for row in rows_of(
            replace(trial, case=replace(trial.case, networks=4)), cpu,
            ("epoch", "fit"),
        )
    ]
    assert not [row.reason for row in kept if row.status != "measured"]
    assert {(row.candidate, row.basis) for row in kept} == {
        (name, basis) for name in ("population", "one-by-one")
        for basis in ("epoch", "fit")
    }
    assert "of all networks" in population.report(command.table_of(kept))
