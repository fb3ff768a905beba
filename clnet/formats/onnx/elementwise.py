"""Elementwise nodes: exact sums of activations, or functions of one variable."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.formats.onnx.graph import RefusalError, attributes, evaluate
from clnet.formats.onnx.trace import Tensor, Trace, as_float, scalar
from clnet.formats.onnx.values import Activated, Composite, Rows, Value
from clnet.nn.activations import (
    LEAK,
    SELU_ALPHA,
    SELU_SCALE,
    activation,
    with_parameters,
)

Array = NDArray[Any]
Term = tuple[Any, str | None, float, float]
"""Of ``c f(s x + b)``: c, f (None: the identity), s and b."""

LARGEST = 3e38  # a bound of more is none: exporters write float32's largest
LOGICAL = frozenset({"And", "Or", "Xor", "Not"})
COMPARISONS = frozenset({
    "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal", "IsNaN"})
FUNCTIONS = frozenset({
    "Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Where", "Exp", "Log", "Sqrt",
    "Reciprocal", "Erf", "Tanh", "Sigmoid", "Abs", "Neg", "Sinh", "Cosh", "Tan", "Sign",
    "Sum", "Mean", *COMPARISONS,
    "Floor", "Ceil", "Round", "Atan", "Asinh", *LOGICAL,
})
"""Nodes that functions of one variable are made of."""


def activated(trace: Trace, rows: Rows, name: str) -> Rows:
    """Return an activation of rows."""
    record = Activated(trace.text, len(rows), rows, name)
    function = activation(name).value
    return trace.add(record, trace.joined(
        [trace.records.curves(rows)], lambda parts: function(parts[0])))


def of_terms(trace: Trace, value: Value, terms: Sequence[Term], bias: Any = 0) -> Value:
    """Return a sum of activations of a value; factors may be arrays."""
    rows, shape, axis = trace.records.layout(value)
    parts = []
    for factor, name, scale, shift in terms:
        part = rows.affine(scale, shift)
        if name is not None:
            part = activated(trace, part, name)
        factors = np.broadcast_to(np.asarray(factor, np.float64), value.shape)
        flat = np.moveaxis(factors, axis, 0).reshape(trace.batch, -1)
        if (flat != flat[0]).any():
            raise RefusalError("treats samples differently")
        parts.append(part.affine(flat[0]))
    found = parts[0] if len(parts) == 1 else trace.sum_rows(parts)
    return trace.records.value(found.affine(1.0, bias), shape, axis)


def simple(name: str) -> Callable[..., Any]:
    """Return the rule of a node that is an activation."""
    return lambda given, *_: ([(1, name, 1.0, 0.0)], 0)


def prelu(trace: Trace, node: Any, inputs: list[Any]) -> Sequence[Tensor]:
    """Return a PRelu, whose slopes versions below 7 had along the channels."""
    value, slope = inputs
    if isinstance(slope, np.ndarray) and trace.version() < 7 and slope.ndim == 1:
        slope = slope.reshape(-1, *[1] * (len(value.shape) - 2))
    return by_rule(trace, node, [value, slope])


def _leaky(slope: Any) -> Any:
    one = scalar(slope)
    if one is None:  # exact too: one of both terms is zero
        return [(1, "relu", 1.0, 0.0), (-slope, "relu", -1.0, 0.0)], 0
    name = with_parameters("leaky_relu", one)
    return [(1, "leaky_relu" if np.float32(one) == np.float32(LEAK) else name,
             1.0, 0.0)], 0


def _elu(given: dict[str, Any], *_: Any) -> Any:
    return [(1, with_parameters("elu", given.get("alpha", 1.0)), 1.0, 0.0)], 0


def _selu(given: dict[str, Any], *_: Any) -> Any:
    alpha, gamma = given.get("alpha", SELU_ALPHA), given.get("gamma", SELU_SCALE)
    pair, usual = (np.asarray(one, np.float32)
                   for one in ((alpha, gamma), (SELU_ALPHA, SELU_SCALE)))
    if (pair == usual).all():
        return [(1, "selu", 1.0, 0.0)], 0
    return [(gamma, with_parameters("elu", alpha), 1.0, 0.0)], 0


def _celu(given: dict[str, Any], *_: Any) -> Any:
    alpha = given.get("alpha", 1.0)
    return [(alpha, "elu", 1 / alpha, 0.0)], 0


def _bound(tensor: Any) -> float:
    """Return the one number of a constant."""
    found = scalar(as_float(tensor))
    if found is None:
        raise RefusalError("has bounds of several numbers, expected one each")
    return found


def _clip(given: dict[str, Any], low: Any = None, high: Any = None) -> Any:
    low, high = given.get("min", low), given.get("max", high)
    low, high = (None if one is None else _bound(one) for one in (low, high))
    low = -math.inf if low is None or low < -LARGEST else low
    high = math.inf if high is None or high > LARGEST else high
    if low >= high:
        raise RefusalError(f"has bounds of {low} and {high}, expected rising ones")
    return [(1, with_parameters("clip", low, high), 1.0, 0.0)], 0


def _hard_sigmoid(given: dict[str, Any], *_: Any) -> Any:
    return [(1, "linear_piece", given.get("alpha", 0.2), given.get("beta", 0.5))], 0


def _thresholded(given: dict[str, Any], *_: Any) -> Any:
    alpha = given.get("alpha", 1.0)
    return [(1, "relu", 1.0, -alpha), (-alpha, "threshold", -1.0, alpha)], alpha


def _shrink(given: dict[str, Any], *_: Any) -> Any:
    limit, bias = given.get("lambd", 0.5), given.get("bias", 0.0)
    terms: list[Term] = [(1, "relu", 1.0, -limit), (-1, "relu", -1.0, -limit)]
    if limit != bias:
        terms += [(bias - limit, "threshold", -1.0, limit),
                  (limit - bias, "threshold", 1.0, limit)]
    return terms, 0


def _gelu(given: dict[str, Any], *_: Any) -> Any:
    tanh = given.get("approximate", "none") == "tanh"
    return [(1, "gelu_tanh" if tanh else "gelu", 1.0, 0.0)], 0


def _swish(given: dict[str, Any], *_: Any) -> Any:
    alpha = given.get("alpha", 1.0)
    return [(1 / alpha, "silu", alpha, 0.0)], 0


def _binarizer(given: dict[str, Any], *_: Any) -> Any:
    return [(-1, "threshold", -1.0, given.get("threshold", 0.0))], 1


RULES: dict[str, Callable[..., Any]] = {
    "Relu": simple("relu"), "Sigmoid": simple("sigmoid"), "Tanh": simple("tanh"),
    "Softplus": simple("softplus"), "Softsign": simple("elliot_symmetric"),
    "Sin": simple("sin_symmetric"), "Cos": simple("cos_symmetric"),
    "Mish": simple("mish"), "HardSwish": simple("hardswish"), "Gelu": _gelu,
    "LeakyRelu": lambda given: _leaky(np.asarray(given.get("alpha", 0.01))),
    "PRelu": lambda given, slope: _leaky(as_float(slope)),
    "Elu": _elu, "Selu": _selu, "Celu": _celu, "Clip": _clip,
    "HardSigmoid": _hard_sigmoid, "ThresholdedRelu": _thresholded, "Shrink": _shrink,
    "Swish": _swish, "ai.onnx.ml:Binarizer": _binarizer,
    "Abs": lambda _: ([(1, "relu", 1.0, 0.0), (1, "relu", -1.0, 0.0)], 0),
    "Sign": lambda _: ([(1, "threshold", 1.0, 0.0), (-1, "threshold", -1.0, 0.0)], 0),
}
"""The terms and the constant of each node that is a sum of activations."""


def by_rule(trace: Trace, node: Any, inputs: list[Any]) -> Sequence[Tensor]:
    """Return the output of a node of `RULES`."""
    value, *others = inputs
    if not isinstance(value, Value) or any(isinstance(one, Value) for one in others):
        raise RefusalError("has parameters that depend on the input")
    floats_only(inputs)
    key = f"{node.domain}:{node.op_type}" if node.domain else node.op_type
    terms, bias = RULES[key](attributes(node), *others)
    trace.take(value.codes.size * len(terms))
    return [of_terms(trace, value, terms, bias)]


def bounded(trace: Trace, kind: str, inputs: Sequence[Any]) -> Value | None:
    """Return a Max or Min of a value and numbers, a clip; None: it is none."""
    values = [one for one in inputs if isinstance(one, Value)]
    numbers = [scalar(one) for one in inputs if not isinstance(one, Value)]
    known = [number for number in numbers if number is not None]
    shape = np.broadcast_shapes(*(one.shape for one in inputs))
    if len(values) != 1 or not known or known != numbers or values[0].shape != shape:
        return None
    low, high = max(known), min(known)
    pair = (low, math.inf) if kind == "Max" else (-math.inf, high)
    trace.take(values[0].codes.size)
    return of_terms(trace, values[0], [(1, with_parameters("clip", *pair), 1.0, 0.0)])


def composed(trace: Trace, node: Any, inputs: list[Any]) -> Sequence[Tensor]:
    """Return the output of a node that is a function of one variable."""
    floats_only(inputs)
    arrays = [one for one in inputs if one is not None]
    shape = np.broadcast_shapes(*(one.shape for one in arrays))
    trace.take(int(np.prod(shape, dtype=object)) + trace.graph.room.found // 1000)
    curves, places, constants = [], [], {}
    layouts = []
    for place, one in enumerate(arrays):
        if isinstance(one, Value):
            layouts.append(trace.records.layout(one.affine(np.ones(shape))))
            curves.append(trace.records.curves(layouts[-1][0]))
            places.append(place)
        else:
            constant = scalar(one)
            if constant is None:
                raise RefusalError("is not affine, and its constants are not all alike")
            constants[place] = constant
    rows, rest, axis = layouts[0]
    if any(one[2] != axis for one in layouts):
        raise RefusalError("mixes samples, or treats them differently")

    def function(parts: list[Array]) -> Array:
        found: dict[int, Any] = dict(zip(places, parts, strict=True))
        for place, constant in constants.items():
            found[place] = np.asarray(constant)
        for place in found:
            logical = node.op_type in LOGICAL or (
                node.op_type == "Where" and place == 0)
            found[place] = np.asarray(found[place], bool if logical else np.float64)
        (result,) = evaluate(node, [found[k] for k in range(len(arrays))],
                             trace.graph.versions)
        decided = result[np.isfinite(trace.records.points)]
        if node.op_type in (*COMPARISONS, *LOGICAL) and (
            decided == decided[0]
        ).all():
            raise RefusalError("compares where no point of its proof decides otherwise")
        return result.astype(np.float64)

    joined = trace.joined(curves, function)
    if not joined:
        raise RefusalError("is neither affine nor a function of one variable")
    record = Composite(trace.text, len(rows))
    return [trace.records.value(trace.add(record, joined), rest, axis)]


def floats_only(inputs: Sequence[Any]) -> None:
    """Raise RefusalError if a value is of whole numbers, whose arithmetic differs."""
    if any(isinstance(one, Value) and one.whole for one in inputs):
        raise RefusalError("computes with whole numbers, expected floats")
