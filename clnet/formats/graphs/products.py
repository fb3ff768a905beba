"""Nodes that are products with a matrix, given or found by evaluating the node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.formats.graphs.algebra import NEAR
from clnet.formats.graphs.arithmetic import total_of
from clnet.formats.graphs.trace import (
    GraphTrace,
    Node,
    Tensor,
    as_float,
)
from clnet.formats.graphs.values import RefusalError, Tracer, Triplets

Array = NDArray[Any]


def product(
    trace: GraphTrace, value: Tracer, matrix: Array, bias: Array | None = None
) -> Tracer:
    """Return ``value @ matrix + bias`` over the last axis; matrix: [m, n]."""
    rows, shape, axis = trace.records.layout(value)
    if not shape or axis == len(shape) or matrix.shape[0] != shape[-1]:
        raise RefusalError(f"multiplies samples of shape {list(shape)} by a matrix of "
                      f"shape {list(matrix.shape)}")
    m, n = matrix.shape
    groups = len(rows) // m
    trace.take(groups * n * trace.batch)
    biases = np.zeros((*shape[:-1], n))
    if bias is not None:
        biases += bias
    if groups == 1:
        products = trace.linear(
            rows, matrix.T, biases.ravel(), biased=bias is not None)
    else:
        trace.take(groups * m * n)
        group, row, column = (
            grid.ravel() for grid in np.meshgrid(*map(np.arange, (groups, n, m)),
                                               indexing="ij"))
        entries = Triplets(group * n + row, group * m + column,
                          np.tile(matrix.T.ravel(), groups))
        products = trace.linear(
            rows, entries, biases.ravel(), biased=bias is not None)
    return trace.records.value(products, (*shape[:-1], n), axis)


def gemm(trace: GraphTrace, node: Node, inputs: list[Any]) -> Sequence[Tensor]:
    """Return ``alpha A B + beta C``."""
    options = node.options
    a, b = (
        tensor.T if options.get(name) else tensor
        for tensor, name in zip(inputs, ("transA", "transB"), strict=False)
    )
    c = inputs[2] if len(inputs) > 2 else None
    alpha, beta = options.get("alpha", 1.0), options.get("beta", 1.0)
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise RefusalError("multiplies tensors of other than two dimensions")
    result = _product_of(trace, a, b, alpha)
    if c is None or beta == 0:
        return [result]
    if not isinstance(c, Tracer):
        return [result.affine(1.0, beta * as_float(c))]
    return [total_of(trace, [result, c], [1.0, beta])]


def matmul(trace: GraphTrace, node: Node, inputs: list[Any]) -> Sequence[Tensor]:
    """Return the matrix product."""
    a, b = inputs
    if (len(a.shape) >= 2 and len(b.shape) == 2) or len(a.shape) == len(b.shape) == 2:
        return [_product_of(trace, a, b, 1.0)]
    return probed(trace, node, inputs)


def _product_of(trace: GraphTrace, a: Any, b: Any, alpha: float) -> Tracer:
    if isinstance(a, Tracer) and isinstance(b, Tracer):
        raise RefusalError("multiplies two values that both depend on the input")
    if isinstance(a, Tracer):
        return product(trace, a, _scaled(b, alpha))
    if len(a.shape) != 2:
        raise RefusalError("multiplies from the left by more than a matrix")
    return product(trace, b.T, _scaled(a, alpha).T).T


def _scaled(matrix: Array, alpha: float) -> Array:
    if matrix.dtype.kind != "f":
        raise RefusalError("multiplies by a matrix of other than floats")
    return matrix if alpha == 1 else matrix.astype(np.float64) * alpha


MOST_PRODUCTS = 1 << 22  # entries of a matrix that is found by evaluating
PROBED = (
    "Conv", "ConvTranspose", "AveragePool", "GlobalAveragePool", "ReduceSum",
    "ReduceMean", "Einsum", "CumSum", "Resize",
)
"""Nodes that are linear in their first input, whose matrix is found by evaluating."""


def probed(trace: GraphTrace, node: Node, inputs: list[Any]) -> Sequence[Tensor]:
    """Return the output of a linear node, by its outputs for unit vectors.

    A random probe refuses what is not linear, or mixes samples.
    """
    varying = [k for k, tensor in enumerate(inputs) if isinstance(tensor, Tracer)]
    if len(varying) != 1:
        raise RefusalError("is not linear in one input")
    position = varying[0]
    value = inputs[position]
    rows, shape, axis = trace.records.layout(value)
    if axis != 0:
        raise RefusalError("mixes samples, or treats them differently")
    others = [None if tensor is None or isinstance(tensor, Tracer) else
              as_float(tensor) if np.asarray(tensor).dtype.kind == "f" else
              np.asarray(tensor) for tensor in inputs]
    bias = None
    if node.op in ("Conv", "ConvTranspose") and len(others) > 2:
        bias, others[2] = others[2], None

    def outputs(samples: Array) -> Array:
        trace.take(samples.size // 8)
        arrays = list(others)
        arrays[position] = samples.reshape(-1, *shape)
        (result,) = node.outputs(arrays)
        return np.asarray(result)

    m = len(rows)
    probe = np.random.default_rng(0).normal(size=(trace.batch, m))
    arrays = [*others[:position], probe.reshape(-1, *shape), *others[position + 1 :]]
    trace.take(node.size(arrays))
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
        images = outputs(units).reshape(len(units), -1)[:count]
        columns, at = np.nonzero(images)
        parts.append((at, columns + first, images[columns, at]))
    entries = Triplets(*(np.concatenate(column) for column in zip(*parts, strict=True)))
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
