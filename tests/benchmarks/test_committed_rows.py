"""Benchmarks with a program of their own: their committed rows, tables and parts."""

import json
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from clnet.benchmarks import (
    cascades,
    defaults,
    estimators,
    first_calls,
    picks,
    population_picks,
    sparse_inputs,
)
from clnet.benchmarks.cases.dense import Case
from clnet.benchmarks.measurements import RESULTS
from clnet.benchmarks.studies.small import small_cases
from clnet.benchmarks.studies.training import DATA

from clnet.nn.defaults import EPOCHS
from clnet.nn.optimisers import MINI_BATCH, Adam
from clnet.opencl import rate_probes, times_file

ROOT = Path(__file__).parents[2]


def files_of(benchmark):
    """Run a test for each file of a benchmark's rows."""
    files = sorted((ROOT / RESULTS).glob(f"{benchmark}-*"))
    assert files, benchmark
    return pytest.mark.parametrize("file", files, ids=lambda file: file.stem)


# Calls from a process's first on


def test_first_calls():
    rows = pd.read_csv(ROOT / RESULTS / "first_calls-nvidia-h200.csv")
    cells = product(first_calls.CASES, ("empty", "filled"), ("before", "after"))
    assert {*zip(rows["case"], rows["caches"], rows["tree"], strict=True)} == {*cells}
    assert "longest_ms" in first_calls.table(rows)


# Cascade training beside FANN's


@files_of("cascades")
def test_cascades(file):
    rows = pd.read_csv(file)
    ends = cascades.ends_of(rows)
    for name, case in cascades.CASES.items():
        of_case = ends[ends["case"] == name]
        assert (of_case.groupby("library")["seed"].nunique() == case.seeds).all()
        ours = of_case[of_case["library"] == "clnet"]
        theirs = of_case[of_case["library"] == "fann"]
        if name.startswith("parity"):  # in every seed, with no more neurons
            assert ours["solved"].all()
            assert ours["neurons"].median() <= theirs["neurons"].median()
    medians = pd.DataFrame(cascades.medians_of(rows[rows["table"] == "trainings"]))
    found = rows[rows["table"] != "trainings"]
    assert medians["table"].tolist() == found["table"].tolist()
    np.testing.assert_allclose(medians["median"], found["median"], rtol=1e-4)
    assert "processor ×" in cascades.table(rows)


def test_data_sets_of_cascades():
    x, t = cascades.parity(3)
    assert x.shape == (8, 3)
    assert len({tuple(row) for row in x.tolist()}) == 8
    np.testing.assert_array_equal(t[:, 0], x.sum(axis=1) % 2)
    x, t = cascades.spirals()
    assert x.shape == (2 * cascades.SPIRAL, 2)
    np.testing.assert_allclose(x[0], [0, 6.5])
    np.testing.assert_allclose(x[: cascades.SPIRAL], -x[cascades.SPIRAL :])
    radius = np.hypot(*x.T)
    assert radius.min() == pytest.approx(0.5)
    assert t.sum() == cascades.SPIRAL


# The defaults of `fit`


def test_every_choice_of_defaults_has_rows_of_every_data_set():
    rows = pd.read_csv(ROOT / defaults.ROWS)
    assert list(rows["data"].unique()) == list(defaults.splits(Path()))
    for one in defaults.CHOICES:
        kinds = defaults.NETWORKS if one.optimiser else [defaults.SKLEARN]
        found = rows[rows["choice"] == one.name]
        expected = {(d, k) for d in rows["data"].unique() for k in kinds}
        assert set(zip(found["data"], found["network"], strict=True)) == expected
    assert (rows["seeds"] == defaults.SEEDS).all()
    assert ((rows["low"] <= rows["mean"]) & (rows["mean"] <= rows["high"])).all()


def test_no_choice_without_a_schedule_is_better_than_the_default():
    chosen = next(
        one.name for one in defaults.CHOICES
        if (one.optimiser, one.batch, one.epochs) == (Adam(), MINI_BATCH, EPOCHS)
    )
    rows = pd.read_csv(ROOT / defaults.ROWS)
    summary = defaults.table(rows).partition("\n\n")[0].splitlines()[2:]
    names = [line.split("  ")[0] for line in summary]
    scheduled = {one.name for one in defaults.CHOICES if one.schedule}
    assert next(name for name in names if name not in scheduled) == chosen


@pytest.mark.parametrize("name", ["sklearn iris", "sklearn linnerud"])
def test_a_score_is_of_the_test_set(name, device):
    pytest.importorskip("sklearn")
    split = defaults.splits(Path())[name](0)
    assert len(split.x_test) == len(split.t_test) == round(
        defaults.TEST * (len(split.x) + len(split.x_test))
    )
    for choice in (defaults.CHOICES[0], defaults.CHOICES[-1]):
        score = defaults.score(choice, "relu", split, 0, device)
        assert 0.8 < score <= 1 if split.classes else score < 1


# Estimators, searches and sparse inputs beside scikit-learn's

NAMES = [*estimators.CLASSES, *estimators.REGRESSIONS]


@files_of("estimators")
def test_every_estimator_has_a_row_of_every_data_set(file):
    rows = pd.read_csv(file)
    found = list(zip(rows["data"], rows["estimator"], strict=True))
    assert found == list(product(NAMES, estimators.ESTIMATORS))
    assert (rows["seeds"] == estimators.SEEDS).all()
    assert ((rows["low"] <= rows["score"]) & (rows["score"] <= rows["high"])).all()
    assert "from 1000 samples on, at least" in estimators.table(rows)


