"""Device memory: the least that a plan needs, checked before anything is made for it.

Kernels may need more, for values between layers: a variant that does not fit is left
out of the search.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from clnet.errors import OutOfMemoryError, counted
from clnet.ir.update import Update

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clnet.ir.program import Program
    from clnet.nn.model import Model
    from clnet.opencl.device import Device

PLANS = 4  # of one prediction: of its chunks, of the last one, and their twins
SNAPSHOTS = 2  # of the parameters, in a training


def check_batch(network: Model, program: Program, device: Device, batch: int) -> None:
    """Raise OutOfMemoryError unless a batch fits a device, with the parameters."""
    size = network.parameters.nbytes
    _check(device, [size], "the parameters of this network", _smaller(network))
    most = _most_samples(program, device, device.global_memory - size)
    _check(
        device, [size, *(batch * row for row in _row_bytes(program))],
        f"a batch of {batch}", f"take a batch of at most {most}",
    )


def samples_of_call(network: Model, program: Program, device: Device) -> int:
    """Return the samples of a call of which a device's memory holds `PLANS`, at most.

    That is the memory of the device alone: what others hold now changes no chunk.
    """
    left = max(0, device.global_memory - network.parameters.nbytes)
    return _most_samples(program, device, left // PLANS)


def check_training(
    network: Model, program: Program, device: Device, batch: int, members: int = 1
) -> None:
    """Raise OutOfMemoryError unless a program of training fits a device.

    It needs its inputs, which are all samples where it gathers batches, and, if it
    changes parameters, those of `members` networks, with state and snapshots.
    """
    last, trained = program.ops[-1], list[int]()
    if isinstance(last, Update):
        size = members * network.parameters.nbytes
        trained = [size, last.optimiser.slots * size, *[size] * SNAPSHOTS]
        what = "this network" if members == 1 else counted(members, "network")
        _check(
            device, trained,
            f"the training of {what} by {last.optimiser.name}, with its state and "
            f"{SNAPSHOTS} snapshots", _smaller(network, members),
        )
    heights = [value.height(batch) for value in program.inputs]
    item = np.dtype(program.dtype).itemsize
    data = [
        height * value.stride * item
        for height, value in zip(heights, program.inputs, strict=True)
    ]
    _check(
        device, [*trained, *data],
        f"{counted(heights[-1], 'sample')} of training",  # the rows of the targets
        "pass fewer, or a memory map or batches with a smaller `buffer`, or take "
        "another device",
    )


def _check(device: Device, sizes: Sequence[int], what: str, advice: str) -> None:
    """Raise OutOfMemoryError unless buffers of so many bytes fit a device."""
    largest, total = max(sizes), sum(sizes)
    needed = f"{device.name} has no room for {what}, at least"
    if largest > device.largest_buffer:
        raise OutOfMemoryError(
            f"{needed} {largest} bytes in a buffer: {device.largest_buffer} are the "
            f"most; {advice}"
        )
    if total > device.global_memory:
        raise OutOfMemoryError(
            f"{needed} {total} bytes: it has {device.global_memory}; {advice}"
        )


def _most_samples(program: Program, device: Device, left: int) -> int:
    """Return the samples whose inputs and outputs fit so many bytes of a device."""
    rows = _row_bytes(program)
    return min(left // sum(rows), device.largest_buffer // max(rows))


def _row_bytes(program: Program) -> list[int]:
    """Return the bytes of a sample's inputs and outputs."""
    item = np.dtype(program.dtype).itemsize
    return [item * value.stride for value in (program.input, program.output)]


def _smaller(network: Model, members: int = 1) -> str:
    """Return what to try with a network that does not fit."""
    ways = [
        *(["fewer at a time"] if members > 1 else []),
        *(["float32"] if network.dtype == "float64" else []), "sparser layers",
    ]
    return f"take {', '.join(ways)} or another device"
