"""PyTorch's state dicts, in and out, and networks as its modules.

State dicts are read without PyTorch: of tensors, of arrays, or of a ``.safetensors``
file. `pytorch_trace` reads modules.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import safetensors
from numpy.typing import NDArray

from clnet.checks import as_array, installed, is_many
from clnet.errors import (
    FormatError,
    InputError,
    counted,
    quoted,
    reason,
    warn,
)
from clnet.formats.files import as_path, read
from clnet.formats.safetensors import TYPES
from clnet.nn.activations import LEAK, SOFTMAXES, activation, sum_limit
from clnet.nn.aliases import ACTIVATION, ALIASES, PYTORCH
from clnet.nn.conversion import dense
from clnet.nn.layers import Dense

if TYPE_CHECKING:
    from clnet.nn.model import Model

Array = NDArray[Any]
Pair = tuple[Array, Array | None]
"""Weights [n_out, n_in] and biases [n_out] of a linear module."""

MOST_CHAINED = 8  # linear modules of a file whose order their shapes may tell
SOFTPLUS_THRESHOLD = 40.0  # from which PyTorch takes v: softplus differs by 4e-18
SPECIAL = {"GELU": "gelu_tanh", "Hardtanh": "linear_piece"}
"""Functions that modules of PyTorch compute with certain arguments."""
MODULES = {"clip": "Hardtanh", "elu": "ELU", "leaky_relu": "LeakyReLU"}
"""Modules of families, whose arguments are clnet's parameters."""
_BATCH_NORM = ("running_mean", "running_var", "num_batches_tracked")
_TYPES = {
    code: np.dtype(name).newbyteorder("<")
    for name, code in (*TYPES.items(), ("uint16", "BF16"))
}

M = TypeVar("M", bound="Model")


# Out --------------------------------------------------------------------------------


def to_torch(network: Model) -> Any:
    """Return a network as `torch.nn.Sequential`; see `Network.to_torch`."""
    torch = installed("torch", "a module of PyTorch")
    for number, layer in enumerate(network.layers):
        if layer.sources not in (None, (number,)):
            raise InputError(
                f"layer {number} has the sources {quoted(layer.sources)}, but "
                "nn.Sequential is a row: expected layers that read their predecessor"
            )
    if network.scaling is not None:
        warn(
            "PyTorch's module has no scaling: it takes inputs that net.scaling has "
            "scaled, and its outputs are scaled too"
        )
    modules: list[Any] = []
    whole = dense(network, None)
    for number, layer in enumerate(whole.layers):
        name = _common_activation(number, layer.activation)
        steepness = np.asarray(layer.steepness, whole.dtype)
        bias = layer.bias
        linear = torch.nn.utils.skip_init(
            torch.nn.Linear, *reversed(whole.weights(number).shape), bias=bool(bias),
            dtype=getattr(torch, whole.dtype),
        )
        weights = whole.weights(number) * steepness.reshape(-1, 1)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(weights))
            if bias:
                biases = whole.biases(number) * steepness
                linear.bias.copy_(torch.from_numpy(biases))
        act = _module(torch.nn, number, name)
        # Bounded functions that PyTorch has are constant beyond FANN's clip.
        clips = whole.fann_compatible and name not in SOFTMAXES
        if clips and not activation(name).bounded:
            limit = _limit(number, name, steepness)
            act = torch.nn.Sequential(torch.nn.Hardtanh(-limit, limit), act)
        modules += [linear, act]
        if layer.dropout:
            modules.append(torch.nn.Dropout(layer.dropout))
    if isinstance(modules[-1], torch.nn.Identity):
        modules.pop()
    return torch.nn.Sequential(*modules).eval()


def _common_activation(number: int, names: str | tuple[str, ...]) -> str:
    different = {names} if isinstance(names, str) else set(names)
    if len(different) > 1:
        raise InputError(
            f"layer {number} has the activations {', '.join(sorted(different))}, which "
            "no module of PyTorch has beside each other: expected one"
        )
    return different.pop()


