"""Data parallelism: shares of samples among devices, and plans of several devices.

All devices are of one process, and each has a thread: while one copies the inputs of
its samples, the others compute theirs.
"""

from __future__ import annotations

import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from copy import copy
from dataclasses import replace
from itertools import accumulate
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.errors import InputError
from clnet.opencl.process import check_process
from clnet.runtime.plan import refuse_copy
from clnet.runtime.turn import Turn

if TYPE_CHECKING:
    from clnet.nn.model import Model
    from clnet.opencl.device import Device
    from clnet.opencl.discovery import Devices
    from clnet.runtime.plan import Plan

Array = NDArray[Any]

TRIALS = 3  # runs that measure a device's speed; the minimum time counts
MIN_SHARE = 0.02  # a device with a smaller share is left out: its overhead costs more


def alike(devices: Sequence[Device]) -> bool:
    """Return whether devices are equal but for their index: of one model and driver."""
    return len(set(map(_model, devices))) == 1


def _model(device: Device) -> Device:
    return replace(device, index="", companions=tuple(map(_model, device.companions)))


def device_of_rank(local: int, where: Devices) -> Devices:
    """Return the device of a machine's rank, number `local` of those there.

    They are spread over devices that are alike; one that is named by its number or a
    record is the same for all.
    """
    if not (where is None or (isinstance(where, str) and ":" not in where)):
        return where
    from clnet.opencl import discovery

    device = discovery.device(where)
    same = [other for other in discovery.devices() if alike([other, device])]
    return same[(same.index(device) + local) % len(same)] if device in same else device


def shares_of(n: int, speeds: Sequence[float]) -> list[int]:
    """Return each device's share of n samples, in proportion to its speed.

    A speed below `MIN_SHARE` of the sum counts as 0.
    """
    total = sum(speeds)
    used = [speed if speed >= MIN_SHARE * total else 0.0 for speed in speeds]
    used = used if any(used) else list(speeds)
    ends = [round(n * end / sum(used)) for end in accumulate(used)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def min_seconds(run: Callable[[], object]) -> float:
    """Return the minimum time of some runs, in seconds, after one to warm up."""
    run()
    seconds = []
    for _ in range(TRIALS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def shares_text(devices: Sequence[Device], counts: Sequence[int], what: str) -> str:
    """Return the devices' shares in words, for `explain`."""
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
        Of all plans.
    devices : sequence of Device
        Two or more.
    batch : int
        Samples per call.
    plan : callable
        Returns a new plan for a device and a batch.

    Attributes
    ----------
    shares : list of int
        Samples of each device, in the order of the rows: equal for devices that are
        alike, else in proportion to their speeds on equal shares.
    """

    calls_left = inf  # as of `Plan`

    def __init__(
        self,
        network: Model,
        devices: Sequence[Device],
        batch: int,
        plan: Callable[[Device, int], Plan],
    ) -> None:
        self.network = network
        self.devices: tuple[Device, ...] = tuple(devices)
        self.batch = batch
        speeds = [1.0] * len(devices)
        if not alike(devices) and batch >= len(devices):
            even = -(-batch // len(devices))
            speeds = [1 / _seconds(plan(device, even)) for device in devices]
        self.shares: list[int] = shares_of(batch, speeds)
        self._plans: list[tuple[Plan, slice]] = []
        first = 0
        for device, count in zip(devices, self.shares, strict=True):
            if count:
                rows = slice(first, first + count)
                self._plans.append((plan(device, count), rows))
            first += count
        self._threads = [ThreadPoolExecutor(1, "clnet-device") for _ in self._plans]
        self._turn = Turn()
        self._started_rows = batch
        self._twin: ParallelPlan | None = None
        self.alternation: threading.Lock = threading.Lock()

    __reduce__ = refuse_copy

    def _each(self, call: Callable[[Plan, slice], object]) -> None:
        """Call a function for each plan and its rows, in the device's thread, and wait.

        Plans whose rows the started call lacks are left out. The error of the first
        plan is raised, of those that failed.
        """
        calls = [
            thread.submit(call, *pair)
            for thread, pair in zip(self._threads, self._plans, strict=True)
            if pair[1].start < self._started_rows
        ]
        wait(calls)
        for finished in calls:
            finished.result()

    def explain(self) -> str:
        """Return the devices' shares, and the explanation of each plan."""
        parts = [shares_text(self.devices, self.shares, "samples")]
        return "\n\n".join([*parts, *(plan.explain() for plan, _ in self._plans)])

    def __call__(self, x: Array, out: Array | None = None) -> Array:
        """Return the outputs [batch, n_out] for inputs [batch, n_in] of the dtype.

        Parameters
        ----------
        x : ndarray, shape [batch, n_in]
            Inputs.
        out : ndarray, shape [batch, n_out], optional
            Receives the outputs; None: a new array.

        Raises
        ------
        InputError, DeviceError
            If the shape is wrong, or a device fails.
        """
        if x.ndim != 2 or len(x) != self.batch:
            raise self._wrong_shape(x)
        try:
            self.start(x)
            return self.finish(out)
        except BaseException:  # Ctrl-C may come between the two
            self.cancel()
            raise

    def start(self, x: Array, parameters: Array | None = None) -> None:
        """Start a call, as `Plan.start` does."""
        if parameters is None:
            parameters = self.network.parameters  # the same ones on all devices
        check_process()
        if x.ndim != 2 or not 0 < len(x) <= self.batch:
            raise self._wrong_shape(x)
        try:
            self._turn.begin()
            self._started_rows = len(x)
            self._each(lambda plan, rows: plan.start(x[rows], parameters))
        except BaseException:
            self.cancel()
            raise

    def finish(self, out: Array | None = None) -> Array:
        """Wait for the started call, as `Plan.finish` does."""
        shape = self._started_rows, self.network.n_out
        try:
            y = np.empty(shape, self.network.dtype) if out is None else out
            self._each(lambda plan, rows: plan.finish(y[rows]))
            self._turn.end()
        except BaseException:
            self.cancel()  # the other plans' calls too
            raise
        return y

    def _wrong_shape(self, x: Array) -> InputError:
        return InputError(
            f"x has shape {list(x.shape)}, expected {self.batch} samples"
        )

    def cancel(self) -> None:
        """End the call that this thread has started, as `Plan.cancel` does."""
        try:
            self._each(lambda plan, _: plan.cancel())
        finally:
            self._turn.end()

    def twin(self) -> ParallelPlan:
        """Return a second plan for double buffering, as `Plan.twin` does."""
        if self._twin is None:
            doubles = [(plan.twin(), rows) for plan, rows in self._plans]
            self._twin = self
            if all(plan.twin() is not plan for plan, _ in self._plans):
                self._twin = copy(self)
                self._twin._plans, self._twin._turn = doubles, Turn()
        return self._twin


def _seconds(plan: Plan) -> float:
    x = np.zeros((plan.batch, plan.network.n_in), plan.network.dtype)
    return min_seconds(lambda: plan(x))
