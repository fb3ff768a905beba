"""The parsers of files: seeds, mutations, and an oracle that reads a file by itself.

An oracle reads what a file means with NumPy and C's strtod, by none of clnet's parsers.
It reads the files that clnet accepted only: where it differs, or cannot read one, clnet
has accepted something that the file does not say.
"""

from __future__ import annotations

import csv
import ctypes
import dataclasses
import gzip
import io
import json
import re
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np

import clnet
from clnet import Dense, FormatError, Local, Network, Pattern, Scaling, Sparse
from clnet.nn.activations import fann_activation
from clnet.nn.fann_parameters import HEADER, FannParameters
from clnet.nn.optimisers import Adam
from clnet.opencl.store import Store, Timing
from clnet.training.history import TrainingState

from . import mutations

MEMORY_LIMIT = 1 << 20  # what loaders are given
DATA = Path(__file__).parents[1] / "data"
FORMATS = ("auto", "csr", "coo", "ell", "dia", "sell", "hyb", "dense")


@dataclasses.dataclass(frozen=True)
class Parser:
    """A parser, and what it is tested with.

    Attributes
    ----------
    suffix : str
        Of its files.
    seeds : callable
        Returns the contents of undamaged files.
    mutate : callable
        Of `mutations`.
    load : callable
        Reads a file by clnet.
    check : callable
        Compares the content of an accepted file, by the oracle, with what was read;
        returns the samples of data.
    """

    suffix: str
    seeds: Callable[[], list[bytes]]
    mutate: mutations.Mutation
    load: Callable[[Path], Any]
    check: Callable[[bytes, Any], np.ndarray | None]


def same(found: Any, expected: Any) -> None:
    """Assert that two arrays are equal, NaN included."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, f"{found.shape} is not {expected.shape}"
    equal = np.array_equal(found, expected, equal_nan=found.dtype.kind in "fc")
    assert equal, f"{found.ravel()[:9]} is not {expected.ravel()[:9]}"


# --- numbers -------------------------------------------------------------------------

_strtod = ctypes.CDLL(None).strtod
_strtod.restype = ctypes.c_double
_strtod.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p)]


def number(token: bytes) -> float:
    """Return a number as C's strtod reads it to its end."""
    buffer = ctypes.create_string_buffer(token)
    end = ctypes.c_void_p()
    value = _strtod(ctypes.cast(buffer, ctypes.c_char_p), ctypes.byref(end))
    read = (end.value or 0) - ctypes.addressof(buffer)
    assert read == len(token) > 0, f"{token[:40]!r} is no number"
    return float(value)


def numbers(tokens: Sequence[bytes], dtype: str = "float64") -> np.ndarray:
    values = np.array([number(token.strip()) for token in tokens])
    with np.errstate(over="ignore"):
        return values.astype(dtype)


# --- FANN's networks -----------------------------------------------------------------

_ITEM = re.compile(rb"\(([^()]*)\)")


def net_seeds() -> list[bytes]:
    found = [path.read_bytes() for path in sorted(DATA.glob("fann-*.net"))]
    scaled = Network(
        2, [Dense(3, "tanh"), Dense(1)], seed=0, scaling=Scaling(*[[1.0, 2.0]] * 4,
                                                                *[[0.5]] * 4),
        fann=FannParameters(cascade_activation_functions=("tanh", "sin")),
    )
    found.append(saved(scaled, ".net"))
    found.append(saved(Network(1, [Dense(1, "sigmoid")], seed=1), ".net"))
    found.append(
        b"FANN_FLO_1.1\n3 0.700000 1.000000 0 3 5 0.5 0.5 3 4 2 \n0 0 0 3 3 3 0 4 0 \n"
        + b"(0 0.5) (1 -0.25) (2 1.5) " * 3 + b"(3 0.5) (4 0.5) (5 -1) (6 2) "
    )
    return found


