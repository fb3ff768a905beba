"""csr, sparse_team: sparse products on CPU cores and on GPUs, and what others share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clnet.ir.activation import BiasAct
from clnet.ir.product import Apply, ApplyT, Contraction
from clnet.ir.program import LayerOps, Span
from clnet.nn.storage.sparse import CooStorage, CsrStorage, SparseStorage, index_array
from clnet.opencl.launch import (
    PARAMETERS,
    Argument,
    Constant,
    Launch,
    Launches,
    Scratch,
)
from clnet.opencl.program import cached_percent, kept_cache
from clnet.variants.base import (
    MIXED_ACTIVATIONS,
    VECTOR_BYTES,
    largest_group,
    refuse_op,
    tables,
)
from clnet.variants.cost import Cost, span_cost
from clnet.variants.macros import layer_defines, real

if TYPE_CHECKING:
    from clnet.ir.op import Value
    from clnet.nn.storage.layout import Slot
    from clnet.opencl.device import Device
    from clnet.variants.base import Config, Reach

TRANSPOSED_FEATURES = 32  # of a group
TRANSPOSE_GROUP = 256  # work-items
VECTOR = 4  # entries of a load; index lists are padded to whole vectors
ALIGNMENT_SLACK = 16  # elements of local memory for alignment
MAX_CONFIGS = 12  # configs that are worth measuring
UNROLL = 2  # vectors of entries in flight
RUNS = (4, 1, 16)  # of rows, per CPU core, the usually best first


@dataclass(frozen=True)
class CsrIndices:
    """The live entries of a matrix or of its transpose, in CSR order."""

    # Row pointers: row r owns entries starts[r] … starts[r + 1] - 1
    starts: NDArray[np.int32]
    # Slot of an entry's value; column index, in 16 bits where that suffices
    slots: NDArray[np.int32]
    columns: NDArray[np.uint16] | NDArray[np.int32]


@lru_cache(maxsize=2)  # sorting millions takes a second, and every trial needs it
def csr_indices(storage: SparseStorage, transposed: bool) -> CsrIndices:
    """Return the entries of A, or of its transpose, in CSR order."""
    pattern = storage.pattern
    rows, columns, slots = pattern.rows, pattern.columns, storage.slots
    n_out, n_in = pattern.n_out, pattern.n_in
    if transposed:
        # NumPy's stable sort of 16-bit integers is a radix sort, many times as fast.
        order = np.argsort(index_array(columns, n_in), kind="stable")
        rows, columns, slots = columns[order], rows[order], slots[order]
        n_out, n_in = n_in, n_out
    counts = np.bincount(rows, minlength=n_out)
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    padding = (0, -len(rows) % VECTOR)
    return CsrIndices(
        starts, np.pad(slots, padding).astype(np.int32),
        index_array(np.pad(columns, padding), n_in),
    )


@dataclass(frozen=True)
class CsrTables:
    """The tables of `CsrIndices` for kernels, built when they are first uploaded."""

    storage: SparseStorage  # The matrix
    weights: Slot  # Slot of its values, a part of the tables' keys
    transposed: bool = False  # Whether rows are those of the transpose

    @property
    def direct(self) -> bool:
        """Whether values lie in CSR order, without a table of slots."""
        by_row = isinstance(self.storage, (CooStorage, CsrStorage))
        return by_row and not self.transposed

    @property
    def key(self) -> str:
        """The key of the tables, before their names."""
        order = " transposed" * self.transposed
        return f"rows {self.storage.signature}@{self.weights.offset}{order}"

    def tables(self) -> tuple[Constant, Constant, Constant]:
        """Return starts, slots (the starts again where values are direct), columns."""
        make = partial(csr_indices, self.storage, self.transposed)
        named = tables(self.key, ("starts", "slots", "columns"), make)
        starts = named["starts"]
        return starts, starts if self.direct else named["slots"], named["columns"]

    @property
    def rows(self) -> int:
        """Rows of the matrix, or of its transpose."""
        return self.storage.n_in if self.transposed else self.storage.n_out

    @property
    def columns(self) -> int:
        """Columns of the matrix, or of its transpose."""
        return self.storage.n_out if self.transposed else self.storage.n_in

    def segments(self, stages: int, width: int) -> Constant:
        """Return the row pointers of each stage.

        Stage s has the columns s * width … s * width + width - 1.
        """
        starts, _, columns = self.tables()
        if stages == 1:
            return starts

        def make() -> NDArray[np.int32]:
            lengths = np.diff(starts.make())
            rows = np.repeat(np.arange(len(lengths)), lengths)
            stage = columns.make()[: len(rows)].astype(np.int64) // width
            counts = np.bincount(rows * stages + stage, minlength=len(lengths) * stages)
            return np.concatenate(([0], np.cumsum(counts))).astype(np.int32)

        return Constant(f"{self.key} segments {stages} {width}", make)

    def bounds(self, runs: int) -> Constant:
        """Return the table of the first rows of runs."""
        starts = self.tables()[0]
        return Constant(
            f"{self.key} bounds {runs}", lambda: bounds(starts.make(), runs)
        )


def bounds(starts: NDArray[np.int32], runs: int) -> NDArray[np.int32]:
    """Return the first rows of runs of about equal work, and the end [runs + 1].

    A row's work is its number of entries plus one; starts [rows + 1]: row pointers.
    """
    work = starts + np.arange(len(starts))
    return np.searchsorted(work, np.linspace(0, work[-1], runs + 1)).astype(np.int32)


def csr_runs(rows: int, device: Device) -> tuple[int, ...]:
    """Return the numbers of runs of rows to try on a CPU: as many as cores, or more."""
    cores = 1 if device.serial else device.compute_units
    factors = (1,) if device.serial else RUNS
    return tuple(dict.fromkeys(min(cores * factor, rows) for factor in factors))


def tile_lanes(tile: int) -> int:
    """Return the work-items that load a tile of samples, by vectors if it is one."""
    return 1 if tile == 1 else tile // 4


def partial_pitch(tile: int, parts: int) -> int:
    """Return the values between rows of partial sums in local memory."""
    return parts + 1 if tile == 1 else parts * tile + 4


def vector_lanes(span: Span) -> int:
    """Return the elements of a vector on CPUs."""
    return VECTOR_BYTES // span.item_size


def lanes_defines(span: Span) -> dict[str, int]:
    """Return the macros of vectors on CPUs: of products, and of activations."""
    lanes = vector_lanes(span)
    # PoCL crashes in builtins of double vectors.
    return {"LANES": lanes, "WIDTH": lanes if span.dtype == "float32" else 1}


@dataclass(frozen=True)
class SparseProduct:
    """The sparse product of a span: `Apply`, with `BiasAct` or without; `ApplyT`."""

    storage: SparseStorage  # The matrix, and the slot of its values
    weights: Slot
    x: Value  # The operand and the result (pre-activations)
    sums: Value
    accumulate: bool  # Whether the product is added to the sums
    transposed: bool  # Whether the transpose is multiplied
    act: BiasAct | None  # The activation of the sums
    stores_z: bool  # Whether the sums are stored

    @property
    def rows(self) -> int:
        """Rows of the multiplied matrix."""
        return self.csr.rows

    @property
    def columns(self) -> int:
        """Columns of the multiplied matrix."""
        return self.csr.columns

    @property
    def entries(self) -> int:
        """Live entries."""
        return len(self.storage.pattern)

    @property
    def longest(self) -> int:
        """Entries of the longest row."""
        pattern = self.storage.pattern
        if not self.transposed:
            return pattern.longest
        return int(np.bincount(pattern.columns).max())

    @property
    def csr(self) -> CsrTables:
        """Its entries in CSR order."""
        return CsrTables(self.storage, self.weights, self.transposed)

    @property
    def direct(self) -> bool:
        """Whether values lie in CSR order, without a table of slots."""
        return self.csr.direct

    @property
    def column_type(self) -> str:
        """OpenCL type of the column indices."""
        return index_type(self.columns)

    def parameters(self) -> tuple[Argument, ...]:
        """Return the arguments: parameters, offsets of the values and the biases."""
        bias = None if self.act is None else self.act.bias
        return PARAMETERS, self.weights.offset, 0 if bias is None else bias.offset

    def outputs(self) -> tuple[Argument, ...]:
        """Return the arguments sums, lds, y, ldy of ``sparse.h``."""
        y = self.sums if self.act is None else self.act.y
        # Sums that are neither loaded nor stored need no memory.
        used = self.stores_z or self.accumulate
        sums = self.sums if used else y
        return sums, sums.stride, y, y.stride

    def defines(self, span: Span) -> dict[str, int | str]:
        """Return the macros of ``sparse.h`` and ``activations.h``."""
        defines: dict[str, int | str] = {"REAL": real(span), "HAS_BIAS": 0}
        if self.act is not None:
            apply = span.ops[0]
            assert isinstance(apply, Apply)
            defines = layer_defines(span, LayerOps(apply, self.act))
        return {
            **defines, "ACCUMULATE": int(self.accumulate),
            "STORES_Z": int(self.stores_z), "HAS_ACT": int(self.act is not None),
        }

    def index_bytes(self) -> int:
        """Return the bytes of the index lists that a product reads."""
        entry = (2 if self.column_type == "ushort" else 4) + (0 if self.direct else 4)
        return entry * self.entries + 4 * (self.rows + 1)


def index_type(count: int) -> str:
    """Return the OpenCL type of the indices that `index_array` returns."""
    return "ushort" if count <= 1 << 16 else "int"


def refuse_unless_product(span: Span, device: Device) -> str | None:
    """Return why the span is no sparse product for the device, or None."""
    op, *acts = span.ops
    refusal = refuse_op(
        span, device, (Apply, ApplyT), "computes products", SparseStorage
    )
    if refusal is not None:
        return refusal
    for act in acts:
        if not isinstance(op, Apply) or not isinstance(act, BiasAct):
            return "it computes one sparse layer, and these are other ops"
        if act.z != op.z:
            return "it computes one sparse layer, and these ops belong to two"
        if not act.nonlinearity.uniform:
            return MIXED_ACTIVATIONS
    return None


def sparse_storage(op: Contraction) -> SparseStorage:
    """Return the storage of an op, which was not refused."""
    assert isinstance(op.storage, SparseStorage)
    return op.storage


def sparse_product(span: Span) -> SparseProduct:
    """Return the product of an accepted span."""
    op, last = span.ops[0], span.ops[-1]
    assert isinstance(op, (Apply, ApplyT))
    x, sums = (op.x, op.z) if isinstance(op, Apply) else (op.dz, op.dx)
    act = last if isinstance(last, BiasAct) else None
    return SparseProduct(
        sparse_storage(op), op.weights, x, sums, op.accumulate,
        isinstance(op, ApplyT), act, act is None or sums in span.outputs,
    )


def team_cost(
    span: Span, device: Device, entries: int, tile: int, groups: int, staged: int
) -> Cost:
    """Return the cost of a product by groups that each take rows of A, on GPUs."""
    product, size = sparse_product(span), span.item_size
    tiles = -(-span.batch // tile)
    moved, scratch = entries * tiles, 0
    if tile > 1:
        scratch = tile_scratch(span, product.x, tile, "x").size
        moved += 2 * scratch + size * product.entries * span.batch // 2
    else:
        read = product.columns * groups if staged else product.entries
        moved += size * read * span.batch
    return span_cost(span, device, moved, tiles * groups, 1 + (tile > 1), scratch)


def tiled_input(span: Span, tile: int, device: Device) -> tuple[Argument, Launches]:
    """Return x for tiles of samples, and the launch that transposes it, if any."""
    x = sparse_product(span).x
    if tile == 1:
        return x, ()
    scratch = tile_scratch(span, x, tile, "x")
    return scratch, (transpose(span, x, tile, scratch, device),)


def tile_scratch(span: Span, value: Value, tile: int, name: str) -> Scratch:
    """Return the scratch of a value transposed into tiles of samples."""
    tiles = -(-span.batch // tile)
    return Scratch(name, span.item_size * tiles * (value.width + 1) * tile)


def transpose(
    span: Span, value: Value, tile: int, scratch: Scratch, device: Device
) -> Launch:
    """Return the launch that transposes a value (``transpose.cl``)."""
    group = 1 if device.type == "cpu" else min(TRANSPOSE_GROUP, device.largest_group)
    blocks = -(-value.width // TRANSPOSED_FEATURES)
    return Launch.of_groups(
        "sparse/transpose.cl", "transpose",
        {
            "REAL": real(span), "TILE": tile, "BLOCK": TRANSPOSED_FEATURES,
            "GROUP": group,
        },
        blocks * -(-span.batch // tile), group,
        value, value.stride, scratch, value.width, span.batch,
    )


VECTORS = (4, 2, 1)  # of accumulators, which fit in registers


def cpu_tiles(span: Span) -> list[int]:
    """Return tiles of samples on CPUs, the usually best first: vectors, or one."""
    lanes = vector_lanes(span)
    tiles = [lanes * n for n in VECTORS if lanes * n < 2 * span.batch][:2]
    return [*tiles, 1] if span.batch < lanes else tiles


@dataclass(frozen=True)
class Csr:
    """Work-items take runs of rows of equally many entries (``csr.cl``).

    A table gives the slots of other storages than csr and coo, and of transposes.

    Config: ``runs``, the work-items; ``tile``, samples at a time.
    """

    name: str = "csr"
    reach: Reach = "pair"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse other devices than CPUs, and all but sparse products."""
        if device.type != "cpu":
            return f"it is a CPU-only kernel, and {device.name} is a {device.type}"
        return refuse_unless_product(span, device)

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """As many runs as cores, or more, for load balance."""
        runs = csr_runs(sparse_product(span).rows, device)
        tiles = cpu_tiles(span)
        return tuple({"runs": n, "tile": tile} for tile in tiles for n in runs)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Entries are read for every tile of samples; transposed values twice."""
        product, tile = sparse_product(span), config["tile"]
        size, entries = span.item_size, product.entries
        moved = span.bytes + product.index_bytes()
        units = min(config["runs"], device.compute_units)
        if tile == 1:
            # Gathers of single values of x: about a quarter of the rate of vectors.
            return Cost(span.flops, moved, 1, 0, units, 0.25)
        scratch = tile_scratch(span, product.x, tile, "x").size
        again = -(-span.batch // tile) - 1
        moved += 2 * scratch + again * (product.index_bytes() + size * entries)
        return Cost(span.flops, moved, 2, scratch, units)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the product, and for tiles the transposition of x before it."""
        product, tile, runs = sparse_product(span), config["tile"], config["runs"]
        x, before = tiled_input(span, tile, device)
        launch = Launch.of_groups(
            "sparse/csr.cl", "csr",
            {
                **product.defines(span), **lanes_defines(span), "TILE": tile,
                "VECTORS": VECTORS[0] if tile == 1 else tile // vector_lanes(span),
                "WIDTH_X": product.columns, "SLOTS": int(not product.direct),
                "COLUMN": product.column_type,
            },
            runs, 1,
            *product.parameters(), *product.csr.tables(), x, product.x.stride,
            *product.outputs(), span.batch, product.csr.bounds(runs),
        )
        return *before, launch


