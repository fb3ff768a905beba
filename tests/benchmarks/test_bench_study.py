"""The feedforward study and its candidates at tiny sizes, on the default device."""

from __future__ import annotations

import argparse
import csv
import itertools
import re
import sys
from dataclasses import dataclass, replace

import pytest
from clnet.benchmarks import (
    candidates,
    command,
    environment,
    harness,
    own_candidates,
    roofline,
    timing,
)
from clnet.benchmarks.baselines import dense
from clnet.benchmarks.cases import dense as cases
from clnet.benchmarks.studies import dispatch, feedforward, local
from studies import BRIEF, CPU, GPU, TINY, rows_of

from clnet import InputError
from clnet.cli import bench as cli_bench
from clnet.cli.main import main
from clnet.errors import WIDTH, ClnetWarning
from clnet.opencl import rate_probes
from clnet.opencl.session import session
from clnet.runtime.executable import Executable
from clnet.variants import ALL_VARIANTS
from clnet.variants.reference.generic import Generic

Case = cases.Case
Options = harness.Options
pytestmark = pytest.mark.usefixtures("hurried")


@pytest.fixture
def device(device, monkeypatch, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "times"
    monkeypatch.setenv("CLNET_CACHE_DIR", str(folder))
    return device


# clnet's candidates


def test_timed_run_reads_the_devices_clock(device):
    naive = own_candidates.ByVariant(own_candidates.variant("naive"))
    steps = naive.steps(TINY, device)
    program = TINY.network.program
    values = [program.input], [program.output]
    executable = Executable(
        session(device, profiling=True), TINY.network, steps, *values, on_device=True
    )
    executable.bound.write(program.input, TINY.inputs[0])
    before = []
    time = own_candidates.timed_run(executable, lambda: before.append(1))
    assert 0 < time.busy <= time.span
    assert before == [1]


def test_timed_run_needs_a_step_on_the_device(device):
    steps = own_candidates.ByVariant(own_candidates.variant("host")).steps(TINY, device)
    program = TINY.network.program
    executable = Executable(
        session(device, profiling=True), TINY.network, steps, [program.input],
        [program.output],
    )
    with pytest.raises(InputError, match="on the device"):
        own_candidates.timed_run(executable)


def test_candidates_are_measured_on_every_basis(device):
    names = ("naive", "fused_local", "host")
    ours = [own_candidates.ByVariant(own_candidates.variant(name)) for name in names]
    trial = harness.Trial(
        "t", TINY, (*ours, own_candidates.Planned(), dense.NumPy()), against=("numpy",)
    )
    kept = rows_of(trial, device, candidates.BASES)
    assert not [row for row in kept if row.status != "measured"]
    bases = {
        name: {row.basis for row in kept if row.candidate == name}
        for name in (*names, "planned", "numpy")
    }
    assert bases.pop("host") == bases.pop("numpy") == {"wall"}
    assert all(found == set(candidates.BASES) for found in bases.values())


def test_a_variants_refusal_is_its_sentence(device):
    fused = own_candidates.ByVariant(own_candidates.variant("split"), {"items": 3})
    (row,) = rows_of(harness.Trial("t", TINY, (fused,)), device)
    assert row.status == "refused"
    assert row.reason == "split has no configuration with items=3 here"


def test_one_core_is_the_serial_device(device):
    naive = own_candidates.ByVariant(own_candidates.variant("naive"), one_core=True)
    serial = [one for one in device.places if one.serial]
    if serial:
        assert {step.device for step in naive.steps(TINY, device)} == set(serial)
    with pytest.raises(candidates.RefusedError, match="calling thread"):
        naive.steps(TINY, GPU)


def test_tuning_takes_a_configuration_of_the_space(device):
    tuned = own_candidates.ByVariant(own_candidates.variant("split"), tune=True)
    for step in tuned.steps(TINY, device):
        assert step.config in list(step.variant.space(step.span, device))


def test_equal_steps_are_counted(device):
    case = Case("deep", (8, 8, 8, 8), "tanh")
    naive = own_candidates.ByVariant(own_candidates.variant("naive"))
    steps = naive.steps(case, device)
    assert own_candidates.steps_text(steps) == "3 naive"


@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "relu", "gelu"])
def test_numpy_computes_the_case(activation):
    case = replace(TINY, activation=activation)
    prepared = dense.NumPy().prepare(case, GPU)
    assert prepared.spins
    assert prepared.check() < case.tolerance


