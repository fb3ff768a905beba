"""The command line: every command, with arguments that are right."""

import importlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cli_output import ok

import clnet
from clnet import Dense, Network, Population
from clnet.cli import commands as cli_commands
from clnet.cli.main import GROUPS, parser
from clnet.errors import WIDTH
from clnet.formats import DATA_SUFFIXES, save_data
from clnet.ir.reference import run
from clnet.planning import inference

SCREEN = 24  # lines


@pytest.fixture(autouse=True)
def default_device(monkeypatch):
    """Commands choose the device themselves."""
    monkeypatch.delenv("CLNET_DEVICE", raising=False)


@pytest.fixture
def unmeasured(device, monkeypatch):
    """The default device, with plans from the cost model, which are quick."""
    compiled = inference.compile_network

    def compile_network(*arguments, tune=None, **rest):
        assert not tune
        return compiled(*arguments, tune=False, **rest)

    monkeypatch.setattr(inference, "compile_network", compile_network)
    return device


@pytest.fixture
def clnet_command(files, clnet_command):
    """A function that runs a command in that folder: status, stdout, stderr."""
    return clnet_command


def fields(out):
    """Return the lines of two columns as a dict."""
    pairs, *_ = out.split("\n\n")
    return dict(line.split(maxsplit=1) for line in pairs.splitlines())


def test_the_mushroom_network_on_its_test_data(clnet_command, device, fann_datasets):
    network = fann_datasets / "nets" / "mushroom.rprop.float.epoch10.net"
    out = ok(clnet_command(f"predict {network} {fann_datasets}/mushroom.test.gz"))
    assert f"samples   {4062}\n" in out
    assert "accuracy  1.000000\n" in out
    assert "bit fail  1 of 8124\n" in out
    # FANN's 0.000061570 is a sum in float32, accurate to 3e-5.
    assert f"MSE       {0.000061570:.4g}\n" in out
    assert f"device    {device.index} {device.name}" in out


@pytest.mark.parametrize("options", [
    "d.data", "d.train.gz", "d.csv", "d.npz", "d.data --batch 3", "d.data --batch 64",
    "d.csv --outputs 2", "d.data --device cpu",
])
@pytest.mark.parametrize("net", ["a.net", "a.safetensors"])
def test_predict(clnet_command, unmeasured, files, net, options):
    if "cpu" in options and unmeasured.type != "cpu":
        pytest.skip("the CPU is not the device of choice here")
    out = ok(clnet_command(f"predict {net} {options} --out out.npz"))
    network = clnet.load(net)
    x, t = clnet.load_data("d.data")
    written_x, y = clnet.load_data("out.npz")
    expected = run(network.program, x, network.parameters)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    assert np.array_equal(written_x, x)
    shown = fields(out)
    assert shown["samples"] == "10"
    assert shown["written"] == "out.npz"
    assert float(shown["MSE"]) == pytest.approx(network.compare(y, t).mse, rel=1e-3)


def test_predict_without_targets(clnet_command, unmeasured, files):
    out = ok(clnet_command("predict a.net bare.csv --outputs 0 --out y.csv"))
    assert "targets  not compared: the data have none" in out
    assert "MSE" not in out
    assert clnet.load_data("y.csv")[1].shape == (2, 2)


def test_predict_on_devices_that_share_the_samples(
    clnet_command, unmeasured, files, monkeypatch
):
    twice = f"{unmeasured.index},{unmeasured.index}"
    status, _, error = clnet_command(f"predict a.net d.data --device {twice}")
    assert status == 2 and "is in the list twice" in error
    twins = (unmeasured, replace(unmeasured, index="9:9"))
    monkeypatch.setattr(cli_commands, "devices_of", lambda text: twins)
    out = ok(clnet_command("predict a.net d.data --batch 4 --out y.npz"))
    assert f"device 9:9 {unmeasured.name}" in " ".join(out.split())
    network, (x, y) = clnet.load("a.net"), clnet.load_data("y.npz")
    expected = run(network.program, x, network.parameters)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    status, _, error = clnet_command("predict a.net d.data --profile")
    assert status == 2 and "--profile is for one device, not for 2" in error


def test_predict_shows_the_times_of_a_call(clnet_command, unmeasured, files):
    out = ok(clnet_command("predict a.net d.data --batch 64 --profile"))
    names = [line.split()[0] for line in out.splitlines()[-6:] if line]
    assert names[-2:] == ["sum", "wall"] and "download" in names


