"""Direct calls: the shortest ways through a plan, with all that is constant decided.

A direct call converts nothing, waits for no other call and uploads no parameters. It
returns None where more than that is needed, or another call has the turn: the plan's
long way then answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.opencl.device_arrays import array_form, array_maker, wait_for_arrays
from clnet.opencl.process import check_process
from clnet.opencl.session import device_error

if TYPE_CHECKING:
    from clnet.ir.op import Value
    from clnet.runtime.executable import Executable
    from clnet.runtime.turn import Turn

Array = NDArray[Any]

DirectCall = Callable[[Array], Array | None]
"""Takes an ndarray of the plan's shape, and returns the outputs or None."""

CHECK_SECONDS = 0.01  # between two waits for flags of time-outs
KNOWN_EVENTS = 64  # of arrays, remembered at most


def host_call(
    executable: Executable, turn: Turn, dtype: np.dtype[Any],
    fill: Callable[[Array], None], read: Callable[[], Array],
) -> DirectCall:
    """Return the direct call between host arrays."""
    device, network = executable.session.device, executable.network
    errors = executable.session.errors
    enqueuing, store, host = executable.enqueuing, executable.store, executable.host

    def call(x: Array) -> Array | None:
        if x.dtype is not dtype:
            return None
        check_process()
        with enqueuing:
            parameters = network.parameters
            if turn.busy or store.parameters is not parameters:
                return None
            host.parameters = parameters
            fill(x)
            try:
                executable.compute()
                return read()
            except errors as error:
                raise device_error(device, error) from error

    return call


class DeviceCall:
    """The direct call between device arrays of the plan's own queue."""

    def __init__(self, executable: Executable, turn: Turn, x: Value, y: Value) -> None:
        session = executable.session
        dtype = np.dtype(executable.dtype)
        self._executable, self._turn = executable, turn
        self._x, self._y = x.name, y.name
        self._x_like, self._y_like = (
            array_form(session, (executable.batch, value.width), dtype)
            for value in (x, y)
        )
        self._new = array_maker()
        # Events of the queue by their ids: an event's queue costs a call of the driver.
        self._known: dict[int, Any] = {}
        self._check_at: float = inf
        self._note_check()

    def _note_check(self) -> None:
        """Note that the flag of time-outs was read."""
        if self._executable.bound.can_time_out:
            self._check_at = time.monotonic() + CHECK_SECONDS

    def new_output(self) -> Any:
        """Return a new device array [batch, n_out]."""
        return self._new(self._y_like)

    def __call__(self, x: Any, out: Any) -> Any:
        """Enqueue a call; return the outputs, or None: the long way is needed."""
        if not self._is_plain(x, self._x_like) or time.monotonic() >= self._check_at:
            return None
        if out is not None and (
            not self._is_plain(out, self._y_like) or out.base_data == x.base_data
        ):
            return None
        executable, turn = self._executable, self._turn
        with turn.lock, executable.enqueuing:
            parameters = executable.network.parameters
            if turn.owner is not None or executable.store.parameters is not parameters:
                return None
            executable.host.parameters = parameters
            try:
                if out is None:
                    out = self.new_output()
                executable.bind(self._x, x.base_data)
                executable.bind(self._y, out.base_data)
                executable.compute()
            except executable.session.errors as error:
                raise device_error(executable.session.device, error) from error
        return out

    def run(self, x: Any, out: Any) -> bool:
        """Enqueue a call in the order of the arrays' queues; return if it timed out.

        Waits for its end if its kernels can.
        """
        executable = self._executable
        executable.bind(self._x, x.data)
        executable.bind(self._y, out.data)
        wait_for_arrays(executable.session.queue, x, out)
        executable.run()
        timed_out = executable.bound.timed_out()
        self._note_check()
        return timed_out

    def _is_plain(self, array: Any, like: Any) -> bool:
        """Return whether an array needs no error and no barrier, and has a shape."""
        if not (
            type(array) is type(like) and array.queue is like.queue
            and array.shape == like.shape and array.strides == like.strides
            and array.dtype == like.dtype and not array.offset
        ):
            return False
        known = self._known
        for event in array.events:  # a generator would take longer than the loop
            if known.get(id(event)) is not event and not self._is_own(event):
                return False
        return True

    def _is_own(self, event: Any) -> bool:
        """Return whether an event is of the plan's queue, and remember it then."""
        if event.command_queue != self._y_like.queue:
            return False
        if len(self._known) == KNOWN_EVENTS:
            self._known.clear()
        self._known[id(event)] = event
        return True
