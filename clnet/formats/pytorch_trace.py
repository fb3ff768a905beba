"""Modules of PyTorch as networks, by the graph that `torch.fx` traces.

Each node of the graph becomes one of `clnet.formats.graphs`. Nodes that only move
elements, and those of constants, are computed by PyTorch.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from operator import attrgetter
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from clnet.checks import installed
from clnet.errors import InputError, quoted, reason
from clnet.formats.graphs.elementwise import of_terms
from clnet.formats.graphs.layers import GraphLayers, network_of
from clnet.formats.graphs.operators import outputs_of
from clnet.formats.graphs.products import product
from clnet.formats.graphs.trace import GraphTrace, Input, Node, Room
from clnet.formats.graphs.values import Activated, RefusalError, Tracer
from clnet.formats.pytorch import as_floats, float_type
from clnet.nn.activations import LEAK, SOFTMAX, SOFTMAXES, with_parameters
from clnet.nn.aliases import ACTIVATION, ALIASES, PYTORCH

if TYPE_CHECKING:
    from clnet.formats.graphs.affine import Affine
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
OPSET = {"": 13}  # whose nodes have PyTorch's meaning, as Softmax
# Arguments of activations, in their order, each with the values that are clnet's.
_ARGUMENTS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "gelu": {"approximate": lambda value: value == "none"},
    "softplus": {
        "beta": lambda value: value == 1,
        "threshold": lambda value: value >= 20,  # PyTorch's own, within 2e-9
    },
    **{name: {"dim": lambda value: True} for name in SOFTMAXES},
}
# Functions whose arguments are clnet's parameters: the family, and PyTorch's defaults.
_FAMILIES: dict[str, tuple[str, dict[str, float]]] = {
    "clamp": ("clip", {"min": -math.inf, "max": math.inf}),
    "elu": ("elu", {"alpha": 1.0}),
    "leaky_relu": ("leaky_relu", {"negative_slope": LEAK}),
    "linear_piece_symmetric": ("clip", {"min_val": -1.0, "max_val": 1.0}),
}
_SAME = ("Identity", "contiguous", "float", "double")
_VIEWS = ("flatten", "getitem", "permute", "reshape", "squeeze", "t", "transpose",
          "split", "unsqueeze", "view")
"""Functions whose output is of elements of the first argument, in the same memory."""
_JOINS = ("cat", "concat", "concatenate", "stack")
_SIZES = ("dim", "numel", "size")
_IN_PLACE = {"iadd": "add", "isub": "sub", "imul": "mul", "itruediv": "div"}
_NODES = {
    "abs": "Abs", "add": "Add", "cos": "Cos", "div": "Div", "eq": "Equal", "erf": "Erf",
    "exp": "Exp", "ge": "GreaterOrEqual", "gt": "Greater", "le": "LessOrEqual",
    "log": "Log", "lt": "Less", "matmul": "MatMul", "maximum": "Max", "minimum": "Min",
    "mul": "Mul", "neg": "Neg", "pow": "Pow", "sin": "Sin", "sqrt": "Sqrt",
    "sub": "Sub", "truediv": "Div", "where": "Where",
}
"""ONNX's nodes of PyTorch's functions."""
_PARAMETERS = {
    "linear": ("weight", "bias"), "dropout": ("p", "training"),
    "BatchNorm1d": ("running_mean", "running_var", "weight", "bias", "eps"),
}
"""Arguments of functions in their order, and attributes of modules."""


def clnet_activation(name: str) -> str | None:
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
    name: str = node.target if node.op == "call_method" else node.target.__name__
    if isinstance(node.target, FunctionType) and not (
        node.target.__module__.startswith("torch.")
    ):
        return ""  # of the user, and called as PyTorch's by chance
    return _IN_PLACE.get(name, name).removesuffix("_")


def from_torch(
    module: Any, network_type: type[M], outputs: Callable[[M, Array], Array]
) -> M:
    """Return the network of a module; see `Network.from_torch`.

    `outputs` computes a network for inputs [batch, n_in]. They are compared with the
    module's for random ones: a graph does not tell of values that ``+=`` changes.
    """
    torch = installed("torch", "a module of PyTorch")
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
    for node in reversed(graph.nodes):  # values that nothing reads
        kept = node.op in ("placeholder", "output") or _changes(module, node)
        if not kept and not node.users:
            graph.erase_node(node)
    probe = _Probe(torch, module)
    n_in = probe.n_in()
    try:
        network = network_of(
            lambda batch: _Reader(probe, graph, n_in, batch).layers(), None,
            network_type,
        )
    except RefusalError as error:
        raise InputError(f"{type(module).__name__}: {error}") from None
    probe.compare(network, outputs)
    return network


def _changes(module: Any, node: Any) -> bool:
    """Return whether a node may change the tensor that it reads."""
    if node.op == "call_module":
        return bool(getattr(module.get_submodule(node.target), "inplace", 0))
    name = getattr(node.target, "__name__", str(node.target))
    return node.op in ("call_function", "call_method") and (
        name in _IN_PLACE or name.endswith("_")
        or node.kwargs.get("inplace") is True
        or any(argument is True for argument in node.args[1:])
    )


class _Probe:
    """A module, and its copy on the CPU, which computes."""

    def __init__(self, torch: Any, module: Any) -> None:
        self.torch, self.module = torch, module
        self.dtype = float_type(
            as_floats(name, values) for name, values in module.named_parameters()
        )
        self.copy = deepcopy(module).to("cpu", getattr(torch, self.dtype)).eval()

    def n_in(self) -> int:
        """Return the number of inputs: that of a parameter with which it runs."""
        shapes: list[tuple[int, ...]] = [
            tuple(tensor.shape) for tensor in self.copy.state_dict().values()
        ]
        if not any(shapes):
            raise InputError("the module has no Linear, of which a network is made")
        # A sum with a row of n also takes columns of one number.
        for n in sorted({n for shape in shapes for n in shape}, reverse=True):
            with suppress(Exception):
                self.outputs(n)
                return n
        return next(shape[-1] for shape in shapes if shape)  # the trace tells why

    def outputs(self, n_in: int) -> tuple[Array, Array]:
        """Return random inputs, and the module's outputs for them."""
        x = np.random.default_rng(0).normal(size=(PROBES, n_in)).astype(self.dtype)
        with self.torch.no_grad():
            return x, self.copy(self.torch.from_numpy(x)).numpy()

    def compare(self, network: M, outputs: Callable[[M, Array], Array]) -> None:
        """Raise InputError unless a network has the outputs but for rounding."""
        name, n_in = type(self.module).__name__, network.n_in
        open_ended = False
        with suppress(Exception):
            self.outputs(n_in + 1)
            open_ended = True
        if open_ended:
            raise InputError(
                f"{name} takes {n_in} inputs and more, expected one number of inputs, "
                "as of Linear or BatchNorm1d"
            )
        try:
            x, expected = self.outputs(n_in)
        except Exception as error:  # whatever the module's own code raises
            raise InputError(
                f"{name} fails for inputs of shape {[PROBES, n_in]}: {reason(error)}"
            ) from None
        y = outputs(network, x)
        most = ROUNDINGS * np.finfo(y.dtype).eps * (1 + np.abs(y).max(initial=0))
        if y.shape != expected.shape or not np.allclose(
            expected, y, rtol=0, atol=most, equal_nan=True
        ):
            raise InputError(
                f"the graph of {name} has other outputs than the module itself, as "
                "where values are changed in place: expected out-of-place calls"
            )


