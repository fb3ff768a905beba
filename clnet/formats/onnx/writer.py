"""Networks as ONNX graphs, of operators that every runtime of the opset has.

A layer is ``Gemm``, steepness and activation. The matrix of a partially or locally
connected layer is assembled from its entries by ``ScatterND``: the file holds the
entries alone, and ONNX Runtime, which folds constants when it loads a file, computes
with the dense matrix.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray
from onnx import helper, numpy_helper

from clnet import __version__
from clnet.errors import FormatError
from clnet.formats.files import write
from clnet.formats.graphs.elementwise import DOMAIN, GELU
from clnet.formats.onnx.functions import VERSION, gelu
from clnet.nn.activations import (
    LEAK,
    SELU_ALPHA,
    SELU_SCALE,
    SIGMOID_STEPS,
    SOFTMAX,
    SOFTMAXES,
    TANH_STEPS,
    Steps,
    activation,
    sum_limit,
)
from clnet.nn.layers import Dense, Local, Sparse

if TYPE_CHECKING:
    from clnet.nn.model import Model

Array = NDArray[Any]

OPSET = 17
NAMES = "clnet."  # before the keys of a file's metadata: classes, columns
IR_VERSION = 8  # of ONNX 1.12, which brought that opset
MOST_BYTES = (1 << 31) - (1 << 20)  # of a file: protobuf's limit, and some room


def write_network(network: Model, path: Path) -> None:
    """Write a network; see `clnet.formats.onnx.save`."""
    check_network(network, path)
    write(path, [_Graph(network).model().SerializeToString()])


def check_network(network: Model, path: Path) -> None:
    """Raise FormatError if a layer is of an unknown type, or the file too large."""
    for layer in network.layers:
        if not isinstance(layer, (Dense, Sparse, Local)):
            raise FormatError(
                f"cannot write {path}: a layer is {type(layer).__name__}, expected "
                "dense, sparse or local"
            )
    item_size = np.dtype(network.dtype).itemsize
    size = sum(matrix.count * (item_size + 16 * (not matrix.full))
               for matrix in network.matrices)
    if size > MOST_BYTES:
        raise FormatError(
            f"cannot write {path}: its weights take {size} bytes, and ONNX files hold "
            f"{MOST_BYTES}"
        )


class _Graph:
    """The graph of a network, in the making; nodes are named by their outputs."""

    def __init__(self, network: Model) -> None:
        self.network = network
        self.dtype = np.dtype(network.dtype)
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.values: dict[int, str] = {0: "x"}
        self._shared: dict[float, str] = {}
        scaling = network.scaling
        if scaling is not None:
            self.values[0] = self._scaled("x", scaling, "in")
        for number in range(len(network.layers)):
            self.values[number + 1] = self._layer(number)
        last = self.values[len(network.layers)]
        if scaling is not None:
            last = self._scaled(last, scaling, "out")
        self.nodes.append(helper.make_node("Identity", [last], ["y"], "output"))

    def model(self) -> Any:
        """Return the file's content."""
        element_type = helper.np_dtype_to_tensor_dtype(self.dtype)
        x, y = (
            helper.make_tensor_value_info(name, element_type, ["N", width])
            for name, width in (("x", self.network.n_in), ("y", self.network.n_out))
        )
        graph = helper.make_graph(self.nodes, "network", [x], [y], self.constants)
        opsets, functions = [helper.make_opsetid("", OPSET)], []
        if any(node.domain == DOMAIN for node in self.nodes):
            opsets.append(helper.make_opsetid(DOMAIN, VERSION))
            functions.append(gelu(OPSET))
        model = helper.make_model(
            graph, opset_imports=opsets, functions=functions, ir_version=IR_VERSION,
            producer_name="clnet", producer_version=__version__,
        )
        columns = self.network.columns
        names = {
            "classes": self.network.classes,
            "columns": None if columns is None else columns.as_dict(),
        }
        helper.set_model_props(model, {
            f"{NAMES}{name}": json.dumps(value) for name, value in names.items()
            if value is not None
        })
        return model

    def node(self, op_type: str, *inputs: Any, **attributes: Any) -> str:
        """Append a node; return its output. Numbers become constants."""
        name = f"{op_type.lower()}{len(self.nodes)}"
        names = [value if isinstance(value, str) else self.constant(value)
                 for value in inputs]
        self.nodes.append(helper.make_node(op_type, names, [name], name, **attributes))
        return name

    def constant(self, values: ArrayLike, dtype: Any = None) -> str:
        """Append a constant, of the network's dtype or another; return its name."""
        if isinstance(values, float) and dtype is None:
            if values not in self._shared:
                self._shared[values] = self.constant(np.asarray(values))
            return self._shared[values]
        array = np.ascontiguousarray(values, dtype or self.dtype)
        array = array.reshape(np.shape(values))
        name = f"constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def _layer(self, number: int) -> str:
        """Append a layer, counted from 0; return its output."""
        network, layer = self.network, self.network.layers[number]
        sources = (number,) if layer.sources is None else layer.sources
        x = self.values[sources[0]]
        if len(sources) > 1:
            x = self.node("Concat", *map(self.values.__getitem__, sources), axis=1)
        inputs = [x, self._matrix(number)]
        if layer.bias:
            biases = np.broadcast_to(network.biases(number), layer.n_out)
            inputs.append(self.constant(biases))
        v = self.node("Gemm", *inputs, transB=1)
        steepness = np.asarray(layer.steepness)
        if (steepness != 1).any():
            v = self.node("Mul", v, steepness)
        names = np.resize(np.asarray(layer.activation), layer.n_out)
        if network.fann_compatible:
            v = self._limited(v, names, np.resize(steepness, layer.n_out))
        functions = sorted(set(names.tolist()))
        if len(functions) == 1:
            return self._activated(v, functions[0])
        groups = [np.flatnonzero(names == function) for function in functions]
        parts = [self._activated(self._columns(v, group), function)
                 for function, group in zip(functions, groups, strict=True)]
        together = self.node("Concat", *parts, axis=1)
        return self._columns(together, np.argsort(np.concatenate(groups)))

    def _columns(self, x: str, columns: Array) -> str:
        return self.node("Gather", x, self.constant(columns, np.int64), axis=1)

    def _matrix(self, number: int) -> str:
        """Return the matrix [n_out, n_in] of a layer."""
        matrix = self.network.matrices[number]
        if matrix.full:
            return self.constant(self.network.weights(number))
        rows, columns, _ = matrix.entries()
        shape = self.constant([matrix.n_out, matrix.n_in], np.int64)
        zero = numpy_helper.from_array(np.zeros(1, self.dtype))
        return self.node(
            "ScatterND", self.node("ConstantOfShape", shape, value=zero),
            self.constant(np.stack([rows, columns], axis=1), np.int64),
            self.constant(matrix.live_values(self.network.parameters)),
        )

    def _limited(self, v: str, names: Array, steepness: Array) -> str:
        """Return pre-activations clipped as FANN does."""
        limits = [
            math.inf if name in SOFTMAXES else sum_limit(activation(name), float(s))
            for name, s in zip(names, steepness, strict=True)
        ]
        if len(set(limits)) == 1:
            return self.node("Clip", v, -limits[0], limits[0])
        return self.node("Max", self.node("Min", v, limits), np.negative(limits))

    def _activated(self, v: str, name: str) -> str:
        """Return an activation of v."""
        if name in SOFTMAXES:
            return self.node("Softmax" if name == SOFTMAX else "LogSoftmax", v, axis=-1)
        row = activation(name)
        function = _FUNCTIONS[row.family]
        if self.dtype == np.float64 and row.name == "gelu":
            return self.node(GELU, v, domain=DOMAIN)
        if self.dtype == np.float64:
            function = _DOUBLE_FUNCTIONS.get(row.family, function)
        return function(self.node, v, *row.parameters)

    def _scaled(self, x: str, scaling: Any, side: str) -> str:
        """Return scaled inputs, or descaled outputs: in float64, as `Scaling` does."""
        mean, deviation, new_min, factor = (
            np.asarray(getattr(scaling, f"{name}_{side}"))
            for name in ("mean", "deviation", "new_min", "factor")
        )
        unused = deviation == 0
        mean, new_min = (np.where(unused, 0, constant) for constant in (mean, new_min))
        steps: tuple[tuple[str, Array], ...] = (
            ("Sub", mean), ("Div", np.where(unused, 1, deviation)),
            ("Add", np.where(unused, 0, 1)), ("Mul", np.where(unused, 1, factor)),
            ("Add", new_min),
        )
        if side == "out":
            inverse = {"Sub": "Add", "Add": "Sub", "Mul": "Div", "Div": "Mul"}
            steps = tuple((inverse[op_type], constant)
                          for op_type, constant in reversed(steps))
        x = self.node("Cast", x, to=onnx.TensorProto.DOUBLE)
        for op_type, constant in steps:
            x = self.node(op_type, x, self.constant(constant, np.float64))
        return self.node("Cast", x, to=helper.np_dtype_to_tensor_dtype(self.dtype))