def test_predict_writes_a_timeline(clnet_command, unmeasured, files):
    out = ok(clnet_command("predict a.net d.data --batch 64 --trace call.json"))
    assert "written call.json" in " ".join(out.split())
    events = json.loads(Path("call.json").read_bytes())["traceEvents"]
    assert {"host", *(one.name for one in unmeasured.places)} >= {
        one["args"]["name"] for one in events if one["ph"] == "M"
    }
    status, _, error = clnet_command("predict a.net d.data --trace call.txt")
    assert status == 2 and "a timeline is a .json file, not '.txt'" in error


def test_predict_with_scaling(clnet_command, unmeasured, files):
    scaling = clnet.Scaling([4] * 3, [2] * 3, [-1] * 3, [1] * 3, [7], [3], [-1], [1])
    network = Network(3, [Dense(1)], seed=0, scaling=scaling, fann_compatible=True)
    network.save("s.net")
    x = np.arange(6.0).reshape(2, 3)
    y = run(network.program, (x - 4) / 2, network.parameters.astype("d")) * 3 + 7
    save_data("s.data", x, y)
    out = ok(clnet_command("predict s.net s.data --scale"))
    assert float(fields(out)["MSE"]) < 1e-9
    out = ok(clnet_command("predict s.net s.data"))
    assert "has scaling parameters, which were not used" in " ".join(out.split())


