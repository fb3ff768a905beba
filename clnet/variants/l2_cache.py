"""Policies of the L2 cache (``l2_policy.h``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clnet.opencl.program import inline_ptx

if TYPE_CHECKING:
    from clnet.opencl.device import Device

KEPT_SHARE = 0.56  # of the cache, for weights to keep there: other data needs room
POLICIES = 80  # the first PTX generation with them


def kept_cache(device: Device) -> int:
    """Return the MiB of weights that may stay in the cache between launches.

    0 without policies.
    """
    if inline_ptx(device) < POLICIES:
        return 0
    return int(KEPT_SHARE * device.rates.cache_bytes) >> 20


def cached_percent(kept: int, size: int) -> int:
    """Return the percent of so many bytes that ``kept`` MiB are."""
    return 100 * (kept << 20) // size
