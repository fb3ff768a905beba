"""The fifth study: locally connected layers, by bandwidth, and over cores.

Output i of a layer reads only its inputs i … i + 2, each output with its own weights,
and one bias serves a layer. N are the network's inputs, K its layers of values, the
inputs counted, as the study counts them: K - 1 layers of weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from clnet.activations import activation
from clnet.binding import Step
from clnet.device import Device
from clnet.layers import Local
from clnet.network import Network
from clnet.ops import round_up
from clnet.storage.local import BAND_ALIGNMENT

from .candidates import (
    BASES,
    ByVariant,
    Candidate,
    Planned,
    Prepared,
    RefusedError,
    forward,
    prepared,
    variant,
)
from .cases import BIAS, GAIN, Array, Case
from .frame import Trial
from .laws import CHIP, FRACTIONS, amdahl, symmetric
from .options import Options
from .peers import PATIENCE, eager, graphed, missing_torch
from .plots import Curve, Plot
from .records import Row
from .report import Layout, matrix, number, tables
from .values import speed_up

ABOUT = "locally connected layers: bandwidth, several layers a launch, scaling"
WINDOW = 3
PAIRS = (  # (N, K)
    (50, 20), (1000, 250), (10_000, 100), (100_000, 20), (1_000_000, 17),
    (5_000_000, 2), (5_000_000, 17),
)
LARGER = ((50_000_000, 2),)  # where a GPU is too fast for the study's
QUICK = ((1000, 250), (1_000_000, 2))
BASE = (1000, 250)  # N and K of the scaling over cores
WIDE = (1_000_000, 17)  # likewise, where cores have rows enough not to share many
BLOCK = 16_384  # rows that NumPy computes at once: a core's cache holds them
CUDA = frozenset({"torch-cuda", "torch-graph", "torch-compile"})
PEERS = frozenset({"numpy", "torch", *CUDA})
SCALING = {
    "strong": "the same network", "weak_n": "N grows with the cores",
    "weak_k": "K grows with the cores, N follows",
}


def bases(device: Device) -> Sequence[str]:
    """Return what is timed unasked."""
    return ("wall",) if device.type == "cpu" else tuple(BASES)[:3]


@dataclass(frozen=True)
class LocalCase(Case):
    """A stack of local layers; parameters as for `Case`."""

    @property
    def network(self) -> Network:
        """The network."""
        return _network(self.sizes, self.activation, self.dtype, self.seed)


def local_case(n: int, k: int, batch: int = 1) -> LocalCase:
    """Return the case of N inputs and K layers of values."""
    sizes = tuple(n - i * (WINDOW - 1) for i in range(k))
    return LocalCase(f"N={n} K={k}", sizes, batch=batch)


@lru_cache(maxsize=1)
def _network(
    sizes: tuple[int, ...], name: str, dtype: str, seed: int
) -> Network:
    window = 1 + sizes[0] - sizes[1]
    layers = [Local(window, name)] * (len(sizes) - 1)
    network = Network(sizes[0], layers, seed=seed, dtype=dtype)
    parameters = network.parameters * np.dtype(dtype).type(GAIN.get(name, 1.0))
    rng = np.random.default_rng(seed)
    for slot in network.layout.biases:
        assert slot is not None
        parameters[slot.offset] = rng.uniform(-BIAS, BIAS)
    network.parameters = parameters
    return network


# Candidates -------------------------------------------------------------------------


@dataclass(frozen=True)
class Workers:
    """`stencil_cpu` on some of the cores, all layers in one launch.

    Attributes
    ----------
    workers : int
        How many.
    """

    workers: int
    patience: float | None = None

    @property
    def name(self) -> str:
        """How many cores."""
        return f"cores-{self.workers}"

    def missing(self) -> str | None:
        """Return None: it is ours."""
        return None

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Return the plan of one tile a core."""
        stencil = ByVariant(variant("stencil_cpu"))
        (step,) = stencil.steps(case, device)
        tile = round_up(-(-case.sizes[-1] // self.workers), BAND_ALIGNMENT)
        config = {"workers": self.workers, "tile": tile, "stream": 0}
        only = Step(step.span, step.variant, config, step.place)
        return prepared(case, device, (only,))


@dataclass(frozen=True)
class NumPy:
    """Products and sums of shifted slices, a block of rows at a time, all in place."""

    name: str = "numpy"
    patience: float | None = PATIENCE

    def missing(self) -> str | None:
        """Return None: clnet needs it."""
        return None

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Return the loop over layers and blocks."""
        network = case.network
        layers = [
            (np.ascontiguousarray(network.weights(i).T), network.biases(i)[0])
            for i in range(len(network.layers))
        ]
        value = activation(case.activation).value
        values = [np.empty((case.batch, n), case.dtype) for n in case.sizes[1:]]
        spare = np.empty((case.batch, BLOCK), case.dtype)

        def call(x: Array) -> Array:
            for (weights, bias), y in zip(layers, values, strict=True):
                for start in range(0, y.shape[1], BLOCK):
                    w = weights[:, start : start + BLOCK]
                    part = y[:, start : start + BLOCK]
                    product = spare[:, : part.shape[1]]
                    inputs = x[:, start:]
                    np.multiply(w[0], inputs[:, : part.shape[1]], out=part)
                    for r in range(1, len(w)):
                        beside = inputs[:, r : r + part.shape[1]]
                        np.add(part, np.multiply(w[r], beside, out=product), out=part)
                    part += bias
                    if case.activation == "sigmoid":
                        _sigmoid(part)
                    else:
                        part[...] = value(part)
                x = y
            return x.copy()

        return forward(case, call, threads=1)


def _sigmoid(v: Array) -> None:
    """Replace v by its sigmoid."""
    np.negative(v, out=v)
    np.exp(v, out=v)
    v += 1
    np.reciprocal(v, out=v)


@dataclass(frozen=True)
class Torch:
    """PyTorch: the same expression, layer by layer; names as in `peers.Torch`."""

    name: str = "torch"
    patience: float | None = PATIENCE

    def missing(self) -> str | None:
        """Return what is not installed, or that CUDA has no device."""
        return missing_torch(cuda=self.name != "torch")

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Return the loop over layers, on the CPU or on CUDA's first device."""
        import torch

        if case.activation != "sigmoid":
            raise RefusedError(f"no module for {case.activation} is written down here")
        where = "cpu" if self.name == "torch" else "cuda"
        network = case.network
        layers = [
            (
                torch.tensor(np.ascontiguousarray(network.weights(i).T), device=where),
                torch.tensor(network.biases(i), device=where),
            )
            for i in range(len(network.layers))
        ]

        def layer(x: Any, weights: Any, bias: Any) -> Any:
            n = weights.shape[1]
            sums = bias
            for r in range(len(weights)):
                sums = sums + weights[r] * x[:, r : r + n]
            return torch.sigmoid(sums)

        if self.name in ("torch-compile", "torch-graph"):
            layer = torch.compile(layer)

        def model(x: Any) -> Any:
            with torch.inference_mode():
                for weights, bias in layers:
                    x = layer(x, weights, bias)
            return x

        if self.name == "torch":
            return forward(
                case, lambda x: np.asarray(model(torch.from_numpy(x)).numpy()),
                threads=torch.get_num_threads(), spins=True,
            )
        return (graphed if self.name == "torch-graph" else eager)(case, model)


# Trials -----------------------------------------------------------------------------


def trials(device: Device, options: Options) -> tuple[Trial, ...]:
    """Return the study's trials on a device.

    Parameters
    ----------
    device : Device
        Where.
    options : Options
        Its effort, batches and tuning count here.
    """
    cpu = device.type == "cpu"
    pairs = QUICK if options.effort == "quick" else PAIRS
    if not cpu and options.effort != "quick":
        pairs = (*pairs, *LARGER)
    found = [
        _pair(local_case(n, k, batch), device, options.tune)
        for n, k in pairs for batch in options.batches or (1,)
    ]
    if cpu:
        found += _scaling(device)
    return tuple(found)


def _pair(case: LocalCase, device: Device, tune: bool) -> Trial:
    cpu = device.type == "cpu"
    ours: list[Candidate] = [
        ByVariant(variant("stencil"), tune=tune),
        ByVariant(variant("stencil"), {"tile": 1}, label="stencil-tile"),
        ByVariant(variant("trapezoid"), tune=tune),
    ]
    shaped = {candidate.name for candidate in ours}
    if cpu:
        ours.append(ByVariant(variant("stencil_cpu"), tune=tune))
        if any(place.serial for place in device.places):
            ours.append(
                ByVariant(variant("stencil_cpu"), one_core=True, label="cpu-1core")
            )
    peers: tuple[Candidate, ...] = (
        NumPy(), *(Torch(name) for name in ("torch", *sorted(CUDA)))
    )
    return Trial(
        "pairs", case, (*ours, Planned(tune), *peers),
        frozenset({*shaped, *CUDA} if cpu else {"torch"}),
        ("numpy",) if cpu else ("torch-graph", "torch-cuda", "numpy"),
    )


def _scaling(device: Device) -> list[Trial]:
    """Return the same stack on 1, 2, 4 … cores, and larger ones on as many."""
    n, k = BASE
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
    for table, larger in (("weak_n", _larger_n), ("weak_k", _larger_k)):
        found += [
            Trial(table, local_case(*larger(n, k, p)), (Workers(p),), against=())
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
    parts = [tables(rows, layout=LAYOUT)]
    pairs = [row for row in rows if row.table == "pairs" and row.median is not None]
    for basis in dict.fromkeys(row.basis for row in pairs):
        group = [row for row in pairs if row.basis == basis]
        for title, cell in (
            ("effective GB/s, each layer's values and weights once", _bandwidth),
            ("throughput: GFLOP/s, a multiply-add being two", _throughput),
        ):
            parts.append(f"pairs, {basis}: {title}\n\n" + matrix(group, cell))
    for table, meaning in SCALING.items():
        group = [row for row in rows if row.table == table and row.median is not None]
        alone = [row for row in group if row.candidate == "cores-1"]
        if alone:
            cell = partial(_efficiency, table == "strong", alone)
            parts.append(f"{table}: efficiency, {meaning}\n\n" + matrix(group, cell))
    return "\n\n".join(part for part in parts if part)


def _sizes(row: Row) -> list[int]:
    return [int(n) for n in row.sizes.split("-")]


def _bandwidth(row: Row) -> str:
    """Return 4 bytes for each weight, input and output of each layer, over the time."""
    return number(_gigabytes(row))


def _gigabytes(row: Row, _: Sequence[Row] = ()) -> float:
    assert row.median is not None
    sizes = _sizes(row)
    values = sum(sizes[:-1]) + sum(sizes[1:])
    weights = WINDOW * sum(sizes[1:])
    return 4e-9 * (weights + row.batch * values) / row.median


def _throughput(row: Row) -> str:
    assert row.median is not None
    return number(2e-9 * WINDOW * row.batch * sum(_sizes(row)[1:]) / row.median)


def _efficiency(strong: bool, alone: Sequence[Row], row: Row) -> str:
    """Return one core's time over this one, for the same work also over the cores."""
    first = next((other for other in alone if other.case == row.case), alone[0])
    assert row.median is not None
    assert first.median is not None
    cores = int(row.candidate.removeprefix("cores-")) if strong else 1
    return number(first.median / row.median / cores)


LAYOUT = Layout(
    title=lambda row: f"{row.table}, batch {row.batch}, {row.basis}",
    unit=lambda row: ("microseconds", 1e6), meanings=BASES,
)


def _cores(row: Row) -> int:
    return int(row.candidate.removeprefix("cores-"))


def _weak(row: Row, rows: Sequence[Row]) -> float | None:
    """Return one core's time over this one."""
    alone = next(
        (other for other in rows
         if other.table == row.table and other.candidate == "cores-1"), None,
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
        "weak", "Weak scaling: larger networks on more cores", ("weak_n", "weak_k"),
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
