"""Files of populations: those of a network, with a part for all parameters."""

from __future__ import annotations

from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.errors import FormatError, quoted, reason
from clnet.formats import safetensors, suffix_of
from clnet.formats.files import as_path
from clnet.network import Network
from clnet.network import load as load_network

Array = NDArray[Any]

SUFFIX = ".safetensors"
VERSION = 1  # of the part


def save(
    path: str | PathLike[str], network: Network, parameters: Array, dropout: Array
) -> None:
    """Write a network's file with what is a population's.

    These are the parameters [networks, size] and, where networks differ, the dropout
    [networks, layers].
    """
    file = as_path(path)
    suffix_of(file, (SUFFIX,), "populations")
    arrays = {"parameters": parameters}
    if (dropout != dropout[0]).any():
        arrays["dropout"] = dropout
    safetensors.save(network, file, population=({"version": VERSION}, arrays))


def load(path: str | PathLike[str]) -> tuple[Network, Array, Array | None]:
    """Return the network of a file, and its population's parameters and dropout."""
    file = as_path(path)
    suffix_of(file, (SUFFIX,), "populations")
    described, arrays = safetensors.load_part(file, "population")
    network = load_network(file)
    try:
        version, parameters = described["version"], arrays["parameters"]
    except (LookupError, TypeError) as error:
        raise FormatError(
            f"{file} holds a population that is not clnet's: {reason(error)}"
        ) from None
    if version != VERSION:
        raise FormatError(
            f"{file} holds a population of version {quoted(version)}, expected "
            f"{VERSION}"
        )
    shape, size = parameters.shape, network.layout.size
    if len(shape) != 2 or shape[0] < 1 or shape[1] != size or (
        parameters.dtype != network.dtype
    ):
        raise FormatError(
            f"{file} holds parameters of shape {list(shape)} and type "
            f"{parameters.dtype}, expected [networks, {size}] of {network.dtype}"
        )
    dropout = arrays.get("dropout")
    if dropout is not None and (
        dropout.shape != (shape[0], len(network.layers)) or dropout.dtype != np.float64
        or not ((dropout >= 0) & (dropout < 1)).all() or dropout[:, -1].any()
    ):
        raise FormatError(
            f"{file} holds dropout of shape {list(dropout.shape)}, expected fractions "
            f"[{shape[0]}, {len(network.layers)}], none of the last layer"
        )
    return network, parameters, dropout
