"""The second study: partially connected networks, by format, density and size.

Its experiments vary neurons a layer, layers or density from `BASE`, and compare time
and memory; ``large`` is one layer of a present-day size. All formats hold the same
weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pandas as pd

from clnet.nn.layers import Sparse
from clnet.nn.storage.dense import MaskedStorage
from clnet.nn.storage.formats import (
    AUTO,
    DEFAULT_FORMAT,
    FORMATS,
    Parts,
    hyb,
    nbytes,
)
from clnet.nn.storage.pattern import Pattern
from clnet.opencl.device import Device
from clnet.planning.format_planner import is_auto

from ..baselines.dense import NumPy, Torch
from ..baselines.sparse import CuPySparse, SciPy, TorchSparse
from ..candidates import BASES as BASES
from ..candidates import Candidate, Prepared
from ..candidates import bases as bases
from ..cases.sparse import SparseCase, sparse_case
from ..harness import Options, Trial
from ..own_candidates import Planned
from ..report.metrics import Metric, call, widths
from ..report.plots import Plot
from ..report.tables import tables, text

TAKES = frozenset({"batches", "tune"})
ABOUT = "partially connected networks: time and memory by format, density and size"
BASE = (50, 5, 0.1)  # neurons a layer, layers, density
NEURONS = (1, 10, 25, 50, 75, 100)
LAYERS = (1, 2, 5, 10, 25, 50, 100)
DENSITIES = (0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
LARGE = tuple(
    (n, density) for n in (1000, 4000, 8000)
    for density in (0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5)
) + tuple((16_000, density) for density in (0.001, 0.01, 0.05))
QUICK = ((1000, 0.01), (1000, 0.1), (4000, 0.01))
QUICK_NEURONS, QUICK_LAYERS, QUICK_DENSITIES = (10, 100), (1, 10), (0.1, 0.5)
BATCHES = (1, 32)  # of large ones
PADDED = ("ell", "hyb", "dia", "coo")  # on demand in the table `large`
DENSE_MOST = 10_000  # neurons; dense rows of more are on demand
CUDA = frozenset(
    {"torch-sparse", "torch-sparse-graph", "torch-cuda", "torch-graph", "cupy-sparse"}
)
BASELINES = frozenset({"numpy", "scipy", "torch", *CUDA})


@dataclass(frozen=True)
class Stored(Candidate):
    """The network in one format, as `Network.compile` plans it."""

    name: str  # A format; ``"auto"``: the one that clnet chooses by measurement
    tune: bool = False  # Whether the whole tuning space is measured first

    def prepare(self, case: SparseCase, device: Device) -> Prepared:
        """Return its plan; the config of ``"auto"`` begins with the chosen format."""
        chosen = self.name
        if chosen == AUTO:
            plan = case.network.compile(device, case.batch)
            layer = plan.network.layers[0]
            assert isinstance(layer, Sparse)
            chosen = DEFAULT_FORMAT if is_auto(layer) else layer.format
        planned = Planned(self.tune).prepare(replace(case, stored=chosen), device)
        if self.name == AUTO:
            planned = replace(planned, config=f"{chosen}: {planned.config}")
        return planned


def trials(device: Device, options: Options) -> tuple[Trial, ...]:
    """Return the trials, small networks first; see `command.Study`."""
    quick = options.effort == "quick"
    neurons, layers, density = BASE
    trials = [
        ("neurons", sparse_case(n, layers, density))
        for n in (QUICK_NEURONS if quick else NEURONS)
    ]
    trials += [
        ("layers", sparse_case(neurons, n, density))
        for n in (QUICK_LAYERS if quick else LAYERS)
    ]
    trials += [
        ("density", sparse_case(neurons, layers, d))
        for d in (QUICK_DENSITIES if quick else DENSITIES)
    ]
    trials += [
        ("large", sparse_case(n, 1, d, batch))
        for n, d in (QUICK if quick else LARGE)
        for batch in options.batches or ((1,) if quick else BATCHES)
    ]
    return tuple(_trial(table, case, device, options.tune) for table, case in trials)


def _trial(table: str, case: SparseCase, device: Device, tune: bool) -> Trial:
    cpu = device.type == "cpu"
    ours: list[Candidate] = [Stored(name, tune) for name in (*FORMATS, AUTO)]
    others: list[Candidate] = [
        NumPy(), SciPy(), TorchSparse(), TorchSparse("torch-sparse-graph"),
        CuPySparse(), *(Torch(name) for name in ("torch", "torch-cuda", "torch-graph")),
    ]
    on_demand = set(CUDA) if cpu else {"torch"}
    if table == "large":
        on_demand |= set(PADDED)
        if case.sizes[0] >= DENSE_MOST:
            on_demand |= {"dense", "numpy", "torch", "torch-cuda", "torch-graph"}
    return Trial(
        table, case, (*ours, *others), frozenset(on_demand),
        ("scipy", "numpy") if cpu else ("torch-sparse-graph", "torch-sparse", "scipy"),
    )


def report(rows: pd.DataFrame) -> str:
    """Return the study's tables: times, then memory by exact counts."""
    parts = [tables(rows)]
    if (rows["table"] == "density").any():
        parts += [
            f"memory of a layer of {BASE[0]} neurons, bytes as stored\n\n"
            f"{text(memory(stored_bytes))}",
            f"the same by the study's formulas\n\n{text(memory(study_bytes))}",
            f"density from which a layer needs as much memory as dense, %\n\n"
            f"{text(break_even())}",
        ]
    return "\n\n".join(part for part in parts if part)