@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_torch_is_missing_or_right(device, precision):
    case = replace(TINY, precision=precision)
    for row in rows_of(
        harness.Trial("t", case, dense.dense_baselines(None)[1:6]), device
    ):  # compiling needs a C compiler
        compiled = row.candidate in feedforward.COMPILED
        assert row.status in ("measured", "missing", *["failed"] * compiled), row.reason


def test_torch_that_is_not_installed_is_missing(monkeypatch):
    monkeypatch.setattr(candidates, "find_spec", lambda name: None)
    assert dense.Torch().missing() == "torch is not installed"


def test_threads_are_known_or_not(monkeypatch):
    assert environment.blas_threads() is None or environment.blas_threads() >= 1
    monkeypatch.setattr(environment, "threadpool_info", list)
    assert environment.blas_threads() is None


# Floors


def test_the_devices_speeds_are_measured_once(device, monkeypatch):
    monkeypatch.setattr(rate_probes, "READ", 1 << 20)
    monkeypatch.setattr(rate_probes, "LARGE", 1 << 22)
    monkeypatch.setattr(rate_probes, "STEPS", {True: 1 << 8, False: 1 << 8})
    machine = roofline.Roofline(device)
    found = machine.floor(TINY)
    assert found.seconds > 0
    again = machine.floor(replace(TINY, name="again"))
    assert again == found
    if device.fp64:
        assert machine.rate("float64") > 0


def test_a_delay_is_enqueued_on_the_profiling_queue(device):
    delay = roofline.Roofline(device).delay(1e-4)
    event = delay()
    session(device, profiling=True).queue.finish()
    assert event.profile.end > event.profile.start


# The study, and the command


def test_the_studys_configurations_are_the_papers():
    sizes = feedforward.CONFIGURATIONS
    assert sizes["config-3"] == (200, 500, *[1000] * 7, 500, 100)
    assert sizes["config-6"] == (200, 1000, 4000, 4000, 4000, 1000, 100)
    assert all(len(widths) == 12 for widths in feedforward.DEEP.values())


@pytest.mark.parametrize("device", [GPU, CPU])
def test_quick_has_fewer_candidates_and_full_more(device):
    counts = {}
    for effort in timing.EFFORTS:
        trials = feedforward.trials(device, Options(effort=effort))
        chosen = command.select(trials, Options(effort=effort), feedforward.BASELINES)
        counts[effort] = sum(len(trial.candidates) for trial in chosen)
    assert counts["quick"] < counts["normal"] < counts["full"]


def test_lower_precision_is_for_kernels_that_use_it():
    options = Options(batches=[32], precisions=["highest", "high"])
    trials = feedforward.trials(GPU, options)
    one, lower = (
        {candidate.name for candidate in trial.candidates}
        for trial in command.select(trials, options, feedforward.BASELINES)
        if trial.case.name == "config-1" and trial.table == "configurations"
    )
    assert {"gemm", "mma", "planned", "torch-graph"} <= one
    same = {
        "naive", "local", "split", "fused_local", "persistent", "persistent_mma", "gemm"
    }
    assert lower == one - same


