"""Records of devices that tests plan for, made from the one that runs them."""

from dataclasses import dataclass, replace

import pytest

import clnet

DEVICE = clnet.device()
# One group is all that is sure to run beside itself.
ONE_GROUP = replace(DEVICE, forward_progress=True, compute_units=1)
# Plans alone read it: kernels build for the device that there is.
H200 = replace(
    DEVICE, companions=(), type="gpu", compute_units=132, simd_width=32,
    local_memory=48128, declared_local_memory=48 << 10,
    unit_local_memory=226 << 10, largest_group=1024, launch_cost=5e-6,
    forward_progress=True, compute_capability=(9, 0), clock=1.98e9, measured=None,
)
# Emulated devices, which run kernels of both kinds.
GPU = replace(
    DEVICE, type="gpu", simd_width=32, compute_units=3,
    local_memory=min(DEVICE.local_memory, 47 << 10),
    largest_group=min(DEVICE.largest_group, 256),
)
CPU = replace(DEVICE, type="cpu", compute_units=3)
CPU_ONLY = pytest.mark.skipif(
    DEVICE.forward_progress, reason=f"groups of {DEVICE.name} run at the same time"
)


def posing(units):
    """The device, as if its groups ran at the same time."""
    if DEVICE.forward_progress:
        return DEVICE
    return replace(DEVICE, forward_progress=True, compute_units=units)


@dataclass(frozen=True)
class LaunchesFor:
    """A variant that describes its launches for another device."""

    variant: object
    device: clnet.Device

    @property
    def name(self):
        return self.variant.name

    def launches(self, span, config, device):
        return self.variant.launches(span, config, self.device)
