"""clnet's own network files, ``.safetensors``: without code, exact to the bit.

The tensors have the names and shapes of the state dict of a PyTorch ``Sequential`` of
alternating linear and activation modules (an identity counts as one):

- Layer k, from 0: weights ``"{2k}.weight"`` [n_out, n_in], biases ``"{2k}.bias"``
  [n_out].
- A partially connected layer: weights [entries], the live entries row by row, and, as
  in PyTorch's CSR tensors, ``"{2k}.weight.crow_indices"`` [n_out + 1] and
  ``"{2k}.weight.col_indices"`` [entries].
- A locally connected layer: weights [n_out, window]; biases [1] if its neurons share
  one.

The metadata holds the network's description, as JSON under ``"clnet"``. A checkpoint
holds a training too: JSON under ``"clnet.training"``, and tensors whose names begin
with ``"training."``. A population, likewise, is a part beside its first network.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import safetensors
from numpy.typing import NDArray

from clnet.checks import INT_MAX, as_whole
from clnet.errors import FormatError, InputError, quoted, reason, warn
from clnet.formats.files import check_memory, check_readable, most_memory, write
from clnet.nn.columns import Columns
from clnet.nn.description import as_dtype, check_sources
from clnet.nn.fann_parameters import FannParameters
from clnet.nn.layers import Dense, Layer, Local, Sparse, bias_size, infer_sizes
from clnet.nn.scaling import Scaling
from clnet.nn.storage.formats import DEFAULT_FORMAT, padded_nbytes
from clnet.nn.storage.pattern import Pattern

if TYPE_CHECKING:
    from clnet.nn.model import Model

Array = NDArray[Any]

_KEY = "clnet"
_VERSION = 1
TYPES = {
    "bool": "BOOL", **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
}
"""Names of NumPy's types in files."""
_ALIGNMENT = 8  # bytes of the header's length
# Parts of a file beside its network, and the noun of a file that has one.
PARTS = {"training": "a checkpoint", "population": "a file that Population.save wrote"}
_LAYERS: dict[str, type[Dense] | type[Sparse] | type[Local]] = {
    "dense": Dense, "sparse": Sparse, "local": Local,
}
_IMPLIED = {  # fields that follow from the tensors, or from the layer before
    "sparse": ("pattern", "density", "placement", "seed"), "local": ("n_in",),
}
_OPTIONS = ("dtype", "fann_compatible")


M = TypeVar("M", bound="Model")


def load(path: Path, network_type: type[M], memory_limit: int | None = None) -> M:
    """Return the network of a ``.safetensors`` file that `save` wrote.

    Sparse layers that take more than the memory limit with their padding are stored
    without, and a warning tells so.
    """
    metadata, tensors, size = _read(path)
    prefixes = tuple(f"{part}." for part in PARTS if f"{_KEY}.{part}" in metadata)
    tensors = {
        name: tensor for name, tensor in tensors.items()
        if not name.startswith(prefixes)
    }
    n_in, layers, options = _described(path, metadata[_KEY], tensors)
    # Checked before the network, whose memory a wrong description could make huge.
    arrays = _arrays(path, n_in, layers, options["dtype"], tensors)
    layers = _within_limit(path, n_in, layers, options["dtype"], size, memory_limit)
    network = network_type(n_in, layers, **options)
    network.set_layers(arrays)
    return network


def load_part(path: Path, part: str) -> tuple[Any, dict[str, Array]]:
    """Return one of `PARTS` of a file: what its JSON holds, and its arrays."""
    metadata, tensors, _ = _read(path)
    if f"{_KEY}.{part}" not in metadata:
        raise FormatError(
            f"{path} holds a network without a {part}, expected {PARTS[part]}"
        )
    try:
        described = json.loads(metadata[f"{_KEY}.{part}"])
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"{path} holds a {part} that is not clnet's: {reason(error)}"
        ) from None
    return described, {
        name.removeprefix(f"{part}."): tensor for name, tensor in tensors.items()
        if name.startswith(f"{part}.")
    }


