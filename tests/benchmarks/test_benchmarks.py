"""Cases, harness, timing and rows, with faked candidates; no test asserts a time."""

from __future__ import annotations

import csv
import itertools
import os
import signal
import socket
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from clnet.benchmarks import candidates, harness, measurements, roofline, timing
from clnet.benchmarks.cases import dense as cases
from clnet.benchmarks.report import tables
from studies import BRIEF, GPU, TINY, rows_of

from clnet import DeviceError, FormatError, InputError
from clnet.errors import WIDTH, ClnetWarning
from clnet.ir import reference

Case = cases.Case
pytestmark = pytest.mark.usefixtures("hurried")


def oracle(case):
    parameters = case.network.parameters.astype(np.float64)

    def call(x):
        return reference.run(case.network.program, x.astype(np.float64), parameters)

    return call


@dataclass(frozen=True)
class Fake:
    """A candidate whose call is the oracle's, changed."""

    name: str
    change: object = staticmethod(lambda call: call)
    reason: str | None = None
    spins: bool = False
    timeout: float | None = None
    timers: tuple = ()

    def missing(self):
        return self.reason

    def prepare(self, case, device):
        return candidates.forward(
            case, self.change(oracle(case)), dict(self.timers), spins=self.spins
        )


def run(trial, effort=BRIEF, bases=("wall",)):
    """Return the rows of a trial on a faked device without OpenCL."""
    return rows_of(trial, GPU, bases, effort, "study")


# Cases


def test_a_case_gives_the_same_network_and_inputs_each_time():
    again = replace(TINY)
    assert again == TINY
    assert np.array_equal(again.network.parameters, TINY.network.parameters)
    for x, same in zip(again.inputs, TINY.inputs, strict=True):
        assert np.array_equal(x, same)
    other = replace(TINY, seed=1)
    assert not np.array_equal(other.inputs[0], TINY.inputs[0])


def test_a_cases_inputs_are_several_different_sets():
    inputs = TINY.inputs
    assert len(inputs) == cases.SETS[1]
    assert all(x.shape == (2, 5) and x.dtype == np.float32 for x in inputs)
    assert not any(np.array_equal(a, b) for a, b in itertools.combinations(inputs, 2))


def test_large_inputs_have_fewer_sets(monkeypatch):
    monkeypatch.setattr(cases, "SETS_BYTES", 3 * 2 * 5 * 4)
    assert len(replace(TINY).inputs) == 3
    monkeypatch.setattr(cases, "SETS_BYTES", 0)
    assert len(replace(TINY).inputs) == cases.SETS[0]


def test_the_checks_hold_the_oracles_outputs_of_first_and_last_samples():
    case = replace(TINY, batch=100)
    for check in case.checks:
        assert {0, 99} <= set(check.rows)
        y = oracle(case)(case.inputs[check.inputs])
        assert np.array_equal(check.expected, y[check.rows])
    assert {check.inputs for check in case.checks} == {0, len(case.inputs) - 1}


@pytest.mark.parametrize("activation", ["sigmoid", "tanh"])
def test_the_outputs_of_a_deep_case_depend_on_its_inputs(activation):
    """A check of the outputs then checks all layers."""
    case = Case("deep", (20, *[50] * 9, 10), activation, batch=20)
    y = oracle(case)(case.inputs[0])
    spread = np.linalg.norm(y - y.mean(axis=0)) / np.linalg.norm(y)
    assert spread > 10 * case.tolerance


def test_a_case_counts_bytes_and_operations():
    assert TINY.bytes == 4 * (7 * 8 + 3 * 8 + 7 + 3 + 2 * 5 + 2 * 3)  # rows padded
    assert TINY.flops == 2 * (2 * (7 * 8 + 3 * 8) + 4 * (7 + 3))


def test_precision_widens_the_tolerance():
    high = replace(TINY, precision="high")
    assert high.tolerance > TINY.tolerance


@pytest.mark.parametrize(
    ("field", "value"), [("precision", "best"), ("dtype", "float16")]
)
def test_an_unknown_precision_or_dtype_is_an_error(field, value):
    with pytest.raises(InputError, match=r"unknown float(16|32) precision"):
        replace(TINY, **{field: value})


