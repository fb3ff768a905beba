"""The second study: partially connected networks, by format, density and size.

Its experiments vary one of neurons a layer, layers and density, the others as in
`BASE`, and ask for time and memory; ``large`` takes one layer at a scale of today.
All formats hold the same weights. Times include launches and leave transfers to the
basis: ``stream`` and ``device`` have the data where they are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from tabulate import tabulate

from clnet.network import Network
from clnet.nn.layers import Sparse
from clnet.nn.storage import FORMATS, Pattern, memory_table
from clnet.nn.storage.formats import AUTO, USUAL
from clnet.opencl.device import Device
from clnet.planning.format_planner import automatic

from .candidates import BASES as BASES
from .candidates import Candidate, Planned, Prepared, forward
from .candidates import bases as bases
from .cases import Array, Case, spread
from .frame import Trial
from .more_peers import CuPy, not_installed, on_cupy
from .options import Options
from .peers import PATIENCE, PLAIN, NumPy, Torch, eager, graphed, missing_torch
from .plots import Plot
from .records import Row
from .report import tables
from .values import by_call, widths

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
PADDED = ("ell", "hyb", "dia", "coo")  # only run unasked where the study had them
WHOLE = 10_000  # neurons from which whole rows are a gigabyte: only run unasked below
CUDA = frozenset(
    {"torch-sparse", "torch-sparse-graph", "torch-cuda", "torch-graph", "cupy-sparse"}
)
PEERS = frozenset({"numpy", "scipy", "torch", *CUDA})


@dataclass(frozen=True)
class SparseCase(Case):
    """A stack of sparse layers; other parameters as for `Case`.

    Attributes
    ----------
    density : float
        Of each layer, connections placed at random.
    stored : str
        The format.
    """

    density: float = 1.0
    stored: str = AUTO

    @property
    def network(self) -> Network:
        """The network in the case's format."""
        found = _network(
            self.sizes, self.density, self.activation, self.dtype, self.seed
        )
        return found if self.stored == AUTO else _stored(found, self.stored)


def sparse_case(
    neurons: int, layers: int, density: float, batch: int = 1, name: str = ""
) -> SparseCase:
    """Return the case of equal layers."""
    sizes = (neurons,) * (layers + 1)
    text = name or f"{neurons}x{layers} {100 * density:g}%"
    return SparseCase(text, sizes, batch=batch, density=density)


@lru_cache(maxsize=1)
def _network(
    sizes: tuple[int, ...], density: float, name: str, dtype: str, seed: int
) -> Network:
    layers = [
        Sparse(n, name, density=density, seed=seed + i)
        for i, n in enumerate(sizes[1:])
    ]
    return spread(Network(sizes[0], layers, seed=seed, dtype=dtype), name, seed)


@lru_cache(maxsize=1)
def _stored(network: Network, name: str) -> Network:
    return network.stored_as(name)


# Candidates -------------------------------------------------------------------------


@dataclass(frozen=True)
class Stored:
    """The network in one format, as `Network.compile` plans it.

    Attributes
    ----------
    name : str
        A format; ``"auto"``: the one that clnet chooses by measurement.
    tune : bool
        Whether the whole tuning space is measured first.
    """

    name: str
    tune: bool = False
    patience: float | None = None

    def missing(self) -> str | None:
        """Return None: it is ours."""
        return None

    def prepare(self, case: SparseCase, device: Device) -> Prepared:
        """Return its plan; the config begins with a format that was chosen."""
        chosen = self.name
        if chosen == AUTO:
            plan = case.network.compile(device, case.batch)
            layer = plan.network.layers[0]
            assert isinstance(layer, Sparse)
            chosen = USUAL if automatic(layer) else layer.format
        found = Planned(self.tune).prepare(replace(case, stored=chosen), device)
        if self.name == AUTO:
            found = replace(found, config=f"{chosen}: {found.config}")
        return found


@dataclass(frozen=True)
class SciPy:
    """``f(x @ A.T + b)`` with A in scipy.sparse's CSR."""

    name: str = "scipy"
    patience: float | None = PATIENCE

    def missing(self) -> str | None:
        """Return that SciPy is not installed."""
        return not_installed("scipy")

    def prepare(self, case: SparseCase, device: Device) -> Prepared:
        """Return the loop over the layers; a batch is multiplied turned."""
        from scipy import sparse  # type: ignore[import-untyped]

        layers = [
            (sparse.csr_array(_csr(case, i), shape=(len(b), case.sizes[i])), b)
            for i, b in _layers(case)
        ]
        f = PLAIN[case.activation]

        def call(x: Array) -> Array:
            values = x[0] if case.batch == 1 else np.ascontiguousarray(x.T)
            for matrix, b in layers:
                bias = b if case.batch == 1 else b[:, np.newaxis]
                values = f(matrix @ values + bias)
            return values[np.newaxis] if case.batch == 1 else values.T

        return forward(case, call, threads=1)


