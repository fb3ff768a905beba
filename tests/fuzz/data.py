"""Files of data: FANN's, packed or not, tables and archives of arrays."""

from __future__ import annotations

import csv
import gzip
import io
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import clnet
from clnet import FormatError

from .oracle import DATA, MEMORY_LIMIT, numbers, same


def data_seeds() -> list[bytes]:
    return [
        (DATA / "fann-small.data").read_bytes(),
        b"3 2 1\n0 1\n1\n0.5 -1e-3\n0\nnan inf\n-2\n", b"2 1 0\n1 2",
        b"1 3 3\r\n1\t2 3 0x1p3 +5 .5",
    ]


def data_check(content: bytes, pair: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    tokens = content.split()
    samples, n_in, n_out = (int(token) for token in tokens[:3])
    rows = numbers(tokens[3:], "float32").reshape(samples, n_in + n_out)
    same(pair[0], rows[:, :n_in])
    same(pair[1], rows[:, n_in:])
    return pair[0]


def gz_seeds() -> list[bytes]:
    return [gzip.compress(seed, mtime=0) for seed in data_seeds()]


def gz_check(content: bytes, pair: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    return data_check(gzip.decompress(content), pair)


def csv_seeds() -> list[bytes]:
    return [b"x0,x1,t0\n1,2,3\n4,5e-1,6\n", b'"a","b, c",target\n"1",nan,3\n\n4,5,6\n',
            b"t,x\r\n0x10,-.5\r\n", b"\xef\xbb\xbfa,b,T1\n1,2,3\n", b"1,2\n3,4\n"]


def csv_check(content: bytes, read: Any) -> np.ndarray:
    """By Python's reader."""
    pair, outputs = read
    text = content.decode("utf-8-sig")
    rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text,
                                                                    newline=""))]
    rows = [row for row in rows if any(row) or len(row) > 1]
    header, targets = None, [False] * (len(rows[0]) - 1) + [True]
    counted = [str(number) for number in range(len(rows[0]) - (rows[0][0] == ""))]
    if len(counted) > 2 and counted in (rows[0], rows[0][1:]):
        rows[0] = [f"c{number}" if number else "" for number in range(len(rows[0]))]
        if rows[0][0] == "" and len(counted) == len(rows[0]):
            rows[0][0] = "c0"
    try:
        numbers([cell.encode() for cell in rows[0]])
    except AssertionError:
        header = rows.pop(0)
        if outputs is None:
            targets = [bool(re.fullmatch(r"t\d*|target.*", name, re.IGNORECASE))
                       for name in header]
    values = np.array([numbers([cell.encode() for cell in row], "float32")
                       for row in rows])
    index = header is not None and header[0] in ("", "Unnamed: 0")
    same(pair[0], values[:, ~np.array(targets)][:, int(index):])
    same(pair[1], values[:, np.array(targets)])
    return pair[0]


def load_table(path: Path) -> Any:
    """A header names the targets; where it does not, the last column is the target."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return clnet.load_data(path), None
        except FormatError as error:
            if "names no targets" not in str(error):
                raise
            return clnet.load_data(path, outputs=1), 1


def table_seeds() -> list[bytes]:
    import pyarrow.compute  # these and pandas take memory that is not the parser's
    import pyarrow.csv

    pyarrow.array([None, "x"]).to_numpy(zero_copy_only=False)
    return [
        b"a,b,kind\nred,1,x\nblue,2.5,y\nred,-3e1,x\n", b"k,t\n1,2\n3,4\n",
        b"7,1,x\n8,2,y\n9,3,x\n", b'"a, 1","b",c,d\r\n" x ",1,2,"3"\n\n"y",4,5,6\n',
        b"a,b,n\nx,1,\xc3\xa9\ny,2,7\n", b"p,2,1\nq,0x10,2\n",
        b"a,b\nx,True\ny,False\n",
    ]


def load_named(path: Path) -> Any:
    """The first column has categories, the last one is the target."""
    return clnet.load_table(path, target=-1, categories=1, memory_limit=MEMORY_LIMIT)


def table_check(content: bytes, table: Any) -> np.ndarray:
    """Numbers are finite, a sample has one category; tests/meaning judges values."""
    names = [column.name for column in table.columns.inputs]
    assert len({*names, *table.columns.targets}) == len(names) + 1
    assert table.x.shape == (len(table.t), table.columns.n_in)
    assert np.isfinite(table.x).all()
    kinds = table.columns.inputs[0].categories
    if kinds:
        assert (table.x[:, : len(kinds)].sum(axis=1) == 1).all()
    return np.asarray(table.x)


def npz_seeds() -> list[bytes]:
    found = []
    x = np.arange(6.0).reshape(3, 2)
    for arrays in (
        {"x": x, "t": x[:, :1]}, {"x": x.astype("float32")},
        {"x": np.asfortranarray(x.astype(">f8")), "t": np.ones((3, 1), bool)},
        {"x": np.ones((2, 3), np.uint8), "t": np.ones((2, 0), np.float16)},
    ):
        for write in (np.savez, np.savez_compressed):
            file = io.BytesIO()
            write(file, **arrays)
            found.append(file.getvalue())
    return found


def npz_check(content: bytes, pair: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        x = arrays["x"]
        t = arrays["t"] if "t" in arrays else np.zeros((len(x), 0), "float32")
    same(pair[0], x.astype(pair[0].dtype))
    same(pair[1], t.astype(pair[1].dtype))
    return pair[0]


def load_data(path: Path) -> Any:
    return clnet.load_data(path, memory_limit=MEMORY_LIMIT)
