"""``clnet train``: what it does, and one sentence for bad input."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from clnet import Network, load, load_data
from clnet.cli.main import main
from clnet.cli.train import images_and_labels
from clnet.errors import WIDTH, InputError
from clnet.formats import NETWORK_SUFFIXES, save_data
from clnet.formats.pictures import PICTURES
from clnet.nn.activations import ACTIVATION_NAMES
from clnet.nn.initialisers import INITIALISER_NAMES
from clnet.nn.losses import LOSSES
from clnet.nn.optimisers import OPTIMISER_NAMES
from clnet.nn.schedules import SCHEDULES

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (80, 2))
    t = (x[:, :1] * x[:, 1:] > 0).astype(float)
    save_data(tmp_path / "a.train", x[:60], t[:60])
    save_data(tmp_path / "a.test", x[60:], t[60:])
    save_data(tmp_path / "bare.npz", x, np.zeros((80, 0)))
    return tmp_path


def test_a_network_from_sizes(data, capsys):
    code = main([
        "train", f"{data}/a.train", "--layers", "2-12-1", "--epochs", "60", "--seed",
        "1", "--validation", f"{data}/a.test", "--save", f"{data}/a.safetensors",
    ])
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    assert "epoch 50: loss " in out
    assert "all 60 epochs are done" in out
    assert "20 samples" in out
    lines = [line for line in out.splitlines() if str(data) not in line]
    assert all(len(line) <= WIDTH for line in lines)
    network = load(data / "a.safetensors")
    assert network.sizes == (2, 12, 1)
    other = Network.mlp([2, 12, 1], ["tanh", "sigmoid"], seed=1)
    assert (network.parameters != other.parameters).any()


def test_a_network_of_fann_has_training_parameters(fann_datasets, tmp_path, capsys):
    nets = fann_datasets / "nets"
    out = tmp_path / "b.net"
    main([
        "train", str(fann_datasets / "mushroom.train.gz"), "--network",
        str(nets / "mushroom.rprop.init.net"), "--epochs", "1", "--save", str(out),
    ])
    expected = load(nets / "mushroom.rprop.float.epoch1.net").parameters
    np.testing.assert_allclose(load(out).parameters, expected, atol=1e-5)
    assert "epoch 1: loss" in capsys.readouterr().out


def test_a_network_of_fann_is_trained_anew(data, capsys):
    net = Network.mlp([2, 4, 1], "sigmoid", seed=1, fann_compatible=True)
    net.save(data / "a.net")
    code = main([
        "train", f"{data}/a.train", "--network", f"{data}/a.net", "--initialiser",
        "widrow_nguyen", "--seed", "3", "--rate", "1e-30", "--optimiser", "incremental",
        "--epochs", "1", "--save", f"{data}/b.net",
    ])
    assert (code, capsys.readouterr().err) == (0, "")
    again = load(data / "b.net")
    expected = load(data / "a.net")
    expected.initialise("widrow_nguyen", load_data(data / "a.train")[0], seed=3)
    np.testing.assert_allclose(again.parameters, expected.parameters, rtol=1e-6)
    assert again.fann.rprop_delta_max == expected.fann.rprop_delta_max


def test_a_learning_rate_and_batches(data, capsys):
    code = main([
        "train", f"{data}/a.train", "--layers", "2-4-1", "--optimiser", "adam",
        "--rate", "0.01", "--batch-size", "16", "--epochs", "2", "--loss", "huber",
        "--hidden", "relu", "--output", "identity", "--desired-error", "100",
    ])
    assert code == 0
    assert "of epoch 1 is at most 100" in capsys.readouterr().out


def test_digits(capsys, tmp_path):
    pytest.importorskip("sklearn.datasets")
    pytest.importorskip("matplotlib")
    assert main(["train", "digits", "--plot", str(tmp_path / "curve.png")]) == 0
    out = capsys.readouterr().out
    assert float(out.rsplit("accuracy", 1)[1].split()[0]) >= 0.97
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def result(out, what, name):
    """Return a figure of the last table."""
    part = out.rsplit(f"\n{what} ", 1)[1]
    return float(part.split(f"{name} ", 1)[1].split()[0])


def test_numbers_with_scaling(tmp_path, capsys):
    """Unscaled numbers in and out; the file holds the scaling, and predict uses it."""
    rng = np.random.default_rng(0)
    x = rng.normal([1e6, 0.01], [1e3, 0.003], (80, 2))
    t = 500 + 0.01 * x[:, :1] + 2000 * x[:, 1:]
    save_data(tmp_path / "a.npz", x, t)
    net = str(tmp_path / "a.net")
    code = main([
        "train", f"{tmp_path}/a.npz", "--layers", "2-6-1", "--output", "identity",
        "--scale", "-1", "1", "--scale-outputs", "-1", "1", "--validation", "0.25",
        "--initialiser", "widrow_nguyen", "--seed", "3", "--save", net,
    ])
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    assert "20 samples" in out
    assert "60 samples" in out
    assert result(out, "validation", "MSE") < 0.05 * t.var()
    assert main(["predict", net, f"{tmp_path}/a.npz", "--scale"]) == 0
    assert float(capsys.readouterr().out.split("MSE")[1].split()[0]) < 0.05 * t.var()
    again = ["train", f"{tmp_path}/a.npz", "--network", net, "--epochs", "1"]
    assert main(again) == 0
    out, _ = capsys.readouterr()
    assert "scaling parameters, which were not used" in " ".join(out.split())


def test_the_options_of_training(data, capsys):
    code = main([
        "train", f"{data}/a.train", "--layers", "2-8-1", "--optimiser", "sgd",
        "--batch-size", "20", "--epochs", "30", "--schedule", "cosine", "--l1", "1e-4",
        "--l2", "1e-4", "--clip-norm", "0.5", "--dropout", "0.1", "--initialiser", "he",
        "--validation", f"{data}/a.test", "--patience", "1", "--seed", "0",
        "--rate", "1e-9",
    ])
    assert code == 0
    assert "EarlyStopping stopped after epoch" in capsys.readouterr().out


def test_the_seed_selects_the_share(data, capsys):
    outs = []
    for seed in ("1", "1", "2"):
        main(["train", f"{data}/a.train", "--layers", "2-4-1", "--epochs", "2",
              "--validation", "0.5", "--seed", seed])
        outs.append(result(capsys.readouterr().out, "validation", "MSE"))
    assert outs[0] == outs[1] != outs[2]


@pytest.mark.parametrize(("arguments", "sentence"), [
    (["a.train", "--layers", "2-1", "--validation", "1.5"], "or a share, as in"),
    (["a.train", "--layers", "2-1", "--validation", "0.001"], "leaves an empty"),
    (["a.train", "--layers", "2-1", "--validation", "b.test"], "b.test"),
    (["a.train", "--layers", "2-1", "--patience", "3"],
     "give --validation"),
    (["a.train", "--layers", "2-1", "--schedule", "cos"], "did you mean 'cosine'"),
    (["a.train", "--layers", "2-1", "--optimiser", "rprop", "--schedule", "step"],
     "rprop has no learning rate"),
    (["a.train", "--layers", "2-1", "--l2", "-1"], "l2 must be a number of at"),
    (["a.train", "--layers", "2-4-1", "--dropout", "1"], "dropout must be a num"),
    (["a.train", "--layers", "2-1", "--clip-norm", "1", "--clip-value", "1"],
     "not both"),
    (["a.train", "--layers", "2-1", "--scale", "1", "-1"], "two rising numbers"),
    (["a.train", "--layers", "2-1", "--initialiser", "widrow_nguyen"],
     "spreads hidden neurons"),
    (["a.train", "--layers", "2-1", "--initialiser", "hee"], "did you mean 'he'"),
    (["a.train", "--layers", "2-1", "--save", "no/such/a.net"],
     "cannot write no/such/a.net: there is no folder no/such"),
    (["a.train", "--layers", "2-1", "--save", "a.train/a.net"],
     "cannot write a.train/a.net: not a directory"),
    (["a.train", "--layers", "2-1", "--plot", "no/such/a.png"],
     "cannot write no/such/a.png: there is no folder no/such"),
    (["a.train", "--layers", "2-4-1", "--hidden", "gelu", "--save", "c.net"],
     "cannot write c.net: layer 0 has the activation 'gelu', which FANN does not"),
    (["a.train", "--network", "a.net", "--initialiser", "hee"],
     "did you mean 'he'"),
    (["a.train", "--network", "a.net", "--dropout", "0.1"],
     "--dropout is for --layers"),
    (["a.train", "--layers", "2-3-2"], "has 2 inputs and 1 output, the network 2 "),
    (["a.train", "--network", "a.net", "--output", "tanh"],
     "--output is for --layers"),
    (["a.train", "--layers", "2-1", "--network", "a.net"], "give either --layers"),
    (["digit"], "there is no file digit: did you mean digits?"),
    (["a.train", "--network", "a.net", "--hidden", "tanh"],
     "--hidden is for --layers"),
    (["a.train", "--layers", "2-x"], "expected sizes of at least 1"),
    (["a.train", "--layers", "2"], "expected sizes of at least 1, as in 125-32-2"),
    (["a.train", "--layers", "2-0-1"], "expected sizes of at least 1"),
    (["a.train", "--layers", "3-1"], "has 2 inputs and 1 output, the network 3"),
    (["a.train", "--layers", "2-3-1", "--hidden", "tan"], "did you mean 'tanh'"),
    (["a.train", "--layers", "2-1", "--output", "tan"], "did you mean 'tanh'"),
    (["a.train", "--layers", "2-1", "--hidden", "relu"],
     "the network 2-1 has no hidden layer: leave out --hidden"),
    (["a.train", "--optimiser", "cascade", "--hidden", "relu"],
     "has no hidden layer: leave out --hidden"),
    (["a.train", "--layers", "2-1", "--optimiser", "adm"], "did you mean 'adam'"),
    (["a.train", "--layers", "2-1", "--optimiser", "fann"], "carries none"),
    (["a.train", "--layers", "2-1", "--optimiser", "rprop", "--rate", "1"],
     "rprop has no learning rate"),
    (["a.train", "--layers", "2-1", "--save", "a.txt"], "a.txt"),
    (["bare.npz", "--layers", "2-1"], "has no targets to train on"),
    (["b.train", "--layers", "2-1"], "b.train"),
    (["digits", "--outputs", "1"], "has its own test set"),
    (["digits", "--hidden", "tan"], "did you mean 'tanh'"),
    (["digits", "--output", "tan"], "did you mean 'tanh'"),
    (["."], ". is a folder, expected a file of data"),
])
def test_bad_input(data, capsys, arguments, sentence, monkeypatch):
    monkeypatch.chdir(data)
    Network.mlp([2, 1], "sigmoid").save("a.net")
    assert main(["train", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("clnet: ")
    assert sentence in err
    assert err.count("\n") == 1


def test_the_digits_are_validated_for_a_plot_or_early_stopping(monkeypatch, tmp_path):
    pytest.importorskip("sklearn.datasets")
    pytest.importorskip("matplotlib")
    seen = []

    def fit(self, x, t, **options):
        seen.append(options["validation"] is not None)
        raise InputError("no training")

    monkeypatch.setattr(Network, "fit", fit)
    for options in [], ["--patience", "3"], ["--plot", f"{tmp_path}/curve.png"]:
        assert main(["train", "digits", *options]) == 2
    assert seen == [False, True, True]


@pytest.mark.parametrize(("option", "tune"), [((), None), (("--tune",), True)])
def test_a_training_is_tuned_if_asked(data, monkeypatch, option, tune):
    def fit(self, x, t, **options):
        assert options["tune"] is tune
        raise InputError("no training")

    monkeypatch.setattr(Network, "fit", fit)
    assert main(["train", f"{data}/a.train", "--layers", "2-1", *option]) == 2


def test_digits_are_those_of_scikit_learn(monkeypatch):
    datasets = pytest.importorskip("sklearn.datasets")
    expected = datasets.load_digits(return_X_y=True)
    for found in zip(images_and_labels(), expected, strict=True):
        np.testing.assert_array_equal(*found)
    monkeypatch.setattr(Path, "is_file", lambda path: False)  # of another version
    for found in zip(images_and_labels(), expected, strict=True):
        np.testing.assert_array_equal(*found)


def test_digits_without_scikit_learn(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert main(["train", "digits"]) == 2
    assert "pip install scikit-learn" in capsys.readouterr().err


def test_plots_of_unknown_formats(data, capsys):
    pytest.importorskip("matplotlib")
    arguments = ["train", f"{data}/a.train", "--layers", "2-1", "--epochs", "1"]
    assert main([*arguments, "--plot", f"{data}/a.xyz"]) == 2
    assert "plots are .png" in capsys.readouterr().err
    assert not (data / "a.xyz").exists()


@pytest.mark.parametrize("names", [
    ACTIVATION_NAMES, INITIALISER_NAMES, OPTIMISER_NAMES, SCHEDULES, LOSSES,
    NETWORK_SUFFIXES, PICTURES,
], ids=lambda names: next(iter(names)))
def test_help_names_every_row_of_a_table(names, capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    out = capsys.readouterr().out
    assert all(re.search(rf"{re.escape(name)}(?!\w)", out) for name in names)
    assert all(len(line) <= WIDTH for line in out.splitlines())


def test_a_training_goes_on_where_it_was_stopped(data, capsys):
    """The same command again: also its validation set is drawn by the same seed."""
    path, curve = data / "x.safetensors", data / "curve.csv"
    command = ["train", f"{data}/a.train", "--layers", "2-12-1", "--validation", "0.2",
               "--checkpoint", str(path), "--checkpoint-every", "4", "--resume",
               "--curve", str(curve), "--patience", "90"]
    found = []
    for epochs in ("7", "12", "12"):
        assert main([*command, "--epochs", epochs]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        assert ("resumed" in out) == bool(found)
        found.append(load(path).parameters)
    assert "all 12 epochs are done" in out
    assert (found[0] != found[1]).any()
    np.testing.assert_array_equal(found[1], found[2])
    rows = curve.read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["epoch", *map(str, range(1, 13))]


@pytest.mark.parametrize(("options", "sentence"), [
    (["--resume"], "--resume needs a file: give --checkpoint FILE"),
    (["--checkpoint-every", "2"], "--checkpoint-every needs a file"),
    (["--checkpoint", "x.net"], "expected a .safetensors file"),
])
def test_wrong_options_of_long_trainings(options, sentence, data, capsys):
    assert main(["train", f"{data}/a.train", "--layers", "2-12-1", *options]) == 2
    assert sentence in capsys.readouterr().err


def test_another_training_is_refused(data, capsys):
    path = data / "x.safetensors"
    command = ["train", f"{data}/a.train", "--layers", "2-12-1", "--epochs", "2",
               "--checkpoint", str(path), "--resume"]
    assert main(command) == 0
    capsys.readouterr()
    assert main([*command, "--batch-size", "7"]) == 2
    assert "is of a training with batch size 32, not 7" in capsys.readouterr().err