TEAM_TILES = (32, 16, 8, 4)  # samples
TEAM_PARTS = (1, 2, 4, 8, 16, 32, 64, 256)  # work-items of a row, for one sample
TILE_PARTS = (1, 2, 4, 8, 16)  # for a tile of samples
TEAM_GROUPS = (1024, 512)  # work-items of a group with x in local memory
OCCUPANCY = (2, 1)  # such groups of a compute unit, the better first
TEAM_GROUP = 256  # work-items of a group without
ROWS = (1, 2)  # of a team
KEPT_SHARE = 0.75  # of the L2 cache, for entries to keep there
MAX_STAGES = 4  # every group copies all of x: more stages gain nothing


@dataclass(frozen=True)
class SparseTeam:
    """One team of work-items per row (``sparse_team.cl``).

    Config: ``group``, work-items of a group; ``rows``, of a group; ``parts``, of a row
    (slice-k); ``tile``, samples; ``stages``, in which x is copied to local memory, 0:
    x is not copied; ``kept``, MiB of entries to keep in the L2 cache, if it does not
    hold all.
    """

    name: str = "sparse_team"
    reach: Reach = "pair"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse all but sparse products, and activations that differ by neuron."""
        return refuse_unless_product(span, device)

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Teams in proportion to the rows' lengths, the likely best first."""
        product = sparse_product(span)
        configs = _tiled(product, span, device) if span.batch > 1 else []
        if span.batch < TEAM_TILES[-1]:
            single = _single(product, span, device)
            configs = _kept(single, product, span, device) + configs
        room = device.local_memory
        fitting = [
            c for i, c in enumerate(configs)
            if c not in configs[:i] and _local_bytes(product, span, c) <= room
        ]
        return tuple(fitting[:MAX_CONFIGS])

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count entries for every tile of samples, and transposed values twice."""
        product = sparse_product(span)
        blocks = -(-product.rows // config["rows"])
        return team_cost(
            span, device, _entry_bytes(product, span), config["tile"], blocks,
            config["stages"],
        )

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the product, and for tiles the transposition of x before it."""
        product, tile = sparse_product(span), config["tile"]
        group = config["group"]
        x, before = tiled_input(span, tile, device)
        stages = config["stages"]
        width = -(-product.columns // max(1, stages))
        starts, *others = product.csr.tables()
        if stages:
            starts = product.csr.segments(stages, width)
        return (
            *before,
            Launch.of_groups(
                "sparse/sparse_team.cl", "sparse_team",
                {
                    **product.defines(span), "TILE": tile, "PARTS": config["parts"],
                    "ROWS": config["rows"], "GROUP": group, "UNROLL": UNROLL,
                    "STAGES": stages, "STAGE": width, "WIDTH_X": product.columns,
                    "SLOTS": int(not product.direct), "COLUMN": product.column_type,
                    "L2_PERCENT": cached_percent(config.get("kept", 0),
                    _entry_bytes(product, span)),
                },
                -(-product.rows // config["rows"]) * -(-span.batch // tile), group,
                *product.parameters(), starts, *others, x, product.x.stride,
                *product.outputs(), product.rows, span.batch,
            ),
        )


def _entry_bytes(product: SparseProduct, span: Span) -> int:
    """Return the bytes of all entries: their values and indices."""
    return product.index_bytes() + span.item_size * product.entries


def _kept(
    configs: list[Config], product: SparseProduct, span: Span, device: Device
) -> list[Config]:
    """Return the configs, with a part of the entries kept in L2 if it cannot hold all.

    Of single samples: consecutive calls read the same entries.
    """
    kept = kept_cache(device, KEPT_SHARE)
    fits = _entry_bytes(product, span) <= kept << 20
    if fits or not product.direct or span.dtype != "float32" or not kept:
        return configs
    return [{**config, "kept": kept} for config in configs]


def _sums(config: Config) -> int:
    """Return the number of partial sums in local memory."""
    return config["rows"] * partial_pitch(config["tile"], config["parts"])


def _local_bytes(product: SparseProduct, span: Span, config: Config) -> int:
    """Return the bytes of partial sums, and of x with stages."""
    stages = config["stages"]
    staged = -(-product.columns // stages) if stages else 0
    return (_sums(config) + staged + ALIGNMENT_SLACK) * span.item_size


def _staged(
    product: SparseProduct, span: Span, device: Device, config: Config
) -> list[Config]:
    """Return the config with the fewest stages that local memory allows, if any."""
    room = device.local_memory // span.item_size - _sums(config) - ALIGNMENT_SLACK
    stages = -(-product.columns // room) if room > 0 else MAX_STAGES + 1
    return [{**config, "stages": stages}] if stages <= MAX_STAGES else []


def _nearest(sizes: Iterable[int], target: float) -> list[int]:
    """Return the sizes sorted by their ratio to a target, the nearest first."""
    return sorted(sizes, key=lambda n: max(n / target, target / n))


def _single(product: SparseProduct, span: Span, device: Device) -> list[Config]:
    """Return configs for single samples: parts of about four vectors each."""
    length = max(1.0, product.entries / product.rows)
    configs: list[Config] = []
    for group in dict.fromkeys(largest_group(size, device) for size in TEAM_GROUPS):
        parts = _nearest((n for n in TEAM_PARTS if n <= min(group, 64)), length / 16)
        for groups in OCCUPANCY:
            rows = max(1, -(-product.rows // (groups * device.compute_units)))
            for n in parts[:2]:
                config = {"group": group, "rows": rows, "parts": n, "tile": 1}
                configs += _staged(product, span, device, config)
    # Every group copies all of x: few stages and few groups are better. In stages small
    # groups wait less.
    configs.sort(key=lambda c: (
        (c["stages"], -c["rows"], c["group"], c["parts"]) if c["stages"] > 1 else (1,)
    ))
    group = largest_group(TEAM_GROUP, device)
    parts = _nearest((n for n in TEAM_PARTS if n <= group), length / 8)
    configs += [
        {"group": group, "rows": group // n * rows, "parts": n, "tile": 1, "stages": 0}
        for n in parts[:2] for rows in ROWS
    ]
    longest = _nearest((n for n in TEAM_PARTS if n <= group), product.longest / 16)[0]
    configs.append({
        "group": group, "rows": group // longest, "parts": longest, "tile": 1,
        "stages": 0,
    })
    return configs


def _tiled(product: SparseProduct, span: Span, device: Device) -> list[Config]:
    """Return configs for tiles of samples."""
    group = largest_group(TEAM_GROUP, device)
    fitting = [
        tile for tile in TEAM_TILES if tile < 2 * span.batch and tile // 4 <= group
    ]
    length = max(1.0, product.entries / product.rows)
    configs: list[Config] = []
    for tile in fitting[:2]:
        lanes = tile_lanes(tile)
        sizes = [n for n in TILE_PARTS if n * lanes <= group]
        parts = _nearest(sizes, length / 64)[:3]
        longest = _nearest(sizes, product.longest / 64)[0]
        # A row much longer than most keeps its group waiting.
        parts += [longest] if longest not in parts else []
        configs += [
            {
                "group": group, "rows": group // (n * lanes) * rows, "parts": n,
                "tile": tile, "stages": 0,
            }
            for rows in ROWS for n in parts
        ]
    return configs