# Rows of candidates


def raising(error):
    def change(call):
        raise error

    return change


def crash(call):
    def broken(x):
        raise RuntimeError("out of /secret/folder/memory\nand more")

    return broken


def sleepy(call):
    time.sleep(30)
    return call


OUTCOMES = [
    (Fake("good"), "measured", ""),
    (Fake("gone", reason="it is not installed"), "missing", "it is not installed"),
    (Fake("breaks", raising(OSError("no driver"))), "failed", "OSError: no driver"),
    (Fake("crashes", crash), "failed", "RuntimeError: out of memory"),
    (Fake("off", lambda call: lambda x: call(x) + 0.01), "wrong", "differs"),
    (Fake("stale", lambda call: lambda x: call(TINY.inputs[0])), "wrong", "differs"),
    (Fake("nan", lambda call: lambda x: call(x) * np.nan), "wrong", "not finite"),
    (Fake("flat", lambda call: lambda x: call(x)[0]), "wrong", "shape"),
    (
        Fake("refuses", raising(candidates.RefusedError("not here"))), "refused",
        "not here",
    ),
    (Fake("slow", sleepy, timeout=0.05), "failed", "not ready after 0.05 s"),
]


@pytest.mark.parametrize(
    ("candidate", "status", "reason"), OUTCOMES,
    ids=[outcome[0].name for outcome in OUTCOMES],
)
def test_every_outcome_is_a_row(candidate, status, reason):
    trial = harness.Trial("t", TINY, (candidate, Fake("other")), against=("other",))
    rows = {row.candidate: row for row in run(trial)}
    row, other = rows[candidate.name], rows["other"]
    assert (row.status, other.status) == (status, "measured")
    assert reason in row.reason
    assert "\n" not in row.reason
    assert "/" not in row.reason
    if status == "measured":
        assert row.low <= row.median <= row.high
        assert row.rounds == BRIEF.rounds
        assert row.ratio == pytest.approx(other.median / row.median)
        assert row.error < row.tolerance
    else:
        assert row.median is None
        assert row.ratio is None


def test_every_status_is_a_known_one():
    assert {status for _, status, _ in OUTCOMES} == set(measurements.STATUSES)


def test_a_failure_while_measuring_is_a_row():
    calls = itertools.count()

    def later(call):
        def broken(x):
            if next(calls) > len(TINY.checks) + 2:
                raise MemoryError("full")
            return call(x)

        return broken

    rows = {r.candidate: r for r in run(harness.Trial("t", TINY, (
        Fake("a", later), Fake("numpy"))))}
    assert (rows["a"].status, rows["a"].basis) == ("failed", "wall")
    assert rows["a"].reason == "MemoryError: full"
    assert rows["numpy"].rounds == BRIEF.rounds


def test_a_timer_that_cannot_be_made_is_a_row():
    def timer():
        raise DeviceError("no profiling")

    broken = Fake("a", timers=(("device", timer),))
    trial = harness.Trial("t", TINY, (broken, Fake("b")))
    found = [
        (r.candidate, r.basis, r.status) for r in run(trial, bases=("wall", "device"))
    ]
    assert set(found) == {
        ("a", "wall", "measured"), ("b", "wall", "measured"), ("a", "device", "failed"),
    }


def test_without_a_baseline_there_is_no_ratio():
    trial = harness.Trial("t", TINY, (Fake("a"), Fake("b")), against=("numpy", "torch"))
    assert all(row.ratio is None and not row.against for row in run(trial))


def test_ratios_are_to_the_first_baseline_measured():
    fakes = Fake("a"), Fake("b"), Fake("c", reason="no")
    trial = harness.Trial("t", TINY, fakes, against=("c", "b", "a"))
    measured = [row for row in run(trial) if row.median is not None]
    assert [row.against for row in measured] == ["b", "b"]


def test_an_interruption_keeps_the_rows_measured_before():
    calls = itertools.count()

    def interrupted(call):
        def stopped(x):
            if next(calls) > len(TINY.checks) + 1:
                raise KeyboardInterrupt
            return call(x)

        return stopped

    kept = []
    bench = harness.Harness("study", GPU, BRIEF, ("wall",), kept.append)
    trial = harness.Trial("t", TINY, (Fake("numpy"), Fake("a", interrupted)))
    with pytest.raises(KeyboardInterrupt):
        bench.run(trial)
    assert [row.candidate for row in kept] == ["numpy", "a"]
    assert all(0 < row.rounds < BRIEF.rounds for row in kept)