def test_gpu_kernels_run_on_a_cpu_for_small_networks_or_by_name():
    trials = feedforward.trials(CPU, Options(batches=[1]))

    def names(options, case):
        return {
            c.name for t in command.select(trials, options, feedforward.BASELINES)
            if t.case.name == case and t.table != "work_items" for c in t.candidates
        }

    default = Options()
    assert "naive" in names(default, "deep-32")
    assert "naive" not in names(default, "config-1")
    assert "naive" in names(replace(default, effort="full"), "config-1")
    only = replace(default, variants=["naive"], baselines=["none"])
    assert names(only, "config-1") == {"naive"}


def test_the_first_table_of_a_gpu_has_the_whole_ladder():
    trials = feedforward.trials(GPU, Options(batches=[1]))
    options = Options(tables=["configurations"])
    for trial in command.select(trials, options, feedforward.BASELINES):
        names = [candidate.name for candidate in trial.candidates]
        assert names[:7] == [
            "naive", "local", "split", "fused", "fused_local", "persistent", "planned"
        ]
        assert "torch-graph" in names
        assert "torch-compile" not in names  # slow: on demand


def test_narrow_layers_and_many_samples_are_for_gpus():
    for device, batches in ((CPU, set()), (GPU, {1 << 17})):
        trials = feedforward.trials(device, Options())
        assert {t.case.batch for t in trials if t.table == "narrow"} == batches


def test_table_two_is_split_with_1_to_256_items():
    trials = feedforward.trials(GPU, Options())
    found = [trial for trial in trials if trial.table == "work_items"]
    assert len(found) == len(feedforward.CONFIGURATIONS)
    names = [candidate.name for candidate in found[0].candidates]
    assert names == [f"split-{2**n}" for n in range(9)]


def test_every_registered_variant_is_a_known_name():
    options = Options(variants=["generc"])
    for study in (feedforward, dispatch, local):
        with pytest.raises(InputError, match="did you mean 'generic'"):
            command.select(study.trials(CPU, options), options, study.BASELINES)
    with pytest.raises(InputError, match="'naiv': did you mean 'naive'"):
        own_candidates.variant("naiv")


@dataclass(frozen=True)
class Own(Generic):
    """A newly registered variant."""

    name: str = "own"


@pytest.mark.parametrize("named", [["own"], ["o?n"], ["csr", "generic", "own"]])
def test_every_registered_variant_may_be_named(monkeypatch, named):
    monkeypatch.setattr(own_candidates, "ALL_VARIANTS", (*ALL_VARIANTS, Own()))
    options = Options(variants=named, baselines=["none"])
    for study in (feedforward, dispatch, local):
        trials = study.trials(CPU, options)
        for trial in command.select(trials, options, study.BASELINES):
            assert "own" in {candidate.name for candidate in trial.candidates}
    default = Options(effort="full")
    for trial in feedforward.trials(CPU, default):
        assert "own" not in {candidate.name for candidate in trial.candidates}


@pytest.mark.parametrize(("options", "sentence"), [
    ({"cases": ["config-9"]}, "unknown case 'config-9'"),
    ({"tables": ["table-1"]}, "unknown table"),
    ({"baselines": ["nunpy"]}, "did you mean 'numpy'"),
    ({"variants": ["fuse"]}, "did you mean 'fused'"),
    ({"variants": ["none"], "baselines": ["none"]}, "nothing is left"),
])
def test_names_without_a_match_are_errors(options, sentence):
    trials = feedforward.trials(GPU, Options())
    with pytest.raises(InputError, match=sentence):
        command.select(trials, Options(**options), feedforward.BASELINES)


def bench(line, folder):
    """Run a command of the bench, whose results go to a folder."""
    return main(["bench", *line.split(), "--out", str(folder)])


@pytest.fixture
def tiny_study(monkeypatch):
    tiny = {"config-1": (5, 7, 3)}
    monkeypatch.setattr(feedforward, "CONFIGURATIONS", tiny)
    monkeypatch.setattr(feedforward, "DEEP", {})
    monkeypatch.setattr(feedforward, "BATCHES", (1, 3))
    monkeypatch.setattr(rate_probes, "READ", 1 << 20)
    monkeypatch.setattr(rate_probes, "LARGE", 1 << 22)
    monkeypatch.setattr(rate_probes, "STEPS", {True: 1 << 8, False: 1 << 8})
    monkeypatch.setattr(command, "EFFORTS", {"normal": BRIEF})
    monkeypatch.setattr(candidates, "find_spec", lambda name: None)
    monkeypatch.setattr(command, "load", lambda: 0.0)


