"""Shared by the variants of training ops: the macros of losses and derivatives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clnet.nn.activations import FANN_SIGMOID_ENDS, FANN_TANH_END, activation
from clnet.nn.losses import (
    FANN_TANH_ERROR,
    FANN_TANH_LIMIT,
    HUBER_DELTA,
    POISSON_EPS,
    loss_function,
)
from clnet.variants.macros import kernel_call, number

if TYPE_CHECKING:
    from clnet.ir.loss import Loss
    from clnet.ir.program import Span
    from clnet.variants.macros import Typed


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


def loss_defines(op: Loss, span: Span) -> dict[str, int | str]:
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