Node = Callable[..., str]


def _choice(node: Node, v: str, low: float, high: float) -> str:
    return node("Where", node("Less", v, 0.0), low, high)


def _scaled_by(node: Node, y: str, factor: float, bias: float) -> str:
    return node("Add", node("Mul", y, factor), bias)


def _bell(node: Node, v: str) -> str:
    return node("Exp", node("Neg", node("Mul", v, v)))


def _stepwise(steps: Steps) -> Callable[[Node, str], str]:
    """Return FANN's piecewise linear function: the last piece that starts below v."""
    def function(node: Node, v: str) -> str:
        y: Any = float(round(steps.heights[0]))
        pieces = list(zip(steps.abscissae, steps.heights, strict=True))
        for (x0, y0), (x1, y1) in itertools.pairwise(pieces):
            line = _scaled_by(node, node("Sub", v, x0), (y1 - y0) / (x1 - x0), y0)
            y = node("Where", node("Less", v, x0), y, line)
        last = float(round(steps.heights[-1]))
        return node("Where", node("GreaterOrEqual", v, steps.abscissae[-1]), last, y)

    return function


def _gelu_tanh(node: Node, v: str) -> str:
    cubic = _scaled_by(node, node("Mul", v, v), 0.044715, 1.0)
    u = node("Mul", node("Mul", v, math.sqrt(8 / math.pi)), cubic)
    return node("Mul", v, node("Sigmoid", u))


