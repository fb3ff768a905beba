"""csr: sparse products on CPU cores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clnet.opencl.launch import Launch, Launches
from clnet.variants.cost import Cost, item_size, span_bytes, span_flops
from clnet.variants.sparse.sparse import (
    csr_runs,
    refuse_unless_product,
    sparse_product,
    tile_scratch,
    tiled_input,
    vector_lanes,
)

if TYPE_CHECKING:
    from clnet.ir.program import Span
    from clnet.opencl.device import Device
    from clnet.variants.base import Config, Reach

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
