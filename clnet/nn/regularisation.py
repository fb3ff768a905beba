"""What is done to gradients before an optimiser sees them: penalties, and clipping."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.errors import InputError

Array = NDArray[Any]


@dataclass(frozen=True)
class Regularisation:
    """Penalties of large weights, then a bound of the gradient.

    To the mean loss are added ``l1 * sum |w| + l2 * sum w^2`` over all weights, biases
    left out, as Keras' kernel regularisers do. (An optimiser's ``weight_decay`` acts on
    biases too, as PyTorch's, and after clipping.) The mean gradient is then clipped.

    Attributes
    ----------
    l1, l2 : float
        At least 0.
    clip_norm : float or None
        The largest Euclidean norm of the whole gradient: a longer one is shortened
        (Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural
        networks", 2013).
    clip_value : float or None
        The largest absolute value of each of its elements.

    Raises
    ------
    InputError
        If a number is out of its range, or both kinds of clipping are asked for.
    """

    l1: float = 0.0
    l2: float = 0.0
    clip_norm: float | None = None
    clip_value: float | None = None

    def __post_init__(self) -> None:
        for name in ("l1", "l2", "clip_norm", "clip_value"):
            value, clips = getattr(self, name), name.startswith("clip")
            if clips and value is None:
                continue
            number = isinstance(value, (int, float, np.number))
            if not number or isinstance(value, bool) or not (
                0 <= value < math.inf and (value > 0 or not clips)
            ):
                least = "above 0, or None" if clips else "of at least 0"
                raise InputError(f"{name} must be a number {least}, not {value!r}")
            object.__setattr__(self, name, float(value))
        if None not in (self.clip_norm, self.clip_value):
            raise InputError("give clip_norm or clip_value, not both")

    @property
    def penalises(self) -> bool:
        """Whether weights are penalised."""
        return self.l1 > 0 or self.l2 > 0

    def penalised(self, w: Array, g: Array, samples: int, weights: int) -> Array:
        """Return gradients g [n] of the sum over samples with the penalties' own.

        Parameters
        ----------
        w, g : ndarray, shape [n]
            Parameters, of which the first are weights, and gradients.
        samples : int
            Whose gradients were summed.
        weights : int
            Elements before the first bias.
        """
        found = g.copy()
        real = g.dtype.type
        of_weights = w[:weights]
        found[:weights] += real(samples) * (
            real(self.l1) * np.sign(of_weights) + real(2 * self.l2) * of_weights
        )
        return found

    def clipped(self, g: Array, samples: int, norm: float) -> Array:
        """Return gradients g [n] of the sum over samples, shortened.

        Parameters
        ----------
        g : ndarray, shape [n]
            Gradients, with the penalties' own.
        samples : int
            Whose gradients were summed.
        norm : float
            Of the mean gradient; read where `clip_norm` is given.
        """
        real = g.dtype.type
        if self.clip_value is not None:
            most = real(self.clip_value * samples)
            return np.clip(g, -most, most)
        if self.clip_norm is not None and norm > self.clip_norm:
            return np.asarray(g * real(self.clip_norm / norm))
        return g


PLAIN = Regularisation()
"""Nothing is done."""
