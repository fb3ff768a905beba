"""Reading and writing files, parsing numbers, and selecting formats by suffix."""

import contextlib
import os
import stat
import warnings
from pathlib import Path

import numpy as np
import pytest
from faults.injection import assert_keeps_nothing
from hypothesis import given
from hypothesis import strategies as st

import clnet
from clnet.errors import FormatError, InputError
from clnet.formats import numbers, save, save_data
from clnet.formats.files import as_path, check_writable, read, reading, write

NUMBER_TEXTS = ["1", "-0.5", "+2", "1e2", ".5", "5.", "1E-3", "0x10", "0x1.8p3", "nan",
                "-nan", "inf", "-Infinity", "1e-400"]
NOT_NUMBERS = ["", "x", "1,5", "1_0", "1.2.3", "1-2", "0x", "e5", "--1", "1e", "nano",
              "1\0", "1e400", "0x1p9999", "½"]


@pytest.fixture
def denied(monkeypatch):
    """Lets every attempt to open a file fail, as for another user's file."""

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)


def test_read_names_the_fault(tmp_path):
    missing = tmp_path / "no.net"
    with pytest.raises(FormatError, match=r"no\.net: there is no such file in "):
        read(missing)
    with pytest.raises(FormatError, match="not a regular file"):
        read(tmp_path)
    os.mkfifo(tmp_path / "pipe.net")
    with pytest.raises(FormatError, match="not a regular file"):
        read(tmp_path / "pipe.net")  # to open it would wait for a writer
    empty = tmp_path / "empty.net"
    empty.touch()
    with pytest.raises(FormatError, match=r"empty\.net is empty"):
        read(empty)


def test_read_of_a_file_that_may_not_be_read(tmp_path, denied):
    (tmp_path / "x.net").touch()
    with pytest.raises(FormatError, match="permission denied"):
        read(tmp_path / "x.net")


@pytest.mark.parametrize("path", [3, None, b"x.net", "a\0b.net", "\ud800.net"])
def test_a_path_is_text(path):
    with pytest.raises(InputError, match="a file name must be"):
        as_path(path)


