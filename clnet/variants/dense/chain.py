"""Shared by variants that compute a chain of layers at once (``chain.h``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from clnet.nn.storage.dense import RowStorage
from clnet.opencl.launch import PARAMETERS, Launches, Packed
from clnet.variants.base import stored
from clnet.variants.macros import kernel_function, number, real, rows_macro

if TYPE_CHECKING:
    from clnet.ir.activation import Nonlinearity
    from clnet.ir.program import LayerOps, Span
    from clnet.variants.packing import Packing

BYTE = 1 << 8
BACKOFF_NS = 40  # between polls, where they share a path with weights
BY_VALUE = 224  # inputs: OpenCL guarantees 1 KiB for all arguments of a kernel
WORD = 4  # bytes of a value, of its word, and of a launch count
MAX_POLLS = 1 << 22  # of a word of another work-group: some seconds


def chain(span: Span) -> tuple[LayerOps, ...]:
    """Return the layers of a span, which was not refused."""
    assert span.layers is not None
    return span.layers


def strides(span: Span) -> tuple[int, ...]:
    """Return the row stride of each layer's A: the inputs, in whole vectors."""
    return tuple(stored(layer.apply, RowStorage).stride for layer in chain(span))


def parameter_count(span: Span) -> int:
    """Return the number of weights and biases of the chain."""
    biases = [layer.act.bias for layer in chain(span)]
    return sum(layer.apply.weights.size for layer in chain(span)) + sum(
        bias.size for bias in biases if bias is not None
    )


def table(numbers: Iterable[int]) -> str:
    """Return the OpenCL initialiser of a constant array."""
    return "{" + ", ".join(str(n) for n in numbers) + "}"


def wide_table(numbers: Iterable[int]) -> str:
    """Return the initialiser of a constant array that does not fit into bytes.

    A table of more than 4 small numbers ends in one that no kernel reads: a compiler
    (docs/explanation/offline_builds.md) makes a vector of bytes of it, and fails to
    index that. Tables of one number, which other compilers fold, stay as they are.
    """
    row = list(numbers)
    if len(row) > 4 and len(set(row)) > 1 and all(-BYTE < n < BYTE for n in row):
        row.append(BYTE)
    return table(row)


def functions_defines(
    span: Span, functions: Iterable[Nonlinearity]
) -> dict[str, int | str]:
    """Return the macros of ``functions.h``: a function's code is its index."""
    rows = [
        (
            kernel_function(function.names[0]), number(function.steepness[0], span),
            number((function.limits or (float("inf"),))[0], span),
        )
        for function in functions
    ]
    return {"FUNCTIONS(X)": rows_macro(rows)}


def packed_before(packings: Iterable[Packing]) -> list[tuple[int, int]]:
    """Return the bytes of weights and scales before each layer's, and of all."""
    return list(
        accumulate(
            ((p.size, p.scales_size) for p in packings),
            lambda a, b: (a[0] + b[0], a[1] + b[1]), initial=(0, 0),
        )
    )


def pack_chain(
    span: Span, packings: Sequence[Packing], packed: tuple[Packed, Packed],
    second: bool,
) -> Launches:
    """Return the launches that pack each layer's A, one after the other."""
    return tuple(
        packing.launch(
            PARAMETERS, layer.apply.weights.offset, stride, *packed,
            second=second, when="parameters", before=before,
        )
        for layer, packing, stride, before in zip(
            chain(span), packings, strides(span), packed_before(packings)[:-1],
            strict=True,
        )
    )


def chain_defines(span: Span) -> dict[str, int | str]:
    """Return the macros of ``chain.h``."""
    layers = chain(span)
    functions = tuple(dict.fromkeys(layer.act.nonlinearity for layer in layers))
    biases = [layer.act.bias for layer in layers]
    return {
        "REAL": real(span),
        "LAYERS": len(layers),
        "N_OUT": wide_table([layer.n_out for layer in layers]),
        "STRIDE": wide_table(strides(span)),
        "WEIGHTS": wide_table([layer.apply.weights.offset for layer in layers]),
        "BIAS": wide_table([-1 if bias is None else bias.offset for bias in biases]),
        "FUNCTION": wide_table([functions.index(x.act.nonlinearity) for x in layers]),
        **functions_defines(span, functions),
    }
