"""Data parallelism: how samples are shared among devices, and plans that run so.

All devices are of one process. What their queues were given runs at the same time; the
host waits when all of them have their work.
"""

from __future__ import annotations

import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.errors import InputError
from clnet.nn.model import Model
from clnet.opencl.device import Device
from clnet.runtime.plan import Plan

Array = NDArray[Any]

TRIALS = 3  # runs that tell how fast a device is; the least time counts
LEAST_SHARE = 0.02  # a device that is to have less is left out: it costs more to wait


def alike(devices: Sequence[Device]) -> bool:
    """Return whether devices are of one kind: they compute the same as fast."""

    def kind(device: Device) -> Device:
        companions = tuple(kind(one) for one in device.companions)
        return replace(device, index="", companions=companions)

    return len({kind(device) for device in devices}) == 1


def shares(n: int, speeds: Sequence[float]) -> list[int]:
    """Return how many of n samples each device gets, in proportion to its speed.

    Parameters
    ----------
    n : int
        Samples.
    speeds : sequence of float
        Above 0, in any unit; those below `LEAST_SHARE` of all get nothing.

    Returns
    -------
    list of int
        They add up to n.
    """
    total = sum(speeds)
    kept = [speed if speed >= LEAST_SHARE * total else 0.0 for speed in speeds]
    kept = kept if any(kept) else list(speeds)
    ends = [round(n * end / sum(kept)) for end in accumulate(kept)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def least_seconds(run: Callable[[], object]) -> float:
    """Return how long a run takes, of some the least, after one to warm up."""
    run()
    found = []
    for _ in range(TRIALS):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return min(found)


def told(devices: Sequence[Device], counts: Sequence[int], what: str) -> str:
    """Return, for `explain`, which device has which share."""
    rows = [
        f"{count} of {sum(counts)} {what} on {device.index} {device.name}"
        for device, count in zip(devices, counts, strict=True)
    ]
    return "shared among devices\n" + "\n".join(
        textwrap.shorten(f"  {row}", 80, placeholder="…") if len(row) > 78
        else f"  {row}" for row in rows
    )


class ParallelPlan:
    """Plans of several devices that share the samples of a call: call it.

    Parameters
    ----------
    network : Model
        What they run.
    devices : sequence of Device
        Two or more.
    batch : int
        Samples a call.
    plan : callable
        Returns a new plan for a device and a batch.

    Attributes
    ----------
    shares : list of int
        Samples of each device, in the order of the rows: as many each where the
        devices are alike, else in proportion to how fast they ran as many.
    turns : threading.Lock
        As of `Plan`.
    """

    def __init__(
        self,
        network: Model,
        devices: Sequence[Device],
        batch: int,
        plan: Callable[[Device, int], Plan],
    ) -> None:
        self.network = network
        self.devices = tuple(devices)
        self.batch = batch
        speeds = [1.0] * len(devices)
        if not alike(devices) and batch >= len(devices):
            even = -(-batch // len(devices))
            speeds = [1 / _seconds(plan(device, even)) for device in devices]
        self.shares = shares(batch, speeds)
        self._plans: list[tuple[Plan, slice]] = []
        first = 0
        for device, count in zip(devices, self.shares, strict=True):
            if count:
                rows = slice(first, first + count)
                self._plans.append((plan(device, count), rows))
            first += count
        self._lock = threading.Lock()
        self._double: ParallelPlan | None = None
        self.turns = threading.Lock()

    @property
    def _order(self) -> list[tuple[Plan, slice]]:
        # What runs in the calling thread, on a CPU, holds up those that come after it.
        return sorted(self._plans, key=lambda pair: pair[0].device.type == "cpu")

    def explain(self) -> str:
        """Return which device has which share, and of each plan why it is as it is."""
        parts = [told(self.devices, self.shares, "samples")]
        return "\n\n".join([*parts, *(plan.explain() for plan, _ in self._plans)])

    def __call__(self, x: Array, out: Array | None = None) -> Array:
        """Return the outputs [batch, n_out] for inputs [batch, n_in] of the dtype.

        Parameters
        ----------
        x : ndarray, shape [batch, n_in]
            Inputs.
        out : ndarray, shape [batch, n_out], optional
            Where the outputs go; without it a new array is made.

        Raises
        ------
        InputError, DeviceError
            If the shape is wrong, or a device fails.
        """
        self.start(x)
        return self.finish(out)

    def start(self, x: Array) -> None:
        """Begin a call, as `Plan.start` does."""
        if x.ndim != 2 or len(x) != self.batch:
            raise InputError(
                f"x has shape {list(x.shape)}, expected {self.batch} samples"
            )
        self._lock.acquire()
        try:
            with ExitStack() as begun:  # none is left running, come what may
                for plan, rows in self._order:
                    plan.start(x[rows])
                    begun.callback(plan.finish)
                begun.pop_all()
        except BaseException:
            self._lock.release()
            raise

    def finish(self, out: Array | None = None) -> Array:
        """Wait for the call that was begun, as `Plan.finish` does."""
        if out is None:
            out = np.empty((self.batch, self.network.n_out), self.network.dtype)
        try:
            with ExitStack() as waits:  # for all of them, the first one first
                for plan, rows in reversed(self._order):
                    waits.callback(plan.finish, out[rows])
        finally:
            self._lock.release()
        return out

    def double(self) -> ParallelPlan:
        """Return one whose calls may run beside this one's, as `Plan.double` does."""
        if self._double is None:
            doubles = [(plan.double(), rows) for plan, rows in self._plans]
            self._double = self
            if all(plan.double() is not plan for plan, _ in self._plans):
                self._double = copy(self)
                self._double._plans, self._double._lock = doubles, threading.Lock()
        return self._double


def _seconds(plan: Plan) -> float:
    x = np.zeros((plan.batch, plan.network.n_in), plan.network.dtype)
    return least_seconds(lambda: plan(x))
