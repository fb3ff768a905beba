"""Linear nodes, those that copy, softmax, and those of scikit-learn's exports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.formats.onnx.elementwise import (
    FUNCTIONS,
    RULES,
    activated,
    by_rule,
    composed,
    floats_only,
    of_terms,
    prelu,
)
from clnet.formats.onnx.graph import ML, RefusalError, attributes, evaluate
from clnet.formats.onnx.recognise import recognised
from clnet.formats.onnx.trace import (
    Operator,
    Refused,
    Tensor,
    Trace,
    as_float,
    most_elements,
)
from clnet.formats.onnx.values import (
    NEAR,
    NONE,
    Activated,
    Composite,
    Entries,
    Rows,
    Value,
)
from clnet.nn.activations import LOG_SOFTMAX, SOFTMAX

Array = NDArray[Any]


# --- copies --------------------------------------------------------------------------

COPIES = (
    "Identity", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Concat",
    "Slice", "Gather", "GatherElements", "GatherND", "Split", "Expand", "Tile", "Pad",
    "DepthToSpace", "SpaceToDepth", "Upsample",
)
"""Nodes whose output elements are elements of their inputs."""


def copied(trace: Trace, node: Any, inputs: list[Any]) -> Sequence[Tensor]:
    """Return the outputs of a node that copies, by those for elements' numbers."""
    given = attributes(node)
    data = len(inputs) if node.op_type == "Concat" else 1
    if any(isinstance(one, Value) for one in inputs[data:]):
        raise RefusalError("reads places that depend on the input")
    trace.take(most_elements(node, inputs))
    fill, others = 0.0, list(inputs[data:])
    if node.op_type == "Pad":
        if given.get("mode", "constant") == "constant":
            fill = given.get("value", 0.0)
        if len(others) > 1 and others[1] is not None:
            fill, others[1] = float(np.asarray(others[1]).item()), None
        copy = type(node)()
        copy.CopyFrom(node)
        kept = [one for one in node.attribute if one.name != "value"]
        del copy.attribute[:]
        copy.attribute.extend(kept)
        node = copy
    values = [one if isinstance(one, Value) else constant_value(one)
              for one in inputs[:data]]
    numbers, at = [], 1  # 0: of an element that no input has
    for one in values:
        numbers.append(np.arange(at, at + one.codes.size).reshape(one.shape))
        at += one.codes.size
    arrays: list[Array] = []
    for start, parts in (([NONE], [one.codes for one in values]),
                         ([0.0], [one.scale for one in values]),
                         ([fill], [one.bias for one in values])):
        arrays.append(np.concatenate([np.asarray(start), *map(np.ravel, parts)]))
    found = evaluate(node, [*numbers, *others], trace.graph.versions)
    whole = any(one.whole for one in values)
    codes, scale, bias = arrays
    return [Value(codes[taken], scale[taken], bias[taken], whole) for taken in found]


def constant_value(tensor: Any) -> Value:
    """Return a constant as a value."""
    array = as_float(tensor)
    return Value(np.full(array.shape, NONE), np.zeros(array.shape), array)


def same(trace: Trace, node: Any, inputs: list[Any]) -> Sequence[Tensor]:
    """Return the first input."""
    return [inputs[0]]


def dropout(trace: Trace, node: Any, inputs: list[Any]) -> Sequence[Tensor]:
    """Return the input: a network's inference drops nothing."""
    if len(inputs) > 2 and inputs[2] is not None and np.any(inputs[2]):
        raise RefusalError("is in training mode, expected inference")
    mask: Tensor = Refused(f"{trace.text} has a mask, which is of trainings")
    return [inputs[0], mask]


def cast(trace: Trace, node: Any, inputs: list[Any]) -> Sequence[Tensor]:
    """Return the input as floats."""
    value = inputs[0]
    if node.op_type == "CastLike":
        like = inputs[1]
        known = (isinstance(like, Value) and not like.whole) or (
            isinstance(like, np.ndarray) and like.dtype.kind == "f"
            and like.dtype.itemsize > 2)
        if not known:
            raise RefusalError("casts to whole numbers, expected floats")
    elif attributes(node).get("to") not in (1, 11):  # float32, float64
        raise RefusalError("casts to a type other than float32 and float64")
    return [Value(value.codes, value.scale, value.bias)]


