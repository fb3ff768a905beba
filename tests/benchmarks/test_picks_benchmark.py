"""The benchmark of the planner's choices, and its committed rows."""

import json
from pathlib import Path

import pandas as pd
import pytest
from clnet.benchmarks import picks
from clnet.benchmarks.cases.dense import Case
from clnet.benchmarks.measurements import RESULTS

from clnet.opencl import rate_probes, times_file

FILES = sorted((Path(__file__).parents[2] / RESULTS).glob("picks-*.csv"))


def test_cases_fit_the_device():
    assert all(case.batch <= 32 for case in picks.cases_of(True).values())
    names = picks.cases_of(False)
    assert {"config-3 x 32", "narrow-64 x 131072", "deep-512 x 32"} <= names.keys()


def test_the_best_is_chosen_by_other_rounds_than_those_that_judge_it():
    assert picks.over_best({"a": [1.0] * 4, "b": [1.5] * 4}) == {"a": 1.0, "b": 1.5}
    # Each half of the rounds chooses a plan that is the slower one in the other half.
    found = picks.over_best({"a": [1.0, 1.0, 3.0, 3.0], "b": [2.0] * 4})
    assert found == pytest.approx({"a": 3 / 4, "b": 5 / 6})


@pytest.mark.usefixtures("own_store")
def test_rows_of_a_tiny_case(tmp_path, monkeypatch, capsys):
    case = Case("tiny", (3, 4, 2), "tanh", 1)
    monkeypatch.setattr(picks, "cases_of", lambda cpu: {"tiny x 1": case})
    monkeypatch.setattr(picks, "ROUNDS", 4)
    monkeypatch.setattr(picks, "BLOCK_SECONDS", 1e-4)
    monkeypatch.setattr(rate_probes, "measured", lambda device: device)
    monkeypatch.setattr(times_file, "SHIPPED", times_file.SHIPPED)  # undone at the end
    rows, export = tmp_path / "rows.csv", tmp_path / "times.json"
    picks.main(["--device", "cpu", "--out", str(rows), "--export", str(export)])
    found = pd.read_csv(rows)
    assert list(found["pick"]) == list(picks.PICKS)
    assert (found["over_best"] > 0).all()
    assert (found["timed"] >= found["cover"].nunique()).all()
    assert json.loads(export.read_text())["times"]
    capsys.readouterr()
    picks.main(["--rows", str(rows)])
    assert "tiny" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        picks.main(["--device", "cpu", "--case", "tiny", "--out", str(rows)])
    assert "no case 'tiny': there are tiny x 1" in capsys.readouterr().err


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_committed_picks_keep_what_is_promised(path):
    """Twice the best without any measurement; on GPUs within 5% after five seconds.

    On two cores of a virtual machine calls of two workers vary by more. The last rows
    of a case count.
    """
    rows = pd.read_csv(path)
    rows = rows.drop_duplicates(["case", "batch", "precision", "pick"], keep="last")
    if path.stem == "picks-nvidia-h200-bounded":  # not timed since its model was mended
        rows = rows[(rows["case"] != "deep-64") | (rows["pick"] != "model")]
    worst = rows.groupby("pick")["over_best"].max()
    if "nvidia" in path.stem:
        assert worst["five seconds"] <= 1.05
    assert worst["model"] <= 2
    assert rows["pick"].isin(picks.PICKS).all()