class _Reader:
    """The values of a graph's nodes, which are read in their order."""

    def __init__(self, probe: _Probe, graph: Any, n_in: int, batch: int) -> None:
        self.probe, self.graph, self.torch = probe, graph, probe.torch
        self.trace = GraphTrace(
            [Input("x", None, (n_in,))], batch, Room(Path(), 0, sys.maxsize), OPSET,
            biased=False,
        )
        self.env: dict[Any, Any] = {}
        # Nodes whose memory others' outputs are, and those whose memory was changed
        self.memory: dict[Any, Any] = {}
        self.overwritten: set[Any] = set()

    @np.errstate(all="ignore")  # infinity and NaN go through as in the module
    def layers(self) -> GraphLayers:
        """Return the layers of the graph."""
        for node in self.graph.nodes:
            self.trace.text = _where(node)
            try:
                self.check(node)
                self.env[node] = (
                    self.output(node.args[0]) if node.op == "output" else
                    self.read(node)
                )
            except InputError:
                raise
            except RefusalError as error:
                raise InputError(f"{self.trace.text} {error}") from None
            except Exception as error:  # of PyTorch, or of sizes that do not fit
                raise InputError(
                    f"{self.trace.text} cannot be computed: {reason(error)}"
                ) from None
        return GraphLayers(self.trace, self.env[node], self.probe.dtype)

    def check(self, node: Any) -> None:
        """Raise RefusalError if a node reads what a call in place has changed."""
        for source in node.all_input_nodes:
            if self.memory[source] in self.overwritten:
                raise RefusalError("reads values that a call in place changed")
        self.memory[node] = node
        if _changes(self.probe.module, node):
            self.overwritten.add(self.memory[node.args[0]])
        elif self.named(node) in (*_VIEWS, *_SAME, "dropout"):
            self.memory[node] = self.memory[node.args[0]]

    def output(self, argument: Any) -> Affine:
        """Return the rows of the output."""
        value = self.env.get(argument) if isinstance(
            argument, self.torch.fx.Node) else None
        if not isinstance(value, Tracer):
            raise RefusalError(f"reads {quoted(argument)}, expected one of layers")
        if len(value.shape) != 2:
            raise RefusalError(
                f"has {len(value.shape)} dimensions, expected a row for each sample")
        return self.trace.records.samples(value)

    def read(self, node: Any) -> Any:
        """Return a node's value, or several; of constants PyTorch's own result."""
        if node.op == "placeholder":
            if self.env:
                raise InputError(
                    f"the module takes a second input, {node.name}, expected one"
                )
            return self.trace.tensors["x"]
        known = {source: self.env[source] for source in node.all_input_nodes}
        name = self.named(node)
        if not any(isinstance(value, Tracer) for value in known.values()):
            several = any(
                isinstance(value, tuple) and any(isinstance(x, Tracer) for x in value)
                for value in known.values())
            if several and name != "getitem":
                raise RefusalError(
                    "reads several values at once, expected one by one, as parts[0]")
            return self.call(node, known)
        if name in _SIZES or (name == "getattr" and node.args[1] == "shape"):
            self.trace.counted = True
            return self.call(node, {
                source: self.torch.empty(value.shape) for source, value in known.items()
            })
        if name in (*_VIEWS, *_JOINS):
            return self.moved(node, known, joins=name in _JOINS)
        if not node.args:
            raise RefusalError(
                "is called by keywords alone, expected its input as first argument")
        value, *others = operands = [*map(self.operand, node.args)]
        if name in _NODES and not node.kwargs:
            return self.outputs_of(_NODES[name], operands)
        if name in _SAME and not others:
            return value
        ours = clnet_activation(name)
        arguments = (*(_PARAMETERS.get(name) or _arguments(ours or "")), "inplace")
        if node.op == "call_module":
            module = self.probe.module.get_submodule(node.target)
            if others or node.kwargs:
                raise RefusalError("is called with several inputs, expected one")
            options = {argument: self.operand(getattr(module, argument))
                       for argument in arguments if hasattr(module, argument)}
        else:
            options = dict(zip(arguments, others, strict=False))
            options |= {key: self.operand(argument)
                        for key, argument in node.kwargs.items()}
        if name == "linear":
            return self.linear(value, options["weight"], options.get("bias"))
        if name == "dropout":
            return self.dropped(value, options.get("p", 0.5))
        if name == "BatchNorm1d":
            return self.normalised(value, module.training, **options)
        if ours is None:
            what = quoted(module) if node.op == "call_module" else (
                name or quoted(node.target))
            raise RefusalError(f"is {what}, which clnet does not take: {TAKEN}")
        return self.activated(value, ours, options)

    def named(self, node: Any) -> str:
        """Return PyTorch's name of a node's function or module; "": of the user's."""
        if node.op != "call_module":
            return _called(node)
        nn = self.torch.nn
        module = self.probe.module.get_submodule(node.target)
        module_type = nn.utils.parametrize.type_before_parametrizations(module)
        name: str = module_type.__name__
        if getattr(nn, name, None) is not module_type:  # of the user, and named alike
            return ""
        return name.lower() if name in ("Dropout", "Flatten", "Linear") else name

    def call(self, node: Any, known: dict[Any, Any]) -> Any:
        """Return what PyTorch computes for other values of the nodes that are read."""
        if node.op == "get_attr":  # a parameter or a buffer
            return attrgetter(node.target)(self.probe.copy)
        args, options = self.torch.fx.node.map_arg(
            (node.args, node.kwargs), known.__getitem__)
        with self.torch.no_grad():
            if node.op == "call_module":
                return self.probe.copy.get_submodule(node.target)(*args, **options)
            if node.op == "call_method":
                return getattr(args[0], node.target)(*args[1:], **options)
            return node.target(*args, **options)

    def operand(self, argument: Any) -> Any:
        """Return an argument as a value; tensors and numbers as arrays."""
        if isinstance(argument, self.torch.fx.Node):
            argument = self.env[argument]
        if isinstance(argument, self.torch.Tensor):
            return as_floats(self.trace.text, argument)
        return argument

    # Operations ---------------------------------------------------------------------

    def outputs_of(
        self, op: str, operands: Sequence[Any], **options: Any
    ) -> Any:
        """Return the output of a node of ONNX."""
        inputs = [operand if isinstance(operand, Tracer) else np.asarray(operand)
                  for operand in operands]
        return outputs_of(self.trace, Node(self.trace.text, op, options), inputs)[0]

    def moved(self, node: Any, known: dict[Any, Any], *, joins: bool) -> Any:
        """Return elements of values, which PyTorch moves, as one value or several."""
        data = [source for source, value in known.items()
                if joins or isinstance(value, Tracer)]
        several = False

        def evaluate(arrays: Sequence[Any], _: Sequence[str]) -> list[Array]:
            nonlocal several
            numbers = zip(data, map(self.torch.from_numpy, arrays), strict=True)
            moved = self.call(node, {**known, **dict(numbers)})
            several = not isinstance(moved, self.torch.Tensor)
            return [tensor.numpy() for tensor in (moved if several else [moved])]

        copies = outputs_of(
            self.trace,
            Node(self.trace.text, "Concat" if joins else "Reshape", evaluate=evaluate),
            [self.operand(source) for source in data],
        )
        for value in copies:
            assert isinstance(value, Tracer)
            self.trace.records.layout(value)  # refuses samples that are mixed
        return tuple(copies) if several else copies[0]

    def linear(self, value: Any, weight: Any, bias: Any) -> Tracer:
        """Return a product with a parameter [n_out, n_in]."""
        if not isinstance(value, Tracer) or np.ndim(weight) != 2:
            raise RefusalError(f"is no product with a parameter: {TAKEN}")
        return product(self.trace, value, weight.T, bias)

    def dropped(self, value: Tracer, p: float) -> Tracer:
        """Return a value of which training drops a share."""
        if not p:
            return value
        rows, shape, axis = self.trace.records.layout(value)
        record = Activated(self.trace.text, len(rows), rows, "identity", p)
        return self.trace.records.value(self.trace.records.add(record), shape, axis)

    def normalised(
        self, value: Tracer, training: bool, running_mean: Any, running_var: Any,
        weight: Any, bias: Any, eps: float,
    ) -> Any:
        """Return a value after a BatchNorm1d that keeps its statistics."""
        if running_mean is None or training:
            raise RefusalError(
                "is a BatchNorm1d that takes statistics of each batch, expected "
                "running ones: call module.eval() first"
            )
        weight = np.ones_like(running_mean) if weight is None else weight
        bias = np.zeros_like(running_mean) if bias is None else bias
        return self.outputs_of("BatchNormalization", [
            value, weight, bias, running_mean, running_var], epsilon=eps)

    def activated(self, value: Tracer, ours: str, options: dict[str, Any]) -> Any:
        """Return a value's activation, whose arguments are proved."""
        options.pop("inplace", None)  # the result is the same
        options.pop("_stacklevel", None)
        if ours in SOFTMAXES:
            dim = options.pop("dim", None)
            return self.outputs_of("Softmax" if ours == SOFTMAX else "LogSoftmax",
                                   [value], axis=1 if dim is None else dim)
        if ours in _FAMILIES:
            family, defaults = _FAMILIES[ours]
            parameters = [options.pop(option, None) for option in defaults]
            if any(isinstance(parameter, (np.ndarray, Tracer))
                   for parameter in parameters):
                raise RefusalError("has tensors as bounds, expected numbers")
            pairs = zip(parameters, defaults.values(), strict=True)
            ours = with_parameters(family, *(
                default if parameter is None else parameter
                for parameter, default in pairs))
        if ours == "gelu" and options.get("approximate") == "tanh":
            del options["approximate"]
            ours = "gelu_tanh"
        known = _ARGUMENTS.get(ours, {})
        for option, argument in options.items():
            if argument is not None and not (
                option in known and known[option](argument)
            ):
                raise RefusalError(
                    f"is {ours} with {option}={quoted(argument)}, which clnet does not "
                    f"have; {ELSEWHERE}"
                )
        return value if ours == "identity" else of_terms(
            self.trace, value, [(1.0, ours, 1.0, 0.0)])


def _where(node: Any) -> str:
    """Return the text that names a node in an error."""
    if node.op == "output":
        return "the output"
    return f"module {node.target!r}" if node.op == "call_module" else (
        f"{node.name} of forward")
