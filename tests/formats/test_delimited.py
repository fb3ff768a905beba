"""Text files of named columns: what is found in them, and what is told of it."""

import gzip
from functools import partial

import numpy as np
import pytest

from clnet import Column, Columns, FormatError, InputError, load_table

pytest.importorskip("pyarrow")
N = 5
GERMAN = "größe;Preis;Straße\n" + "".join(
    f"{i},5;{i + 1}.234,25;{'Süd' if i % 2 else 'Nord'}\n" for i in range(N)
)


@pytest.fixture
def table(read):
    """A function that reads the content of a file."""
    def load(content, name="a.csv", **options):
        return read(load_table, content, name, dtype="float64", **options)

    return load


def names(table):
    return [column.name for column in table.columns.inputs]


# --- headers and indices -------------------------------------------------------------


@pytest.mark.parametrize(("text", "named"), [
    ("0,1,2\n5,6,x\n7,8,y\n", ["0", "1"]),  # pandas numbers columns from 0
    (",0,1\n0,5,6\n1,7,8\n", ["0"]),
    ("0,1\n1.5,2\n2.5,3\n", ["0"]),
    ("0,1\n1,0\n0,0\n", ["1"]),  # a sample, as of XOR
    ("year,2019,2020\n5,6,7\n", ["year", "2019"]),  # text above numbers
    ("a,a,b\n1,2,3\n", ["a", "a.1"]),
    ("a,b,c\nred,1,x\n", ["a", "b"]),
    ("red,1,x\nblue,2,y\n", ["1", "2"]),
    ("?,1,2\n3,4,5\n", ["1", "2"]),
    ("Unnamed: 0,a,b\n0,1,2\n", ["a"]), (",a,b\n7,1,2\n", ["a"]),
    ("__index_level_0__,a,b\n0,1,2\n", ["a"]),
])
def test_headers_and_indices_are_found(table, text, named):
    assert names(table(text, target=-1)) == named


def test_options_on_headers_and_indices(table):
    text = "0,1,2\n5,6,7\n"
    assert len(table(text, target="2").x) == 1
    assert table(text, target=3, header=False).x.tolist() == [[0, 1], [5, 6]]
    assert table("1,2\n3,4\n", target=-1, header=True).x.tolist() == [[3]]
    text = ",a,n,b\n7,1,0,2\n8,3,1,4\n"
    assert names(table(text, target="b", index=[])) == ["Unnamed: 0", "a", "n"]
    assert names(table(text, target="b", index="n")) == ["Unnamed: 0", "a"]
    assert names(table(text, target="b", index=["n", 1])) == ["a"]
    assert table(text, target="Unnamed: 0").t.tolist() == [[7], [8]]
    with pytest.raises(FormatError, match=r"no column 'zzz': it has \['a', 'n', 'b'\]"):
        table(text, target="zzz")
    with pytest.raises(InputError, match="header must be True, False or None"):
        table(text, header="yes")


def test_notes_tell_what_was_found(table):
    assert table("a,b\n1,2\n", target="b").notes == ()
    for text, note in (
        ("0,1,2\n5,6,7\n", "the header holds the numbers of columns"),
        ("5,6,7\n", "no header, columns are named by their numbers"),
        (",a,b\n0,1,2\n", "the index is left out: 'Unnamed: 0'"),
        ("a,a\n0,1\n", "names that occur twice get a number: a"),
        ("a;b\n1;2\n", "separator ';'"), ("a,b\n1,5;2\n".replace(",b", ";b"),
                                          "decimal comma: a"),
        ("a,b\nx,2\ny,3\n", "text as categories: a (2)"),
        ("a,c,b\nx,,2\ny,NA,3\n", "no value, left out: c"),
        ("a,b\n" + "".join(f"n{i},0\n" for i in range(30)),
         "text that differs in most samples, see ignore and dates: a"),
        ("a,b\n1,2\n?,3\n,4\n", "missing, the mean and an indicator: a (2)"),
        ('a,b\n"1,000.5",2\n', "thousands separators: a"),
        (b"\xe4,b\n1,2\n", "encoding cp1252"),
    ):
        assert note in table(text, target=-1).notes


def test_headers_of_networks_are_known(table):
    columns = table("0,1,2\n5,6,7\n", target="2").columns
    assert table("1,0\n3,4\n", columns=columns).x.tolist() == [[4, 3]]
    columns = table("5,6,7\n", target=-1).columns
    assert table("1,2\n3,4\n", columns=columns).x.tolist() == [[1, 2], [3, 4]]


