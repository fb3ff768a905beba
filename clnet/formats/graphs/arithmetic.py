"""Nodes that are affine maps of each element: sums, factors, normalisation, maxima."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.formats.graphs.elementwise import clipped, composed, of_terms
from clnet.formats.graphs.recognise import recognised
from clnet.formats.graphs.trace import (
    GraphTrace,
    Node,
    Tensor,
    as_float,
)
from clnet.formats.graphs.values import RefusalError, Tracer

Array = NDArray[Any]


def total_of(
    trace: GraphTrace, inputs: Sequence[Any], signs: Sequence[float]
) -> Tracer:
    """Return a sum of values and constants, each with its sign or share."""
    shape = np.broadcast_shapes(*(tensor.shape for tensor in inputs))
    trace.take(int(np.prod(shape, dtype=object)))
    values, bias = [], np.zeros(shape)
    for tensor, sign in zip(inputs, signs, strict=True):
        if isinstance(tensor, Tracer):
            values.append(tensor.affine(sign * np.ones(shape)))
        else:
            bias = bias + sign * as_float(tensor)
    if len(values) == 1:
        return values[0].affine(1.0, bias)
    layouts = [trace.records.layout(value) for value in values]
    _, rest, axis = layouts[0]
    if any(layout[2] != axis for layout in layouts):
        raise RefusalError("mixes samples, or treats them differently")
    total = trace.sum_rows([layout[0] for layout in layouts])
    return trace.records.value(total, rest, axis).affine(1.0, bias)


def added(trace: GraphTrace, node: Node, inputs: list[Any]) -> Sequence[Tensor]:
    """Return a sum, difference or mean."""
    signs = [1.0, -1.0] if node.op == "Sub" else [1.0] * len(inputs)
    if node.op == "Mean":
        signs = [1 / len(inputs)] * len(inputs)
    return [total_of(trace, _aligned(trace, node, inputs), signs)]


def multiplied(trace: GraphTrace, node: Node, inputs: list[Any]) -> Sequence[Tensor]:
    """Return a product or quotient with a constant; of values: if it is a function."""
    inputs = _aligned(trace, node, inputs)
    first, second = inputs
    shape = np.broadcast_shapes(first.shape, second.shape)
    trace.take(int(np.prod(shape, dtype=object)))
    if isinstance(first, Tracer) and isinstance(second, Tracer):
        return composed(trace, node, inputs)
    if isinstance(first, Tracer):
        factor = as_float(second)
        if node.op == "Div":
            factor = 1 / factor
        return [_finite(first.affine(factor))]
    if node.op == "Div":
        return composed(trace, node, inputs)
    return [_finite(second.affine(as_float(first)))]


def _finite(value: Tracer) -> Tracer:
    """Return a value; raise RefusalError if it is a number times infinity."""
    if not np.isfinite(value.scale).all():
        raise RefusalError("divides by zero, or multiplies by infinity")
    return value


def largest(trace: GraphTrace, node: Node, inputs: list[Any]) -> Sequence[Tensor]:
    """Return a maximum or minimum.

    It is a function of one variable, or a clip of each element at a number, or of
    values that differ, by relu: then it is as exact as the larger in size.
    """
    values = [tensor for tensor in inputs if isinstance(tensor, Tracer)]
    shape = np.broadcast_shapes(*(tensor.shape for tensor in inputs))
    numbers = [as_float(tensor) for tensor in inputs if not isinstance(tensor, Tracer)]
    if len(values) == 1 and not all(
        np.isfinite(bound).all() and (bound == bound.flat[0]).all() for bound in numbers
    ):
        bounds = np.broadcast_arrays(*numbers, np.zeros(shape))[:-1]
        ends = (np.max(bounds, axis=0), np.full(shape, np.inf))
        if node.op == "Min":
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
    sign = 1.0 if node.op == "Max" else -1.0
    total: Tracer = inputs[0].affine(sign * np.ones(shape))
    for tensor in inputs[1:]:
        other = (tensor.affine(sign) if isinstance(tensor, Tracer) else
                 sign * as_float(tensor))
        trace.take(total.atoms.size)
        difference = total_of(trace, [other, total], [1.0, -1.0])
        above = of_terms(trace, difference, [(1, "relu", 1.0, 0.0)])
        total = total_of(trace, [total, above], [1.0, 1.0])
    return [total.affine(sign)]


def negated(trace: GraphTrace, node: Node, inputs: list[Any]) -> Sequence[Tensor]:
    """Return the input's negative."""
    return [inputs[0].affine(-1.0)]


def _aligned(trace: GraphTrace, node: Node, inputs: list[Any]) -> list[Any]:
    """Return the inputs; the second by the broadcasting of versions below 7."""
    options = node.options
    if trace.version() >= 7 or "axis" not in options or not options.get("broadcast"):
        return inputs
    first, second = inputs
    missing = len(first.shape) - options["axis"] - len(second.shape)
    if isinstance(second, Tracer):
        raise RefusalError("broadcasts an input that is not constant")
    return [first, np.reshape(second, second.shape + (1,) * max(0, missing))]


def normalised(trace: GraphTrace, node: Node, inputs: list[Any]) -> Sequence[Tensor]:
    """Return a BatchNormalization as an affine map of each channel."""
    value, *constants = inputs
    options = node.options
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
