"""Tables by the names of their columns: files, DataFrames, and what networks keep."""

from functools import partial

import numpy as np
import pytest
from tensor_files import changed, rewrite

import clnet
from clnet import (
    ClnetWarning,
    Column,
    Columns,
    Dense,
    FormatError,
    InputError,
    Network,
    load_table,
)
from clnet.formats import save_table

TEXT = "a,color,b,kind\n1,red,2.5,x\n-3,blue,4,y\n5,red,6,x\n"


@pytest.fixture
def csv(read):
    """A function that reads a text as a table."""
    return partial(read, load_table, name="file.csv")


def test_numbers_categories_and_labels(csv):
    table = csv(TEXT, target="kind", categories=["color"])
    # a, blue, red, b
    assert table.x.tolist() == [[1, 0, 1, 2.5], [-3, 1, 0, 4], [5, 0, 1, 6]]
    assert table.x.dtype == np.float32
    assert table.t.tolist() == ["x", "y", "x"]
    assert table.columns == Columns(
        (Column("a"), Column("color", ("blue", "red")), Column("b")), ("kind",)
    )
    assert table.columns.n_in == 4


@pytest.mark.parametrize(("options", "t"), [
    ({"target": "a", "categories": ("color", "kind")}, [[1], [-3], [5]]),
    ({"target": ["b", "a"], "categories": [2, "kind"]}, [[2.5, 1], [4, -3], [6, 5]]),
    ({"target": 1, "categories": "color", "ignore": -1}, [[1], [-3], [5]]),
    ({"target": "-1", "categories": "2"}, ["x", "y", "x"]),
    ({"categories": ["color", "kind"]}, [[], [], []]),
])
def test_targets_by_name_or_number(csv, options, t):
    assert csv(TEXT, **options).t.tolist() == t


@pytest.mark.parametrize(("column", "labels"), [
    (("3", "1", "3"), [3, 1, 3]), (("3", "1.0", "3"), [3, 1, 3]),
    (("True", "False", "True"), [True, False, True]), (("-7", "0", "10"), [-7, 0, 10]),
    (("01", "1", "2"), ["01", "1", "2"]),
])
def test_categories_as_a_target(csv, column, labels):
    text = "x,k\n" + "".join(f"0,{one}\n" for one in column)
    assert csv(text, target="k", categories="k").t.tolist() == labels


def test_a_table_without_a_header(csv):
    table = csv("1,2,x\n3,4,y\n", target=-1)
    assert (table.x.tolist(), table.t.tolist()) == ([[1, 2], [3, 4]], ["x", "y"])
    assert [one.name for one in table.columns.inputs] == ["1", "2"]
    assert table.columns.targets == ("3",)
    again = csv("5,6\n", columns=table.columns)
    assert again.x.tolist() == [[5, 6]] and again.t.shape == (1, 0)
    text = csv("p,p\nq,p\n", target=1, categories=2)  # equal cells are no header
    assert (text.x.tolist(), text.t.tolist()) == ([[1], [1]], ["p", "q"])


def test_a_name_makes_a_header_of_names_and_numbers(csv):
    table = csv("2019,2020,y\n1,2,3\n", target="y")
    assert (table.x.tolist(), table.t.tolist()) == ([[1, 2]], [[3]])


def test_columns_of_a_network_are_found_by_name(csv):
    columns = csv(TEXT, target="kind", categories="color").columns
    table = csv("kind,b,more,color,a\ny,7,?,blue,8\n", columns=columns)
    assert table.x.tolist() == [[8, 1, 0, 7]]
    assert table.t.tolist() == ["y"]
    table = csv("color,a,b\nred,0,0\n", columns=columns)
    assert (table.x.tolist(), table.t.shape) == ([[0, 0, 1, 0]], (1, 0))


