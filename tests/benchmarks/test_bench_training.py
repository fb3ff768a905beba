"""The training study and its candidates, at tiny sizes; no test asserts a time."""

import csv
import math
import os
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from clnet.benchmarks import candidates, command, harness
from clnet.benchmarks.baselines import fann
from clnet.benchmarks.baselines import training as training_baselines
from clnet.benchmarks.cases import dense as cases
from clnet.benchmarks.cases import training as training_cases
from clnet.benchmarks.studies import training, training_candidates
from studies import BRIEF, CPU, GPU, rows_of

from clnet import InputError
from clnet.cli.main import main
from clnet.errors import WIDTH
from clnet.nn.optimisers import Adam, Incremental, Quickprop, Rprop
from clnet.opencl import rate_probes

Options = harness.Options
TrainingCase = training_cases.TrainingCase

pytestmark = pytest.mark.usefixtures("hurried")

RPROP = TrainingCase(
    "tiny", (5, 7, 3), Rprop(), "mse", samples=12, batch=12, epochs=100,
    basis="100 epochs", checked=4, initialiser="fann",
)
INCREMENTAL = replace(
    RPROP, optimiser=Incremental(0.1), loss="fann_linear", batch=1, epochs=1,
    basis="epoch", checked=2,
)
ADAM = TrainingCase(
    "tiny", (5, 7, 3), Adam(), "categorical_cross_entropy", samples=10, batch=4,
    epochs=2, basis="step", hidden="relu", output="softmax", checked=2,
)
ALL = [RPROP, INCREMENTAL, ADAM]
NOT_IMPLEMENTED = {("fann", "adam"), ("sklearn", "rprop"), ("sklearn", "incremental")}
CANDIDATES = [
    (name, case) for name in ("planned", "numpy", "torch", "sklearn", "fann")
    for case in ALL if (name, case.optimiser.name) not in NOT_IMPLEMENTED
]


def named(name, library=None):
    others = training_baselines.training_baselines(library)
    return next(one for one in (training.OURS, *others) if one.name == name)


# Cases


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.optimiser.name)
def test_a_case_counts_parameters_bytes_and_operations(case):
    assert case.parameters == 7 * 6 + 3 * 8
    train_state = 4 * case.parameters * (1 + case.optimiser.slots)
    data = 4 * case.samples * (5 + 3)
    assert case.footprint == data + train_state
    epochs_per_run = {"100 epochs": 100, "epoch": 1, "step": 1 / case.steps}[case.basis]
    epoch = data + case.steps * 2 * train_state
    assert case.bytes == pytest.approx(epochs_per_run * epoch)
    weights, first = 5 * 7 + 7 * 3, 5 * 7
    sample = 2 * (3 * weights - first) + 8 * (7 + 3)
    epoch = case.samples * sample + 4 * case.steps * case.parameters
    assert case.flops == pytest.approx(epochs_per_run * epoch)
    assert case.runs == pytest.approx(case.epochs / epochs_per_run)


def test_steps_count_the_last_smaller_one():
    assert (RPROP.steps, INCREMENTAL.steps, ADAM.steps) == (1, 12, 3)


def test_random_targets_are_the_labels_classes():
    x, t = ADAM.data
    assert (x.shape, t.shape, x.dtype) == ((10, 5), (10, 3), np.float32)
    assert np.array_equal(t.argmax(axis=1), ADAM.labels)
    assert t.sum() == 10


def test_errors_fall_in_training():
    errors = replace(RPROP, checked=30).errors
    assert errors[-1] < errors[0]


def test_fann_has_other_errors_by_its_derivatives():
    case = replace(RPROP, checked=30)
    assert case.fann_errors[0] == case.errors[0]
    assert case.fann_errors != case.errors


@pytest.mark.parametrize(("found", "sentence"), [
    ([1.0], "trained 1 epochs, not 2"),
    ([1.0, math.nan], "error of epoch 2 is nan"),
    ([1.0, 2.01], "error of epoch 2 is 2.01, by the oracle 2"),
])
def test_errors_that_differ_are_wrong(found, sentence):
    with pytest.raises(cases.WrongError, match=sentence):
        training_cases.compare(RPROP, found, [1.0, 2.0])
    assert training_cases.compare(RPROP, [1.0, 2.0], [1.0, 2.0]) == 0