def test_a_time_limit_restores_an_outer_timer():
    if not hasattr(signal, "setitimer"):
        pytest.skip("no interval timers here")
    start = time.monotonic()
    before = signal.getitimer(signal.ITIMER_REAL)[0]
    handler = signal.getsignal(signal.SIGALRM)
    with pytest.raises(TimeoutError), harness.time_limit(0.02):
        time.sleep(5)
    with harness.time_limit(50):
        pass
    after = signal.getitimer(signal.ITIMER_REAL)[0]
    assert signal.getsignal(signal.SIGALRM) == handler
    assert (before == 0) == (after == 0)
    if before:
        passed = time.monotonic() - start
        assert before - passed - 0.1 <= after <= before


# Rounds


def entries(order, spins):
    def timer(name):
        def run(repeats):
            order.append(name)
            return 1.0

        return run

    return [timing.TimedCandidate(timer(name), spin) for name, spin in spins.items()]


def test_rounds_alternate_and_pause_after_spinning_threads(monkeypatch):
    long, short = 0.5, 0.1
    monkeypatch.setattr(timing, "SPIN_SECONDS", long)
    monkeypatch.setattr(timing, "SETTLE_SECONDS", short)
    order, waits = [], []
    found = entries(order, {"a": False, "blas": True, "c": False})
    timing.interleave(found, replace(BRIEF, rounds=2), waits.append)
    forwards = ["a", "blas", "c"]
    assert order == forwards + forwards[::-1] + forwards
    # There is a pause before the first too: the oracle has run on the same BLAS.
    assert waits == [long, short, long, short, short, long, short, short, long]
    assert [entry.samples for entry in found] == [[1.0, 1.0]] * 3


def test_the_warm_up_finds_the_repeats_of_a_block(monkeypatch):
    ran = []
    seconds = 0.0

    def timer(repeats):
        nonlocal seconds
        ran.append(repeats)
        seconds += 1e-4 * repeats
        return 1.0

    monkeypatch.setattr(timing.time, "perf_counter", lambda: seconds)
    entry = timing.TimedCandidate(timer)
    entry.warm_up(5e-3)
    assert entry.samples == []
    assert 50 <= entry.repeats <= 200
    del ran[:]
    entry.block()
    assert ran == [1, entry.repeats]  # the first run is not timed


def test_the_budget_ends_a_candidates_rounds():
    found = entries([], {"a": False, "b": False})
    effort = timing.Effort("quick", rounds=10, block=0.0, budget=1.0)
    found[0].spent = 2.0
    timing.interleave(found, effort, lambda seconds: None)
    assert len(found[0].samples) == timing.MIN_ROUNDS
    assert len(found[1].samples) == 10


def test_the_wall_timer_takes_the_inputs_in_turn():
    seen = []
    timer = candidates.wall(seen.append, [0, 1, 2])
    assert timer(7) >= 0
    assert seen == [0, 1, 2, 0, 1, 2, 0]


# Floors


def test_the_floor_is_the_larger_of_two_times():
    by_bytes = roofline.lower_bound(100, 10, bandwidth=10, rate=5)
    assert (by_bytes.seconds, by_bytes.bound) == (10, "bytes")
    by_flops = roofline.lower_bound(100, 100, bandwidth=10, rate=5)
    assert (by_flops.seconds, by_flops.bound) == (20, "flops")
    assert (by_flops.bandwidth, by_flops.rate) == (10, 5)


def test_a_row_holds_the_floor_and_the_time_over_it(monkeypatch):
    monkeypatch.setattr(roofline.Roofline, "bandwidth", lambda self, size: 1e9)
    monkeypatch.setattr(roofline.Roofline, "rate", lambda self, dtype: 1e30)
    (row,) = run(harness.Trial("t", TINY, (Fake("a"),)))
    assert row.floor == pytest.approx(TINY.bytes / 1e9)
    assert (row.bound, row.bandwidth, row.rate) == ("bytes", 1e9, 1e30)
    assert row.over_floor == pytest.approx(row.median / row.floor)


