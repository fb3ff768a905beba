"""Child trials: on an untested runtime, a step runs in a child process first.

A kernel that kills its compiler or its process then costs a candidate. The store
remembers the outcome: each launch is tried once per driver.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
from typing import TYPE_CHECKING, Any

from clnet.errors import DeviceError
from clnet.opencl.child_process import run_child
from clnet.opencl.discovery import device as find_device
from clnet.planning.cover import PlanReport
from clnet.planning.tuning.search import Search
from clnet.runtime.binding import Step

if TYPE_CHECKING:
    from clnet.opencl.store import Store
    from clnet.planning.tuning.times import Times


def require_survival(times: Times, step: Step, store: Store, key: str) -> None:
    """Run a step in a child process, once per driver.

    Parameters
    ----------
    times : Times
        Of the step's network, program and device.
    step : Step
        A step on the device.
    store : Store
        Remembers the outcome.
    key : str
        Of the step's launches.

    Raises
    ------
    DeviceError
        If the child process died. Errors that are raised in it are not the child's: the
        caller meets them too.
    """
    name = f"survives {key}"
    survived = store.fact(name)
    if survived is None:
        command = sys.executable, "-m", __name__
        survived = not run_child(command, _pickled(times, step))
        store.put_fact(name, survived)
    if not survived:
        raise DeviceError(
            f"{step.variant.name} would end the process on {times.device.name}, as it "
            "did a child process"
        )


def _pickled(times: Times, step: Step) -> bytes:
    """Return the trial of a step; devices by their numbers."""
    assert step.device is not None
    first = times.program.ops.index(step.span.ops[0])
    parts = (
        type(times), times.network, times.program, times.device.index,
        times.device.compute_units, step.device.index, first,
        first + len(step.span.ops), step.span.batch, step.variant, step.config,
    )
    try:
        return pickle.dumps(parts)
    except (pickle.PicklingError, AttributeError, TypeError):
        return b""  # a caller's own variant: not tried


def _run(parts: tuple[Any, ...]) -> None:
    """Run the trial that `_pickled` describes."""
    (
        kind, network, program, index, units, place, start, stop, batch, variant, config
    ) = parts
    device = find_device(index, units=units)
    where = next(one for one in device.places if one.index == place)
    times: Times = kind(network, program, device, batch, PlanReport(), Search())
    times.compare(Step(program.span(start, stop, batch), variant, config, where))


if __name__ == "__main__":
    with contextlib.suppress(Exception):  # the parent meets it too
        _run(pickle.load(sys.stdin.buffer))