@dataclass(frozen=True)
class TorchSparse:
    """PyTorch on CUDA: CSR tensors, which cuSPARSE multiplies.

    Attributes
    ----------
    name : str
        ``"torch-sparse"``, run op by op, or ``"torch-sparse-graph"``, replayed as one
        CUDA graph.
    """

    name: str = "torch-sparse"
    patience: float | None = PATIENCE

    def missing(self) -> str | None:
        """Return what is not installed, or that CUDA has no device."""
        return missing_torch(cuda=True)

    def prepare(self, case: SparseCase, device: Device) -> Prepared:
        """Return the loop over the layers."""
        import torch

        layers = []
        for number, b in _layers(case):
            values, columns, starts = map(torch.tensor, _csr(case, number))
            shape = (len(b), case.sizes[number])
            layers.append((
                torch.sparse_csr_tensor(starts, columns, values, size=shape).to("cuda"),
                torch.tensor(b, device="cuda")[:, None],
            ))
        f = {"sigmoid": torch.sigmoid, "tanh": torch.tanh}[case.activation]

        def model(x: Any) -> Any:
            with torch.inference_mode():
                values = x.T
                for matrix, bias in layers:
                    if case.batch == 1:
                        values = f(matrix @ values[:, 0] + bias[:, 0])[:, None]
                    else:
                        values = f(matrix @ values + bias)
                return values.T

        return (graphed if self.name == "torch-sparse-graph" else eager)(case, model)


@dataclass(frozen=True)
class CuPySparse(CuPy):
    """The same by CuPy's CSR matrices, which cuSPARSE multiplies, too."""

    name: str = "cupy-sparse"

    def prepare(self, case: SparseCase, device: Device) -> Prepared:  # type: ignore[override]
        """Return the loop over the layers."""
        import cupy
        from cupyx.scipy import sparse

        layers = [
            (
                sparse.csr_matrix(
                    tuple(map(cupy.asarray, _csr(case, number))),
                    shape=(len(b), case.sizes[number]),
                ),
                cupy.asarray(b),
            )
            for number, b in _layers(case)
        ]

        def model(x: Any) -> Any:
            values = x[0] if case.batch == 1 else cupy.ascontiguousarray(x.T)
            for matrix, b in layers:
                sums = matrix @ values + (b if case.batch == 1 else b[:, None])
                values = (
                    cupy.tanh(sums) if case.activation == "tanh"
                    else 1 / (1 + cupy.exp(-sums))
                )
            return values[None] if case.batch == 1 else values.T

        return on_cupy(case, model)


def _layers(case: SparseCase) -> list[tuple[int, Array]]:
    network = case.network
    return [(i, network.biases(i)) for i in range(len(network.layers))]


def _csr(case: SparseCase, number: int) -> tuple[Array, Array, Array]:
    """Return a layer's values, their columns, and where rows start."""
    network = case.network
    matrix = network.matrices[number]
    rows, columns, places = matrix.entries()
    starts = np.searchsorted(rows, np.arange(matrix.n_out + 1))
    return (
        network.parameters[places], columns.astype(np.int32), starts.astype(np.int32)
    )


# Trials -----------------------------------------------------------------------------


def trials(device: Device, options: Options) -> tuple[Trial, ...]:
    """Return the trials, those of small nets first; see `command.Study`."""
    quick = options.effort == "quick"
    neurons, layers, density = BASE
    found = [
        ("neurons", sparse_case(n, layers, density))
        for n in (QUICK_NEURONS if quick else NEURONS)
    ]
    found += [
        ("layers", sparse_case(neurons, n, density))
        for n in (QUICK_LAYERS if quick else LAYERS)
    ]
    found += [
        ("density", sparse_case(neurons, layers, d))
        for d in (QUICK_DENSITIES if quick else DENSITIES)
    ]
    found += [
        ("large", sparse_case(n, 1, d, batch))
        for n, d in (QUICK if quick else LARGE)
        for batch in options.batches or ((1,) if quick else BATCHES)
    ]
    return tuple(_trial(table, case, device, options.tune) for table, case in found)


