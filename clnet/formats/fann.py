"""FANN's network files, ``.net``: read in versions 2.1, 2.0 and 1.1, written in 2.1.

Floating-point networks, layered, sparse or shortcut; fixed-point ones are refused. A
network that FANN wrote is written again byte for byte. Sparse networks are the
exception: a neuron's connections are sorted, and the connection rate is the mean over
all layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from clnet.errors import FormatError, warn
from clnet.formats.fann_structure import (
    Connections,
    Structure,
    check_incoming,
    connections_text,
    incoming,
    read_connections,
    structure_of,
)
from clnet.formats.files import read, write
from clnet.formats.numbers import Items, Text
from clnet.nn.activations import (
    ACTIVATIONS,
    SOFTMAXES,
    Activation,
    activation,
    each_activation,
    fann_activation,
)
from clnet.nn.fann_parameters import HEADER, OPTIONAL, FannParameters, Kind
from clnet.nn.layers import Dense, Layer, Sparse
from clnet.nn.scaling import SCALES, Scaling

if TYPE_CHECKING:
    from clnet.nn.model import Model

__all__ = ["FannParameters", "check", "load", "save"]

Array = NDArray[Any]

_VERSIONS = ("FANN_FLO_2.1", "FANN_FLO_2.0", "FANN_FLO_1.1")
_NEURONS = "neurons (num_inputs, activation_function, activation_steepness)"
_CONNECTIONS = "connections (connected_to_neuron, weight)"
_FUNCTION_NUMBERS = [str(row.fann) for row in ACTIVATIONS.values()
                     if row.fann is not None]

M = TypeVar("M", bound="Model")


def load(path: Path, network_type: type[M], dtype: str | None = None) -> M:
    """Return the network of a ``.net`` file."""
    text = Text(path, read(path))
    version = _version(text)
    read_version = _read_1_1 if version == "FANN_FLO_1.1" else _read_2
    return read_version(text, version, network_type, dtype or "float32")


def save(network: Model, path: Path) -> None:
    """Write a network as FANN_FLO_2.1.

    Training parameters that the network lacks get FANN's defaults. FANN clips every
    pre-activation, and so does the network read from the file. Initialisers and dropout
    are left out: FANN does not have them, and they do not change the outputs. So are
    the names of columns and classes, and a warning tells so.
    """
    structure, neurons = _converted(network, path)
    write(path, _text_2_1(network, structure, neurons))
    left = [
        "classes" * (network.classes not in (None, (*range(max(network.n_out, 2)),))),
        "columns" * (network.columns is not None),
    ]
    if any(left):
        warn(
            f"{path} holds no names of {' and '.join(filter(None, left))}, for which "
            "FANN has no place: a .safetensors file does"
        )


def check(network: Model, path: Path) -> None:
    """Raise the FormatError of `save` if FANN cannot express the network."""
    _converted(network, path)


# --- reading -------------------------------------------------------------------------


def _version(text: Text) -> str:
    """Read the first line and return the version."""
    line = text.text.split(b"\n", 1)[0]
    for version in _VERSIONS:
        if text.text.startswith(f"{version}\n".encode()):
            text.at = len(version) + 1
            return version
    if line.startswith(b"FANN_FIX_"):
        raise text.unsupported("a fixed-point network", "floating-point ones")
    raise text.error(f"{_VERSIONS[0]} (or 2.0, 1.1) alone in the first line", at=0)


def _read_2(text: Text, version: str, network_type: type[M], dtype: str) -> M:
    """Return the network of a file of version 2.0 or 2.1."""
    header: dict[str, Any] = {}
    for key, value_kind in HEADER:
        value = _value(text, key, value_kind)
        if value is not None:
            header[key] = value
        _check_kind(text, key, header)
    text.key("layer_sizes")
    structure = _structure(text, header)
    scaling = _scaling(text, structure) if version == "FANN_FLO_2.1" else None
    text.key(_NEURONS)
    neurons, incoming = _neurons(text, structure, dtype)
    text.key(_CONNECTIONS)
    layers = read_connections(text, structure, incoming, Items("(n,n)"), dtype)
    fann = FannParameters(**header)
    return _network(network_type, structure, neurons, layers, fann, scaling, dtype)


def _read_1_1(text: Text, _: str, network_type: type[M], dtype: str) -> M:
    """Return the network of a file of version 1.1, a format without keys."""
    header: dict[str, Any] = {"num_layers": text.whole("num_layers")}
    learning_rate = text.real("learning_rate")
    for key, value_kind in HEADER:
        if key in ("connection_rate", "network_type"):
            header[key] = _unkeyed(text, key, value_kind)
            _check_kind(text, key, header)
    groups = ("hidden neurons", "output neurons")
    functions = [_function(text, f"activation of the {group}") for group in groups]
    steepness = [_steepness(text, f"steepness of the {group}") for group in groups]
    structure = _structure(text, header)
    counts = Items("n")
    start, stop = text.at, text.find(b"(")
    rows = text.items(
        counts, sum(structure.sizes), stop, "number of connections", "(source weight)",
        dtype,
    )
    check_incoming(text, counts, start, rows[:, 0], structure)
    hidden, output = (
        _of_fann([row], [s]) for row, s in zip(functions, steepness, strict=True)
    )
    neurons = [hidden] * (len(structure.sizes) - 2) + [output]
    layers = read_connections(text, structure, rows[:, 0], Items("(nn)"), dtype)
    fann = FannParameters(learning_rate=learning_rate)
    return _network(network_type, structure, neurons, layers, fann, None, dtype)


def _value(text: Text, key: str, form: Kind) -> Any:
    """Read an entry and return its value; None: it is optional and missing."""
    if form in ("activations", "e list"):
        text.key(f"{key}_count")
        count = text.whole(f"{key}_count")
        text.key(key)
        return tuple(
            _function(text, f"{key} {number} of {count}").name
            if form == "activations"
            else text.real(f"{key} {number} of {count}")
            for number in range(1, count + 1)
        )
    if key in OPTIONAL and not text.has(key):
        return None
    if key not in OPTIONAL:
        text.key(key)
    return _unkeyed(text, key, form)


def _unkeyed(text: Text, key: str, form: Kind) -> Any:
    if form in ("f", "e"):
        return text.real(key)
    if form == "u":
        return text.whole(key)
    return form[text.choice(key, [str(number) for number in range(len(form))])]


def _function(text: Text, what: str) -> Activation:
    number = _FUNCTION_NUMBERS[text.choice(what, _FUNCTION_NUMBERS)]
    return fann_activation(int(number))


def _steepness(text: Text, what: str) -> float:
    start = text.at
    value = text.real(what)
    if not np.isfinite(value):
        raise text.error(f"{what}, a finite number", start)
    return value


def _check_kind(text: Text, key: str, header: dict[str, Any]) -> None:
    """Refuse unsupported kinds of networks, after `key` was read into the header."""
    rate = header.get("connection_rate", 1)
    if key == "connection_rate" and not rate > 0:
        raise text.unsupported(f"a connection_rate of {rate:g}", "rates above 0")
    if key == "network_type" and header[key] == "shortcut" and rate < 1:
        raise text.unsupported("a sparse shortcut network", "fully connected ones")


def _structure(text: Text, header: dict[str, Any]) -> Structure:
    """Read the layers' sizes; return the structure, and pop its header entries."""
    depth = header.pop("num_layers")
    rate, shortcut = header.pop("connection_rate"), header.pop("network_type")
    if depth < 2:
        raise text.error(f"num_layers of at least 2, not {depth}")
    sizes: list[int] = []
    for number in range(1, depth + 1):
        start = text.at
        sizes.append(text.whole(f"size {number} of {depth} layers"))
        biased = number == 1 or shortcut != "shortcut"
        if sizes[-1] < 1 + biased:
            and_bias = " and the bias" if biased else ""
            raise text.error(f"a layer of at least one neuron{and_bias}", start)
    return Structure(tuple(sizes), shortcut == "shortcut", min(rate, 1.0))