def shape_of(trace: Trace, node: Any, inputs: list[Any]) -> Sequence[Tensor]:
    """Return the shape, or the number of elements, of the input."""
    trace.counted = True
    shaped = np.broadcast_to(np.float32(0), inputs[0].shape)
    return evaluate(node, [shaped], trace.graph.versions)


def constant_like(trace: Trace, node: Any, inputs: list[Any]) -> Sequence[Tensor]:
    """Refuse: the output depends on the input's numbers."""
    raise RefusalError("gives labels or numbers of places, expected floats")


# --- affine maps ---------------------------------------------------------------------


def added(trace: Trace, node: Any, inputs: list[Any]) -> Sequence[Tensor]:
    """Return a sum, difference or mean."""
    floats_only(inputs)
    signs = [1.0, -1.0] if node.op_type == "Sub" else [1.0] * len(inputs)
    if node.op_type == "Mean":
        signs = [1 / len(inputs)] * len(inputs)
    inputs = _aligned(trace, node, inputs)
    shape = np.broadcast_shapes(*(one.shape for one in inputs))
    trace.take(most_elements(node, inputs))
    values, bias = [], np.zeros(shape)
    for one, sign in zip(inputs, signs, strict=True):
        if isinstance(one, Value):
            values.append(one.affine(sign * np.ones(shape)))
        else:
            bias = bias + sign * as_float(one)
    if len(values) == 1:
        return [values[0].affine(1.0, bias)]
    layouts = [trace.records.layout(one) for one in values]
    _, rest, axis = layouts[0]
    if any(one[2] != axis for one in layouts):
        raise RefusalError("mixes samples, or treats them differently")
    total = trace.sum_rows([one[0] for one in layouts])
    return [trace.records.value(total, rest, axis).affine(1.0, bias)]


def multiplied(trace: Trace, node: Any, inputs: list[Any]) -> Sequence[Tensor]:
    """Return a product or quotient with a constant; of values: if it is a function."""
    floats_only(inputs)
    inputs = _aligned(trace, node, inputs)
    first, second = inputs
    trace.take(most_elements(node, inputs))
    if isinstance(first, Value) and isinstance(second, Value):
        return composed(trace, node, inputs)
    if isinstance(first, Value):
        factor = as_float(second)
        if node.op_type == "Div":
            factor = 1 / factor
        return [first.affine(factor)]
    if node.op_type == "Div":
        return composed(trace, node, inputs)
    return [second.affine(as_float(first))]


def largest(trace: Trace, node: Any, inputs: list[Any]) -> Sequence[Tensor]:
    """Return a maximum or minimum: a function of one variable, or by relu."""
    floats_only(inputs)
    shape = np.broadcast_shapes(*(one.shape for one in inputs))
    try:
        found = composed(trace, node, inputs)
        assert isinstance(found[0], Value)
        owners = [trace.records.owner(trace.records.layout(one)[0])
                  for one in (found[0], *inputs) if isinstance(one, Value)]
        fits = [] if owners[0] is None else map(recognised, owners[0].curves)
        if any(fit is not None and len(fit.terms) < 2 for fit in fits) or any(
            isinstance(one, Composite) for one in owners[1:]
        ):
            return found
    except RefusalError:
        pass
    # max(a, b) = a + relu(b - a), a not being constant, and min(a, b) = -max(-a, -b)
    inputs = sorted(inputs, key=lambda one: not isinstance(one, Value))
    sign = 1.0 if node.op_type == "Max" else -1.0
    total: Value = inputs[0].affine(sign * np.ones(shape))
    for one in inputs[1:]:
        other = one.affine(sign) if isinstance(one, Value) else sign * as_float(one)
        trace.take(total.codes.size)
        (difference,) = added(trace, _Node("Sub"), [other, total])
        assert isinstance(difference, Value)
        above = of_terms(trace, difference, [(1, "relu", 1.0, 0.0)])
        (result,) = added(trace, _Node("Add"), [total, above])
        assert isinstance(result, Value)
        total = result
    return [total.affine(sign)]


def negated(trace: Trace, node: Any, inputs: list[Any]) -> Sequence[Tensor]:
    """Return the input's negative."""
    floats_only(inputs)
    return [inputs[0].affine(-1.0)]


