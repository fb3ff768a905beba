"""The fifth study: locally connected layers, by bandwidth, and over cores.

Output i of a layer reads only its inputs i … i + 2, each output with its own weights,
and one bias serves a layer. N are the network's inputs, K its layers of values, the
inputs counted, as the study counts them: K - 1 layers of weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from clnet.opencl.device import Device

from .candidates import BASES as BASES
from .candidates import ByVariant, Candidate, Planned, named, variant
from .candidates import bases as bases
from .frame import Trial
from .laws import CHIP, FRACTIONS, amdahl, symmetric
from .local_candidates import (
    CUDA,
    WINDOW,
    LocalCase,
    NumPy,
    Torch,
    Workers,
    local_case,
)
from .options import Options
from .plots import Curve, Plot
from .records import Row
from .report import fill, matrix, number, tables
from .traffic import Traffic
from .values import speed_up, widths

TAKES = frozenset({"batches", "tune"})
ABOUT = "locally connected layers: bandwidth, several layers a launch, scaling"
PAIRS = (  # (N, K)
    (50, 20), (1000, 250), (10_000, 100), (100_000, 20), (1_000_000, 17),
    (5_000_000, 2), (5_000_000, 17),
)
LARGER = ((50_000_000, 2),)  # where a GPU is too fast for the study's
QUICK = ((1000, 250), (1_000_000, 2))
BASE = (1000, 250)  # N and K of the scaling over cores
WIDE = (1_000_000, 17)  # likewise, where cores have rows enough not to share many
SHARE = (100_000, 20)  # likewise, of one core: several have so much each
PEERS = frozenset({"numpy", "torch", *CUDA})
LONG = (100_000, 64)  # neurons, and inputs of each: a window that is worth dividing
SCALING = {
    "strong": "the same network", "weak_n": "N grows with the cores",
    "weak_k": "K grows with the cores, N follows",
    "weak_n_wide": "N grows with the cores, from a wide network on",
    "weak_k_wide": "K grows with the cores, N follows, from a wide network on",
}
MEMORY = {"read": Traffic("read"), "copy": Traffic("copy")}


def trials(device: Device, options: Options) -> tuple[Trial, ...]:
    """Return pairs, both strategies, and on CPUs the scaling; see `command.Study`."""
    cpu = device.type == "cpu"
    pairs = QUICK if options.effort == "quick" else PAIRS
    if not cpu and options.effort != "quick":
        pairs = (*pairs, *LARGER)
    found = [
        _pair(local_case(n, k, batch), device, options)
        for n, k in pairs for batch in options.batches or (1,)
    ]
    found += _strategies(device)
    if cpu:
        found += _scaling(device)
    return tuple(found)


def _pair(case: LocalCase, device: Device, options: Options) -> Trial:
    cpu, tune = device.type == "cpu", options.tune
    ours: list[Candidate] = [
        ByVariant(variant("stencil"), tune=tune),
        ByVariant(variant("stencil"), {"tile": 1}, label="stencil-tile"),
        ByVariant(variant("trapezoid"), tune=tune),
    ]
    shaped = {candidate.name for candidate in ours}
    if cpu:
        stencil = variant("stencil_cpu")
        ours.append(ByVariant(stencil, tune=tune))
        if len(case.sizes) > 2:
            ours.append(ByVariant(stencil, by_layer=True, label="by-layer"))
        if any(place.serial for place in device.places):
            ours.append(ByVariant(stencil, one_core=True, label="cpu-1core"))
    ours += named(options, (candidate.name for candidate in ours))
    peers: tuple[Candidate, ...] = (
        NumPy(), *(Torch(name) for name in ("torch", *sorted(CUDA)))
    )
    # Of one layer the bytes tell all: all but the traffic is hidden.
    memory = MEMORY.values() if len(case.sizes) == 2 else ()
    return Trial(
        "pairs", case, (*ours, Planned(tune), *memory, *peers),
        frozenset({*shaped, *CUDA} if cpu else {"torch"}),
        ("numpy",) if cpu else ("torch-graph", "torch-cuda", "numpy"),
    )


def _strategies(device: Device) -> list[Trial]:
    """Return both ways to share a layer's work: rows, or the inputs of each row."""
    stencil = variant("stencil_cpu" if device.type == "cpu" else "stencil")
    rows = ByVariant(stencil, by_layer=True, label="outer-loop")
    candidates = (rows, ByVariant(variant("stencil_reduction"), label="inner-loop"))
    n_out, window = LONG
    long = LocalCase(f"N={n_out + window - 1} R={window}", (n_out + window - 1, n_out))
    return [
        Trial("strategies", case, candidates, against=("outer-loop",))
        for case in (*(local_case(*pair) for pair in (BASE, WIDE)), long)
    ]


