"""Storages: every format holds every pattern exactly, and counts its bytes."""

import dataclasses

import numpy as np
import pytest
from clnet.benchmarks.studies.sparse import study_bytes
from hypothesis import given, settings
from hypothesis import strategies as st
from storages import check_indices, entry_matrix

from clnet.errors import InputError
from clnet.nn.storage.base import Entries
from clnet.nn.storage.dense import MaskedStorage
from clnet.nn.storage.formats import FORMATS, hyb, nbytes, parts
from clnet.nn.storage.pattern import Pattern
from clnet.nn.storage.sparse import (
    CooStorage,
    CsrStorage,
    DiaStorage,
    EllStorage,
    SellStorage,
    SparseStorage,
    hyb_width,
)

# The example of Bell and Garland, "Efficient sparse matrix-vector multiplication on
# CUDA", 2008, which the second study works through.
EXAMPLE = np.array([[1, 7, 0, 0], [0, 2, 8, 0], [5, 0, 3, 9], [0, 6, 0, 4]], "float32")


def random_mask(n_out, n_in, density, seed=0):
    mask = np.random.default_rng(seed).random((n_out, n_in)) < density
    mask[0, 0] = True
    return mask


def banded_mask(n_out, n_in, width):
    return np.abs(np.subtract.outer(np.arange(n_out), np.arange(n_in))) <= width


def rows_mask(n_out, n_in, *rows):
    mask = np.eye(n_out, n_in, dtype=bool)
    for row, value in rows:
        mask[row] = value
    return mask


def single_mask(n_out, n_in, row, column):
    mask = np.zeros((n_out, n_in), bool)
    mask[row, column] = True
    return mask


MASKS = {
    "random": random_mask(37, 37, 0.2),
    "dense": np.ones((9, 5), bool),
    "banded": banded_mask(40, 40, 2),
    "empty rows": rows_mask(33, 33, (0, False), (7, False), (32, False)),
    "full row": rows_mask(20, 20, (4, True)),
    "one long row": rows_mask(70, 300, (69, True)),
    "single entry": single_mask(5, 7, 4, 6),
    "1 x 1": np.ones((1, 1), bool),
    "wide": random_mask(3, 200, 0.1),
    "tall": random_mask(200, 3, 0.3),
}


def sizes_of(pattern, item_size=4):
    """The bytes of a pattern in each format."""
    return {name: nbytes(make(pattern), item_size) for name, make in FORMATS.items()}


def values_of(storages, matrix):
    """Return the values [size] of each storage of a sum, taken from a matrix."""
    found = []
    for storage in storages:
        values = np.zeros(storage.size, matrix.dtype)
        pattern = storage.pattern
        values[storage.entries().slots] = matrix[pattern.rows, pattern.columns]
        found.append(values)
    return found


def check_storages(storages, mask):
    """Assert the properties of a sum of storages of a mask."""
    matrix = np.where(mask, np.random.default_rng(1).uniform(1, 2, mask.shape), 0)
    held = np.zeros(mask.shape, int)
    total = np.zeros(mask.shape)
    for storage, values in zip(storages, values_of(storages, matrix), strict=True):
        assert (storage.n_out, storage.n_in) == mask.shape
        entries = storage.entries()
        assert isinstance(entries, Entries)
        assert {a.shape for a in entries} == {(len(storage.pattern),)}
        assert storage.count == storage.live().sum() == len(storage.pattern)
        assert storage.live()[entries.slots].all()
        np.add.at(held, (entries.rows, entries.columns), 1)
        np.testing.assert_array_equal(
            storage.matrix(values), entry_matrix(storage, values)
        )
        total += storage.matrix(values)
        assert hash(storage) == hash(dataclasses.replace(storage))
        assert storage == dataclasses.replace(storage)
    np.testing.assert_array_equal(held, mask)
    np.testing.assert_array_equal(total, matrix)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_every_format_holds_every_pattern(name, mask):
    check_storages(FORMATS[name](Pattern.of(mask)), mask)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("name", FORMATS)
def test_tables_are_in_range(name, mask):
    for storage in FORMATS[name](Pattern.of(mask)):
        if isinstance(storage, SparseStorage):
            check_indices(storage)


