"""The command line: one sentence for bad input, and its ways to end as a process."""

import os
import sys
from pathlib import Path

import pytest
from children import run_python
from cli_output import refused

from clnet import DeviceError, Network
from clnet.cli.options import COMMANDS
from clnet.errors import BuildError


@pytest.fixture
def clnet_command(files, clnet_command):
    """A function that runs a command in that folder: status, stdout, stderr."""
    return clnet_command


@pytest.mark.parametrize(("line", "message"), [
    ("", "a command is required: devices, doctor, info"),
    ("fly", "unknown command 'fly': known are bench, convert, devices"),
    ("trian d.data", "unknown command 'trian': did you mean 'train'?"),
    ("--verison", "unknown option --verison: did you mean --version? (see clnet --"),
    ("info", "the following arguments are required: FILE"),
    ("info a.net b.net", "unexpected argument b.net (see clnet info --help)"),
    ("info --quick a.net", "unknown option --quick (see clnet info --help)"),
    ("info a.net --output=1 --quick", "unknown option --quick"),
    ("predict a.net d.data --devise=cpu", "option --devise: did you mean --device? ("),
    ("info no.net", "there is no such file in "),
    ("info no.csv", "there is no such file in "),
    ("info folder.net", "not a regular file"),
    ("info empty.net", "empty.net is empty"),
    ("info cut.net", "cut.net, line 36: found"),
    ("info a.txt", "a.txt has no suffix for networks or data: known are .net"),
    ("info d.npz --memory-limit 10", "unpacks to"),
    ("info a.net --outputs 1", "--outputs is for .csv files"),
    ("info d.data --outputs 1", "number of outputs is for .csv files"),
    ("info bare.csv", "names no targets (t0, t1, …): name them by --target, or"),
    ("info bare.csv --outputs 3", "has 3 columns"),
    ("info bare.csv --outputs x", "found 'x', expected a whole number"),
    ("train d", "d has no suffix for data: known are .train, .test, .data, .train.gz, "
     ".test.gz, .data.gz, .npz, .csv, .npy, .h5, .hdf5, .parquet, .arrow, .feather, "
     ".tsv, .csv.gz, .tsv.gz\n"),
    ("train d.data --seed x", "argument --seed: found 'x', expected a whole number"),
    ("train d.data --rate x", "argument --rate: found 'x', expected a number"),
    ("train d.data --grid lr=1", "unknown argument of a grid 'lr': known are clip_n"),
    ("train d.data --max-neurons 3", "leave it out, or give --optimiser cascade"),
    ("predict a.net", "the following arguments are required: DATA"),
    ("predict d.data d.data", "known are .net, .safetensors"),
    ("predict a.net a.net", "known are .train"),
    ("predict a.net no.data", "there is no such file in "),
    ("predict cut.net d.data", "cut.net, line 36"),
    ("predict a.net wide.data", "has 5 inputs and 2 outputs, expected 3 and 2 as in"),
    ("predict a.net d.csv --outputs 1", "has 4 inputs and 1 output, expected 3 and 2"),
    ("predict a.net d.data --batch 0", "expected a whole number of at least 1"),
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
    ("tune a.net --export nowhere/t.json", "there is no folder nowhere"),
    ("tune no.net", "there is no such file in "),
    ("tune a.net --batch 1,,2", "found '', expected a whole number"),
])
def test_bad_input_gives_one_sentence(clnet_command, files, line, message):
    before = sorted(files.iterdir())
    refused(clnet_command(line), message)
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


def run_devices(monkeypatch, run):
    """Let ``clnet devices`` run a function."""
    monkeypatch.setitem(COMMANDS, "devices", COMMANDS["devices"]._replace(run=run))


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

    run_devices(monkeypatch, fail)
    found, out, err = clnet_command("devices")
    assert (found, out) == (status, "")
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_an_unexpected_error_is_not_hidden(clnet_command, monkeypatch):
    run_devices(monkeypatch, lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        clnet_command("devices")


def test_a_file_without_permission_to_read(clnet_command, files):
    (files / "a.net").chmod(0)
    if os.access("a.net", os.R_OK):
        pytest.skip("this user may read everything")
    status, _, err = clnet_command("info a.net")
    assert (status, err) == (2, "clnet: cannot read a.net: permission denied\n")


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
