"""Nodes that are affine maps of each element: sums, factors, normalisation, maxima."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.formats.onnx.elementwise import clipped, composed, floats_only, of_terms
from clnet.formats.onnx.graph import RefusalError, attributes
from clnet.formats.onnx.recognise import recognised
from clnet.formats.onnx.trace import GraphTrace, Tensor, as_float, most_elements
from clnet.formats.onnx.values import Tracer

Array = NDArray[Any]


class Node:
    """A node without attributes."""

    def __init__(self, op_type: str) -> None:
        self.op_type: str = op_type
        self.attribute: tuple[()] = ()
        self.domain: str = ""


def added(trace: GraphTrace, node: Any, inputs: list[Any]) -> Sequence[Tensor]:
    """Return a sum, difference or mean."""
    floats_only(inputs)
    signs = [1.0, -1.0] if node.op_type == "Sub" else [1.0] * len(inputs)
    if node.op_type == "Mean":
        signs = [1 / len(inputs)] * len(inputs)
    inputs = _aligned(trace, node, inputs)
    shape = np.broadcast_shapes(*(tensor.shape for tensor in inputs))
    trace.take(most_elements(node, inputs))
    values, bias = [], np.zeros(shape)
    for tensor, sign in zip(inputs, signs, strict=True):
        if isinstance(tensor, Tracer):
            values.append(tensor.affine(sign * np.ones(shape)))
        else:
            bias = bias + sign * as_float(tensor)
    if len(values) == 1:
        return [values[0].affine(1.0, bias)]
    layouts = [trace.records.layout(value) for value in values]
    _, rest, axis = layouts[0]
    if any(layout[2] != axis for layout in layouts):
        raise RefusalError("mixes samples, or treats them differently")
    total = trace.sum_rows([layout[0] for layout in layouts])
    return [trace.records.value(total, rest, axis).affine(1.0, bias)]


def multiplied(trace: GraphTrace, node: Any, inputs: list[Any]) -> Sequence[Tensor]:
    """Return a product or quotient with a constant; of values: if it is a function."""
    floats_only(inputs)
    inputs = _aligned(trace, node, inputs)
    first, second = inputs
    trace.take(most_elements(node, inputs))
    if isinstance(first, Tracer) and isinstance(second, Tracer):
        return composed(trace, node, inputs)
    if isinstance(first, Tracer):
        factor = as_float(second)
        if node.op_type == "Div":
            factor = 1 / factor
        return [_finite(first.affine(factor))]
    if node.op_type == "Div":
        return composed(trace, node, inputs)
    return [_finite(second.affine(as_float(first)))]


def _finite(value: Tracer) -> Tracer:
    """Return a value; raise RefusalError if it is a number times infinity."""
    if not np.isfinite(value.scale).all():
        raise RefusalError("divides by zero, or multiplies by infinity")
    return value


def largest(trace: GraphTrace, node: Any, inputs: list[Any]) -> Sequence[Tensor]:
    """Return a maximum or minimum.

    It is a function of one variable, or a clip of each element at a number, or of
    values that differ, by relu: then it is as exact as the larger in size.
    """
    floats_only(inputs)
    values = [tensor for tensor in inputs if isinstance(tensor, Tracer)]
    shape = np.broadcast_shapes(*(tensor.shape for tensor in inputs))
    numbers = [as_float(tensor) for tensor in inputs if not isinstance(tensor, Tracer)]
    if len(values) == 1 and not all(
        np.isfinite(bound).all() and (bound == bound.flat[0]).all() for bound in numbers
    ):
        bounds = np.broadcast_arrays(*numbers, np.zeros(shape))[:-1]
        ends = (np.max(bounds, axis=0), np.full(shape, np.inf))
        if node.op_type == "Min":
            ends = (np.full(shape, -np.inf), np.min(bounds, axis=0))
        return [clipped(trace, values[0].affine(np.ones(shape)), *ends)]
    with suppress(RefusalError):
        outputs = composed(trace, node, inputs)
        assert isinstance(outputs[0], Tracer)
        record = trace.records.owner(trace.records.layout(outputs[0])[0])
        if record is not None and any(map(recognised, record.curves)):
            return outputs
    curves = [trace.records.curves(trace.records.layout(value)[0]) for value in values]
    if trace.joined(curves, lambda *functions: functions[0]):
        raise RefusalError("is no known function of one variable")
    if not all(np.isfinite([value.scale, value.bias]).all() for value in values):
        raise RefusalError("compares infinite numbers")
    # max(a, b) = a + relu(b - a), a not being constant, and min(a, b) = -max(-a, -b)
    inputs = sorted(inputs, key=lambda tensor: not isinstance(tensor, Tracer))
    sign = 1.0 if node.op_type == "Max" else -1.0
    total: Tracer = inputs[0].affine(sign * np.ones(shape))
    for tensor in inputs[1:]:
        other = (tensor.affine(sign) if isinstance(tensor, Tracer) else
                 sign * as_float(tensor))
        trace.take(total.codes.size)
        (difference,) = added(trace, Node("Sub"), [other, total])
        assert isinstance(difference, Tracer)
        above = of_terms(trace, difference, [(1, "relu", 1.0, 0.0)])
        (result,) = added(trace, Node("Add"), [total, above])
        assert isinstance(result, Tracer)
        total = result
    return [total.affine(sign)]


def negated(trace: GraphTrace, node: Any, inputs: list[Any]) -> Sequence[Tensor]:
    """Return the input's negative."""
    floats_only(inputs)
    return [inputs[0].affine(-1.0)]


def _aligned(trace: GraphTrace, node: Any, inputs: list[Any]) -> list[Any]:
    """Return the inputs; the second by the broadcasting of versions below 7."""
    options = attributes(node)
    if trace.version() >= 7 or "axis" not in options or not options.get("broadcast"):
        return inputs
    first, second = inputs
    missing = len(first.shape) - options["axis"] - len(second.shape)
    if isinstance(second, Tracer):
        raise RefusalError("broadcasts an input that is not constant")
    return [first, np.reshape(second, second.shape + (1,) * max(0, missing))]


def normalised(trace: GraphTrace, node: Any, inputs: list[Any]) -> Sequence[Tensor]:
    """Return a BatchNormalization as an affine map of each channel."""
    value, *constants = inputs
    floats_only(inputs)
    options = attributes(node)
    varying = any(isinstance(tensor, Tracer) for tensor in constants)
    if options.get("training_mode") or varying:
        raise RefusalError("is in training mode, expected inference")
    scale, bias, mean, variance = (as_float(tensor) for tensor in constants[:4])
    epsilon = options.get("epsilon", 1e-5)
    factor = scale / np.sqrt(variance + epsilon)
    shift = bias - mean * factor
    shape = (-1, *[1] * (len(value.shape) - 2))
    if factor.ndim != 1 or value.shape[1] != factor.size:
        raise RefusalError("has a wrong number of channels")
    return [value.affine(factor.reshape(shape), shift.reshape(shape))]