def _limit(number: int, name: str, steepness: Array) -> float:
    """Return FANN's limit of a layer's pre-activations, steepness included."""
    if steepness.min() != steepness.max():
        raise InputError(
            f"layer {number} clips the sums of its neurons as FANN does, each by its "
            "steepness: expected one steepness"
        )
    return sum_limit(activation(name), float(steepness.flat[0]))


def _module(nn: Any, number: int, name: str) -> Any:
    """Return the module of an activation."""
    arguments: dict[str, dict[str, Any]] = {
        "gelu_tanh": {"approximate": "tanh"},
        "linear_piece": {"min_val": 0.0, "max_val": 1.0},
        **{key: {"dim": -1} for key in SOFTMAXES},
        "softplus": {"threshold": SOFTPLUS_THRESHOLD},
        "leaky_relu": {"negative_slope": LEAK},
    }
    if name not in SOFTMAXES and (row := activation(name)).parameters:
        return getattr(nn, MODULES[row.family])(*row.parameters)
    for theirs, ours in ALIASES[ACTIVATION][PYTORCH].items():
        if name in (ours, SPECIAL.get(theirs)):
            return getattr(nn, theirs)(**arguments.get(name, {}))
    raise InputError(
        f"layer {number} has the activation {name}, for which PyTorch has no module"
    )


# In ---------------------------------------------------------------------------------


def from_state_dict(
    state: Any, network_type: type[M], activation: str | Sequence[str]
) -> M:
    """Return the network of a state dict; see `Network.from_state_dict`."""
    if isinstance(state, Mapping):
        return _network(network_type, _linears(state, in_order=True), activation)
    path = as_path(state)
    if path.suffix.lower() != ".safetensors":
        raise FormatError(
            f"{path} is no .safetensors file: of a file that torch.save wrote, give "
            "torch.load(path, weights_only=True)"
        )
    tensors = _tensors(path)
    try:
        linears = _linears(tensors, in_order=False)
    except InputError as error:
        raise FormatError(f"{path}: {error}") from None
    return _network(network_type, linears, activation)


def _network(
    network_type: type[M], linears: Sequence[Pair], activation: str | Sequence[str]
) -> M:
    """Return the network of linear modules, each followed by an activation."""
    n = len(linears)
    names: list[Any]
    if not is_many(activation):
        names = [activation] * (n - 1) + ["identity"]
        if n == 1:
            raise InputError(
                f"activation {quoted(activation)} is of hidden layers, and the state "
                f"dict has one layer: give a list of one, as [{quoted(activation)}]"
            )
    else:
        names = list(activation)
    if len(names) != n:
        raise InputError(
            f"{counted(len(names), 'activation')} for {counted(n, 'layer')}: give one "
            "for the hidden layers, or a list of one a layer"
        )
    layers = [
        Dense(len(weights), name, bias=biases is not None)
        for name, (weights, biases) in zip(names, linears, strict=True)
    ]
    network = network_type(
        linears[0][0].shape[1], layers, seed=0,
        dtype=float_type(weights for weights, _ in linears),
    )
    network.set_layers(linears)
    return network


def float_type(arrays: Iterable[Array]) -> str:
    """Return float64 if one of the arrays has it, else float32."""
    return "float64" if any(array.itemsize > 4 for array in arrays) else "float32"


def as_floats(name: str, values: Any) -> Array:
    """Return a parameter as an array; raise InputError unless it is of floats."""
    array = as_array(name, values)
    if array.dtype.kind != "f":
        raise InputError(f"{name} is of {array.dtype}, expected floats")
    return array


