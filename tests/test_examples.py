"""The examples run, and their files are those that the script writes."""

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from children import run_python

import clnet
from clnet.ir import reference
from clnet.ir.lowering import lower_training
from clnet.nn.losses import LOSSES

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


@pytest.mark.usefixtures("modelled_plans")
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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_optimiser_of_the_users_own_trains(dtype, tmp_path, capsys):
    """As its rule in NumPy; by mini-batches, in a population, and after a file."""
    pytest.importorskip("sklearn.datasets")
    own = runpy.run_path(str(EXAMPLES / "own_optimiser.py"))
    if dtype == "float32":
        own["main"]()
        printed = capsys.readouterr().out
        assert "all 20 epochs are done" in printed
        assert float(printed.split("accuracy=")[1].rstrip(")\n")) > 0.85
    rng, rule = np.random.default_rng(1), own["AdaGrad"](0.1)
    x, t = rng.uniform(-1, 1, (40, 3)), rng.uniform(-1, 1, (40, 2))
    net, other, *alike = (
        clnet.Network.mlp([3, 5, 2], "tanh", seed=1, dtype=dtype) for _ in range(4)
    )
    program = lower_training(net, LOSSES["mse"], rule)
    parameters = net.parameters.astype(np.float64)
    values = {"x": x, "t": t, "state": np.zeros((1, len(parameters))), "rate": 0.1,
              "samples": 40, "seen": 40, "fresh": 1, "seed": 0}
    for count in range(6):
        reference.run_ops(program.ops, values | {"count": count}, parameters)
    options = {"optimiser": rule, "batch_size": 40, "shuffle": False, "tune": False}
    net.fit(x, t, epochs=6, **options)
    tolerance = {"float32": 1e-5, "float64": 1e-12}[dtype]
    np.testing.assert_allclose(net.parameters, parameters, rtol=0, atol=tolerance)

    path = tmp_path / "a.safetensors"
    other.fit(x, t, epochs=2, **options, callbacks=[clnet.Checkpoint(path)])
    other.fit(x, t, epochs=6, **options, resume=path)
    assert np.array_equal(other.parameters, net.parameters)
    population = clnet.Population.of(alike)
    population.fit(x, t, epochs=6, optimiser=rule, batch_size=40, shuffle=False)
    np.testing.assert_allclose(
        population.parameters[1], net.parameters, rtol=0, atol=tolerance
    )


def test_the_service_of_threads_and_processes():
    done = run_python(EXAMPLES / "service.py")
    assert done.stdout == "31 requests, the same answers: True\n", done.stderr