def _clip(node: Node, v: str, low: float, high: float) -> str:
    """Return a clip; Clip takes a missing bound as the type's largest number."""
    if math.isinf(low):
        return node("Min", v, high)
    return node("Max", v, low) if math.isinf(high) else node("Clip", v, low, high)


_FUNCTIONS: dict[str, Callable[..., str]] = {
    "identity": lambda node, v: v,
    "threshold": lambda node, v: _choice(node, v, 0.0, 1.0),
    "threshold_symmetric": lambda node, v: _choice(node, v, -1.0, 1.0),
    "sigmoid": lambda node, v: node("Sigmoid", v),
    "sigmoid_stepwise": _stepwise(SIGMOID_STEPS),
    "tanh": lambda node, v: node("Tanh", v),
    "tanh_stepwise": _stepwise(TANH_STEPS),
    "gaussian": _bell,
    "gaussian_symmetric": lambda node, v: _scaled_by(node, _bell(node, v), 2.0, -1.0),
    "gaussian_stepwise": lambda node, v: _choice(node, v, 0.0, 0.0),
    "elliot": lambda node, v: _scaled_by(node, node("Softsign", v), 0.5, 0.5),
    "elliot_symmetric": lambda node, v: node("Softsign", v),
    "clip": _clip,
    "linear_piece": lambda node, v: node("Clip", v, 0.0, 1.0),
    "linear_piece_symmetric": lambda node, v: node("Clip", v, -1.0, 1.0),
    "sin_symmetric": lambda node, v: node("Sin", v),
    "cos_symmetric": lambda node, v: node("Cos", v),
    "sin": lambda node, v: _scaled_by(node, node("Sin", v), 0.5, 0.5),
    "cos": lambda node, v: _scaled_by(node, node("Cos", v), 0.5, 0.5),
    "relu": lambda node, v: node("Relu", v),
    "leaky_relu": lambda node, v, slope=LEAK: node("LeakyRelu", v, alpha=slope),
    "elu": lambda node, v, alpha=1.0: node("Elu", v, alpha=alpha),
    "selu": lambda node, v: node("Selu", v, alpha=SELU_ALPHA, gamma=SELU_SCALE),
    "gelu": lambda node, v: node(
        "Mul", v,
        _scaled_by(node, node("Erf", node("Mul", v, math.sqrt(0.5))), 0.5, 0.5)),
    "gelu_tanh": _gelu_tanh,
    "silu": lambda node, v: node("Mul", v, node("Sigmoid", v)),
    "mish": lambda node, v: node("Mul", v, node("Tanh", node("Softplus", v))),
    "hardswish": lambda node, v: node("HardSwish", v),
    "softplus": lambda node, v: node("Softplus", v),
}
"""Each row and family of `clnet.nn.activations`, made of ONNX's nodes."""


