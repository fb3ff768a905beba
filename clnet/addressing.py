"""Whether kernels write to the host's memory at its own address: asked of the device.

OpenCL does not promise it, nor does any query tell. So a small kernel is launched that
does (``address.cl``).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from clnet.asking import asked
from clnet.device import Device
from clnet.memory import staging
from clnet.session import Session

WORDS = 100
LAUNCHES = 5  # of which the host must see all words


@functools.cache
def host_is_addressed(device: Device) -> bool:
    """Return whether the host sees, after a launch, what it wrote to pinned memory.

    Where the kernel does not build or run, it does not.
    """
    return asked(device, "answers at the host's address", "address.cl", {}, _seen)


def _seen(session: Session, program: Any) -> bool:
    """Return whether the host sees what launches write."""
    kernel, words = program.address, staging(session, (WORDS,), "float32")
    for first in range(1, LAUNCHES + 1):
        kernel(
            session.queue, (WORDS,), None, np.int32(first),
            np.uint64(words.ctypes.data),
        )
        session.finish()
        if not np.array_equal(words, first + np.arange(WORDS)):
            return False
    return True
