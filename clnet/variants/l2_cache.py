"""Policies of the L2 cache (``l2_policy.h``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clnet.opencl.program import inline_ptx

if TYPE_CHECKING:
    from clnet.opencl.device import Device

POLICIES = 80  # the first PTX generation with them


def kept_cache(device: Device, share: float) -> int:
    """Return the MiB that are a share of the cache; 0 without policies."""
    if inline_ptx(device) < POLICIES:
        return 0
    return int(share * device.rates.cache_bytes) >> 20


def cached_percent(kept: int, size: int) -> int:
    """Return the percent of `size` bytes that ``kept`` MiB are."""
    return 100 * (kept << 20) // size
