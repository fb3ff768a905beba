"""Tables on the command line: classes and columns by name, in and out."""

import json

import numpy as np
import pytest
from cli_output import ok, refused

import clnet
from clnet import Network
from clnet.cli.new_network import HIDDEN
from clnet.cli.samples import FileSamples
from clnet.errors import WIDTH
from clnet.nn.labels import count_missing


@pytest.fixture(autouse=True)
def folder(modelled_plans, monkeypatch, tmp_path):
    """Commands run in a folder of their own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def tables(tmp_path):
    """Tables of flowers, with classes, and of houses, with prices."""
    rng = np.random.default_rng(0)
    kinds = np.array(["iris", "lily", "rose"])[rng.integers(0, 3, 90)]
    middle = np.select([kinds == "iris", kinds == "rose"], [5, 9], 7)
    size = rng.normal(middle, 0.3)
    width = rng.normal(2, 0.1, 90)
    lines = [f"{w:.3f},{k},{s:.3f}" for w, k, s in zip(width, kinds, size, strict=True)]
    (tmp_path / "flowers.csv").write_text("\n".join(["width,kind,size", *lines]) + "\n")
    (tmp_path / "bare.csv").write_text("\n".join(lines) + "\n")
    new = [f"{s:.3f},{w:.3f}" for w, s in zip(width, size, strict=True)]
    (tmp_path / "new.csv").write_text("\n".join(["size,width", *new]) + "\n")
    place = np.array(["north", "south"])[rng.integers(0, 2, 90)]
    area = rng.uniform(50, 150, 90)
    price = 1000 * area + 50_000 * (place == "south")
    rows = [f"{i},{p},{a:.1f},{v:.0f}" for i, (p, a, v) in enumerate(
        zip(place, area, price, strict=True))]
    rows.insert(0, "id,place,area,price")
    (tmp_path / "houses.csv").write_text("\n".join(rows) + "\n")
    return tmp_path


TRAIN = "--epochs 150 --optimiser adam --rate 0.03 --seed 0"


def test_classes_of_a_table(clnet_command, tables):
    out = ok(clnet_command(
        f"train flowers.csv --target kind {TRAIN} --validation 0.2 --save a.safetensors"
    ))
    assert f"network     2-{HIDDEN}-3" in out
    network = clnet.load("a.safetensors")
    assert network.classes == ("iris", "lily", "rose")
    assert network.columns.targets == ("kind",)
    assert network.layers[-1].activation == "softmax"
    assert network.scaling.factor_in == (1.0, 1.0)
    assert set(network.scaling.deviation_out) == {1.0}
    out = ok(clnet_command("info a.safetensors"))
    assert "classes      iris, lily, rose\n" in out
    assert "columns      width, size\ntargets      kind\n" in out
    out = ok(clnet_command("info flowers.csv --target kind"))
    assert "inputs   2, from " in out and "classes  " in out and "lily " in out
    out = ok(clnet_command("predict a.safetensors flowers.csv --out answers.csv"))
    assert "classes   " in out and "accuracy" in out
    found = clnet.load_table("answers.csv", target="kind")
    given = clnet.load_table("flowers.csv", target="kind")
    assert np.array_equal(found.x, given.x) and np.mean(found.t == given.t) > 0.95
    ok(clnet_command("predict a.safetensors new.csv --out others.csv"))
    answers = (tables / "answers.csv").read_text()
    assert answers == (tables / "others.csv").read_text()
    assert answers.startswith("width,size,kind\n")
    out = ok(clnet_command("train flowers.csv --network a.safetensors --epochs 1"))
    assert float(out.rsplit("accuracy", 1)[1].split()[0]) > 0.95


def test_numbers_of_a_table(clnet_command, tables):
    out = ok(clnet_command(
        f"train houses.csv --target price --categories place --ignore id {TRAIN} "
        "--layers 3-8-1 --save a.safetensors"
    ))
    assert float(out.split("R²")[1].split()[0]) > 0.98
    network = clnet.load("a.safetensors")
    assert network.layers[-1].activation == "identity"
    assert network.scaling is not None and network.classes is None
    out = ok(clnet_command("predict a.safetensors houses.csv --out answers.csv"))
    assert float(out.split("R²")[1].split()[0]) > 0.98
    names, first, *_ = (tables / "answers.csv").read_text().splitlines()
    assert names == "place,area,price"
    assert first.split(",")[0] in ("north", "south")


def test_a_table_without_a_header(clnet_command, tables):
    ok(clnet_command(f"train bare.csv --target 2 {TRAIN} --no-scale "
                     "--save a.safetensors"))
    assert clnet.load("a.safetensors").scaling is None
    ok(clnet_command("predict a.safetensors bare.csv --out b.csv"))
    found, given = (clnet.load_table(path, target=column)
                    for path, column in (("b.csv", 3), ("bare.csv", 2)))
    assert np.array_equal(found.x, given.x)


def test_one_output_for_two_classes(clnet_command, tables):
    ok(clnet_command(f"train houses.csv --target place --ignore price,id {TRAIN} "
                     "--layers 1-3-1 --save a.safetensors"))
    network = clnet.load("a.safetensors")
    assert network.classes == ("north", "south")
    assert network.layers[-1].activation == "sigmoid"
    out = ok(clnet_command("predict a.safetensors houses.csv --out b.csv"))
    assert "accuracy" in out
    assert set(clnet.load_table("b.csv", target="place").t) <= {"north", "south"}


def test_names_of_columns_survive(clnet_command, tables):
    network = Network(2, [clnet.Dense(3, "softmax")], seed=0)
    network.save("a.safetensors")
    (tables / "c.csv").write_text("first,second\n1,2\n3,4\n")
    ok(clnet_command("predict a.safetensors c.csv --outputs 0 --out b.csv"))
    assert (tables / "b.csv").read_text().startswith("first,second,t0,t1,t2\n1,2,")
    network.classes = "a", "b", "c"
    network.save("a.safetensors")
    ok(clnet_command("predict a.safetensors c.csv --outputs 0 --out b.csv"))
    assert (tables / "b.csv").read_text().startswith("first,second,class\n1,2,")
    ok(clnet_command("predict a.safetensors c.csv --outputs 0 --out b.npz"))
    assert clnet.load_data("b.npz")[1].shape == (2, 3)


@pytest.mark.parametrize(("values", "activation"), [
    ((0, 1), "sigmoid"), ((-1, 1), "tanh"), ((0, 0.5), "identity"),
    ((25, 346), "identity"),
])
def test_the_output_by_the_targets(clnet_command, tmp_path, values, activation):
    rows = [f"{i},{values[i % 2]}" for i in range(8)]
    (tmp_path / "a.csv").write_text("x,t\n" + "\n".join(rows))
    ok(clnet_command("train a.csv --epochs 1 --save a.safetensors"))
    assert clnet.load("a.safetensors").layers[-1].activation == activation


@pytest.mark.parametrize(("line", "sentence"), [
    ("train flowers.csv", "expected a number within float32, or text in a column"),
    ("train flowers.csv", "name the column of classes, as by --target species"),
    ("train flowers.csv --target knd", "has no column 'knd': did you mean 'kind'?"),
    ("train flowers.csv --target kind,", "expected names separated by commas"),
    ("train flowers.csv --target kind --outputs 1", "give --target or --outputs, not"),
    ("train flowers.csv --target kind --layers 2-3-2",
     "flowers.csv has 2 inputs and 3 classes, the network 2 and 2"),
    ("train flowers.csv --target kind --scale-outputs -1 1", "is for numbers, not for"),
    ("train houses.csv --target price --dates place", "', expected a date as 2"),
    ("train houses.csv --target price,place", "expected one of categories, or numbers"),
    ("train flowers.csv --categories kind", "has no targets to train on: see --target"),
    ("train a.npz --target kind", "a.npz has no names of columns: give a file of .csv"),
    ("train digits --target kind", "digits has its own test set: leave out --target"),
    ("info n.safetensors --target kind", "--target is for .csv files, not for netw"),
    ("predict n.safetensors houses.csv", "houses.csv has no column 'width'"),
    ("evaluate n.safetensors flowers.csv",
     "the target holds the label 'lily', expected one of the network's classes ['a"),
])
def test_bad_tables(clnet_command, tables, line, sentence):
    columns = clnet.Columns((clnet.Column("width"), clnet.Column("size")), ("kind",))
    Network(2, [clnet.Dense(3, "softmax")], seed=0, classes=("a", "b", "iris"),
            columns=columns).save("n.safetensors")
    refused(clnet_command(line), sentence)


def test_reports_have_figures_by_class(clnet_command, tables):
    names = ok(clnet_command(
        f"train flowers.csv --target kind {TRAIN} --save a.safetensors"
    )).split("\n\n")[1].splitlines()
    assert names[0].split() == ["class", "precision", "recall", "F1", "AUC", "samples"]
    assert max(map(len, names)) <= WIDTH
    found = json.loads(clnet_command("evaluate a.safetensors flowers.csv --json")[1])
    assert [line.split()[0] for line in names[1:]] == found["classes"]
    assert len(found["auc"]) == len(found["f1"]) == len(found["classes"])


def test_balanced_classes_weigh_alike(clnet_command, tables):
    judge = pytest.importorskip("sklearn.utils.class_weight")
    for t in (np.array(["a", "b", "a", "a", "c"]), np.eye(3)[[0, 1, 1, 1, 2]],
              np.array([[0.0], [1], [1], [0], [1]])):
        labels = t if t.ndim == 1 else t[:, 0] if t.shape[1] == 1 else t.argmax(axis=1)
        np.testing.assert_allclose(
            FileSamples(np.zeros((5, 1)), t).balanced_weights(),
            judge.compute_sample_weight("balanced", labels),
        )
    train = f"train flowers.csv --target kind {TRAIN}"
    ok(clnet_command(f"{train} --class-weight balanced"))
    ok(clnet_command(f"{train} --class-weight balanced --population 2"))
    status, _, error = clnet_command(
        "train houses.csv --target price --ignore place --class-weight balanced"
    )
    assert status == 2 and "--class-weight is for" in error


def test_whole_numbers_that_may_be_labels_are_told(clnet_command, tables):
    rows = "".join(f"{i},{(3, 7, 12)[i % 3]}\n" for i in range(30))
    (tables / "labels.csv").write_text(f"x,label\n{rows}")
    train = "train labels.csv --target label --epochs 1 --layers 1-"
    out = " ".join(ok(clnet_command(f"{train}1")).split())
    assert "'label' holds few whole numbers and was trained as a number" in out
    out = ok(clnet_command(f"{train}3 --categories label"))
    assert "trained as a number" not in out and "accuracy" in out


def test_counts_are_trained_by_their_loss(clnet_command, tables):
    """Neither scaled nor taken for classes, and the last layer is the loss's."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=60)
    rows = "".join(f"{a:.3f},{rng.poisson(np.exp(a / 2))}\n" for a in x)
    (tables / "counts.csv").write_text(f"x,count\n{rows}")
    train = "train counts.csv --target count --loss poisson --save counts.safetensors"
    out = ok(clnet_command(f"{train} --epochs 20 --seed 0"))
    assert "trained as a number" not in out
    network = clnet.load("counts.safetensors")
    assert network.layers[-1].activation == "softplus"
    assert network.scaling.scale_output([[3.0]]).tolist() == [[3.0]]
    status, _, error = clnet_command(f"{train} --epochs 1 --output identity")
    assert status == 2
    assert "loss poisson needs outputs of at least 0, as of a last layer of" in error