# --- forms of text -------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "utf-16"])
@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_german_tables(table, encoding, name):
    content = GERMAN.encode(encoding)
    if name.endswith(".gz"):
        content = gzip.compress(content)
    found = table(content, name, target="Straße")
    assert names(found) == ["größe", "Preis"]
    assert found.x.tolist() == [[i + 0.5, 1000 * (i + 1) + 234.25] for i in range(N)]
    assert found.t.tolist() == ["Süd" if i % 2 else "Nord" for i in range(N)]


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_separators_are_found(table, separator):
    text = 'a,b,c\n1,"x,;|\t",2\n3,y,4\n'.replace(",", separator)
    found = table(text, target="c")
    assert found.x[:, 0].tolist() == [1, 3] and len(found.columns.inputs) == 2
    name = "a.tsv" if separator == "\t" else "b.csv"
    assert table(text, name, target="c", separator=separator).x.tolist() == (
        found.x.tolist()
    )


@pytest.mark.parametrize(("cells", "numbers", "options"), [
    (["1,5", "2,25"], [1.5, 2.25], {}), (["1.234,5", "7"], [1234.5, 7], {}),
    (["1.234", "5,5"], [1234, 5.5], {}), (["1.234", "5.5"], [1.234, 5.5], {}),
    (["1,234.5", "7"], [1234.5, 7], {}), (["1 234,5", "1"], [1234.5, 1], {}),
    (["1'234.5", "+7"], [1234.5, 7], {}), (["1,234", "5,678"], [1.234, 5.678], {}),
    (["1,234", "5,678"], [1234, 5678], {"decimal": "."}),
    (["1.234", "5.678"], [1234, 5678], {"decimal": ","}),
    ([".5", "-1e3"], [0.5, -1000], {}), ([",5", "-1,5e3"], [0.5, -1500], {}),
])
def test_forms_of_numbers(table, cells, numbers, options):
    text = "a;b\n" + "".join(f"{cell};0\n" for cell in cells)
    assert table(text, target="b", **options).x[:, 0].tolist() == numbers


def test_a_comma_that_may_be_either_is_refused(table):
    text = "a\tb\n1,234\t0\n5,678\t1\n"
    with pytest.raises(FormatError, match="column a: holds numbers whose comma is"):
        table(text, target="b")
    assert table(text, target="b", decimal=".").x.tolist() == [[1234], [5678]]
    assert table(f"{text}1,5\t1\n", target="b").x.tolist() == [[1.234], [5.678], [1.5]]
    assert table('a,b\n"1,234",0\n', target="b").x.tolist() == [[1234]]


@pytest.mark.parametrize(("options", "sentence"), [
    ({"separator": ";;"}, "separator must be one character, not ';;'"),
    ({"decimal": ";"}, "decimal must be . or , and not ';'"),
    ({"missing": "drop"}, "unknown rule for missing values 'drop'"),
    ({"unknown": "drop"}, "unknown rule for unknown categories 'drop'"),
])
def test_wrong_options(table, options, sentence):
    with pytest.raises(InputError, match=sentence):
        table("a,b\n1,2\n", **options)


# --- values --------------------------------------------------------------------------


def test_missing_numbers_are_the_mean_with_an_indicator(table):
    text = "a,b,t\n1,1,0\n,2,0\nNA,3,0\n3,4,0\n"
    found = table(text, target="t")
    assert found.columns == Columns((Column("a", mean=2, missing=True), Column("b")),
                                    ("t",))
    assert found.columns.inputs[0].mean == 2
    assert found.x.tolist() == [[1, 0, 1], [2, 1, 2], [2, 1, 3], [3, 0, 4]]
    again = table("b,a\nnan,5\n9,?\n", columns=found.columns)
    assert again.x.tolist() == [[5, 0, 2.5], [2, 1, 9]]
    assert again.notes == ("missing, the mean of the training: b (1)",)
    with pytest.raises(FormatError, match="line 3, column a: the value is missing"):
        table(text, target="t", missing="refuse")


def test_missing_text_is_a_category(table):
    found = table("a,t\nx,0\n,0\nNA,0\n", target="t")
    assert found.columns.inputs[0].categories == ("", "NA", "x")
    again = table("a\ny\n \n\"\"\n", "a.csv", columns=found.columns, header=True)
    assert again.x.tolist() == [[0, 0, 0], [1, 0, 0], [1, 0, 0]]