def _scaling(text: Text, structure: Structure) -> Scaling | None:
    text.key("scale_included")
    if not text.choice("scale_included", ["0", "1"]):
        return None
    rows: dict[str, tuple[float, ...]] = {}
    for name in SCALES:
        key = f"scale_{name}"
        text.key(key)
        n = structure.widths[0 if name.endswith("_in") else -1]
        rows[name] = tuple(text.real(f"{key} {i} of {n}") for i in range(1, n + 1))
    return Scaling(**rows)


_Neurons = tuple[tuple[str, ...], tuple[float, ...]]
"""A layer's activations and clnet's steepnesses, one for each neuron."""


def _of_fann(rows: Sequence[Activation], steepness: Sequence[float]) -> _Neurons:
    """Return a layer's neurons from FANN's steepnesses."""
    steep = (row.fann_factor * s for row, s in zip(rows, steepness, strict=True))
    return tuple(row.name for row in rows), tuple(steep)


def _layer(
    neurons: _Neurons, connections: Connections, sources: tuple[int, ...] | None
) -> Layer:
    """Return a layer; an activation or steepness of all neurons is given once."""
    names, steep = neurons
    options: dict[str, Any] = {
        "n_out": len(connections.biases), "initialiser": "fann", "sources": sources,
        "activation": names[0] if len(set(names)) == 1 else names,
        "steepness": steep[0] if len(set(steep)) == 1 else steep,
    }
    pattern = connections.pattern
    if pattern is None or pattern.density == 1:
        return Dense(**options)
    return Sparse(**options, pattern=pattern)


