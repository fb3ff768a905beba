"""The command line: every command's happy path, and one sentence for bad input."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from children import run_python
from cli_output import ok

import clnet
from clnet import Dense, DeviceError, Network, Population
from clnet.cli import commands as cli_commands
from clnet.cli.main import GROUPS, parser
from clnet.errors import WIDTH, BuildError
from clnet.formats import DATA_SUFFIXES, save_data
from clnet.ir.reference import run
from clnet.planning import inference


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
def files(tmp_path):
    """A folder with a small network and data in every format, and broken files."""
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
    return tmp_path


@pytest.fixture
def clnet_command(files, clnet_command, monkeypatch):
    """A function that runs a command in that folder: status, stdout, stderr."""
    monkeypatch.chdir(files)
    return clnet_command


def fields(out):
    """Return the lines of two columns as a dict."""
    pairs, *_ = out.split("\n\n")
    return dict(line.split(maxsplit=1) for line in pairs.splitlines())


# --- happy paths ---------------------------------------------------------------------


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
    assert "targets  none in the data" in out
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
    assert f"device    9:9 {unmeasured.name}" in out
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
    assert "written   call.json" in out
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
    assert lines[at + 1] == f"{12 * ' '}.libsvm"


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


# --- bad input -----------------------------------------------------------------------


@pytest.mark.parametrize(("line", "message"), [
    ("", "a command is required: devices, doctor, info"),
    ("fly", "unknown command 'fly': known are bench, convert, devices"),
    ("trian d.data", "unknown command 'trian': did you mean 'train'?"),
    ("--verison", "unknown option --verison: did you mean --version? (see clnet --"),
    ("info", "the following arguments are required: FILE"),
    ("info a.net b.net", "unexpected argument b.net (see clnet info --help)"),
    ("info --fast a.net", "unknown option --fast (see clnet info --help)"),
    ("info a.net --output=1 --quick", "unknown option --quick"),
    ("predict a.net d.data --devise=cpu", "option --devise: did you mean --device? ("),
    ("info no.net", "there is no such file in "),
    ("info no.csv", "there is no such file in "),
    ("info folder.net", "not a regular file"),
    ("info empty.net", "empty.net is empty"),
    ("info cut.net", "cut.net, line 36: found"),
    ("info a.txt", "a.txt has no suffix for networks or data: known are .net"),
    ("info a", "a has no suffix"),
    ("info d.npz --memory-limit 10", "unpacks to"),
    ("info a.net --outputs 1", "--outputs is for .csv files"),
    ("info d.data --outputs 1", "number of outputs is for .csv files"),
    ("info bare.csv", "names no targets (t0, t1, …): name them by --target, or"),
    ("info bare.csv --outputs 3", "has 3 columns"),
    ("info bare.csv --outputs x", "found 'x', expected a whole number"),
    ("predict a.net", "the following arguments are required: DATA"),
    ("predict d.data d.data", "known are .net, .safetensors"),
    ("predict a.net a.net", "known are .train"),
    ("predict a.net no.data", "there is no such file in "),
    ("predict cut.net d.data", "cut.net, line 36"),
    ("predict a.net wide.data", "has 5 inputs and 2 outputs, expected 3 and 2 as in"),
    ("predict a.net d.csv --outputs 1", "has 4 inputs and 1 output, expected 3 and 2"),
    ("predict a.net d.data --batch 0", "expected a whole number of at least 1"),
    ("predict a.net d.data --batch -1", "argument --batch"),
    ("predict a.net d.data --batch 1.5", "expected a whole number of at least 1"),
    ("predict a.net d.data --scale", "a.net has no scaling parameters"),
    ("predict a.net d.data --out nowhere/y.csv", "there is no folder nowhere"),
    ("predict a.net d.data --out y.txt", "y.txt has no suffix for data"),
    ("convert a.net", "the following arguments are required: B"),
    ("convert a.net b.csv", "a.net and b.csv are of two kinds"),
    ("convert d.data b.net", "d.data and b.net are of two kinds"),
    ("convert a.net b.txt", "b.txt has no suffix"),
    ("convert cut.net b.safetensors", "cut.net, line 36"),
    ("convert no.net b.net", "there is no such file in "),
    ("convert a.net folder.net", "it is not a regular file"),
    ("convert a.net nowhere/b.net", "there is no folder nowhere"),
    ("convert a.net b.net --dtype int8", "unknown dtype 'int8': known are float32"),
    ("convert a.safetensors b.net --dtype float32", "dtype is for .net files"),
    ("convert a.net b.net --outputs 1", "--outputs is for .csv files"),
    ("explain no.net", "there is no such file in "),
    ("explain a.net --batch none", "found 'none'"),
    ("explain a.net --plot plan.txt", "plots are .png, .svg, .pdf, not '.txt'"),
    ("explain a.net --training adam --plot plan.png", "--plot draws plans of"),
    ("explain a.net --population 9", "--population is of steps of training: give"),
    ("tune a.net --population 9", "--population is of steps of training: give"),
    ("tune no.net", "there is no such file in "),
    ("tune a.net --batch 1,,2", "found '', expected a whole number"),
])
def test_bad_input_gives_one_sentence(clnet_command, files, line, message):
    before = sorted(files.iterdir())
    status, out, err = clnet_command(line)
    assert (status, out) == (2, "")
    assert err.startswith("clnet: ")
    assert err.count("\n") == 1
    assert message in err
    assert "Traceback" not in err
    assert sorted(files.iterdir()) == before


@pytest.mark.parametrize("command", ["predict a.net d.data", "explain a.net",
                                     "tune a.net"])
def test_a_device_that_does_not_exist(clnet_command, device, command):
    status, out, err = clnet_command(f"{command} --device abacus")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "abacus" in err
    assert device.name in err
    assert "`clnet doctor` looks for the cause" in err


def test_a_format_that_cannot_hold_the_network(clnet_command, files):
    Network.mlp([2, 2], "softmax", seed=0).save("s.safetensors")
    status, _, err = clnet_command("convert s.safetensors s.net")
    assert (status, err) == (2, "clnet: cannot write s.net: layer 0 has the activation "
                             "'softmax', which FANN does not have\n")
    assert not (files / "s.net").exists()


@pytest.mark.parametrize(("error", "status", "message"), [
    (DeviceError("no OpenCL platform was found"), 2, "clnet: no OpenCL platform"),
    (BuildError("x.cl does not build", "log", "source"), 2, "clnet: x.cl does not"),
    (MemoryError(), 2, "clnet: not enough memory: the files'"),
    (KeyboardInterrupt(), 130, "clnet: interrupted"),
])
def test_errors_of_a_command(
    clnet_command, monkeypatch, error, status, message
):
    def fail(_):
        raise error

    monkeypatch.setattr(cli_commands, "devices", fail)
    found, out, err = clnet_command("devices")
    assert (found, out) == (status, "")
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_an_unexpected_error_is_not_hidden(clnet_command, monkeypatch):
    monkeypatch.setattr(cli_commands, "devices", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        clnet_command("devices")


def test_a_file_without_permission_to_read(clnet_command, files):
    (files / "a.net").chmod(0)
    if os.access("a.net", os.R_OK):
        pytest.skip("this user may read everything")
    status, _, err = clnet_command("info a.net")
    assert (status, err) == (2, "clnet: cannot read a.net: permission denied\n")


SCREEN = 24  # lines


def process(folder, *arguments, **options):
    """Run ``python -m clnet`` in a process of its own."""
    return run_python("-m", "clnet", *arguments, cwd=folder, **options)


def test_as_a_process(files):
    done = process(files, "info", "a.net")
    assert (done.returncode, done.stderr) == (0, "")
    assert "3-4-2" in done.stdout
    done = process(files, "info", "cut.net")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("clnet: cut.net, line 36: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="pipes do not break there")
def test_a_reader_that_closes_the_pipe(files):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        done = process(files, "info", "a.net", stdout=pipe)
    assert (done.returncode, done.stderr) == (141, "")


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")
def test_an_output_on_a_full_disk(files):
    with FULL.open("w") as full:
        done = process(files, "info", "a.net", stdout=full)
    assert (done.returncode, done.stderr) == (
        2, "clnet: cannot write the output: no space left on device\n"
    )


@pytest.mark.parametrize(("name", "status"), [("a.net", 0), ("none.net", 2)])
def test_without_an_output(files, name, status):
    closed = (
        "import os, sys; os.close(1); os.close(2); "
        f"os.execv(sys.executable, [sys.executable, '-m', 'clnet', 'info', {name!r}])"
    )
    assert run_python("-c", closed, cwd=files).returncode == status
