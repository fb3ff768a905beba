"""Results of a run: pictures, a page, rows for --resume; baselines in children."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pandas as pd
import pytest
from children import child_environment
from clnet.benchmarks import (
    command,
    harness,
    measurements,
    own_candidates,
    processes,
)
from clnet.benchmarks.baselines import dense
from clnet.benchmarks.cases import dense as cases
from clnet.benchmarks.report import metrics, plots, standings, tables
from clnet.benchmarks.studies import dispatch, local, scaling_models
from studies import BRIEF, CPU, GPU, TINY, rows_of

import clnet
from clnet import FormatError
from clnet.cli.main import main

Case = cases.Case
pytestmark = pytest.mark.usefixtures("hurried")


@pytest.fixture(scope="module")
def row():
    trial = harness.Trial("sizes", replace(TINY, name="10"), (dense.NumPy(),))
    (row,) = rows_of(trial, GPU, study="dispatch")
    return row


def rows_like(row, times):
    """Return rows of a candidate, case and seconds each."""
    return [
        replace(row, candidate=name, case=str(n), median=t, low=t, high=t)
        for name, n, t in times
    ]


def write(folder, name, rows):
    """Return a CSV file of rows."""
    path = folder / f"{name}.csv"
    measurements.table_of(rows).to_csv(path, index=False)
    return path


DISPATCH = (
    ("serial", 10, 1e-6), ("parallel", 10, 8e-6), ("planned", 10, 1.05e-6),
    ("serial", 100, 1e-4), ("parallel", 100, 1e-5), ("planned", 100, 1e-5),
)


def test_rows_are_read_as_they_were_written(row, tmp_path):
    results = measurements.ResultsFile(tmp_path, "dispatch", GPU)
    missing = replace(row, status="missing", median=None, reason="it, as 'x', is not")
    for one in (row, missing):
        results.add(one)
    found = measurements.read(results.path)
    assert tuple(found.columns) == measurements.COLUMNS
    first, second = measurements.measurements(found)
    assert first == replace(
        row, **{
            name: pytest.approx(value, rel=1e-5) for name, value in vars(row).items()
            if isinstance(value, float)
        }
    )
    assert second.median is None and second.reason == missing.reason
    text = results.path.read_text()
    results.path.write_text(text.replace(f",{row.batch},", ",two,"))
    with pytest.raises(FormatError, match="results cannot be read"):
        measurements.read(results.path)
    with pytest.raises(FormatError, match="give the CSV file"):
        measurements.read(tmp_path / "none.csv")


def latest(rows):
    table = measurements.latest(measurements.table_of(rows))
    return measurements.measurements(table)


def test_of_equal_rows_the_newest_counts(row):
    failed = replace(row, status="failed", basis="", median=None)
    later = replace(row, median=1.0)
    other = replace(row, torch="9")
    assert latest([failed, row, later]) == [later]
    assert latest([row, failed, row]) == [row]
    assert latest([row, other, later]) == [later, other]


def test_resuming_measures_only_missing_rows(row):
    kept = []
    others = dense.NumPy(), replace(dense.NumPy(), name="b")
    trial = harness.Trial("sizes", replace(TINY, name="10"), others)
    bench = harness.Harness("dispatch", GPU, BRIEF, ("wall",), kept.append, done=[row])
    assert bench.done(trial) == [row]
    bench.run(trial)
    assert [(r.candidate, r.against) for r in kept] == [("b", "numpy")]
    assert kept[0].ratio == pytest.approx(row.median / kept[0].median)
    missing = replace(row, status="missing", basis="", median=None)
    for old in (replace(row, torch="9"), missing):  # another version, or installed now
        kept.clear()
        bench = harness.Harness(
            "dispatch", GPU, BRIEF, ("wall",), kept.append, done=[old]
        )
        bench.run(trial)
        assert [r.candidate for r in kept] == ["numpy", "b"]


def test_a_page_holds_everything_and_loads_no_file(row, tmp_path, capsys):
    reason = "it is " + 30 * "not " + "installed"
    missing = replace(
        row, candidate="<b>", status="missing", median=None, basis="", reason=reason
    )
    file = write(tmp_path, "dispatch-x", [*rows_like(row, DISPATCH), missing])
    assert main(["bench", "--rows", str(file)]) == 0
    out = capsys.readouterr().out
    assert "some 29.8 neurons a layer on" in " ".join(out.split())
    assert "at most 1.05 times the time of the better one" in out
    page = (tmp_path / "dispatch-x.html").read_text()
    assert page.count("<svg viewBox=") == 2
    assert page.count('<g class="tip"') == 2 * len(DISPATCH)
    for candidate, case, seconds in DISPATCH:
        assert f"<title>{case}, {candidate}: {tables.number(1e6 * seconds)} µs," in page
    pictures = "".join(re.findall("<svg.*?</svg>", page, re.DOTALL))
    assert not re.search("#000000|#ffffff|<metadata", pictures)
    assert "aria-sort" in page and 'id="rows"' in page
    assert not re.search(r"https?://|<script \w|<link", page)
    assert "&lt;b&gt;" in page and "<b>" not in page
    assert reason in page
    for name in ("time", "speed-up"):
        png = (tmp_path / f"dispatch-x-{name}-batch-2-wall.png").read_bytes()
        assert png.startswith(b"\x89PNG")


@pytest.mark.parametrize("study", list(command.STUDIES))
def test_all_pictures_can_be_drawn(study, row, tmp_path):
    """One row is enough."""
    for plot in command.STUDIES[study].PLOTS:
        names = {"work_items": "split-8", **dict.fromkeys(local.SCALING, "cores-2")}
        rows = [
            replace(row, study=study, table=t, candidate=names.get(t, "planned"),
                    case="5 10%" if study == "sparse" else "10")
            for t in plot.tables
        ]
        plots.draw([plot], measurements.table_of(rows), tmp_path / "x", frozenset())


def test_a_table_is_in_the_order_of_its_rows_with_gaps(row):
    times = [("b", 2, 1.0), ("c", 2, 2.0), ("c", 1, 3.0), ("a", 1, 4.0), ("b", 0, 5.0)]
    rows = measurements.table_of(rows_like(row, times))
    table = tables.pivot(rows, rows["median"])
    assert list(table.index) == ["2", "1", "0"]
    assert list(table.columns) == ["b", "c", "a"]
    for name, case, seconds in times:
        assert table.loc[str(case), name] == seconds
    assert table.isna().sum().sum() == 4


def test_every_candidate_has_a_colour_of_its_own():
    """It is the same in all pictures."""
    known = {*plots.NAMES, *plots.BASELINES, *plots.CHOSEN}
    for study in command.STUDIES.values():
        for device in (CPU, GPU):
            for trial in study.trials(device, harness.Options()):
                names = {candidate.name for candidate in trial.candidates}
                by_case = {n for n in names if n.startswith(("split-", "cores-"))}
                assert names - by_case <= known
                others = names & study.BASELINES
                assert others <= set(plots.BASELINES)
                assert len({plots.colour(n, [])[0] for n in others}) == len(others)
    for group in (plots.NAMES, plots.BASELINES):
        styles = [plots.colour(name, []) for name in group]
        assert len(set(styles)) == len(group)
    for others in (["mma"], ["naive", "mma"], ["mma", "torch"]):
        assert plots.colour("mma", others) == plots.colour("mma", [])
    assert plots.colour("config-2", ["config-1", "config-2"])[0] == plots.COLOURS[1]


def test_rows_of_a_file_are_shown(row, tmp_path, capsys):
    file = write(tmp_path, "dispatch-x", [row])
    assert main(["bench", "dispatch", "--rows", str(file)]) == 0
    assert "1 rows in" in capsys.readouterr().out
    assert main(["bench", "training", "--rows", str(file)]) == 2
    assert "has rows of dispatch, not of training" in capsys.readouterr().err
    assert main(["bench", "--rows", str(tmp_path / "no.csv")]) == 2
    assert "give the CSV file" in capsys.readouterr().err
    file = write(tmp_path, "other", [replace(row, study="knitting")])
    assert main(["bench", "--rows", str(file)]) == 2
    assert "unknown study 'knitting'" in capsys.readouterr().err


def test_rows_of_a_file_are_drawn_in_the_given_folder(row, tmp_path):
    file = write(tmp_path, "dispatch-x", rows_like(row, DISPATCH))
    out = tmp_path / "new" / "out"
    assert main(["bench", "--rows", str(file), "--out", str(out)]) == 0
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [file.name]
    assert {path.suffix for path in out.iterdir()} == {".png", ".html"}


def test_speed_ups(row):
    one = replace(row, candidate="serial", batch=1, basis="wall", median=1.0)
    many = replace(row, batch=100, basis="device", median=0.5)
    high = replace(many, precision="high")
    rows = measurements.table_of([one, many, high])
    assert list(metrics.speed_up_per_sample("fann", "serial")(rows)) == [1, 200, 200]
    found = metrics.speed_up("serial")(rows)
    assert found[0] == 1 and found[1:].isna().all()
    assert list(metrics.call(rows)) == [
        metrics.SERIAL_CALL, "batch 100, device", "batch 100, high, device"
    ]


def test_the_crossing_lies_between_the_sizes():
    def best(times):
        columns = ["serial", "parallel"]
        return pd.DataFrame.from_dict(times, orient="index", columns=columns)

    assert dispatch.crossing(best({1: (1.0, 2.0), 4: (2.0, 1.0)})) == pytest.approx(2)
    assert dispatch.crossing(best({1: (1.0, 2.0), 4: (1.0, 2.0)})) is None
    assert dispatch.crossing(best({})) is None
    late = best({3: (2.0, 1.0)})
    assert dispatch.crossing(late) == pytest.approx(3.0)
    assert dispatch._crossing_text(late) == "parallel is faster at all sizes"


def test_laws():
    """Hill and Marty's figures: f = 0.9, 256 cores, best near r = 28."""
    assert scaling_models.amdahl(0.5, 1e9) == pytest.approx(2)
    assert scaling_models.symmetric(0.999, 256, 1) == pytest.approx(204, rel=0.01)
    best = max(range(1, 257), key=lambda r: scaling_models.symmetric(0.9, 256, r))
    assert best == pytest.approx(28, abs=1)


