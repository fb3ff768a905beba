"""The table of operators; nodes that copy, softmax, those of scikit-learn's exports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.formats.graphs.affine import NONE, Affine
from clnet.formats.graphs.arithmetic import (
    added,
    largest,
    multiplied,
    negated,
    normalised,
)
from clnet.formats.graphs.elementwise import (
    NODES,
    RULES,
    activated,
    by_rule,
    composed,
    prelu,
)
from clnet.formats.graphs.products import PROBED, gemm, matmul, probed, product
from clnet.formats.graphs.trace import (
    GraphTrace,
    Node,
    Operator,
    Refused,
    Tensor,
    as_float,
)
from clnet.formats.graphs.values import Activated, RefusalError, Tracer
from clnet.nn.activations import LOG_SOFTMAX, SOFTMAX

Array = NDArray[Any]

ML = "ai.onnx.ml"  # the domain of scikit-learn's operators


# --- copies --------------------------------------------------------------------------

COPIES = (
    "Identity", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Concat",
    "Slice", "Gather", "GatherElements", "GatherND", "Split", "Expand", "Tile", "Pad",
    "DepthToSpace", "SpaceToDepth", "Upsample",
)
"""Nodes whose output elements are elements of their inputs."""


def copied(trace: GraphTrace, node: Node, inputs: list[Any]) -> Sequence[Tensor]:
    """Run a node that only moves elements on their numbers, and gather by these."""
    options = node.options
    data = len(inputs) if node.op == "Concat" else 1
    if any(isinstance(tensor, Tracer) for tensor in inputs[data:]):
        raise RefusalError("reads places that depend on the input")
    trace.take(node.size(inputs))
    fill, others = 0.0, list(inputs[data:])
    if node.op == "Pad":
        if options.get("mode", "constant") == "constant":
            fill = options.get("value", 0.0)
        if len(others) > 1 and others[1] is not None:
            fill, others[1] = float(np.asarray(others[1]).item()), None
    values = [tensor if isinstance(tensor, Tracer) else constant_value(tensor)
              for tensor in inputs[:data]]
    numbers, at = [], 1  # 0: of an element that no input has
    for value in values:
        numbers.append(np.arange(at, at + value.atoms.size).reshape(value.shape))
        at += value.atoms.size
    arrays: list[Array] = []
    for start, parts in (([NONE], [value.atoms for value in values]),
                         ([0.0], [value.scale for value in values]),
                         ([fill], [value.bias for value in values])):
        arrays.append(np.concatenate([np.asarray(start), *map(np.ravel, parts)]))
    copies = node.outputs([*numbers, *others], without=("value",))  # the fill of Pad
    whole = any(value.whole for value in values)
    codes, scale, bias = arrays
    return [Tracer(codes[taken], scale[taken], bias[taken], whole) for taken in copies]


def constant_value(tensor: Any) -> Tracer:
    """Return a constant as a value."""
    array = as_float(tensor)
    return Tracer(np.full(array.shape, NONE), np.zeros(array.shape), array)


def same(trace: GraphTrace, node: Node, inputs: list[Any]) -> Sequence[Tensor]:
    """Return the first input."""
    return [inputs[0]]


def dropout(trace: GraphTrace, node: Node, inputs: list[Any]) -> Sequence[Tensor]:
    """Return the input: a network's inference drops nothing."""
    if len(inputs) > 2 and inputs[2] is not None and np.any(inputs[2]):
        raise RefusalError("is in training mode, expected inference")
    mask: Tensor = Refused(f"{trace.text} has a mask, which is of trainings")
    return [inputs[0], mask]


def cast(trace: GraphTrace, node: Node, inputs: list[Any]) -> Sequence[Tensor]:
    """Return the input as floats."""
    value = inputs[0]
    if node.op == "CastLike":
        like = inputs[1]
        known = (isinstance(like, Tracer) and not like.whole) or (
            isinstance(like, np.ndarray) and like.dtype.kind == "f"
            and like.dtype.itemsize > 2)
        if not known:
            raise RefusalError("casts to whole numbers, expected floats")
    elif node.options.get("to") not in (1, 11):  # float32, float64
        raise RefusalError("casts to a type other than float32 and float64")
    return [replace(value, whole=False)]


