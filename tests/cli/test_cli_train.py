"""``clnet train``: what it does, and one sentence for bad input."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from cli_output import ok, refused

from clnet import Network, load, load_data
from clnet.cli.train import images_and_labels
from clnet.errors import InputError
from clnet.formats import NETWORK_SUFFIXES, save_data
from clnet.formats.pictures import PICTURES
from clnet.nn.activations import ACTIVATION_NAMES
from clnet.nn.initialisers import INITIALISER_NAMES
from clnet.nn.losses import LOSSES
from clnet.nn.optimisers import OPTIMISER_NAMES
from clnet.nn.schedules import SCHEDULES

pytestmark = pytest.mark.usefixtures("modelled_plans")


def test_a_network_from_sizes(data, clnet_command):
    out = ok(clnet_command(
        "train a.train --layers 2-12-1 --epochs 60 --seed 1 --validation a.test "
        "--save a.safetensors"
    ))
    assert "epoch 50: loss " in out
    assert "all 60 epochs are done" in out
    assert "20 samples" in out
    network = load("a.safetensors")
    assert network.sizes == (2, 12, 1)
    other = Network.mlp([2, 12, 1], ["tanh", "sigmoid"], seed=1)
    assert (network.parameters != other.parameters).any()


def test_a_network_of_fann_has_training_parameters(fann_datasets, data, clnet_command):
    nets = fann_datasets / "nets"
    _, out, _ = clnet_command(
        f"train {fann_datasets}/mushroom.train.gz --network "
        f"{nets}/mushroom.rprop.init.net --epochs 1 --save b.net"
    )
    expected = load(nets / "mushroom.rprop.float.epoch1.net").parameters
    np.testing.assert_allclose(load("b.net").parameters, expected, atol=1e-5)
    assert "epoch 1: loss" in out


def test_a_network_of_fann_is_trained_anew(data, clnet_command):
    Network.mlp([2, 4, 1], "sigmoid", seed=1, fann_compatible=True).save("a.net")
    ok(clnet_command(
        "train a.train --network a.net --initialiser widrow_nguyen --seed 3 "
        "--rate 1e-30 --optimiser incremental --epochs 1 --save b.net"
    ))
    again, expected = load("b.net"), load("a.net")
    expected.initialise("widrow_nguyen", load_data("a.train")[0], seed=3)
    np.testing.assert_allclose(again.parameters, expected.parameters, rtol=1e-6)
    assert again.fann.rprop_delta_max == expected.fann.rprop_delta_max


@pytest.mark.parametrize(("options", "told"), [
    ("--layers 2-4-1 --optimiser adam --rate 0.01 --batch-size 16 --epochs 2 "
     "--loss huber --hidden relu --output identity --desired-error 100",
     "of epoch 1 is at most 100"),
    ("--layers 2-8-1 --optimiser sgd --batch-size 20 --epochs 30 --schedule cosine "
     "--l1 1e-4 --l2 1e-4 --clip-norm 0.5 --dropout 0.1 --initialiser he "
     "--validation a.test --patience 1 --seed 0 --rate 1e-9",
     "EarlyStopping stopped after epoch"),
])
def test_options_of_training(data, clnet_command, options, told):
    assert told in ok(clnet_command(f"train a.train {options}"))


def test_digits(data, clnet_command):
    pytest.importorskip("sklearn.datasets")
    pytest.importorskip("matplotlib")
    status, out, _ = clnet_command("train digits --plot curve.png")
    assert status == 0
    assert float(out.rsplit("accuracy", 1)[1].split()[0]) >= 0.97
    assert (data / "curve.png").read_bytes().startswith(b"\x89PNG")


def result(out, what, name):
    """Return a figure of the last table."""
    part = out.rsplit(f"\n{what} ", 1)[1]
    return float(part.split(f"{name} ", 1)[1].split()[0])


def test_numbers_with_scaling(data, clnet_command):
    """Unscaled numbers in and out; the file holds the scaling, and predict uses it."""
    rng = np.random.default_rng(0)
    x = rng.normal([1e6, 0.01], [1e3, 0.003], (80, 2))
    t = 500 + 0.01 * x[:, :1] + 2000 * x[:, 1:]
    save_data("a.npz", x, t)
    out = ok(clnet_command(
        "train a.npz --layers 2-6-1 --output identity --scale -1 1 --scale-outputs -1 "
        "1 --validation 0.25 --initialiser widrow_nguyen --seed 3 --save a.net"
    ))
    assert "20 samples" in out
    assert "60 samples" in out
    assert result(out, "validation", "MSE") < 0.05 * t.var()
    out = ok(clnet_command("predict a.net a.npz --scale"))
    assert float(out.split("MSE")[1].split()[0]) < 0.05 * t.var()
    out = ok(clnet_command("train a.npz --network a.net --epochs 1"))
    assert "scaling parameters, which were not used" in " ".join(out.split())


def test_the_seed_selects_the_share(data, clnet_command):
    first, again, other = (
        result(clnet_command(
            f"train a.train --layers 2-4-1 --epochs 2 --validation 0.5 --seed {seed}"
        )[1], "validation", "MSE") for seed in (1, 1, 2)
    )
    assert first == again != other


@pytest.mark.parametrize(("line", "sentence"), [
    ("a.train --layers 2-1 --validation 1.5", "or a share, as in"),
    ("a.train --layers 2-1 --validation 0.001", "leaves an empty"),
    ("a.train --layers 2-1 --validation b.test", "b.test"),
    ("a.train --layers 2-1 --patience 3", "give --validation"),
    ("a.train --layers 2-1 --schedule cos", "did you mean 'cosine'"),
    ("a.train --layers 2-1 --optimiser rprop --schedule step",
     "rprop has no learning rate"),
    ("a.train --layers 2-1 --l2 -1", "l2 must be a number of at"),
    ("a.train --layers 2-4-1 --dropout 1", "dropout must be a num"),
    ("a.train --layers 2-1 --clip-norm 1 --clip-value 1", "not both"),
    ("a.train --layers 2-1 --scale 1 -1", "two rising numbers"),
    ("a.train --layers 2-1 --initialiser widrow_nguyen", "spreads hidden neurons"),
    ("a.train --layers 2-1 --initialiser hee", "did you mean 'he'"),
    ("a.train --layers 2-1 --save no/such/a.net",
     "cannot write no/such/a.net: there is no folder no/such"),
    ("a.train --layers 2-1 --save a.train/a.net",
     "cannot write a.train/a.net: not a directory"),
    ("a.train --layers 2-1 --plot no/such/a.png",
     "cannot write no/such/a.png: there is no folder no/such"),
    ("a.train --layers 2-4-1 --hidden gelu --save c.net",
     "cannot write c.net: layer 0 has the activation 'gelu', which FANN does not"),
    ("a.train --network a.net --initialiser hee", "did you mean 'he'"),
    ("a.train --network a.net --dropout 0.1", "--dropout is for --layers"),
    ("a.train --layers 2-3-2", "has 2 inputs and 1 output, the network 2 "),
    ("a.train --network a.net --output tanh", "--output is for --layers"),
    ("a.train --layers 2-1 --network a.net", "give either --layers"),
    ("digit", "there is no file digit: did you mean digits?"),
    ("a.train --network a.net --hidden tanh", "--hidden is for --layers"),
    ("a.train --layers 2-x", "expected sizes of at least 1"),
    ("a.train --layers 2-0-1", "expected sizes of at least 1"),
    ("a.train --layers 3-1", "has 2 inputs and 1 output, the network 3"),
    ("a.train --layers 2-3-1 --hidden tan", "did you mean 'tanh'"),
    ("a.train --layers 2-1 --output tan", "did you mean 'tanh'"),
    ("a.train --layers 2-1 --hidden relu",
     "the network 2-1 has no hidden layer: leave out --hidden"),
    ("a.train --optimiser cascade --hidden relu",
     "has no hidden layer: leave out --hidden"),
    ("a.train --layers 2-1 --optimiser adm", "did you mean 'adam'"),
    ("a.train --layers 2-1 --optimiser fann", "carries none"),
    ("a.train --layers 2-1 --optimiser rprop --rate 1", "rprop has no learning rate"),
    ("a.train --layers 2-1 --save a.txt", "a.txt"),
    ("bare.npz --layers 2-1", "has no targets to train on"),
    ("b.train --layers 2-1", "b.train"),
    ("digits --outputs 1", "has its own test set"),
    ("digits --hidden tan", "did you mean 'tanh'"),
    (".", ". is a folder, expected a file of data"),
    ("a.train --optimiser cascade --epochs 3",
     "cascade has no --epochs: give --max-neurons"),
    ("a.train --optimiser cascade --rate 3", "cascade has no --rate: leave it out"),
    ("a.train --optimiser cascade --batch-size 3", "takes no --batch-size"),
    ("a.train --optimiser cascade --layers 2-4-1",
     "layer 1 that does not read all earlier ones"),
    ("a.train --optimiser cascade --population 3", "cascade training grows one netw"),
    ("a.train --optimiser cascade --tune", "takes no tune"),
    ("a.train --layers 2-1 --resume", "--resume needs a file: give --checkpoint FILE"),
    ("a.train --layers 2-1 --checkpoint-every 2", "--checkpoint-every needs a file"),
    ("a.train --layers 2-1 --checkpoint x.net", "expected a .safetensors file"),
    ("a.train --layers 2-1 --epochs 1 --plot a.xyz", "plots are .png"),
])
def test_bad_input(data, clnet_command, line, sentence):
    before = sorted(data.iterdir())
    refused(clnet_command(f"train {line}"), sentence)
    assert sorted(data.iterdir()) == before


def test_the_digits_are_validated_for_a_plot_or_early_stopping(
    data, clnet_command, monkeypatch
):
    pytest.importorskip("sklearn.datasets")
    pytest.importorskip("matplotlib")
    seen = []

    def fit(self, x, t, **options):
        seen.append(options["validation"] is not None)
        raise InputError("no training")

    monkeypatch.setattr(Network, "fit", fit)
    for options in "", "--patience 3", "--plot curve.png":
        assert clnet_command(f"train digits {options}")[0] == 2
    assert seen == [False, True, True]


@pytest.mark.parametrize(("option", "tune"), [("", None), ("--tune", True)])
def test_a_training_is_tuned_if_asked(data, clnet_command, monkeypatch, option, tune):
    def fit(self, x, t, **options):
        assert options["tune"] is tune
        raise InputError("no training")

    monkeypatch.setattr(Network, "fit", fit)
    refused(clnet_command(f"train a.train --layers 2-1 {option}"), "no training")


def test_digits_are_those_of_scikit_learn(monkeypatch):
    datasets = pytest.importorskip("sklearn.datasets")
    expected = datasets.load_digits(return_X_y=True)
    for found in zip(images_and_labels(), expected, strict=True):
        np.testing.assert_array_equal(*found)
    monkeypatch.setattr(Path, "is_file", lambda path: False)  # of another version
    for found in zip(images_and_labels(), expected, strict=True):
        np.testing.assert_array_equal(*found)


def test_digits_without_scikit_learn(monkeypatch, clnet_command):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    refused(clnet_command("train digits"), "pip install scikit-learn")


@pytest.mark.parametrize("names", [
    ACTIVATION_NAMES, INITIALISER_NAMES, OPTIMISER_NAMES, SCHEDULES, LOSSES,
    NETWORK_SUFFIXES, PICTURES,
], ids=lambda names: next(iter(names)))
def test_help_names_every_row_of_a_table(names, clnet_command):
    out = ok(clnet_command("train --help"))
    assert all(re.search(rf"{re.escape(name)}(?!\w)", out) for name in names)


def test_a_training_goes_on_where_it_was_stopped(data, clnet_command):
    """The same command again: also its validation set is drawn by the same seed."""
    command = (
        "train a.train --layers 2-12-1 --validation 0.2 --checkpoint x.safetensors "
        "--checkpoint-every 4 --resume --curve curve.csv --patience 90"
    )
    found = []
    for epochs in (7, 12, 12):
        out = ok(clnet_command(f"{command} --epochs {epochs}"))
        assert ("resumed" in out) == bool(found)
        found.append(load("x.safetensors").parameters)
    assert "all 12 epochs are done" in out
    assert (found[0] != found[1]).any()
    np.testing.assert_array_equal(found[1], found[2])
    rows = (data / "curve.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["epoch", *map(str, range(1, 13))]


def test_another_training_is_refused(data, clnet_command):
    command = "train a.train --layers 2-12-1 --epochs 2 --checkpoint x.safetensors"
    ok(clnet_command(f"{command} --resume"))
    status, _, err = clnet_command(f"{command} --resume --batch-size 7")
    assert status == 2
    assert "is of a training with batch size 32, not 7" in err


def test_a_network_grows_and_is_saved(data, clnet_command):
    x = np.array(np.meshgrid([0, 1], [0, 1], [0, 1])).reshape(3, -1).T
    t = x.sum(axis=1, keepdims=True) % 2
    save_data("parity.train", x, t)
    train = "train parity.train --optimiser cascade"
    _, out, _ = clnet_command(
        f"{train} --max-neurons 4 --desired-error 0.001 --seed 1 --save grown.net"
    )
    assert "mse is at most 0.001 with" in out
    network = load("grown.net")
    assert network.evaluate(x, t).bit_fail == 0
    assert network.sizes[0] == 3
    assert set(network.sizes[1:]) == {1}
    status, out, _ = clnet_command(f"{train} --network grown.net --max-neurons 1")
    assert status == 0
    assert "max_neurons 1 is reached" in out
