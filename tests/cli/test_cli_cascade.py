"""``clnet train --optimiser cascade``."""

import numpy as np
import pytest

import clnet
from clnet.cli.main import main

X = np.array(np.meshgrid([0, 1], [0, 1], [0, 1])).reshape(3, -1).T
T = X.sum(axis=1, keepdims=True) % 2


@pytest.fixture
def data(tmp_path):
    """Parity of three bits, in a file."""
    clnet.save_data(tmp_path / "parity.train", X, T)
    return tmp_path / "parity.train"


def train(data, *options):
    return main(["train", str(data), "--optimiser", "cascade", *options])


def test_a_network_grows_and_is_saved(data, tmp_path, capsys):
    saved = tmp_path / "grown.net"
    assert train(data, "--max-neurons", "4", "--desired-error", "0.001", "--seed", "1",
                 "--save", str(saved)) == 0
    out = capsys.readouterr().out
    assert "mse is at most 0.001 with" in out
    net = clnet.load(saved)
    assert net.evaluate(X, T).bit_fail == 0
    assert net.sizes[0] == 3
    assert set(net.sizes[1:]) == {1}
    assert train(data, "--network", str(saved), "--max-neurons", "1") == 0
    assert "max_neurons 1 is reached" in capsys.readouterr().out


@pytest.mark.parametrize("options, words", [
    (["--epochs", "3"], "cascade has no --epochs: give --max-neurons"),
    (["--rate", "3"], "cascade has no --rate: leave it out"),
    (["--batch-size", "3"], "takes no --batch-size"),
    (["--layers", "3-4-1"], "layer 1 that does not read all earlier ones"),
    (["--population", "3"], "cascade training grows one network"),
    (["--tune"], "takes no tune"),
])
def test_what_does_not_apply_is_refused(data, options, words, capsys):
    assert train(data, *options) == 2
    assert words in capsys.readouterr().err


def test_max_neurons_is_of_cascade_training(data, capsys):
    assert main(["train", str(data), "--max-neurons", "2"]) == 2
    assert "--max-neurons is of cascade training" in capsys.readouterr().err
