"""FANN's data files."""

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from clnet import load_data
from clnet.errors import FormatError
from clnet.formats import save_data

XOR = "4 2 1\n-1 -1\n-1\n-1 1\n1\n1 -1\n1\n1 1\n-1\n"
X, T = [[-1, -1], [-1, 1], [1, -1], [1, 1]], [[-1], [1], [1], [-1]]


@pytest.fixture
def parsed(read):
    """A function that reads a text as a data file."""
    return lambda text, name="file.data": read(load_data, text, name)


@pytest.mark.parametrize("text", [
    XOR, XOR.replace("\n", " "), XOR.replace("\n", "\r\n"),
    XOR.replace("\n", "\n\n \t"), XOR.rstrip(), "\n " + XOR,
    XOR + "\n\n", XOR.replace(" ", "\v\f"),
    XOR.replace("-1", "-0x1p0").replace("4 2", "4\n2"), XOR.replace("-1", "-1e0"),
])
def test_white_space_and_notation_are_free(parsed, text):
    x, t = parsed(text)
    assert (x.tolist(), t.tolist()) == (X, T)
    for array in (x, t):
        assert array.dtype == np.float32
        assert array.flags.c_contiguous


def test_no_outputs(parsed):
    x, t = parsed("2 1 0\n1\n2\n")
    assert (x.tolist(), t.shape) == ([[1], [2]], (2, 0))


@pytest.mark.parametrize(("text", "message"), [
    ("4", "line 1: found the end of the file, expected number of inputs"),
    ("4 2 x\n", "line 1: found 'x', expected number of outputs, a whole number"),
    ("-4 2 1\n", "line 1: found '-4 2 1', expected number of samples"),
    ("4.5 2 1\n", "line 1: found '4.5 2 1', expected number of samples"),
    ("4,2,1\n", "line 1: found '4,2,1', expected number of samples"),
    ("99999999999 2 1\n", "line 1: .*a whole number"),
    ("0 2 1\n", "line 1: found 0 samples of 2 inputs, expected at least 1"),
    ("1 0 1\n1\n", "line 1: found 1 sample of 0 inputs, expected at least 1"),
    (XOR.replace("-1 1", "-1, 1"), "line 4: found '-1, 1', expected a number"),
    (XOR.replace("-1 1", "# one"), "line 4: found '# one', expected a number"),
    (XOR + "7 8\n", "line 10: found '7 8', expected the end of the file after 4 "
     "samples of 2 inputs and 1 output, as it announces"),
    (XOR + "end\n", "line 10: found 'end'"),
    (XOR.replace("-1\n-1 1", "-1\n1e39 1"), "line 4: found '1e39 1', expected a number "
     "within float32"),
    ("4 2 1\n-1 -1\n-1\n-1 1\n", "line 5: the file ends after 5 numbers, expected 12"),
    ("4 2 1\n-1 -1\n-1\n-1", "line 4: the file ends after 4 numbers, expected 12"),
    ("4 2 1\n", "line 2: the file ends after 0 numbers"),
    ("4294967295 4294967295 4294967295\n1\n", "line 2: the file ends after 1 numbers"),
])
def test_bad_files(parsed, text, message):
    with pytest.raises(FormatError, match=message) as caught:
        parsed(text)
    assert "file.data" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_truncation_at_every_byte(parsed):
    text = XOR.rstrip().replace("1", "1.5")
    for end in range(1, len(text)):
        if text[:end].endswith(("-1", "-1.")) and end > len(text) - 3:
            continue  # the last number cut short is another number
        with pytest.raises(FormatError, match="line"):
            parsed(text[:end])


def test_gzip(parsed, tmp_path):
    packed = gzip.compress(XOR.encode())
    x, t = parsed(packed, "file.train.gz")
    assert (x.tolist(), t.tolist()) == (X, T)
    for end in (3, 12, len(packed) // 2, len(packed) - 1):
        with pytest.raises(FormatError, match=r"is truncated|is not gzipped"):
            parsed(packed[:end], "file.train.gz")
    damaged = bytearray(packed)
    damaged[len(packed) // 2] ^= 0xFF
    with pytest.raises(FormatError, match=r"is damaged|is truncated|found"):
        parsed(bytes(damaged), "file.train.gz")
    with pytest.raises(FormatError, match="is not gzipped"):
        parsed(XOR, "file.train.gz")
    with pytest.raises(FormatError, match=r"is gzipped.*ends in \.gz"):
        parsed(packed, "file.train")


def test_the_layout_is_that_of_fann(tmp_path):
    save_data(tmp_path / "x.data", np.array(X) + 0.5, T)
    text = (tmp_path / "x.data").read_text()
    assert text.startswith("4 2 1\n-0.5 -0.5 \n-1 \n-0.5 1.5 \n1 \n")


def arrays(dtype):
    width = 8 * np.dtype(dtype).itemsize
    return st.tuples(*[st.integers(1, 5)] * 3).flatmap(
        lambda n: st.tuples(*(
            hnp.arrays(dtype, (n[0], columns), elements=st.floats(width=width))
            for columns in n[1:]
        ))
    )


@pytest.mark.parametrize("suffix", [".train", ".test.gz", ".npz", ".csv"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_round_trip(suffix, dtype, tmp_path):
    path = tmp_path / f"file{suffix}"

    @given(arrays(dtype))
    def check(data):
        save_data(path, *data)
        for written, back in zip(data, load_data(path, dtype=dtype), strict=True):
            assert back.dtype == dtype
            assert np.array_equal(written, back, equal_nan=True)
            assert np.array_equal(np.signbit(written) & ~np.isnan(written),
                                  np.signbit(back) & ~np.isnan(back))

    check()


@pytest.mark.parametrize(("name", "shapes"), [
    ("mushroom.test.gz", ((4062, 125), (4062, 2))), ("xor.data", ((4, 2), (4, 1))),
    ("soybean.train", ((342, 82), (342, 19))), ("scaling.data", ((1000, 3), (1000, 1))),
])
def test_fanns_data_sets(fann_datasets, name, shapes):
    x, t = load_data(fann_datasets / name)
    assert (x.shape, t.shape) == shapes
