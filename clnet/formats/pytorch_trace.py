"""Modules of PyTorch as networks, by the graph that `torch.fx` traces.

Each value of the graph is the concatenation of earlier layers' outputs, with a factor
and a shift of each column that the next linear layer takes up. Linear modules emit
layers; activations and dropout belong to the layer before, where nothing else reads
it. Elsewhere a layer of one connection a neuron is put between.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from operator import attrgetter
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from clnet.errors import InputError, counted, quoted, reason
from clnet.formats.pytorch import as_floats, float_type, import_torch
from clnet.nn.activations import LEAK, SOFTMAXES
from clnet.nn.aliases import ACTIVATION, ALIASES, PYTORCH
from clnet.nn.layers import Dense, Sparse

if TYPE_CHECKING:
    from clnet.nn.model import Model

Array = NDArray[Any]
M = TypeVar("M", bound="Model")

PROBES = 64  # random inputs, for which the network is compared with the module
ROUNDINGS = 1e4  # by which outputs may differ; others differ by far more
ELSEWHERE = "clnet.load takes more, from a file of torch.onnx.export"
TAKEN = (
    "expected Linear, BatchNorm1d, Dropout, Flatten, Identity or an activation that "
    f"clnet has; {ELSEWHERE}"
)
# Arguments of activations, in their order, each with the values that are clnet's.
_ARGUMENTS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "elu": {"alpha": lambda found: found == 1},
    "gelu": {"approximate": lambda found: found == "none"},
    "leaky_relu": {"negative_slope": lambda found: found == LEAK},
    "softplus": {
        "beta": lambda found: found == 1,
        "threshold": lambda found: found >= 20,  # PyTorch's own, within 2e-9
    },
    "linear_piece_symmetric": dict.fromkeys(("min_val", "max_val"), lambda _: True),
    **{name: {"dim": lambda found: found in (None, 1, -1)} for name in SOFTMAXES},
}
_SAME = ("Identity", "contiguous", "float", "double")
_ARITHMETIC = ("add", "sub", "mul", "div", "neg")
_OPERATIONS = (*_ARITHMETIC, "cat", "dropout", "flatten", "getattr", "getitem",
               "linear", "matmul", "reshape", "size")
_IN_PLACE = {"iadd": "add", "isub": "sub", "imul": "mul", "itruediv": "div"}
_SYNONYMS = {**_IN_PLACE, "truediv": "div", "concat": "cat", "concatenate": "cat",
             "view": "reshape"}
_FLATTEN = {"start_dim": 1, "end_dim": -1}


@dataclass
class _Layer:
    """A layer that is being read; `matrix` is [n_out, widths of the sources]."""

    sources: tuple[int, ...]
    matrix: Array
    bias: Array | None
    sparse: bool
    activation: str | None = None
    dropout: float = 0.0


@dataclass(frozen=True)
class _Value:
    """A value of the graph: columns of layers' outputs, 0 being the input.

    Attributes
    ----------
    sources : tuple of int
        The layers, side by side.
    scale, shift : ndarray or None
        Factor and shift of each column.
    alone : bool
        Whether no other part of the graph reads the same layer.
    tensor : object
        Identity of the memory, which calls in place change.
    """

    sources: tuple[int, ...]
    scale: Array | None = None
    shift: Array | None = None
    alone: bool = False
    tensor: object = field(default_factory=object)


class _Size:
    """The sizes of a tensor, or one of them."""


def own_activation(name: str) -> str | None:
    """Return clnet's name of PyTorch's module or function, if there is one."""
    names = ALIASES[ACTIVATION][PYTORCH]
    return names.get(name, name if name in names.values() else None)


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


def from_torch(module: Any, kind: type[M], outputs: Callable[[M, Array], Array]) -> M:
    """Return the network of a module; see `Network.from_torch`.

    `outputs` computes a network for inputs [batch, n_in]. They are compared with the
    module's for random ones: a graph does not tell of values that ``+=`` changes.
    """
    torch = import_torch()
    module = getattr(module, "_orig_mod", module)  # of torch.compile
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"module must be a torch.nn.Module, not {quoted(module)}")
    for name, one in module.named_modules():
        if one._forward_hooks or one._forward_pre_hooks:
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
    network = reader.network(graph, kind)
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
        own = deepcopy(module).to("cpu", getattr(torch, network.dtype)).eval()
        with torch.no_grad():
            found = own(torch.from_numpy(x)).numpy()
    except Exception as error:  # whatever the module's own code raises
        raise InputError(
            f"{type(module).__name__} fails for inputs of shape {list(x.shape)}: "
            f"{reason(error)}"
        ) from None
    size = 1 + np.abs(expected).max(initial=0)
    most = ROUNDINGS * np.finfo(network.dtype).eps * size
    if found.shape != expected.shape or not np.allclose(
        found, expected, rtol=0, atol=most, equal_nan=True
    ):
        raise InputError(
            f"the graph of {type(module).__name__} has other outputs than the module "
            "itself, as where values are changed in place: expected out-of-place calls"
        )


class _Reader:
    """The layers of a graph, as its nodes are read in their order."""

    def __init__(self, torch: Any, module: Any) -> None:
        self.torch, self.module = torch, module
        self.n_in: int | None = None
        self.layers: list[_Layer] = []
        self.env: dict[Any, Any] = {}
        self.overwritten: set[object] = set()

    def network(self, graph: Any, kind: type[M]) -> M:
        """Return the network of a graph."""
        for node in graph.nodes:
            if node.op == "output":
                self.finish(node)
            elif node.op == "placeholder":
                if 0 in (value.sources[0] for value in self.env.values()):
                    raise InputError(
                        f"the module takes a second input, {node.name}, expected one"
                    )
                self.env[node] = _Value((0,))
            else:
                value = self.read(node) if node.users else None
                if self.in_place(node):
                    self.overwritten.add(self.value(node.name, node.args[0]).tensor)
                    if isinstance(value, _Value):
                        value = dataclasses.replace(value, tensor=object())
                if isinstance(value, _Value) and self.readers(node) > 1:
                    value = dataclasses.replace(value, alone=False)
                self.env[node] = value
        assert self.n_in is not None
        layers = []
        for number, one in enumerate(self.layers):
            options: dict[str, Any] = {
                "activation": one.activation or "identity",
                "bias": one.bias is not None,
                "sources": None if one.sources == (number,) else one.sources,
                "dropout": one.dropout,
            }
            layers.append(
                Sparse(len(one.matrix), pattern=one.matrix != 0, **options)
                if one.sparse else Dense(len(one.matrix), **options)
            )
        dtype = float_type(
            as_floats(name, found) for name, found in self.module.named_parameters()
        )
        network = kind(self.n_in, layers, seed=0, dtype=dtype)
        network.set_layers((one.matrix, one.bias) for one in self.layers)
        return network

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
        options = {one: v for one, v in node.kwargs.items() if one != "_stacklevel"}
        if name == "cat":
            dim = (*others, options.get("dim", options.get("axis", 0)))[0]
            return self.concatenate(where, first, dim)
        value = self.value(where, first)
        if name in ("linear", "matmul"):
            given = {**dict(zip(("weight", "bias"), others, strict=False)), **options}
            return self.product(where, value, name, **given)
        if name == "getitem":
            return self.take(where, value, *others)
        if name == "dropout":
            return self.dropout(value, (*others, options.get("p", 0.5))[0])
        if name == "reshape":
            return self.reshape(where, value, others)
        if name == "flatten":
            names = dict(zip(_FLATTEN, others, strict=False))
            return self.flatten(where, value, {**_FLATTEN, "start_dim": 0, **names,
                                               **options})
        if name in _SAME and not others:
            return value
        own = own_activation(name)
        if own is None:  # with arguments that are not taken
            raise InputError(f"{where} is {name}, which clnet does not take: {TAKEN}")
        names = dict(zip((*_ARGUMENTS.get(own, ()), "inplace"), others, strict=False))
        return self.activate(where, value, own, {**names, **options})

    def read_module(self, node: Any, module: Any) -> Any:
        """Return the value of a module's call."""
        nn = self.torch.nn
        kind = nn.utils.parametrize.type_before_parametrizations(module)
        name: str = kind.__name__
        if getattr(nn, name, None) is not kind:  # of the user, and named alike
            name = ""
        where = f"module {node.target!r}"
        if len(node.args) != 1 or node.kwargs:
            raise InputError(f"{where} is called with several inputs, expected one")
        value = self.value(where, node.args[0])
        if name == "Linear":
            bias = None if module.bias is None else as_floats(where, module.bias)
            return self.linear(where, value, as_floats(where, module.weight), bias)
        if name == "BatchNorm1d":
            return self.normalise(where, value, module)
        if name == "Dropout":
            return self.dropout(value, module.p)
        if name == "Flatten":
            return self.flatten(
                where, value, {one: getattr(module, one) for one in _FLATTEN}
            )
        if name in _SAME:
            return value
        own = own_activation(name)
        if own is not None:
            names = (*_ARGUMENTS.get(own, ()), "inplace")
            found = {one: getattr(module, one) for one in names if hasattr(module, one)}
            return self.activate(where, value, own, found)
        raise InputError(
            f"{where} is {quoted(module)}, which clnet does not take: {TAKEN}"
        )

    def value(self, where: str, argument: Any) -> _Value:
        """Return the value of an argument."""
        found = self.env.get(argument) if isinstance(
            argument, self.torch.fx.Node
        ) else None
        if isinstance(found, _Value):
            if found.tensor in self.overwritten:
                raise InputError(f"{where} reads values that a call in place changed")
            return found
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
            or any(one is True for one in (*node.args[1:], node.kwargs.get("inplace")))
        )

    def readers(self, node: Any) -> int:
        """Return how many nodes read a node's numbers."""
        return sum(not _is_size(user) for user in node.users)

    # Operations ---------------------------------------------------------------------

    def linear(
        self, where: str, value: _Value, weights: Array, bias: Array | None,
        sparse: bool = False,
    ) -> _Value:
        """Emit a layer, and return its outputs."""
        self.expect(where, value, weights.shape[1])
        widths = [self.width(source) for source in value.sources]
        if value.scale is not None:
            scale, offset = self.affine(value)
            shift = weights @ offset
            bias = shift if bias is None else bias + shift
            weights = weights * scale
        blocks: dict[int, Array] = {}
        for source, block in zip(
            value.sources, np.split(weights, np.cumsum(widths)[:-1], axis=1),
            strict=True,
        ):
            blocks[source] = blocks[source] + block if source in blocks else block
        sources = tuple(sorted(blocks))
        matrix = np.hstack([blocks[source] for source in sources])
        self.layers.append(_Layer(sources, matrix, bias, sparse))
        return _Value((len(self.layers),), alone=True)

    def add(self, values: Sequence[_Value]) -> _Value:
        """Return the sum of values, which is a layer of its own."""
        for value in values:
            self.expect("a sum", value, self.columns(values[0]))
        scales, shifts = zip(*map(self.affine, values), strict=True)
        bias = sum(shifts) if np.any(shifts) else None
        sources = tuple(source for value in values for source in value.sources)
        blocks = np.hstack([np.diag(scale) for scale in scales])
        return self.linear("a sum", _Value(sources), blocks, bias, sparse=True)

    def arithmetic(
        self, where: str, name: str, first: Any, second: Any = -1.0
    ) -> _Value:
        """Return a sum or difference, or a value with a factor or a shift."""
        constants = self.constant(first), self.constant(second)
        if name == "neg":
            name = "mul"
        at = int(constants[0] is not None)
        if name in ("add", "sub") and constants[1 - at] is None:
            left, right = self.value(where, first), self.value(where, second)
            if name == "sub":
                right = self.affined(where, right, -1.0, 0.0)
            return self.add([left, right])
        value, constant = self.value(where, (first, second)[at]), constants[1 - at]
        if constant is None or (name, at) == ("div", 1):
            raise InputError(
                f"{where} is a product or a quotient of outputs, which clnet does not "
                f"take: {TAKEN}"
            )
        if name in ("mul", "div"):
            return self.affined(
                where, value, constant if name == "mul" else 1 / constant, 0.0)
        sign = -1.0 if name == "sub" else 1.0
        return (self.affined(where, value, sign, constant) if at else
                self.affined(where, value, 1.0, sign * constant))

    def constant(self, argument: Any) -> Any:
        """Return a number or a row of them, in float64; None: it is no constant."""
        if isinstance(argument, (int, float)):
            return np.float64(argument)
        found = self.env.get(argument) if isinstance(
            argument, self.torch.fx.Node) else None
        return found.astype(np.float64) if isinstance(found, np.ndarray) else None

    def affined(self, where: str, value: _Value, factor: Any, shift: Any) -> _Value:
        """Return a value with a factor and a shift: numbers, or one of each column."""
        factor, shift = (self.row(where, value, one) for one in (factor, shift))
        layer = self.layers[value.sources[0] - 1] if value.alone else None
        if (layer is not None and value.scale is None and layer.activation is None
                and not layer.dropout):
            layer.matrix = layer.matrix * factor[..., np.newaxis]
            if layer.bias is not None or shift.any():
                before = np.zeros(len(layer.matrix)) if layer.bias is None else (
                    layer.bias)
                layer.bias = shift + before * factor
            return dataclasses.replace(value, tensor=object())
        if value.scale is not None and value.shift is not None:
            factor, shift = value.scale * factor, value.shift * factor + shift
        return dataclasses.replace(value, scale=factor, shift=shift, tensor=object())

    def row(self, where: str, value: _Value, found: Any) -> Array:
        """Return a constant, shape [] or [columns]."""
        row: Array = np.squeeze(found)
        if row.ndim and row.shape != np.shape(found)[-1:]:
            raise InputError(
                f"{where} reads a constant of shape {list(np.shape(found))}, expected "
                "one number, or one of each column"
            )
        if row.ndim:
            self.expect(where, value, len(row))
        return row

    def product(
        self, where: str, value: _Value, name: str, weight: Any = None,
        bias: Any = None, other: Any = None,
    ) -> _Value:
        """Return the layer of a product with a parameter."""
        weights = self.constant(other if weight is None else weight)
        if weights is None or weights.ndim != 2:
            raise InputError(f"{where} is no product with a parameter: {TAKEN}")
        if name == "matmul":
            weights = weights.T
        return self.linear(where, value, weights, self.constant(bias))

    def take(self, where: str, value: _Value, key: Any) -> _Value:
        """Return some columns of a value, ``x[:, columns]``, as a layer."""
        rows, columns = key if isinstance(key, tuple) and len(key) == 2 else (key, 0)
        try:
            if rows != slice(None) or isinstance(columns, int):
                raise IndexError
            chosen = np.eye(self.columns(value))[columns]
            if chosen.ndim != 2 or not chosen.size:
                raise IndexError
        except (IndexError, TypeError):
            raise InputError(
                f"{where} takes {quoted(key)}, expected columns of all samples, as "
                "[:, 1:3] or [:, [0, 2]]"
            ) from None
        return self.linear(where, value, chosen, None, sparse=True)

    def concatenate(self, where: str, arguments: Any, dim: Any) -> _Value:
        """Return values side by side."""
        if dim not in (1, -1) or not isinstance(arguments, (tuple, list)):
            raise InputError(f"{where} concatenates samples, expected dim=1")
        values = [self.value(where, one) for one in arguments]
        sources = tuple(source for value in values for source in value.sources)
        if all(value.scale is None for value in values):
            return _Value(sources)
        scales, shifts = zip(*map(self.affine, values), strict=True)
        return _Value(sources, np.concatenate(scales), np.concatenate(shifts))

    def activate(
        self, where: str, value: _Value, own: str, found: dict[str, Any]
    ) -> _Value:
        """Return a value's activation, whose arguments are proved."""
        found.pop("inplace", None)  # the result is the same
        if own == "linear_piece_symmetric":
            bounds = tuple(found.pop(*one) for one in (("min_val", -1), ("max_val", 1)))
            if bounds == (0, 1):
                own = "linear_piece"
            elif bounds != (-1, 1):
                raise InputError(
                    f"{where} is clipped to {quoted(list(bounds))}, expected [-1, 1] "
                    f"or [0, 1]; {ELSEWHERE}"
                )
        if own == "gelu" and found.get("approximate") == "tanh":
            del found["approximate"]
            own = "gelu_tanh"
        known = _ARGUMENTS.get(own, {})
        for name, given in found.items():
            if given is not None and not (name in known and known[name](given)):
                raise InputError(
                    f"{where} is {own} with {name}={quoted(given)}, which clnet does "
                    f"not have; {ELSEWHERE}"
                )
        if own == "identity":
            return value
        layer, value = self.own_layer(where, value)
        if layer.activation is not None or layer.dropout:
            layer, value = self.between(where, value)
        layer.activation = own
        return dataclasses.replace(value, tensor=object())

    def normalise(self, where: str, value: _Value, module: Any) -> _Value:
        """Return a value after a BatchNorm1d that keeps its statistics."""
        if module.running_mean is None or module.training:
            raise InputError(
                f"{where} is a BatchNorm1d that takes statistics of each batch, "
                "expected running ones: call module.eval() first"
            )
        mean, variance = (
            as_floats(where, one).astype(np.float64)
            for one in (module.running_mean, module.running_var)
        )
        scale = 1 / np.sqrt(variance + module.eps)
        if module.weight is not None:
            scale = scale * as_floats(where, module.weight)
        shift = -mean * scale
        if module.bias is not None:
            shift = shift + as_floats(where, module.bias)
        return self.affined(where, value, scale, shift)

    def dropout(self, value: _Value, p: float) -> _Value:
        """Return a value of which training drops a share."""
        if not p:
            return value
        layer, value = self.own_layer("dropout", value)
        if layer.dropout:
            layer, value = self.between("dropout", value)
        layer.dropout = p
        return value

    def flatten(self, where: str, value: _Value, found: dict[str, Any]) -> _Value:
        """Return the value itself: samples are rows already."""
        if found != _FLATTEN:
            raise InputError(f"{where} flattens samples too, expected start_dim=1")
        return value

    def reshape(self, where: str, value: _Value, shape: Sequence[Any]) -> _Value:
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
            self.expect(where, value, columns)
        return value

    def finish(self, node: Any) -> None:
        """End with the layer of the output."""
        value = self.value("the output", node.args[0])
        if not self.layers and self.n_in is None:
            raise InputError("the module has no Linear, of which a network is made")
        last = value.sources[-1] == len(self.layers) and value.alone
        if not last or value.scale is not None or self.layers[-1].dropout:
            self.between("the output", value)

    # Layers -------------------------------------------------------------------------

    def width(self, source: int) -> int:
        """Return the columns of a layer's output, or of the input."""
        if source:
            return len(self.layers[source - 1].matrix)
        if self.n_in is None:
            raise InputError(
                "the module does more than Linear takes up before the number of its "
                "inputs is known: expected Linear, BatchNorm1d or Flatten first; "
                f"{ELSEWHERE}"
            )
        return self.n_in

    def columns(self, value: _Value) -> int:
        return sum(self.width(source) for source in value.sources)

    def expect(self, where: str, value: _Value, n: int) -> None:
        """Raise InputError unless a value has n columns; the input has any, once."""
        if value.sources == (0,) and self.n_in is None:
            self.n_in = n
        if self.columns(value) != n:
            raise InputError(
                f"{where} takes {counted(n, 'value')}, but reads {self.columns(value)}"
            )

    def affine(self, value: _Value) -> tuple[Array, Array]:
        """Return the factor and the shift of each column."""
        if value.scale is None or value.shift is None:
            return np.ones(self.columns(value)), np.zeros(self.columns(value))
        n = self.columns(value)
        return np.broadcast_to(value.scale, n), np.broadcast_to(value.shift, n)

    def own_layer(self, where: str, value: _Value) -> tuple[_Layer, _Value]:
        """Return the layer of which a value is the only use, and its value."""
        if value.alone and value.scale is None:
            return self.layers[value.sources[0] - 1], value
        return self.between(where, value)

    def between(self, where: str, value: _Value) -> tuple[_Layer, _Value]:
        """Emit a layer of one connection a neuron, and return it with its value."""
        emitted = self.add([value])
        return self.layers[-1], emitted