def _aligned(trace: Trace, node: Any, inputs: list[Any]) -> list[Any]:
    """Return the inputs; the second by the broadcasting of versions below 7."""
    given = attributes(node)
    if trace.version() >= 7 or "axis" not in given or not given.get("broadcast"):
        return inputs
    first, second = inputs
    missing = len(first.shape) - given["axis"] - len(second.shape)
    if isinstance(second, Value):
        raise RefusalError("broadcasts an input that is not constant")
    return [first, np.reshape(second, second.shape + (1,) * max(0, missing))]


def normalised(trace: Trace, node: Any, inputs: list[Any]) -> Sequence[Tensor]:
    """Return a BatchNormalization as an affine map of each channel."""
    value, *constants = inputs
    floats_only(inputs)
    given = attributes(node)
    if given.get("training_mode") or any(isinstance(one, Value) for one in constants):
        raise RefusalError("is in training mode, expected inference")
    scale, bias, mean, variance = (as_float(one) for one in constants[:4])
    epsilon = given.get("epsilon", 1e-5)
    factor = scale / np.sqrt(variance + epsilon)
    shift = bias - mean * factor
    shape = (-1, *[1] * (len(value.shape) - 2))
    if factor.ndim != 1 or value.shape[1] != factor.size:
        raise RefusalError("has a wrong number of channels")
    return [value.affine(factor.reshape(shape), shift.reshape(shape))]


# --- products ------------------------------------------------------------------------


def product(trace: Trace, value: Value, matrix: Array, bias: Array | float) -> Value:
    """Return ``value @ matrix + bias`` over the last axis; matrix: [m, n]."""
    rows, shape, axis = trace.records.layout(value)
    if not shape or axis == len(shape) or matrix.shape[0] != shape[-1]:
        raise RefusalError(f"multiplies samples of shape {list(shape)} by a matrix of "
                      f"shape {list(matrix.shape)}")
    m, n = matrix.shape
    groups = len(rows) // m
    trace.take(groups * n * trace.batch)
    biases = np.broadcast_to(np.asarray(bias, np.float64), (*shape[:-1], n)).ravel()
    if groups == 1:
        found = trace.linear(rows, matrix.T, biases)
    else:
        trace.take(groups * m * n)
        group, row, column = (
            one.ravel() for one in np.meshgrid(*map(np.arange, (groups, n, m)),
                                               indexing="ij"))
        entries = Entries(group * n + row, group * m + column,
                          np.tile(matrix.T.ravel(), groups))
        found = trace.linear(rows, entries, biases)
    return trace.records.value(found, (*shape[:-1], n), axis)


def gemm(trace: Trace, node: Any, inputs: list[Any]) -> Sequence[Tensor]:
    """Return ``alpha A B + beta C``."""
    floats_only(inputs)
    given = attributes(node)
    a, b = (
        _transposed(one) if given.get(name) else one
        for one, name in zip(inputs, ("transA", "transB"), strict=False)
    )
    c = inputs[2] if len(inputs) > 2 else None
    alpha, beta = given.get("alpha", 1.0), given.get("beta", 1.0)
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise RefusalError("multiplies tensors of other than two dimensions")
    result = _product_of(trace, a, b, alpha)
    if c is None or beta == 0:
        return [result]
    if not isinstance(c, Value):
        return [result.affine(1.0, beta * as_float(c))]
    return added(trace, _Node("Add"), [result, c.affine(beta)])


def matmul(trace: Trace, node: Any, inputs: list[Any]) -> Sequence[Tensor]:
    """Return the matrix product."""
    floats_only(inputs)
    a, b = inputs
    if (len(a.shape) >= 2 and len(b.shape) == 2) or len(a.shape) == len(b.shape) == 2:
        return [_product_of(trace, a, b, 1.0)]
    return probed(trace, node, inputs)


def _product_of(trace: Trace, a: Any, b: Any, alpha: float) -> Value:
    if isinstance(a, Value) and isinstance(b, Value):
        raise RefusalError("multiplies two values that both depend on the input")
    if isinstance(a, Value):
        return product(trace, a, _scaled(b, alpha), 0.0)
    if len(a.shape) != 2:
        raise RefusalError("multiplies from the left by more than a matrix")
    right = product(trace, _transposed(b), _scaled(a, alpha).T, 0.0)
    return Value(right.codes.T, right.scale.T, right.bias.T)


