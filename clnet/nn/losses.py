"""Losses, one row each.

A sample's loss is the sum of its outputs' losses, or their mean; a gradient is that of
the sum over samples. The OpenCL functions of row ``name`` are ``loss_name`` and
``loss_gradient_name`` in ``kernels/include/losses.h``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from clnet.nn.aliases import LOSS, named_row

Array = NDArray[Any]
Rule = Callable[[Array, Array, Array], Array]

HUBER_DELTA = 1.0  # error from which the loss is linear, as in PyTorch
POISSON_EPS = 1e-8  # added to an output before its logarithm, as in PyTorch
FANN_TANH_LIMIT = 0.9999999  # beyond it FANN's error is constant
FANN_TANH_ERROR = 17.0


@dataclass(frozen=True)
class LossFunction:
    """One loss."""

    name: str  # The loss's name, also the stem of its OpenCL functions
    # Each output's loss, ``value(y, t, half)`` [batch, n_out]; ``half`` [n_out] is 0.5
    # where FANN halves the error, else 1
    value: Rule
    # ``d value / d y``, of the same arguments; ``d loss / d y`` where fused with
    # softmax
    gradient: Rule
    # Whether a sample's loss is the mean over its outputs, not their sum
    mean: bool = True
    # Activation that the loss includes: ``y`` is then its argument, the logits, so that
    # neither overflows
    fused: Literal["sigmoid", "softmax"] | None = None
    # Whether it is FANN's, which halves the errors of symmetric outputs
    fann: bool = False
    positive: bool = False  # Whether outputs are to be at least 0

    @property
    def activation(self) -> str | None:
        """The activation of the last layer that it is made for; None: any."""
        return "softplus" if self.positive else self.fused


def softmax(z: Array) -> Array:
    """Return ``exp(z) / sum of the same`` [batch, n_out], row by row."""
    exponentials = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True))


def log_softmax(z: Array) -> Array:
    """Return the logarithm of `softmax` [batch, n_out], row by row."""
    below = z - z.max(axis=1, keepdims=True)
    return np.asarray(below - np.log(np.exp(below).sum(axis=1, keepdims=True)))


def sigmoid(z: Array) -> Array:
    """Return ``1 / (1 + exp(-z))``."""
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-z)))


def _huber(y: Array, t: Array, _: Array) -> Array:
    d = np.abs(y - t)
    delta = d.dtype.type(HUBER_DELTA)
    return np.asarray(np.where(d <= delta, d * d / 2, delta * (d - delta / 2)))


def _huber_gradient(y: Array, t: Array, _: Array) -> Array:
    delta = y.dtype.type(HUBER_DELTA)
    return np.asarray(np.clip(y - t, -delta, delta))


def _binary(z: Array, t: Array, _: Array) -> Array:
    return np.asarray(np.maximum(z, 0) - z * t + np.log1p(np.exp(-np.abs(z))))


def _categorical(z: Array, t: Array, _: Array) -> Array:
    return np.asarray(-t * log_softmax(z))


def _categorical_gradient(z: Array, t: Array, _: Array) -> Array:
    return np.asarray(softmax(z) * t.sum(axis=1, keepdims=True) - t)


def _poisson(y: Array, t: Array, _: Array) -> Array:
    rate = np.maximum(y, 0) + y.dtype.type(POISSON_EPS)
    return np.asarray(y - t * np.log(rate))


def _poisson_gradient(y: Array, t: Array, _: Array) -> Array:
    unit = y.dtype.type(1)
    slope = unit - t / (np.maximum(y, 0) + y.dtype.type(POISSON_EPS))
    return np.asarray(np.where(y < 0, unit, slope))


def _fann_linear(y: Array, t: Array, half: Array) -> Array:
    return np.asarray(half * (t - y) ** 2 / 2)


def _fann_tanh(y: Array, t: Array, half: Array) -> Array:
    # The antiderivative of the slope below.
    d = np.abs((t - y) * half)
    inside = np.minimum(d, d.dtype.type(FANN_TANH_LIMIT))
    value = (1 + inside) * np.log1p(inside) + (1 - inside) * np.log1p(-inside)
    return np.asarray((value + d.dtype.type(FANN_TANH_ERROR) * (d - inside)) / half)


def _fann_tanh_gradient(y: Array, t: Array, half: Array) -> Array:
    d = (t - y) * half
    limit = d.dtype.type(FANN_TANH_LIMIT)
    inside = np.clip(d, -limit, limit)
    error = np.log((1 + inside) / (1 - inside))
    end = d.dtype.type(FANN_TANH_ERROR)
    return np.asarray(-np.where(d > limit, end, np.where(d < -limit, -end, error)))


_ROWS = (
    LossFunction("mse", lambda y, t, _: (y - t) ** 2, lambda y, t, _: 2 * (y - t)),
    LossFunction("mae", lambda y, t, _: np.abs(y - t), lambda y, t, _: np.sign(y - t)),
    LossFunction("huber", _huber, _huber_gradient),
    LossFunction("binary_cross_entropy", _binary, lambda z, t, _: sigmoid(z) - t,
                 fused="sigmoid"),
    LossFunction("categorical_cross_entropy", _categorical, _categorical_gradient,
                 mean=False, fused="softmax"),
    # Minus the logarithm of a count's probability, but for terms of the count alone, as
    # Keras' "poisson" and PyTorch's PoissonNLLLoss(log_input=False).
    LossFunction("poisson", _poisson, _poisson_gradient, positive=True),
    # FANN's two error functions (fann_update_MSE and its tanh error function): their
    # slopes are FANN's error signals; the values are what these descend.
    LossFunction("fann_linear", _fann_linear, lambda y, t, half: -half * (t - y),
                 mean=False, fann=True),
    LossFunction("fann_tanh", _fann_tanh, _fann_tanh_gradient, mean=False, fann=True),
)

LOSSES: dict[str, LossFunction] = {row.name: row for row in _ROWS}


def loss_function(name: str) -> LossFunction:
    """Return the row of a loss, by its name here or in another library."""
    return named_row(LOSS, name, LOSSES)
