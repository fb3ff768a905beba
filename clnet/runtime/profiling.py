"""Where the time of a call goes, host arrays in to host arrays out."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray
from tabulate import tabulate

from clnet.ir.lowering import lower
from clnet.opencl.memory import copy_rows
from clnet.opencl.session import failed, session
from clnet.runtime.executable import NANOSECOND, Executable
from clnet.runtime.plan import Plan

PARTS = ("upload", "launch", "device", "download", "host", "sum", "wall")
ROUNDS = 21  # calls, of which the one of the median time is told


@dataclass(frozen=True)
class CallTimes:
    """Seconds of one call.

    Attributes
    ----------
    upload, download : float
        Copies of inputs and outputs: into and out of the memory that the device copies
        from and to, and by the device.
    launch : float
        From the first command's enqueueing to the last one's end, where the device does
        nothing: what it takes to enqueue, and to begin.
    device : float
        Kernels, by the device's clock.
    host : float
        Steps that NumPy computes.
    wall : float
        The call, from outside.
    """

    upload: float
    launch: float
    device: float
    download: float
    host: float
    wall: float

    @property
    def sum(self) -> float:
        """All parts together; what is missing to the wall is Python's own."""
        return self.upload + self.launch + self.device + self.download + self.host

    def table(self) -> str:
        """Return the parts in microseconds, and as shares of the wall's time."""
        rows = [
            (name, 1e6 * seconds, f"{100 * seconds / self.wall:.0f}%")
            for name in PARTS
            if (seconds := getattr(self, name)) or name != "host"
        ]
        return str(tabulate(
            rows, ("one call", "us", "share"), floatfmt=".1f",
            colalign=("left", "right", "right"),
        ))


def call_times(plan: Plan, x: NDArray[Any]) -> CallTimes:
    """Return where the time of one call goes.

    Parameters
    ----------
    plan : Plan
        What is called; not the plan's own queue is used, but one that records times.
    x : ndarray, shape [batch, n_in]
        Inputs.

    Raises
    ------
    DeviceError
        If the device fails.
    """
    program = lower(plan.network)
    recording = session(plan.device, profiling=True)
    try:
        executable = Executable(
            recording, plan.network, plan.steps, [program.input], [program.output]
        )
        found = [
            _times(executable, x, program.input.name, program.output.name)
            for _ in range(1 + ROUNDS)
        ][1:]  # the first uploads parameters
    except recording.errors as error:
        raise failed(plan.device, error) from error
    return sorted(found, key=lambda times: times.wall)[ROUNDS // 2]


def _times(executable: Executable, x: NDArray[Any], n_in: str, n_out: str) -> CallTimes:
    import pyopencl as cl

    start = time.perf_counter()
    copy_rows(executable.x[n_in], x)
    filled = time.perf_counter()
    trace = executable.traced_run()
    ran = time.perf_counter()
    executable.result(n_out)
    end = time.perf_counter()
    busy = dict.fromkeys(("upload", "device", "download"), 0.0)
    kinds = {
        cl.command_type.WRITE_BUFFER: "upload", cl.command_type.READ_BUFFER: "download",
    }
    for event in trace.events:
        kind = kinds.get(event.command_type, "device")
        busy[kind] += NANOSECOND * (event.profile.end - event.profile.start)
    launch = 0.0
    if trace.events:
        times = [event.profile for event in trace.events]
        first, last = min(t.queued for t in times), max(t.end for t in times)
        launch = NANOSECOND * (last - first) - sum(busy.values()) - trace.host_seconds
    return CallTimes(
        busy["upload"] + filled - start, max(0.0, launch), busy["device"],
        busy["download"] + end - ran, trace.host_seconds, end - start,
    )
