"""The fifth study: locally connected layers, by bandwidth, and over cores.

Output i of a layer reads inputs i … i + 2, with weights of its own; a layer has one
bias. N is the number of inputs and K that of layers, the inputs counted as in the
study: K - 1 layers of weights.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import partial

import pandas as pd

from clnet.errors import DeviceError
from clnet.nn.storage.layout import round_up
from clnet.nn.storage.local import BAND_ALIGNMENT
from clnet.opencl.device import Device
from clnet.opencl.discovery import device as part_of
from clnet.runtime.binding import PlanStep
from clnet.variants.stencil.stencil import DEEP_TILES

from ..baselines.local import NumPyLocal, TorchLocal
from ..baselines.memory import MemoryKernel
from ..candidates import BASES as BASES
from ..candidates import Candidate, Prepared
from ..candidates import bases as bases
from ..cases.dense import Case
from ..cases.local import WINDOW, LocalCase, local_case
from ..harness import Options, Trial
from ..own_candidates import ByVariant, Planned, has_serial, named, prepared, variant
from ..report.metrics import call, speed_up, widths
from ..report.plots import Curve, Plot
from ..report.tables import metric_tables, tables
from .scaling_models import CHIP, FRACTIONS, amdahl, symmetric

TAKES = frozenset({"batches", "tune"})
ABOUT = "locally connected layers: bandwidth, several layers a launch, scaling"
PAIRS = (  # (N, K)
    (50, 20), (1000, 250), (10_000, 100), (100_000, 20), (1_000_000, 17),
    (5_000_000, 2), (5_000_000, 17),
)
LARGER = ((50_000_000, 2),)  # for GPUs
QUICK = ((1000, 250), (1_000_000, 2))
BASE = (1000, 250)  # N and K of the scaling over cores
WIDE = (1_000_000, 17)  # likewise, with a small halo
SHARE = (100_000, 20)  # likewise, a core
CUDA = frozenset({"torch-cuda", "torch-graph", "torch-compile"})
BASELINES = frozenset({"numpy", "torch", *CUDA})
LONG = (100_000, 64)  # neurons, and inputs of each, of a wide window
SCALING = {
    "strong": "the same network", "weak_n": "N grows with the cores",
    "weak_k": "K grows with the cores, N follows",
    "weak_n_wide": "N grows with the cores, from a wide network on",
    "weak_k_wide": "K grows with the cores, N follows, from a wide network on",
}
MEMORY = (MemoryKernel("read"), MemoryKernel("copy"))


@dataclass(frozen=True)
class Workers(Candidate):
    """`stencil_cpu` on some of the cores, all layers in one launch.

    It runs on a sub-device of these cores if the device can be partitioned, else as one
    work-item a core on the whole device.
    """

    workers: int
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", f"cores-{self.workers}")

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Return the plan of equal tiles, the same number for each core."""
        with contextlib.suppress(DeviceError):
            device = part_of(device, units=self.workers)
        stencil = ByVariant(variant("stencil_cpu"))
        (step,) = stencil.steps(case, device)
        share = -(-case.sizes[-1] // self.workers)
        tile = round_up(-(-share // -(-share // DEEP_TILES[0])), BAND_ALIGNMENT)
        config = {"workers": self.workers, "tile": tile, "stream": 0}
        only = PlanStep(step.span, step.variant, config, step.device)
        return prepared(case, device, (only,))


def trials(device: Device, options: Options) -> tuple[Trial, ...]:
    """Return pairs, both strategies, and on CPUs the scaling; see `command.Study`."""
    cpu = device.type == "cpu"
    pairs = QUICK if options.effort == "quick" else PAIRS
    if not cpu and options.effort != "quick":
        pairs = (*pairs, *LARGER)
    trials = [
        _pair(local_case(n, k, batch), device, options)
        for n, k in pairs for batch in options.batches or (1,)
    ]
    trials += _strategies(device)
    if cpu:
        trials += _scaling(device)
    return tuple(trials)


def _pair(case: LocalCase, device: Device, options: Options) -> Trial:
    cpu, tune = device.type == "cpu", options.tune
    ours: list[Candidate] = [
        ByVariant(variant("stencil"), tune=tune),
        ByVariant(variant("stencil"), {"tile": 1}, name="stencil-tile"),
        ByVariant(variant("trapezoid"), tune=tune),
    ]
    shaped = {candidate.name for candidate in ours}
    if cpu:
        stencil = variant("stencil_cpu")
        ours.append(ByVariant(stencil, tune=tune))
        if len(case.sizes) > 2:
            ours.append(ByVariant(stencil, by_layer=True, name="by-layer"))
        if has_serial(device):
            ours.append(ByVariant(stencil, one_core=True, name="cpu-1core"))
    ours += named(options, (candidate.name for candidate in ours))
    baselines: tuple[Candidate, ...] = (
        NumPyLocal(), *(TorchLocal(name) for name in ("torch", *sorted(CUDA)))
    )
    # One layer is bound by memory alone.
    memory = MEMORY if len(case.sizes) == 2 else ()
    return Trial(
        "pairs", case, (*ours, Planned(tune), *memory, *baselines),
        frozenset({*shaped, *CUDA} if cpu else {"torch"}),
        ("numpy",) if cpu else ("torch-graph", "torch-cuda", "numpy"),
    )


def _strategies(device: Device) -> list[Trial]:
    """Return both ways to divide a layer's work: by rows, or by inputs of a row."""
    stencil = variant("stencil_cpu" if device.type == "cpu" else "stencil")
    rows = ByVariant(stencil, by_layer=True, name="outer-loop")
    candidates = (rows, ByVariant(variant("stencil_reduction"), name="inner-loop"))
    n_out, window = LONG
    long = LocalCase(f"N={n_out + window - 1} R={window}", (n_out + window - 1, n_out))
    return [
        Trial("strategies", case, candidates, against=("outer-loop",))
        for case in (*(local_case(*pair) for pair in (BASE, WIDE)), long)
    ]


def _scaling(device: Device) -> list[Trial]:
    """Return trials of strong and weak scaling over 1, 2, 4 … cores."""
    cores = [1]
    while 2 * cores[-1] <= device.compute_units:
        cores.append(2 * cores[-1])
    trials = [
        Trial(
            "strong", local_case(*pair), tuple(Workers(p) for p in cores),
            against=("cores-1",),
        )
        for pair in (BASE, WIDE)
    ]
    for table, pair, larger in (
        ("weak_n", BASE, _larger_n), ("weak_k", BASE, _larger_k),
        ("weak_n_wide", SHARE, _larger_n), ("weak_k_wide", SHARE, _larger_k),
    ):
        trials += [
            Trial(table, local_case(*larger(*pair, p)), (Workers(p),), against=())
            for p in cores
        ]
    return trials


def _larger_n(n: int, k: int, cores: int) -> tuple[int, int]:
    """Return ``(1 - p) K + p N``, which gives each of p cores as many rows, and K."""
    return (1 - cores) * k + cores * n, k


def _larger_k(n: int, k: int, cores: int) -> tuple[int, int]:
    """Return N and ``p K``, with p times as many rows in all."""
    rows = cores * _rows(n, k)
    deep = cores * k
    # `_rows`, solved for N.
    return round(rows / (deep - 1) + (WINDOW - 1) * deep / 2), deep


def _rows(n: int, k: int) -> int:
    """Return the rows of all layers: the sum of N - 2 i for i from 1 to K - 1."""
    return (k - 1) * n - (WINDOW - 1) * k * (k - 1) // 2


def report(rows: pd.DataFrame) -> str:
    """Return the study's tables: times, effective bandwidth, efficiency over cores."""
    parts = [tables(rows)]
    pairs = rows[rows["table"] == "pairs"]
    for meaning, metric in (
        ("effective GB/s, each layer's values and weights once", _gigabytes),
        ("throughput: GFLOP/s, a multiply-add being two", _gigaflops),
        *(
            (f"share of the speed of a {kernel.name} of as many bytes",
             speed_up(kernel.name))
            for kernel in MEMORY
        ),
    ):
        parts += metric_tables(pairs, meaning, metric)
    for table, meaning in SCALING.items():
        efficiency = _strong_efficiency if table == "strong" else _weak_efficiency
        scaled = rows[rows["table"] == table]
        parts += metric_tables(scaled, f"efficiency, {meaning}", efficiency)
    return "\n\n".join(part for part in parts if part)


def _gigabytes(rows: pd.DataFrame) -> pd.Series:
    """Return 4 bytes for each weight, input and output of each layer, over the time."""
    weights = WINDOW * widths(rows).map(lambda sizes: sum(sizes[1:]))
    values = widths(rows).map(lambda sizes: sum(sizes[:-1]) + sum(sizes[1:]))
    return 4e-9 * (weights + rows["batch"] * values) / rows["median"]


def _gigaflops(rows: pd.DataFrame) -> pd.Series:
    neurons = widths(rows).map(lambda sizes: sum(sizes[1:]))
    return 2e-9 * WINDOW * rows["batch"] * neurons / rows["median"]


def _cores(rows: pd.DataFrame) -> pd.Series:
    return rows["candidate"].str.removeprefix("cores-").astype(int)


def _strong_efficiency(rows: pd.DataFrame) -> pd.Series:
    """Return one core's time over this one and the cores, for the same network."""
    return speed_up("cores-1")(rows) / _cores(rows)


def _weak_efficiency(rows: pd.DataFrame) -> pd.Series:
    """Return one core's time for its share over this one."""
    alone = rows["median"].where(rows["candidate"] == "cores-1")
    keys = [rows["table"], call(rows)]
    return alone.groupby(keys).transform("first") / rows["median"]


PLOTS = (
    Plot(
        "time", "Locally connected layers", ("pairs",), x=lambda rows: rows["case"],
        x_label="inputs N, layers of values K", y_label="time (µs)", bars=True,
    ),
    Plot(
        "bandwidth", "Effective bandwidth", ("pairs",), x=lambda rows: rows["case"],
        x_label="inputs N, layers of values K", y_label="GB/s", y=_gigabytes, bars=True,
    ),
    Plot(
        "strong", "Strong scaling: the same network on more cores", ("strong",),
        x=_cores, x_label="cores", y_label="speed-up over one core",
        y=speed_up("cores-1"), line=lambda rows: rows["case"],
        curves=(
            Curve("every core counts", float),
            *(
                Curve(f"Amdahl, f = {f:g}", partial(amdahl, f)) for f in FRACTIONS[1:3]
            ),
        ),
    ),
    Plot(
        "weak", "Weak scaling: larger networks on more cores", tuple(SCALING)[1:],
        x=_cores, x_label="cores", y_label="time on one core over this time",
        y=_weak_efficiency,
        line=lambda rows: rows["table"].map(SCALING), log="x",
        curves=(Curve("every core counts", lambda cores: 1.0),),
    ),
    Plot(
        "hill-marty", f"Symmetric chips of {CHIP:g} simple cores (Hill and Marty)",
        ("strong",), x=_cores, x_label="simple cores made into each core, r",
        y_label="speed-up over one simple core",
        y=lambda rows: pd.Series(float("nan"), index=rows.index),
        page=lambda rows: pd.Series("", index=rows.index),
        curves=tuple(
            Curve(f"f = {f:g}", partial(symmetric, f, CHIP), (1.0, CHIP))
            for f in FRACTIONS
        ),
    ),
)
