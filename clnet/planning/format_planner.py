"""The choice of a storage format for layers of format ``"auto"``, and of a device.

The network is planned once for each format that may be the fastest, and whole calls, or
steps of training, are compared. A plan in another format than the network's own runs a
`NetworkView`, which copies the network's parameters whenever they change. Training
changes parameters in the view's layout; `relayout` maps them back.

Devices are compared likewise, each by a plan of its own: a plan stays on one OpenCL
platform and in NumPy. One core of the host computes a small network before a GPU has
started; a large network is faster on the GPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
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
from clnet.opencl.discovery import FASTEST
from clnet.planning.cover import TIE_RATIO
from clnet.runtime.data_parallel import alike

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
        source, values = self._copied
        if source is not parameters:
            values = self.relayout.forward(parameters)
            values.flags.writeable = False
            self._copied = parameters, values
        return values

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
    asked = best = planner(network)
    formats, untried = _alternatives(network, device)
    if not formats and not untried:
        return best
    cover = best.timed_cover()
    if cover is None:
        return best  # no time is remembered, and none may be measured
    least = cover.seconds
    reason = None
    if least < SHORT_CALL * _launch_seconds(device) and best.tune is not True:
        reason = f"{DEFAULT_FORMAT} is fast enough"
    elif not best.budget.pays(least):
        reason = "there is no time to measure it"
    if reason is not None:
        untried += [(name, reason) for name in formats]
        formats = []
    timed, others, failed = _timed(
        [(name, partial(_of_view, planner, network, name)) for name in formats],
        (DeviceError, InputError, MemoryError), least,
    )
    # The first of a tie wins: the network's own needs no copy of the parameters.
    timed.insert(0, (DEFAULT_FORMAT, least, best))
    least = min(seconds for _, seconds, _ in timed)
    chosen, _, best = next(entry for entry in timed if entry[1] <= TIE_RATIO * least)
    best.report.formats = sorted(
        ((name, seconds) for name, seconds, _ in timed),
        key=lambda pair: (pair[0] != chosen, pair[1]),
    )
    best.report.untried = untried + [other for other in others if other[1]]
    best.report.failures += [f"{name}: {text}" for name, text in failed]
    if best is not asked:  # the search is asked for by the network's own format
        asked.note_searched(least)
    return best


def fastest_planner(devices: Sequence[Device], planner: Callable[[Device], P]) -> P:
    """Return the planner of the device on which a whole call takes the shortest time.

    Its report lists the others.
    """
    timed, others, failed = _timed(
        [(device.name, partial(planner, device)) for device in distinct(devices)],
        DeviceError,
    )
    faults = [text if name in text else f"{name}: {text}" for name, text in failed]
    if others:
        raise DeviceError(
            f'"{FASTEST}" needs a time of every device: none is remembered of '
            f"{others[0][0]}, and with tune=False none may be measured; name a "
            "device instead"
        )
    if not timed:
        raise DeviceError("; ".join(faults))
    timed.sort(key=lambda entry: entry[1])
    best = timed[0][2]
    best.report.devices = [(name, seconds) for name, seconds, _ in timed]
    best.report.failures += faults
    return best


def distinct(devices: Sequence[Device]) -> list[Device]:
    """Return the first of each group of devices that are alike."""
    groups: list[Device] = []
    for device in devices:
        if not any(alike((device, other)) for other in groups):
            groups.append(device)
    return groups


def _of_view(planner: Callable[[Model], P], network: Model, format: str) -> P:  # noqa: A002
    return planner(NetworkView(network, format))


def _timed(
    planners: Sequence[tuple[str, Callable[[], P]]],
    errors: type[Exception] | tuple[type[Exception], ...], least: float | None = None,
) -> tuple[list[tuple[str, float, P]], list[tuple[str, str]], list[tuple[str, str]]]:
    """Return named planners with the seconds of a whole call, the others, and errors.

    The others are those that cannot take less than the least time, with the reason, and
    those whose time is neither remembered nor may be measured, with "".
    """
    timed, others, faults = [], [], []
    for name, make in planners:
        try:
            planner = make()
            reason = None if least is None else planner.can_prune(least)
            cover = planner.timed_cover() if reason is None else None
        except errors as error:
            faults.append((name, str(error)))
            continue
        if cover is None:
            others.append((name, reason or ""))
            continue
        timed.append((name, cover.seconds, planner))
        least = least and min(least, cover.seconds)
    return timed, others, faults


def _launch_seconds(device: Device) -> float:
    """Return the seconds of a launch alone, on the place where it is shortest."""
    return min(place.rates.launch + place.rates.sync for place in device.places)


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
    present = sum(matrix.nbytes(item_size) for matrix in matrices)
    patterns = [
        block.storage.pattern
        for matrix in matrices for block in matrix.parts
        if isinstance(block.storage, SparseStorage)
    ]
    needed = {
        name: sum(predicted_nbytes(pattern, name, item_size) for pattern in patterns)
        for name in ALTERNATIVES["cpu" if device.type == "cpu" else "gpu"]
    }
    smallest = min(present, *needed.values())
    # Bytes that are read in the time of a launch: launches count more.
    small = _launch_seconds(device) * device.rates.memory
    formats, untried = [], []
    for name, size in needed.items():
        limit = SIZE_RATIOS.get(name, SIZE_RATIO) * smallest
        if size <= max(small, limit):
            formats.append(name)
        else:
            untried.append((name, f"it needs {size / 1e6:.3g} MB"))
    return formats, untried
