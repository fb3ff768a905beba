"""``clnet train`` of many networks: seeds, folds and grids."""

import json
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest
from children import MPIEXEC, OPEN_MPI, child_environment

from clnet import Network, Population, device, load
from clnet.cli.main import main
from clnet.errors import WIDTH
from clnet.formats import load_data, save_data
from clnet.training.histories import band

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def data(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (80, 2))
    t = (x[:, :1] * x[:, 1:] > 0).astype(float)
    save_data(tmp_path / "a.train", x[:60], t[:60])
    save_data(tmp_path / "a.test", x[60:], t[60:])
    monkeypatch.chdir(tmp_path)
    Network.mlp([2, 4, 1], "sigmoid").save("a.net")
    return tmp_path


def train(capsys, *arguments):
    assert main(["train", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "--json" in arguments or max(map(len, out.splitlines())) <= WIDTH
    return out


SIZES = ("a.train", "--layers", "2-6-1", "--epochs", "20")


def test_seeds(data, capsys):
    pytest.importorskip("matplotlib")
    command = (*SIZES, "--population", "5", "--seed", "3", "--validation", "a.test",
               "--save", "b.safetensors", "--plot", "b.png")
    out = train(capsys, *command)
    found = json.loads(train(capsys, *command, "--json"))
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


def test_seeds_without_validation_and_with_an_initialiser(data, capsys):
    out = train(capsys, *SIZES, "--population", "3", "--initialiser", "widrow_nguyen",
                "--report", "a.html")
    assert "<svg" in (data / "a.html").read_text("utf-8")
    assert "by the training's loss" in out
    out = train(capsys, *SIZES, "--population", "3", "--validation", "0.3",
                "--patience", "1", "--rate", "1e-9", "--optimiser", "sgd")
    assert "epochs   2 to" in out or "epochs   2\n" in out


def test_folds(data, capsys):
    out = train(capsys, *SIZES, "--folds", "4", "--seed", "1")
    found = json.loads(train(capsys, *SIZES, "--folds", "4", "--seed", "1", "--json"))
    scores = np.array(found["scores"])
    assert scores.shape == (1, 4)
    assert f"{scores.mean():.4f}, deviation {scores.std():.4f}" in out
    network = Network.mlp([2, 6, 1], ["tanh", "sigmoid"], seed=1)
    expected = Population.cross_validate(
        network, *load_data("a.train"), folds=4, seed=1, epochs=20
    )
    np.testing.assert_array_equal(scores, expected.scores)


def test_a_grid(data, capsys):
    pytest.importorskip("matplotlib")
    command = (*SIZES[:3], "--grid", "learning_rate=0.0001,0.1", "--grid", "l2=0,1e-4",
               "--grid", "optimiser=adam, rmsprop", "--grid", "epochs=2,20",
               "--folds", "3", "--save", "b.net", "--plot", "b.svg")
    out = train(capsys, *command)
    table, rest = out.split("\n\n")
    assert sum(line[0].isdigit() for line in table.splitlines()) == 10
    assert table.endswith("… 6 more")
    assert "16 settings over 3 folds" in rest
    assert "trained on all samples" in " ".join(rest.split())
    found = json.loads(train(capsys, *command, "--json"))
    assert found["best"]["learning_rate"] == 0.1
    assert np.shape(found["scores"]) == (16, 3)
    x, t = load_data("a.train")
    assert load("b.net").evaluate(x, t).mse == pytest.approx(
        found["training"]["mse"], rel=1e-4
    )
    assert (data / "b.svg").is_file()


@pytest.mark.parametrize("options", [
    ("--population", "4"), ("--grid", "l2=0,0.1", "--folds", "2"),
])
def test_networks_share_several_devices(data, capsys, options):
    indices = [place.index for place in device().places]
    if len(indices) < 2:
        pytest.skip("there is one device")
    command = (*SIZES, *options, "--seed", "1", "--json")
    single = json.loads(train(capsys, *command, "--device", indices[0]))
    found = json.loads(train(capsys, *command, "--device", ",".join(indices)))
    assert found["device"].count(", ") == 1
    name = "loss" if "loss" in found else "scores"
    # The same networks by another device: some roundings of float32 in each step.
    np.testing.assert_allclose(found[name], single[name], rtol=1e-6)


def test_seeds_on_data_that_are_read_by_parts(data, capsys):
    for name in ("a.train", "a.test"):
        np.save(f"{name}.npy", np.hstack(load_data(name)).astype(np.float32))
    command = ("a.train.npy", "--outputs", "1", "--layers", "2-6-1", "--epochs", "5",
               "--validation", "a.test.npy", "--buffer", "800", "--json")
    alone = json.loads(train(capsys, *command, "--seed", "7"))
    found = json.loads(train(capsys, *command, "--seed", "6", "--population", "2"))
    assert found["epochs"] == [5, 5]
    for name in ("training", "validation"):
        assert found[name]["samples"] == alone[name]["samples"]
        mse = found[name]["networks"][1]["mse"]
        assert mse == pytest.approx(alone[name]["mse"], rel=1e-4)


def test_seeds_weigh_classes_alike(data, capsys):
    command = (*SIZES, "--population", "2", "--json")
    plain, weighted = (
        json.loads(train(capsys, *command, *more))["loss"]
        for more in ((), ("--class-weight", "balanced"))
    )
    assert plain != weighted


def ranks(*command):
    return subprocess.run(
        [MPIEXEC, "-n", "2", sys.executable, "-m", "clnet", "train", *command],
        capture_output=True, text=True, timeout=120, check=False,
        env=child_environment(**OPEN_MPI),
    )


@pytest.mark.skipif(not MPIEXEC, reason="there is no mpiexec")
def test_ranks_share_the_networks(data, capsys):
    pytest.importorskip("mpi4py")
    command = (*SIZES, "--population", "3", "--seed", "2", "--validation", "0.3",
               "--json")
    single = json.loads(train(capsys, *command))
    found = json.loads(ranks(*command).stdout)
    assert found["loss"] == single["loss"]
    assert (single["ranks"], found["ranks"]) == (1, 2)


@pytest.mark.skipif(not MPIEXEC, reason="there is no mpiexec")
def test_one_rank_says_that_folds_train_in_one_process(data):
    pytest.importorskip("mpi4py")
    done = ranks(*SIZES, "--folds", "3")
    assert done.stderr.count("folds train in one process") == 1


def test_digits_keep_their_test_set(capsys, monkeypatch):
    pytest.importorskip("sklearn.datasets")
    out = train(capsys, "digits", "--population", "2", "--epochs", "5")
    assert "by the training's loss" in out and "test " in out
    found = json.loads(train(
        capsys, "digits", "--grid", "learning_rate=0.003,1e-6", "--folds", "2",
        "--epochs", "5", "--json",
    ))
    assert found["best"] == {"learning_rate": 0.003}
    assert found["test"]["samples"] == 360


@pytest.mark.parametrize(("options", "sentence"), [
    (["--report", "a.html"], "--report is of many networks"),
    (["--population", "3", "--report", "a.svg"], "reports are .html, not '.svg'"),
    (["--population", "3", "--folds", "2"], "--population compares seeds, --folds"),
    (["--population", "3", "--grid", "l2=0"], "--population compares seeds, --grid"),
    (["--population", "3", "--checkpoint", "a.safetensors"], "--checkpoint is for one"),
    (["--folds", "3", "--checkpoint-every", "3"], "--checkpoint-every is for one"),
    (["--grid", "l2=0,1", "--curve", "a.csv"], "leave out it or --grid"),
    (["--folds", "3", "--mpi"], "--mpi is for one training"),
    (["--folds", "1"], "--folds is 1, expected at least 2"),
    (["--folds", "61"], "61 folds"),
    (["--folds", "3", "--validation", "0.2"], "leave out --validation"),
    (["--grid", "l2=0,1", "--patience", "3"], "leave out --patience"),
    (["--grid", "l2=0", "--grid", "l2=1"], "l2 twice"),
    (["--grid", "l2=0,1", "--l2", "0.1"], "--grid has values of l2: leave out --l2"),
    (["--grid", "learning_rate=0.1", "--rate", "0.1"], "leave out --rate"),
    (["--grid", "l2=-1,0"], "l2 must be a number"),
    (["--grid", "optimiser=adm"], "did you mean 'adam'"),
    (["--population", "3", "--patience", "3"], "give --validation"),
    (["--population", "3", "--save", "no/such/a.net"], "cannot write"),
])
def test_wrong_uses(data, capsys, options, sentence):
    assert main(["train", "a.train", "--layers", "2-4-1", *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("clnet: ") and err.count("\n") == 1
    assert sentence in err


def test_a_population_draws_its_weights(data, capsys):
    assert main(["train", "a.train", "--network", "a.net", "--population", "3"]) == 2
    assert "--population draws initial weights" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "sentence"), [
    ("l2", "expected a name and values"), ("l2=", "expected a name and values"),
    ("l2=1,,2", "expected a name and values"), ("layers=1", "argument of a grid"),
    ("learning_rat=1", "did you mean 'learning_rate'"),
])
def test_wrong_grids(text, sentence, capsys):
    with suppress(SystemExit):
        assert main(["train", "a.train", "--grid", text]) == 2
    err = capsys.readouterr().err
    assert sentence in err and err.count("\n") == 1


def test_the_band_of_curves_that_end_early():
    found = band([[1, 2, 3], [3, np.inf], [2]])
    np.testing.assert_allclose(found[1], [2, 2, 3])
    assert band([[], []]).shape == (3, 0)
