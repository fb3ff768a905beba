"""The first study: fully connected networks, and its four optimisations.

Its Table I has six configurations of 7 to 11 layers, the inputs counted; each is run
for one sample and for batches. Its Table II varies the work-items a neuron
(optimisation 2, `split`). Networks of eleven small equal layers show the cost of
launches. On GPUs five narrow layers with very many samples show the cost of values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pandas as pd

from clnet.checks import PRECISIONS
from clnet.opencl.device import Device
from clnet.variants.dense.naive import ITEMS

from ..baselines.dense import dense_baselines
from ..candidates import BASES as BASES
from ..candidates import Candidate
from ..candidates import bases as bases
from ..cases.dense import Case
from ..harness import Options, Trial
from ..own_candidates import ByVariant, Planned, Serial, has_serial, named, variant
from ..report.metrics import call, speed_up_per_sample
from ..report.plots import Plot
from ..report.tables import metric_tables, tables

TAKES = frozenset({"batches", "precisions", "tune", "fann_library"})
ABOUT = "fully connected networks: the first study's kernels, clnet's, other libraries"
CONFIGURATIONS = {
    "config-1": (200, 400, *[500] * 7, 400, 100),
    "config-2": (200, 500, *[750] * 7, 500, 100),
    "config-3": (200, 500, *[1000] * 7, 500, 100),
    "config-4": (200, 1000, *[2000] * 7, 1000, 100),
    "config-5": (200, 1000, *[3000] * 7, 1000, 100),
    "config-6": (200, 1000, *[4000] * 3, 1000, 100),
}
BATCHES = (1, 32, 1024)
DEEP = {f"deep-{n}": (n,) * 12 for n in (32, 64, 256, 512)}  # inputs and eleven layers
NARROW = {f"narrow-{n}": (n,) * 6 for n in (64, 128)}
MANY = 1 << 17  # samples of these
QUICK = ("config-1", "config-2", *DEEP)  # cases
QUICK_BATCHES = (1, 32)
# Multiply-adds a call up to which GPU kernels run on a CPU by default.
SMALL = 100_000
# Ratios are those to the first that was measured.
AGAINST: dict[str, tuple[str, ...]] = {
    "cpu": ("numpy", "torch"), "gpu": ("torch-graph", "torch-cuda", "numpy"),
}
ONE_GROUP = "fused"  # uses one compute unit, whatever the batch
BASELINES = frozenset(baseline.name for baseline in dense_baselines(None))
HOST = frozenset({"torch", "onnxruntime", "sklearn"})  # baselines on CPUs
COMPILED = frozenset({"torch-compile", "torch-compile-graph"})
CUDA = COMPILED | {"torch-cuda", "torch-graph", "cupy"}
SERIAL = ("serial", "fann")  # on one core, sample after sample
SLOW = COMPILED | {"tinygrad"}  # to prepare
SPINNING = frozenset({"host", "sklearn"})  # their threads spin after a call
GPU_KERNELS = (
    "naive", "local", "split", "fused", "fused_local", "persistent", "persistent_mma",
    "gemm", "mma", "mma_chain", "fused_mma",
)
LOWER_PRECISION = frozenset({"mma", "mma_chain", "fused_mma"})
BATCHED = LOWER_PRECISION | {"gemm", "persistent_mma"}  # not for one sample


def trials(device: Device, options: Options) -> tuple[Trial, ...]:
    """Return the trials, network by network; see `command.Study`."""
    batches = options.batches
    precisions = options.precisions or PRECISIONS[:1]
    quick = options.effort == "quick"
    trials = []
    for name, sizes in CONFIGURATIONS.items():
        case = Case(name, sizes, "sigmoid")
        for batch in batches or (QUICK_BATCHES if quick else BATCHES):
            trials += [
                _trial("configurations", each_case, device, options)
                for each_case in _cases(case, batch, precisions)
            ]
        trials.append(_work_items(case, device))
    equal = [("deep", Case(name, sizes, "tanh")) for name, sizes in DEEP.items()]
    if device.type != "cpu":
        equal += [
            ("narrow", Case(name, sizes, "relu", MANY))
            for name, sizes in NARROW.items()
        ]
    for table, case in equal:
        for batch in batches or (case.batch,):
            trials += [
                _trial(table, each_case, device, options)
                for each_case in _cases(case, batch, precisions)
            ]
    if quick:
        trials = [
            trial for trial in trials
            if trial.case.name in QUICK and trial.table != "work_items"
        ]
    return tuple(trials)


def _cases(case: Case, batch: int, precisions: Sequence[str]) -> list[Case]:
    return [replace(case, batch=batch, precision=name) for name in precisions]


def _trial(table: str, case: Case, device: Device, options: Options) -> Trial:
    cpu, tune = device.type == "cpu", options.tune
    ours: list[Candidate] = [
        ByVariant(variant(name), tune=tune)
        for name in GPU_KERNELS if case.batch > 1 or name not in BATCHED
    ]
    on_demand = {ONE_GROUP, *SERIAL} if case.batch > 1 else set()
    if case.precision != PRECISIONS[0]:
        on_demand |= {*GPU_KERNELS, *SERIAL} - LOWER_PRECISION
    if cpu:
        ours.append(ByVariant(variant("cpu"), tune=tune))
        if has_serial(device):
            ours.append(
                ByVariant(variant("cpu"), one_core=True, tune=tune, name="cpu-1core")
            )
        if case.batch * _weights(case.sizes) > SMALL:
            on_demand |= set(GPU_KERNELS)
    on_demand |= SLOW | (CUDA if cpu else HOST)
    if options.effort == "quick":
        on_demand |= SPINNING
    ours += [Planned(tune), ByVariant(variant("host")), Serial()]
    ours += named(options, {*GPU_KERNELS, *(candidate.name for candidate in ours)})
    return Trial(
        table, case, (*ours, *dense_baselines(options.fann_library)),
        frozenset(on_demand), AGAINST["cpu" if cpu else "gpu"],
    )


def _work_items(case: Case, device: Device) -> Trial:
    """Return Table II's line for a case: `split` with 1 to 256 work-items a neuron."""
    split = variant("split")
    candidates = tuple(ByVariant(split, {"items": n}, name=f"split-{n}") for n in ITEMS)
    names = {candidate.name for candidate in candidates}
    return Trial(
        "work_items", case, candidates,
        frozenset(names if device.type == "cpu" else ()), against=("split-1",),
    )


