"""The fourth study: serial or parallel, by the size of the layers.

Seven layers of neurons, the inputs counted, all of one size. Small ones are done on one
core before the others, or a GPU, have begun; large ones are not. The study chose by
the size; here `Network.compile` chooses, from what it measures. Told are the size at
which parallel overtakes serial, and how the choice compares with the better of both.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from tabulate import tabulate

from clnet.network import Network
from clnet.nn.activations import activation
from clnet.nn.description import Description
from clnet.nn.layers import Dense
from clnet.opencl.device import Device
from clnet.opencl.discovery import devices
from clnet.variants import VARIANTS

from .candidates import BASES as BASES
from .candidates import (
    ByVariant,
    Candidate,
    Planned,
    Prepared,
    Serial,
    named,
    prepared,
    variant,
)
from .cases import GAIN, Array, Case, Check
from .frame import Trial
from .guard import Guarded
from .more_peers import Fann
from .options import Options
from .peers import NumPy
from .plots import Plot
from .records import Row
from .report import fill, number, tables
from .values import speed_up

TAKES = frozenset({"fann_library"})
ABOUT = "serial against parallel by the size of the layers, and the choice between them"
LAYERS = 7  # of neurons, the inputs counted
SIZES = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 12_000)
QUICK = (10, 50, 200, 1000, 2000)
ROOM = 6  # times the parameters: network, copies for kernels, one layer in float64
SERIAL = ("serial", "fann", "cpu-1core")
PARALLEL = ("parallel", "cpu", "device")
CROSSINGS = {  # of whom with whom
    "naive kernel": (SERIAL[:1], PARALLEL[:1]), "best of each": (SERIAL, PARALLEL),
}
CHOICE = ("dynamic", "planned")  # the first that was measured
PEERS = frozenset({"fann", "numpy"})
FANN_MOST = 5000  # neurons a layer; it takes twelve bytes a weight


def bases(device: Device) -> Sequence[str]:
    """Return what is timed unasked: from host array to host array, all counts."""
    return ("wall",)


@dataclass(frozen=True)
class EqualCase(Case):
    """Layers of one size; large ones too."""

    @property
    def network(self) -> Network:
        """The network: weights and biases uniform within Glorot's limit times a gain.

        Drawn at once in the type itself, which takes a tenth of the time.
        """
        return _network(self.sizes, self.activation, self.dtype, self.seed)

    def missing(self) -> str | None:
        """Return that the memory does not suffice."""
        need, free = ROOM * self.bytes, _free_bytes()
        if free is None or need <= free:
            return None
        return (
            f"it takes {need / 1e9:.0f} GB of the host's memory, and "
            f"{free / 1e9:.0f} GB are free"
        )

    @cached_property
    def checks(self) -> tuple[Check, ...]:
        """As `Case.checks`, but no more than one layer is held in float64."""
        network, value = self.network, activation(self.activation).value
        rows = np.arange(self.batch)
        found = []
        for which in (0, len(self.inputs) - 1):
            x: NDArray[np.float64] = self.inputs[which].astype(np.float64)
            for i in range(len(network.layers)):
                weights = network.weights(i).astype(np.float64)
                x = value(x @ weights.T + network.biases(i))
            found.append(Check(which, rows, x))
        return tuple(found)


@lru_cache(maxsize=1)
def _network(
    sizes: tuple[int, ...], name: str, dtype: str, seed: int
) -> Network:
    layers = [Dense(n, name) for n in sizes[1:]]
    size = Description(sizes[0], layers, dtype, False).layout.size
    limit = np.dtype(dtype).type(GAIN.get(name, 1.0) * math.sqrt(3 / sizes[0]))
    values: Array = np.random.default_rng(seed).random(size, np.dtype(dtype).type)
    values -= values.dtype.type(0.5)
    values *= 2 * limit
    return Network(sizes[0], layers, dtype=dtype, parameters=values)


def _free_bytes() -> int | None:
    """Return the bytes of memory that are free now; None where unknown."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def equal_case(n: int) -> EqualCase:
    """Return the case of layers of n neurons."""
    return EqualCase(str(n), (n,) * LAYERS)


# Candidates -------------------------------------------------------------------------


@dataclass(frozen=True)
class DeviceOnly:
    """The network as `Network.compile` plans it without the host's own arithmetic."""

    name: str = "device"
    patience: float | None = None

    def missing(self) -> str | None:
        """Return None: it is ours."""
        return None

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Return its plan."""
        names = [variant.name for variant in VARIANTS if variant.name != "host"]
        plan = case.network.compile(device, case.batch, variants=names)
        return prepared(case, device, plan.steps)


@dataclass(frozen=True)
class Dynamic:
    """The network on the device that `Network.compile` finds to be the fastest."""

    name: str = "dynamic"
    patience: float | None = None

    def missing(self) -> str | None:
        """Return that there is no CPU device to choose."""
        if any(place.type == "cpu" for place in devices()):
            return None
        return "there is no OpenCL device for the CPU: PoCL would be one"

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Return its plan; the config begins with the device."""
        best = case.network.compile("fastest", case.batch).device
        found = Planned().prepare(case, best)
        return replace(found, config=f"{best.name}: {found.config}")