@pytest.mark.parametrize(("text", "options", "sentence"), [
    (TEXT, {"target": "knd"}, r"has no column 'knd': did you mean 'kind'\?"),
    (TEXT, {"target": "zzz"}, "has no column 'zzz': it has"),
    (",a,b\n0,1,2\n", {"target": "zzz"}, r"it has \['a', 'b'\]"),
    (",a,b\n0,1,2\n", {"target": "b", "index": "zzz"},
     r"it has \['Unnamed: 0', 'a', 'b'\]"),
    (TEXT, {"target": 5}, "has no column 5"), (TEXT, {"target": 0}, "has no column 0"),
    (TEXT, {"target": ["kind", "a"], "categories": "color"},
     r"has the targets \['kind', 'a'\], expected one of categories, or numbers"),
    (TEXT, {"target": [1, 2, 3, 4]}, "names only targets"),
    ("a,b\n1,2\n,3\n", {"target": "b", "missing": "refuse"},
     "line 3, column a: the value is missing"),
    ("a,b\nx,2\n,3\n", {"target": "b", "missing": "refuse"},
     "line 3, column a: the value is missing"),
    ("a,b\n1,x\n\n2,\n", {"target": "b"}, "line 4, column b: the value is missing"),
    ("a,b\n1,2\n2,NA\n", {"target": "b"}, "line 3, column b: the value is missing"),
    ("a,b\n1,2\n2,nan\n", {"target": "b"}, "line 3, column b: the value is missing"),
    ("a,b\n1,2\ninf,3\n", {"target": "b"}, "line 3, column a: found inf"),
    ("a,b\n1,2\n1e39,3\n", {"target": "b"}, "line 3, column a: found 1e\\+39"),
    ("a,b\n1,2\n3\n", {"target": "b"}, "line 3: found 1 cells, expected 2"),
    ("a,b\n", {"target": "b"}, "holds only a header"),
    ("\n", {"target": "b"}, "is blank"),
    ("a,b\n1,\"2\n", {"target": "b"}, "line 2: unexpected end"),
    (b"a,b\n1,\0\n", {"target": "b"}, "is not text"),
    ('"a\nb",c\n1,1\ninf,2\n', {"target": "c"}, r"line 4, column 'a\\nb': found inf"),
])
def test_bad_tables(csv, text, options, sentence):
    with pytest.raises(FormatError, match=sentence) as caught:
        csv(text, **options)
    assert "file.csv" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "sentence"), [
    ("a,b,kind\n1,2,x\n", "has no column 'color'"),
    ("a,color,b\n1,green,2\n",
     r"line 2, column color: found 'green', expected one of the categories \['blue'"),
    ("1,2,3\n4,5,6\n", "has no column 'a'"),
    ("a,color,b\n1,red,x\n", "line 2, column b: found 'x', expected a number, or text"),
])
def test_tables_that_are_not_the_networks(csv, text, sentence):
    columns = csv(TEXT, target="kind", categories="color").columns
    with pytest.raises(FormatError, match=sentence):
        csv(text, columns=columns, unknown="refuse")


def test_categories_beyond_the_memory_limit(csv):
    text = "a,b\n" + "".join(f"k{i},1\n" for i in range(6000))
    with pytest.raises(FormatError, match="unpacks to 144000000 bytes"):
        csv(text, target="b", categories="a")
    assert csv(text, target="b", categories="a", memory_limit=10**9).x.sum() == 6000
    assert len(csv(text, target="a").t) == 6000


def test_wide_tables_take_linear_time(csv):
    n = 20_000
    names = ",".join(f"c{i}" for i in range(n))
    table = csv(f"{names}\n{','.join('1' * n)}\n", target="c7")
    assert table.x.shape == (1, n - 1)
    assert csv(f"{names}\n{','.join('2' * n)}\n", columns=table.columns).x.sum() == (
        2 * (n - 1))


def test_bad_arguments(tmp_path):
    with pytest.raises(InputError, match=r"a\.npz has no names of columns"):
        load_table(tmp_path / "a.npz")
    with pytest.raises(InputError, match="unknown dtype"):
        load_table(tmp_path / "a.csv", dtype="float16")


def test_tables_are_written_as_they_were(csv, tmp_path):
    table = csv(TEXT, target="kind", categories="color")
    save_table(tmp_path / "out.csv", table.x, table.t, table.columns)
    assert (tmp_path / "out.csv").read_text() == TEXT
    save_table(tmp_path / "out.csv", table.x[:1], table.t[:1])
    assert (tmp_path / "out.csv").read_text() == "x0,x1,x2,x3,class\n1,0,1,2.5,x\n"
    bare = csv("1,2,x\n3,4,y\n", target=-1)
    save_table(tmp_path / "out.csv", bare.x, bare.t, bare.columns)
    assert (tmp_path / "out.csv").read_text() == "1,2,x\n3,4,y\n"


# --- DataFrames ----------------------------------------------------------------------


@pytest.fixture
def frame():
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({
        "a": [1, -3, 5], "color": ["red", "blue", "red"], "b": [2.5, 4, 6],
        "kind": ["x", "y", "x"],
    })


def test_a_frame_is_as_its_file(csv, frame):
    found = load_table(frame, target="kind", categories="color")
    expected = csv(TEXT, target="kind", categories="color")
    assert np.array_equal(found.x, expected.x) and np.array_equal(found.t, expected.t)
    assert found.columns == expected.columns


