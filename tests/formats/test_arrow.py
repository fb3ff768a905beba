"""Parquet, Arrow and Feather files, read by parts."""

import math
import mmap
import threading
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waits import until

from clnet import (
    ClnetWarning,
    FormatError,
    InputError,
    Network,
    load_table,
    open_data,
)

pa = pytest.importorskip("pyarrow")
feather = pytest.importorskip("pyarrow.feather")
pq = pytest.importorskip("pyarrow.parquet")

KINDS = ["parquet", "arrow", "feather"]
N = 300
RNG = np.random.default_rng(0)
NUMBERS = RNG.normal(size=(N, 3)).astype(np.float32)
COLOURS = RNG.choice(["red", "green", "blue"], N)
CLASSES = np.where(NUMBERS[:, 0] > 0, "yes", "no")
COLUMNS = {
    "a": NUMBERS[:, 0], "b": NUMBERS[:, 1], "colour": COLOURS,
    "count": np.arange(N, dtype=np.int16), "y": NUMBERS[:, 2], "class": CLASSES,
}


def write(folder, kind, columns=COLUMNS, rows=64):
    path, table = folder / f"a.{kind}", pa.table(columns)
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=rows)
    elif kind == "feather":
        feather.write_feather(table, path, compression="lz4", chunksize=rows)
    else:
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table, max_chunksize=rows)
    return path


@pytest.fixture(params=KINDS)
def path(request, tmp_path):
    return write(tmp_path, request.param)


def test_columns_are_those_of_a_csv(path, tmp_path):
    rows = zip(*COLUMNS.values(), strict=True)
    lines = [",".join(COLUMNS), *(",".join(map(str, row)) for row in rows)]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    options = {"target": "y", "categories": "colour", "ignore": ["class", "a"]}
    expected = load_table(tmp_path / "a.csv", **options)
    source = open_data(path, **options)
    assert source.columns == expected.columns
    part = source.whole()
    np.testing.assert_array_equal(part.x, expected.x)
    np.testing.assert_array_equal(part.t, expected.t)
    again = open_data(path, columns=expected.columns)
    np.testing.assert_array_equal(again.whole().x, expected.x)


def test_labels_are_of_the_type_of_their_column(path):
    part = open_data(path, target="class", ignore="colour").whole()
    assert part.t.tolist() == CLASSES.tolist()
    part = open_data(path, target="count", categories="count", ignore=[3, 6]).whole()
    assert part.t.dtype == np.int16
    assert part.t.tolist() == list(range(N))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_slice_is_that_of_the_array_in_memory(tmp_path_factory, data):
    kind = data.draw(st.sampled_from(KINDS))
    rows = data.draw(st.integers(1, 80))
    unit = data.draw(st.integers(1, 100))
    names = data.draw(st.permutations(["a", "b", "y"]))
    table = {name: COLUMNS[name][:rows] for name in names}
    path = write(tmp_path_factory.mktemp("slices"), kind, table, unit)
    array = np.stack(list(table.values()), axis=1)
    source = open_data(path, outputs=1)
    first = data.draw(st.integers(0, rows - 1))
    last = data.draw(st.integers(first + 1, rows))
    if last - first < rows:
        source = source.section(slice(first, last))
    assert source.samples == last - first
    size = data.draw(st.integers(1, rows + 5))
    backwards = data.draw(st.booleans())
    seen = first
    for part in source.parts(size, (lambda n: range(n)[::-1]) if backwards else None):
        chosen = array[part.first : part.first + len(part.x)]
        assert len(part.x) <= size
        np.testing.assert_array_equal(part.x, chosen[:, :2])
        np.testing.assert_array_equal(part.t, chosen[:, 2:])
        assert backwards or part.first == seen
        seen += len(part.x)
    assert seen == last
    np.testing.assert_array_equal(np.concatenate(list(source.targets(size))),
                                  array[first:last, 2:])


def test_labels_columns_and_predictions(path):
    source = open_data(path, target="class", ignore="colour")
    net = Network.mlp([4, 4, 2], ["tanh", "softmax"], seed=0)
    net.fit(source, epochs=1, tune=False, device="cpu", buffer=5000)
    assert net.classes == ("no", "yes")
    assert net.columns == source.columns
    source = open_data(path, columns=net.columns)
    y = net.predict(source, device="cpu", buffer=5000)
    np.testing.assert_array_equal(y, net.predict(source.whole().x, device="cpu"))
    assert net.evaluate(source, device="cpu", buffer=5000).accuracy > 0.3