def shape_of(trace: GraphTrace, node: Node, inputs: list[Any]) -> Sequence[Tensor]:
    """Return the shape, or the number of elements, of the input."""
    trace.counted = True
    shaped = np.broadcast_to(np.float32(0), inputs[0].shape)
    return node.outputs([shaped])


def constant_like(trace: GraphTrace, node: Node, inputs: list[Any]) -> Sequence[Tensor]:
    """Refuse: the output depends on the input's numbers."""
    raise RefusalError("gives labels or numbers of places, expected floats")


# --- softmax -------------------------------------------------------------------------


def softmax(trace: GraphTrace, node: Node, inputs: list[Any]) -> Sequence[Tensor]:
    """Return softmax, or its logarithm, over an axis: a record for each group."""
    value = inputs[0]
    old = trace.version() < 13
    axis = node.options.get("axis", 1 if old else -1)
    dims = len(value.shape)
    if not -dims <= axis < dims:
        raise RefusalError(f"has the axis {axis} of {dims} dimensions")
    axis %= dims
    rows, shape, samples = trace.records.layout(value)
    if old:  # over all dimensions from the axis on
        if samples >= axis:
            raise RefusalError("mixes samples, or treats them differently")
        ends = [int(np.prod(shape[: axis - 1])), int(np.prod(shape[axis - 1 :]))]
        order = np.arange(len(rows)).reshape(ends)
    else:
        if samples == axis:
            raise RefusalError("mixes samples, or treats them differently")
        within = axis - (axis > samples)
        numbers = np.arange(len(rows)).reshape(shape)
        order = np.moveaxis(numbers, within, -1).reshape(-1, shape[within])
    trace.take(len(order) * 10)
    name = SOFTMAX if node.op == "Softmax" else LOG_SOFTMAX
    atoms = np.full(len(rows), NONE)
    for group in order:
        record = Activated(trace.text, len(group), rows[group], name)
        atoms[group] = trace.records.add(record).atoms
    return [trace.records.value(Affine.of(atoms), shape, samples)]


# --- scikit-learn's ------------------------------------------------------------------


def scaler(trace: GraphTrace, node: Node, inputs: list[Any]) -> Sequence[Tensor]:
    """Return ``(x - offset) * scale``."""
    options = node.options
    scale, offset = (as_float(options.get(name, default))
                     for name, default in (("scale", [1.0]), ("offset", [0.0])))
    return [replace(inputs[0], whole=False).affine(scale, -offset * scale)]


def normalizer(trace: GraphTrace, node: Node, inputs: list[Any]) -> Sequence[Tensor]:
    """Return the input if its numbers are known to be positive, with the sum 1."""
    rows, shape, _ = trace.records.layout(inputs[0])
    if node.options.get("norm", "MAX") == "L1" and len(shape) == 1:
        record = trace.records.owner(rows)
        if isinstance(record, Activated):
            whole = len(rows) == record.size == len(np.unique(rows.atoms))
            if record.activation == SOFTMAX and whole and rows.plain:
                return [inputs[0]]
            pair = len(rows) == 2 and rows.atoms[0] == rows.atoms[1]
            if (
                record.activation == "sigmoid" and pair
                and sorted(zip(rows.scale, rows.bias, strict=True)) == [(-1, 1), (1, 0)]
            ):
                return [inputs[0]]
    raise RefusalError("divides samples by their norm, which is not affine")


