"""Whether all groups of a launch run at the same time: asked of the device itself.

No query tells it, and kernels whose groups wait for each other depend on it. So one
small kernel is launched whose groups wait for each other with a bound (``meeting.cl``).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from clnet.asking import asked
from clnet.device import Device
from clnet.session import Session

GROUP = 1024  # work-items: no kernel has more
PATIENCE = 20_000  # looks: some milliseconds, where the last group has long begun
LAUNCHES = 5  # in all of which the groups must meet


@functools.cache
def groups_meet(device: Device) -> bool:
    """Return whether as many groups as there are compute units run at the same time.

    Each of them has as many work-items and as much local memory as a kernel may have,
    so that a unit has room for no second one. Where the kernel does not build or run,
    they do not.
    """
    group = min(GROUP, device.largest_group)
    defines = {
        "GROUP": group, "LOCAL": device.local_memory // 4 * 4, "PATIENCE": PATIENCE
    }

    def answer(session: Session, program: Any) -> bool:
        kernel = program.meet
        return all(
            _met(session.queue, kernel, device.compute_units, group)
            for _ in range(LAUNCHES)
        )

    return asked(device, "groups meet", "meeting.cl", defines, answer)


def _met(queue: Any, kernel: Any, groups: int, group: int) -> bool:
    """Return whether all groups of one launch saw each other."""
    import pyopencl as cl

    counts = np.zeros(3, np.int32)
    flags = cl.mem_flags
    buffer = cl.Buffer(
        queue.context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=counts
    )
    kernel(queue, (groups * group,), (group,), buffer)
    cl.enqueue_copy(queue, counts, buffer, is_blocking=True)
    return counts.tolist() == [groups, groups, 0]