def _below_zero(node: Node, v: str, below: str, above: str) -> str:
    return node("Where", node("Less", v, 0.0), below, above)


def _elu(node: Node, v: str, alpha: float = 1.0) -> str:
    return _below_zero(node, v, _times_expm1(node, v, alpha), v)


def _times_expm1(node: Node, v: str, factor: float) -> str:
    """Return ``factor (e^v - 1)`` for v < 0, by t = tanh(v / 2): ``2 t / (1 - t)``."""
    t = node("Tanh", node("Mul", node("Min", v, 0.0), 0.5))
    return node("Div", node("Mul", t, 2 * factor), node("Sub", 1.0, t))


def _softplus(node: Node, v: str) -> str:
    """Return ``max(v, 0) + ln(1 + x)``; ``x ln u / (u - 1)`` mends u = 1 + x."""
    x = node("Exp", node("Neg", node("Abs", v)))
    u = node("Add", x, 1.0)
    quotient = node("Div", node("Mul", x, node("Log", u)), node("Sub", u, 1.0))
    logarithm = node("Where", node("Equal", u, 1.0), x, quotient)
    return node("Add", node("Max", v, 0.0), logarithm)


def _softsign(node: Node, v: str) -> str:
    return node("Div", v, node("Add", node("Abs", v), 1.0))


_DOUBLE_FUNCTIONS: dict[str, Callable[..., str]] = {
    "elliot": lambda node, v: _scaled_by(node, _softsign(node, v), 0.5, 0.5),
    "elliot_symmetric": _softsign,
    "leaky_relu": lambda node, v, slope=LEAK: _below_zero(
        node, v, node("Mul", v, slope), v),
    "elu": _elu,
    "selu": lambda node, v: _below_zero(
        node, v, _times_expm1(node, v, SELU_SCALE * SELU_ALPHA),
        node("Mul", v, SELU_SCALE)),
    "mish": lambda node, v: node("Mul", v, node("Tanh", _softplus(node, v))),
    "hardswish": lambda node, v: node(
        "Mul", v, node("Clip", _scaled_by(node, v, 1 / 6, 0.5), 0.0, 1.0)),
    "softplus": _softplus,
}
"""Those whose nodes ONNX Runtime lacks, or rounds to float32, in float64."""
