"""sparse_team: sparse products on GPUs, a team of work-items a row of entries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from clnet.ir.ops import Span
from clnet.opencl.device import Device
from clnet.opencl.launch import Launch, Parameters
from clnet.variants.base import (
    Config,
    Cost,
    Reach,
    gpu_shape,
    item_size,
    span_bytes,
    span_flops,
)
from clnet.variants.sparse.sparse import (
    MOST,
    SPARE,
    UNROLL,
    SparseProduct,
    largest_group,
    refuse_unless_product,
    sparse_product,
    tile_scratch,
    transpose,
)

TILES = (32, 16, 8, 4)  # samples
PARTS = (1, 2, 4, 8, 16, 32, 64, 256)  # work-items a row, for one sample
TILE_PARTS = (1, 2, 4, 8, 16)  # of four samples each
GROUPS = (1024, 512)  # work-items of a group that has x in local memory
GROUPS_A_UNIT = (2, 1)  # such groups that a compute unit gets, the better first
GROUP = 256  # work-items of another
LAPS = (1, 2)  # rows of a team
MOST_STAGES = 4  # copying x so often, each group for itself, is no gain


@dataclass(frozen=True)
class SparseTeam:
    """Rows of entries by teams; batches by tiles of samples (``sparse_team.cl``).

    Config: ``group``, work-items of a group; ``rows``, of a group; ``parts``, into
    which a row is cut; ``tile``, samples; ``stages``, in which x is copied to local
    memory, 0: not at all.
    """

    name: str = "sparse_team"
    reach: Reach = "pair"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse what is no sparse product, and activations that differ."""
        return refuse_unless_product(span, device)

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Teams about as large as rows are long, the likely best first."""
        product = sparse_product(span)
        found = _tiled(product, span, device) if span.batch > 1 else []
        if span.batch < TILES[-1]:
            found = _single(product, span, device) + found
        room = device.local_memory
        fitting = [
            c for i, c in enumerate(found)
            if c not in found[:i] and _local_bytes(product, span, c) <= room
        ]
        return tuple(fitting[:MOST])

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count entries for every tile of samples, and turned values twice."""
        product, tile = sparse_product(span), config["tile"]
        tiles, blocks = -(-span.batch // tile), -(-product.rows // config["rows"])
        size = item_size(span)
        entries = product.index_bytes() + size * product.entries
        moved = span_bytes(span) + entries * tiles
        scratch = 0
        if tile > 1:
            scratch = tile_scratch(span, product.x, tile, "x").size
            moved += 2 * scratch + size * product.entries * span.batch // 2
        elif config["stages"]:
            moved += size * product.columns * blocks * span.batch
        else:
            moved += size * product.entries * span.batch
        return Cost(
            span_flops(span), moved, 1 + (tile > 1), scratch,
            min(device.compute_units, tiles * blocks), gpu_shape(device),
        )

    def launches(
        self, span: Span, config: Config, device: Device
    ) -> tuple[Launch, ...]:
        """Return the product, and for tiles the turning of x before it."""
        product, tile = sparse_product(span), config["tile"]
        group = config["group"]
        scratch = tile_scratch(span, product.x, tile, "x")
        before: tuple[Launch, ...] = ()
        if tile > 1:
            before = (transpose(span, product.x, tile, scratch, device),)
        bias, stages = product.bias, config["stages"]
        width = -(-product.columns // max(1, stages))
        starts, *others = product.lists.tables()
        if stages:
            starts = product.lists.cuts(stages, width)
        return (
            *before,
            Launch(
                "sparse/sparse_team.cl", "sparse_team",
                {
                    **product.defines(span), "TILE": tile, "PARTS": config["parts"],
                    "ROWS": config["rows"], "GROUP": group, "UNROLL": UNROLL,
                    "STAGES": stages, "STAGE": width, "WIDTH_X": product.columns,
                    "SLOTS": int(not product.direct), "COLUMN": product.column_type,
                },
                (-(-product.rows // config["rows"]) * group, -(-span.batch // tile)),
                (group, 1),
                (
                    Parameters(), product.weights.offset,
                    0 if bias is None else bias.offset, starts, *others,
                    product.x if tile == 1 else scratch, product.x.stride,
                    *product.outputs(), product.rows, span.batch,
                ),
            ),
        )


def _lanes(tile: int) -> int:
    return 1 if tile == 1 else tile // 4


def _sums(config: Config) -> int:
    """Return the partial sums in local memory."""
    tile, parts = config["tile"], config["parts"]
    return config["rows"] * (parts + 1 if tile == 1 else parts * tile + 4)


def _local_bytes(product: SparseProduct, span: Span, config: Config) -> int:
    """Return the bytes of partial sums, and of x where there are stages."""
    stages = config["stages"]
    staged = -(-product.columns // stages) if stages else 0
    return (_sums(config) + staged + SPARE) * item_size(span)


def _staged(
    product: SparseProduct, span: Span, device: Device, config: Config
) -> list[Config]:
    """Return a config with as few stages as local memory allows, if few suffice."""
    room = device.local_memory // item_size(span) - _sums(config) - SPARE
    stages = -(-product.columns // room) if room > 0 else MOST_STAGES + 1
    return [{**config, "stages": stages}] if stages <= MOST_STAGES else []


def _near(sizes: Iterable[int], wanted: float) -> list[int]:
    """Return sizes, the nearest to what is wanted first, by their ratio."""
    return sorted(sizes, key=lambda n: max(n / wanted, wanted / n))


def _single(product: SparseProduct, span: Span, device: Device) -> list[Config]:
    """Return configs for single samples: parts of some four vectors each."""
    length = max(1.0, product.entries / product.rows)
    found: list[Config] = []
    for group in dict.fromkeys(largest_group(size, device) for size in GROUPS):
        parts = _near((n for n in PARTS if n <= min(group, 64)), length / 16)
        for groups in GROUPS_A_UNIT:
            rows = max(1, -(-product.rows // (groups * device.compute_units)))
            for n in parts[:2]:
                config = {"group": group, "rows": rows, "parts": n, "tile": 1}
                found += _staged(product, span, device, config)
    # Each group copies all of x. Where that takes several stages, few of them and few
    # groups are better.
    found.sort(key=lambda c: (c["stages"], -c["rows"]) if c["stages"] > 1 else (1, 0))
    group = largest_group(GROUP, device)
    parts = _near((n for n in PARTS if n <= group), length / 8)
    found += [
        {"group": group, "rows": group // n * laps, "parts": n, "tile": 1, "stages": 0}
        for n in parts[:2] for laps in LAPS
    ]
    longest = _near((n for n in PARTS if n <= group), product.longest / 16)[0]
    more: Config = {
        "group": group, "rows": group // longest, "parts": longest, "tile": 1,
        "stages": 0,
    }
    return [*found, more]


def _tiled(product: SparseProduct, span: Span, device: Device) -> list[Config]:
    """Return configs for tiles of samples."""
    group = largest_group(GROUP, device)
    fitting = [tile for tile in TILES if tile < 2 * span.batch and tile // 4 <= group]
    length = max(1.0, product.entries / product.rows)
    found: list[Config] = []
    for tile in fitting[:2]:
        lanes = _lanes(tile)
        sizes = [n for n in TILE_PARTS if n * lanes <= group]
        parts = _near(sizes, length / 64)[:3]
        longest = _near(sizes, product.longest / 64)[0]
        # Where a row is much longer than most, its team is what the others wait for.
        parts += [longest] if longest not in parts else []
        found += [
            {
                "group": group, "rows": group // (n * lanes) * laps, "parts": n,
                "tile": tile, "stages": 0,
            }
            for laps in LAPS for n in parts
        ]
    return found