def _neurons(
    text: Text, structure: Structure, dtype: str
) -> tuple[list[_Neurons], Array]:
    """Read the neurons; return the layers after the input, and all in-degrees."""
    items = Items("(n,n,n)")
    start, stop = text.at, text.find(f"{_CONNECTIONS}=".encode())
    what = "neuron (num_inputs, activation_function, activation_steepness)"
    count = sum(structure.sizes)
    rows = text.items(items, count, stop, what, f"{_CONNECTIONS}=…", dtype)
    check_incoming(text, items, start, rows[:, 0], structure)
    # NumPy's isin is C++, in which a daemon thread aborts a process that ends.
    numbers = [int(number) for number in _FUNCTION_NUMBERS]
    known = (rows[:, 1, np.newaxis] == numbers).any(axis=1)
    wrong = np.flatnonzero(~known | ~np.isfinite(rows[:, 2]))
    if wrong.size:
        at = items.offset(text.text, start, wrong[0])
        raise text.error(
            f"neuron {wrong[0]} with an activation from {_FUNCTION_NUMBERS[0]} to "
            f"{_FUNCTION_NUMBERS[-1]} and a finite steepness", at
        )
    layers: list[_Neurons] = []
    for number in structure.layers:
        first = structure.firsts[number]
        layer = rows[first : first + structure.widths[number]]  # without the bias
        functions = [fann_activation(int(number)) for number in layer[:, 1]]
        layers.append(_of_fann(functions, layer[:, 2].tolist()))
    return layers, rows[:, 0]


def _network(
    network_type: type[M],
    structure: Structure,
    neurons: Sequence[_Neurons],
    connections: Sequence[Connections],
    fann: FannParameters,
    scaling: Scaling | None,
    dtype: str,
) -> M:
    layers = [
        _layer(described, connected, structure.sources(number))
        for number, described, connected in zip(
            structure.layers, neurons, connections, strict=True
        )
    ]
    network = network_type(
        structure.widths[0], layers, dtype=dtype, fann_compatible=True, fann=fann,
        scaling=scaling,
    )
    network.set_layers(
        (connected.weights.reshape(layer.n_out, -1) if isinstance(layer, Dense)
         else connected.weights, connected.biases)
        for layer, connected in zip(layers, connections, strict=True)
    )
    return network


