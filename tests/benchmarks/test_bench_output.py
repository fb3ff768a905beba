"""What a run leaves: pictures, a page, rows that --resume keeps; peers in children."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from studies import BRIEF, GPU, TINY

import clnet
from clnet import FormatError
from clnet.cli.benchmarks import benchmarks
from clnet.cli.main import main

Case = benchmarks("cases").Case
candidates = benchmarks("candidates")
command = benchmarks("command")
dispatch = benchmarks("dispatch")
frame = benchmarks("frame")
guard = benchmarks("guard")
laws = benchmarks("laws")
more_peers = benchmarks("more_peers")
peers = benchmarks("peers")
plots = benchmarks("plots")
records = benchmarks("records")
values = benchmarks("values")
pytestmark = pytest.mark.usefixtures("hurried")


@pytest.fixture(scope="module")
def row():
    kept = []
    bench = frame.Bench("dispatch", GPU, BRIEF, ("wall",), kept.append)
    case = replace(TINY, name="10")
    bench.run(frame.Trial("sizes", case, (peers.NumPy(),)))
    return kept[0]


def rows_like(row, times):
    """Return rows of a candidate, case and seconds each."""
    return [
        replace(row, candidate=name, case=str(n), median=t, low=t, high=t)
        for name, n, t in times
    ]


DISPATCH = (
    ("serial", 10, 1e-6), ("parallel", 10, 8e-6), ("planned", 10, 1.05e-6),
    ("serial", 100, 1e-4), ("parallel", 100, 1e-5), ("planned", 100, 1e-5),
)


def test_rows_are_read_as_they_were_written(row, tmp_path):
    results = records.Results(tmp_path, "dispatch", GPU)
    missing = replace(row, status="missing", median=None, reason="it, as 'x', is not")
    for one in (row, missing):
        results.add(one)
    found = records.read(results.path)
    assert [r.candidate for r in found] == ["numpy", "numpy"]
    assert found[0].median == pytest.approx(row.median, rel=1e-5)
    assert found[1].median is None and found[1].reason == missing.reason
    text = results.path.read_text()
    results.path.write_text(text.replace(f",{row.batch},", ",two,"))
    with pytest.raises(FormatError, match="line 2"):
        records.read(results.path)
    with pytest.raises(FormatError, match="give the CSV file"):
        records.read(tmp_path / "none.csv")


def test_of_equal_rows_the_newest_counts(row):
    failed = replace(row, status="failed", basis="", median=None)
    later = replace(row, median=1.0)
    assert records.newest([failed, row, later]) == [later]
    other = replace(row, torch="9")
    assert records.newest([row, other]) == [row, other]


def test_resuming_measures_only_what_is_not_there(row):
    kept = []
    others = peers.NumPy(), replace(peers.NumPy(), name="b")
    trial = frame.Trial("sizes", replace(TINY, name="10"), others)
    bench = frame.Bench("dispatch", GPU, BRIEF, ("wall",), kept.append, done=[row])
    assert bench.done(trial) == [row]
    bench.run(trial)
    assert [(r.candidate, r.against) for r in kept] == [("b", "numpy")]
    assert kept[0].ratio == pytest.approx(row.median / kept[0].median)
    missing = replace(row, status="missing", basis="", median=None)
    for old in (replace(row, torch="9"), missing):  # is there now, or another version
        kept.clear()
        bench = frame.Bench("dispatch", GPU, BRIEF, ("wall",), kept.append, done=[old])
        bench.run(trial)
        assert [r.candidate for r in kept] == ["numpy", "b"]


def test_a_page_holds_everything_and_loads_nothing(row, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / "dispatch-x.csv"
    missing = replace(row, candidate="<b>", status="missing", median=None, basis="")
    command.show("dispatch", [*rows_like(row, DISPATCH), missing], path)
    out = capsys.readouterr().out
    assert "some 29.8 neurons a layer on" in " ".join(out.split())
    assert "at most 1.05 times what the better one took" in out
    page = (tmp_path / "dispatch-x.html").read_text()
    assert page.count("data:image/png;base64,") == 2
    assert not re.search(r"https?://|<script|<link", page)
    assert "&lt;b&gt;" in page and "<b>" not in page
    for name in ("time", "speed-up"):
        png = (tmp_path / f"dispatch-x-{name}-batch-2-wall.png").read_bytes()
        assert png.startswith(b"\x89PNG")


@pytest.mark.parametrize("study", list(command.STUDIES))
def test_all_pictures_can_be_drawn(study, row, tmp_path):
    """Also of rows that have little to show."""
    pytest.importorskip("matplotlib")
    for plot in command.STUDIES[study].PLOTS:
        names = {"strong": "cores-2", "weak_n": "cores-2", "weak_k": "cores-1",
                 "work_items": "split-8"}
        rows = [
            replace(row, table=t, candidate=names.get(t, "planned"), case="5 10%"
                    if study == "sparse" else "10")
            for t in plot.tables
        ]
        plots.draw([plot], rows, tmp_path / "x", frozenset())


def test_without_matplotlib_a_sentence_says_so(row, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    command.show("dispatch", rows_like(row, DISPATCH), tmp_path / "x.csv")
    assert "no pictures: matplotlib is not there" in capsys.readouterr().out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.html"]


def test_rows_of_a_file_are_shown(row, tmp_path, capsys):
    results = records.Results(tmp_path, "dispatch", GPU)
    results.add(row)
    assert main(["bench", "dispatch", "--rows", str(results.path)]) == 0
    assert "1 rows in" in capsys.readouterr().out
    assert main(["bench", "training", "--rows", str(results.path)]) == 2
    assert "has rows of dispatch, not of training" in capsys.readouterr().err
    assert main(["bench", "--rows", str(tmp_path / "no.csv")]) == 2
    assert "give the CSV file" in capsys.readouterr().err


def test_speed_ups(row):
    one = replace(row, candidate="serial", batch=1, basis="wall", median=1.0)
    many = replace(row, batch=100, basis="device", median=0.5)
    rows = [one, many]
    assert values.per_sample("fann", "serial")(many, rows) == 200
    assert values.speed_up("serial")(many, rows) is None
    assert values.speed_up("serial")(one, rows) == 1
    assert values.by_call(one) == values.SERIAL_CALL
    assert values.by_call(replace(many, precision="high")) == "batch 100, high, device"


def test_the_crossing_lies_between_the_sizes():
    assert dispatch.crossing([(1, 1.0, 2.0), (4, 2.0, 1.0)]) == pytest.approx(2.0)
    assert dispatch.crossing([(1, 1.0, 2.0), (4, 1.0, 2.0)]) is None
    assert dispatch.crossing([(3, 2.0, 1.0)]) == pytest.approx(3.0)
    sentence = dispatch._crossing_text([(5000, 2.0, 1.0)])
    assert sentence == "parallel is faster at all sizes"


def test_laws():
    """Hill and Marty's figures: f = 0.9, 256 cores, best near r = 28."""
    assert laws.amdahl(0.5, 1e9) == pytest.approx(2)
    assert laws.symmetric(0.999, 256, 1) == pytest.approx(204, rel=0.01)
    best = max(range(1, 257), key=lambda r: laws.symmetric(0.9, 256, r))
    assert best == pytest.approx(28, abs=1)