def test_probabilities_stand_beside_the_class(clnet_command, tables):
    ok(clnet_command(f"train flowers.csv --target kind {TRAIN} --save a.safetensors"))
    ok(clnet_command("predict a.safetensors new.csv --out b.csv --probabilities"))
    names = (tables / "b.csv").read_text().splitlines()[0]
    assert names == "width,size,kind,P(iris),P(lily),P(rose)"
    found = clnet.load_table("b.csv", target="kind")
    assert np.allclose(found.x[:, 2:].sum(axis=1), 1)
    answers = np.array(["iris", "lily", "rose"])[found.x[:, 2:].argmax(axis=1)]
    assert np.array_equal(answers, found.t)
    status, _, error = clnet_command("predict a.safetensors new.csv --probabilities")
    assert status == 2 and "give --out FILE.csv" in error


def targets_of(tables, *values):
    """Write ``open.csv`` and ``open.parquet``: flowers of kinds in turn."""
    kinds = [values[i % len(values)] for i in range(6)]
    rows = [f"5.{i},2.{i},{kind}" for i, kind in enumerate(kinds)]
    (tables / "open.csv").write_text("\n".join(["size,width,kind", *rows]) + "\n")
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pyarrow.table({
        "size": [5 + i / 10 for i in range(6)], "width": [2 + i / 10 for i in range(6)],
        "kind": [kind or None for kind in kinds],
    }), tables / "open.parquet")


