"""Errors and warnings are printable, whatever the names that they show."""

import copy
import pickle
import re
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

import clnet
from clnet import Dense, Network, TrainingState
from clnet.cli.main import main
from clnet.errors import (
    BuildError,
    ClnetError,
    ClnetWarning,
    printable,
    reason,
    silent,
    warn,
)

NAME = "a\x1b[31mb\nc\udcff\u202e.{}"
SHOWN = r"a\x1b[31mb\nc\udcff\u202e."


@pytest.mark.parametrize("action", [
    lambda folder, name: clnet.load(folder / name.format("net")),
    lambda folder, name: clnet.load(folder / name.format("safetensors")),
    lambda folder, name: clnet.load(folder / name.format("none")),
    lambda folder, name: clnet.load_data(folder / name.format("csv")),
    lambda folder, name: clnet.load_data(folder / name.format("data.gz")),
    lambda folder, name: clnet.load_data(folder / name.format("npz")),
    lambda folder, name: TrainingState.load(folder / name.format("npz")),
    lambda folder, name: Network(1, [Dense(1)]).save(folder / name / name / "x.net"),
    lambda folder, name: clnet.save_data(folder / name / "x.csv", [[1]], [[1]]),
    lambda folder, name: clnet.device(name),
], ids=["net", "safetensors", "suffix", "csv", "gz", "npz", "state", "save",
        "save data", "device"])
@pytest.mark.parametrize("content", [None, b"", b"x", b"1,2\n3,x\n"])
def test_names_are_escaped(tmp_path, action, content):
    if content is not None:
        for suffix in ("net", "safetensors", "csv", "data.gz", "npz"):
            (tmp_path / NAME.format(suffix)).write_bytes(content)
    with pytest.raises(ClnetError) as found:
        action(tmp_path, NAME)
    assert str(found.value).isprintable()
    assert SHOWN in str(found.value).replace("\\\\", "\\")


def test_warnings_are_escaped():
    with pytest.warns(ClnetWarning) as found:
        warnings.warn(NAME, ClnetWarning, stacklevel=1)
    assert str(found[0].message).isprintable()


def test_warnings_name_the_callers_line():
    net = Network.mlp([1, 1], activation="sigmoid", seed=0)
    x = np.ones((4, 1), "float32")
    with pytest.warns(ClnetWarning, match="targets of output 0") as found:
        net.fit(x, 3 * x, epochs=1, device="pocl")
    assert [one.filename for one in found] == [__file__]


def test_a_silent_thread_leaves_the_others_warnings():
    def another():
        warn("another thread")

    with pytest.warns(ClnetWarning) as found:
        with silent():
            warn("none")
            thread = threading.Thread(target=another)
            thread.start()
            thread.join()
        warn("this thread")
    texts = [str(one.message) for one in found]
    assert texts == ["another thread", "this thread"]


def test_no_module_changes_the_process_s_filters():
    """But for one that only adds its filter: threads restore each other's otherwise."""
    package = Path(clnet.__file__).parent
    changing = {
        path.relative_to(package).as_posix() for path in package.rglob("*.py")
        if {"catch_warnings", "simplefilter"} & set(
            re.findall(r"\w+", path.read_text(encoding="utf-8"))
        )
    }
    assert changing == {"opencl/program.py", "errors.py"}  # the latter in an example


def test_the_command_line(capsys, tmp_path):
    for arguments in (["info", NAME.format("net")], [NAME]):
        with pytest.raises(SystemExit):
            raise SystemExit(main(arguments))
        error = capsys.readouterr().err
        assert error.rstrip("\n").isprintable()


def test_errors_can_be_copied():
    error = BuildError(NAME, "a\nlog", "source")
    assert (error.log, str(error)) == ("a\nlog", printable(NAME))
    for kind in (ClnetError, clnet.FormatError, clnet.DeviceError):
        for again in (copy.copy, lambda one: pickle.loads(pickle.dumps(one))):
            assert str(again(kind(NAME))) == printable(NAME)
    assert printable("ü… 1\t") == "ü… 1\\t"
    assert printable(printable(NAME)) == printable(NAME)


def test_reasons_are_one_line_and_the_systems_own_are_its_sentence():
    assert reason(ValueError("no\n number")) == "no number"
    assert reason(PermissionError(13, "Permission denied", "/a/b")) == (
        "permission denied"
    )
