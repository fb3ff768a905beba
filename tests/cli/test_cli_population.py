"""``clnet train`` of many networks: seeds, folds and grids."""

import json
import subprocess
import sys

import numpy as np
import pytest
from children import MPIEXEC, OPEN_MPI, child_environment
from cli_output import ok, refused

from clnet import Network, Population, device, load
from clnet.formats import load_data
from clnet.training.histories import band

pytestmark = pytest.mark.usefixtures("modelled_plans")


SIZES = "a.train --layers 2-6-1 --epochs 20"


@pytest.fixture
def train(clnet_command):
    """A function that trains, and returns the output."""
    return lambda line: ok(clnet_command(f"train {line}"))


@pytest.fixture
def trained(clnet_json):
    """A function that trains, and returns the output as JSON."""
    return lambda line: clnet_json(f"train {line}")


def test_seeds(data, train, trained):
    pytest.importorskip("matplotlib")
    command = (f"{SIZES} --population 5 --seed 3 --validation a.test "
               "--save b.safetensors --plot b.png")
    out, found = train(command), trained(command)
    assert found["seeds"] == [3, 4, 5, 6, 7]
    assert found["best"] == 3 + int(np.argmin(found["loss"]))
    assert f"seed {found['best']}, by the validation's loss" in out
    assert "3 to 7" in out and "20 samples" in out
    assert (data / "b.png").read_bytes().startswith(b"\x89PNG")
    x, t = load_data("a.test")
    one = load("b.safetensors").evaluate(x, t)
    figures = found["validation"]["networks"][found["best"] - 3]
    assert one.mse == pytest.approx(figures["mse"], rel=1e-5)
    best = Network.mlp([2, 6, 1], ["tanh", "sigmoid"], seed=found["best"])
    best.fit(*load_data("a.train"), epochs=20, seed=found["best"])
    np.testing.assert_allclose(
        load("b.safetensors").parameters, best.parameters, rtol=1e-3, atol=1e-4
    )


def test_seeds_without_validation_and_with_an_initialiser(data, train):
    command = f"{SIZES} --population 3"
    out = train(f"{command} --initialiser widrow_nguyen --report a.html")
    assert "<svg" in (data / "a.html").read_text("utf-8")
    assert "by the training's loss" in out
    out = train(f"{command} --validation 0.3 --patience 1 --rate 1e-9 --optimiser sgd")
    assert "epochs   2 to" in out or "epochs   2\n" in out


def test_folds(data, train, trained):
    command = f"{SIZES} --folds 4 --seed 1"
    out, scores = train(command), np.array(trained(command)["scores"])
    assert scores.shape == (1, 4)
    assert f"{scores.mean():.4f}, deviation {scores.std():.4f}" in out
    network = Network.mlp([2, 6, 1], ["tanh", "sigmoid"], seed=1)
    expected = Population.cross_validate(
        network, *load_data("a.train"), folds=4, seed=1, epochs=20
    )
    np.testing.assert_array_equal(scores, expected.scores)


def test_a_grid(data, train, trained):
    pytest.importorskip("matplotlib")
    command = ("a.train --layers 2-6-1 --grid learning_rate=0.0001,0.1 "
               "--grid l2=0,1e-4 --grid 'optimiser=adam, rmsprop' --grid epochs=2,20 "
               "--folds 3 --save b.net --plot b.svg")
    table, rest = train(command).split("\n\n")
    assert sum(line[0].isdigit() for line in table.splitlines()) == 10
    assert table.endswith("… 6 more")
    assert "16 settings over 3 folds" in rest
    assert "trained on all samples" in " ".join(rest.split())
    found = trained(command)
    assert found["best"]["learning_rate"] == 0.1
    assert np.shape(found["scores"]) == (16, 3)
    x, t = load_data("a.train")
    assert load("b.net").evaluate(x, t).mse == pytest.approx(
        found["training"]["mse"], rel=1e-4
    )
    assert (data / "b.svg").is_file()


@pytest.mark.parametrize("options", [
    "--population 4", "--grid l2=0,0.1 --folds 2",
])
def test_networks_share_several_devices(data, trained, options):
    indices = [place.index for place in device().places]
    if len(indices) < 2:
        pytest.skip("there is one device")
    command = f"{SIZES} {options} --seed 1 --device"
    single = trained(f"{command} {indices[0]}")
    found = trained(f"{command} {','.join(indices)}")
    assert found["device"].count(", ") == 1
    name = "loss" if "loss" in found else "scores"
    # The same networks by another device: some roundings of float32 in each step.
    np.testing.assert_allclose(found[name], single[name], rtol=1e-6)


