"""Data in ``.npz`` and ``.csv`` files; test_fann_data has their round trips."""

import io
import zipfile
from functools import partial

import numpy as np
import pytest

from clnet import ClnetWarning, FormatError, load_data
from clnet.formats import save_data


@pytest.fixture
def csv(read):
    """A function that reads a text as a table."""
    return partial(read, load_data, name="file.csv")


@pytest.fixture
def npz(read):
    """A function that reads arrays, or bytes, as an archive."""
    def load(content=None, **arrays):
        if content is None:
            file = io.BytesIO()
            np.savez(file, **arrays)
            content = file.getvalue()
        return read(load_data, content, "file.npz")

    return load


def values(pair):
    return tuple(array.tolist() for array in pair)


@pytest.mark.parametrize("text", [
    "x0,x1,t0\n1,2,3\n4,5,6\n", "a,b,t\n1,2,3\n4,5,6", "a,b,T\r\n1,2,3\r\n4,5,6\r\n",
    "a , b , Target value\n 1 , 2 , 3 \n4,5,6\n\n", '"a","b, c","t"\n"1",2,3\n4,5,6\n',
    "\ufeffa,b,t1\n1,2,3\n4,5,6\n", "\n\na,b,t\n\n1,2,3\n   \n4,5,6\n",
    "a,b,t\n0x1,2,3\n4e0,5.,+6\n",
])
def test_targets_by_their_names(csv, text):
    assert values(csv(text)) == ([[1, 2], [4, 5]], [[3], [6]])


def test_numbers_beyond_every_type_are_no_header(csv):
    with pytest.raises(FormatError, match="line 1: found '1e400', expected a number"):
        csv("1e400,-1e400\n1,2\n", outputs=1)


def test_targets_need_not_be_last(csv):
    assert values(csv("t0,width,t1,temperature\n1,2,3,4\n")) == ([[2, 4]], [[1, 3]])


def test_targets_by_their_number(csv):
    text = "1,2,3\n4,5,6\n"
    assert values(csv(text, outputs=1)) == ([[1, 2], [4, 5]], [[3], [6]])
    assert values(csv("t,b,c\n" + text, outputs=2)) == ([[1], [4]], [[2, 3], [5, 6]])
    x, t = csv(text, outputs=0)
    assert (x.shape, t.shape) == ((2, 3), (2, 0))
    assert (x.dtype, t.dtype) == (np.float32, np.float32)


def test_one_column_and_special_numbers(csv):
    x, _ = csv("nan\n-inf\n1e-300\n", outputs=0, dtype="float64")
    assert np.isnan(x[0, 0])
    assert x[1:].ravel().tolist() == [-np.inf, 1e-300]


@pytest.mark.parametrize(("text", "options", "message"), [
    ("1,2,3\n", {}, "names no targets"),
    ("a,b,c\n1,2,3\n", {}, "names no targets"),
    ("t0,t1\n1,2\n", {}, "names only targets"),
    ("1,2,3\n", {"outputs": 3}, "has 3 columns, expected more than its 3 outputs"),
    ("a,t\n", {}, "holds only a header"),
    ("\n \n", {}, "is blank"),
    ("a,2,t\n1,2,3\n", {}, "line 1: found names and numbers"),
    ("1,2,three\n4,5,6\n", {"outputs": 1}, "line 1: found names and numbers"),
    ("a,t\n1,2\n3\n", {}, "line 3: found 1 cells, expected 2"),
    ("a,t\n1,2\n3,4,5\n", {}, "line 3: found 3 cells, expected 2"),
    ("a,b,t\n1,2\n", {}, "line 2: found 2 cells, expected 3"),
    ("a,t\n1,2\n\n3,x\n", {}, "line 4: found 'x', expected a number within float32"),
    ("a,t\n1,2\n3,\n", {}, "line 3: found '', expected a number"),
    ("a,t\n1,2\n,\n", {}, "line 3: found '', expected a number"),
    ("a,t\n1,1_0\n", {}, "line 2: found '1_0', expected a number"),
    ("a,t\n1,1e39\n", {}, "line 2: found '1e39', expected a number within float32"),
    ("a,t\n1,1e400\n", {"dtype": "float64"}, "line 2: found '1e400'"),
    ("a,t\n# no comments\n1,2\n", {}, "line 2: found 1 cells"),
    ("a;t\n1;2\n", {}, "line 2: found '1;2', expected a number"),
    ('a,t\n"1,2\n', {}, "line 2: unexpected end of data"),
    (b"a,t\n1,\xff\n", {}, "is not text: byte 6 is not UTF-8"),
])
def test_bad_tables(csv, text, options, message):
    with pytest.raises(FormatError, match=message) as caught:
        csv(text, **options)
    assert "file.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_layout_of_a_table(tmp_path):
    save_data(tmp_path / "x.csv", [[1, 0.1]], [[-3]])
    assert (tmp_path / "x.csv").read_text() == "x0,x1,t0\n1,0.1,-3\n"


