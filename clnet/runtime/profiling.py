"""Profiles of calls, from host arrays in to host arrays out.

They are the parts of a call's time, or its timeline in the trace event format, which
Perfetto and Chrome show.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray
from tabulate import tabulate

from clnet.ir.lowering import lower
from clnet.opencl.commands import NANOSECOND, copy_direction, seconds_of
from clnet.opencl.memory import copy_rows
from clnet.opencl.session import device_errors, session
from clnet.runtime.executable import Executable, host_steps

if TYPE_CHECKING:
    from clnet.opencl.commands import Action
    from clnet.opencl.launch import Launch
    from clnet.runtime.plan import Plan

PARTS = ("upload", "launch", "device", "download", "host", "sum", "wall")
ROUNDS = 21  # calls; the one with the median time is reported


@dataclass(frozen=True)
class CallTimes:
    """Seconds of one call.

    Attributes
    ----------
    upload, download : float
        Copies of inputs and outputs: by the host to and from the staging memory, and by
        the device.
    launch : float
        The device's idle time from the first command's enqueueing to the last one's
        end: launch overhead.
    device : float
        Kernels, by the device's clock.
    host : float
        Steps computed by NumPy.
    wall : float
        The whole call, by the host's clock.
    """

    upload: float
    launch: float
    device: float
    download: float
    host: float
    wall: float

    @property
    def sum(self) -> float:
        """The sum of the parts; the rest of the wall time is Python's overhead."""
        return self.upload + self.launch + self.device + self.download + self.host

    def table(self) -> str:
        """Return the parts in microseconds, and as shares of the wall time."""
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
    """Return the parts of one call's time.

    Parameters
    ----------
    plan : Plan
        Its steps run on a queue that records times.
    x : ndarray, shape [batch, n_in]
        Inputs.

    Raises
    ------
    DeviceError
        If the device fails.
    """
    return _median_call(plan, x).times


def call_timeline(plan: Plan, x: NDArray[Any]) -> dict[str, Any]:
    """Return one call as a timeline: a dict for JSON.

    Parameters and errors are those of `call_times`. The host has a track, on which a
    command takes as long as its enqueueing, and each device one. The device's clock is
    set by the first command's enqueueing.

    Returns
    -------
    dict
        In Google's trace event format, times in microseconds.
    """
    call = _median_call(plan, x)
    on_device = (command for command in call.commands if command.event is not None)
    first = next(on_device, None)
    # From the device's clock to the host's.
    shift = 0.0 if first is None else (
        first.start - NANOSECOND * first.event.profile.queued
    )
    tracks: dict[str, int] = {"host": 0}
    events: list[dict[str, Any]] = []

    def add(name: str, track: str, start: float, seconds: float) -> None:
        events.append({
            "name": name, "ph": "X", "pid": 0,
            "tid": tracks.setdefault(track, len(tracks)),
            "ts": round(1e6 * (start - call.start), 3), "dur": round(1e6 * seconds, 3),
        })

    add("fill the inputs", "host", call.start, call.filled - call.start)
    for command in call.commands:
        add(command.name, "host", command.start, command.seconds)
        if command.event is not None:
            times, queue = command.event.profile, command.event.command_queue
            add(
                command.name, queue.device.name.strip(),
                shift + NANOSECOND * times.start, seconds_of(command.event),
            )
    add("return the outputs", "host", call.ran, call.end - call.ran)
    names = [
        {
            "name": "thread_name", "ph": "M", "pid": 0, "tid": number,
            "args": {"name": name},
        }
        for name, number in tracks.items()
    ]
    return {"traceEvents": names + events, "displayTimeUnit": "ns"}


class Command(NamedTuple):
    """A command of a run."""

    name: str  # The kernel, `"copy"`, or `"host"` for steps in NumPy
    # When the host began with it, by `time.perf_counter`, and its time there
    start: float
    seconds: float
    event: Any  # On the device; None: a step on the host


def traced(executable: Executable) -> list[Command]:
    """Compute as `Executable.run` does, and return the commands in their order."""
    commands: list[Command] = []

    def add(name: str, action: Action) -> None:
        start = time.perf_counter()
        event = action()
        if event is not None or name == "host":
            seconds = time.perf_counter() - start
            commands.append(Command(name, start, seconds, event))

    def run() -> None:
        launches = executable.schedule.launches
        for action in executable.schedule.actions:
            name = "copy" if host_steps(action) is None else "host"
            add(kernel_name(launches[action]) if action in launches else name, action)
        for copy in executable.downloads:
            add("copy", partial(copy, is_blocking=True))
        executable.session.finish()
        executable.wait_for_helpers()

    executable.with_parameters(run)
    return commands


def kernel_name(launch: Launch) -> str:
    """Return the name of a launch's kernel, with its file if that has another."""
    source, kernel = launch.source.rpartition("/")[2][:-3], launch.kernel
    return kernel if kernel == source else f"{source}: {kernel}"


class _TimedCall(NamedTuple):
    """A call, and its moments by `time.perf_counter`."""

    start: float
    filled: float
    commands: list[Command]
    ran: float
    end: float

    @property
    def times(self) -> CallTimes:
        """The parts of its time."""
        return _parts(*self)


def _median_call(plan: Plan, x: NDArray[Any]) -> _TimedCall:
    """Return the call of the median time among some."""
    program = lower(plan.network)
    profiled = session(plan.device, profiling=True)
    with device_errors(profiled):
        executable = Executable(
            profiled, plan.network, plan.steps, [program.input], [program.output]
        )
        calls = [
            _call(executable, x, program.input.name, program.output.name)
            for _ in range(1 + ROUNDS)
        ][1:]  # the first call uploads the parameters
    return sorted(calls, key=lambda call: call.end - call.start)[ROUNDS // 2]


def _call(
    executable: Executable, x: NDArray[Any], input_name: str, output_name: str
) -> _TimedCall:
    start = time.perf_counter()
    copy_rows(executable.x[input_name], x)
    filled = time.perf_counter()
    commands = traced(executable)
    ran = time.perf_counter()
    executable.result(output_name)
    return _TimedCall(start, filled, commands, ran, time.perf_counter())


def _parts(
    start: float, filled: float, commands: Sequence[Command], ran: float, end: float
) -> CallTimes:
    busy = dict.fromkeys(("upload", "device", "download"), 0.0)
    events = [command.event for command in commands if command.event is not None]
    host = sum(command.seconds for command in commands if command.event is None)
    for event in events:
        busy[copy_direction(event) or "device"] += seconds_of(event)
    launch = 0.0
    if events:
        times = [event.profile for event in events]
        first, last = min(t.queued for t in times), max(t.end for t in times)
        launch = NANOSECOND * (last - first) - sum(busy.values()) - host
    return CallTimes(
        busy["upload"] + filled - start, max(0.0, launch), busy["device"],
        busy["download"] + end - ran, host, end - start,
    )
