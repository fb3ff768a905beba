"""gradient_sum: the data-parallel reduction of two devices' gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from clnet.nn.storage.layout import round_up
from clnet.opencl.launch import Gradients, Launch, Scratch
from clnet.variants.base import GROUP

if TYPE_CHECKING:
    from clnet.opencl.device import Device


def gradient_sum(size: int, dtype: str, device: Device) -> Launch:
    """Return the launch that adds another device's gradients to a device's own."""
    group = min(GROUP, device.largest_group)
    return Launch(
        "training/gradient_sum.cl", "gradient_sum",
        {"REAL": "double" if dtype == "float64" else "float"},
        (round_up(size, group),), (group,),
        (Gradients(), Scratch("other", size * np.dtype(dtype).itemsize), size),
    )
