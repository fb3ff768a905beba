"""The examples run, and their files are those that the script writes."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from children import run_python

import clnet
from clnet.planning.inference import PlanCache

EXAMPLES = Path(__file__).parents[1] / "examples"
EPOCHS = 20  # of a training; the script's take long


def test_the_files_are_those_of_the_script(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["parity8.py", str(tmp_path)])
    runpy.run_path(str(EXAMPLES / "parity8.py"), run_name="__main__")
    for name in ("parity8.net", "parity8.data"):
        assert (tmp_path / name).read_bytes() == (EXAMPLES / name).read_bytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_parity_is_always_right(dtype):
    net = clnet.load(EXAMPLES / "parity8.net", dtype=dtype)
    x, t = clnet.load_data(EXAMPLES / "parity8.data", dtype=dtype)
    assert len(x) == 256
    plan = net.compile(None, len(x), tune=False, variants=["naive"])
    found = net.compare(plan(x), t)
    assert found.accuracy == 1
    assert found.bit_fail == 0
    assert found.mse < 1e-6


@pytest.mark.parametrize("data", ["digits", "mushrooms"])
def test_the_training_script(data, tmp_path, monkeypatch, capsys, request):
    arguments = []
    if data == "digits":
        pytest.importorskip("sklearn.datasets")
    else:
        arguments = [str(request.getfixturevalue("fann_datasets"))]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
    fit = clnet.Network.fit
    monkeypatch.setattr(
        clnet.Network, "fit",
        lambda self, *given, epochs, **options: fit(
            self, *given, epochs=min(epochs, EPOCHS), **options
        ),
    )
    monkeypatch.setattr(
        PlanCache, "plan",
        lambda self, devices, batch, precision, calls=1: self.network.compile(
            devices, batch, tune=False, precision=precision
        ),
    )
    runpy.run_path(str(EXAMPLES / "train.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    found = [float(line.split("accuracy=")[1].rstrip(")")) for line in lines[1:]]
    assert found[0] == found[1] >= 0.96


def test_a_kernel_of_the_users_own_races(monkeypatch, capsys):
    compile_network = clnet.Network.compile
    monkeypatch.setattr(
        clnet.Network, "compile",
        lambda self, *given, tune, variants: compile_network(
            self, *given, variants=variants[-1:]
        ),
    )
    runpy.run_path(str(EXAMPLES / "own_kernel.py"), run_name="__main__")
    chosen = capsys.readouterr().out.split("chosen\n")[1]
    assert "four_sums" in chosen.split("whole covers")[0]


def test_a_layer_of_the_users_own_trains(tmp_path, capsys):
    own = runpy.run_path(str(EXAMPLES / "own_layer.py"), run_name="__main__")
    assert "all 100 epochs are done" in capsys.readouterr().out
    net = clnet.Network(5, [own["Banded"](5, reach=1), clnet.Dense(1)], seed=0)
    reads = np.array(net.weights(0) != 0)
    assert np.array_equal(reads, np.tri(5, k=1) - np.tri(5, k=-2))
    net.save(tmp_path / "a.net")
    assert np.array_equal(clnet.load(tmp_path / "a.net").weights(0), net.weights(0))
    with pytest.raises(clnet.FormatError, match="is Banded, expected one of dense"):
        net.save(tmp_path / "a.safetensors")


def test_the_service_of_threads_and_processes():
    done = run_python(EXAMPLES / "service.py")
    assert done.stdout == "31 requests, the same answers: True\n", done.stderr