def test_columns_of_another_order_are_refused(path):
    net = Network.mlp([2, 1], ["identity"], seed=0)
    net.fit(open_data(path, target="y", ignore=["class", "colour", "count"]),
            epochs=1, tune=False, device="cpu")
    other = open_data(path, target="y", ignore=["class", "colour", "a"])
    message = r"input columns are \['b', 'count'\], expected the network's \['a', 'b'\]"
    for call in (net.predict, net.evaluate, net.fit):
        with pytest.raises(InputError, match=message):
            call(other)


@pytest.mark.parametrize(("options", "message"), [
    ({"target": "z"}, r"has no column 'z': it has \['a', 'b', 'colour'"),
    ({"target": "Class"}, "has no column 'Class': did you mean 'class'?"),
    ({"target": ["y", "class"]}, "expected one of categories, or numbers"),
    ({"target": list(COLUMNS)}, "names only targets"),
])
def test_wrong_columns(path, options, message):
    with pytest.raises(FormatError, match=message):
        open_data(path, **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("values", "options", "message"), [
    ([1.0] * 90 + [None], {}, "row 90, column v: the value is"),
    ([1.0] * 90 + [math.inf], {}, "row 90, column v: found inf, expected a finite"),
    (["u"] * 90 + [None], {"missing": "refuse"}, "row 90, column v: the value is"),
    ([[1.0]] * 9, {}, "column v: is of 'list<.*double>', expected numbers or text"),
])
def test_wrong_values_are_named(tmp_path, kind, values, options, message):
    columns = {"v": values, "y": np.zeros(len(values))}
    path = write(tmp_path, kind, columns, 20)
    with pytest.raises(FormatError, match=rf"a\.{kind}, {message}"):
        list(open_data(path, target="y", **options).parts(50))


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_categories_are_named(tmp_path, kind):
    values = ["u"] * 50 + ["w"] * 50
    known = open_data(
        write(tmp_path, kind, {"v": values[:60]}), categories="v"
    ).columns
    path = write(tmp_path, kind, {"v": [*values, "q"]}, 20)
    with pytest.raises(FormatError, match="row 100, column v: found 'q', expected"):
        open_data(path, columns=known, unknown="refuse").whole()
    with pytest.warns(ClnetWarning, match=r"zeros: v \(1\) from row 100 on"):
        x = open_data(path, columns=known).whole().x
    assert x[-2:].tolist() == [[0, 1], [0, 0]]


def test_types_of_numbers_and_text(tmp_path):
    values = pa.array(["u", "v", "u"])
    columns = {
        "truth": pa.array([True, False, True]),
        "half": pa.array(np.array([1, 2, 3], np.float16)),
        "exact": pa.array(map(Decimal, "123"), pa.decimal128(9, 2)),
        "coded": values.dictionary_encode(), "large": values.cast(pa.large_string()),
    }
    for kind in KINDS:
        path = write(tmp_path, kind, columns)
        part = open_data(path, target="large", categories="coded").whole()
        assert part.x.tolist() == [
            [0, 1, 1, 1, 1, 0], [1, 0, 2, 2, 0, 1], [0, 1, 3, 3, 1, 0]
        ]
        assert part.t.tolist() == ["u", "v", "u"]


@pytest.mark.parametrize("kind", KINDS)
def test_decimal_numbers_are_the_nearest_floats(tmp_path, kind):
    """Arrow's own cast rounds twice."""
    numbers = [f"{number}.2" for number in range(380842900, 380842950)]
    exact = pa.array(map(Decimal, numbers), pa.decimal128(12, 1))
    source = open_data(write(tmp_path, kind, {"a": exact, "y": exact}), target="y")
    found = source.whole()
    assert found.x.ravel().tolist() == found.t.ravel().tolist() == [
        float(number) for number in numbers
    ]


def test_wrong_arguments(path):
    with pytest.raises(InputError, match=r"t is for \.npy and HDF5"):
        open_data(path, "t.npy")


def test_groups_of_fewer_rows_than_the_files():
    """Pyarrow 26 reads the rows of the groups alone, 25 all values."""
    found = Path(__file__).parents[1] / "fuzz/findings/parquet"
    with pytest.raises(FormatError, match="groups of 4 rows in all, expected the fi"):
        open_data(found / "groups-of-fewer-rows.parquet", target="t")