def net_check(content: bytes, network: Network) -> None:
    """FANN's layout: neurons in a row, each with its connections."""
    values, sizes, neurons, pairs, scaling = (
        _net_1_1 if content.startswith(b"FANN_FLO_1.1") else _net_2
    )(content)
    shortcut = values.pop("network_type") == 1
    values.pop("connection_rate"), values.pop("num_layers")
    widths = [n - (i == 0 or not shortcut) for i, n in enumerate(sizes)]
    firsts = [sum(sizes[:i]) for i in range(len(sizes))]
    assert network.sizes == tuple(widths)
    at = 0
    for layer in range(1, len(sizes)):
        source = 0 if shortcut else layer - 1
        first, bias = firsts[source], firsts[source] + widths[source]
        n_in = (firsts[layer] if shortcut else bias + 1) - first - 1
        matrix = np.zeros((widths[layer], n_in))
        biases = np.zeros(widths[layer])
        live = np.zeros(matrix.shape, bool)
        for row in range(widths[layer]):
            count, function, steepness = neurons[firsts[layer] + row]
            for neuron, weight in pairs[at : at + int(count)]:
                if neuron == bias:
                    biases[row] = weight
                    continue
                column = int(neuron) - first - (neuron > bias)
                assert 0 <= column < n_in
                assert not live[row, column]
                matrix[row, column], live[row, column] = weight, True
            at += int(count)
            rule, found = fann_activation(int(function)), network.layers[layer - 1]
            names = found.activation
            assert rule.name == (names if isinstance(names, str) else names[row])
            same(np.broadcast_to(found.steepness, widths[layer])[row],
                 rule.fann_factor * steepness)
        same(network.weights(layer - 1), matrix.astype("float32"))
        same(network.biases(layer - 1), biases.astype("float32"))
        rows, columns, _ = network.matrices[layer - 1].entries()
        same(rows * n_in + columns, np.flatnonzero(live))
    assert at == len(pairs)
    for key, value in values.items():
        found = getattr(network.fann, key)
        kind = dict(HEADER)[key]
        same(kind.index(found) if isinstance(kind, tuple) else found, value)
    if scaling is None:
        assert network.scaling is None
    else:
        for key, value in scaling.items():
            same(getattr(network.scaling, key), value)


def _net_2(content: bytes) -> tuple[Any, ...]:
    words = content.split(b"\n", 1)[1]
    head, _, rest = words.partition(b"neurons (")
    neuron_text, _, pair_text = rest.partition(b"connections (")
    values: dict[str, Any] = {}
    fields = dict(re.findall(rb"(\w+)=([^=]*?)(?=\s*\w+=|\s*\Z)", head))
    for key, kind in HEADER:
        if key.encode() not in fields:
            continue
        found = fields[key.encode()].split()
        if kind == "activations":
            values[key] = [fann_activation(int(token)).name for token in found]
        else:
            values[key] = numbers(found) if kind == "e list" else number(found[0])
    sizes = [int(token) for token in fields[b"layer_sizes"].split()]
    scaling = None
    if int(fields.get(b"scale_included", b"0")):
        scaling = {
            key.decode().removeprefix("scale_"): numbers(value.split())
            for key, value in fields.items()
            if key.startswith(b"scale_") and key != b"scale_included"
        }
    neurons = [numbers(item.split(b",")) for item in _ITEM.findall(
        neuron_text.partition(b"=")[2])]
    pairs = [numbers(item.split(b",")) for item in _ITEM.findall(
        pair_text.partition(b"=")[2])]
    return values, sizes, neurons, pairs, scaling


def _net_1_1(content: bytes) -> tuple[Any, ...]:
    words = content.split(b"(")[0].split()[1:]
    depth, rate, connection_rate, kind, *rest = words
    functions, steepness, rest = rest[:2], rest[2:4], rest[4:]
    sizes = [int(token) for token in rest[: int(depth)]]
    counts = numbers(rest[int(depth) :])
    assert len(counts) == sum(sizes)
    neurons, last = [], sum(sizes[:-1])
    for number_, count in enumerate(counts):
        which = number_ >= last
        neurons.append((count, int(functions[which]), number(steepness[which])))
    values = {"learning_rate": number(rate), "connection_rate": number(connection_rate),
              "network_type": int(kind), "num_layers": int(depth)}
    pairs = [numbers(item.split()) for item in _ITEM.findall(content)]
    return values, sizes, neurons, pairs, None


# --- clnet's networks ----------------------------------------------------------------