@pytest.mark.parametrize("name", NAMES)
def test_samples_of_estimators_are_standardised(name):
    pytest.importorskip("sklearn")
    x, y = estimators.samples(name)
    assert len(x) == len(y)
    assert abs(x.mean(axis=0)).max() < 1e-9
    assert name in estimators.CLASSES or abs(y.std() - 1) < 1e-9


@files_of("searches")
def test_every_search_has_a_row_of_every_case(file):
    pytest.importorskip("resource")
    from clnet.benchmarks import searches

    rows = pd.read_csv(file)
    found = list(zip(rows["case"], rows["search"], strict=True))
    assert found == list(product(searches.CASES, searches.SEARCHES))
    assert (rows["of"] == 200).all()
    full = rows[rows["settings"] == rows["of"]]
    for _, of_case in full.groupby("case"):  # the same winner as one by one
        assert of_case["best"].map(json.loads).map(str).nunique() == 1
        assert of_case["score"].max() - of_case["score"].min() < 1e-3
    assert "processor ×" in searches.table(rows)
    pytest.importorskip("sklearn")
    grids = searches.settings("batches of 16")
    assert len(grids) == 200
    assert grids[0].keys() == {"alpha", "learning_rate_init", "hidden_layer_sizes"}


@files_of("sparse_inputs")
def test_sparse_inputs_have_rows_of_every_width(file):
    rows = pd.read_csv(file)
    theirs, ours = (
        Counter(rows["inputs"][rows["estimator"] == kind])
        for kind in (sparse_inputs.SKLEARN, sparse_inputs.CLNET)
    )
    assert theirs == ours
    assert set(ours) <= {*sparse_inputs.INPUTS}
    losses = rows.groupby("inputs")["loss"].agg(["min", "max"])
    assert (losses["max"] < 1.05 * losses["min"]).all()
    assert "times as fast" in sparse_inputs.table(rows)


# The planner's choices, for networks and for populations


@pytest.fixture
def tiny_picks(own_store, tmp_path, monkeypatch, capsys):
    """Return a function that times one case, and returns the rows and their file."""
    monkeypatch.setattr(rate_probes, "measured", lambda device: device)
    monkeypatch.setattr(times_file, "SHIPPED", times_file.SHIPPED)  # undone at the end

    monkeypatch.setattr(picks, "ROUNDS", 4)
    monkeypatch.setattr(picks, "BLOCK_SECONDS", 1e-4)

    def run(benchmark, name, case, *options):
        monkeypatch.setattr(benchmark, "cases_of", lambda cpu: {name: case})
        path = tmp_path / "rows.csv"
        benchmark.main(["--device", "cpu", "--out", str(path), *options])
        rows = pd.read_csv(path)
        assert list(rows["pick"]) == list(benchmark.PICKS)
        capsys.readouterr()
        benchmark.main(["--rows", str(path)])
        assert case.name in capsys.readouterr().out
        return rows, path

    return run


def test_picks_of_a_tiny_case(tiny_picks, tmp_path, capsys):
    case, export = Case("tiny", (3, 4, 2), "tanh", 1), tmp_path / "times.json"
    found, path = tiny_picks(picks, "tiny x 1", case, "--export", str(export))
    assert (found["over_best"] > 0).all()
    assert (found["timed"] >= found["cover"].nunique()).all()
    assert json.loads(export.read_text())["times"]
    with pytest.raises(SystemExit):
        picks.main(["--device", "cpu", "--case", "tiny", "--out", str(path)])
    assert "no case 'tiny': there are tiny x 1" in capsys.readouterr().err


def test_picks_of_a_tiny_population(tiny_picks):
    xor = next(case for case in small_cases(DATA) if case.name == "xor")
    case = replace(xor, name="xor-3", networks=3, batch=xor.samples)
    found, _ = tiny_picks(population_picks, "xor-3", case, "--each", "0")
    assert found["over_best"].min() >= 1


def test_cases_of_picks_fit_the_device():
    assert all(case.batch <= 32 for case in picks.cases_of(True).values())
    names = picks.cases_of(False)
    assert {"config-3 x 32", "narrow-64 x 131072", "deep-512 x 32"} <= names.keys()


def test_the_best_is_chosen_by_other_rounds_than_those_that_judge_it():
    assert picks.over_best({"a": [1.0] * 4, "b": [1.5] * 4}) == {"a": 1.0, "b": 1.5}
    # Each half of the rounds chooses a plan that is the slower one in the other half.
    found = picks.over_best({"a": [1.0, 1.0, 3.0, 3.0], "b": [2.0] * 4})
    assert found == pytest.approx({"a": 3 / 4, "b": 5 / 6})


@files_of("picks")
def test_picks_keep_what_is_promised(file):
    """Twice the best without any measurement; on GPUs within 5% after five seconds.

    On two cores of a virtual machine calls of two workers vary by more. The last rows
    of a case count.
    """
    rows = pd.read_csv(file)
    rows = rows.drop_duplicates(["case", "batch", "precision", "pick"], keep="last")
    if file.stem == "picks-nvidia-h200-bounded":  # not timed since its model was mended
        rows = rows[(rows["case"] != "deep-64") | (rows["pick"] != "model")]
    worst = rows.groupby("pick")["over_best"].max()
    if "nvidia" in file.stem:
        assert worst["five seconds"] <= 1.05
    assert worst["model"] <= 2
    assert rows["pick"].isin(picks.PICKS).all()


@files_of("population_picks")
def test_picks_of_populations_have_all_rows(file):
    for _, rows in pd.read_csv(file).groupby(["case", "date"]):
        assert set(rows["pick"]) == set(population_picks.PICKS)
        assert rows["over_best"].min() >= 1