@pytest.mark.parametrize(("kind", "name", "at", "value"), [
    (CsrStorage, "columns", 3, 4), (CsrStorage, "columns", 0, 2**16 - 1),
    (CsrStorage, "starts", 0, 1), (CsrStorage, "starts", 2, -1),
    (CsrStorage, "starts", 2, 8), (CsrStorage, "starts", 4, 8),
    (CooStorage, "rows", 0, 4), (CooStorage, "columns", 0, 4),
    (EllStorage, "columns", 0, 4), (EllStorage, "lengths", 1, 4),
    (DiaStorage, "offsets", 0, -4), (DiaStorage, "offsets", 2, 0),
    (DiaStorage, "offsets", 2, 4),
    (SellStorage, "columns", 0, 4), (SellStorage, "order", 0, 0),
    (SellStorage, "order", 0, 4), (SellStorage, "lengths", 0, 4),
    (SellStorage, "starts", 1, 0),
])
def test_tables_out_of_range_are_noticed(kind, name, at, value):
    storage = kind(Pattern.of(EXAMPLE != 0))
    check_indices(storage)
    tables = {key: table.copy() for key, table in storage.indices.items()}
    tables[name].flat[at] = value
    storage.__dict__["indices"] = tables
    with pytest.raises(ValueError, match=f"the {name} of a matrix as {kind.name}"):
        check_indices(storage)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_sell_of_other_slices(mask):
    for height, window in ((1, 1), (8, 1), (8, 64), (4, 1000)):
        storage = SellStorage(Pattern.of(mask), height, window)
        check_storages((storage,), mask)
        assert storage.starts[-1] == storage.size
        assert storage.size % height == 0
        assert sorted(storage.order) == list(range(storage.n_out))


masks = st.tuples(
    st.integers(1, 12), st.integers(1, 12), st.floats(0, 1), st.integers(0, 99)
).map(lambda drawn: random_mask(*drawn))


@settings(max_examples=40, deadline=None)
@given(masks)
def test_patterns(mask):
    pattern = Pattern.of(mask)
    np.testing.assert_array_equal(pattern.mask(), mask)
    np.testing.assert_array_equal(pattern.lengths, mask.sum(axis=1))
    assert pattern.longest == mask.sum(axis=1).max()
    assert pattern.density == mask.mean()
    assert pattern == Pattern(*mask.shape, *np.nonzero(mask))
    assert hash(pattern) == hash(Pattern.of(mask))
    assert pattern != Pattern.of(np.pad(mask, ((0, 1), (0, 0))))
    assert Pattern.of(pattern) is pattern
    width = mask.shape[1]
    blocks = pattern.blocks([1, width - 1, 0][: 2 if width > 1 else 1])
    whole = [
        np.zeros((len(mask), w), bool) if block is None else block.mask()
        for block, w in zip(blocks, (1, width - 1), strict=False)
    ]
    np.testing.assert_array_equal(np.hstack(whole), mask)


def test_patterns_of_scipy_matrices():
    sparse = pytest.importorskip("scipy.sparse")
    mask = MASKS["random"]
    expected = Pattern.of(mask)
    for kind in (sparse.coo_matrix, sparse.csr_array, sparse.csc_matrix):
        assert Pattern.of(kind(mask)) == expected
    # In any order, and with stored zeros.
    rows, columns = np.nonzero(mask)
    shuffled = sparse.coo_matrix((np.zeros(rows.size), (rows[::-1], columns[::-1])),
                                 mask.shape)
    assert Pattern.of(shuffled) == expected


# The worked example ------------------------------------------------------------------


def test_the_example_as_ell_and_coo():
    pattern = Pattern.of(EXAMPLE != 0)
    ell = EllStorage(pattern)
    (values,) = values_of((ell,), EXAMPLE)
    assert ell.width == 3
    np.testing.assert_array_equal(  # [rows, K], as in the paper; stored transposed
        values.reshape(3, 4).T, [[1, 7, 0], [2, 8, 0], [5, 3, 9], [6, 4, 0]]
    )
    np.testing.assert_array_equal(
        ell.indices["columns"].T, [[0, 1, 0], [1, 2, 0], [0, 2, 3], [1, 3, 0]]
    )
    np.testing.assert_array_equal(ell.indices["lengths"], [2, 2, 3, 2])
    coo = CooStorage(pattern)
    (values,) = values_of((coo,), EXAMPLE)
    np.testing.assert_array_equal(values, [1, 7, 2, 8, 5, 3, 9, 6, 4])
    np.testing.assert_array_equal(coo.indices["rows"], [0, 0, 1, 1, 2, 2, 2, 3, 3])
    np.testing.assert_array_equal(coo.indices["columns"], [0, 1, 1, 2, 0, 2, 3, 1, 3])
    assert (study_bytes([ell]), study_bytes([coo])) == (4 * 2 * 4 * 3, 4 * 3 * 9)


