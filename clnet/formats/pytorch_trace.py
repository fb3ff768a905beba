"""Modules of PyTorch as networks, by the graph that `torch.fx` traces.

Each node of the graph is read once, in order, and emits `pytorch_layers`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from operator import attrgetter
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from clnet.errors import InputError, quoted, reason
from clnet.formats.pytorch import as_floats, float_type, import_torch
from clnet.formats.pytorch_layers import ELSEWHERE, Emission, Traced
from clnet.nn.activations import LEAK, SOFTMAXES, with_parameters
from clnet.nn.aliases import ACTIVATION, ALIASES, PYTORCH

if TYPE_CHECKING:
    from clnet.nn.model import Model

Array = NDArray[Any]
M = TypeVar("M", bound="Model")

PROBES = 64  # random inputs, for which the network is compared with the module
ROUNDINGS = 1e4  # by which outputs may differ; others differ by far more
TAKEN = (
    "expected Linear, BatchNorm1d, Dropout, Flatten, Identity or an activation that "
    f"clnet has; {ELSEWHERE}"
)
# Arguments of activations, in their order, each with the values that are clnet's.
_ARGUMENTS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "gelu": {"approximate": lambda value: value == "none"},
    "softplus": {
        "beta": lambda value: value == 1,
        "threshold": lambda value: value >= 20,  # PyTorch's own, within 2e-9
    },
    **{name: {"dim": lambda value: value in (None, 1, -1)} for name in SOFTMAXES},
}
# Functions whose arguments are clnet's parameters: the family, and PyTorch's defaults.
_FAMILIES: dict[str, tuple[str, dict[str, float]]] = {
    "clamp": ("clip", {"min": -math.inf, "max": math.inf}),
    "elu": ("elu", {"alpha": 1.0}),
    "leaky_relu": ("leaky_relu", {"negative_slope": LEAK}),
    "linear_piece_symmetric": ("clip", {"min_val": -1.0, "max_val": 1.0}),
}
_SAME = ("Identity", "contiguous", "float", "double")
_ARITHMETIC = ("add", "sub", "mul", "div", "neg")
_OPERATIONS = (*_ARITHMETIC, "cat", "dropout", "flatten", "getattr", "getitem",
               "linear", "matmul", "reshape", "size")
_IN_PLACE = {"iadd": "add", "isub": "sub", "imul": "mul", "itruediv": "div"}
_SYNONYMS = {**_IN_PLACE, "truediv": "div", "concat": "cat", "concatenate": "cat",
             "view": "reshape"}
_FLATTEN = {"start_dim": 1, "end_dim": -1}


class _Size:
    """The sizes of a tensor, or one of them."""


def own_activation(name: str) -> str | None:
    """Return clnet's name of PyTorch's module or function, if there is one."""
    names = {**ALIASES[ACTIVATION][PYTORCH], "clamp": "clamp", "clip": "clamp"}
    return names.get(name, name if name in names.values() else None)


def _arguments(name: str) -> tuple[str, ...]:
    """Return the names of a function's arguments, in their order."""
    return tuple(_FAMILIES[name][1] if name in _FAMILIES else _ARGUMENTS.get(name, ()))


def _called(node: Any) -> str:
    """Return the name of the function or method that a node calls; "": unknown."""
    if not node.args or node.op not in ("call_function", "call_method"):
        return ""
    name = node.target if node.op == "call_method" else node.target.__name__
    if isinstance(node.target, FunctionType) and not (
        node.target.__module__.startswith("torch.")
    ):
        return ""  # of the user, and called as PyTorch's by chance
    name = _SYNONYMS.get(name, name)
    known = name in _OPERATIONS or name in _SAME or own_activation(name)
    return name if known else ""


def _is_size(node: Any) -> bool:
    """Return whether a node reads a tensor's sizes alone."""
    return _called(node) == "size" or (
        _called(node) == "getattr" and node.args[1] == "shape"
    )


