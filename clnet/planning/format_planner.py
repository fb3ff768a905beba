"""How partially connected layers of format ``"auto"`` are stored: by measurement.

The network is planned once for each format that may win, with all its layers of format
``"auto"`` stored so, and whole calls, or steps of training, are compared. A plan in
another format than the network's own reads a follower: a network that takes the
parameters of the first one whenever these change. Training changes parameters in the
follower's layout, and `relayout` tells where they are in the first one's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clnet.errors import DeviceError, InputError
from clnet.nn.initialisers import Draw
from clnet.nn.layers import Layer, Sparse
from clnet.nn.matrix import Matrix
from clnet.nn.model import Model
from clnet.nn.relayout import Relayout
from clnet.nn.storage import Pattern, SparseStorage
from clnet.nn.storage.formats import AUTO, USUAL, foreseen
from clnet.opencl.device import Device
from clnet.planning.planner import Planner

P = TypeVar("P", bound="Planner")

RIVALS = {"cpu": ("dia", "dense"), "gpu": ("sell", "ell", "dia", "dense")}
"""Formats that may beat the network's own; kernels read the others as they do csr, but
find the values by a table."""
LARGER = {"dense": 6.0, "dia": 4.0}
"""Times the bytes of the smallest format: what is larger is not tried. Whole rows are
read several times as fast as entries are, diagonals nearly so."""
MUCH_LARGER = 2.0  # the same for other formats: they are read no faster than csr
SHORT = 6e-6  # seconds of a call that no format makes much shorter
SMALL = 1 << 20  # bytes: caches hold them, and launches count more


class NetworkView(Model):
    """A network whose layers of format ``"auto"`` have another one.

    Its parameters are always those of the network that it follows.

    Parameters
    ----------
    network : Model
        Whom to follow.
    format : str
        A name of `clnet.nn.storage.FORMATS`.

    Attributes
    ----------
    relayout : Relayout
        Where the parameters of the first one are.

    Raises
    ------
    InputError
        If the format needs more than a layer's memory limit.
    """

    def __init__(self, network: Model, format: str) -> None:  # noqa: A002
        self._followed = network
        self._seen = -1
        super().__init__(
            network.n_in,
            [
                _stored(layer, format, matrix)
                for layer, matrix in zip(network.layers, network.matrices, strict=True)
            ],
            dtype=network.dtype, fann_compatible=network.fann_compatible,
            fann=network.fann,
        )
        self.relayout = Relayout.between(network, self)

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
            parameters = self.relayout.moved(self._followed.parameters)
            parameters.flags.writeable = False
            self._parameters, self._seen = parameters, version
        return self._parameters

    @parameters.setter
    def parameters(self, values: ArrayLike) -> None:
        self._replace(np.asarray(values))

    def _replace(self, parameters: NDArray[Any]) -> None:
        raise InputError("a follower's parameters are those of the network it follows")


def automatic(layer: Layer) -> bool:
    """Return whether a layer leaves its format to be chosen."""
    return isinstance(layer, Sparse) and layer.format == AUTO


def _stored(layer: Layer, format: str, matrix: Matrix) -> Layer:  # noqa: A002
    if not (isinstance(layer, Sparse) and automatic(layer)):
        return layer
    # What was drawn once need not be drawn again.
    rows, columns, _ = matrix.entries()
    pattern = Pattern(matrix.n_out, matrix.n_in, rows, columns)
    return dataclasses.replace(layer, density=None, pattern=pattern, format=format)


def best_stored(
    network: Model, device: Device, planner: Callable[[Model], P]
) -> P:
    """Return the planner of a network in the format of the shortest times.

    Parameters
    ----------
    network : Model
        What to run.
    device : Device
        Where.
    planner : callable
        Makes the planner of a network.
    """
    own = planner(network)
    rivals, untried = _rivals(network, device)
    if not rivals and not untried:
        return own
    known = own.timed()
    if known is None:
        return own  # it may not be measured, and never was
    if known.seconds < SHORT and own.tune is not True:
        untried += [(name, f"{USUAL} is fast enough") for name in rivals]
        rivals = []
    best, told = (known, own), [(USUAL, known.seconds)]
    faults = []
    for name in rivals:
        try:
            one = planner(NetworkView(network, name))
            can_prune = one.can_prune(best[0].seconds)
            if can_prune is not None:
                untried.append((name, can_prune))
                continue
            cover = one.timed()
        except (DeviceError, InputError, MemoryError) as error:
            faults.append(f"{name}: {error}")
            continue
        if cover is None:
            continue
        told.append((name, cover.seconds))
        if cover.seconds < best[0].seconds:
            best = cover, one
    report = best[1].report
    report.formats = sorted(told, key=lambda pair: pair[1])
    report.untried = untried
    report.failures += faults
    return best[1]


def _rivals(
    network: Model, device: Device
) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the formats to compare with the network's own, and those too large.

    The latter with a sentence.
    """
    chosen = [i for i, layer in enumerate(network.layers) if automatic(layer)]
    matrices = [network.matrices[i] for i in chosen]
    if not chosen or {matrix.format for matrix in matrices} != {USUAL}:
        return [], []  # a memory limit has chosen
    item_size = np.dtype(network.dtype).itemsize
    own = sum(matrix.nbytes(item_size) for matrix in matrices)
    patterns = [
        part.storage.pattern
        for matrix in matrices for part in matrix.parts
        if isinstance(part.storage, SparseStorage)
    ]
    needed = {
        name: sum(foreseen(pattern, name, item_size) for pattern in patterns)
        for name in RIVALS["cpu" if device.type == "cpu" else "gpu"]
    }
    smallest = min(own, *needed.values())
    found, untried = [], []
    for name, size in needed.items():
        most = LARGER.get(name, MUCH_LARGER) * smallest
        if size <= max(SMALL, most):
            found.append(name)
        else:
            untried.append((name, f"it needs {size / 1e6:.3g} MB"))
    return found, untried