def test_kinds_of_series(frame):
    frame["k"] = frame["color"].astype("category")
    frame["yes"] = [True, False, True]
    frame["n"] = frame["a"].astype("Int64")
    assert load_table(frame[["a", "k"]], target="k").t[1:].tolist() == ["blue", "red"]
    assert load_table(frame[["a", "yes"]], target="yes").t.tolist() == [1, 0, 1]
    assert load_table(frame[["yes", "n"]], target="n").x.tolist() == [
        [0, 1], [1, 0], [0, 1]
    ]


@pytest.mark.parametrize(("change", "sentence"), [
    ({"kind": [None, "x", "x"]}, "row 0, column kind: the value is missing"),
    ({"color": [1, 2, np.inf]}, "row 2, column color: found inf"),
    ({"color": [1, 2, 3], "kind": ["x", None, "y"]}, "row 1, column kind: the"),
])
def test_bad_frames(frame, change, sentence):
    for name, values in change.items():
        frame[name] = values
    with pytest.raises(InputError, match=sentence):
        load_table(frame, target="kind")


def test_an_empty_frame(frame):
    with pytest.raises(InputError, match="has no sample"):
        load_table(frame[:0], target="kind")


def test_networks_take_frames_of_categories(frame):
    table = load_table(frame, target="a", categories=["color", "kind"])
    network = Network.mlp([5, 1], "identity", seed=0, columns=table.columns)
    assert np.array_equal(network.predict(frame), network.predict(table.x))
    frame["color"] = "green"
    frame["b"] = np.nan
    with pytest.warns(ClnetWarning, match=r"of the training: b \(3\); unknown ca"):
        y = network.predict(frame)
    found = load_table(frame, columns=table.columns)
    assert np.allclose(found.x, [
        [0, 0, 12.5 / 3, *kind] for kind in ([1, 0], [0, 1], [1, 0])
    ])
    assert np.array_equal(y, network.predict(found.x))
    assert found.notes == (
        "missing, the mean of the training: b (3)",
        "unknown categories, zeros: color (3)",
    )


# --- networks ------------------------------------------------------------------------


def test_columns_are_of_the_networks_inputs():
    network = Network(2, [Dense(1)], seed=0)
    with pytest.raises(InputError, match="columns make 1 input, expected 2"):
        network.columns = Columns((Column("a"),))
    with pytest.raises(InputError, match="columns must be Columns or None, not 'a'"):
        network.columns = "a"
    network.columns = Columns((Column("a", ("x", "y")),))
    assert network.prune(density=0.5).columns is network.columns


@pytest.mark.parametrize(("inputs", "targets", "sentence"), [
    ((), (), "at least one Column"), (("a",), (), "at least one Column"),
    ((Column("a"), Column("a")), (), "name 'a' twice"),
    ((Column("a"),), ("a",), "name 'a' twice"),
    ((Column("a"),), (1,), "expected text"), ("a", (), "columns must be a list"),
])
def test_bad_columns(inputs, targets, sentence):
    with pytest.raises(InputError, match=sentence):
        Columns(inputs, targets)


@pytest.mark.parametrize(("arguments", "sentence"), [
    ((1,), "a column's name must be text"), (("a", ("x", "x")), "expected different"),
    (("a", (1, 2)), "expected text"), (("a", "xy"), "must be a list"),
])
def test_bad_column(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        Column(*arguments)


@pytest.mark.parametrize("columns", [
    7, {}, {"inputs": []}, {"inputs": [["a"]]}, {"inputs": [{"name": 1}]},
    {"inputs": [{"name": "a"}]}, {"inputs": [{"name": "a", "categories": ["x", "x"]}]},
    {"inputs": [{"name": "a", "categories": ["x", "y"]}], "targets": "ab"},
    {"inputs": [{"name": "a", "categories": ["x", "y"]}], "more": 1},
])
def test_damaged_columns(tmp_path, columns):
    path = tmp_path / "a.safetensors"
    kept = Columns((Column("a", ("x", "y")),), ("t",))
    Network(2, [Dense(1)], seed=0, columns=kept).save(path)
    assert clnet.load(path).columns == kept
    rewrite(path, describe=changed(columns=columns))
    with pytest.raises(FormatError, match=r"a\.safetensors"):
        clnet.load(path)


def test_fann_has_no_place_for_names_of_columns(tmp_path):
    columns = Columns((Column("a"), Column("b")))
    network = Network(2, [Dense(1)], seed=0, columns=columns)
    with pytest.warns(ClnetWarning, match="no names of columns, for which FANN has no"):
        network.save(tmp_path / "a.net")