# --- .npz ----------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "expected"), [
    (np.uint8, "float32"), (np.float16, "float32"), (np.float32, "float32"),
    (bool, "float32"), (np.int32, "float64"), (np.int64, "float64"),
])
def test_the_smallest_type_that_holds_the_arrays(npz, dtype, expected):
    x, t = npz(x=np.ones((2, 1), dtype))
    assert (x.dtype, x.tolist(), t.shape) == (expected, [[1], [1]], (2, 0))


def test_signalling_nans_are_nans(tmp_path):
    bits = np.uint64([0x7FF0000000000001, 0x3FF0000000000000])
    np.savez(tmp_path / "x.npz", x=bits.view(np.float64)[np.newaxis])
    x, _ = load_data(tmp_path / "x.npz", dtype="float32")
    assert np.isnan(x[0, 0]) and x[0, 1] == 1


def test_a_given_type(tmp_path):
    save_data(tmp_path / "x.npz", [[1e300]], [[1]])
    x, _ = load_data(tmp_path / "x.npz", dtype="float64")
    assert x.tolist() == [[1e300]]
    with pytest.raises(FormatError, match="x holds numbers beyond float32's range"):
        load_data(tmp_path / "x.npz", dtype="float32")


@pytest.mark.parametrize(("arrays", "message"), [
    ({"a": [[1]]}, r"holds the arrays \['a'\], expected x and t"),
    ({"t": [[1]]}, r"holds the arrays \['t'\], expected x and t"),
    ({"x": [[1]], "t": [[1]], "y": [[1]]}, r"holds the arrays \['t', 'y'\], expected"),
    ({}, r"holds the arrays \[\], expected x and t"),
    ({"x": [1], "t": [1]}, r"x is int64 \[1\], expected numbers \[samples, columns\]"),
    ({"x": 1.0}, r"x is float64 \[\], expected"),
    ({"x": [[1]], "t": [1]}, r"t is int64 \[1\], expected"),
    ({"x": [["a"]]}, r"x is <U1 \[1, 1\], expected numbers"),
    ({"x": [[1j]]}, "x is complex128"),
    ({"x": [[1]], "t": [[1], [2]]}, "expected the same number of samples"),
    ({"x": np.zeros((0, 2))}, "at least 1"),
    ({"x": np.zeros((2, 0))}, "at least 1 input"),
    ({"x": np.array([[{}]], object)}, "is damaged or not a .npz file of plain arrays"),
])
def test_wrong_arrays(npz, arrays, message):
    with pytest.raises(FormatError, match=message) as caught:
        npz(**arrays)
    assert "\n" not in str(caught.value)


def test_foreign_files(npz):
    plain = io.BytesIO()
    np.save(plain, np.ones((2, 2)))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("x.npy", "not an array")
    for content in (b"1 2 3\n", plain.getvalue(), packed.getvalue(), b"\x80\x04."):
        with pytest.raises(FormatError, match=r"file\.npz"):
            npz(content)


@pytest.mark.parametrize("before", [b"PK", b"x", b"PK\5", b"\x80\x04."])
def test_bytes_before_an_archive_are_refused(npz, before):
    """NumPy takes such a file for pickled data; zipfile passes over them."""
    buffer = io.BytesIO()
    np.savez(buffer, x=np.ones((2, 2)))
    with pytest.raises(FormatError, match="it begins as no archive"):
        npz(before + buffer.getvalue())


@pytest.mark.parametrize(("text", "x"), [
    ("0,1,2\n5,6,7\n", [[5, 6]]), ("0,1\n1.5,2\n", [[1.5]]), ("0,1\n1,2\n", [[0], [1]]),
])
def test_headers_of_numbers_are_no_samples(tmp_path, text, x):
    path = tmp_path / "a.csv"
    path.write_text(text)
    assert load_data(path, outputs=1)[0].tolist() == x


@pytest.mark.parametrize("header", [",a,b", "Unnamed: 0,a,b", ",0,1"])
def test_indices_are_no_inputs(tmp_path, header):
    path = tmp_path / "a.csv"
    path.write_text(f"{header}\n8,1,2\n9,3,4\n")
    with pytest.warns(ClnetWarning, match="the index is left out: 'Unnamed: 0'"):
        x, t = load_data(path, outputs=1)
    assert x.tolist() == [[1], [3]] and t.tolist() == [[2], [4]]