def test_write_then_read(tmp_path):
    path = tmp_path / "file"
    write(path, [b"one ", b"two"])
    assert read(path) == b"one two"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_write_applies_the_umask_and_keeps_permissions(tmp_path):
    path = tmp_path / "file"
    before = os.umask(0o027)
    try:
        write(path, [b"x"])
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    path.chmod(0o604)
    write(path, [b"y"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o604
    assert path.read_bytes() == b"y"


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o400])
def test_the_temporary_file_has_the_permissions_of_the_file(tmp_path, mode):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(mode)
    created = os.open
    handles = []

    def parts():
        (handle,) = handles
        assert stat.S_IMODE(os.fstat(handle).st_mode) == mode
        yield b"new"

    def checked(name, flags, mode):
        assert mode & ~stat.S_IMODE(path.stat().st_mode) == 0  # none is wider
        handles.append(created(name, flags, mode))
        return handles[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", checked)
        write(path, parts())
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_write_follows_a_symbolic_link(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write(link, [b"new"])
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


@pytest.mark.parametrize("error", [KeyboardInterrupt, InputError, RuntimeError])
def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def parts():
        yield b"half of it"
        raise error

    with pytest.raises(error):
        write(path, parts())
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_write_interrupted_at_the_last_moment(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write(path, [b"new"])
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("attempt", [lambda path: write(path, [b"x"]), check_writable])
def test_write_and_its_check_name_the_fault(tmp_path, attempt):
    with pytest.raises(FormatError, match=r"write .* there is no folder .*nowhere"):
        attempt(tmp_path / "nowhere" / "file")
    with pytest.raises(FormatError, match="not a regular file"):
        attempt(tmp_path)
    with pytest.raises(FormatError, match="not a directory"):
        (tmp_path / "file").touch()
        attempt(tmp_path / "file" / "file")
    with pytest.raises(FormatError, match="file name too long"):
        attempt(tmp_path / ("x" * 300))


def test_the_check_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    check_writable(path)
    assert not any(tmp_path.iterdir())
    path.write_bytes(b"old")
    check_writable(path)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_write_names_a_full_disk(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FormatError, match="no space left on device"):
        write(tmp_path / "file", [b"x"])
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("text", NUMBER_TEXTS)
@pytest.mark.parametrize("around", ["{}", " {}\n", "1 {} 2", "\t{}\r\n\v\f"])
def test_numbers_as_strtod_reads_them(text, around):
    whole = around.format(text).encode()
    values, bad = numbers.Items("n").parse(whole, 0, len(whole), "float64")
    assert bad is None
    expected = float.fromhex(text) if "x" in text else float(text)
    assert np.array_equal(
        values[len(values) // 2], np.array([expected]), equal_nan=True
    )


@pytest.mark.parametrize("text", NOT_NUMBERS)
def test_texts_that_are_not_numbers(text):
    whole = f"1 2 {text} 3".encode()
    values, bad = numbers.Items("n").parse(whole, 0, len(whole), "float64")
    assert numbers.to_number(text.encode()) is None
    if text:
        assert (len(values), bad) == (2, 4)


@pytest.mark.parametrize("text", [b"1" * 200_000, b"0x" + b"f" * 200_000])
def test_a_mismatch_is_found_in_linear_time(text):
    """In time of the square of the length, this would take hours."""
    assert numbers.to_number(text + b"x") is None
    for shape in ("n", "(n,n)", "(nn)"):
        block = shape.replace("n", "n ").encode().replace(b"n", text) + b"x"
        _, bad = numbers.Items(shape).parse(block, 0, len(block), "float32")
        assert bad == 0


@pytest.mark.parametrize("content", [b"1 1 1\n2 3", b"1 1 1\n2 3x", b"1 1 1\n2x 3"])
@pytest.mark.parametrize("name", ["x.data", "x.csv"])
def test_loaders_leave_the_filters_of_warnings_alone(
    tmp_path, monkeypatch, name, content
):
    """They belong to the whole process, and other threads may change them too."""
    monkeypatch.delattr(warnings, "catch_warnings")
    (tmp_path / name).write_bytes(content.replace(b" ", b",") if "csv" in name
                                  else content)
    before = list(warnings.filters)
    with contextlib.suppress(FormatError):
        clnet.load_data(tmp_path / name, outputs=1 if "csv" in name else None)
    assert warnings.filters == before


@pytest.mark.parametrize("shape", ["(n,n)", "(n,n,n)", "(nn)"])
@pytest.mark.parametrize("bad", ["(1)", "(1,2,3,4)", "1,2", "(1,,2)", "((1,2)", "(1 2",
                                 "(12)", "(a,1)", ")(", "(1,2))"])
def test_lists_with_a_bad_item(shape, bad):
    items = numbers.Items(shape)
    good = shape.replace("nn", "1 2").replace("n", "1")
    text = f"{good} {good}\n{bad} {good}".encode()
    values, at = items.parse(text, 0, len(text), "float32")
    assert (len(values), at) in ((2, len(f"{good} {good}\n")),
                                 (3, len(f"{good} {good}\n") + len(bad) - 1))


@pytest.mark.parametrize("small", [3, 7])
def test_lists_longer_than_a_block(monkeypatch, small):
    monkeypatch.setattr(numbers, "_BLOCK", 7)
    monkeypatch.setattr(numbers, "_SMALL_BLOCK", small)
    pairs = np.arange(200).reshape(-1, 2)
    text = " ".join(f"({a}, {b})" for a, b in pairs).encode()
    values, bad = numbers.Items("(n,n)").parse(text, 0, len(text), "float32")
    assert bad is None
    assert np.array_equal(values, pairs)
    text = " ".join(map(str, pairs.ravel())).encode()
    values, bad = numbers.Items("n").parse(text, 0, len(text), "float32")
    assert bad is None
    assert np.array_equal(values[:, 0], pairs.ravel())
    assert numbers.Items("n").offset(text, 0, 3) == text.index(b"3")
    text = text.replace(b" 17 ", b" 0x11 ").replace(b" 150 ", b" x ")
    values, bad = numbers.Items("n").parse(text, 0, len(text), "float32")
    assert bad == text.index(b"x ", text.index(b"149"))
    assert np.array_equal(values[:, 0], pairs.ravel()[:150])


def test_numbers_beyond_a_type():
    for number in ("0x1.fffffefp127", "0x1.ffffffp127", "-0x1.ffffffp127", "inf", "nan",
                   "0x1.fffffeffffffffp127", "1e300", "0"):
        value = float.fromhex(number)
        infinite = numbers.infinite(value, "float32") and not np.isinf(value)
        assert numbers.holds("float32", value) == (not infinite)
        assert numbers.holds("float64", value)
    text = b"1 2e39 3"
    assert numbers.Items("n").parse(text, 0, len(text), "float64")[1] is None
    assert numbers.Items("n").parse(text, 0, len(text), "float32")[1] == 2


@given(st.lists(st.floats(width=32)), st.lists(st.floats()))
def test_shortest_text_is_exact(small, large):
    for values in (np.array(small, np.float32), np.array(large, np.float64)):
        texts = numbers.shortest(values)
        assert not any(text.endswith(".0") for text in texts)
        back = np.array([float(text) for text in texts], values.dtype)
        assert np.array_equal(back, values, equal_nan=True)


@given(st.binary(max_size=60))
def test_no_text_breaks_the_parser(text):
    for shape in ("n", "(n,n)", "(nn)"):
        values, bad = numbers.Items(shape).parse(text, 0, len(text), "float32")
        assert bad is None or 0 <= bad < len(text)
        assert values.dtype == np.float64


@pytest.mark.parametrize("name", ["net", "net.txt", "net.gz", "a.npz", "x.net.gz"])
def test_networks_with_an_unknown_suffix(name, tmp_path):
    for action in (clnet.load, clnet.Network(1, [clnet.Dense(1)]).save):
        with pytest.raises(FormatError, match=r"known are \.net, \.safetensors"):
            action(tmp_path / name)


def test_a_folder_is_no_network(tmp_path):
    for action in (clnet.load, clnet.Network(1, [clnet.Dense(1)]).save):
        with pytest.raises(FormatError, match="a folder, expected a file of networks"):
            action(tmp_path)


@pytest.mark.parametrize("name", ["data", "x.txt", "x.net", "x.csv.gz", "x.gz"])
def test_data_with_an_unknown_suffix(name, tmp_path):
    with pytest.raises(FormatError, match=r"known are \.train, .*\.csv"):
        clnet.load_data(tmp_path / name)
    with pytest.raises(FormatError, match=r"known are \.train, .*\.csv"):
        save_data(tmp_path / name, [[1]], [[1]])


def test_a_suffix_in_capitals(tmp_path):
    save_data(tmp_path / "X.CSV", [[1, 2]], [[3]])
    x, t = clnet.load_data(str(tmp_path / "X.CSV"))
    assert (x.tolist(), t.tolist()) == ([[1, 2]], [[3]])


def test_bad_arguments(tmp_path):
    with pytest.raises(InputError, match=r"clnet\.Network"):
        save("a network", tmp_path / "x.net")
    with pytest.raises(InputError, match="did you mean 'float32'"):
        clnet.load(tmp_path / "x.net", dtype="float23")
    with pytest.raises(InputError, match="unknown dtype"):
        clnet.load_data(tmp_path / "x.data", dtype="int8")
    with pytest.raises(InputError, match=r"dtype is for \.net files"):
        clnet.load(tmp_path / "x.safetensors", dtype="float32")
    with pytest.raises(InputError, match=r"number of outputs is for \.csv files"):
        clnet.load_data(tmp_path / "x.data", outputs=1)
    for outputs in (-1, "1", 1.0):
        with pytest.raises(InputError, match="outputs must be a whole number"):
            clnet.load_data(tmp_path / "x.csv", outputs=outputs)


@pytest.mark.parametrize(("x", "t"), [
    ([1, 2], [[1], [2]]), ([[1], [2]], [1, 2]), ([[1], [2]], [[1]]),
    (np.zeros((0, 2)), np.zeros((0, 1))), (np.zeros((2, 0)), np.zeros((2, 1))),
    ([["a"]], [[1]]), ([[1], [1, 2]], [[1], [2]]), ([[1j]], [[1]]),
])
def test_data_of_a_wrong_shape_or_type(x, t, tmp_path):
    with pytest.raises(InputError):
        save_data(tmp_path / "x.data", x, t)
    assert not any(tmp_path.iterdir())


def test_an_error_keeps_nothing_of_the_library_that_reads():
    """A file that HDF5 holds open is not read anew."""
    assert_keeps_nothing(reading("x cannot be read"), ValueError, FormatError)
