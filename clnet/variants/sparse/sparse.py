"""csr: sparse products on CPU cores; what the variants of sparse products share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clnet.ir.activation import BiasAct
from clnet.ir.product import Apply, ApplyT
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
from clnet.variants.base import MIXED_ACTIVATIONS, VECTOR_BYTES, refuse_op, tables
from clnet.variants.cost import Cost, item_size, span_bytes, span_cost, span_flops
from clnet.variants.macros import layer_defines, real

if TYPE_CHECKING:
    from clnet.ir.op import Value
    from clnet.ir.product import Outer
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
    return VECTOR_BYTES // item_size(span)


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


def sparse_storage(op: Apply | ApplyT | Outer) -> SparseStorage:
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
    product, size = sparse_product(span), item_size(span)
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
    return Scratch(name, item_size(span) * tiles * (value.width + 1) * tile)


def transpose(
    span: Span, value: Value, tile: int, scratch: Scratch, device: Device
) -> Launch:
    """Return the launch that transposes a value (``transpose.cl``)."""
    group = 1 if device.type == "cpu" else min(TRANSPOSE_GROUP, device.largest_group)
    blocks = -(-value.width // TRANSPOSED_FEATURES)
    return Launch(
        "sparse/transpose.cl", "transpose",
        {
            "REAL": real(span), "TILE": tile, "BLOCK": TRANSPOSED_FEATURES,
            "GROUP": group,
        },
        (blocks * group * -(-span.batch // tile),), (group,),
        (value, value.stride, scratch, value.width, span.batch),
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
        size, entries = item_size(span), product.entries
        moved = span_bytes(span) + product.index_bytes()
        units = min(config["runs"], device.compute_units)
        if tile == 1:
            # Gathers of single values of x: about a quarter of the rate of vectors.
            return Cost(span_flops(span), moved, 1, 0, units, 0.25)
        scratch = tile_scratch(span, product.x, tile, "x").size
        again = -(-span.batch // tile) - 1
        moved += 2 * scratch + again * (product.index_bytes() + size * entries)
        return Cost(span_flops(span), moved, 2, scratch, units)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the product, and for tiles the transposition of x before it."""
        product, tile, runs = sparse_product(span), config["tile"], config["runs"]
        lanes = vector_lanes(span)
        x, before = tiled_input(span, tile, device)
        launch = Launch(
            "sparse/csr.cl", "csr",
            {
                **product.defines(span), "LANES": lanes, "TILE": tile,
                "VECTORS": VECTORS[0] if tile == 1 else tile // lanes,
                "WIDTH_X": product.columns,
                "SLOTS": int(not product.direct), "COLUMN": product.column_type,
            },
            (runs,), (1,),
            (
                *product.parameters(), *product.csr.tables(),
                x, product.x.stride, *product.outputs(), span.batch,
                product.csr.bounds(runs),
            ),
        )
        return *before, launch