def from_torch(
    module: Any, network_type: type[M], outputs: Callable[[M, Array], Array]
) -> M:
    """Return the network of a module; see `Network.from_torch`.

    `outputs` computes a network for inputs [batch, n_in]. They are compared with the
    module's for random ones: a graph does not tell of values that ``+=`` changes.
    """
    torch = import_torch()
    module = getattr(module, "_orig_mod", module)  # of torch.compile
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"module must be a torch.nn.Module, not {quoted(module)}")
    for name, child in module.named_modules():
        if child._forward_hooks or child._forward_pre_hooks:
            raise InputError(
                f"module {name!r} has a forward hook, which may change its outputs: "
                "remove it, also that of torch.nn.utils.prune or weight_norm"
            )
    tracer = torch.fx.Tracer()
    if tracer.is_leaf_module(module, ""):
        module = torch.nn.Sequential(module)
    try:
        graph = tracer.trace(module)
    except Exception as error:  # whatever the module's own code raises
        raise InputError(
            f"the forward of {type(module).__name__} is not one graph, expected one "
            f"without conditions on tensors: {reason(error)}"
        ) from None
    reader = _Reader(torch, module)
    for node in reversed(graph.nodes):  # values that nothing reads
        kept = node.op in ("placeholder", "output") or reader.in_place(node)
        if not kept and not node.users:
            graph.erase_node(node)
    network = reader.network(graph, network_type)
    _compare(torch, module, network, outputs)
    return network


def _compare(
    torch: Any, module: Any, network: M, outputs: Callable[[M, Array], Array]
) -> None:
    """Raise InputError unless a network has the module's outputs but for rounding."""
    x = np.random.default_rng(0).normal(size=(PROBES, network.n_in))
    x = x.astype(network.dtype)
    expected = outputs(network, x)
    try:
        copied = deepcopy(module).to("cpu", getattr(torch, network.dtype)).eval()
        with torch.no_grad():
            own_outputs = copied(torch.from_numpy(x)).numpy()
    except Exception as error:  # whatever the module's own code raises
        raise InputError(
            f"{type(module).__name__} fails for inputs of shape {list(x.shape)}: "
            f"{reason(error)}"
        ) from None
    size = 1 + np.abs(expected).max(initial=0)
    most = ROUNDINGS * np.finfo(network.dtype).eps * size
    if own_outputs.shape != expected.shape or not np.allclose(
        own_outputs, expected, rtol=0, atol=most, equal_nan=True
    ):
        raise InputError(
            f"the graph of {type(module).__name__} has other outputs than the module "
            "itself, as where values are changed in place: expected out-of-place calls"
        )


