"""Samples whose values have names are read by these, whatever library they are of."""

from decimal import Decimal

import numpy as np
import pytest

from clnet import (
    Columns,
    FormatError,
    InputError,
    Network,
    Population,
    load,
    load_table,
)
from clnet.formats.data_frame import frame_source, named_inputs

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")
pyarrow = pytest.importorskip("pyarrow")

X = np.random.default_rng(0).normal(size=(12, 3))
T = np.array(["u", "v"] * 6)
FRAME = pandas.DataFrame(X, columns=list("abc"))
MIXED = FRAME[["c", "a", "b"]].assign(z="text")  # another order, and one more
ROW = MIXED.iloc[0]
RECORDS = MIXED.to_records(index=False)
TABLES = {
    "pandas": MIXED,
    "pandas, objects": MIXED.astype(object),
    "pandas, nullable": MIXED.convert_dtypes(),
    "pandas of pyarrow": MIXED.convert_dtypes(dtype_backend="pyarrow"),
    "polars": polars.DataFrame(MIXED.to_dict("list")),
    "polars, lazy": polars.DataFrame(MIXED.to_dict("list")).lazy(),
    "pyarrow": pyarrow.Table.from_pandas(MIXED),
    "a record batch": pyarrow.Table.from_pandas(MIXED).to_batches()[0],
    "a dict": MIXED.to_dict("list"),
    "dicts": MIXED.to_dict("records"),
    "rows": [row for _, row in MIXED.iterrows()],
    "named tuples": list(MIXED.itertuples()),
    "records": RECORDS,
    "a structured array": RECORDS.view(np.ndarray),
}


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """A network that has the names of its training, saved and loaded."""
    network = Network.mlp([3, 4, 2], ["tanh", "softmax"], seed=0)
    network.fit(FRAME, pandas.Series(T), epochs=1)
    path = tmp_path_factory.mktemp("network") / "a.safetensors"
    network.save(path)
    return load(path)


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_read_by_name(network, name):
    table = TABLES[name]
    y = network.predict(X)
    assert np.array_equal(network.predict(table), y)
    assert np.array_equal(network.classify(table), network.classify(X))
    assert network.evaluate(table, T) == network.evaluate(X, T)
    assert np.allclose(network.compile("cpu", 12, tune=False)(table), y, atol=1e-6)
    assert np.allclose(network.predict([(table, T)]), y)
    population = Population(network, 2)
    assert np.array_equal(population.predict(table), population.predict(X))


@pytest.mark.parametrize("row", [
    ROW, ROW.to_dict(), next(MIXED.itertuples()), RECORDS[0],
    RECORDS.view(np.ndarray)[:1].reshape(()), pandas.Series(X[0]),
], ids=["Series", "dict", "named tuple", "record", "structured", "no names"])
def test_rows_are_read_by_name(network, row):
    y = network.predict(row)
    assert y.shape == (2,) and np.allclose(y, network.predict(X)[0])


@pytest.mark.parametrize("name", TABLES)
def test_names_are_kept_by_fit(name):
    table = TABLES[name]
    columns = named_inputs(None, FRAME)[1]
    network = Network.mlp([3, 1], seed=0, columns=columns)
    other = Network.mlp([3, 1], seed=0)
    for one, x in ((network, table), (other, X)):
        one.fit(x, X[:, :1], epochs=2, seed=0, validation=(x, X[:, :1]))
    assert np.array_equal(network.parameters, other.parameters)
    assert network.columns == columns


def test_batches_are_read_by_the_names_of_the_first():
    batches = [(FRAME[:6], X[:6, :1]), (FRAME[["b", "c", "a"]][6:], X[6:, :1])]
    plain = [(X[:6], X[:6, :1]), (X[6:], X[6:, :1])]
    networks = [Network.mlp([3, 1], seed=0) for _ in range(2)]
    for network, data in zip(networks, (batches, plain), strict=True):
        network.fit(data, epochs=2, batch_size=3, seed=0, buffer=600)
    assert np.array_equal(networks[0].parameters, networks[1].parameters)
    assert [column.name for column in networks[0].columns.inputs] == ["a", "b", "c"]