@pytest.mark.parametrize(("values", "why"), [
    (("",), "6 are missing"), (("rose", ""), "3 are missing"),
    (("new",), "the target holds the label 'new'"),
    (("rose", "tulip"), "label 'tulip'"),
])
@pytest.mark.parametrize("name", ["open.csv", "open.parquet", "open.parquet by parts"])
def test_predictions_need_no_targets(clnet_command, tables, values, why, name):
    ok(clnet_command(f"train flowers.csv --target kind {TRAIN} --save a.safetensors"))
    targets_of(tables, *values)
    name = name.replace(" by parts", " --buffer 1000" if name.endswith("parts") else "")
    out = ok(clnet_command(f"predict a.safetensors {name}"))
    shown = f"targets  not compared: {why}" if values[0] == "" else why
    assert why in out and shown in out and "accuracy" not in out
    status, _, err = clnet_command(f"evaluate a.safetensors {name}")
    assert status == 2 and why in err
    assert "no targets to compare the outputs with" in err
    found = json.loads(clnet_command(f"predict a.safetensors {name} --json")[1])
    assert why in found["targets"] and "accuracy" not in found
    table = clnet.load_table(tables / name.split()[0],
                             columns=clnet.load("a.safetensors").columns)
    assert table.x.shape == (6, 2) and len(table.t) == 6
    assert count_missing(table.t) == 6 * values.count("") / len(values)


