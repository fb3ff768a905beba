"""Emulated devices for tests of sparse kernels, and their error bound."""

from __future__ import annotations

import dataclasses

import numpy as np
from bounds import LAMBDA

import clnet
from clnet.opencl.session import session

DEVICE = clnet.device()
SESSION = session(DEVICE)
GPU = dataclasses.replace(
    DEVICE, type="gpu", simd_width=32, compute_units=3,
    local_memory=min(DEVICE.local_memory, 47 << 10),
    largest_group=min(DEVICE.largest_group, 256),
)
CPU = dataclasses.replace(DEVICE, type="cpu", compute_units=3)
EPSILON = float(np.finfo("float32").eps)


def close(result, expected, sizes, terms):
    """Assert that sums are within rounding; sizes: sums of the terms' magnitudes."""
    unit = EPSILON if result.dtype == np.float32 else np.finfo(result.dtype).eps
    allowed = unit * (LAMBDA * np.sqrt(terms) + 16) * (sizes + 1)
    assert not np.isnan(result).any()
    assert (np.abs(result - expected) <= allowed).all()


@dataclasses.dataclass(frozen=True)
class LaunchesFor:
    """A variant that describes its launches for another device."""

    variant: object
    device: clnet.Device

    def launches(self, span, config, device):
        return self.variant.launches(span, config, self.device)
