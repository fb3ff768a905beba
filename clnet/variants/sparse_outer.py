"""sparse_outer: the weights' gradient of a sparse layer on GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from numpy.typing import NDArray

from clnet.device import Device
from clnet.ops import Span
from clnet.storage import CooStorage, CsrStorage, SparseStorage
from clnet.storage.sparse import index_array
from clnet.training_ops import Outer
from clnet.variants.base import (
    Config,
    Cost,
    Gradients,
    Launch,
    Reach,
    Table,
    gpu_shape,
    item_size,
    real,
    span_bytes,
    span_flops,
    unsupported_dtype,
)
from clnet.variants.sparse import index_type, largest_group, turn, turned

TILES = (32, 16, 8, 4)  # samples
GROUPS = (256, 128, 512)  # work-items


@dataclass(frozen=True)
class SparseOuter:
    """Entries by teams, a tile of samples at a time (``sparse_outer.cl``).

    Config: ``tile``, samples; ``group``, work-items.
    """

    name: str = "sparse_outer"
    reach: Reach = "op"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse all but the weights' gradient of a sparse layer."""
        op = span.ops[0]
        if not isinstance(op, Outer):
            return "it computes weights' gradients, and this op does not"
        if not isinstance(op.storage, SparseStorage):
            return f"it writes sparse layers, not {op.storage.name}"
        return unsupported_dtype(span, device)

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Tiles that the batch fills, the largest first."""
        groups = dict.fromkeys(largest_group(group, device) for group in GROUPS)
        tiles = [tile for tile in TILES if tile < 2 * span.batch] or [TILES[-1]]
        found = [{"tile": tile, "group": n} for tile in tiles[:2] for n in groups]
        fitting = [
            c for c in found
            if c["tile"] // 4 <= c["group"]
            and c["tile"] // 4 * (c["group"] + 1) * item_size(span)
            <= device.local_memory
        ]
        return tuple(fitting) or ({"tile": TILES[-1], "group": 1},)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count an entry's values of x for every sample, and turned values twice."""
        op, entries = _op(span)
        tile, size = config["tile"], item_size(span)
        scratch = turned(span, op.ds, tile, "ds").size + turned(
            span, op.x, tile, "x"
        ).size
        moved = span_bytes(span) + 2 * scratch + entries * (8 + size * span.batch)
        blocks = -(-entries // config["group"])
        return Cost(
            span_flops(span), moved, 3, scratch, min(device.compute_units, blocks),
            gpu_shape(device),
        )

    def launches(
        self, span: Span, config: Config, device: Device
    ) -> tuple[Launch, ...]:
        """Return the turning of both sides, and the products."""
        op, entries = _op(span)
        tile, group, storage = config["tile"], config["group"], op.storage
        assert isinstance(storage, SparseStorage)
        ds, x = turned(span, op.ds, tile, "ds"), turned(span, op.x, tile, "x")
        key = f"entries {storage.signature}@{op.weights.offset}"
        direct = isinstance(storage, (CooStorage, CsrStorage))

        def table(what: str) -> Table:
            return Table(f"{key} {what}", partial(_table, storage, what))

        return (
            turn(span, op.ds, tile, ds, device),
            turn(span, op.x, tile, x, device),
            Launch(
                "sparse_outer.cl", "outer",
                {
                    "REAL": real(span), "TILE": tile, "GROUP": group,
                    "SLOTS": int(not direct), "ROW": index_type(storage.n_out),
                    "COLUMN": index_type(storage.n_in),
                },
                (-(-entries // group) * group,), (group,),
                (
                    Gradients(), op.weights.offset,
                    table("rows" if direct else "slots"), table("rows"),
                    table("columns"), ds, x, storage.n_out, storage.n_in, entries,
                    -(-span.batch // tile),
                ),
            ),
        )


def _op(span: Span) -> tuple[Outer, int]:
    (op,) = span.ops
    assert isinstance(op, Outer) and isinstance(op.storage, SparseStorage)
    return op, len(op.storage.pattern)


def _table(storage: SparseStorage, what: str) -> NDArray[Any]:
    pattern = storage.pattern
    if what == "rows":
        return index_array(pattern.rows, storage.n_out)
    if what == "columns":
        return index_array(pattern.columns, storage.n_in)
    return storage.slots.astype("int32")
