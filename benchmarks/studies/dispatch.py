"""The fourth study: serial or parallel, by the size of the layers.

The networks have seven layers of one size, the inputs counted. One core finishes small
ones before the other cores, or a GPU, have started. The study chose by the size;
`Network.compile` chooses from measurements. The report has the size at which parallel
overtakes serial, and the ratio of the choice's time to the better one's.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from clnet.network import Network
from clnet.nn.activations import activation
from clnet.nn.description import Description
from clnet.nn.layers import Dense
from clnet.opencl.device import Device
from clnet.opencl.discovery import devices

from ..baselines.dense import NumPy
from ..baselines.fann import Fann
from ..candidates import BASES as BASES
from ..candidates import Candidate, Prepared
from ..cases.dense import GAIN, Array, Case, Check
from ..harness import Options, Trial
from ..own_candidates import (
    ByVariant,
    Planned,
    Serial,
    has_serial,
    named,
    variant,
)
from ..processes import Guarded
from ..report.metrics import speed_up
from ..report.plots import Plot
from ..report.tables import fill, number, tables, text

TAKES = frozenset({"fann_library"})
ABOUT = "serial against parallel by the size of the layers, and the choice between them"
LAYERS = 7  # of neurons, the inputs counted
SIZES = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 12_000)
QUICK = (10, 50, 200, 1000, 2000)
ROOM = 6  # times the parameters: network, packed copies, one layer in float64
SERIAL = ("serial", "fann", "cpu-1core")
PARALLEL = ("parallel", "cpu", "device")
CROSSINGS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "naive kernel": (SERIAL[:1], PARALLEL[:1]), "best of each": (SERIAL, PARALLEL),
}
CHOICE = ("dynamic", "planned")  # the first one measured
BASELINES = frozenset({"fann", "numpy"})
FANN_MOST = 5000  # neurons a layer; it takes twelve bytes a weight


def bases(device: Device) -> Sequence[str]:
    """Return the basis from host array to host array: transfers count."""
    return ("wall",)


@dataclass(frozen=True)
class EqualCase(Case):
    """Layers of one size, which may be very large."""

    def build(self) -> Network:
        """Return a new network; parameters are uniform in Glorot's limit times a gain.

        They are drawn at once in their type, in a tenth of the time.
        """
        layers = [Dense(n, self.activation) for n in self.sizes[1:]]
        size = Description(self.sizes[0], layers, self.dtype, False).layout.size
        real = np.dtype(self.dtype).type
        limit = real(GAIN.get(self.activation, 1.0) * math.sqrt(3 / self.sizes[0]))
        values: Array = np.random.default_rng(self.seed).random(size, real)
        values -= values.dtype.type(0.5)
        values *= 2 * limit
        return Network(self.sizes[0], layers, dtype=self.dtype, parameters=values)

    def missing(self) -> str | None:
        """Return None if the host has enough free memory."""
        need, free = ROOM * self.bytes, _free_bytes()
        if free is None or need <= free:
            return None
        return (
            f"it takes {need / 1e9:.0f} GB of the host's memory, and "
            f"{free / 1e9:.0f} GB are free"
        )

    @cached_property
    def checks(self) -> tuple[Check, ...]:
        """As `Case.checks`, with one layer in float64 at a time."""
        network, value = self.network, activation(self.activation).value
        rows = np.arange(self.batch)
        checks = []
        for index in (0, len(self.inputs) - 1):
            x: NDArray[np.float64] = self.inputs[index].astype(np.float64)
            for i in range(len(network.layers)):
                weights = network.weights(i).astype(np.float64)
                x = value(x @ weights.T + network.biases(i))
            checks.append(Check(index, rows, x))
        return tuple(checks)


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
class Dynamic(Candidate):
    """The network on the device that `Network.compile` measures as the fastest."""

    name: str = "dynamic"

    def missing(self) -> str | None:
        """Return None if there is an OpenCL device for the CPU."""
        if any(device.type == "cpu" for device in devices()):
            return None
        return "there is no OpenCL device for the CPU: PoCL would be one"

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Return its plan; the config begins with the device."""
        best = case.network.compile("fastest", case.batch).device
        planned = Planned().prepare(case, best)
        return replace(planned, config=f"{best.name}: {planned.config}")