def test_the_example_in_the_other_formats():
    pattern = Pattern.of(EXAMPLE != 0)
    csr = CsrStorage(pattern)
    np.testing.assert_array_equal(csr.indices["starts"], [0, 2, 4, 7, 9])
    dia = DiaStorage(pattern)
    (values,) = values_of((dia,), EXAMPLE)
    np.testing.assert_array_equal(dia.indices["offsets"], [-2, 0, 1])
    np.testing.assert_array_equal(
        values.reshape(3, 4), [[0, 0, 5, 6], [1, 2, 3, 4], [7, 8, 9, 0]]
    )
    sell = SellStorage(pattern, height=2, window=4)
    (values,) = values_of((sell,), EXAMPLE)
    np.testing.assert_array_equal(sell.indices["order"], [2, 0, 1, 3])
    np.testing.assert_array_equal(sell.indices["starts"], [0, 6, 10])
    np.testing.assert_array_equal(values, [5, 1, 3, 7, 9, 0, 2, 6, 8, 4])
    first, second = hyb(pattern)
    assert (first.name, first.width, second.name) == ("ell", 2, "coo")
    np.testing.assert_array_equal(values_of((second,), EXAMPLE), [[9]])


# The rule of HYB's width -------------------------------------------------------------


@pytest.mark.parametrize(("lengths", "share", "width"), [
    ([2, 2, 3, 2], 1 / 3, 2),
    ([1, 1, 1, 4, 4, 4, 4, 4, 4], 1 / 3, 4),
    ([1, 1, 1, 1, 1, 1, 4, 4, 4], 1 / 3, 4),  # a third of nine rows are three
    ([1, 1, 1, 1, 1, 1, 1, 4, 4], 1 / 3, 1),
    ([0, 0, 0, 9], 1 / 3, 0),
    ([0, 0, 0, 9], 0.25, 9),
    ([1, 2, 3, 4], 1.0, 1),
    ([5], 1 / 3, 5),
])
def test_the_histogram_rule(lengths, share, width):
    mask = np.arange(max(lengths)) < np.array(lengths)[:, np.newaxis]
    pattern = Pattern.of(mask)
    assert hyb_width(pattern, share) == width
    enough = [np.mean(pattern.lengths >= k) >= share - 1e-9 for k in (width, width + 1)]
    assert enough == [True, False]
    check_storages(hyb(pattern, share), mask)


def test_hyb_has_one_part_if_one_suffices():
    assert [s.name for s in hyb(Pattern.of(MASKS["dense"]))] == ["ell"]
    assert [s.name for s in hyb(Pattern.of(MASKS["single entry"]))] == ["coo"]
    with pytest.raises(InputError, match=r"share of the rows must be in \(0, 1\], not"):
        hyb_width(Pattern.of(MASKS["dense"]), 0)


# Bytes -------------------------------------------------------------------------------


def test_bytes_are_those_of_the_arrays():
    n, k = 6, 3
    pattern = Pattern(n, 100, np.repeat(np.arange(n), k), np.tile([0, 40, 99], n))
    exact = sizes_of(pattern)
    study = {name: study_bytes(make(pattern)) for name, make in FORMATS.items()}
    assert list(exact) == list(FORMATS)
    entries = n * k
    assert exact["dense"] == study["dense"] == 4 * n * 100
    assert (exact["coo"], study["coo"]) == ((4 + 2 + 2) * entries, 4 * 3 * entries)
    assert exact["csr"] == (4 + 2) * entries + 4 * (n + 1)
    assert study["csr"] == 4 * (2 * entries + n + 1)
    assert (exact["ell"], study["ell"]) == ((4 + 2) * n * k + 2 * n, 4 * 2 * n * k)
    assert (exact["hyb"], study["hyb"]) == (exact["ell"], study["ell"])
    diagonals = len(set((pattern.columns - pattern.rows).tolist()))
    assert exact["dia"] == 4 * n * diagonals + 4 * diagonals
    assert exact["sell"] == (4 + 2) * 32 * k + 4 * 2 + 2 * n + 2 * n
    double = sizes_of(pattern, 8)
    assert double["coo"] == (8 + 2 + 2) * entries


