"""A kernel on one device, in a process of its own, which a bad driver may kill."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from clnet.errors import DeviceError
from clnet.opencl.discovery import device, discover
from clnet.opencl.program import build, source_text
from clnet.opencl.session import Session

COMMAND = (sys.executable, "-m", "clnet.cli.doctor.probe")


def run(index: str) -> None:
    """Build the probe kernel on a device, run it and check its result."""
    import pyopencl as cl

    one = device(index)
    size, groups = 16, 64
    x = np.linspace(-0.1, 0.1, groups * size, dtype=np.float32)
    y = np.zeros(groups, dtype=np.float32)
    session = Session(one)
    context, queue = session.context, session.queue
    flags = cl.mem_flags
    source = cl.Buffer(context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=x)
    target = cl.Buffer(context, flags.WRITE_ONLY, y.nbytes)
    text = source_text("probes/doctor.cl", {"SIZE": size}, one)
    kernel = build(context, one, text, "probes/doctor.cl").probe
    kernel(queue, x.shape, (size,), source, target)
    cl.enqueue_copy(queue, y, target)
    expected = np.tanh(x.reshape(groups, size).sum(axis=1, dtype=np.float64))
    error = float(np.abs(y - expected).max())
    if not error < 1e-5:
        raise DeviceError(
            f"{one.name} computes wrong results: off by {error:.2g}, expected < 1e-05"
        )


def _main(arguments: Sequence[str]) -> int:
    """List the platforms; run the kernel on each device that is named by its index."""
    discover()
    try:
        for index in arguments:
            run(index)
    except Exception as error:  # the parent reports any failure
        print(str(error).partition("\n")[0], file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
