"""sparse_outer, sparse_input: weight gradients of sparse layers, and sparse samples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from clnet.checks import INT_MAX
from clnet.ir.product import Outer
from clnet.ir.sparse_input import SPARSE_INPUT_OPS, SparseInputApply, SparseInputOuter
from clnet.nn.random import half_bits
from clnet.nn.storage.layout import round_up
from clnet.nn.storage.sparse import CooStorage, CsrStorage, SparseStorage, index_array
from clnet.opencl.launch import (
    GRADIENTS,
    KEY,
    PARAMETERS,
    Constant,
    Launch,
    Launches,
    Scalar,
    Scratch,
)
from clnet.variants.base import (
    GROUP,
    Config,
    Reach,
    Untuned,
    largest_group,
    only_op,
    refuse_op,
)
from clnet.variants.cost import UNCOALESCED, Cost, gpu_kernel_efficiency, span_cost
from clnet.variants.macros import real
from clnet.variants.sparse.sparse import (
    CsrTables,
    csr_runs,
    index_type,
    sparse_storage,
    tile_scratch,
    transpose,
    vector_lanes,
)

if TYPE_CHECKING:
    from clnet.ir.program import Span
    from clnet.ir.sparse_input import SparseRows
    from clnet.opencl.device import Device

TILES = (32, 16, 8, 4)  # samples
GROUPS = (128, 256, 512)  # work-items
CPU_TILES = (8, 4, 2, 1)  # vectors of samples


@dataclass(frozen=True)
class SparseOuter:
    """Entries on teams of work-items, or rows on CPU cores (``sparse_outer.cl``).

    Config: ``tile``, samples; ``group``, work-items of a group, or on CPUs ``runs`` of
    rows.
    """

    name: str = "sparse_outer"
    reach: Reach = "op"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse all but the weight gradient of a sparse layer."""
        verb = "computes weight gradients"
        return refuse_op(span, device, Outer, verb, SparseStorage)

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Return tiles that the batch fills, the largest first."""
        if device.type == "cpu":
            runs = csr_runs(_op(span)[0].storage.n_out, device)
            tiles = _cpu_tiles(span)
            return tuple({"tile": tile, "runs": n} for tile in tiles for n in runs)
        groups = dict.fromkeys(largest_group(group, device) for group in GROUPS)
        # Offsets of vectors of a row of samples are 32 bits wide.
        storage = _op(span)[0].storage
        longest = (INT_MAX // max(storage.n_in, storage.n_out)) * 4
        tiles = [t for t in TILES if t < 2 * span.batch and t <= longest]
        tiles = tiles or [TILES[-1]]
        configs = [{"tile": tile, "group": n} for tile in tiles[:2] for n in groups]
        fitting = [
            c for c in configs
            if c["tile"] // 4 <= c["group"]
            and c["tile"] // 4 * (c["group"] + 1) * span.item_size
            <= device.local_memory
        ]
        return tuple(fitting) or ({"tile": TILES[-1], "group": 1},)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count an entry's values of x for every sample, transposed values twice."""
        op, entries = _op(span)
        tile, size = config["tile"], span.item_size
        scratch = tile_scratch(span, op.dz, tile, "ds").size + tile_scratch(
            span, op.x, tile, "x"
        ).size
        if "runs" in config:  # rows of x stay in cache, and samples share the indices
            moved = span.bytes + 2 * scratch + 8 * entries
            units = min(config["runs"], device.compute_units)
            return Cost(span.flops, moved, 3, scratch, units)
        blocks = -(-entries // config["group"])
        moved = 2 * scratch + entries * (8 + size * span.batch)
        return span_cost(span, device, moved, blocks, 3, scratch)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the transpositions of ds and x, and the product."""
        op, entries = _op(span)
        tile, storage = config["tile"], sparse_storage(op)
        ds = tile_scratch(span, op.dz, tile, "ds")
        x = tile_scratch(span, op.x, tile, "x")
        before = (
            transpose(span, op.dz, tile, ds, device),
            transpose(span, op.x, tile, x, device),
        )
        if "runs" in config:
            return *before, _by_rows(op, span, config, ds, x)
        group = config["group"]
        key = f"entries {storage.signature}@{op.weights.offset}"
        direct = isinstance(storage, (CooStorage, CsrStorage))

        def table(name: str) -> Constant:
            return Constant(f"{key} {name}", partial(_table, storage, name))

        return (
            *before,
            Launch.of_groups(
                "sparse/sparse_outer.cl", "outer",
                {
                    "REAL": real(span), "TILE": tile, "GROUP": group,
                    "SLOTS": int(not direct), "ROW": index_type(storage.n_out),
                    "COLUMN": index_type(storage.n_in),
                },
                -(-entries // group), group,
                GRADIENTS, op.weights.offset, table("rows" if direct else "slots"),
                table("rows"), table("columns"), ds, x, storage.n_out, storage.n_in,
                entries, -(-span.batch // tile),
            ),
        )


def _cpu_tiles(span: Span) -> list[int]:
    """Return tiles of whole vectors that the batch fills, the largest first."""
    lanes = vector_lanes(span)
    tiles = [lanes * n for n in CPU_TILES if lanes * n < 2 * span.batch]
    return tiles[:2] or [lanes]


def _by_rows(op: Outer, span: Span, config: Config, ds: Scratch, x: Scratch) -> Launch:
    """Return the product's launch on a CPU."""
    storage, tile = sparse_storage(op), config["tile"]
    runs = config["runs"]
    rows = CsrTables(storage, op.weights)
    return Launch.of_groups(
        "sparse/sparse_outer.cl", "outer_rows",
        {
            "REAL": real(span), "TILE": tile, "GROUP": 1, "LANES": vector_lanes(span),
            "SLOTS": int(not rows.direct), "ROW": index_type(storage.n_out),
            "COLUMN": index_type(storage.n_in),
        },
        runs, 1,
        GRADIENTS, op.weights.offset, *rows.tables(), ds, x, storage.n_out,
        storage.n_in, -(-span.batch // tile), rows.bounds(runs),
    )


def _op(span: Span) -> tuple[Outer, int]:
    op = only_op(span, Outer)
    return op, len(sparse_storage(op).pattern)


def _table(storage: SparseStorage, name: str) -> NDArray[Any]:
    pattern = storage.pattern
    if name == "rows":
        return index_array(pattern.rows, storage.n_out)
    if name == "columns":
        return index_array(pattern.columns, storage.n_in)
    return storage.slots.astype("int32")


SOURCE = "sparse/sparse_input.cl"
OUTER_GROUP = 128  # work-items that add a sample's entries to a row of the gradient
LINE_BYTES = 64  # of a CPU's cache line
BOUNDS_BYTES = 8  # of a sample: two ints


@dataclass(frozen=True)
class SparseInput(Untuned):
    """Rows of weights times entries of samples in CSR form (``sparse_input.cl``)."""

    name: str = "sparse_input"
    reach: Reach = "op"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse all but the products with sparse samples."""
        return refuse_op(span, device, SPARSE_INPUT_OPS, "multiplies sparse samples")

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count an entry's reads of a row; the gradient is written once besides."""
        op, size = _input_op(span), span.item_size
        rows, entries = op.storage.n_out, op.x.entries(span.batch)
        misses = 1 if device.type == "cpu" else UNCOALESCED
        moved = rows * entries * (size * (misses + 1) + 4)
        if isinstance(op, SparseInputOuter):
            moved += size * op.storage.size
        units = min(rows, device.compute_units)
        return Cost(
            span.flops, moved, 2, BOUNDS_BYTES * span.batch, units,
            gpu_kernel_efficiency(device),
        )

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the launch that looks the samples up, and the product."""
        op, cpu = _input_op(span), device.type == "cpu"
        storage, (_, columns, numbers) = op.storage, op.x.values
        bounds = Scratch("bounds", BOUNDS_BYTES * span.batch)
        group = 1 if cpu else min(GROUP, device.largest_group)
        lookup = _lookup(op.x, span, bounds, min(GROUP, device.largest_group))
        defines: dict[str, int | str] = {"REAL": real(span)}
        if isinstance(op, SparseInputApply):
            samples = span.batch if cpu else 1
            row_items = round_up(storage.n_out, group)
            items = row_items * -(-span.batch // samples)
            line = LINE_BYTES // span.item_size
            most = op.x.entries(span.batch) >= storage.stride // line  # are read anyway
            defines |= {"SAMPLES": samples, "LINE": line if cpu and most else 0}
            return lookup, Launch(
                SOURCE, "apply", defines, (items,), (group,),
                (
                    PARAMETERS, op.weights.offset, storage.stride, bounds, columns,
                    numbers, op.z, op.z.stride, storage.n_out, span.batch, row_items,
                ),
            )
        group = 1 if cpu else min(OUTER_GROUP, device.largest_group)
        return lookup, Launch.of_groups(
            SOURCE, "outer", {**defines, "GROUP": group}, storage.n_out, group,
            GRADIENTS, op.weights.offset, storage.stride, storage.n_in, bounds, columns,
            numbers, op.dz, op.dz.stride, span.batch,
        )


def _lookup(x: SparseRows, span: Span, bounds: Scratch, group: int) -> Launch:
    """Return the launch that finds the entries of a batch's samples."""
    samples = x.shape.samples
    return Launch.of_groups(
        SOURCE, "rows", {"REAL": real(span), "SHUFFLED": int(x.shuffled)},
        -(-span.batch // group), group,
        x.starts, bounds, span.batch, Scalar("first"), samples, half_bits(samples),
        *KEY,
    )


def _input_op(span: Span) -> SparseInputApply | SparseInputOuter:
    (op,) = span.ops
    assert isinstance(op, SPARSE_INPUT_OPS)
    return op
