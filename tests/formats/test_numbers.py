"""Numbers parsed together are those parsed alone, and the first bad one is found."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import clnet
from clnet import FormatError
from clnet.formats import table
from clnet.formats.numbers import Items, holds, to_number, to_numbers

TOKENS = st.one_of(
    st.sampled_from([
        b"1", b"-.5e-3", b"0x1p-3", b"0X.8", b"inf", b"-Infinity", b"+nan", b"1e39",
        b"-3.4028236e38", b"1e999", b"0x1p99999", b"1_0", b"", b"x", b"1\n2", b"1 2",
        b"0x", b"nano", b"1e", b"\xd9\xa1", b"9" * 400, b"1" + b"0" * 38,
    ]),
    st.floats(width=32).map(lambda x: repr(x).encode()),
    st.floats().map(lambda x: x.hex().encode()),
    st.binary(max_size=4),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(TOKENS, max_size=5), st.sampled_from(["float32", "float64"]))
@example([b"1\n2", b""], "float32")
def test_numbers_together(tokens, dtype):
    alone = [to_number(token) for token in tokens]
    good = all(number is not None and holds(dtype, number) for number in alone)
    found = to_numbers(tokens, dtype)
    assert tokens == [] or (found is not None) == good
    if found is not None:
        np.testing.assert_array_equal(found, np.array(alone, float))


@pytest.mark.parametrize("bad", ["x", "1e39", "0x1p128", '"1\n2"', "1_0", ""])
@pytest.mark.parametrize("row", [0, 3, 4, 5, 9])
@pytest.mark.parametrize("column", [0, 2])
def test_the_first_bad_cell_of_a_table(tmp_path, monkeypatch, bad, row, column):
    """Whichever block it is in."""
    monkeypatch.setattr(table, "BLOCK", 12)
    rows = [["1", "inf", "0x2"] for _ in range(10)]
    rows[9][2] = "y"
    rows[row][column] = bad
    path = tmp_path / "x.csv"
    path.write_text("a,b,t\n" + "\n".join(map(",".join, rows)) + "\n")
    line = row + 2 + (bad[:1] == '"')
    found = bad.strip('"').replace("\n", r"\\n")
    with pytest.raises(FormatError, match=rf"line {line}: found '{found}'"):
        clnet.load_data(path)


@pytest.mark.parametrize("together", [True, False])
def test_a_list_of_many_kinds(together):
    text = b"1 0x1p3\n-inf nan\t1e-400 " * 3000 + b"x" * (not together)
    found, bad = Items("n").parse(text, 0, len(text), "float32")
    expected = [1, 8, -np.inf, np.nan, 0] * 3000
    assert np.array_equal(found[:, 0], expected, equal_nan=True)
    assert bad == (None if together else len(text) - 1)