def saved(network: Network, suffix: str) -> bytes:
    """Return the content of a network's file."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"x{suffix}"
        network.save(path)
        return path.read_bytes()


def safetensors_seeds() -> list[bytes]:
    mask = np.random.default_rng(0).random((5, 4)) < 0.5
    mask[0], mask[:, 0] = True, True
    networks = [
        Network(3, [Dense(4, "relu"), Dense(2, "softmax")], seed=0,
                fann=FannParameters(), scaling=Scaling(*[[1.0] * 3] * 4,
                                                       *[[2.0] * 2] * 4)),
        Network(2, [Dense(3, ["tanh", "sin", "relu"], [1, 2, 3], dropout=0.5),
                    Dense(1)], dtype="float64", seed=0),
        Network(8, [Local(3, "tanh"), Local(2, bias="neuron"), Dense(2, bias=False)],
                seed=0),
        Network(3, [Dense(4), Sparse(3, density=0.5, sources=(0, 1), format="ell"),
                    Dense(2, sources=(0, 2))], seed=0),
    ]
    networks += [
        Network(4, [Sparse(5, "tanh", pattern=Pattern.of(mask), format=name)], seed=0)
        for name in FORMATS
    ]
    return [saved(network, ".safetensors") for network in networks]


def safetensors_check(content: bytes, network: Network) -> None:
    """The tensors by JSON and NumPy; a sparse layer by its CSR arrays."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    description = json.loads(header.pop("__metadata__")["clnet"])
    data = content[8 + length :]
    dtypes = {"F32": "<f4", "F64": "<f8", "I32": "<i4"}
    tensors = {
        name: np.frombuffer(
            data[slice(*entry["data_offsets"])], dtypes[entry["dtype"]]
        ).reshape(entry["shape"])
        for name, entry in header.items()
    }
    assert network.dtype == description["dtype"]
    sizes = [description["n_in"]]
    assert len(description["layers"]) == len(network.layers)
    for k, (entry, layer) in enumerate(
        zip(description["layers"], network.layers, strict=True)
    ):
        read = entry.get("sources") or [k]
        weights, n_in = tensors[f"{2 * k}.weight"], sum(sizes[s] for s in read)
        if entry["type"] == "sparse":
            starts = tensors[f"{2 * k}.weight.crow_indices"].tolist()
            columns = tensors[f"{2 * k}.weight.col_indices"]
            n_out = entry["n_out"]
            rows = [r for r in range(n_out) for _ in range(starts[r], starts[r + 1])]
            entries = network.matrices[k].entries()
            same(entries.rows, rows)
            same(entries.columns, columns)
            same(network.parameters[entries.offsets], weights)
            assert network.matrices[k].n_in == n_in
            form = entry.get("format", "auto")
            expected = {"auto": "csr", "dense": "masked"}.get(form, form)
            if "memory_limit" not in entry or entry["memory_limit"] is None:
                found = network.matrices[k].format.split("+")
                # csr: within the memory limit, which the padding exceeds.
                assert found[0] in (expected, "csr") or form == "hyb"
        else:
            n_out = len(weights)
            assert weights.shape[1] == entry.get("window", n_in)
            same(network.weights(k), weights)
        same(network.biases(k), tensors.get(f"{2 * k}.bias", np.zeros(0)))
        names = entry.get("activation", "identity")
        assert layer.activation == (names if isinstance(names, str) else tuple(names))
        same(layer.steepness, entry.get("steepness", 1.0))
        same(layer.dropout, entry.get("dropout", 0.0))
        sizes.append(n_out)
    assert network.sizes == tuple(sizes)
    assert network.fann_compatible == description["fann_compatible"]
    for name in ("fann", "scaling"):
        part = description[name]
        found = getattr(network, name)
        assert (part is None) == (found is None)
        if part is not None:
            assert json.loads(json.dumps(dataclasses.asdict(found))) == {
                **json.loads(json.dumps(dataclasses.asdict(found))), **part}


# --- data ----------------------------------------------------------------------------


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
    targets = [False] * (len(rows[0]) - 1) + [True]
    try:
        numbers([cell.encode() for cell in rows[0]])
    except AssertionError:
        header = rows.pop(0)
        if outputs is None:
            targets = [bool(re.fullmatch(r"t\d*|target.*", name, re.IGNORECASE))
                       for name in header]
    values = np.array([numbers([cell.encode() for cell in row], "float32")
                       for row in rows])
    same(pair[0], values[:, ~np.array(targets)])
    same(pair[1], values[:, np.array(targets)])
    return pair[0]


def load_table(path: Path) -> Any:
    """A header names the targets; where it does not, the last column is the target."""
    try:
        return clnet.load_data(path), None
    except FormatError as error:
        if "outputs=" not in str(error):
            raise
        return clnet.load_data(path, outputs=1), 1


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