@pytest.mark.parametrize("kind", ["parquet", "feather"])
def test_damaged_rows_are_named(tmp_path, kind):
    path = write(tmp_path, kind, {"a": NUMBERS[:, 0], "y": NUMBERS[:, 1]})
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 400] = bytes(400)
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"row \d+.*(cannot be read|found|missing)"):
        list(open_data(path, target="y").parts(50))


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_unit_is_read_from_the_disk_meanwhile(tmp_path, kind, monkeypatch):
    path = write(tmp_path, kind, {"a": NUMBERS[:, 0], "y": NUMBERS[:, 1]}, 20)
    touched = []
    monkeypatch.setattr(
        "clnet.formats.pages.touch_pages", lambda *found: touched.append(found[1:])
    )
    parts = open_data(path, target="y").parts(7)
    next(parts)
    parts.close()
    assert not [one for one in threading.enumerate() if "touch" in one.name]
    touched.clear()
    for part in open_data(path, target="y").parts(7):
        # A packed batch of Arrow's is unpacked where it is read; others of its file
        # are known to be none once one was read.
        if kind != "feather" and part.first >= N // 2:
            assert until(lambda: touched)
    assert bool(touched) == (kind != "feather")
    for start, size in touched:
        assert 0 <= start < start + size <= path.stat().st_size
        assert start % mmap.PAGESIZE == 0


@pytest.mark.parametrize(("kind", "types", "in_place"), [
    ("arrow", ["float32"] * 5, True),
    ("arrow", ["float64"] * 5, True),
    ("arrow", ["int16"] * 5, True),
    ("arrow", ["float32", "int32", "float32", "uint8", "float32"], False),
    ("arrow", ["int64"] * 5, False),
    ("feather", ["float32"] * 5, False),  # packed
    ("parquet", ["float32"] * 5, False),
])
def test_columns_are_read_where_they_lie(tmp_path, kind, types, in_place):
    """Evenly spaced ones, of one type; rows of any slice are those of the file."""
    columns = {
        f"x{at}": (RNG.normal(size=N) * 50).astype("int8").astype(one)
        for at, one in enumerate(types)
    }
    path = write(tmp_path, kind, {**columns, "y": NUMBERS[:, 0]}, rows=64)
    expected = np.stack(list(columns.values()), axis=1)
    found = list(open_data(path, outputs=1).parts(50))
    assert [part.first for part in found] == np.cumsum(
        [0, *(len(part.x) for part in found)]
    )[:-1].tolist()
    np.testing.assert_array_equal(np.concatenate([part.x for part in found]), expected)
    for part in found:
        assert part.x.strides[0] == part.x.itemsize
        assert part.x.flags.writeable != in_place


@pytest.mark.parametrize("at", ["b", "c"])
def test_columns_beside_missing_values_are_read_right(tmp_path, at):
    """The bitmap of missing values lies between the columns."""
    columns = {name: NUMBERS[:, i].copy() for i, name in enumerate("abc")}
    missing = {**columns, at: pa.array(columns[at], mask=np.arange(N) == 170)}
    path = write(tmp_path, "arrow", {**missing, "y": columns["a"]})
    parts = open_data(path, outputs=1).parts(64)
    found = np.concatenate([next(parts).x, next(parts).x])
    np.testing.assert_array_equal(found, NUMBERS[:128])
    with pytest.raises(FormatError, match=f"row 170, column {at}: the value is miss"):
        next(parts)


@pytest.mark.parametrize("kind", KINDS)
def test_missing_values_of_parts_are_as_those_of_tables(tmp_path, kind):
    columns = {
        "a": [1.5, None, 2.5, 8] * 20, "b": ["u", None, "v", "u"] * 20,
        "c": [True, None, False, None] * 20, "d": pa.nulls(80, pa.int64()),
        "e": pa.array([2**62 + 1, None, -5, 7] * 20), "y": [0.0] * 80,
    }
    path = write(tmp_path, kind, columns, 16)
    source = open_data(path, target="y", missing="mean")
    table = load_table(path, target="y", dtype="float64")
    assert source.columns == table.columns
    assert [column.mean for column in source.columns.inputs[:1]] == [4]
    assert source.notes == [*table.notes]
    for one in (source, open_data(path, columns=table.columns)):
        parts = [part.x for part in one.parts(7)]
        np.testing.assert_array_equal(np.concatenate(parts), table.x)
