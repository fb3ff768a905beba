"""Whether kernels write to the host's memory at its own address: asked of the device.

OpenCL does not promise it, nor does any query tell. So a small kernel is launched that
does, in a context of its own. The answer is kept in the tuning store, of a device's
name and driver.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from clnet.device import Device

SOURCE = "address.cl"
WORDS = 100
LAUNCHES = 5  # of which the host must see all words


@functools.cache
def host_is_addressed(device: Device) -> bool:
    """Return whether the host sees, after a launch, what it wrote to pinned memory.

    Where the kernel does not build or run, it does not.
    """
    import pyopencl as cl

    from clnet.errors import BuildError
    from clnet.memory import staging
    from clnet.program import build, source_hash, source_text
    from clnet.session import Session
    from clnet.tuning.store import Store

    store = Store(device)
    key = f"answers at the host's address {source_hash(SOURCE)}"
    found = store.fact(key)
    if found is not None:
        return found
    try:
        session = Session(device)
        text = source_text(SOURCE, {}, device)
        kernel = build(session.context, device, text, SOURCE).address
        words = staging(session, (WORDS,), "float32")
        found = True
        for first in range(1, LAUNCHES + 1):
            kernel(
                session.queue, (WORDS,), None, np.int32(first),
                np.uint64(words.ctypes.data),
            )
            session.finish()
            found = found and np.array_equal(words, first + np.arange(WORDS))
    except (cl.Error, BuildError):
        found = False
    store.put_fact(key, found)
    return found
