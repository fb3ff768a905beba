"""Files that are read by parts, on the command line."""

import numpy as np
import pytest
from cli_output import ok, refused

import clnet
from clnet import Network

N = 400
RNG = np.random.default_rng(0)
TABLE = RNG.uniform(-1, 1, (N, 4)).astype(np.float32)
TABLE[:, 3] = TABLE[:, 0] * TABLE[:, 1]
CLASSES = np.where(TABLE[:, 0] > 0, "yes", "no")
SAVE = "--save a.safetensors"
SMALL = "--buffer 8000"  # the table has 12 800 bytes in float64
TRAIN = "--epochs 4 --batch-size 20 --optimiser adam --seed 0 --device cpu"


@pytest.fixture(autouse=True)
def folder(modelled_plans, monkeypatch, tmp_path):
    """Commands run in a folder of their own, with a table."""
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", TABLE)


def written(kind, folder):
    names = ["a", "b", "c", "y"]
    columns = {**dict(zip(names, TABLE.T, strict=True)), "class": CLASSES}
    path = folder / f"a.{kind}"
    if kind == "h5":
        h5py = pytest.importorskip("h5py")
        with h5py.File(path, "w") as file:
            file["x"], file["t"] = TABLE[:, :3], TABLE[:, 3:]
    elif kind == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        table = pytest.importorskip("pyarrow").table(columns)
        parquet.write_table(table, path, row_group_size=90)
    elif kind == "feather":
        feather = pytest.importorskip("pyarrow.feather")
        feather.write_feather(pytest.importorskip("pyarrow").table(columns), path)
    return path.name


@pytest.mark.parametrize(
    ("kind", "options"),
    [("npy", "--outputs 1"), ("h5", ""), ("parquet", "--target y --ignore class"),
     ("feather", "--target y --ignore class")],
)
def test_train_evaluate_predict(clnet_json, tmp_path, kind, options):
    name = written(kind, tmp_path)
    found = [
        clnet_json(f"train {name} {options} {more} {TRAIN} --layers 3-8-1 {SAVE}")
        for more in ("", SMALL)
    ]
    assert [one["training"]["samples"] for one in found] == [N, N]
    assert found[0]["scaled"] == found[1]["scaled"] == ("target" in options)
    evaluated = [
        clnet_json(f"evaluate a.safetensors {name} --device cpu {options} {more}")
        for more in ("", SMALL)
    ]
    assert evaluated[0]["mse"] == pytest.approx(evaluated[1]["mse"], rel=1e-6)
    assert evaluated[1]["mse"] == pytest.approx(found[1]["training"]["mse"], rel=1e-4)
    for more in ("", SMALL):
        given = f"{name} --device cpu {options} --out y.npy {more}"
        clnet_json(f"predict a.safetensors {given}")
        expected = clnet.load("a.safetensors").predict(
            TABLE[:, :3], "cpu", scale=found[1]["scaled"] or None
        )
        np.testing.assert_allclose(np.load("y.npy"), expected, rtol=1e-5, atol=1e-6)


def test_classes(clnet_json, tmp_path):
    name = written("parquet", tmp_path)
    found = clnet_json(f"train {name} --target class {SMALL} {TRAIN} {SAVE}")
    assert found["classes"] == ["no", "yes"]
    assert found["training"]["accuracy"] > 0.8
    predict = f"predict a.safetensors {name} --device cpu {SMALL} --out y.npy"
    answers = clnet_json(predict)
    assert answers["accuracy"] == pytest.approx(found["training"]["accuracy"])
    assert answers["outputs"] is None


def test_scaling_of_parts_is_that_of_the_whole():
    parts = np.array_split(TABLE, 7)
    found = clnet.Scaling.of_parts((part[:, :3], part[:, 3:]) for part in parts)
    expected = clnet.Scaling.of(TABLE[:, :3], TABLE[:, 3:])
    np.testing.assert_allclose(found.mean_in, expected.mean_in, rtol=1e-12)
    np.testing.assert_allclose(found.deviation_out, expected.deviation_out, rtol=1e-12)
    with pytest.raises(clnet.InputError, match="no sample to scale"):
        clnet.Scaling.of_parts([])


@pytest.mark.parametrize(("line", "message"), [
    ("train a.npy", "a.npy has no targets to train on"),
    ("train a.npy --target 5", "a.npy has 4 columns, and none of number 5"),
    ("train a.npy --target y", "has no names of columns, expected a number"),
    (f"train a.npy --target 4 --validation 0.2 {SMALL}", "or a larger --buffer"),
    (f"train a.npy --target 4 --initialiser widrow_nguyen {SMALL}", "needs"),
    (f"predict a.net a.npy --out y.csv {SMALL}", "is read by parts, whose outputs"),
    ("train a.npy --target 4 --categories 1", "are for tables"),
])
def test_errors(clnet_command, line, message):
    Network.mlp([4, 2, 1], seed=0).save("a.net")
    refused(clnet_command(line), message)


@pytest.mark.parametrize("command", ["", "train", "predict"])
def test_help_names_the_files(clnet_command, command):
    out = ok(clnet_command(f"{command} --help"))
    assert ".npy" in out
    assert ".parquet" in out