def test_numbers_to_predict_may_be_missing(clnet_command, tables):
    ok(clnet_command(f"train houses.csv --target price --ignore id --categories place "
                     f"{TRAIN} --save a.safetensors"))
    (tables / "new.csv").write_text("area,place,price\n80,north,7\n90,south,\n")
    out = ok(clnet_command("predict a.safetensors new.csv --out b.csv"))
    assert "not compared: 1 are missing" in out
    columns = clnet.load("a.safetensors").columns
    assert np.isnan(clnet.load_table("new.csv", columns=columns).t).tolist() == [
        [False], [True]
    ]
    (tables / "new.csv").write_text("area,place,price\n80,north,?\n")
    assert "not compared" in ok(clnet_command("predict a.safetensors new.csv"))


def test_tables_without_names_may_hold_inputs_alone(clnet_command, tables):
    rows = [f"{i / 10},{i % 3},{i % 2}" for i in range(20)]
    (tables / "a.csv").write_text("\n".join(["a,b,t", *rows]) + "\n")
    ok(clnet_command(f"train a.csv {TRAIN} --save a.safetensors"))
    (tables / "b.csv").write_text("a,b\n1,2\n3,4\n")
    assert "the data have none" in ok(clnet_command("predict a.safetensors b.csv"))
    (tables / "b.csv").write_text("a\n1\n")
    assert "names no targets" in clnet_command("predict a.safetensors b.csv")[2]