# --- states of trainings, and the store ----------------------------------------------


def state_seeds() -> list[bytes]:
    found = []
    for dtype in ("float32", "float64"):
        with TemporaryDirectory() as folder:
            path = Path(folder) / "x.npz"
            TrainingState(
                repr(Adam()), 3, 12, 7, np.ones(64, dtype), np.zeros((2, 64), dtype),
                ("ell", "auto"),
            ).save(path)
            found.append(path.read_bytes())
    return found


def state_check(content: bytes, state: TrainingState) -> None:
    state.check()
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        for field in dataclasses.fields(state):
            if field.name in arrays or state.formats:  # 0.1.0 wrote no formats
                same(getattr(state, field.name), arrays[field.name])


DEVICE = SimpleNamespace(name="d", platform="p", platform_version="1", driver="1",
                         compute_units=4)


def store_seeds() -> list[bytes]:
    with TemporaryDirectory() as folder:
        store = Store(DEVICE, Path(folder))
        for span in ("a", "b"):
            for key in ("k", "l"):
                store.put(span, key, Timing(1e-6, 2e-6, 0.1))
        store.put_fact("f", True)
        return [store.path.read_bytes()]


def store_mutation(rng: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """Change bytes, or values by SQL."""
    if rng.random() < 0.5:
        return mutations.binary(rng, content, others)
    with TemporaryDirectory(dir=_memory()) as folder:
        path = Path(folder) / "x.sqlite3"
        path.write_bytes(content)
        value = rng.choice((
            None, 0, -1, 1.5, float("inf"), "text", "9" * 400, b"\0\xff", 2**62, "\x1b",
        ))
        column = rng.choice(("seconds", "latency", "spread", "key", "span", "date"))
        statement = rng.choice((
            f"UPDATE OR REPLACE times SET {column} = ?", "UPDATE facts SET value = ?",
            f"UPDATE OR REPLACE times SET {column} = ? WHERE key = 'k'",
        ))
        try:
            with closing(sqlite3.connect(path)) as file, file:
                file.execute(statement, (value,))
        except (sqlite3.DatabaseError, UnicodeError):
            return mutations.binary(rng, content, others)
        return path.read_bytes()


def store_load(path: Path) -> list[Any]:
    """Read, write and read again; what is damaged is set aside."""
    with TemporaryDirectory(dir=_memory()) as folder:
        store = Store(DEVICE, Path(folder))
        shutil.copyfile(path, store.path)
        found = [store.get(span, key) for span in "ab" for key in "kl"]
        fact = store.fact("f")
        assert fact in (None, True, False)
        assert fact is None or isinstance(fact, bool)
        new = Timing(3e-6, 4e-6, 0.2)
        store.put("a", "k", new)
        assert store.get("a", "k") == new
        again = Store(DEVICE, Path(folder))
        # A file of other tables is neither read nor written, nor replaced.
        usable = again._readable and store._writable
        assert again.get("a", "k") == new or not usable
        return found


def store_check(content: bytes, found: list[Any]) -> None:
    for timing in found:
        if timing is not None:
            times = dataclasses.astuple(timing)
            assert all(isinstance(t, float) and 0 <= t < np.inf for t in times)


def _memory() -> str | None:
    """Return a folder in memory, if the system has one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def load_network(path: Path) -> Network:
    return clnet.load(path, memory_limit=MEMORY_LIMIT)


def load_data(path: Path) -> Any:
    return clnet.load_data(path, memory_limit=MEMORY_LIMIT)


PARSERS = {
    "net": Parser(".net", net_seeds, mutations.text, load_network, net_check),
    "safetensors": Parser(".safetensors", safetensors_seeds, mutations.safetensors,
                          load_network, safetensors_check),
    "data": Parser(".data", data_seeds, mutations.text, load_data, data_check),
    "gz": Parser(".data.gz", gz_seeds, mutations.gzipped, load_data, gz_check),
    "csv": Parser(".csv", csv_seeds, mutations.text, load_table, csv_check),
    "npz": Parser(".npz", npz_seeds, mutations.archive, load_data, npz_check),
    "state": Parser(
        ".state.npz", state_seeds, mutations.archive,
        lambda path: TrainingState.load(path, memory_limit=MEMORY_LIMIT), state_check),
    "store": Parser(".sqlite3", store_seeds, store_mutation, store_load, store_check),
}
