"""The benchmark of the choices for populations, and its committed rows."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from clnet.benchmarks import picks as choices
from clnet.benchmarks import population_picks as picks
from clnet.benchmarks.measurements import RESULTS
from clnet.benchmarks.studies.small import small_cases
from clnet.benchmarks.studies.training import DATA

from clnet.opencl import rate_probes, times_file

FILES = sorted((Path(__file__).parents[2] / RESULTS).glob("population_picks-*.csv"))


@pytest.mark.usefixtures("own_store")
def test_rows_of_a_tiny_case(tmp_path, monkeypatch, capsys):
    xor = next(case for case in small_cases(DATA) if case.name == "xor")
    case = replace(xor, name="xor-3", networks=3, batch=xor.samples)
    monkeypatch.setattr(picks, "cases_of", lambda cpu: {"xor-3": case})
    monkeypatch.setattr(choices, "ROUNDS", 4)
    monkeypatch.setattr(choices, "BLOCK_SECONDS", 1e-4)
    monkeypatch.setattr(rate_probes, "measured", lambda device: device)
    monkeypatch.setattr(times_file, "SHIPPED", times_file.SHIPPED)  # undone at the end
    path = tmp_path / "rows.csv"
    picks.main(["--device", "cpu", "--out", str(path), "--each", "0"])
    found = pd.read_csv(path)
    assert list(found["pick"]) == list(picks.PICKS)
    assert found["over_best"].min() >= 1
    capsys.readouterr()
    picks.main(["--rows", str(path)])
    assert "xor-3" in capsys.readouterr().out


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_committed_rows_have_all_picks(path):
    for _, rows in pd.read_csv(path).groupby(["case", "date"]):
        assert set(rows["pick"]) == set(picks.PICKS)
        assert rows["over_best"].min() >= 1