def test_categories_of_numbers_and_booleans_are_the_same_in_all_tables(table, tmp_path):
    pandas = pytest.importorskip("pandas")
    found = table("a,b,c,t\n1,true,007,0\n2.0,FALSE,08,0\n,True,9,0\n", target="t",
                  categories=["a", "c"])
    assert [column.categories for column in found.columns.inputs] == [
        ("", "1", "2"), ("False", "True"), ("007", "08", "9"),
    ]
    frame = pandas.DataFrame({
        "a": [1, 2, None], "b": [True, False, True], "c": ["007", "08", "9"],
    })
    read = partial(load_table, columns=found.columns, dtype="float64")
    assert np.array_equal(read(frame).x, found.x)
    frame.to_parquet(tmp_path / "a.parquet")
    assert np.array_equal(read(tmp_path / "a.parquet").x, found.x)


@pytest.mark.parametrize("first", ["nan", "inf", "7", "NA", "-1.5", "true"])
def test_labels_that_look_like_others(table, first):
    found = table(f"a,t\n1,{first}\n2,rose\n3,{first}\n", target="t")
    assert found.t.tolist() == [first, "rose", first]


def test_dates_are_days(table, tmp_path):
    pandas = pytest.importorskip("pandas")
    text = "d,t\n1970-01-02,0\n2000-03-01T12:00,0\n,0\n"
    found = table(text, target="t", dates="d")
    mean = (1 + 11017.5) / 2
    assert found.x.tolist() == [[1, 0], [11017.5, 0], [mean, 1]]
    assert found.columns.inputs[0].date
    frame = pandas.read_csv(tmp_path / "a.csv")
    frame["d"] = pandas.to_datetime(frame["d"], format="ISO8601")
    for one in (frame, frame.assign(d=frame["d"].dt.tz_localize("UTC"))):
        assert np.array_equal(load_table(one, target="t", dates="d").x, found.x)
        one.to_parquet(tmp_path / "a.parquet")
        again = load_table(tmp_path / "a.parquet", columns=found.columns)
        assert np.array_equal(again.x, found.x.astype("float32"))
        with pytest.raises(FormatError, match="column d: holds dates: name it by"):
            load_table(tmp_path / "a.parquet", target="t")
    with pytest.raises(FormatError, match=r"line 2, column d: found '1\.2\.2000', ex"):
        table("d,t\n1.2.2000,0\n", target="t", dates="d")


def test_an_index_of_parquet_is_left_out(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1, 2], "b": [3, 4]})
    for index, name in (([5, 4], None), (["x", "y"], "id")):
        frame.index = pandas.Index(index, name=name)
        frame.to_parquet(tmp_path / "a.parquet")
        found = load_table(tmp_path / "a.parquet", target="b")
        assert names(found) == ["a"] and "the index is left out" in found.notes[0]
    read = partial(load_table, tmp_path / "a.parquet")
    assert names(read(target="b", index=[])) == ["a", "id"]
    assert read(target="id").t.tolist() == ["x", "y"]


@pytest.mark.parametrize(("text", "values"), [
    ("a\tb\n1.234\t5\n", [1234]), ("a\tb\n1,234\t5\n", [1.234]),
    ("a\tb\n0.234\t5\n", [0.234]), ("a;b\n1.5;5\n", [1.5]),
    ("a,b\n1.234,5\n", [1.234]),
])
def test_the_decimal_sign_of_the_training_decides_the_rest(table, text, values):
    columns = table("a;b\n1,5;2\n", target="b").columns
    assert columns.decimal == ","
    assert table(text, columns=columns).x[:, 0].tolist() == values


def test_first_lines_of_decimal_commas_are_samples(table):
    assert len(table("1,5;x\n2,5;y\n", target=-1).x) == 2


def test_text_is_known_by_itself_before_its_common_form(table):
    columns = table("a,t\n1.0,0\nx,0\n,0\nNA,0\n", target="t").columns
    assert columns.inputs[0].categories == ("", "1.0", "NA", "x")
    x = table("a\n1.0\nNA\nNone\n", columns=columns).x
    assert x.argmax(axis=1).tolist() == [1, 2, 0] and not x[2].any()


def test_a_text_among_numbers_is_refused(table):
    text = "a,b\n" + "".join(f"{i / 2},0\n" for i in range(30)) + "-,0\n"
    sentence = "line 32, column a: found '-', expected a number as most others of the"
    with pytest.raises(FormatError, match=sentence):
        table(text, target="b")
    assert table(text, target="b", categories="a").x.shape == (31, 31)
