"""Elementwise nodes: exact sums of activations, or functions of one variable."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.formats.graphs import piecewise
from clnet.formats.graphs.algebra import LARGEST
from clnet.formats.graphs.piecewise import Piecewise, chosen, compared, logical
from clnet.formats.graphs.trace import GraphTrace, Node, Tensor, as_float, scalar
from clnet.formats.graphs.values import (
    Activated,
    Composite,
    RefusalError,
    Term,
    Tracer,
)
from clnet.nn.activations import LEAK, SELU_ALPHA, SELU_SCALE, with_parameters

if TYPE_CHECKING:
    from clnet.formats.graphs.affine import Affine

Array = NDArray[Any]

DOMAIN, GELU = "clnet", "Gelu"  # of a function that clnet's own files hold


def activated(trace: GraphTrace, rows: Affine, name: str) -> Affine:
    """Return an activation of rows."""
    record = Activated(trace.text, len(rows), rows, name)
    return trace.add(record, trace.joined(
        [trace.records.curves(rows)], partial(piecewise.activated, name)))


def of_terms(trace: GraphTrace, value: Tracer, terms: Sequence[Term]) -> Tracer:
    """Return a sum of activations of a value; factors may be arrays."""
    rows, shape, axis = trace.records.layout(value)
    parts = []
    for factor, name, scale, shift in terms:
        part = activated(trace, rows.affine(scale, shift), name)
        factors = np.broadcast_to(np.asarray(factor, np.float64), value.shape)
        parts.append(part.affine(trace.records.shared(factors, axis)))
    total = parts[0] if len(parts) == 1 else trace.sum_rows(parts)
    return trace.records.value(total, shape, axis)


def clipped(trace: GraphTrace, value: Tracer, low: Array, high: Array) -> Tracer:
    """Return a value between bounds of each element, arrays of its shape."""
    rows, shape, axis = trace.records.layout(value)
    bounds = (trace.records.shared(bound, axis).tolist() for bound in (low, high))
    names = tuple(
        with_parameters("clip", *pair) for pair in zip(*bounds, strict=True))
    record = Activated(trace.text, len(rows), rows, names)
    return trace.records.value(trace.records.add(record), shape, axis)


def simple(name: str) -> Callable[..., list[Term]]:
    """Return the rule of a node that is an activation."""
    return lambda options, *_: [(1, name, 1.0, 0.0)]


def prelu(trace: GraphTrace, node: Node, inputs: list[Any]) -> Sequence[Tensor]:
    """Return a PRelu, whose slopes versions below 7 had along the channels."""
    value, slope = inputs
    if isinstance(slope, np.ndarray) and trace.version() < 7 and slope.ndim == 1:
        slope = slope.reshape(-1, *[1] * (len(value.shape) - 2))
    return by_rule(trace, node, [value, slope])


def _leaky(slope: Any) -> list[Term]:
    number = scalar(slope)
    if number is None:  # exact too: one of both terms is zero
        return [(1, "relu", 1.0, 0.0), (-slope, "relu", -1.0, 0.0)]
    name = with_parameters("leaky_relu", number)
    return [(1, "leaky_relu" if np.float32(number) == np.float32(LEAK) else name,
             1.0, 0.0)]


def _elu(options: dict[str, Any], *_: Any) -> list[Term]:
    return [(1, with_parameters("elu", options.get("alpha", 1.0)), 1.0, 0.0)]


def _selu(options: dict[str, Any], *_: Any) -> list[Term]:
    alpha, gamma = options.get("alpha", SELU_ALPHA), options.get("gamma", SELU_SCALE)
    pair, usual = (np.asarray(constants, np.float32)
                   for constants in ((alpha, gamma), (SELU_ALPHA, SELU_SCALE)))
    if (pair == usual).all():
        return [(1, "selu", 1.0, 0.0)]
    return [(gamma, with_parameters("elu", alpha), 1.0, 0.0)]


def _celu(options: dict[str, Any], *_: Any) -> list[Term]:
    alpha = options.get("alpha", 1.0)
    return [(alpha, "elu", 1 / alpha, 0.0)]


def _bound(tensor: Any) -> float:
    """Return the one number of a constant."""
    number = scalar(as_float(tensor))
    if number is None:
        raise RefusalError("has bounds of several numbers, expected one each")
    return number


def _clip(options: dict[str, Any], low: Any = None, high: Any = None) -> list[Term]:
    low, high = options.get("min", low), options.get("max", high)
    low, high = (None if bound is None else _bound(bound) for bound in (low, high))
    low = -math.inf if low is None or low < -LARGEST else low
    high = math.inf if high is None or high > LARGEST else high
    if low >= high:
        raise RefusalError(f"has bounds of {low} and {high}, expected rising ones")
    return [(1, with_parameters("clip", low, high), 1.0, 0.0)]


def _hard_sigmoid(options: dict[str, Any], *_: Any) -> list[Term]:
    return [(1, "linear_piece", options.get("alpha", 0.2), options.get("beta", 0.5))]


def _gelu(options: dict[str, Any], *_: Any) -> list[Term]:
    tanh = options.get("approximate", "none") == "tanh"
    return [(1, "gelu_tanh" if tanh else "gelu", 1.0, 0.0)]


def _swish(options: dict[str, Any], *_: Any) -> list[Term]:
    alpha = options.get("alpha", 1.0)
    return [(1 / alpha, "silu", alpha, 0.0)]


RULES: dict[str, Callable[..., list[Term]]] = {
    "Relu": simple("relu"), "Sigmoid": simple("sigmoid"), "Tanh": simple("tanh"),
    "Softplus": simple("softplus"), "Softsign": simple("elliot_symmetric"),
    "Sin": simple("sin_symmetric"), "Cos": simple("cos_symmetric"),
    "Mish": simple("mish"), "HardSwish": simple("hardswish"), "Gelu": _gelu,
    f"{DOMAIN}:{GELU}": simple("gelu"),
    "LeakyRelu": lambda options: _leaky(np.asarray(options.get("alpha", 0.01))),
    "PRelu": lambda options, slope: _leaky(as_float(slope)),
    "Elu": _elu, "Selu": _selu, "Celu": _celu, "Clip": _clip,
    "HardSigmoid": _hard_sigmoid, "Swish": _swish,
}
"""The terms of each node that is a sum of activations."""


def by_rule(trace: GraphTrace, node: Node, inputs: list[Any]) -> Sequence[Tensor]:
    """Return the output of a node of `RULES`."""
    value, *others = inputs
    varying = [isinstance(tensor, Tracer) for tensor in inputs]
    if not varying[0] or any(varying[1:]):
        raise RefusalError("has parameters that depend on the input")
    terms = RULES[node.op](node.options, *others)
    trace.take(value.atoms.size * len(terms))
    return [of_terms(trace, value, terms)]


def composed(trace: GraphTrace, node: Node, inputs: list[Any]) -> Sequence[Tensor]:
    """Return the output of a node that is a function of one variable."""
    arrays = [tensor for tensor in inputs if tensor is not None]
    shape = np.broadcast_shapes(*(tensor.shape for tensor in arrays))
    trace.take(int(np.prod(shape, dtype=object)) + trace.room.file_size // 1000)
    curves, constants, layouts = [], {}, []
    for position, tensor in enumerate(arrays):
        if isinstance(tensor, Tracer):
            layouts.append(trace.records.layout(tensor.affine(np.ones(shape))))
            curves.append(trace.records.curves(layouts[-1][0]))
        else:
            constant = scalar(tensor)
            if constant is None:
                raise RefusalError("is not affine, and its constants are not all alike")
            constants[position] = constant
    rows, rest, axis = layouts[0]
    if any(layout[2] != axis for layout in layouts):
        raise RefusalError("mixes samples, or treats them differently")

    rule = NODES[node.op]

    def function(*parts: Piecewise) -> Piecewise:
        operands = iter(parts)
        return rule(node.options, *(
            Piecewise.of(constants[position]) if position in constants else
            next(operands) for position in range(len(arrays))))

    joined = trace.joined(curves, function)
    if not joined:
        raise RefusalError("is neither affine nor a known function of one variable")
    record = Composite(trace.text, len(rows))
    return [trace.records.value(trace.add(record, joined), rest, axis)]


def _thresholded(options: dict[str, Any], v: Piecewise) -> Piecewise:
    above = compared("greater", v, Piecewise.of(options.get("alpha", 1.0)))
    return chosen(above, v, piecewise.ZERO)


def _shrink(options: dict[str, Any], v: Piecewise) -> Piecewise:
    limit, bias = options.get("lambd", 0.5), options.get("bias", 0.0)
    above = compared("greater", v, Piecewise.of(limit))
    below = compared("less", v, Piecewise.of(-limit))
    return chosen(below, v.affine(1, bias), chosen(
        above, v.affine(1, -bias), piecewise.ZERO))


def _mean(_: dict[str, Any], *terms: Piecewise) -> Piecewise:
    return piecewise.summed(*terms).affine(1 / len(terms), 0)


def _of(function: Callable[..., Piecewise], *first: Any) -> Callable[..., Piecewise]:
    """Return the rule of a node without attributes."""
    return lambda _, *operands: function(*first, *operands)


NODES: dict[str, Callable[..., Piecewise]] = {
    "Add": _of(operator.add), "Sub": _of(operator.sub), "Mul": _of(operator.mul),
    "Div": _of(operator.truediv), "Neg": _of(operator.neg),
    "Sum": _of(piecewise.summed), "Mean": _mean,
    "Pow": _of(piecewise.power), "Sqrt": _of(piecewise.sqrt),
    "Reciprocal": _of(operator.truediv, piecewise.UNIT),
    "Exp": _of(piecewise.exp), "Log": _of(piecewise.log), "Erf": _of(piecewise.erf),
    "Sinh": _of(piecewise.sinh), "Cosh": _of(piecewise.cosh),
    "Abs": _of(piecewise.absolute), "Sign": _of(piecewise.sign),
    "Max": lambda _, *operands: reduce(piecewise.maximum, operands),
    "Min": lambda _, *operands: reduce(piecewise.minimum, operands),
    "Where": _of(chosen),
    "Greater": _of(compared, "greater"), "Less": _of(compared, "less"),
    "GreaterOrEqual": _of(compared, "greater_equal"),
    "LessOrEqual": _of(compared, "less_equal"), "Equal": _of(compared, "equal"),
    "And": _of(logical, "logical_and"), "Or": _of(logical, "logical_or"),
    "Xor": _of(logical, "logical_xor"), "Not": _of(logical, "logical_not"),
    "ThresholdedRelu": _thresholded, "Shrink": _shrink,
    "ai.onnx.ml:Binarizer": lambda options, v: compared(
        "greater", v, Piecewise.of(options.get("threshold", 0.0))),
}
"""Nodes that functions of one variable are made of."""
