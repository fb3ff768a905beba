"""How partially connected layers of format ``"auto"`` are stored: by measurement.

The network is planned once for each format that may win, with all its layers of format
``"auto"`` stored so, and whole calls are compared. A plan in another format than the
network's own reads a follower: a network that takes the parameters of the first one
whenever these change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clnet.device import Device
from clnet.errors import DeviceError, InputError
from clnet.initialisers import Draw
from clnet.layers import Layer, Sparse
from clnet.network import Network
from clnet.storage.formats import AUTO, USUAL

if TYPE_CHECKING:
    from clnet.planner import Planner

RIVALS = {"cpu": ("dense",), "gpu": ("sell", "ell", "dense")}
"""Formats that may beat the network's own; kernels read the others as they do csr, but
find the values by a table."""
LARGER = 10.0  # times the bytes of the network's own: what is larger is not tried
SMALL = 1 << 20  # bytes: caches hold them, and launches count more


class Follower(Network):
    """A network whose layers of format ``"auto"`` have another one.

    Its parameters are always those of the network that it follows.

    Parameters
    ----------
    network : Network
        Whom to follow.
    format : str
        A name of `clnet.storage.FORMATS`.

    Raises
    ------
    InputError
        If the format needs more than a layer's memory limit.
    """

    def __init__(self, network: Network, format: str) -> None:  # noqa: A002
        self._followed = network
        self._seen = -1
        super().__init__(
            network.n_in,
            [_stored(layer, format) for layer in network.layers],
            dtype=network.dtype, fann_compatible=network.fann_compatible,
        )
        self._places = tuple(
            np.concatenate([*_weights(one), *_biases(one)]) for one in (network, self)
        )

    def _initial(self, draw: Draw | None, seed: int | None) -> NDArray[Any]:
        """Return zeros: what is drawn would be replaced."""
        return np.zeros(self.layout.size, self.dtype)

    @property
    def version(self) -> int:
        """The version of the network that is followed."""
        return self._followed.version

    @property
    def parameters(self) -> NDArray[Any]:
        """Its parameters in this network's order, read-only."""
        if self._seen != self.version:
            version = self.version
            there, here = self._places
            parameters = np.zeros(self.layout.size, self.dtype)
            parameters[here] = self._followed.parameters[there]
            parameters.flags.writeable = False
            self._parameters, self._seen = parameters, version
        return self._parameters

    @parameters.setter
    def parameters(self, values: ArrayLike) -> None:
        raise InputError("a follower's parameters are those of the network it follows")


def automatic(layer: Layer) -> bool:
    """Return whether a layer leaves its format to be chosen."""
    return isinstance(layer, Sparse) and layer.format == AUTO


def _stored(layer: Layer, format: str) -> Layer:  # noqa: A002
    if isinstance(layer, Sparse) and automatic(layer):
        return dataclasses.replace(layer, format=format)
    return layer


def best_stored(
    network: Network, device: Device, planner: Callable[[Network], Planner]
) -> Planner:
    """Return the planner of a network in the format of the shortest whole calls.

    Parameters
    ----------
    network : Network
        What to run.
    device : Device
        Where.
    planner : callable
        Makes the planner of a network.
    """
    own = planner(network)
    rivals = _rivals(network, device)
    if not rivals:
        return own
    known = own.timed()
    if known is None:
        return own  # it may not be measured, and never was
    best, told = (known, own), [(USUAL, known.seconds)]
    faults = []
    for name in rivals:
        try:
            one = planner(Follower(network, name))
            cover = one.timed()
        except (DeviceError, InputError, MemoryError) as error:
            faults.append(f"{name}: {error}")
            continue
        if cover is None:
            continue
        told.append((name, cover.seconds))
        if cover.seconds < best[0].seconds:
            best = cover, one
    survey = best[1].survey
    survey.formats = sorted(told, key=lambda pair: pair[1])
    survey.failures += faults
    return best[1]


def _rivals(network: Network, device: Device) -> list[str]:
    """Return the formats to compare with the network's own, unless too large."""
    chosen = [i for i, layer in enumerate(network.layers) if automatic(layer)]
    matrices = [network.matrices[i] for i in chosen]
    if not chosen or {matrix.format for matrix in matrices} != {USUAL}:
        return []  # a memory limit has chosen
    size = np.dtype(network.dtype).itemsize
    own = sum(matrix.nbytes(size) for matrix in matrices)
    found = []
    for name in RIVALS["cpu" if device.type == "cpu" else "gpu"]:
        if name == "dense":
            needed = sum(size * matrix.n_out * matrix.n_in for matrix in matrices)
        else:
            needed = sum(_slots(matrix.parts, name) * (size + 2) for matrix in matrices)
        if needed <= max(SMALL, LARGER * own):
            found.append(name)
    return found


def _slots(parts: Any, name: str) -> int:
    """Return the slots of a matrix in a padded format, at most."""
    return sum(
        part.storage.n_out * part.storage.pattern.longest if name == "ell"
        else 2 * len(part.storage.pattern)
        for part in parts
    )


def _weights(network: Network) -> list[NDArray[np.int64]]:
    """Return where each layer's weights are, row by row."""
    return [matrix.entries().places for matrix in network.matrices]


def _biases(network: Network) -> list[NDArray[np.int64]]:
    return [
        np.arange(slot.offset, slot.offset + slot.size)
        for slot in network.layout.biases if slot is not None
    ]