def test_large_cases_are_checked_layer_by_layer(monkeypatch):
    case = dispatch.equal_case(7)
    for mine, general in zip(case.checks, Case.checks.func(case), strict=True):
        assert mine.expected == pytest.approx(general.expected, rel=1e-12)
    monkeypatch.setattr(dispatch, "_free_bytes", lambda: 10)
    assert "GB of the host's memory" in case.missing()


# Peers


@dataclass(frozen=True)
class Deadly:
    """A peer that takes its process with it."""

    name: str = "deadly"
    patience: float | None = None

    def missing(self):
        return None

    def prepare(self, case, device):
        os.abort()


def test_a_peer_that_ends_its_process_is_a_row(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(
        [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    ))
    kept = []
    bench = frame.Bench("s", GPU, BRIEF, ("wall",), kept.append)
    bench.run(frame.Trial("t", TINY, (guard.Guarded(Deadly()), peers.NumPy())))
    assert [r.status for r in kept] == ["failed", "measured"]
    assert "SIGABRT" in kept[0].reason


def test_more_peers_are_missing_or_right():
    device = clnet.device()
    for peer in more_peers.more_peers(None):
        if peer.missing() is None and peer.name != "tinygrad":
            assert peer.prepare(TINY, device).check() < TINY.tolerance
        else:
            assert peer.missing() is None or "install" in peer.missing()


@pytest.mark.sweep
def test_the_serial_program_is_right_on_one_core():
    serial = candidates.Serial()
    if serial.missing() is not None:
        pytest.skip(serial.missing())
    prepared = serial.prepare(TINY, GPU)  # of a GPU, the host's
    assert prepared.threads == 1 and prepared.check() < TINY.tolerance
    for candidate in (dispatch.Dynamic(), dispatch.DeviceOnly()):
        assert candidate.prepare(TINY, clnet.device()).check() < TINY.tolerance