def test_large_cases_are_checked_layer_by_layer(monkeypatch):
    case = dispatch.equal_case(7)
    for mine, general in zip(case.checks, Case.checks.func(case), strict=True):
        assert mine.expected == pytest.approx(general.expected, rel=1e-12)
    monkeypatch.setattr(dispatch, "_free_bytes", lambda: 10)
    assert "GB of the host's memory" in case.missing()


# Baselines


@dataclass(frozen=True)
class Crashing:
    """A baseline that ends its process."""

    name: str = "crashing"
    timeout: float | None = None

    def missing(self):
        return None

    def prepare(self, case, device):
        os.abort()


def test_a_baseline_that_ends_its_process_is_a_row(monkeypatch):
    monkeypatch.setattr(processes, "TIMEOUT", None)
    path = child_environment()["PYTHONPATH"]
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}{os.pathsep}{path}")
    crashing = processes.Guarded(Crashing())
    kept = rows_of(harness.Trial("t", TINY, (crashing, dense.NumPy())), GPU)
    assert [r.status for r in kept] == ["failed", "measured"]
    assert "SIGABRT" in kept[0].reason


def test_other_libraries_are_missing_or_right():
    device = clnet.device()
    for baseline in dense.dense_baselines(None):
        if baseline.missing() is None and baseline.name != "tinygrad":
            assert baseline.prepare(TINY, device).check() < TINY.tolerance
        elif baseline.name != "tinygrad":
            assert any(word in baseline.missing() for word in ("install", "no CUDA"))


@pytest.mark.sweep
def test_the_serial_program_is_right_on_one_core():
    serial = own_candidates.Serial()
    if serial.missing() is not None:
        pytest.skip(serial.missing())
    prepared = serial.prepare(TINY, GPU)  # of a GPU, the host's
    assert prepared.threads == 1 and prepared.check() < TINY.tolerance
    for candidate in (dispatch.Dynamic(), own_candidates.Planned(on_host=False)):
        assert candidate.prepare(TINY, clnet.device()).check() < TINY.tolerance


def test_a_report_opens_with_what_its_rows_teach(row):
    rows = [
        {**asdict(row), "candidate": name, "case": case, "median": seconds}
        for case, name, seconds in (
            ("a", "planned", 1.0), ("a", "numpy", 3.0), ("a", "torch", 2.0),
            ("b", "planned", 4.0), ("b", "numpy", 1.0), ("c", "planned", 1.0),
        )
    ]
    found = standings.learnt(rows)
    assert found[0] == "clnet is ahead of its fastest peer in 1 of 2 cases."
    assert "a, batch" in found[2] and "torch takes 2 times" in found[2]
    assert "b, batch" in found[3] and "numpy takes 0.25 times" in found[3]
    assert standings.learnt(rows[-1:]) == []
