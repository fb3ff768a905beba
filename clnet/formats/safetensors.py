"""clnet's own network files, ``.safetensors``: no code in them, exact to the bit.

Tensors are named and shaped as in the state dict of a PyTorch ``Sequential`` in which
linear and activation modules alternate, an identity counting as one: layer k, from 0,
has its weights [n_out, n_in] under ``"{2k}.weight"`` and its biases [n_out] under
``"{2k}.bias"``. The network's description stands in the metadata, as JSON under
``"clnet"``.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from clnet.checks import check_count
from clnet.errors import FormatError, InputError
from clnet.formats.fann_parameters import FannParameters
from clnet.formats.files import check_readable, write
from clnet.network import Dense, Network
from clnet.scaling import Scaling

Array = NDArray[Any]

_KEY = "clnet"
_VERSION = 1
_LAYERS = {"dense": Dense}
_OPTIONS = ("dtype", "fann_compatible")


def load(path: Path) -> Network:
    """Return the network of a ``.safetensors`` file that `save` wrote.

    Raises
    ------
    FormatError
        If the file is unreadable, truncated, not clnet's, of a later version, or its
        tensors are not those that its description asks for.
    """
    check_readable(path)
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if _KEY not in metadata:
                raise FormatError(
                    f"{path} holds no description of a network, expected a file that "
                    "clnet wrote (metadata key 'clnet')"
                )
            n_in, layers, options = _described(path, metadata[_KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError, TypeError, AttributeError) as error:
        raise FormatError(f"{path} is no whole safetensors file: {error}") from None
    # Before the network, whose memory a wrong description could make huge.
    arrays = _arrays(path, n_in, layers, options["dtype"], tensors)
    try:
        network = Network(n_in, layers, **options)
    except InputError as error:
        raise FormatError(f"{path} describes no network: {error}") from None
    for number, layer in enumerate(arrays):
        network.set_layer(number, *layer)
    return network


def save(network: Network, path: Path) -> None:
    """Write a network, its description, and FANN's parameters and scaling if any.

    Raises
    ------
    FormatError
        If a layer is of a kind that the format does not know, or the file cannot be
        written.
    """
    tensors: dict[str, Array] = {}
    for number in range(len(network.layers)):
        weight, bias = _names(number)
        tensors[weight] = np.ascontiguousarray(network.weights(number))
        if network.layers[number].bias:
            tensors[bias] = np.ascontiguousarray(network.biases(number))
    description = {
        "version": _VERSION,
        "n_in": network.n_in,
        **{name: getattr(network, name) for name in _OPTIONS},
        "layers": [_layer(path, layer) for layer in network.layers],
        **{
            name: None if part is None else dataclasses.asdict(part)
            for name, part in (("fann", network.fann), ("scaling", network.scaling))
        },
    }
    metadata = {_KEY: json.dumps(description, default=lambda number: number.item())}
    write(path, [safetensors.numpy.save(tensors, metadata)])


def _names(number: int) -> tuple[str, str]:
    return f"{2 * number}.weight", f"{2 * number}.bias"


def _layer(path: Path, layer: Any) -> dict[str, Any]:
    for name, kind in _LAYERS.items():
        if isinstance(layer, kind):
            return {"type": name, **dataclasses.asdict(layer)}
    raise FormatError(
        f"cannot write {path}: a layer is {type(layer).__name__}, expected one of "
        f"{', '.join(_LAYERS)}"
    )


def _described(path: Path, text: str) -> tuple[int, list[Dense], dict[str, Any]]:
    """Return the inputs, layers and options of `Network` that a description tells."""
    try:
        description = json.loads(text)
        version = description.pop("version")
        if version != _VERSION:
            raise FormatError(
                f"{path} has a description of version {version!r}, expected {_VERSION}"
            )
        parts: dict[str, Any] = {}
        for name, kind in (("fann", FannParameters), ("scaling", Scaling)):
            found = description.pop(name)
            parts[name] = None if found is None else kind(**found)
        layers = [
            _LAYERS[layer.pop("type")](**layer) for layer in description.pop("layers")
        ]
        n_in = description.pop("n_in")
        check_count("n_in", n_in)
        options = {name: description.pop(name) for name in _OPTIONS}
        if description:
            raise KeyError(f"unknown {min(description)}")
    except FormatError:
        raise
    except (InputError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise FormatError(
            f"{path} holds a description that is not clnet's: "
            f"{type(error).__name__}: {error}"
        ) from None
    return n_in, layers, {**options, **parts}


def _arrays(
    path: Path, n_in: int, layers: list[Dense], dtype: str, tensors: dict[str, Array]
) -> list[list[Array]]:
    """Return weights and biases of every layer, if exactly those are the tensors."""
    arrays: list[list[Array]] = []
    for number, layer in enumerate(layers):
        storage = layer.storage(n_in)
        n_in = storage.n_out
        weight, bias = _names(number)
        shapes = {weight: [storage.n_out, storage.n_in]}
        if layer.bias:
            shapes[bias] = [storage.n_out]
        arrays.append([])
        for name, shape in shapes.items():
            tensor = tensors.pop(name, None)
            found = "missing" if tensor is None else f"{tensor.dtype} {[*tensor.shape]}"
            if tensor is None or found != f"{dtype} {shape}":
                raise FormatError(
                    f"{path}: tensor {name!r} is {found}, expected {dtype} {shape}"
                )
            arrays[-1].append(tensor)
    if tensors:
        raise FormatError(
            f"{path} holds the tensor {min(tensors)!r}, which its description does not "
            "tell of"
        )
    return arrays
