"""The study of locally connected layers and its candidates, at tiny sizes."""

import dataclasses

import numpy as np
import pytest
from clnet.benchmarks import command, harness
from clnet.benchmarks.studies import local
from studies import CPU, GPU

import clnet
from clnet.cli.main import main

Options = harness.Options
pytestmark = pytest.mark.usefixtures("hurried")


def test_the_tables_and_cases():
    on_cpu, on_gpu = (local.trials(device, Options()) for device in (CPU, GPU))
    tables = {trial.table for trial in on_cpu}
    assert tables == {"pairs", "strategies", *local.SCALING}
    assert {trial.table for trial in on_gpu} == {"pairs", "strategies"}
    names = {trial.case.name for trial in on_gpu}
    assert "N=1000 K=250" in names and "N=50000000 K=2" in names
    for trial in (*on_cpu, *on_gpu):
        candidates = {candidate.name for candidate in trial.candidates}
        assert set(trial.on_demand) <= candidates
    assert local.local_case(1000, 250).sizes[-1] == 502


def test_larger_networks_for_more_cores():
    n, k = local.BASE
    rows = sum(n - 2 * i for i in range(1, k))
    for cores in (1, 2, 8):
        wide, same = local._larger_n(n, k, cores)
        assert same == k and wide - k == cores * (n - k)
        fewer, deep = local._larger_k(n, k, cores)
        found = sum(fewer - 2 * i for i in range(1, deep))
        assert found == pytest.approx(cores * rows, rel=0.01)


@pytest.mark.parametrize("batch", [1, pytest.param(2, marks=pytest.mark.sweep)])
def test_candidates_are_right(batch):
    """Every installed candidate computes the oracle's results."""
    device = clnet.device()
    case = local.local_case(40, 4, batch)
    cores = local.Workers(2) if device.type == "cpu" else None
    others = [local.NumPyLocal(), local.TorchLocal("torch")]
    checked = 0
    trial = local._pair(case, device, local.Options())
    strategies = local._strategies(device)[-1].candidates
    several = (*trial.candidates, *strategies, *others, *filter(None, [cores]))
    for candidate in several:
        if candidate.name in local.CUDA or candidate.missing() is not None:
            continue
        prepared = candidate.prepare(case, device)
        assert prepared.check() < case.tolerance, candidate.name
        checked += 1
    assert checked >= 7


@pytest.mark.parametrize("kernel", local.MEMORY, ids=lambda kernel: kernel.name)
def test_memory_kernels(kernel):
    """Kernels of the case's bytes are timed on every basis but the host's."""
    case = local.local_case(2000, 2)
    prepared = kernel.prepare(case, clnet.device())
    assert set(prepared.timers) == {"stream", "device", "busy"}
    for make in prepared.timers.values():
        assert make()(2) > 0


def test_another_activation():
    case = dataclasses.replace(local.local_case(40, 3), activation="tanh")
    assert local.NumPyLocal().prepare(case, clnet.device()).check() < 1e-6
    assert np.isfinite(case.network.parameters).all()


@pytest.mark.sweep
def test_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "load", lambda: 0.0)
    monkeypatch.setattr(local, "QUICK", ((30, 3),))
    monkeypatch.setattr(local, "BASE", (60, 5))
    monkeypatch.setattr(local, "WIDE", (90, 3))
    monkeypatch.setattr(local, "SHARE", (70, 3))
    monkeypatch.setattr(local, "LONG", (30, 4))
    arguments = ["bench", "local", "--quick", "--out", str(tmp_path)]
    assert main([*arguments, "--baselines", "numpy", "--basis", "wall"]) == 0
    shown = capsys.readouterr().out
    assert "effective GB/s" in shown and "N=30 K=3" in shown
    if clnet.device().type == "cpu":
        assert "weak k, batch 1, wall: efficiency" in shown
    assert "inner-loop" in shown
    assert list(tmp_path.glob("local-*.csv"))
