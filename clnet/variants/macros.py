"""Macros and arguments of kernels that several variants share."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from clnet.ir.op import VALUE_ALIGNMENT, Value
from clnet.nn.activations import (
    FANN_SIGMOID_ENDS,
    FANN_TANH_END,
    Activation,
    activation,
)
from clnet.nn.losses import (
    FANN_TANH_ERROR,
    FANN_TANH_LIMIT,
    HUBER_DELTA,
    POISSON_EPS,
    loss_function,
)
from clnet.nn.storage.dense import RowStorage
from clnet.opencl.launch import OPENCL_TYPES, PARAMETERS, Argument

if TYPE_CHECKING:
    from clnet.ir.activation import Nonlinearity
    from clnet.ir.loss import Loss
    from clnet.ir.program import LayerOps, Span


class Typed(Protocol):
    """A span, or another thing of one dtype."""

    @property
    def dtype(self) -> str:
        """Type of all values."""
        ...


def real(span: Typed) -> str:
    """Return the OpenCL type of the span's dtype."""
    return OPENCL_TYPES[span.dtype]


def number(value: float, span: Typed) -> str:
    """Return a constant of the span's type as OpenCL text."""
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    return repr(float(value)) + ("" if span.dtype == "float64" else "f")


def kernel_function(name: str) -> str:
    """Return the OpenCL function of an activation (activations.h)."""
    return kernel_call("act_", activation(name))


def kernel_call(prefix: str, row: Activation) -> str:
    """Return the name of an activation's OpenCL function, parameters bound."""
    if not row.parameters:
        return prefix + row.name
    numbers = [
        f"LITERAL({number!r})" if math.isfinite(number) else
        "INFINITY" if number > 0 else "-INFINITY"
        for number in (*row.parameters, 0.0)[:2]
    ]
    return f"{prefix.upper()}WITH({row.family}, {', '.join(numbers)})"


def rows_macro(rows: Iterable[Iterable[str]]) -> str:
    """Return the text of an X macro of rows, the code of each being its index."""
    return " ".join(f"X({code}, {', '.join(row)})" for code, row in enumerate(rows))


def padded(value: Value) -> int:
    """Return 1 if rows of a value can be read as whole vectors of 4, else 0."""
    return int(value.stride % VALUE_ALIGNMENT == 0)


def layer_defines(span: Span, layer: LayerOps) -> dict[str, int | str]:
    """Return the macros of one layer (activations.h)."""
    return {
        **function_defines(span, layer.act.nonlinearity),
        "HAS_BIAS": int(layer.act.bias is not None),
    }


def function_defines(span: Span, function: Nonlinearity) -> dict[str, int | str]:
    """Return the macros of one activation (activations.h)."""
    return {
        "REAL": real(span),
        "ACTIVATION": kernel_function(function.names[0]),
        **argument_defines(span, function),
    }


def argument_defines(span: Span, function: Nonlinearity) -> dict[str, int | str]:
    """Return the macros of an activation's argument (activations.h)."""
    defines: dict[str, int | str] = {
        "STEEPNESS": number(function.steepness[0], span), "HAS_LIMIT": 0,
    }
    if function.limits is not None and function.limits[0] < float("inf"):
        defines |= {"HAS_LIMIT": 1, "LIMIT": number(function.limits[0], span)}
    return defines


def weights_and_bias(layer: LayerOps) -> tuple[Argument, ...]:
    """Return the arguments: parameters, offset of A, row stride, offset of the bias."""
    storage, bias = layer.apply.storage, layer.act.bias
    assert isinstance(storage, RowStorage)
    return (
        PARAMETERS,
        layer.apply.weights.offset,
        storage.stride,
        0 if bias is None else bias.offset,
    )


def gradient_function(name: str, fann_compatible: bool) -> tuple[str, bool]:
    """Return an activation's derivative in ``gradients.h``.

    The second value: whether it reads the pre-activation, not the output.
    """
    row = activation(name)
    fann = fann_compatible and row.fann_gradient is not None
    return kernel_call(f"{'fann_' * fann}grad_", row), row.reads == "v"


def gradient_defines(span: Typed) -> dict[str, int | str]:
    """Return the macros of ``gradients.h``."""
    low, high = FANN_SIGMOID_ENDS
    return {
        "FANN_SIGMOID_LOW": number(low, span), "FANN_SIGMOID_HIGH": number(high, span),
        "FANN_TANH_END": number(FANN_TANH_END, span),
    }


def loss_defines(op: Loss, span: Typed) -> dict[str, int | str]:
    """Return the macros of ``losses.h`` and of kernels that compute the loss."""
    return {
        **loss_function_defines(op.loss, span), "WEIGHTED": int(op.weight is not None)
    }


def loss_function_defines(name: str, span: Typed) -> dict[str, int | str]:
    """Return the macros of ``losses.h`` for a loss by its name."""
    row = loss_function(name)
    functions: dict[str, int | str] = {}
    if row.fused != "softmax":
        functions = {
            "LOSS": f"loss_{row.name}", "LOSS_GRADIENT": f"loss_gradient_{row.name}",
        }
    return {
        "SIGMOID": int(row.fused == "sigmoid"), "SOFTMAX": int(row.fused == "softmax"),
        "MEAN": int(row.mean),
        "HUBER_DELTA": number(HUBER_DELTA, span),
        "POISSON_EPS": number(POISSON_EPS, span),
        "FANN_TANH_LIMIT": number(FANN_TANH_LIMIT, span),
        "FANN_TANH_ERROR": number(FANN_TANH_ERROR, span), **functions,
    }