def test_the_timer_returns_the_seconds_of_one_run():
    seen = []

    def train(epochs):
        seen.append(epochs)
        return training_cases.Trained([], 12.0)

    assert training_cases.timer(ADAM, train)(3) == pytest.approx(12 / (2 * 3))
    assert training_cases.timer(RPROP, train)(1) == pytest.approx(12)
    assert seen == [2, 2, 2, 100]


# Candidates


@pytest.mark.parametrize(
    ("name", "case"), CANDIDATES,
    ids=[f"{name}-{case.optimiser.name}" for name, case in CANDIDATES],
)
def test_candidates_find_the_oracles_errors(name, case, device):
    candidate = named(name)
    if candidate.missing() is not None:
        pytest.skip(candidate.missing())
    prepared = candidate.prepare(case, device)
    assert prepared.check() < case.tolerance
    assert prepared.check() < case.tolerance  # from the initial weights again
    assert (name != "planned") or prepared.config
    (basis,) = prepared.timers
    assert basis == case.basis
    assert prepared.timers[basis]()(1) > 0


def test_the_last_smaller_batch_is_trained(device):
    for name in ("planned", "numpy"):
        case = replace(ADAM, samples=9, batch=4)
        assert named(name).prepare(case, device).check() < case.tolerance


def test_sklearn_without_adam_refuses():
    if named("sklearn").missing() is not None:
        pytest.skip("scikit-learn is not installed")
    with pytest.raises(candidates.RefusedError, match="trains by Adam"):
        named("sklearn").prepare(RPROP, CPU)


def test_an_optimiser_that_is_not_implemented_refuses():
    pytest.importorskip("torch")
    with pytest.raises(candidates.RefusedError, match="quickprop"):
        training_baselines.torch_rule(replace(RPROP, optimiser=Quickprop()), [], False)


def test_libraries_that_are_not_installed_are_missing(monkeypatch):
    monkeypatch.setattr(candidates, "find_spec", lambda name: None)
    assert named("sklearn").missing() == "sklearn is not installed"
    monkeypatch.setattr(fann.ctypes.util, "find_library", lambda name: None)
    assert "--fann-library" in named("fann").missing()
    assert named("fann", "some.so").missing() is None


def test_a_file_that_is_no_library_is_a_row(device, tmp_path):
    file = tmp_path / "libfann.so"
    file.write_text("no library")
    trial = harness.Trial("t", RPROP, (named("fann", str(file)),))
    (row,) = rows_of(trial, device, training.BASES)
    assert row.status == "failed"
    assert str(tmp_path) not in row.reason


# The study


def test_another_error_is_wrong(device):
    class Off(training_baselines.NumPyTraining):
        name = "off"

        def prepare(self, case, device):
            other = replace(case, seed=1)
            assert other.errors != case.errors
            prepared = super().prepare(other, device)
            return replace(
                prepared, check=lambda: training_cases.compare(
                    case, other.errors, case.errors
                )
            )

    trial = harness.Trial("t", RPROP, (Off(), named("numpy")), against=("numpy",))
    rows = rows_of(trial, device, training.BASES)
    assert [row.status for row in rows] == ["wrong", "measured"]


def test_the_studys_cases():
    trials = training.trials(GPU, Options())
    names = [(trial.table, trial.case.name) for trial in trials]
    assert names == [
        ("rprop", "mushroom"), ("rprop", "robot"), ("rprop", "gene"),
        ("incremental", "mushroom"), ("incremental", "robot"), ("incremental", "gene"),
        ("adam", "64-100-10"), ("adam", "784-128-10"), ("adam", "784-1024-1024-10"),
        ("adam", "64-64-64-64-64-64"),
    ]
    assert {trial.case.basis for trial in trials} == set(training.BASES)
    assert trials[0].case.steps == 1
    assert trials[3].case.steps == 4062
    assert trials[8].case.parameters == 1_863_690


@pytest.mark.parametrize(("device", "expected"), [
    (CPU, {"planned", "numpy", "sklearn", "torch"}),
    (GPU, {"planned", "numpy", "sklearn", "torch-cuda", "torch-graph",
           "torch-compile", "torch-compile-graph"}),
])
def test_the_default_candidates(device, expected):
    chosen = command.select(
        training.trials(device, Options()), Options(), training.BASELINES
    )
    found = next(trial for trial in chosen if trial.case.name == "64-100-10")
    assert {c.name for c in found.candidates} == expected