def test_a_busy_machine_is_a_warning(
    tiny_study, device, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(command, "load", lambda: 1.7)
    with pytest.warns(ClnetWarning, match=r"other programs kept 1\.7 cores busy"):
        bench("feedforward --baselines numpy --variants none --batch 1", tmp_path)
    assert re.search(r"^\d rows in", capsys.readouterr().out, re.MULTILINE)


def test_the_command_runs_a_study(tiny_study, device, tmp_path, capsys):
    status = bench("feedforward --batch 1 --variants naive,planned,host", tmp_path)
    out, err = capsys.readouterr()
    assert status == 0, err
    assert max(
        len(line) for line in out.splitlines() if str(tmp_path) not in line
    ) <= WIDTH
    assert "configurations, batch 1, wall" in out
    assert "[1/" in err  # plain lines: stderr is no terminal
    (path,) = tmp_path.glob("*.csv")
    with path.open(newline="") as file:
        found = list(csv.DictReader(file))
    assert f"{len(found)} rows in {path}" in out
    status = {row["candidate"]: row["status"] for row in found}
    assert status["planned"] == status["numpy"] == status["naive"] == "measured"
    assert status.get("torch", "missing") == "missing"


def test_an_interrupted_command_shows_and_keeps_its_rows(
    tiny_study, device, tmp_path, capsys, monkeypatch
):
    done = harness.Harness.run
    times = itertools.count()

    def once(self, trial):
        if next(times):
            raise KeyboardInterrupt
        done(self, trial)

    monkeypatch.setattr(harness.Harness, "run", once)
    options = "--baselines numpy --variants none --batch 1,2"
    assert bench(f"feedforward {options}", tmp_path) == 130
    out, _ = capsys.readouterr()
    assert "configurations, batch 1, wall" in out
    (path,) = tmp_path.glob("*.csv")
    assert "1 rows in" in out
    assert len(path.read_text().splitlines()) == 2


@pytest.mark.parametrize(("line", "sentence"), [
    ("fedforward", "did you mean 'feedforward'"),
    ("feedforward --device abacus", "no device matches 'abacus'"),
    ("feedforward --basis wal", "did you mean 'wall'"),
    ("feedforward --case x", "unknown case 'x'"),
    ("feedforward --precision x", "unknown float32 precision 'x': known"),
    ("dispatch --batch 2", "dispatch takes no --batch, but --fann-library"),
    ("feedforward --batch 0", "expected a whole number of at least 1"),
    ("feedforward --quick --full", "not allowed with"),
    ("training --basis wall", "unknown basis 'wall'"),
])
def test_bad_input_is_one_sentence(device, line, sentence, tmp_path, capsys):
    try:
        status = bench(line, tmp_path)
    except SystemExit as leaving:
        status = leaving.code
    out, err = capsys.readouterr()
    assert status == 2
    assert sentence in err
    assert len(err.splitlines()) == 1
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_studies_are_listed(capsys):
    assert main(["bench"]) == 0
    assert capsys.readouterr().out.startswith("feedforward  ")


@pytest.mark.parametrize(("module", "sentence"), [
    ("pandas", r"needs pandas: pip install 'clnet\[bench\]'"),
    ("clnet.benchmarks", r"needs clnet\.benchmarks.*: install clnet again"),
])
def test_a_missing_module_is_one_sentence(module, sentence, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("clnet.benchmarks")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    arguments = argparse.Namespace(study=None)
    with pytest.raises(InputError, match=sentence):
        cli_bench.run(arguments)
