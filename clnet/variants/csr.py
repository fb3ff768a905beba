"""csr: sparse products in the shape that CPU cores like."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clnet.device import Device
from clnet.ops import Span
from clnet.variants.base import (
    Config,
    Cost,
    Launch,
    Parameters,
    Reach,
    Table,
    item_size,
    span_bytes,
    span_flops,
)
from clnet.variants.sparse import (
    refuse_unless_product,
    sparse_product,
    turn,
    turned,
)

RUNS = (4, 1, 16)  # a core, the usually best first
VECTOR_BYTES = 32  # without AVX-512 PoCL computes wrong sums in longer vectors
VECTORS = (4, 2, 1)  # of a tile's samples: as many sums as registers hold with ease


@dataclass(frozen=True)
class Csr:
    """Work-items take runs of rows of equally many entries (``csr.cl``).

    Values of storages other than csr and coo, and of transposes, are found by a table.

    Config: ``runs``, the work-items; ``tile``, samples at a time.
    """

    name: str = "csr"
    reach: Reach = "pair"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse what is no sparse product, and other devices."""
        if device.type != "cpu":
            return f"it is shaped for CPU cores, and {device.name} is none"
        return refuse_unless_product(span, device)

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """As many runs as cores, or more, to even out what takes longer."""
        rows = sparse_product(span).rows
        cores = 1 if device.serial else device.compute_units
        factors = (1,) if device.serial else RUNS
        runs = dict.fromkeys(min(cores * factor, rows) for factor in factors)
        lanes = _lanes(span)
        tiles = [lanes * n for n in VECTORS if lanes * n < 2 * span.batch][:2]
        if span.batch < lanes:
            tiles.append(1)
        return tuple({"runs": n, "tile": tile} for tile in tiles for n in runs)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Entries are read for every tile of samples; turned values twice."""
        product, tile = sparse_product(span), config["tile"]
        size, entries = item_size(span), product.entries
        moved = span_bytes(span) + product.index_bytes()
        units = min(config["runs"], device.compute_units)
        if tile == 1:
            # Values of x come one at a time: about a quarter of what vectors do.
            return Cost(span_flops(span), moved, 1, 0, units, 0.25)
        scratch = turned(span, product.x, tile, "x").size
        again = -(-span.batch // tile) - 1
        moved += 2 * scratch + again * (product.index_bytes() + size * entries)
        return Cost(span_flops(span), moved, 2, scratch, units)

    def launches(
        self, span: Span, config: Config, device: Device
    ) -> tuple[Launch, ...]:
        """Return the product, and for tiles the turning of x before it."""
        product, tile, runs = sparse_product(span), config["tile"], config["runs"]
        x, bias, lanes = product.x, product.bias, _lanes(span)
        scratch = turned(span, x, tile, "x")
        starts, slots, columns = product.tables()
        launch = Launch(
            "csr.cl", "csr",
            {
                **product.defines(span), "LANES": lanes, "TILE": tile,
                "VECTORS": max(1, tile // lanes), "WIDTH_X": product.columns,
                "SLOTS": int(not product.direct), "COLUMN": product.column_type,
            },
            (runs,), (1,),
            (
                Parameters(), product.weights.offset,
                0 if bias is None else bias.offset, starts, slots, columns,
                x if tile == 1 else scratch, x.stride, *product.outputs(), span.batch,
                Table(
                    product.key(f"bounds {runs}"),
                    lambda: bounds(starts.make(), runs),
                ),
            ),
        )
        if tile == 1:
            return (launch,)
        return turn(span, x, tile, scratch, device), launch


def bounds(starts: NDArray[np.int32], runs: int) -> NDArray[np.int32]:
    """Return where runs of rows [runs + 1] start, each of about as much work.

    A row's work is its entries, and one for the row itself; starts [rows + 1] says
    where its entries are.
    """
    work = starts + np.arange(len(starts))
    return np.searchsorted(work, np.linspace(0, work[-1], runs + 1)).astype(np.int32)


def _lanes(span: Span) -> int:
    return VECTOR_BYTES // item_size(span)