def test_progress_is_for_terminals_only(clnet_command, unmeasured, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    status, out, _ = clnet_command("predict a.net d.data --batch 1")
    assert (status, fields(out)["samples"]) == (0, "10")


@pytest.mark.parametrize("file", ["a.net", "a.safetensors"])
def test_info_of_a_network(clnet_command, file):
    out = ok(clnet_command(f"info {file}"))
    assert "network      3-4-2" in out
    assert "parameters   26" in out
    row = next(line.split() for line in out.splitlines() if "tanh" in line)
    assert row == ["0", "4", "tanh", "1", "dense", "yes", "16", "80"]
    assert ("learning_rate" in out) == (file == "a.net")


def test_info_fits_the_width_for_any_network(clnet_command, files):
    long = "linear_piece_symmetric"
    Network(2000, [Dense(2000, long, -1.234567e-12), Dense(2, [long, "relu"], [1, 2]),
                   Dense(1, "softmax", bias=False)], seed=0).save("wide.safetensors")
    out = ok(clnet_command("info wide.safetensors"))
    assert out.count("mixed") == 2


@pytest.mark.parametrize("line", ["d.data", "d.train.gz", "d.npz", "d.csv",
                                  "d.csv --outputs 2"])
def test_info_of_data(clnet_command, line):
    out = ok(clnet_command(f"info {line}"))
    x, _ = clnet.load_data("d.data")
    assert "samples  10\n" in out
    assert f"inputs   3, from {x.min():g} to {x.max():g}\n" in out
    assert "outputs  2, from 0 to 1\n" in out


def test_info_of_data_that_is_not_finite(clnet_command, files):
    save_data("n.data", [[np.nan, 1], [np.inf, 2]], np.zeros((2, 0)))
    out = ok(clnet_command("info n.data"))
    assert "inputs   2, from 1 to 2, 2 values infinite or NaN" in out
    assert "outputs  0\n" in out


def test_convert_networks(clnet_command, files):
    assert "wrote b.safetensors" in ok(clnet_command("convert a.net b.safetensors"))
    ok(clnet_command("convert b.safetensors b.net"))
    assert (files / "b.net").read_bytes() == (files / "a.net").read_bytes()
    ok(clnet_command("convert a.net c.safetensors --dtype float64"))
    assert clnet.load("c.safetensors").dtype == "float64"


def test_convert_notes_fanns_clip(clnet_command, files):
    Network.mlp([1, 1], "relu", seed=0).save("r.safetensors")
    assert "FANN clips" in ok(clnet_command("convert r.safetensors r.net"))
    assert "FANN clips" not in ok(clnet_command("convert a.safetensors r.net"))


@pytest.mark.parametrize("source", ["d.data", "d.train.gz", "d.npz", "d.csv"])
@pytest.mark.parametrize("target", ["e.test", "e.data.gz", "e.npz", "e.csv"])
def test_convert_data(clnet_command, source, target):
    out = ok(clnet_command(f"convert {source} {target}"))
    assert f"wrote {target}: 10 samples, 3 inputs, 2 outputs" in out
    for before, after in zip(clnet.load_data(source, dtype="float32"),
                             clnet.load_data(target, dtype="float32"), strict=True):
        assert np.array_equal(before, after)


def test_convert_keeps_every_digit(clnet_command, files):
    (files / "p.data").write_text("1 1 1\n0.12345678901234567\n2\n")
    ok(clnet_command("convert p.data p.csv"))
    assert clnet.load_data("p.csv", dtype="float64")[0][0, 0] == 0.12345678901234567


def test_explain(clnet_command, unmeasured):
    out = ok(clnet_command("explain a.net --batch 2"))
    assert "3-4-2" in out
    assert "chosen" in out
    assert len(out.splitlines()) <= SCREEN
    assert "--all shows the rest." in out
    whole = ok(clnet_command("explain a.net --batch 2 --all"))
    assert len(whole.splitlines()) > SCREEN and "refused\n  " in whole
    assert out.split("\n\n")[:2] == whole.split("\n\n")[:2]
    pytest.importorskip("matplotlib")
    assert ok(clnet_command("explain a.net --batch 2 --plot plan.png")) == out
    assert Path("plan.png").read_bytes().startswith(b"\x89PNG")


def test_explain_and_tune_a_population(clnet_command, monkeypatch):
    def explain(self, x, t, **options):
        found.update(options, x=x.shape, t=t.shape, networks=len(self))
        return "together\n\nchosen"

    found = {}
    monkeypatch.setattr(Population, "explain", explain)
    command = "explain a.net --training rprop --population 9 --batch 5"
    assert ok(clnet_command(command)).startswith("together")
    assert found["networks"] == 9 and found["x"][0] == found["t"][0] == 5
    assert found["optimiser"] == "rprop" and found["tune"] is None
    ok(clnet_command(f"{command} --tune --device gpu"))
    assert found["tune"] is True and found["device"] == "gpu"
    out = ok(clnet_command("tune a.net --training adam --population 7 --batch 3,6"))
    assert out == "together\n\nchosen\n" * 2
    assert found["networks"] == 7 and found["x"][0] == 6
    assert found["optimiser"] == "adam" and found["tune"] is True


def test_explain_and_tune_pass_their_arguments_on(clnet_command, monkeypatch):
    calls = []

    class FakePlan:
        def explain(self):
            return f"plan {len(calls)}"

    def compile_network(self, device=None, batch=1, *, tune=None, **rest):
        calls.append((device, batch, tune))
        return FakePlan()

    monkeypatch.setattr(Network, "compile", compile_network)
    assert ok(clnet_command("explain a.net")) == "plan 1\n"
    ok(clnet_command("explain a.net --tune --device gpu --batch 7"))
    out = ok(clnet_command("tune a.net --batch 1,5 --device 0:0"))
    assert out == "plan 3\nplan 4\n"
    ok(clnet_command("tune a.net"))
    assert calls == [(None, 1, None), ("gpu", 7, True), ("0:0", 1, True),
                     ("0:0", 5, True), (None, 1, True), (None, 32, True)]


def test_devices(clnet_command, device):
    assert device.index in ok(clnet_command("devices"))


def test_the_doctors_exit_status(clnet_command, monkeypatch):
    doctor = importlib.import_module("clnet.cli.doctor")
    for status in (0, 1):
        monkeypatch.setattr(doctor, "report", lambda _, status=status: status)
        assert clnet_command("doctor")[0] == status


@pytest.mark.parametrize("name", [name for names in GROUPS.values() for name in names])
def test_help_of_every_command(clnet_command, name):
    out = ok(clnet_command(f"{name} --help"))
    assert re.search(rf"examples?:\n  clnet {name}", out)
    assert name in ok(clnet_command("--help"))


def test_suffixes_of_more_formats_are_wrapped(monkeypatch):
    monkeypatch.setattr("clnet.formats.DATA_SUFFIXES", (*DATA_SUFFIXES, ".libsvm"))
    lines = parser().format_help().splitlines()
    (at,) = (i for i, line in enumerate(lines) if line.startswith("  data "))
    assert len(lines[at]) <= WIDTH
    assert lines[at + 1].startswith(f"{12 * ' '}.libsvm")


def test_every_command_is_in_a_group():
    (commands,) = parser()._subparsers._group_actions
    assert sorted(commands.choices) == sorted(sum(GROUPS.values(), ()))


def test_the_help_begins_with_the_commands_and_ends_with_examples(clnet_command):
    out = ok(clnet_command("--help"))
    titles = [f"\n{title}:\n" for title in GROUPS]
    at = [out.index(title) for title in titles]
    at += [out.index("\noptions:"), out.index("\nexamples:")]
    assert at == sorted(at)


def test_version(clnet_command):
    assert ok(clnet_command("--version")) == f"clnet {clnet.__version__}\n"