def _read(path: Path) -> tuple[dict[str, str], dict[str, Array], int]:
    """Return the metadata and the tensors of a file of clnet's, and its bytes."""
    check_readable(path)
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if _KEY not in metadata:
                raise FormatError(
                    f"{path} holds no description of a network, expected a file that "
                    "clnet wrote (metadata key 'clnet'): tensors of PyTorch alone are "
                    "read by Network.from_state_dict"
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return metadata, tensors, path.stat().st_size
    except FormatError:
        raise
    # Tensors of a dtype, or of dimensions, that NumPy lacks raise the last three.
    except (
        safetensors.SafetensorError, OSError, TypeError, AttributeError, ValueError
    ) as error:
        raise FormatError(
            f"{path} is not a complete safetensors file: {reason(error)}"
        ) from None


def save(
    network: Model, path: Path,
    **parts: tuple[dict[str, Any], dict[str, Array]],
) -> None:
    """Write a network, its description, and all that it carries beside it."""
    layers = [_layer(path, layer) for layer in network.layers]
    tensors: dict[str, Array] = {}
    for number, (layer, matrix) in enumerate(
        zip(network.layers, network.matrices, strict=True)
    ):
        weight, bias = _names(number)
        if isinstance(layer, Sparse):
            rows, columns, _ = matrix.entries()
            starts = np.searchsorted(rows, np.arange(matrix.n_out + 1))
            tensors[weight] = matrix.live_values(network.parameters)
            for name, indices in zip(_index_names(number), (starts, columns),
                                     strict=True):
                tensors[name] = indices.astype(np.int32)
        else:
            tensors[weight] = np.ascontiguousarray(network.weights(number))
        if layer.bias:
            tensors[bias] = np.ascontiguousarray(network.biases(number))
    description = {
        "version": _VERSION,
        "n_in": network.n_in,
        **{name: getattr(network, name) for name in _OPTIONS},
        "layers": layers,
        **{
            name: None if part is None else dataclasses.asdict(part)
            for name, part in (("fann", network.fann), ("scaling", network.scaling))
        },
    }
    if network.classes is not None:
        description["classes"] = network.classes
    if network.columns is not None:
        description["columns"] = network.columns.as_dict()
    metadata = {_KEY: json.dumps(description, default=lambda number: number.item())}
    for part, (described, arrays) in parts.items():
        metadata[f"{_KEY}.{part}"] = json.dumps(described)
        tensors |= {
            f"{part}.{name}": np.ascontiguousarray(array)
            for name, array in arrays.items()
        }
    write(path, _encoded(tensors, metadata))


def _encoded(
    tensors: Mapping[str, Array], metadata: dict[str, str]
) -> Iterator[bytes]:
    """Yield the parts of a safetensors file.

    The library's writer runs without Python's lock: a daemon thread in it when the
    interpreter ends aborts the process. Large types come first, so that all tensors are
    aligned.
    """
    header: dict[str, Any] = {"__metadata__": metadata}
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    end = 0
    for name in order:
        tensor = tensors[name]
        if tensor.dtype.name not in TYPES:
            raise TypeError(f"an array is of type {tensor.dtype}")
        begin, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": TYPES[tensor.dtype.name], "shape": tensor.shape,
            "data_offsets": (begin, end),
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    yield len(text).to_bytes(8, "little")
    yield text
    for name in order:
        tensor = tensors[name]
        yield tensor.astype(tensor.dtype.newbyteorder("<"), copy=False).tobytes()


def check(network: Model, path: Path) -> None:
    """Raise the FormatError of `save` if the type of a layer is unknown."""
    for layer in network.layers:
        _layer(path, layer)


def _names(number: int) -> tuple[str, str]:
    return f"{2 * number}.weight", f"{2 * number}.bias"


def _index_names(number: int) -> tuple[str, str]:
    weight, _ = _names(number)
    return f"{weight}.crow_indices", f"{weight}.col_indices"


def _layer(path: Path, layer: Any) -> dict[str, Any]:
    for name, layer_type in _LAYERS.items():
        if isinstance(layer, layer_type):
            names = (field.name for field in dataclasses.fields(layer_type))
            fields = {field: getattr(layer, field) for field in names}
            for field in _IMPLIED.get(name, ()):
                del fields[field]
            return {"type": name, **fields}
    raise FormatError(
        f"cannot write {path}: a layer is {type(layer).__name__}, expected one of "
        f"{', '.join(_LAYERS)}"
    )


def _described(
    path: Path, text: str, tensors: dict[str, Array]
) -> tuple[int, list[Layer], dict[str, Any]]:
    """Return the inputs, layers and options of `Network` of a description.

    Pops the patterns of partially connected layers from the tensors.
    """
    try:
        description = json.loads(text)
        version = description.pop("version")
        if version != _VERSION:
            raise FormatError(
                f"{path} has a description of version {quoted(version)}, expected "
                f"{_VERSION}"
            )
        parts: dict[str, Any] = {}
        for name, part_type in (("fann", FannParameters), ("scaling", Scaling)):
            described = description.pop(name)
            parts[name] = None if described is None else part_type(**described)
        parts["classes"] = description.pop("classes", None)
        described = description.pop("columns", None)
        parts["columns"] = None if described is None else Columns(**described)
        n_in = as_whole("n_in", description.pop("n_in"), most=INT_MAX)
        sizes, layers = [n_in], []
        made = _made(description.pop("layers"), sizes, tensors)
        for layer in infer_sizes(n_in, made):
            layers.append(layer)
            sizes.append(layer.n_out)  # which the next layer's pattern is checked by
        check_sources(layers)
        options = {name: description.pop(name) for name in _OPTIONS}
        as_dtype(options["dtype"])
        if not isinstance(options["fann_compatible"], bool):
            raise TypeError("fann_compatible is neither true nor false")
        if description:
            raise KeyError(f"unknown {min(description)}")
    except FormatError:
        raise
    except (
        InputError, ValueError, TypeError, LookupError, AttributeError, RecursionError
    ) as error:
        raise FormatError(
            f"{path} holds a description that is not clnet's: "
            f"{type(error).__name__}: {reason(error)}"
        ) from None
    return n_in, layers, {**options, **parts}


def _made(
    described: list[dict[str, Any]], sizes: Sequence[int], tensors: dict[str, Array]
) -> Iterator[Layer]:
    """Yield the layer of each description; sizes are those of the values so far."""
    for number, fields in enumerate(described):
        make = _LAYERS[fields.pop("type")]
        if make is Sparse:
            read = fields["sources"] or [number]
            fields["pattern"] = _pattern(
                fields["n_out"], sum(sizes[source] for source in read),
                *(tensors.pop(name) for name in _index_names(number)),
            )
        yield make(**fields)


def _pattern(n_out: int, n_in: int, starts: Array, columns: Array) -> Pattern:
    """Return the pattern of a CSR matrix, whose indices are proved to be in range."""
    if {starts.dtype.name, columns.dtype.name} != {"int32"}:
        raise ValueError("crow_indices and col_indices must be int32")
    starts = starts.astype(np.int64)  # whose differences do not overflow
    if (
        starts.shape != (n_out + 1,) or columns.ndim != 1
        or starts[0] != 0 or starts[-1] != columns.size or (np.diff(starts) < 0).any()
    ):
        raise ValueError(f"wrong crow_indices for {quoted(n_out)} rows")
    rows = np.repeat(np.arange(n_out), np.diff(starts))
    return Pattern(n_out, n_in, rows, columns)


def _within_limit(
    path: Path, n_in: int, layers: list[Layer], dtype: str, size: int,
    memory_limit: int | None,
) -> list[Layer]:
    """Return the layers, without padding if it exceeds the memory limit.

    A few bytes may describe much padding. The default format has none: its bytes are
    about those of the tensors, so that every file that `save` writes can be loaded.
    """
    limit, unpadded = most_memory(size, memory_limit), list(layers)
    sizes = [n_in, *(layer.n_out for layer in layers)]
    needed = least = 0
    for number, layer in enumerate(layers):
        if not isinstance(layer, Sparse):
            continue
        blocks = layer.pattern.blocks(
            [sizes[source] for source in layer.sources or (number,)]
        )
        padded, default = (
            padded_nbytes(blocks, form, np.dtype(dtype).itemsize)
            for form in (layer.format, DEFAULT_FORMAT)
        )
        if default < padded:
            unpadded[number] = dataclasses.replace(layer, format=DEFAULT_FORMAT)
        needed, least = needed + padded, least + min(padded, default)
    if needed <= limit:
        return layers
    check_memory(path, least, size, memory_limit)
    warn(
        f"{path}: sparse layers take {needed} bytes with their padding, and are stored "
        f"as {DEFAULT_FORMAT}: a memory limit above {limit} keeps their formats"
    )
    return unpadded


def _arrays(
    path: Path,
    n_in: int,
    layers: Sequence[Layer],
    dtype: str,
    tensors: dict[str, Array],
) -> list[tuple[Array, Array | None]]:
    """Return weights and biases of every layer; there must be no other tensors."""
    arrays: list[tuple[Array, Array | None]] = []
    sizes = [n_in, *(layer.n_out for layer in layers)]
    for number, layer in enumerate(layers):
        weight, bias = _names(number)
        read = layer.sources or (number,)
        shapes = {weight: [layer.n_out, sum(sizes[source] for source in read)]}
        if isinstance(layer, Sparse) and layer.pattern is not None:
            shapes = {weight: [len(layer.pattern)]}
        if isinstance(layer, Local):
            shapes = {weight: [layer.n_out, layer.window]}
        if layer.bias:
            shapes[bias] = [bias_size(layer)]
        pair: list[Array] = []
        for name, shape in shapes.items():
            tensor = tensors.pop(name, None)
            described = "missing" if tensor is None else (
                f"{tensor.dtype} {quoted([*tensor.shape])}")
            if tensor is None or described != f"{dtype} {shape}":
                raise FormatError(
                    f"{path}: tensor {name!r} is {described}, expected {dtype} {shape}"
                )
            pair.append(tensor)
        arrays.append((pair[0], pair[1] if layer.bias else None))
    if tensors:
        raise FormatError(
            f"{path} holds the tensor {quoted(min(tensors))}, which its description "
            "does not have"
        )
    return arrays