def test_times_need_no_floor():
    # The faked device has no queue.
    (row,) = run(harness.Trial("t", TINY, (Fake("a"),)))
    assert row.status == "measured"
    assert (row.floor, row.over_floor, row.bound) == (None, None, "")


# Rows


@pytest.fixture
def rows():
    return run(
        harness.Trial("t", TINY, (Fake("numpy"), Fake("gone", reason='not "here", no')))
    )


def test_rows_are_appended_with_their_environment(rows, tmp_path):
    results = measurements.ResultsFile(tmp_path / "new", "study", GPU)
    assert results.path.name == "study-faked.csv"
    for row in rows:
        results.add(row)
    again = measurements.ResultsFile(tmp_path / "new", "study", GPU)
    again.add(rows[0])
    with again.path.open(newline="") as file:
        found = list(csv.DictReader(file))
    assert tuple(found[0]) == measurements.COLUMNS
    assert [row["candidate"] for row in found] == ["gone", "numpy", "gone"]
    gone, good = found[:2]
    assert gone["reason"] == 'not "here", no'
    assert gone["median"] == ""
    assert float(good["median"]) == pytest.approx(rows[1].median, rel=1e-5)
    for column in ("device", "clnet", "numpy", "python", "date", "basis", "sizes"):
        assert good[column], column


def test_no_row_names_the_host_or_a_folder(rows, tmp_path):
    results = measurements.ResultsFile(tmp_path, "study", GPU)
    for row in rows:
        results.add(row)
    text = results.path.read_text()
    assert socket.gethostname() not in text
    assert str(Path.cwd()) not in text
    assert os.sep not in text


def test_the_schema():
    assert measurements.COLUMNS == (
        "study", "table", "case", "sizes", "activation", "batch", "dtype", "precision",
        "seed", "candidate", "config", "status", "reason", "basis", "median", "low",
        "high", "rounds", "effort", "error", "tolerance", "against", "ratio", "floor",
        "bound", "over_floor", "bandwidth", "rate", "threads", "load", "device",
        "platform", "platform_version", "driver", "clnet", "numpy", "pyopencl", "torch",
        "python", "date",
    )


def test_a_file_with_other_columns_is_left_alone(tmp_path):
    path = tmp_path / "study-faked.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(FormatError, match="columns 'a,b'"):
        measurements.ResultsFile(tmp_path, "study", GPU)
    assert path.read_text() == "a,b\n1,2\n"


def test_an_unfinished_row_is_cut_off_with_a_warning(rows, tmp_path):
    results = measurements.ResultsFile(tmp_path, "study", GPU)
    results.add(rows[0])
    whole = results.path.read_text()
    results.path.write_text(whole + "study,t,ti")
    with pytest.warns(ClnetWarning, match="in the middle of a row"):
        measurements.ResultsFile(tmp_path, "study", GPU)
    assert results.path.read_text() == whole


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FormatError, match="cannot go to"):
        measurements.ResultsFile(tmp_path / "file", "study", GPU)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("pthread-AMD EPYC", "pthread-amd-epyc"), ("NVIDIA H200 (TM)", "nvidia-h200-tm"),
     ("…", "device")],
)
def test_slugs(name, expected):
    assert measurements.slug(name) == expected


# Tables


def test_tables_fit_the_width_and_list_missing_times():
    trial = harness.Trial(
        "t", TINY,
        (
            *(Fake(f"candidate-{n}") for n in range(12)),
            Fake("gone", reason="it " + "is not installed " * 10),
        ),
        against=("candidate-3",),
    )
    text = tables.tables(measurements.table_of(run(trial)))
    assert max(len(line) for line in text.splitlines()) <= WIDTH
    for n in range(12):
        assert f"candidate-{n}" in text
    assert "times as fast as candidate-3" in text
    assert "gone (tiny batch 2): missing" in text


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.01234, "0.0123"), (1.0, "1"), (99.94, "99.9"), (123.4, "123"),
     (80312.7, "80313")],
)
def test_numbers_keep_three_digits(value, expected):
    assert tables.number(value) == expected