class _Reader:
    """The layers of a graph, as its nodes are read in their order."""

    def __init__(self, torch: Any, module: Any) -> None:
        self.torch, self.module = torch, module
        self.emission = Emission()
        self.env: dict[Any, Any] = {}
        self.overwritten: set[object] = set()

    def network(self, graph: Any, network_type: type[M]) -> M:
        """Return the network of a graph."""
        for node in graph.nodes:
            if node.op == "output":
                self.emission.end(self.value("the output", node.args[0]))
            elif node.op == "placeholder":
                if self.env:
                    raise InputError(
                        f"the module takes a second input, {node.name}, expected one"
                    )
                self.env[node] = self.emission.input()
            else:
                value = self.read(node) if node.users else None
                if self.in_place(node):
                    self.overwritten.add(self.value(node.name, node.args[0]).tensor)
                    if isinstance(value, Traced):
                        value = dataclasses.replace(value, tensor=object())
                if isinstance(value, Traced) and self.readers(node) > 1:
                    value = dataclasses.replace(value, layer=None)
                self.env[node] = value
        dtype = float_type(
            as_floats(name, values) for name, values in self.module.named_parameters()
        )
        return self.emission.network(network_type, dtype)

    # Nodes --------------------------------------------------------------------------

    def read(self, node: Any) -> Any:
        """Return the value of a node that calls a module, a function or a method."""
        if node.op == "call_module":
            return self.read_module(node, self.module.get_submodule(node.target))
        name = _called(node)
        where = f"{node.name} of forward"
        if node.op == "get_attr":  # a parameter or a buffer
            return as_floats(where, attrgetter(node.target)(self.module))
        if not name:
            raise InputError(
                f"{where} is {quoted(node.target)}, which clnet does not take: {TAKEN}"
            )
        first, *others = node.args
        if _is_size(node) or isinstance(self.env.get(first), _Size):
            return _Size()
        if name in _ARITHMETIC and not node.kwargs:
            return self.arithmetic(where, name, *node.args)
        options = {**node.kwargs}
        options.pop("_stacklevel", None)
        if name == "cat":
            dim = (*others, options.get("dim", options.get("axis", 0)))[0]
            return self.concatenate(where, first, dim)
        value = self.value(where, first)
        if name in ("linear", "matmul"):
            operands = dict(zip(("weight", "bias"), others, strict=False))
            return self.product(where, value, name, **operands, **options)
        if name == "getitem":
            return self.take(where, value, *others)
        if name == "dropout":
            return self.emission.dropped(value, (*others, options.get("p", 0.5))[0])
        if name == "reshape":
            return self.reshape(where, value, others)
        if name == "flatten":
            names = dict(zip(_FLATTEN, others, strict=False))
            return self.flatten(where, value, {**_FLATTEN, "start_dim": 0, **names,
                                               **options})
        if name in _SAME and not others:
            return value
        ours = own_activation(name)
        if ours is None:  # with arguments that are not taken
            raise InputError(f"{where} is {name}, which clnet does not take: {TAKEN}")
        names = dict(zip((*_arguments(ours), "inplace"), others, strict=False))
        return self.activate(where, value, ours, {**names, **options})

    def read_module(self, node: Any, module: Any) -> Any:
        """Return the value of a module's call."""
        nn = self.torch.nn
        module_type = nn.utils.parametrize.type_before_parametrizations(module)
        name: str = module_type.__name__
        if getattr(nn, name, None) is not module_type:  # of the user, and named alike
            name = ""
        where = f"module {node.target!r}"
        if len(node.args) != 1 or node.kwargs:
            raise InputError(f"{where} is called with several inputs, expected one")
        value = self.value(where, node.args[0])
        if name == "Linear":
            bias = None if module.bias is None else as_floats(where, module.bias)
            weights = as_floats(where, module.weight)
            return self.emission.linear(where, value, weights, bias)
        if name == "BatchNorm1d":
            return self.normalise(where, value, module)
        if name == "Dropout":
            return self.emission.dropped(value, module.p)
        if name == "Flatten":
            return self.flatten(
                where, value, {option: getattr(module, option) for option in _FLATTEN}
            )
        if name in _SAME:
            return value
        ours = own_activation(name)
        if ours is not None:
            names = (*_arguments(ours), "inplace")
            options = {option: getattr(module, option)
                       for option in names if hasattr(module, option)}
            return self.activate(where, value, ours, options)
        raise InputError(
            f"{where} is {quoted(module)}, which clnet does not take: {TAKEN}"
        )

    def value(self, where: str, argument: Any) -> Traced:
        """Return the value of an argument."""
        value = self.env.get(argument) if isinstance(
            argument, self.torch.fx.Node
        ) else None
        if isinstance(value, Traced):
            if value.tensor in self.overwritten:
                raise InputError(f"{where} reads values that a call in place changed")
            return value
        raise InputError(
            f"{where} reads {quoted(argument)}, expected outputs of earlier modules"
        )

    def in_place(self, node: Any) -> bool:
        """Return whether a node may change the tensor that it reads."""
        if node.op == "call_module":
            return bool(getattr(self.module.get_submodule(node.target), "inplace", 0))
        name = getattr(node.target, "__name__", str(node.target))
        return node.op in ("call_function", "call_method") and (
            name in _IN_PLACE or name.endswith("_")
            or node.kwargs.get("inplace") is True
            or any(argument is True for argument in node.args[1:])
        )

    def readers(self, node: Any) -> int:
        """Return how many nodes read a node's numbers."""
        return sum(not _is_size(user) for user in node.users)

    # Operations ---------------------------------------------------------------------

    def arithmetic(
        self, where: str, name: str, first: Any, second: Any = -1.0
    ) -> Traced:
        """Return a sum or difference, or a value with a factor or a shift."""
        constants = self.constant(first), self.constant(second)
        if name == "neg":
            name = "mul"
        at = int(constants[0] is not None)
        if name in ("add", "sub") and constants[1 - at] is None:
            left, right = self.value(where, first), self.value(where, second)
            if name == "sub":
                right = self.emission.affined(where, right, -1.0, 0.0)
            return self.emission.add([left, right])
        value, constant = self.value(where, (first, second)[at]), constants[1 - at]
        if constant is None or (name, at) == ("div", 1):
            raise InputError(
                f"{where} is a product or a quotient of outputs, which clnet does not "
                f"take: {TAKEN}"
            )
        if name in ("mul", "div"):
            return self.emission.affined(
                where, value, constant if name == "mul" else 1 / constant, 0.0)
        sign = -1.0 if name == "sub" else 1.0
        return (self.emission.affined(where, value, sign, constant) if at else
                self.emission.affined(where, value, 1.0, sign * constant))

    def constant(self, argument: Any) -> Any:
        """Return a number or a row of them, in float64; None: it is no constant."""
        if isinstance(argument, (int, float)):
            return np.float64(argument)
        value = self.env.get(argument) if isinstance(
            argument, self.torch.fx.Node) else None
        return value.astype(np.float64) if isinstance(value, np.ndarray) else None

    def product(
        self, where: str, value: Traced, name: str, weight: Any = None,
        bias: Any = None, other: Any = None,
    ) -> Traced:
        """Return the layer of a product with a parameter."""
        weights = self.constant(other if weight is None else weight)
        if weights is None or weights.ndim != 2:
            raise InputError(f"{where} is no product with a parameter: {TAKEN}")
        if name == "matmul":
            weights = weights.T
        return self.emission.linear(where, value, weights, self.constant(bias))

    def take(self, where: str, value: Traced, key: Any) -> Traced:
        """Return some columns of a value, ``x[:, columns]``, as a layer."""
        rows, columns = key if isinstance(key, tuple) and len(key) == 2 else (key, 0)
        try:
            if rows != slice(None) or isinstance(columns, int):
                raise IndexError
            selection = np.eye(len(self.emission.sized(where, value)))[columns]
            if selection.ndim != 2 or not selection.size:
                raise IndexError
        except (IndexError, TypeError):
            raise InputError(
                f"{where} takes {quoted(key)}, expected columns of all samples, as "
                "[:, 1:3] or [:, [0, 2]]"
            ) from None
        return self.emission.linear(where, value, selection, None, sparse=True)

    def concatenate(self, where: str, arguments: Any, dim: Any) -> Traced:
        """Return values side by side."""
        if dim not in (1, -1) or not isinstance(arguments, (tuple, list)):
            raise InputError(f"{where} concatenates samples, expected dim=1")
        values = [self.value(where, argument) for argument in arguments]
        return self.emission.concatenated(values)

    def activate(
        self, where: str, value: Traced, name: str, options: dict[str, Any]
    ) -> Traced:
        """Return a value's activation, whose arguments are proved."""
        options.pop("inplace", None)  # the result is the same
        if name in _FAMILIES:
            family, defaults = _FAMILIES[name]
            parameters = [options.pop(option, None) for option in defaults]
            if any(isinstance(parameter, (self.torch.Tensor, self.torch.fx.Node))
                   for parameter in parameters):
                raise InputError(f"{where} has tensors as bounds, expected numbers")
            pairs = zip(parameters, defaults.values(), strict=True)
            name = with_parameters(family, *(
                default if parameter is None else parameter
                for parameter, default in pairs))
        if name == "gelu" and options.get("approximate") == "tanh":
            del options["approximate"]
            name = "gelu_tanh"
        known = _ARGUMENTS.get(name, {})
        for option, argument in options.items():
            if argument is not None and not (
                option in known and known[option](argument)
            ):
                raise InputError(
                    f"{where} is {name} with {option}={quoted(argument)}, which clnet "
                    f"does not have; {ELSEWHERE}"
                )
        if name == "identity":
            return value
        return self.emission.activated(where, value, name)

    def normalise(self, where: str, value: Traced, module: Any) -> Traced:
        """Return a value after a BatchNorm1d that keeps its statistics."""
        if module.running_mean is None or module.training:
            raise InputError(
                f"{where} is a BatchNorm1d that takes statistics of each batch, "
                "expected running ones: call module.eval() first"
            )
        mean, variance = (
            as_floats(where, statistic).astype(np.float64)
            for statistic in (module.running_mean, module.running_var)
        )
        scale = 1 / np.sqrt(variance + module.eps)
        if module.weight is not None:
            scale = scale * as_floats(where, module.weight)
        shift = -mean * scale
        if module.bias is not None:
            shift = shift + as_floats(where, module.bias)
        return self.emission.affined(where, value, scale, shift)

    def flatten(self, where: str, value: Traced, options: dict[str, Any]) -> Traced:
        """Return the value itself: samples are rows already."""
        if options != _FLATTEN:
            raise InputError(f"{where} flattens samples too, expected start_dim=1")
        return value

    def reshape(self, where: str, value: Traced, shape: Sequence[Any]) -> Traced:
        """Return the value itself, if samples stay rows."""
        if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
            shape = shape[0]
        rows, columns = (*shape, None, None)[:2]
        known = isinstance(rows, self.torch.fx.Node) and isinstance(
            self.env.get(rows), _Size
        )
        if len(shape) != 2 or not (known or rows == -1) or not isinstance(columns, int):
            raise InputError(
                f"{where} has the shape {quoted(list(shape))}, expected a row of all "
                "values for each sample"
            )
        if columns != -1:
            self.emission.sized(where, value, columns)
        return value
