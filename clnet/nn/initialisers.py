"""Initial weights and biases, one row each.

A rule draws the live weights and the biases of one layer from a generator, given
``fan_in`` (live inputs a neuron) and ``fan_out``. Weights come first, row by row; draws
in chunks give the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.checks import is_among
from clnet.errors import InputError, known_row

Sampler = Callable[[int], Any]
"""Returns the next n numbers: an array [n] of float64."""

Draw = Callable[["np.random.Generator", float, float], tuple[Sampler, Sampler]]
"""Returns the samplers of a layer's weights and biases."""


def _uniform(limit: float, rng: np.random.Generator) -> Sampler:
    return partial(rng.uniform, -limit, limit)


def _glorot(rng: np.random.Generator, fan_in: float, fan_out: float
            ) -> tuple[Sampler, Sampler]:
    """Glorot and Bengio, "Understanding the difficulty…", 2010, equation 16."""
    return _uniform(math.sqrt(6 / (fan_in + fan_out)), rng), np.zeros


def _he(rng: np.random.Generator, fan_in: float, fan_out: float
        ) -> tuple[Sampler, Sampler]:
    """He et al., "Delving deep into rectifiers", 2015, equation 10."""
    return partial(rng.normal, 0.0, math.sqrt(2 / fan_in)), np.zeros


def _lecun_uniform(rng: np.random.Generator, fan_in: float, fan_out: float
                   ) -> tuple[Sampler, Sampler]:
    """Uniform within ±1/√fan_in, biases too: the default of PyTorch's Linear."""
    limit = 1 / math.sqrt(fan_in)
    return _uniform(limit, rng), _uniform(limit, rng)


def _fann(rng: np.random.Generator, fan_in: float, fan_out: float
          ) -> tuple[Sampler, Sampler]:
    """Uniform within ±0.1, biases too: FANN's default."""
    return _uniform(0.1, rng), _uniform(0.1, rng)


INITIALISERS: dict[str, Draw] = {
    "glorot": _glorot,
    "he": _he,
    "uniform": _lecun_uniform,
    "fann": _fann,
}


WIDROW_NGUYEN = "widrow_nguyen"
INITIALISER_NAMES = (*INITIALISERS, WIDROW_NGUYEN)


def widrow_nguyen(x: NDArray[Any], hidden: int) -> Draw:
    """Return Nguyen and Widrow's initialiser in FANN's form, by inputs x.

    "Improving the learning speed of 2-layer neural networks by choosing initial values
    of the adaptive weights", 1990: hidden neurons share the inputs' range. FANN's
    `fann_init_weights`: biases uniform within ±f, weights of all layers from 0 to f,
    ``f = (0.7 hidden)^(1 / n_in) / (largest - smallest input)``. InputError: there is
    no hidden neuron, or the inputs have no range.
    """
    if hidden == 0:
        raise InputError(
            f"{WIDROW_NGUYEN} spreads hidden neurons, and this network has none"
        )
    span = float(x.max()) - float(x.min()) if x.size else 0.0
    if not 0 < span < math.inf:
        raise InputError(
            f"{WIDROW_NGUYEN} needs inputs of a finite range, found one of {span}"
        )
    limit = (0.7 * hidden) ** (1 / x.shape[1]) / span

    def draw(rng: np.random.Generator, fan_in: float, fan_out: float
             ) -> tuple[Sampler, Sampler]:
        return partial(rng.uniform, 0.0, limit), _uniform(limit, rng)

    return draw


def initialiser(name: str) -> Draw:
    """Return the initialiser of a name; InputError: there is none, or it needs data."""
    if is_among(name, [WIDROW_NGUYEN]):
        raise InputError(
            f"{name} needs the inputs' range: "
            f'call network.initialise("{name}", x) when there is a network'
        )
    return known_row("initialiser", name, INITIALISERS, [WIDROW_NGUYEN])
