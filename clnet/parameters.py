"""The flat parameter buffer of a network: drawn anew, or one layer of it replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clnet.checks import as_numbers
from clnet.errors import InputError
from clnet.initialisers import WIDROW_NGUYEN, Draw, initialiser, widrow_nguyen

if TYPE_CHECKING:
    from clnet.network import Network


def initial(network: Network, draw: Draw | None, seed: int | None) -> NDArray[Any]:
    """Return parameters [size] drawn by one rule; None: by each layer's own."""
    rng = _generator(seed)
    parameters = np.zeros(network.layout.size, network.dtype)
    for number, layer in enumerate(network.layers):
        matrix, place = network.matrices[number], network.layout.biases[number]
        n = matrix.count
        rule = draw or initialiser(layer.initialiser)
        weights, biases = rule(
            rng, n / matrix.n_out, n / matrix.n_in, n, place.size if place else 0
        )
        matrix.set_live(parameters, weights)
        if place is not None:
            parameters[place.offset : place.offset + place.size] = biases
    return parameters


def draw_of(network: Network, name: str | None, x: ArrayLike | None) -> Draw | None:
    """Return the rule of a name, for inputs x; see `Network.initialise`."""
    if name == WIDROW_NGUYEN and x is None:
        raise InputError(f"{name} reads the inputs' range: give x")
    if name != WIDROW_NGUYEN and x is not None:
        raise InputError(f"only {WIDROW_NGUYEN} reads the inputs: leave out x")
    if x is not None:
        inputs = as_numbers("x", x, "float64")
        if inputs.ndim != 2 or inputs.shape[1] != network.n_in:
            raise InputError(
                f"x has shape {list(inputs.shape)}, expected [samples, {network.n_in}]"
            )
        return widrow_nguyen(inputs, sum(network.sizes[1:-1]))
    return None if name is None else initialiser(name)


def with_layer(
    network: Network, layer: int, weights: ArrayLike, biases: ArrayLike | None
) -> NDArray[Any]:
    """Return the parameters [size] with one layer's new; see `Network.set_layer`."""
    matrix = network.matrices[network.checked(layer)]
    values = as_numbers("weights", weights, network.dtype)
    live = not matrix.full and values.shape == (matrix.count,)
    if matrix.window is not None and values.shape == (matrix.n_out, matrix.window):
        live, values = True, values.ravel()
    if not live and values.shape != (matrix.n_out, matrix.n_in):
        raise InputError(
            f"weights of layer {layer} have shape {list(values.shape)}, expected "
            f"[{matrix.n_out}, {matrix.n_in}]"
        )
    new = network.parameters.copy()
    outside = 0
    if not live:
        rows, columns, _ = matrix.entries()
        outside = int(np.count_nonzero(values))
        values = values[rows, columns]
        outside -= int(np.count_nonzero(values))
    matrix.set_live(new, values)
    if outside:
        raise InputError(
            f"weights of layer {layer} have {outside} numbers where there is no "
            "connection, expected 0"
        )
    if biases is not None:
        place = network.layout.biases[layer]
        vector = as_numbers("biases", biases, network.dtype)
        expected = 0 if place is None else place.size
        if vector.shape != (expected,):
            raise InputError(
                f"biases of layer {layer} have shape {list(vector.shape)}, "
                f"expected [{expected}]"
            )
        if place is not None:
            new[place.offset : place.offset + place.size] = vector
    return new


def _generator(seed: int | None) -> np.random.Generator:
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError):
        raise InputError(
            f"a seed must be a whole number of at least 0, or None, not {seed!r}"
        ) from None