def trials(device: Device, options: Options) -> tuple[Trial, ...]:
    """Return a trial a size; see `command.Study`."""
    sizes = QUICK if options.effort == "quick" else SIZES
    cpu = device.type == "cpu"
    candidates: list[Candidate] = [
        Serial(), Guarded(Fann(options.fann_library)),
        ByVariant(variant("naive"), label="parallel"),
    ]
    if cpu:
        if any(place.serial for place in device.places):
            candidates.append(
                ByVariant(variant("cpu"), one_core=True, label="cpu-1core")
            )
        candidates.append(ByVariant(variant("cpu")))
    else:
        candidates += [DeviceOnly(), Dynamic()]
    candidates += named(options, {"naive", *(one.name for one in candidates)})
    candidates += [Planned(), NumPy()]
    return tuple(
        Trial(
            "sizes", equal_case(n), tuple(candidates),
            frozenset({"fann"} if n > FANN_MOST else ()), ("serial",),
        )
        for n in sizes
    )


# What the rows tell -----------------------------------------------------------------


def _times(rows: Sequence[Row], basis: str) -> dict[int, dict[str, float]]:
    """Return the seconds of each size's candidates."""
    found: dict[int, dict[str, float]] = {}
    for row in rows:
        if row.median is not None and row.basis == basis:
            found.setdefault(int(row.case), {})[row.candidate] = row.median
    return dict(sorted(found.items()))


def _best(times: dict[str, float], names: Sequence[str]) -> tuple[str, float] | None:
    """Return the fastest of some candidates."""
    there = [(times[name], name) for name in names if name in times]
    return (min(there)[1], min(there)[0]) if there else None


def crossing(points: Sequence[tuple[int, float, float]]) -> float | None:
    """Return the size from which on parallel is faster; None if it never is.

    Parameters
    ----------
    points : sequence of (int, float, float)
        Size, serial seconds, parallel seconds, by size. Between two sizes the
        logarithms are taken to lie on a line.
    """
    gains = [(math.log(n), math.log(s / p)) for n, s, p in points]
    if not gains or gains[-1][1] <= 0:
        return None
    found = gains[0][0]
    for (x, a), (y, b) in pairwise(gains):
        if a <= 0 < b:
            found = x - a * (y - x) / (b - a)
    return math.exp(found)


def report(rows: Sequence[Row]) -> str:
    """Return the times, the choice beside the better of both, the crossing points."""
    found = [tables(rows)]
    for basis in dict.fromkeys(row.basis for row in rows if row.median is not None):
        times = _times(rows, basis)
        lines, worst = [], 0.0
        for n, those in times.items():
            serial, parallel = _best(those, SERIAL), _best(those, PARALLEL)
            choice = next((those[name] for name in CHOICE if name in those), None)
            if serial is None or parallel is None or choice is None:
                continue
            over = choice / min(serial[1], parallel[1])
            worst = max(worst, over)
            lines.append([
                str(n), serial[0], _micro(serial[1]), parallel[0], _micro(parallel[1]),
                _micro(choice), f"{over:.2f}",
            ])
        if not lines:
            continue
        table = tabulate(
            lines, ["size", "serial", "µs", "parallel", "µs", "choice", "over better"],
            disable_numparse=True,
            colalign=["right", "left", "right", "left", "right", "right", "right"],
        )
        found += [
            f"{basis}: the best serial and parallel ones, and the choice\n\n{table}",
            *(
                fill(f"{text}: {_crossing_text(_points(times, *names))}")
                for text, names in CROSSINGS.items()
            ),
            f"the choice took at most {worst:.2f} times what the better one took",
        ]
    return "\n\n".join(part for part in found if part)


def _micro(seconds: float) -> str:
    return number(1e6 * seconds)


def _points(
    times: dict[int, dict[str, float]], serial: Sequence[str], parallel: Sequence[str]
) -> list[tuple[int, float, float]]:
    """Return each size with the best serial and parallel seconds, where both are."""
    found = []
    for n, those in times.items():
        s, p = _best(those, serial), _best(those, parallel)
        if s and p:
            found.append((n, s[1], p[1]))
    return found


def _crossing_text(points: Sequence[tuple[int, float, float]]) -> str:
    size = crossing(points)
    if size is None:
        return "parallel is never faster"
    if all(parallel < serial for _, serial, parallel in points):
        return "parallel is faster at all sizes"
    return f"parallel is faster from some {number(size)} neurons a layer on"


def _marks(rows: Sequence[Row]) -> dict[str, float]:
    """Return the crossing points of a picture's rows."""
    times = _times(rows, rows[0].basis)
    found = {
        f"crossing: {text}": crossing(_points(times, *names))
        for text, names in CROSSINGS.items()
    }
    return {text: size for text, size in found.items() if size is not None}


PLOTS = (
    Plot(
        "time", "Seven equal layers, serial and parallel", ("sizes",),
        x=lambda row: int(row.case), x_label="neurons a layer",
        y_label="time of a call (µs)", marks=_marks,
    ),
    Plot(
        "speed-up", "Seven equal layers", ("sizes",), x=lambda row: int(row.case),
        x_label="neurons a layer", y_label="speed-up over the naive kernel on one core",
        y=speed_up("serial"),
    ),
)