def stored_bytes(storages: Parts) -> int:
    """Return the bytes of storages in float32."""
    return nbytes(storages, 4)


def study_bytes(storages: Parts) -> int:
    """Return the bytes by the study's formulas: a word for each value and index.

    They have no lengths of rows, and no padding of dense ones.
    """
    return 4 * sum(
        part.n_out * part.n_in if isinstance(part, MaskedStorage) else part.size + sum(
            table.size for name, table in part.indices.items() if name != "lengths"
        )
        for part in storages
    )


def memory(count: Callable[[Parts], int]) -> pd.DataFrame:
    """Return the bytes of a layer of the study by density and format."""
    neurons, _, _ = BASE
    table = {}
    for density in DENSITIES:
        (layer,) = sparse_case(neurons, 1, density).network.layers
        assert isinstance(layer, Sparse)
        pattern = layer.connections(neurons)
        storages = [make(pattern) for make in FORMATS.values()]
        table[f"{100 * density:g}%"] = [count(parts) for parts in storages]
    return pd.DataFrame.from_dict(table, orient="index", columns=list(FORMATS))


COUNTS: dict[str, Callable[[Pattern], int]] = {
    "hyb as stored": lambda pattern: stored_bytes(hyb(pattern)),
    "hyb by the formulas": lambda pattern: study_bytes(hyb(pattern)),
    "all ell": lambda pattern: 8 * pattern.n_out * pattern.longest,
    "all coo": lambda pattern: 12 * len(pattern),
}
"""Ways to count the bytes of a pattern: all but the first with words of 4 bytes."""


def break_even() -> pd.DataFrame:
    """Return the density, %, from which a layer needs as much memory as dense."""
    table = {}
    for neurons in (BASE[0], 10 * BASE[0]):
        crossings = []
        for count in COUNTS.values():
            low, high = 1, 100  # percent; bytes grow with the density
            while low < high:
                middle = (low + high) // 2
                layer = Sparse(neurons, density=middle / 100)
                if count(layer.connections(neurons)) < 4 * neurons**2:
                    low = middle + 1
                else:
                    high = middle
            crossings.append(low)
        table[f"{neurons} neurons"] = crossings
    return pd.DataFrame.from_dict(table, orient="index", columns=list(COUNTS))


def _percent(rows: pd.DataFrame) -> pd.Series:
    """Return the density at the end of the cases' names."""
    return rows["case"].str.extract(r"([\d.]+)%$")[0].astype(float)


def _plot(table: str, x: Metric, label: str, others: str) -> Plot:
    return Plot(
        table, f"Time by {table}, {others}", (table,), x=x, x_label=label,
        y_label="time (µs)",
    )


PLOTS = (
    _plot("neurons", lambda rows: widths(rows).str[0], "neurons a layer",
          f"{BASE[1]} layers, {100 * BASE[2]:g}%"),
    _plot("layers", lambda rows: widths(rows).str.len() - 1, "layers",
          f"{BASE[0]} neurons, {100 * BASE[2]:g}%"),
    _plot("density", _percent, "density (%)", f"{BASE[1]} layers of {BASE[0]}"),
    Plot(
        "large", "One layer", ("large",), x=_percent, x_label="density (%)",
        y_label="time (µs)",
        page=lambda rows: widths(rows).str[0].astype(str) + " neurons, " + call(rows),
    ),
)