def test_seeds_on_data_that_are_read_by_parts(data, trained):
    for name in ("a.train", "a.test"):
        np.save(f"{name}.npy", np.hstack(load_data(name)).astype(np.float32))
    command = ("a.train.npy --outputs 1 --layers 2-6-1 --epochs 5 "
               "--validation a.test.npy --buffer 800")
    alone = trained(f"{command} --seed 7")
    found = trained(f"{command} --seed 6 --population 2")
    assert found["epochs"] == [5, 5]
    for name in ("training", "validation"):
        assert found[name]["samples"] == alone[name]["samples"]
        mse = found[name]["networks"][1]["mse"]
        assert mse == pytest.approx(alone[name]["mse"], rel=1e-4)


def test_seeds_weigh_classes_alike(data, trained):
    command = f"{SIZES} --population 2"
    plain, weighted = (
        trained(f"{command} {more}")["loss"] for more in ("", "--class-weight balanced")
    )
    assert plain != weighted


def ranks(line):
    return subprocess.run(
        [MPIEXEC, "-n", "2", sys.executable, "-m", "clnet", "train", *line.split()],
        capture_output=True, text=True, timeout=120, check=False,
        env=child_environment(**OPEN_MPI),
    )


@pytest.mark.skipif(not MPIEXEC, reason="there is no mpiexec")
def test_ranks_share_the_networks(data, trained):
    pytest.importorskip("mpi4py")
    command = f"{SIZES} --population 3 --seed 2 --validation 0.3"
    single, found = trained(command), json.loads(ranks(f"{command} --json").stdout)
    assert found["loss"] == single["loss"]
    assert (single["ranks"], found["ranks"]) == (1, 2)


@pytest.mark.skipif(not MPIEXEC, reason="there is no mpiexec")
def test_one_rank_says_that_folds_train_in_one_process(data):
    pytest.importorskip("mpi4py")
    done = ranks(f"{SIZES} --folds 3")
    assert done.stderr.count("folds train in one process") == 1


def test_digits_keep_their_test_set(train, trained):
    pytest.importorskip("sklearn.datasets")
    out = train("digits --population 2 --epochs 5")
    assert "by the training's loss" in out and "test " in out
    found = trained("digits --grid learning_rate=0.003,1e-6 --folds 2 --epochs 5")
    assert found["best"] == {"learning_rate": 0.003}
    assert found["test"]["samples"] == 360


@pytest.mark.parametrize(("options", "sentence"), [
    ("--report a.html", "--report is of many networks"),
    ("--population 3 --report a.svg", "reports are .html, not '.svg'"),
    ("--population 3 --folds 2", "--population compares seeds, --folds"),
    ("--population 3 --grid l2=0", "--population compares seeds, --grid"),
    ("--population 3 --checkpoint a.safetensors", "--checkpoint is for one"),
    ("--folds 3 --checkpoint-every 3", "--checkpoint-every is for one"),
    ("--grid l2=0,1 --curve a.csv", "leave out it or --grid"),
    ("--folds 3 --mpi", "--mpi is for one training"),
    ("--folds 1", "--folds is 1, expected at least 2"),
    ("--folds 61", "61 folds"),
    ("--folds 3 --validation 0.2", "leave out --validation"),
    ("--grid l2=0,1 --patience 3", "leave out --patience"),
    ("--grid l2=0 --grid l2=1", "l2 twice"),
    ("--grid l2=0,1 --l2 0.1", "--grid has values of l2: leave out --l2"),
    ("--grid learning_rate=0.1 --rate 0.1", "leave out --rate"),
    ("--grid l2=-1,0", "l2 must be a number"),
    ("--grid optimiser=adm", "did you mean 'adam'"),
    ("--population 3 --patience 3", "give --validation"),
    ("--population 3 --save no/such/a.net", "cannot write"),
    ("--network a.net --population 3", "--population draws initial weights"),
    ("--grid l2", "expected a name and values"),
    ("--grid l2=", "expected a name and values"),
    ("--grid l2=1,,2", "expected a name and values"),
    ("--grid layers=1", "argument of a grid"),
    ("--grid learning_rat=1", "did you mean 'learning_rate'"),
])
def test_wrong_uses(data, clnet_command, options, sentence):
    network = "" if "--network" in options else "--layers 2-4-1"
    refused(clnet_command(f"train a.train {network} {options}"), sentence)


def test_the_band_of_curves_that_end_early():
    found = band([[1, 2, 3], [3, np.inf], [2]])
    np.testing.assert_allclose(found[1], [2, 2, 3])
    assert band([[], []]).shape == (3, 0)
