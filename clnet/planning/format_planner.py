"""The choice of a storage format for layers of format ``"auto"``, by measurement.

The network is planned once for each format that may be the fastest, and whole calls, or
steps of training, are compared. A plan in another format than the network's own runs a
`NetworkView`, which copies the network's parameters whenever they change. Training
changes parameters in the view's layout; `relayout` maps them back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clnet.errors import DeviceError, InputError
from clnet.nn.description import Relayout
from clnet.nn.layers import Layer, Sparse
from clnet.nn.model import Model
from clnet.nn.storage.formats import AUTO, DEFAULT_FORMAT, predicted_nbytes
from clnet.nn.storage.pattern import Pattern
from clnet.nn.storage.sparse import SparseStorage
from clnet.planning.cover import TIE_RATIO

if TYPE_CHECKING:
    from clnet.nn.initialisers import Draw
    from clnet.nn.matrix import Matrix
    from clnet.opencl.device import Device
    from clnet.planning.planner import Planner

P = TypeVar("P", bound="Planner")

ALTERNATIVES: dict[str, tuple[str, ...]] = {
    "cpu": ("dia", "dense"), "gpu": ("sell", "ell", "dia", "dense"),
}
"""Formats that may be faster than the network's own. Kernels read the others as they
read csr, and index the values by a table besides."""
SIZE_RATIOS = {"dense": 6.0, "dia": 4.0}
"""Bytes over those of the smallest format, above which a format is not tried. Whole
rows are read several times as fast as entries, diagonals nearly so."""
SIZE_RATIO = 2.0  # of other formats, which are read no faster than csr
SHORT_CALL = 2.0  # launches; no format makes a call of so few much shorter


class NetworkView(Model):
    """A view of a network with another storage format of its ``"auto"`` layers.

    Its parameters are always those of the network, in the view's layout.
    """

    def __init__(self, network: Model, format: str) -> None:  # noqa: A002
        self._network = network
        self.format = format
        super().__init__(
            network.n_in,
            [
                _in_format(layer, format, matrix)
                for layer, matrix in zip(network.layers, network.matrices, strict=True)
            ],
            dtype=network.dtype, fann_compatible=network.fann_compatible,
            fann=network.fann,
        )
        self.relayout: Relayout = Relayout.between(network, self)
        # The network's parameters, and the same ones in the view's layout.
        self._copied: tuple[NDArray[Any] | None, NDArray[Any]] = None, self._parameters

    def _initial(self, draw: Draw | None, seed: int | None) -> NDArray[Any]:
        """Return zeros: drawn parameters would be replaced."""
        return np.zeros(self.layout.size, self.dtype)

    @property
    def version(self) -> int:
        """The version of the network."""
        return self._network.version

    @property
    def parameters(self) -> NDArray[Any]:
        """The network's parameters in the view's layout, read-only."""
        return self.in_layout(self._network.parameters)

    @parameters.setter
    def parameters(self, values: ArrayLike) -> None:
        self._replace(np.asarray(values))

    def in_layout(self, parameters: NDArray[Any]) -> NDArray[Any]:
        """Return parameters of the network in the view's layout, read-only.

        It is one object for one object, until another is asked for.
        """
        source, found = self._copied
        if source is not parameters:
            found = self.relayout.forward(parameters)
            found.flags.writeable = False
            self._copied = parameters, found
        return found

    def _replace(self, parameters: NDArray[Any]) -> None:
        raise InputError(
            "the parameters of a network view are read-only: set those of its network"
        )


def is_auto(layer: Layer) -> bool:
    """Return whether a layer is of format ``"auto"``."""
    return isinstance(layer, Sparse) and layer.format == AUTO


def _in_format(layer: Layer, format: str, matrix: Matrix) -> Layer:  # noqa: A002
    """Return an ``"auto"`` layer in a format, and any other layer as it is."""
    if not (isinstance(layer, Sparse) and is_auto(layer)):
        return layer
    # The matrix has the pattern already: it is not drawn again.
    rows, columns, _ = matrix.entries()
    pattern = Pattern(matrix.n_out, matrix.n_in, rows, columns)
    return dataclasses.replace(layer, density=None, pattern=pattern, format=format)


def best_format(network: Model, device: Device, planner: Callable[[Model], P]) -> P:
    """Return the planner of a network, or of its view in the fastest format.

    Of formats whose times are within `TIE_RATIO` of the least it is the network's own,
    else the first: whole calls vary by more than such formats differ.
    """
    best = planner(network)
    formats, untried = _alternatives(network, device)
    if not formats and not untried:
        return best
    cover = best.timed_cover()
    if cover is None:
        return best  # no time is remembered, and none may be measured
    least = cover.seconds
    if least < SHORT_CALL * _launch_seconds(device) and best.tune is not True:
        untried += [(name, f"{DEFAULT_FORMAT} is fast enough") for name in formats]
        formats = []
    elif not best.search.pays(least):
        untried += [(name, "there is no time to measure it") for name in formats]
        formats = []
    timed, faults = [(DEFAULT_FORMAT, least, best)], []
    for name in formats:
        try:
            candidate = planner(NetworkView(network, name))
            reason = candidate.can_prune(least)
            if reason is not None:
                untried.append((name, reason))
                continue
            cover = candidate.timed_cover()
        except (DeviceError, InputError, MemoryError) as error:
            faults.append(f"{name}: {error}")
            continue
        if cover is None:
            continue
        timed.append((name, cover.seconds, candidate))
        least = min(least, cover.seconds)
    # The first of a tie wins: the network's own needs no copy of the parameters.
    chosen, _, best = next(one for one in timed if one[1] <= TIE_RATIO * least)
    best.report.formats = sorted(
        ((name, seconds) for name, seconds, _ in timed),
        key=lambda pair: (pair[0] != chosen, pair[1]),
    )
    best.report.untried = untried
    best.report.failures += faults
    return best


def _launch_seconds(device: Device) -> float:
    """Return the seconds of a launch alone, on the place where it is shortest."""
    return min(one.rates.launch + one.rates.sync for one in device.places)


def _alternatives(
    network: Model, device: Device
) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the formats to compare with the network's own.

    Those too large come second, each with a sentence.
    """
    matrices = [
        matrix
        for layer, matrix in zip(network.layers, network.matrices, strict=True)
        if is_auto(layer)
    ]
    if {matrix.format for matrix in matrices} != {DEFAULT_FORMAT}:
        return [], []  # no such layer, or a memory limit has decided
    item_size = np.dtype(network.dtype).itemsize
    own = sum(matrix.nbytes(item_size) for matrix in matrices)
    patterns = [
        part.storage.pattern
        for matrix in matrices for part in matrix.parts
        if isinstance(part.storage, SparseStorage)
    ]
    needed = {
        name: sum(predicted_nbytes(pattern, name, item_size) for pattern in patterns)
        for name in ALTERNATIVES["cpu" if device.type == "cpu" else "gpu"]
    }
    smallest = min(own, *needed.values())
    # Bytes that are read in the time of a launch: launches count more.
    small = _launch_seconds(device) * device.rates.memory
    found, untried = [], []
    for name, size in needed.items():
        limit = SIZE_RATIOS.get(name, SIZE_RATIO) * smallest
        if size <= max(small, limit):
            found.append(name)
        else:
            untried.append((name, f"it needs {size / 1e6:.3g} MB"))
    return found, untried