def trials(device: Device, options: Options) -> tuple[Trial, ...]:
    """Return a trial a size; see `command.Study`."""
    sizes = QUICK if options.effort == "quick" else SIZES
    cpu = device.type == "cpu"
    candidates: list[Candidate] = [
        Serial(), Guarded(Fann(options.fann_library)),
        ByVariant(variant("naive"), name="parallel"),
    ]
    if cpu:
        if has_serial(device):
            candidates.append(
                ByVariant(variant("cpu"), one_core=True, name="cpu-1core")
            )
        candidates.append(ByVariant(variant("cpu")))
    else:
        candidates += [Planned(name="device", on_host=False), Dynamic()]
    listed = {candidate.name for candidate in candidates}
    candidates += named(options, {"naive", *listed})
    candidates += [Planned(), NumPy()]
    return tuple(
        Trial(
            "sizes", equal_case(n), tuple(candidates),
            frozenset({"fann"} if n > FANN_MOST else ()), ("serial",),
        )
        for n in sizes
    )


# The report --------------------------------------------------------------------------


def _times(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the seconds of each size and candidate, of one basis."""
    times = rows.assign(size=rows["case"].astype(int)).pivot_table(
        index="size", columns="candidate", values="median", aggfunc="last"
    )
    return times.rename_axis(index=None, columns=None)


def _best(
    times: pd.DataFrame, serial: Sequence[str], parallel: Sequence[str]
) -> pd.DataFrame:
    """Return the best serial and parallel seconds of the sizes that have both."""
    return pd.DataFrame({
        "serial": times.reindex(columns=serial).min(axis="columns"),
        "parallel": times.reindex(columns=parallel).min(axis="columns"),
    }).dropna()


def crossing(best: pd.DataFrame) -> float | None:
    """Return the size from which parallel is faster; None if it never is.

    Columns are ``serial`` and ``parallel``, in seconds, by rising size. Between two
    sizes the logarithms are interpolated linearly.
    """
    gains = list(np.log(best["serial"] / best["parallel"]).items())
    if not gains or gains[-1][1] <= 0:
        return None
    size = gains[0][0]
    for (n, a), (m, b) in pairwise(gains):
        if a <= 0 < b:
            size = n * (m / n) ** (a / (a - b))
    return float(size)


def report(rows: pd.DataFrame) -> str:
    """Return the times, the choice beside the better of both, the crossings."""
    parts = [tables(rows)]
    for basis, group in rows[rows["median"].notna()].groupby("basis", sort=False):
        times = _times(group)
        choice = times.reindex(columns=CHOICE).bfill(axis="columns")[CHOICE[0]]
        best = _best(times, SERIAL, PARALLEL).assign(choice=choice)
        best = 1e6 * best.dropna().add_suffix(", µs")
        if best.empty:
            continue
        best["over the better"] = best["choice, µs"] / best.iloc[:, :2].min(
            axis="columns"
        )
        parts += [
            f"{basis}: serial and parallel at best, and the choice\n\n{text(best)}",
            *(
                fill(f"{name}: {_crossing_text(_best(times, *names))}")
                for name, names in CROSSINGS.items()
            ),
            "the choice took at most "
            f"{best['over the better'].max():.2f} times the time of the better one",
        ]
    return "\n\n".join(part for part in parts if part)


def _crossing_text(best: pd.DataFrame) -> str:
    size = crossing(best)
    if size is None:
        return "parallel is never faster"
    if (best["parallel"] < best["serial"]).all():
        return "parallel is faster at all sizes"
    return f"parallel is faster from some {number(size)} neurons a layer on"


def _marks(rows: pd.DataFrame) -> dict[str, float]:
    """Return the crossings of a picture's rows."""
    times = _times(rows)
    marks = {
        f"crossing: {name}": crossing(_best(times, *names))
        for name, names in CROSSINGS.items()
    }
    return {name: size for name, size in marks.items() if size is not None}


PLOTS = (
    Plot(
        "time", "Seven equal layers, serial and parallel", ("sizes",),
        x=lambda rows: rows["case"].astype(int), x_label="neurons a layer",
        y_label="time of a call (µs)", marks=_marks,
    ),
    Plot(
        "speed-up", "Seven equal layers", ("sizes",),
        x=lambda rows: rows["case"].astype(int),
        x_label="neurons a layer", y_label="speed-up over the naive kernel on one core",
        y=speed_up("serial"),
    ),
)
