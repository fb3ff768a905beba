"""Fixtures of the command line's tests."""

import json
import shlex

import numpy as np
import pytest

from clnet import Dense, Network
from clnet.cli.main import main
from clnet.formats import save_data


@pytest.fixture(autouse=True)
def measured_times(monkeypatch, tmp_path_factory):
    """A store of measured times for these tests alone."""
    folder = tmp_path_factory.getbasetemp() / "times"
    monkeypatch.setenv("CLNET_CACHE_DIR", str(folder))


@pytest.fixture
def clnet_command(capsys):
    """A function that runs a command: status, stdout, stderr."""
    def command(line):
        try:
            status = main(shlex.split(line))
        except SystemExit as leaving:  # argparse's way
            status = leaving.code
        return status, *capsys.readouterr()

    return command


@pytest.fixture
def clnet_json(clnet_command):
    """A function that runs a command that must succeed, and returns its JSON."""
    def command(line):
        status, out, err = clnet_command(f"{line} --json")
        assert (status, err) == (0, ""), err
        assert out.count("\n") == 1
        return json.loads(out)

    return command


@pytest.fixture
def data(tmp_path, monkeypatch):
    """The present folder: samples for training and tests, and a network for them."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (80, 2))
    t = (x[:, :1] * x[:, 1:] > 0).astype(float)
    save_data(tmp_path / "a.train", x[:60], t[:60])
    save_data(tmp_path / "a.test", x[60:], t[60:])
    save_data(tmp_path / "bare.npz", x, np.zeros((80, 0)))
    Network.mlp([2, 4, 1], "sigmoid").save(tmp_path / "a.net")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The present folder: a small network, data in every format, broken files."""
    network = Network(3, [Dense(4, "tanh"), Dense(2, "sigmoid")], seed=0,
                      fann_compatible=True)
    network.save(tmp_path / "a.net")
    network.save(tmp_path / "a.safetensors")
    rng = np.random.default_rng(0)
    x, t = rng.standard_normal((10, 3)).astype("f"), rng.integers(0, 2, (10, 2))
    for suffix in ("data", "train.gz", "csv", "npz"):
        save_data(tmp_path / f"d.{suffix}", x, t)
    save_data(tmp_path / "wide.data", np.zeros((2, 5)), np.zeros((2, 2)))
    (tmp_path / "cut.net").write_text((tmp_path / "a.net").read_text()[:-30])
    (tmp_path / "bare.csv").write_text("1,2,3\n4,5,6\n")
    (tmp_path / "folder.net").mkdir()
    (tmp_path / "empty.net").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path
