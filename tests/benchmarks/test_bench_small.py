"""The study of small networks, at tiny sizes; no test asserts a time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from clnet.benchmarks import candidates, command, harness
from clnet.benchmarks.baselines import jax as jax_baselines
from clnet.benchmarks.baselines import training as training_baselines
from clnet.benchmarks.cases import training as training_cases
from clnet.benchmarks.studies import small
from clnet.benchmarks.studies.training_candidates import Fitted
from studies import CPU, GPU, TINY, rows_of

import clnet

Options = harness.Options
Trained = training_cases.Trained
pytestmark = pytest.mark.usefixtures("hurried")

CASES = {
    f"{case.optimiser.name}-{case.name}": case
    for case in small.small_cases(small.DATA) if case.source == "parity"
}
PEERS = {
    one.name: one
    for one in (*training_baselines.training_baselines(None),
                jax_baselines.JaxTraining())
    if one.name in ("fann", "numpy", "torch", "jax")
}


@dataclass(frozen=True)
class Counted(candidates.Candidate):
    """A candidate whose training is a list of the epochs it was called with."""

    calls: tuple = ()
    name: str = "counted"

    def prepare(self, case, device):
        def train(epochs):
            self.calls[0].append(epochs)
            return Trained([], 0.0)

        return training_cases.trainer(case, train)


def test_exclusive_or_is_the_parity_of_two_bits():
    x, t = CASES["rprop-xor"].data
    assert x.tolist() == [[-1, -1], [-1, 1], [1, -1], [1, 1]]
    assert t.ravel().tolist() == [0, 1, 1, 0]
    x, t = CASES["rprop-parity"].data
    assert (x.shape, t.shape, t.mean()) == ((256, 8), (256, 1), 0.5)


@pytest.mark.parametrize("name", small.LEARNED)
def test_learned_data_are_standardised_and_one_hot(name):
    pytest.importorskip("sklearn")
    (case,) = (c for c in small.small_cases(small.DATA) if c.name == name)
    x, t = case.data
    assert (len(x), x.shape[1], t.shape[1]) == (
        case.samples, case.sizes[0], case.sizes[-1]
    )
    assert np.abs(x.mean(axis=0)).max() < 1e-5
    assert np.array_equal(t.argmax(axis=1), case.labels)


def test_without_scikit_learn_its_data_are_missing(monkeypatch):
    monkeypatch.setattr(small, "find_spec", lambda name: None)
    for case in small.small_cases(small.DATA):
        if case.source in small.LEARNED:
            assert case.missing() == (
                f"{case.source} needs scikit-learn, which is not installed"
            )


@pytest.mark.parametrize("key", CASES)
def test_clnet_and_its_peers_find_the_oracles_errors(key, device):
    case = CASES[key]
    for one in (Fitted(clocked=False), *PEERS.values()):
        if one.missing() is not None:
            continue
        try:
            prepared = one.prepare(case, device)
        except candidates.RefusedError as refusal:
            assert case.optimiser.name == "quickprop"
            assert str(refusal).startswith("quickprop is not implemented")
        else:
            assert prepared.check() < case.tolerance
            assert len(prepared.train(0).errors) == 1
            prepared.train(case.checked + 2)  # more epochs than are checked


def test_jax_takes_a_last_batch_that_is_smaller(device):
    one = jax_baselines.JaxTraining()
    if one.missing() is not None:
        pytest.skip(one.missing())
    case = training_cases.TrainingCase(
        "tiny", (5, 7, 3), clnet.optimisers.Adam(), "categorical_cross_entropy",
        samples=10, batch=4, epochs=2, basis="step", hidden="relu", output="softmax",
        checked=2,
    )
    assert one.prepare(case, device).check() < case.tolerance
    assert jax_baselines.Jax().prepare(TINY, device).check() < TINY.tolerance


def test_a_training_is_timed_as_a_whole(device):
    calls = []
    prepared = small.Whole(Counted((calls,))).prepare(CASES["rprop-xor"], device)
    assert list(prepared.timers) == list(small.TRAINING)
    prepared.timers["fit"]()(2)
    assert calls == [99, 99]


def test_an_epoch_is_the_difference_of_a_long_and_a_short_training(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(small.time, "perf_counter", lambda: now[0])

    def train(epochs):
        now[0] += 0.5 + 1e-3 * (1 + epochs)

    assert small.one_epoch(train)(3) == pytest.approx(1e-3)


def test_first_trainings_are_of_new_processes(device):
    pytest.importorskip("sklearn")
    case = replace(
        CASES["rprop-xor"], optimiser=clnet.optimisers.Adam(),
        loss="categorical_cross_entropy", output="softmax", hidden="relu",
        sizes=(4, 5, 3), samples=150, batch=150, source="iris",
    )
    sklearn = training_baselines.ScikitLearnTraining()
    assert small.first(sklearn, case, device, 1) > 0
    with pytest.raises(RuntimeError, match=r"RefusedError: MLPClassifier trains"):
        small.first(sklearn, CASES["rprop-xor"], device, 1)


@pytest.mark.parametrize("device", [GPU, CPU])
def test_every_network_has_its_trainings_and_an_answer(device):
    trials = small.trials(device, Options())
    answers = {trial.case.name for trial in trials if trial.table == "answer"}
    assert answers == {"xor", "parity", "robot", "gene", "iris", "digits"}
    assert {trial.table for trial in trials if trial.case.name == "xor"} == {
        "rprop", "batch", "quickprop", "incremental", "answer"
    }
    names = {one.name for trial in trials for one in trial.candidates}
    assert ("torch-graph" in names) == (device.type == "gpu")
    assert names & small.BASELINES == names - {"planned", "predict", "dynamic"}
    quick = command.select(
        small.trials(device, Options(effort="quick")), Options(), small.BASELINES
    )
    assert {trial.case.name for trial in quick} == set(small.QUICK)


def test_the_study_reports_every_basis(device):
    trials = small.trials(device, Options(effort="quick"))
    chosen = command.select(
        trials, Options(variants=["p*"], baselines=["numpy"], cases=["xor"],
                        tables=["rprop", "answer"]),
        small.BASELINES,
    )
    bases = "epoch", "fit", "wall"
    kept = [row for trial in chosen for row in rows_of(trial, device, bases)]
    assert not [row.reason for row in kept if row.status != "measured"]
    assert {(row.table, row.basis) for row in kept} == {
        ("rprop", "epoch"), ("rprop", "fit"), ("answer", "wall")
    }
    assert {row.floor for row in kept} == {None}
    text = small.report(command.table_of(kept))
    assert "rprop, fit: microseconds (a training of 100 epochs" in text
