"""sparse_team: sparse products on GPUs, a team of work-items per row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clnet.opencl.launch import Launch, Launches
from clnet.variants.base import largest_group
from clnet.variants.cost import Cost, item_size
from clnet.variants.sparse.sparse import (
    ALIGNMENT_SLACK,
    MAX_CONFIGS,
    UNROLL,
    SparseProduct,
    partial_pitch,
    refuse_unless_product,
    sparse_product,
    team_cost,
    tile_lanes,
    tiled_input,
)
from clnet.variants.team import cached_percent, kept_cache

if TYPE_CHECKING:
    from clnet.ir.program import Span
    from clnet.opencl.device import Device
    from clnet.variants.base import Config, Reach

TILES = (32, 16, 8, 4)  # samples
PARTS = (1, 2, 4, 8, 16, 32, 64, 256)  # work-items of a row, for one sample
TILE_PARTS = (1, 2, 4, 8, 16)  # for a tile of samples
GROUPS = (1024, 512)  # work-items of a group with x in local memory
OCCUPANCY = (2, 1)  # such groups of a compute unit, the better first
GROUP = 256  # work-items of a group without
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
        if span.batch < TILES[-1]:
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
            Launch(
                "sparse/sparse_team.cl", "sparse_team",
                {
                    **product.defines(span), "TILE": tile, "PARTS": config["parts"],
                    "ROWS": config["rows"], "GROUP": group, "UNROLL": UNROLL,
                    "STAGES": stages, "STAGE": width, "WIDTH_X": product.columns,
                    "SLOTS": int(not product.direct), "COLUMN": product.column_type,
                    "L2_PERCENT": cached_percent(
                        config.get("kept", 0), _entry_bytes(product, span)
                    ),
                },
                (-(-product.rows // config["rows"]) * group * -(-span.batch // tile),),
                (group,),
                (
                    *product.parameters(), starts, *others, x, product.x.stride,
                    *product.outputs(), product.rows, span.batch,
                ),
            ),
        )


def _entry_bytes(product: SparseProduct, span: Span) -> int:
    """Return the bytes of all entries: their values and indices."""
    return product.index_bytes() + item_size(span) * product.entries


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
    return (_sums(config) + staged + ALIGNMENT_SLACK) * item_size(span)


def _staged(
    product: SparseProduct, span: Span, device: Device, config: Config
) -> list[Config]:
    """Return the config with the fewest stages that local memory allows, if any."""
    room = device.local_memory // item_size(span) - _sums(config) - ALIGNMENT_SLACK
    stages = -(-product.columns // room) if room > 0 else MAX_STAGES + 1
    return [{**config, "stages": stages}] if stages <= MAX_STAGES else []


def _nearest(sizes: Iterable[int], target: float) -> list[int]:
    """Return the sizes sorted by their ratio to a target, the nearest first."""
    return sorted(sizes, key=lambda n: max(n / target, target / n))


def _single(product: SparseProduct, span: Span, device: Device) -> list[Config]:
    """Return configs for single samples: parts of about four vectors each."""
    length = max(1.0, product.entries / product.rows)
    configs: list[Config] = []
    for group in dict.fromkeys(largest_group(size, device) for size in GROUPS):
        parts = _nearest((n for n in PARTS if n <= min(group, 64)), length / 16)
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
    group = largest_group(GROUP, device)
    parts = _nearest((n for n in PARTS if n <= group), length / 8)
    configs += [
        {"group": group, "rows": group // n * rows, "parts": n, "tile": 1, "stages": 0}
        for n in parts[:2] for rows in ROWS
    ]
    longest = _nearest((n for n in PARTS if n <= group), product.longest / 16)[0]
    configs.append({
        "group": group, "rows": group // longest, "parts": longest, "tile": 1,
        "stages": 0,
    })
    return configs


def _tiled(product: SparseProduct, span: Span, device: Device) -> list[Config]:
    """Return configs for tiles of samples."""
    group = largest_group(GROUP, device)
    fitting = [tile for tile in TILES if tile < 2 * span.batch and tile // 4 <= group]
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
