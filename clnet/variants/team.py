"""Shared by variants in which a team of work-items computes a neuron (``team.h``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clnet.opencl.program import inline_ptx
from clnet.variants.base import team_group
from clnet.variants.cost import item_size
from clnet.variants.packing import WARP

if TYPE_CHECKING:
    from clnet.ir.program import Span
    from clnet.opencl.device import Device
    from clnet.variants.base import Config

SINGLE_GROUPS = (1024, 512)  # work-items, of one sample: enough loads in flight
ITEMS = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # the study's table II
MOST_UNROLLED = 8  # vectors; more would exhaust the registers of a group of 256


def team_defines(config: Config, span: Span, n_in: int) -> dict[str, int | str]:
    """Return the macros of ``team.h``."""
    items, group, tile = config["items"], config["group"], config.get("tile", 1)
    vectors = -(-n_in // 4)
    # Loads in flight must fit in a compute unit's registers.
    most = max(1, min(MOST_UNROLLED, 16384 // (group * item_size(span)), 32 // tile))
    unroll = 1
    while unroll < most and unroll * items < vectors:
        unroll *= 2
    return {"GROUP": group, "ITEMS": items, "TILE": tile, "UNROLL": unroll}


def team_local_bytes(config: Config, span: Span) -> int:
    """Return the bytes of local memory for the partial sums of teams."""
    partials = config.get("tile", 1) * config["group"] if config["items"] > 1 else 1
    return partials * item_size(span)


def warp_team(device: Device) -> int:
    """Return the work-items that may share a row's sum by shuffles: a warp, or one."""
    return WARP if inline_ptx(device) else 1


def single_sample_configs(device: Device) -> list[dict[str, int]]:
    """Return all team sizes; the likely ones with a smaller group too."""
    groups = list(dict.fromkeys(team_group(group, device) for group in SINGLE_GROUPS))
    sizes = team_sizes(device, groups[0])
    configs = [{"items": n, "group": groups[0]} for n in sizes]
    if device.simd_width > 1:
        likely = [n for n in sizes if sizes[0] // 4 <= n <= sizes[0]]
        configs += [{"items": n, "group": g} for g in groups[1:] for n in likely]
    return configs


def team_sizes(device: Device, group: int) -> tuple[int, ...]:
    """Return the work-items per neuron that a group allows, the default first."""
    if device.simd_width == 1:
        # Work-items run one after another: a team only adds work.
        return tuple(items for items in ITEMS[:3] if items <= group)
    sizes = [items for items in ITEMS if items <= group]
    default = min(device.simd_width, sizes[-1])
    return (default, *(items for items in sizes if items != default))


POLICIES = 80  # the first PTX generation with them


def kept_cache(device: Device, share: float) -> int:
    """Return the MiB that are a share of the cache; 0 without policies."""
    if inline_ptx(device) < POLICIES:
        return 0
    return int(share * device.rates.cache_bytes) >> 20


def cached_percent(kept: int, size: int) -> int:
    """Return the percent of `size` bytes that ``kept`` MiB are."""
    return 100 * (kept << 20) // size