def test_planned_is_a_known_candidate():
    with pytest.raises(InputError, match="did you mean 'planned'"):
        command.select(
            training.trials(CPU, Options()), Options(variants=["plannd"]),
            training.BASELINES,
        )


def test_missing_data_are_one_row(tmp_path, device):
    case = replace(RPROP, file="robot.train", folder=tmp_path)
    trial = harness.Trial("t", case, (named("numpy"), named("planned")))
    (row,) = rows_of(trial, device, ("epoch",))
    assert (row.candidate, row.status) == ("data", "missing")
    assert "robot.train" in row.reason
    assert str(tmp_path) not in row.reason


def test_data_of_another_shape_are_wrong(tmp_path, device):
    (tmp_path / "robot.train").write_text("1 2 1\n0 1\n1\n")
    case = replace(RPROP, file="robot.train", folder=tmp_path)
    with pytest.raises(cases.WrongError, match=r"robot\.train has shapes"):
        named("numpy").prepare(case, device)


@pytest.fixture
def tiny_study(monkeypatch, tmp_path):
    """The study on a data set of 8 samples in tmp_path / "data"."""
    rng = np.random.default_rng(0)
    rows = [*rng.uniform(-1, 1, (8, 5)), *np.eye(3)[rng.integers(0, 3, 8)]]
    lines = [" ".join(map(str, row)) for pair in range(8)
             for row in (rows[pair], rows[8 + pair])]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "robot.train").write_text("\n".join(["8 5 3", *lines]) + "\n")
    monkeypatch.setattr(
        training, "FANN_SETS", {"robot": ((5, 4, 3), 8, "robot.train")}
    )
    monkeypatch.setattr(training, "ADAM", {(5, 4, 3): (4, (2, 2), (1, 1))})
    monkeypatch.setattr(rate_probes, "READ", 1 << 20)
    monkeypatch.setattr(rate_probes, "LARGE", 1 << 22)
    monkeypatch.setattr(rate_probes, "STEPS", {True: 1 << 8, False: 1 << 8})
    monkeypatch.setattr(command, "EFFORTS", {"normal": BRIEF})
    monkeypatch.setattr(command, "load", lambda: 0.0)
    modelled = partial(training_candidates.plan_training, tune=False)
    monkeypatch.setattr(training_candidates, "plan_training", modelled)
    return tmp_path


@pytest.mark.sweep
def test_the_command_runs_the_study(tiny_study, device, capsys):
    out_folder = tiny_study / "out"
    status = main([
        "bench", "training", "--data", str(tiny_study / "data"), "--out",
        str(out_folder), "--baselines", "numpy",
    ])
    out, err = capsys.readouterr()
    assert status == 0, err
    lines = out.splitlines()
    assert max(len(line) for line in lines if str(tiny_study) not in line) <= WIDTH
    for text in (
        "adam, step: steps a second", "rprop, 100 epochs: microseconds",
        "incremental, epoch: times as fast as planned", "(floor)",
    ):
        assert text in out
    (path,) = out_folder.glob("*.csv")
    assert path.name.startswith("training-")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6 + len(training_candidates.STAGES)
    assert {row["status"] for row in rows} == {"measured"}
    assert {row["against"] for row in rows} == {"planned"}
    assert {row["activation"] for row in rows} == {"tanh sigmoid", "relu softmax"}


def test_the_command_without_data_says_so(tiny_study, device, capsys):
    (tiny_study / "data" / "robot.train").unlink()
    status = main([
        "bench", "training", "--data", str(tiny_study / "data"), "--out",
        str(tiny_study / "out"), "--baselines", "numpy", "--variants", "none",
    ])
    out, _ = capsys.readouterr()
    assert status == 0
    text = " ".join(out.split())
    assert "data (robot batch 8, robot batch 1): missing: there is no robot" in text
    assert "adam, step" in out


def test_no_row_of_training_names_a_folder(tiny_study, device):
    case = replace(
        RPROP, sizes=(5, 4, 3), samples=8, batch=8, file="robot.train",
        folder=tiny_study / "data",
    )
    trial = harness.Trial("t", case, (named("numpy"),))
    (row,) = rows_of(trial, device, training.BASES)
    assert row.status == "measured"
    assert not [v for v in vars(row).values() if isinstance(v, str) and os.sep in v]