def _weights(sizes: Sequence[int]) -> int:
    return sum(a * b for a, b in pairwise(sizes))


def report(rows: pd.DataFrame) -> str:
    """Return the study's tables."""
    work_items = rows["table"] == "work_items"
    parts = [tables(rows[~work_items])]
    for name in ("serial", "fann"):
        title = f"speed-up a sample over one sample by {name}"
        parts += metric_tables(rows[~work_items], title, speed_up_per_sample(name))
    parts.append(tables(rows[work_items], _items))
    return "\n\n".join(part for part in parts if part)


def _items(rows: pd.DataFrame) -> pd.Series:
    return rows["candidate"].str.removeprefix("split-").astype(int)


def _page(rows: pd.DataFrame) -> pd.Series:
    return rows["table"] + ", " + call(rows)


PLOTS = (
    Plot(
        "time", "Execution time", ("configurations", "deep", "narrow"),
        x=lambda rows: rows["case"], x_label="network", y_label="time of a call (µs)",
        bars=True, page=_page,
    ),
    Plot(
        "speed-up", "Speed-up a sample", ("configurations", "deep"),
        x=lambda rows: rows["case"], x_label="network",
        y_label="over one sample by the naive kernel on one core",
        y=speed_up_per_sample("serial"), bars=True, page=_page,
    ),
    Plot(
        "work-items", "Work-items a neuron", ("work_items",), x=_items,
        x_label="work-items a neuron", y_label="time of a call (µs)",
        line=lambda rows: rows["case"],
    ),
)