def _scaled(matrix: Array, alpha: float) -> Array:
    if matrix.dtype.kind != "f":
        raise RefusalError("multiplies by a matrix of other than floats")
    return matrix if alpha == 1 else matrix.astype(np.float64) * alpha


def _transposed(one: Any) -> Any:
    if isinstance(one, Value):
        return Value(one.codes.T, one.scale.T, one.bias.T)
    return one.T


class _Node:
    """A node without attributes."""

    def __init__(self, op_type: str) -> None:
        self.op_type, self.attribute, self.domain = op_type, (), ""


MOST_PRODUCTS = 1 << 22  # entries of a matrix that is found by evaluating
PROBED = (
    "Conv", "ConvTranspose", "AveragePool", "GlobalAveragePool", "ReduceSum",
    "ReduceMean", "Einsum", "CumSum", "Resize",
)
"""Nodes that are linear in their first input, whose matrix is found by evaluating."""


def probed(trace: Trace, node: Any, inputs: list[Any]) -> Sequence[Tensor]:
    """Return the output of a linear node, by its outputs for unit vectors.

    A random probe refuses what is not linear, or mixes samples.
    """
    floats_only(inputs)
    if sum(isinstance(one, Value) for one in inputs) != 1 or len(node.output) > 1:
        raise RefusalError("is not linear in one input")
    place = next(k for k, one in enumerate(inputs) if isinstance(one, Value))
    value = inputs[place]
    rows, shape, axis = trace.records.layout(value)
    if axis != 0:
        raise RefusalError("mixes samples, or treats them differently")
    others = [None if one is None or isinstance(one, Value) else np.asarray(one)
              for one in inputs]
    others = [one.astype(np.float64) if one is not None and one.dtype.kind == "f"
              else one for one in others]
    bias = None
    if node.op_type in ("Conv", "ConvTranspose") and len(others) > 2:
        bias, others[2] = others[2], None

    def outputs(samples: Array) -> Array:
        trace.take(samples.size // 8)
        arrays = list(others)
        arrays[place] = samples.reshape(-1, *shape)
        (found,) = evaluate(node, arrays, trace.graph.versions)
        return np.asarray(found)

    m = len(rows)
    probe = np.random.default_rng(0).normal(size=(trace.batch, m))
    arrays = [*others[:place], probe.reshape(-1, *shape), *others[place + 1 :]]
    trace.take(most_elements(node, arrays))
    expected = outputs(probe)
    if expected.ndim < 1 or expected.shape[0] != trace.batch:
        raise RefusalError("mixes samples, or treats them differently")
    rest = expected.shape[1:]
    n = expected[0].size
    if m * n > MOST_PRODUCTS:
        raise RefusalError(
            f"maps {m} numbers to {n}, and its matrix is found for {MOST_PRODUCTS} "
            "products of both at most"
        )
    parts = []
    step = max(2, min(m, (1 << 16) // max(m, n, 1)))
    for first in range(0, m, step):
        count = min(step, m - first)
        units = np.zeros((max(2, count), m))
        units[np.arange(count), first + np.arange(count)] = 1
        found = outputs(units).reshape(len(units), -1)[:count]
        columns, at = np.nonzero(found)
        parts.append((at, columns + first, found[columns, at]))
    entries = Entries(*(np.concatenate(one) for one in zip(*parts, strict=True)))
    trace.take(len(entries.rows))
    check = np.zeros((trace.batch, n))
    for sample in range(trace.batch):
        np.add.at(check[sample], entries.rows,
                  entries.values * probe[sample, entries.columns])
    sizes = np.zeros(n)
    np.add.at(sizes, entries.rows, np.abs(entries.values))
    error = np.abs(check - expected.reshape(trace.batch, -1))
    if not (error <= NEAR * (sizes + 1e-30) * 10).all():
        raise RefusalError("mixes samples, or is not affine")
    trace.take(n * trace.batch)
    result = trace.records.value(trace.linear(rows, entries, np.zeros(n)), rest)
    if bias is not None:
        result = result.affine(1.0, bias.reshape(-1, *[1] * (len(rest) - 1)))
    return [result]


# --- softmax -------------------------------------------------------------------------


def softmax(trace: Trace, node: Any, inputs: list[Any]) -> Sequence[Tensor]:
    """Return softmax, or its logarithm, over an axis: a record for each group."""
    floats_only(inputs)
    value = inputs[0]
    old = trace.version() < 13
    axis = attributes(node).get("axis", 1 if old else -1)
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
        own = axis - (axis > samples)
        numbers = np.arange(len(rows)).reshape(shape)
        order = np.moveaxis(numbers, own, -1).reshape(-1, shape[own])
    trace.take(len(order) * 10)
    name = SOFTMAX if node.op_type == "Softmax" else LOG_SOFTMAX
    atoms = np.full(len(rows), NONE)
    for group in order:
        part = Rows(rows.atoms[group], rows.scale[group], rows.bias[group])
        record = Activated(trace.text, len(group), part, name)
        atoms[group] = trace.records.add(record).atoms
    result = Rows(atoms, np.ones(len(rows)), np.zeros(len(rows)))
    return [trace.records.value(result, shape, samples)]


# --- scikit-learn's ------------------------------------------------------------------


def scaler(trace: Trace, node: Any, inputs: list[Any]) -> Sequence[Tensor]:
    """Return ``(x - offset) * scale``."""
    given = attributes(node)
    scale, offset = (as_float(given.get(name, default))
                     for name, default in (("scale", [1.0]), ("offset", [0.0])))
    return [_as_floats(inputs[0]).affine(scale, -offset * scale)]


def _as_floats(value: Value) -> Value:
    return Value(value.codes, value.scale, value.bias)


def normalizer(trace: Trace, node: Any, inputs: list[Any]) -> Sequence[Tensor]:
    """Return the input if its numbers are known to be positive, with the sum 1."""
    rows, shape, _ = trace.records.layout(inputs[0])
    if attributes(node).get("norm", "MAX") == "L1" and len(shape) == 1:
        record = trace.records.owner(rows)
        if isinstance(record, Activated):
            whole = len(rows) == record.size == len(np.unique(rows.atoms))
            plain = (rows.scale == 1).all() and (rows.bias == 0).all()
            if record.activation == SOFTMAX and whole and plain:
                return [inputs[0]]
            pair = len(rows) == 2 and rows.atoms[0] == rows.atoms[1]
            if (
                record.activation == "sigmoid" and pair
                and sorted(zip(rows.scale, rows.bias, strict=True)) == [(-1, 1), (1, 0)]
            ):
                return [inputs[0]]
    raise RefusalError("divides samples by their norm, which is not affine")


def linear_model(trace: Trace, node: Any, inputs: list[Any]) -> Sequence[Tensor]:
    """Return the scores of a LinearRegressor or LinearClassifier, and refuse labels."""
    given = attributes(node)
    value = _as_floats(inputs[0])
    regressor = node.op_type == "LinearRegressor"
    weights = as_float(given.get("coefficients", []))
    if len(value.shape) != 2 or not value.shape[1] or weights.size % value.shape[1]:
        raise RefusalError("has a wrong number of coefficients")
    weights = weights.reshape(-1, value.shape[1])
    n = len(weights)
    bias = as_float(given.get("intercepts", [0.0] * n))
    if bias.size != n:
        raise RefusalError("has a wrong number of intercepts")
    scores = product(trace, value, weights.T, bias)
    post = given.get("post_transform", "NONE")
    post = post if isinstance(post, str) else "?"
    labels = given.get("classlabels_ints") or given.get("classlabels_strings") or []
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
        rows = Rows(*(np.concatenate(pair) for pair in (
            (first.atoms, rows.atoms), (first.scale, rows.scale),
            (first.bias, rows.bias))))
        shape = (2,)
    found = trace.records.value(rows, shape, axis)
    if regressor:
        return [found]
    return [Refused(f"{trace.text} gives labels, expected floats"), found]


OPERATORS: dict[str, Operator] = {
    **dict.fromkeys(FUNCTIONS, composed),
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
    *FUNCTIONS, *RULES, *COPIES, "Cast", "CastLike", "Shape", "Size", "Constant",
    "ConstantOfShape", "Range", "MatMul", "Gemm", "ReduceSum", "ReduceProd",
    "ReduceMean", "ReduceMax", "ReduceMin", "EyeLike", "ScatterND", "ScatterElements",
    "Mod", "Dropout",
})
"""Nodes of constants."""
