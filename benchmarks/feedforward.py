"""The first study: fully connected networks, and its four optimisations, rung by rung.

Its Table I gives six configurations, of 7 to 11 layers of neurons, the inputs counted;
here each is run for one sample and for batches. Its Table II asks how many work-items
a neuron should have (optimisation 2, here `split`). Beside them stand networks of
eleven equal layers, small enough for the launches to count, and on GPUs ones of five
narrow layers and very many samples, where reading and writing values counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from clnet.ir.ops import PRECISIONS
from clnet.opencl.device import Device
from clnet.variants.team import ITEMS

from .candidates import BASES as BASES
from .candidates import ByVariant, Candidate, Planned, Serial, named, variant
from .candidates import bases as bases
from .cases import Case
from .frame import Trial
from .more_peers import more_peers
from .options import Options
from .peers import PEERS as FIRST_PEERS
from .plots import Plot
from .records import Row
from .report import figures, tables
from .values import by_call, per_sample

TAKES = frozenset({"batches", "precisions", "tune", "fann_library"})
ABOUT = "fully connected networks: the first study's kernels, ours, and peers"
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
# Multiply-adds a call up to which kernels shaped for GPUs are run on a CPU unasked.
SMALL = 100_000
# The first one measured is what the others are compared with.
AGAINST = {"cpu": ("numpy", "torch"), "gpu": ("torch-graph", "torch-cuda", "numpy")}
ONE_GROUP = "fused"  # keeps one compute unit busy, whatever the batch
PEERS = frozenset(peer.name for peer in (*FIRST_PEERS, *more_peers(None)))
HOST = frozenset({"torch", "onnxruntime", "sklearn"})  # peers that run on CPUs
COMPILED = frozenset({"torch-compile", "torch-compile-graph"})
CUDA = COMPILED | {"torch-cuda", "torch-graph", "cupy"}
SERIAL = ("serial", "fann")  # on one core, a sample after the other
SLOW = COMPILED | {"tinygrad"}  # to make ready
SPINNING = frozenset({"host", "sklearn"})  # as NumPy; each has to be waited for
GPU_SHAPED = (
    "naive", "local", "split", "fused", "fused_local", "persistent", "persistent_mma",
    "gemm", "mma", "mma_chain", "fused_mma",
)
LOWER = frozenset({"mma", "mma_chain", "fused_mma"})  # heed a lower precision
BATCHED = LOWER | {"gemm", "persistent_mma"}  # have nothing to do with one sample


def trials(device: Device, options: Options) -> tuple[Trial, ...]:
    """Return the trials, those of one network together; see `command.Study`."""
    batches = options.batches
    precisions = options.precisions or PRECISIONS[:1]
    quick = options.effort == "quick"
    found = []
    for name, sizes in CONFIGURATIONS.items():
        case = Case(name, sizes, "sigmoid")
        for batch in batches or (QUICK_BATCHES if quick else BATCHES):
            found += [
                _trial("configurations", one, device, options)
                for one in _cases(case, batch, precisions)
            ]
        found.append(_work_items(case, device))
    equal = [("deep", Case(name, sizes, "tanh")) for name, sizes in DEEP.items()]
    if device.type != "cpu":
        equal += [
            ("narrow", Case(name, sizes, "relu", MANY))
            for name, sizes in NARROW.items()
        ]
    for table, case in equal:
        for batch in batches or (case.batch,):
            found += [
                _trial(table, one, device, options)
                for one in _cases(case, batch, precisions)
            ]
    if quick:
        found = [
            trial for trial in found
            if trial.case.name in QUICK and trial.table != "work_items"
        ]
    return tuple(found)


def _cases(case: Case, batch: int, precisions: Sequence[str]) -> list[Case]:
    return [replace(case, batch=batch, precision=name) for name in precisions]


def _trial(table: str, case: Case, device: Device, options: Options) -> Trial:
    cpu, tune = device.type == "cpu", options.tune
    ours: list[Candidate] = [
        ByVariant(variant(name), tune=tune)
        for name in GPU_SHAPED if case.batch > 1 or name not in BATCHED
    ]
    on_demand = {ONE_GROUP, *SERIAL} if case.batch > 1 else set()
    if case.precision != PRECISIONS[0]:
        on_demand |= {*GPU_SHAPED, *SERIAL} - LOWER
    if cpu:
        ours.append(ByVariant(variant("cpu"), tune=tune))
        if any(place.serial for place in device.places):
            ours.append(
                ByVariant(variant("cpu"), one_core=True, tune=tune, label="cpu-1core")
            )
        if case.batch * _weights(case.sizes) > SMALL:
            on_demand |= set(GPU_SHAPED)
    on_demand |= SLOW | (CUDA if cpu else HOST)
    if options.effort == "quick":
        on_demand |= SPINNING
    ours += [Planned(tune), ByVariant(variant("host")), Serial()]
    ours += named(options, {*GPU_SHAPED, *(one.name for one in ours)})
    peers = (*FIRST_PEERS, *more_peers(options.fann_library))
    return Trial(
        table, case, (*ours, *peers), frozenset(on_demand),
        AGAINST["cpu" if cpu else "gpu"],
    )


def _work_items(case: Case, device: Device) -> Trial:
    """Return Table II's line for a case: `split` with 1 to 256 work-items a neuron."""
    split = variant("split")
    candidates = tuple(
        ByVariant(split, {"items": n}, label=f"split-{n}") for n in ITEMS
    )
    names = {candidate.name for candidate in candidates}
    return Trial(
        "work_items", case, candidates,
        frozenset(names if device.type == "cpu" else ()), against=("split-1",),
    )


def _weights(sizes: Sequence[int]) -> int:
    return sum(a * b for a, b in pairwise(sizes))


def report(rows: Sequence[Row]) -> str:
    """Return the study's tables."""
    work_items = [row for row in rows if row.table == "work_items"]
    others = [row for row in rows if row.table != "work_items"]
    parts = [
        tables(others),
        figures(
            others, "speed-up a sample over one sample by the naive kernel on one core",
            per_sample("serial"),
        ),
        figures(
            others, "speed-up a sample over one sample by FANN", per_sample("fann")
        ),
        tables(work_items, lambda row: row.candidate.removeprefix("split-")),
    ]
    return "\n\n".join(part for part in parts if part)


def _page(row: Row) -> str:
    return f"{row.table}, {by_call(row)}"


PLOTS = (
    Plot(
        "time", "Execution time", ("configurations", "deep", "narrow"),
        x=lambda row: row.case, x_label="network", y_label="time of a call (µs)",
        bars=True, page=_page,
    ),
    Plot(
        "speed-up", "Speed-up a sample", ("configurations", "deep"),
        x=lambda row: row.case, x_label="network",
        y_label="over one sample by the naive kernel on one core",
        y=per_sample("serial"), bars=True, page=_page,
    ),
    Plot(
        "work-items", "Work-items a neuron", ("work_items",),
        x=lambda row: int(row.candidate.removeprefix("split-")),
        x_label="work-items a neuron", y_label="time of a call (µs)",
        line=lambda row: row.case,
    ),
)