def test_tables_as_people_have_them(clnet_command, tables):
    """An index, semicolons, decimal commas, latin-1, gaps and text of any kind."""
    rng = np.random.default_rng(0)
    rows = [
        f"{i};{i % 7},{i % 10};{'' if i % 5 == 0 else i % 4};"
        f"{('größe', 'klein')[i % 2]};{('True', 'False')[i % 3 == 0]};{kind}"
        for i, kind in enumerate(np.array(["nan", "rose"])[rng.integers(0, 2, 60)])
    ]
    text = "\n".join([";a;b;Größe;c;Art", *rows])
    (tables / "a.csv").write_text(text, encoding="latin-1")
    out = ok(clnet_command(
        f"train a.csv --target Art {TRAIN} --save a.safetensors"
    ))
    shown = " ".join(out.split())
    for note in (
        "separator ';'", "encoding cp1252", "the index is left out: 'Unnamed: 0'",
        "decimal comma: a", "text as categories: Größe (2), c (2)",
        "missing, the mean and an indicator: b (12)",
    ):
        assert note in shown
    network = clnet.load("a.safetensors")
    assert network.columns.n_in == 7
    (tables / "new.tsv").write_text(
        "b\tGröße\ta\tc\nNA\tgroß\t1.5\ttrue\n3\tklein\t2\t\n"
    )
    shown = " ".join(ok(clnet_command(
        "predict a.safetensors new.tsv --out b.csv"
    )).split())
    assert "unknown categories, zeros: Größe (1), c (1)" in shown
    names, *lines = (tables / "b.csv").read_text().splitlines()
    assert names == "a,b,Größe,c,Art"
    assert [line.rsplit(",", 1)[0] for line in lines] == ["1.5,,,True", "2,3,klein,"]
    status, _, err = clnet_command("predict a.safetensors new.tsv --unknown refuse")
    assert status == 2 and "line 2, column Größe: found 'groß', expected one of" in err
    found = json.loads(clnet_command("info a.csv --target Art --json")[1])
    assert "separator ';'" in found["table"]


@pytest.mark.parametrize(("options", "columns"), [
    ("--no-header", ["1", "2"]), ("--header", ["0", "1"]), ("--index 1", ["0"]),
    ("--no-index --decimal .", ["0", "1"]), ("--separator ,", ["0", "1"]),
])
def test_options_of_text_files(clnet_command, tables, options, columns):
    rows = [f"{i},{i / 2},{i % 2}" for i in range(9)]
    (tables / "a.csv").write_text("\n".join(["0,1,2", *rows]) + "\n")
    target = "--target 3" if "no-header" in options or "1" in options else "--outputs 1"
    ok(clnet_command(f"train a.csv {target} {options} --epochs 1 --save a.safetensors"))
    network = clnet.load("a.safetensors")
    assert [column.name for column in network.columns.inputs] == columns


def test_text_labels_that_look_like_numbers_are_compared(clnet_command, tables):
    rows = [f"{i},{('1', '2', 'x')[i % 3]}" for i in range(9)]
    (tables / "a.csv").write_text("\n".join(["a,t", *rows]) + "\n")
    ok(clnet_command("train a.csv --target t --epochs 2 --save a.safetensors"))
    (tables / "b.csv").write_text("a,t\n1,1\n2,2\n")
    assert "accuracy" in ok(clnet_command("evaluate a.safetensors b.csv"))
