"""gradient_sum: the gradients of several devices, added up on each: one launch."""

from __future__ import annotations

import numpy as np

from clnet.nn.storage.layout import round_up
from clnet.opencl.device import Device
from clnet.opencl.launch import Gradients, Launch, Scalar, Scratch

GROUP = 64  # work-items


def gradient_sum(size: int, others: int, dtype: str, device: Device) -> Launch:
    """Return the launch that adds the others' gradients to a device's own.

    Parameters
    ----------
    size : int
        Elements of the flat gradient buffer.
    others : int
        Devices beside this one: their gradients [others, size] are the launch's
        scratch.
    dtype : str
        Type of the elements.
    device : Device
        Where it runs.

    Returns
    -------
    Launch
        Its scalars are ``before``, ``own`` and ``count``, as ``gradient_sum.cl`` has
        them.
    """
    group = min(GROUP, device.largest_group)
    return Launch(
        "training/gradient_sum.cl", "gradient_sum",
        {"REAL": "double" if dtype == "float64" else "float"},
        (round_up(size, group),), (group,),
        (
            Gradients(), Scratch("others", others * size * np.dtype(dtype).itemsize),
            Scalar("before"), Scalar("own"), Scalar("count"), size,
        ),
    )
