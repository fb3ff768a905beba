"""Weight penalties and gradient clipping, which precede the optimiser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.checks import as_finite
from clnet.errors import InputError, quoted

Array = NDArray[Any]


@dataclass(frozen=True)
class Regularisation:
    """L1 and L2 penalties of weights, then gradient clipping.

    The mean loss gets ``l1 * sum |w| + l2 * sum w^2`` over all weights, without biases,
    as Keras' kernel regularisers do. (An optimiser's ``weight_decay`` acts on biases
    too, as PyTorch's, and after clipping.) The mean gradient is then clipped.
    """

    l1: float = 0.0  # At least 0
    l2: float = 0.0
    # The largest Euclidean norm of the whole gradient: a longer one is scaled down
    # (Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural
    # networks", 2013)
    clip_norm: float | None = None
    # The largest absolute value of each of its elements
    clip_value: float | None = None

    def __post_init__(self) -> None:
        for name in ("l1", "l2", "clip_norm", "clip_value"):
            value, clips = getattr(self, name), name.startswith("clip")
            if clips and value is None:
                continue
            number = as_finite(name, value)
            if number < 0 or (clips and number == 0):
                least = "above 0, or None" if clips else "of at least 0"
                raise InputError(
                    f"{name} must be a number {least}, not {quoted(value)}"
                )
            object.__setattr__(self, name, number)
        if None not in (self.clip_norm, self.clip_value):
            raise InputError("give clip_norm or clip_value, not both")

    @property
    def penalises(self) -> bool:
        """Whether weights are penalised."""
        return self.l1 > 0 or self.l2 > 0

    def penalised(self, w: Array, g: Array, samples: int, weights: int) -> Array:
        """Return gradients g [n] of the samples' sum plus those of the penalties."""
        if not self.penalises:
            return g
        result = g.copy()
        real = g.dtype.type
        of_weights = w[:weights]
        result[:weights] += real(samples) * (
            real(self.l1) * np.sign(of_weights) + real(2 * self.l2) * of_weights
        )
        return result

    def clipped(self, g: Array, samples: int, norm: float) -> Array:
        """Return gradients g [n] of the sum over samples, clipped."""
        real = g.dtype.type
        if self.clip_value is not None:
            limit = real(self.clip_value * samples)
            return np.clip(g, -limit, limit)
        if self.clip_norm is not None and norm > self.clip_norm:
            # NaN of a norm that overflows: zero would be no step, untold.
            return np.asarray(g * real(self.clip_norm / norm + (norm - norm)))
        return g


PLAIN = Regularisation()
"""Neither penalties nor clipping."""
