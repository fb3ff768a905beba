"""outer: the weight gradient of a dense layer, with register tiles."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clnet.ir.product import Outer
from clnet.nn.storage.dense import RowStorage
from clnet.nn.storage.layout import round_up
from clnet.opencl.launch import GRADIENTS, Launch, Launches, Scratch
from clnet.variants.base import (
    GROUP,
    VECTOR_BYTES,
    Config,
    Reach,
    contraction,
    only_op,
    refuse_op,
    stored,
)
from clnet.variants.cost import Cost, item_size, span_cost
from clnet.variants.macros import real

if TYPE_CHECKING:
    from clnet.ir.program import Span
    from clnet.opencl.device import Device

BLOCK = 64  # samples of a partial sum
MIN_PART = 64  # samples of a part
# Columns of a work-item, the best first.
VECTORS: dict[str, tuple[int, ...]] = {"cpu": (8, 4), "gpu": (1, 4, 2)}
ROWS = (8, 4, 2, 1)
ITEMS = {"cpu": 8, "gpu": 2048}  # work-items that fill a compute unit


@dataclass(frozen=True)
class TiledOuter:
    """One work-item per tile of the matrix and part of the batch (``outer.cl``).

    Config: ``vec`` and ``rows``, the tile; ``parts``, of the batch (split-k).
    """

    name: str = "outer"
    reach: Reach = "op"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse all but the weight gradient of a dense layer."""
        verb = "computes weight gradients"
        return refuse_op(span, device, Outer, verb, RowStorage)

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Tiles that fit the layer, and enough parts to fill the device."""
        op = only_op(span, Outer)
        type_ = "cpu" if device.type == "cpu" else "gpu"
        most = min(op.storage.n_in, VECTOR_BYTES // item_size(span))
        vectors = [v for v in VECTORS[type_] if v <= most] or [1]
        configs = []
        for vec in vectors:
            for rows in sorted(ROWS, key=lambda rows: rows > op.storage.n_out):
                tiles = -(-op.storage.n_in // vec) * -(-op.storage.n_out // rows)
                filling = -(-ITEMS[type_] * device.compute_units // tiles)
                parts = max(1, min(filling, span.batch // MIN_PART))
                configs.append({"vec": vec, "rows": rows, "parts": parts})
        return tuple(configs)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count x again for every tile of rows."""
        op = only_op(span, Outer)
        rows = -(-op.storage.n_out // config["rows"])
        columns = -(-op.storage.n_in // config["vec"])
        parts = config["parts"]
        # On a CPU the next tile of rows reads x from cache.
        again = 0 if device.type == "cpu" else span.batch * op.storage.n_in * (rows - 1)
        return split_k_cost(span, device, again, parts, rows * columns * parts)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the product, and for several parts their sum."""
        op = only_op(span, Outer)
        storage = stored(op, RowStorage)
        vec, rows, parts = config["vec"], config["rows"], config["parts"]
        defines: dict[str, int | str] = {
            "REAL": real(span), "VEC": vec, "ROWS": rows, "BLOCK": BLOCK,
        }
        partial = Scratch("partial", item_size(span) * storage.size * parts)
        columns = -(-storage.n_in // vec)
        # On a CPU a work-item is a task; on a GPU neighbours coalesce their loads.
        group = 1 if device.type == "cpu" else min(GROUP, device.largest_group)
        across = round_up(columns, group)
        target = (GRADIENTS, op.weights.offset) if parts == 1 else (partial, 0)
        sums = Launch(
            "training/outer.cl", "outer", defines,
            (across * -(-storage.n_out // rows) * parts,), (group,),
            (
                *target, storage.stride, storage.size, op.dz, op.dz.stride, op.x,
                op.x.stride, storage.n_in, storage.n_out, span.batch,
                -(-span.batch // parts), across,
            ),
        )
        if parts == 1:
            return (sums,)
        return (sums, add_parts(span, op, partial, parts, device, vec, rows))


def split_k_cost(
    span: Span, device: Device, again: int, parts: int, items: int
) -> Cost:
    """Return the cost of `items` work-items that read `again` numbers once more."""
    storage = contraction(span).storage
    scratch = item_size(span) * storage.size * parts if parts > 1 else 0
    moved = item_size(span) * again + 2 * scratch
    return span_cost(span, device, moved, items, 1 + (parts > 1), scratch, 0.5)


def add_parts(
    span: Span, op: Outer, partial: Scratch, parts: int, device: Device,
    vec: int = 1, rows: int = 1,
) -> Launch:
    """Return the launch that adds partial sums [parts, size] into the gradient."""
    group = min(GROUP, device.largest_group)
    size = op.storage.size
    return Launch(
        "training/outer.cl", "add_parts",
        {"REAL": real(span), "VEC": vec, "ROWS": rows, "BLOCK": BLOCK},
        (round_up(size, group),), (group,),
        (GRADIENTS, op.weights.offset, partial, size, parts),
    )