@pytest.mark.parametrize(("table", "sentence"), [
    (MIXED[["a", "c"]], "x has no column 'b'"),
    (polars.DataFrame({"a": [1], "c": [2]}), "x has no column 'b'"),
    (pyarrow.table({"a": [1], "c": [2]}), "x has no column 'b'"),
    ({"a": 1, "c": 2}, "x has no column 'b'"), (ROW[["a", "c"]], "x has no column 'b'"),
    ([{"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 2}], "x, row 1 has no column 'c'"),
    ([{"a": 1, "b": 2, "c": 3}, 7], "x, row 1 has no column 'a'"),
    (pandas.DataFrame([[1, 2, 3, 4]], columns=list("abca")), "names a column twice"),
    ({"a": [1, 2], "b": [1], "c": [1, 2]}, r"x, column b: has shape \[1\]"),
    ({"a": 1, "b": "x", "c": 3}, "x, row 0, column b: found 'x', expected a number"),
    (pandas.DataFrame({"a": [1], "b": pandas.to_datetime(["2020"]), "c": [1]}),
     "x, row 0, column b: found .*2020"),
    (MIXED[:0], "x has no sample"), ({}, "x has no column"),
])
def test_bad_tables(network, table, sentence):
    with pytest.raises(InputError, match=sentence):
        network.predict(table)


def with_nan():
    frame = MIXED.copy()
    frame.loc[3, "b"] = np.nan
    yield from (
        frame, frame.astype(object), frame.convert_dtypes(), frame.to_dict("records"),
        frame.astype(object).where(frame.notna(), None),
        polars.DataFrame(frame.to_dict("list")), pyarrow.Table.from_pandas(frame),
        frame.to_dict("list"),
    )


@pytest.mark.parametrize("table", with_nan())
def test_missing_numbers_are_as_those_of_arrays(network, table):
    y = network.predict(table)
    assert np.isnan(y).any(axis=1).nonzero()[0].tolist() == [3]
    assert np.isnan(network.evaluate(table, T).accuracy)
    with pytest.raises(InputError, match="outputs of sample 3 hold NaN"):
        network.classify(table)
    with pytest.raises(InputError, match=r"x holds nan at \[3, 1\]"):
        network.fit(table, T, epochs=1)


def test_numbers_of_all_types():
    kinds = polars.DataFrame({
        "a": polars.Series([1, 2], dtype=polars.UInt8), "b": [True, False],
        "c": [Decimal("0.1"), Decimal("2.5")], "d": [2**53, -1],
    })
    for table in (kinds, kinds.to_arrow(), kinds.to_pandas(), kinds.to_dicts()):
        x, _ = named_inputs(None, table)
        if columns := frame_source(table, "x"):
            assert columns.names == list("abcd")
        assert x.tolist() == [[1, 1, 0.1, 2.0**53], [2, 0, 2.5, -1]]


def test_columns_of_numbers_have_their_texts_as_names():
    table = pandas.DataFrame(X)
    network = Network.mlp([3, 1], seed=0)
    network.fit(table, X[:, :1], epochs=1)
    assert [column.name for column in network.columns.inputs] == ["0", "1", "2"]
    swapped = table[[2, 0, 1]]
    assert np.array_equal(network.predict(swapped), network.predict(X))
    assert np.allclose(network.predict(swapped.iloc[0]), network.predict(X)[0])


@pytest.mark.parametrize("suffix", [".parquet", ".feather"])
def test_files_of_frames_are_tables(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    frame = MIXED.assign(z=T)
    getattr(frame, "to_" + suffix[1:])(path)
    found = load_table(path, target="z", dtype="float64")
    expected = load_table(frame, target="z", dtype="float64")
    assert np.array_equal(found.x, expected.x) and np.array_equal(found.t, expected.t)
    assert found.columns == expected.columns
    again = load_table(path, columns=Columns(found.columns.inputs[::-1]))
    assert np.array_equal(again.x, found.x[:, ::-1].astype("float32"))
    with pytest.raises(FormatError, match=f"a{suffix}, column a: holds numbers"):
        load_table(path, target="z", dates="a")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(FormatError, match=f"a{suffix}"):
        load_table(path)


def test_categories_of_numbers_are_categories():
    table = polars.DataFrame({"a": ["1", "2", "1"]}).cast(polars.Categorical)
    for one in (
        pandas.DataFrame({"a": pandas.Categorical([1, 2, 1])}), table, table.to_arrow()
    ):
        found = load_table(one)
        assert found.columns.inputs[0].categories == ("1", "2")
        assert found.x.tolist() == [[1, 0], [0, 1], [1, 0]]


@pytest.mark.parametrize("column", [
    [[1], [2]], [{"x": 1}, {"x": 2}], [b"x", b"y"],
    pandas.to_timedelta([1, 2]).to_pytimedelta().tolist(),
])
def test_columns_that_are_no_text_are_refused(column):
    for table in (polars.DataFrame({"a": column}), pyarrow.table({"a": column})):
        with pytest.raises(InputError, match="row 0, column a: found"):
            load_table(table)


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_dates_of_all_frames_are_days_whatever_their_unit(zone):
    day = 86_400 * 10**9
    stamps = pyarrow.array([1, day + 1, None], pyarrow.timestamp("ns", zone))
    table = pyarrow.table({"d": stamps, "b": [1, 2, 3]})
    for one in (
        table, table.to_pandas(), polars.from_arrow(table),
        table.to_pandas().convert_dtypes(dtype_backend="pyarrow"),
    ):
        x = load_table(one, dates="d").x
        assert x.tolist() == [[0, 0, 1], [1, 0, 2], [0.5, 1, 3]]


def test_whole_numbers_beyond_doubles_beside_missing_ones():
    table = pyarrow.table({"a": [2**62 + 1, None, 3]})
    for one in (table, polars.from_arrow(table), table.to_pandas()):
        x, _ = named_inputs(None, one)
        assert x[:, 0].tolist()[::2] == [2.0**62, 3] and np.isnan(x[1, 0])
