"""Files of networks: FANN's, and clnet's safetensors."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import clnet
from clnet import Column, Columns, Dense, Local, Network, Pattern, Scaling, Sparse
from clnet.nn.activations import fann_activation
from clnet.nn.fann_parameters import HEADER, FannParameters

from .oracle import DATA, MEMORY_LIMIT, number, numbers, same

FORMATS = ("auto", "csr", "coo", "ell", "dia", "sell", "hyb", "dense")


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
        Network(3, [Dense(2, "softmax")], seed=0, classes=("no", "yes"),
                columns=Columns((Column("a"), Column("b", ("x", "y"))), ("t",))),
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
            same(network.parameters[entries.slots], weights)
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
        # Names of other libraries are read too, as Tanh.
        lower = [name.lower() for name in np.atleast_1d(names).tolist()]
        assert np.atleast_1d(layer.activation).tolist() == lower
        same(layer.steepness, entry.get("steepness", 1.0))
        same(layer.dropout, entry.get("dropout", 0.0))
        sizes.append(n_out)
    assert network.sizes == tuple(sizes)
    assert network.fann_compatible == description["fann_compatible"]
    assert list(network.classes or ()) == (description.get("classes") or [])
    for name in ("fann", "scaling", "columns"):
        part = description.get(name)
        found = getattr(network, name)
        assert (part is None) == (found is None)
        if part is not None:
            assert includes(json.loads(json.dumps(dataclasses.asdict(found))), part)


def includes(found: Any, part: Any) -> bool:
    """Whether found has all values of part, which may leave keys out."""
    if isinstance(found, dict) and isinstance(part, dict):
        return all(key in found and includes(found[key], part[key]) for key in part)
    if isinstance(found, list) and isinstance(part, list):
        return len(found) == len(part) and all(map(includes, found, part))
    return bool(found == part)


def load_network(path: Path) -> Network:
    return clnet.load(path, memory_limit=MEMORY_LIMIT)