def linear_model(trace: GraphTrace, node: Node, inputs: list[Any]) -> Sequence[Tensor]:
    """Return the scores of a LinearRegressor or LinearClassifier, and refuse labels."""
    options = node.options
    value = replace(inputs[0], whole=False)
    regressor = node.op == f"{ML}:LinearRegressor"
    weights = as_float(options.get("coefficients", []))
    if len(value.shape) != 2 or not value.shape[1] or weights.size % value.shape[1]:
        raise RefusalError("has a wrong number of coefficients")
    weights = weights.reshape(-1, value.shape[1])
    n = len(weights)
    bias = as_float(options.get("intercepts", [0.0] * n))
    if bias.size != n:
        raise RefusalError("has a wrong number of intercepts")
    scores = product(trace, value, weights.T, bias)
    post = options.get("post_transform", "NONE")
    post = post if isinstance(post, str) else "?"
    labels = options.get("classlabels_ints") or options.get("classlabels_strings") or []
    rows, shape, axis = trace.records.layout(scores)
    if post == "LOGISTIC":
        rows = activated(trace, rows, "sigmoid")
    elif post == "SOFTMAX" and n > 1:
        rows = trace.records.add(Activated(trace.text, n, rows, SOFTMAX))
    elif post != "NONE":
        raise RefusalError(f"has the post_transform {post}")
    if not regressor and n == 1 and len(labels) == 2:
        if post == "SOFTMAX":
            raise RefusalError("has a softmax of one score")
        # The first class has the rest of the probability, or the opposite score.
        first = rows.affine(-1.0, 1.0 if post == "LOGISTIC" else 0.0)
        rows = Affine.joined([first, rows])
        shape = (2,)
    outputs = trace.records.value(rows, shape, axis)
    if regressor:
        return [outputs]
    return [Refused(f"{trace.text} gives labels, expected floats"), outputs]


OPERATORS: dict[str, Operator] = {
    **dict.fromkeys(NODES, composed),
    **dict.fromkeys(RULES, by_rule),
    **dict.fromkeys(COPIES, copied),
    **dict.fromkeys(PROBED, probed),
    **dict.fromkeys(("Add", "Sub", "Sum", "Mean"), added),
    **dict.fromkeys(("Mul", "Div"), multiplied),
    **dict.fromkeys(("Cast", "CastLike"), cast),
    **dict.fromkeys(("Shape", "Size"), shape_of),
    **dict.fromkeys(("Softmax", "LogSoftmax"), softmax),
    **dict.fromkeys(("ArgMax", "ArgMin", f"{ML}:ArrayFeatureExtractor",
                     f"{ML}:LabelEncoder", "TopK"), constant_like),
    **dict.fromkeys(("Max", "Min"), largest),
    "PRelu": prelu, "Neg": negated, "Dropout": dropout,
    "BatchNormalization": normalised,
    "Gemm": gemm, "MatMul": matmul, f"{ML}:Scaler": scaler, f"{ML}:ZipMap": same,
    f"{ML}:Normalizer": normalizer, f"{ML}:LinearRegressor": linear_model,
    f"{ML}:LinearClassifier": linear_model,
}
"""Nodes of values, by their types."""

FOLDABLE = frozenset({
    *NODES, *RULES, *COPIES, "Cast", "CastLike", "Shape", "Size", "Constant",
    "ConstantOfShape", "Range", "MatMul", "Gemm", "ReduceSum", "ReduceProd",
    "ReduceMean", "ReduceMax", "ReduceMin", "EyeLike", "ScatterND", "ScatterElements",
    "Mod", "Dropout", "Floor", "Ceil", "Round", "Tan", "Atan", "Asinh", "IsNaN",
})
"""Nodes of constants."""

OF_WHOLES = frozenset({
    *COPIES, "Cast", "CastLike", "Shape", "Size", "ArgMax", "ArgMin", "TopK", "Dropout",
    *(name for name in OPERATORS if name.startswith(ML) and name not in NODES),
})
"""Nodes that take whole numbers too, whose arithmetic differs from that of floats."""


def outputs_of(trace: GraphTrace, node: Node, inputs: list[Any]) -> Sequence[Tensor]:
    """Return a node's outputs, or raise RefusalError."""
    if not any(isinstance(tensor, Tracer) for tensor in inputs):
        if node.op not in FOLDABLE:
            raise RefusalError("is of no type that feed-forward networks hold")
        trace.take(node.size(inputs))
        return node.outputs(inputs)
    if node.op not in OPERATORS:
        raise RefusalError("is of no type that feed-forward networks hold")
    if node.op not in OF_WHOLES and any(
        isinstance(tensor, Tracer) and tensor.whole for tensor in inputs
    ):
        raise RefusalError("computes with whole numbers, expected floats")
    return OPERATORS[node.op](trace, node, inputs)
