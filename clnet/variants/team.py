"""Shared by variants in which a team of work-items computes a neuron (``team.h``)."""

from __future__ import annotations

from clnet.ir.ops import Span
from clnet.opencl.device import Device
from clnet.variants.base import Config, item_size

ITEMS = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # the study's table II
SERIAL_GROUP = 64  # work-items, where they run one after another: more only cost time
MOST_UNROLLED = 8  # vectors; more would exhaust the registers of a group of 256


def team_defines(config: Config, span: Span, n_in: int) -> dict[str, int | str]:
    """Return the macros of ``team.h``.

    Parameters
    ----------
    config : mapping
        With ``group`` and ``items``; without ``tile`` that is 1.
    span : Span
        The span to compute.
    n_in : int
        Values of the longest row of A.
    """
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


def team_group(most: int, device: Device) -> int:
    """Return the largest power of two within `most` and the device's limit."""
    if device.simd_width == 1:
        most = min(most, SERIAL_GROUP)
    return 1 << min(most, device.largest_group).bit_length() - 1


def team_sizes(device: Device, group: int) -> tuple[int, ...]:
    """Return the work-items per neuron that a group allows, the default first."""
    if device.simd_width == 1:
        # Work-items run one after another: a team only adds work.
        return tuple(items for items in ITEMS[:3] if items <= group)
    sizes = [items for items in ITEMS if items <= group]
    default = min(device.simd_width, sizes[-1])
    return (default, *(items for items in sizes if items != default))