def _linears(state: Mapping[Any, Any], *, in_order: bool) -> list[Pair]:
    """Return weights and biases of the linear modules of a state dict, in order."""
    modules: dict[str, dict[str, Array]] = {}
    for name, tensor in state.items():
        if isinstance(tensor, Mapping):
            raise InputError(
                f"{quoted(name)} is a dict, expected a tensor: if it is the state "
                "dict, give it alone"
            )
        module, _, part = name.rpartition(".") if isinstance(name, str) else ("",) * 3
        if part in _BATCH_NORM:
            raise InputError(
                f"{quoted(name)} is of a batch normalisation, whose place and eps no "
                "state dict tells: give the module to Network.from_torch"
            )
        if part not in ("weight", "bias"):
            raise InputError(
                f"{quoted(name)} is no parameter of a linear module, expected names "
                "as '0.weight' and '0.bias'"
            )
        modules.setdefault(module, {})[part] = as_floats(quoted(name), tensor)
    if not modules:
        raise InputError("the state dict is empty, expected names as '0.weight'")
    linears = {name: _pair(name, parts) for name, parts in modules.items()}
    names = list(linears)
    if len({re.sub(r"\d+", "0", name) for name in names}) == 1:
        names.sort(key=lambda name: [*map(int, re.findall(r"\d+", name))])
    elif not in_order:
        names = _chained(linears)
    for before, name in itertools.pairwise(names):
        n_out, n_in = len(linears[before][0]), linears[name][0].shape[1]
        if n_out != n_in:
            raise InputError(
                f"{quoted(name)} takes {counted(n_in, 'input')}, and {quoted(before)} "
                f"before it has {counted(n_out, 'output')}: expected linear modules in "
                "a row"
            )
    return [linears[name] for name in names]


def _pair(name: str, parts: dict[str, Array]) -> Pair:
    """Return the weights and biases of a module, whose shapes are proved."""
    weights, biases = parts.get("weight"), parts.get("bias")
    if weights is None or weights.ndim != 2 or not weights.size:
        shape = "no weight" if weights is None else (
            f"a weight of shape {list(weights.shape)}"
        )
        raise InputError(
            f"module {quoted(name)} has {shape}, expected a linear one's [n_out, n_in]"
        )
    if biases is not None and biases.shape != (len(weights),):
        raise InputError(
            f"module {quoted(name)} has a bias of shape {list(biases.shape)}, expected "
            f"[{len(weights)}]"
        )
    return weights, biases


def _chained(linears: dict[str, Pair]) -> list[str]:
    """Return the one order in which each module takes the outputs before it."""
    orders = [] if len(linears) > MOST_CHAINED else [
        order for order in itertools.permutations(linears)
        if all(len(linears[a][0]) == linears[b][0].shape[1]
               for a, b in itertools.pairwise(order))
    ]
    if len(orders) != 1:
        raise InputError(
            f"neither names nor shapes tell the order of {', '.join(sorted(linears))}, "
            "which a file does not keep: give a dict in the modules' order"
        )
    return list(orders[0])


def _tensors(path: Path) -> dict[str, Array]:
    """Return the tensors of a ``.safetensors`` file that is not clnet's own."""
    content = read(path)
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            if "clnet" in (file.metadata() or {}):
                raise FormatError(
                    f"{path} is a network that clnet wrote: clnet.load reads it, with "
                    "its activations"
                )
        tensors = safetensors.deserialize(content)  # type: ignore[no-untyped-call]
        return {name: _tensor(path, name, fields) for name, fields in tensors}
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(
            f"{path} is not a complete safetensors file: {reason(error)}"
        ) from None


def _tensor(path: Path, name: str, fields: dict[str, Any]) -> Array:
    if fields["dtype"] not in _TYPES:
        raise FormatError(
            f"{path}: {quoted(name)} is of {fields['dtype']}, expected F64, F32, F16 "
            "or BF16"
        )
    flat = np.frombuffer(fields["data"], _TYPES[fields["dtype"]])
    if fields["dtype"] == "BF16":  # the upper half of a float32
        flat = (flat.astype("<u4") << 16).view("<f4")
    return flat.reshape(fields["shape"])