# --- writing -------------------------------------------------------------------------


_FannNeurons = tuple[list[int], list[float]]
"""A layer's activation numbers and steepnesses in FANN's terms, one for each neuron."""


def _converted(network: Model, path: Path) -> tuple[Structure, list[_FannNeurons]]:
    """Return the structure and the neurons in FANN's terms, or raise FormatError."""
    structure = structure_of(network, path)
    neurons: list[_FannNeurons] = []
    for number, layer in enumerate(network.layers):
        names = each_activation(layer.activation)
        rows = [activation(name) for name in names if name not in SOFTMAXES]
        functions = [row.fann for row in rows if row.fann is not None]
        if len(functions) < len(names):
            missing = next(name for name in names if name in SOFTMAXES
                           or activation(name).fann is None)
            raise FormatError(
                f"cannot write {path}: layer {number} has the activation {missing!r}, "
                "which FANN does not have"
            )
        steepness = np.broadcast_to(layer.steepness, layer.n_out) / np.asarray(
            [row.fann_factor for row in rows])
        same = layer.n_out // len(functions)  # one for all, or one a neuron
        neurons.append((functions * same, steepness.tolist()))
    return structure, neurons


def _text_2_1(
    network: Model, structure: Structure, neurons: Sequence[_FannNeurons]
) -> Iterator[bytes]:
    """Yield the file's bytes in FANN's own layout."""
    real = np.dtype(network.dtype).type
    fann = network.fann or FannParameters()
    derived = {
        "num_layers": len(structure.sizes),
        "connection_rate": structure.rate,
        "network_type": "shortcut" if structure.shortcut else "layered",
    }
    lines = [_VERSIONS[0]]
    for key, form in HEADER:
        value = derived[key] if key in derived else getattr(fann, key)
        lines += _entry(key, form, value, real)
    lines.append("layer_sizes=" + "".join(f"{size} " for size in structure.sizes))
    scaling = network.scaling
    lines.append(f"scale_included={int(scaling is not None)}")
    if scaling is not None:
        for name in SCALES:
            values = getattr(scaling, name)
            lines.append(f"scale_{name}=" + "".join(f"{_f(v)} " for v in values))
    yield ("\n".join(lines) + "\n").encode()
    yield f"{_NEURONS}=".encode()
    yield (f"(0, 0, {0:.20e}) " * structure.sizes[0]).encode()
    for number, (functions, steepnesses) in zip(
        structure.layers, neurons, strict=True
    ):
        yield "".join(
            f"({count}, {function}, {real(steepness):.20e}) "
            for count, function, steepness in zip(
                incoming(network, structure, number), functions, steepnesses,
                strict=True,
            )
        ).encode()
        if not structure.shortcut:
            # FANN gives the bias the activation that was set for the whole layer.
            common = functions[0] if len(set(functions)) == 1 else 0
            yield f"(0, {common}, {0:.20e}) ".encode()
    yield f"\n{_CONNECTIONS}=".encode()
    yield from connections_text(network, structure)
    yield b"\n"


def _entry(key: str, form: Kind, value: Any, real: Any) -> list[str]:
    """Return the lines of an entry of the header."""
    if form in ("activations", "e list"):
        texts = (f"{activation(v).fann} " if form == "activations" else
                 f"{real(v):.20e} " for v in value)
        return [f"{key}_count={len(value)}", f"{key}=" + "".join(texts)]
    if form == "f":
        return [f"{key}={_f(value)}"]
    if form == "e":
        return [f"{key}={real(value):.20e}"]
    return [f"{key}={value if form == 'u' else form.index(value)}"]


def _f(value: float) -> str:
    """Return FANN's six decimals, or more if six do not determine the float32."""
    rounded = np.float32(value)
    six = f"{rounded:f}"
    return six if np.isnan(rounded) or np.float32(six) == rounded else str(rounded)