def _trial(table: str, case: SparseCase, device: Device, tune: bool) -> Trial:
    cpu = device.type == "cpu"
    ours: list[Candidate] = [Stored(name, tune) for name in (*FORMATS, AUTO)]
    peers: list[Candidate] = [
        NumPy(), SciPy(), TorchSparse(), TorchSparse("torch-sparse-graph"),
        CuPySparse(), *(Torch(name) for name in ("torch", "torch-cuda", "torch-graph")),
    ]
    on_demand = set(CUDA) if cpu else {"torch"}
    if table == "large":
        on_demand |= set(PADDED)
        if case.sizes[0] >= WHOLE:
            on_demand |= {"dense", "numpy", "torch", "torch-cuda", "torch-graph"}
    return Trial(
        table, case, (*ours, *peers), frozenset(on_demand),
        ("scipy", "numpy") if cpu else ("torch-sparse-graph", "torch-sparse", "scipy"),
    )


def report(rows: Sequence[Row]) -> str:
    """Return the study's tables: times, then memory by exact counts."""
    parts = [tables(rows)]
    if any(row.table == "density" for row in rows):
        parts += [memory(), meeting()]
    return "\n\n".join(part for part in parts if part)


def memory() -> str:
    """Return the bytes of a layer of the study by format and density.

    First of values and index arrays as they are stored, then by the study's formulas.
    """
    neurons, _, _ = BASE
    lines = []
    for density in DENSITIES:
        case = sparse_case(neurons, 1, density)
        (layer,) = case.network.layers
        assert isinstance(layer, Sparse)
        found = memory_table(layer.connections(neurons))
        lines.append(
            [f"{100 * density:g}%", *(f"{m.nbytes} {m.study_bytes}" for m in found)]
        )
    table = tabulate(
        lines, ["density", *FORMATS], stralign="right", disable_numparse=True
    )
    return f"memory, bytes as stored, and by the study's formulas\n\n{table}"


COUNTS: dict[str, Callable[[Pattern], int]] = {
    "hyb as stored": lambda pattern: sum(
        part.nbytes(4) for part in FORMATS["hyb"](pattern)
    ),
    "hyb by the formulas": lambda pattern: 4 * sum(
        part.study_words for part in FORMATS["hyb"](pattern)
    ),
    "all ell": lambda pattern: 8 * pattern.n_out * pattern.longest,
    "all coo": lambda pattern: 12 * len(pattern),
}
"""Ways to count the bytes of a pattern: all but the first with words of 4 bytes."""


def meeting() -> str:
    """Return from which density on a layer needs more memory than a dense one."""
    lines = []
    for neurons in (BASE[0], 10 * BASE[0]):
        found = []
        for count in COUNTS.values():
            low, high = 1, 100  # percent; bytes grow with the density
            while low < high:
                middle = (low + high) // 2
                layer = Sparse(neurons, density=middle / 100)
                if count(layer.connections(neurons)) < 4 * neurons**2:
                    low = middle + 1
                else:
                    high = middle
            found.append(f"{low}%")
        lines.append([str(neurons), *found])
    table = tabulate(lines, ["neurons", *COUNTS], disable_numparse=True)
    return f"density from which a layer needs no less memory than dense\n\n{table}"


def _percent(row: Row) -> float:
    """Return the density that a case's name ends in."""
    return float(row.case.rpartition(" ")[2].removesuffix("%"))


def _lines(
    table: str, x: Callable[[Row], float], label: str, others: str
) -> Plot:
    return Plot(
        table, f"Time by {table}, {others}", (table,), x=x, x_label=label,
        y_label="time (µs)",
    )


PLOTS = (
    _lines("neurons", lambda row: widths(row)[0], "neurons a layer",
           f"{BASE[1]} layers, {100 * BASE[2]:g}%"),
    _lines("layers", lambda row: len(widths(row)) - 1, "layers",
           f"{BASE[0]} neurons, {100 * BASE[2]:g}%"),
    _lines("density", _percent, "density (%)", f"{BASE[1]} layers of {BASE[0]}"),
    Plot(
        "large", "One layer", ("large",), x=_percent, x_label="density (%)",
        y_label="time (µs)",
        page=lambda row: f"{widths(row)[0]} neurons, {by_call(row)}",
    ),
)