def test_indices_take_16_bits_where_they_fit():
    for n_in, dtype in ((65536, "uint16"), (65537, "int32")):
        pattern = Pattern(1, n_in, [0, 0], [0, n_in - 1])
        for kind in (CooStorage, CsrStorage, EllStorage, SellStorage):
            columns = kind(pattern).indices["columns"]
            assert columns.dtype == dtype
            assert columns.max() == n_in - 1


@pytest.mark.parametrize("n", [50, 300])
def test_hyb_is_smaller_than_dense_below_some_density(n):
    """By the studies' formulas, without 16-bit indices."""
    smaller = {}
    for percent in range(1, 101, 1 if n == 50 else 7):
        pattern = Pattern.of(random_mask(n, n, percent / 100, seed=percent))
        stored, words = hyb(pattern), study_bytes(hyb(pattern))
        smaller[percent] = words < study_bytes(FORMATS["dense"](pattern))
        assert nbytes(stored, 4) <= words + 2 * n
    assert all(found for percent, found in smaller.items() if percent <= 30)
    assert not any(found for percent, found in smaller.items() if percent > 50)


# Bad input ---------------------------------------------------------------------------


@pytest.mark.parametrize(("n_out", "n_in", "rows", "columns", "sentence"), [
    (0, 2, [0], [0], "n_out must be a whole number of at least 1, not 0"),
    (2, True, [0], [0], "n_in must be a whole number"),
    (2, 2, [0, 2], [0, 0], "entry 1 of a pattern has row 2, expected 0 to 1"),
    (2, 2, [0, 1], [0, -1], "entry 1 of a pattern has column -1, expected 0 to 1"),
    (2, 2, [0, 1], [0], "2 rows and 1 columns"),
    (2, 2, [], [], "a pattern has 0 entries"),
    (2, 2, [1, 1], [0, 0], r"duplicate entries in a pattern: \(1, 0\) follows"),
    (2, 2, [1, 0], [0, 0], r"unsorted entries in a pattern: \(0, 0\) follows"),
    (2, 2, [1, 1], [1, 0], "unsorted"),
    (2, 2, [0.5], [0], "rows of a pattern must be whole numbers in a row, found"),
    (2, 2, [0], [[0]], r"columns of a pattern must be .* of shape \[1, 1\]"),
    (2, 2, [0], [[0], [1, 2]], "columns of a pattern"),
])
def test_bad_patterns(n_out, n_in, rows, columns, sentence):
    with pytest.raises(InputError, match=sentence):
        Pattern(n_out, n_in, rows, columns)


@pytest.mark.parametrize(("found", "sentence"), [
    (np.ones((2, 2)), "boolean mask.*found float64"),
    (np.ones(3, bool), r"found bool of shape \[3\]"),
    ("mask", "boolean mask"),
    (np.zeros((2, 2), bool), "0 entries"),
    (np.zeros((2, 0), bool), "n_in must be"),
])
def test_bad_masks(found, sentence):
    with pytest.raises(InputError, match=sentence):
        Pattern.of(found)


def test_parts_within_a_memory_limit():
    pattern = Pattern.of(MASKS["random"])
    sizes = sizes_of(pattern)
    for name, size in sizes.items():
        (found,) = parts([pattern], name, 4, size)
        assert nbytes(found, 4) == size
        with pytest.raises(InputError, match=f"need {size} bytes as {name}, the mem"):
            parts([pattern], name, 4, size - 1)
    assert [s.name for s in parts([pattern], "auto", 4)[0]] == ["csr"]
    with pytest.raises(InputError, match="the memory limit is 10"):
        parts([pattern], "auto", 4, 10)
    with pytest.raises(InputError, match="did you mean 'csr'"):
        parts([pattern], "crs", 4)
    # One entry: COO needs no row starts.
    single = Pattern.of(MASKS["tall"][:, :1] & (np.arange(200) == 7)[:, np.newaxis]
                        | (np.arange(200) == 9)[:, np.newaxis])
    small = sizes_of(single)
    (found,) = parts([single], "auto", 4, small["csr"] - 1)
    assert nbytes(found, 4) == min(small.values())


def test_a_masked_storage_has_whole_rows():
    pattern = Pattern.of(MASKS["random"])
    storage = MaskedStorage.of(pattern)
    assert storage.signature == "masked[37,37]"
    assert study_bytes([storage]) == 4 * 37 * 37
    assert storage.nbytes(8) == 37 * 40 * 8