def _scaling(device: Device) -> list[Trial]:
    """Return the same stack on 1, 2, 4 … cores, and larger ones on as many."""
    cores = [1]
    while 2 * cores[-1] <= device.compute_units:
        cores.append(2 * cores[-1])
    found = [
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
        found += [
            Trial(table, local_case(*larger(*pair, p)), (Workers(p),), against=())
            for p in cores
        ]
    return found


def _larger_n(n: int, k: int, cores: int) -> tuple[int, int]:
    """Return ``(1 - p) K + p N``, so that every core has as many rows, and K."""
    return (1 - cores) * k + cores * n, k


def _larger_k(n: int, k: int, cores: int) -> tuple[int, int]:
    """Return N and ``p K``, so that there are p times as many rows in all."""
    rows = cores * _rows(n, k)
    deep = cores * k
    # Of `_rows`, solved for N.
    return round(rows / (deep - 1) + (WINDOW - 1) * deep / 2), deep


def _rows(n: int, k: int) -> int:
    """Return the rows of all layers: the sum of N - 2 i for i from 1 to K - 1."""
    return (k - 1) * n - (WINDOW - 1) * k * (k - 1) // 2


def report(rows: Sequence[Row]) -> str:
    """Return the study's tables: times, effective bandwidth, efficiency over cores."""
    parts = [tables(rows)]
    pairs = [row for row in rows if row.table == "pairs" and row.median is not None]
    for basis in dict.fromkeys(row.basis for row in pairs):
        group = [row for row in pairs if row.basis == basis]
        for title, cell in (
            ("effective GB/s, each layer's values and weights once", _bandwidth),
            ("throughput: GFLOP/s, a multiply-add being two", _throughput),
        ):
            parts.append(f"pairs, {basis}: {title}\n\n" + matrix(group, cell))
        for name in MEMORY:
            times = {row.case: row.median for row in group if row.candidate == name}
            shared = [row for row in group if row.case in times]
            if shared:
                title = f"share of the speed of a {name} of as many bytes"
                parts.append(
                    f"pairs, {basis}: {title}\n\n"
                    + matrix(shared, partial(_share, times))
                )
    for table, meaning in SCALING.items():
        scaled = [row for row in rows if row.table == table and row.median is not None]
        for basis in dict.fromkeys(row.basis for row in scaled):
            group = [row for row in scaled if row.basis == basis]
            alone = [row for row in group if row.candidate == "cores-1"]
            if alone:
                cell = partial(_efficiency, table == "strong", alone)
                title = f"{table}, {basis}: efficiency, {meaning}"
                parts.append(fill(title) + "\n\n" + matrix(group, cell))
    return "\n\n".join(part for part in parts if part)


def _share(times: Mapping[str, float | None], row: Row) -> str:
    alone = times[row.case]
    assert alone is not None
    assert row.median is not None
    return number(alone / row.median)


def _bandwidth(row: Row) -> str:
    """Return 4 bytes for each weight, input and output of each layer, over the time."""
    return number(_gigabytes(row))


def _gigabytes(row: Row, _: Sequence[Row] = ()) -> float:
    assert row.median is not None
    per_layer = widths(row)
    values = sum(per_layer[:-1]) + sum(per_layer[1:])
    weights = WINDOW * sum(per_layer[1:])
    return 4e-9 * (weights + row.batch * values) / row.median


def _throughput(row: Row) -> str:
    assert row.median is not None
    return number(2e-9 * WINDOW * row.batch * sum(widths(row)[1:]) / row.median)


def _efficiency(strong: bool, alone: Sequence[Row], row: Row) -> str:
    """Return one core's time over this one, for the same work also over the cores."""
    first = next((other for other in alone if other.case == row.case), alone[0])
    assert row.median is not None
    assert first.median is not None
    cores = _cores(row) if strong else 1
    return number(first.median / row.median / cores)


def _cores(row: Row) -> int:
    return int(row.candidate.removeprefix("cores-"))


def _weak(row: Row, rows: Sequence[Row]) -> float | None:
    """Return one core's time over this one."""
    alone = next(
        (other for other in rows
         if (other.table, other.basis, other.candidate)
         == (row.table, row.basis, "cores-1")), None,
    )
    return alone.median / row.median if alone and alone.median and row.median else None


PLOTS = (
    Plot(
        "time", "Locally connected layers", ("pairs",), x=lambda row: row.case,
        x_label="inputs N, layers of values K", y_label="time (µs)", bars=True,
    ),
    Plot(
        "bandwidth", "Effective bandwidth", ("pairs",), x=lambda row: row.case,
        x_label="inputs N, layers of values K", y_label="GB/s", y=_gigabytes, bars=True,
    ),
    Plot(
        "strong", "Strong scaling: the same network on more cores", ("strong",),
        x=_cores, x_label="cores", y_label="speed-up over one core",
        y=speed_up("cores-1"), line=lambda row: row.case,
        curves=(
            Curve("every core counts", float),
            *(
                Curve(f"Amdahl, f = {f:g}", partial(amdahl, f)) for f in FRACTIONS[1:3]
            ),
        ),
    ),
    Plot(
        "weak", "Weak scaling: larger networks on more cores", tuple(SCALING)[1:],
        x=_cores, x_label="cores", y_label="time on one core over this time", y=_weak,
        line=lambda row: SCALING[row.table], log="x",
        curves=(Curve("every core counts", lambda cores: 1.0),),
    ),
    Plot(
        "hill-marty", f"Symmetric chips of {CHIP:g} simple cores (Hill and Marty)",
        ("strong",), x=_cores, x_label="simple cores made into each core, r",
        y_label="speed-up over one simple core", y=lambda row, rows: None,
        page=lambda row: "",
        curves=tuple(
            Curve(f"f = {f:g}", partial(symmetric, f, CHIP), (1.0, CHIP))
            for f in FRACTIONS
        ),
    ),
)
