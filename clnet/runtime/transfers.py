"""The host's arrays of the values of inference, and the copies between both sides."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.opencl.commands import argument_setter
from clnet.opencl.launch import ByValueInput, ZeroCopyOutput
from clnet.opencl.memory import (
    LARGE_COPY,
    copy_in,
    copy_out,
    copy_rows,
    staging_array,
)

if TYPE_CHECKING:
    from clnet.ir.op import Value
    from clnet.opencl.bound import Bound
    from clnet.opencl.commands import Action
    from clnet.opencl.launch import Launch
    from clnet.runtime.binding import LaunchSchedule

Array = NDArray[Any]

NOT_WRITTEN = b"\xff\xff\xff\xff"  # a NaN that no GPU computes: not stored yet
MAX_POLLS = 2000  # some hundred microseconds; then the host waits for the queue


class HostArrays:
    """The host's arrays of a binding's values."""

    def __init__(self, bound: Bound, schedule: LaunchSchedule) -> None:
        self._bound, self._schedule = bound, schedule
        self.inputs: dict[str, Array] = {}  # filled by the caller
        self.values: dict[str, Array] = {}
        # Of the present run: the store's may be invalid for others meanwhile.
        self.parameters: Array = np.empty(0)
        self.fixed: set[str] = set()  # values with one host array for all runs
        self._rows: dict[str, Array] = {}  # host arrays with their padding
        # Outputs that kernels store to host memory: the bytes of each, and their
        # pattern before the stores.
        self._zero_copies: list[tuple[memoryview, bytes]] = []
        self.arrived: bool = False  # whether the last run's were stored in time

    def array(self, value: Value) -> Array:
        """Return a value's host array [batch, width], made at its first use."""
        if value.name not in self.values:
            bound = self._bound
            if bound.session.device.fine_svm:
                memory = bound.memory(value)
                array = memory.view(bound.dtype, bound.batch, value)
            else:
                rows = self._rows[value.name] = self._staging_rows(value)
                array = rows[:, : value.width]
            self.values[value.name] = array
            self.fixed.add(value.name)
        return self.values[value.name]

    def _staging_rows(self, value: Value) -> Array:
        bound = self._bound
        return staging_array(bound.session, (bound.batch, value.stride), bound.dtype)

    def upload(self, value: Value) -> None:
        """Append the upload of a value."""
        session, memory = self._bound.session, self._bound.memory(value)
        actions = self._schedule.actions
        is_input = value.name in self.inputs
        if memory.array is not None:
            if not is_input:
                view = memory.view(self._bound.dtype, self._bound.batch, value)
                actions.append(partial(self._copy_to, view, value.name))
            return
        rows = self._rows[value.name] if is_input else self._staging_rows(value)
        if not is_input:
            actions.append(partial(self._copy_to, rows[:, : value.width], value.name))
        copy = copy_in(session, memory, rows)
        blocking = len(session.queues) > 1  # a kernel on another queue may read it
        actions.append(partial(copy, is_blocking=True) if blocking else kept(copy))

    def _copy_to(self, target: Array, name: str) -> None:
        np.copyto(target, self.values[name])

    def download(self, value: Value) -> Action | None:
        """Return the download of a value, or None if the host shares its memory."""
        session, memory = self._bound.session, self._bound.memory(value)
        self.array(value)
        if memory.array is not None:
            return None
        if self._schedule.busy != [session.device]:
            self._schedule.append_waits()
        return copy_out(session, memory, self._rows[value.name])

    def by_value_updates(
        self, launch: Launch, values: Container[Value]
    ) -> Iterator[Action]:
        """Yield the updates of by-value arguments of the launch that was bound last."""
        for argument in launch.arguments:
            if isinstance(argument, ByValueInput) and argument.value in values:
                struct = argument.struct()
                struct[:1].view(np.int32)[0] = 1
                kernel, index = self._bound.uses[argument.name][-1]
                set_struct = partial(argument_setter(kernel), index, struct)
                row = self.inputs[argument.value.name][0]
                yield partial(_set_by_value, struct[1:], row, set_struct)

    def take_zero_copies(self, outputs: list[Value]) -> bool:
        """Let kernels that can store outputs to host memory; return whether any do.

        These leave `outputs`. A run then begins by marking them as not stored.
        """
        for value in list(outputs):
            name = ZeroCopyOutput(value).name
            if name in self._bound.uses:
                row = self.array(value)[0]
                self._zero_copies.append(
                    (row.view(np.uint8).data, row.size * NOT_WRITTEN)
                )
                self._bound.set_argument(name, np.uint64(row.ctypes.data))
                outputs.remove(value)
        self._schedule.actions[:0] = [
            partial(output.__setitem__, slice(None), empty)
            for output, empty in self._zero_copies
        ]
        return bool(self._zero_copies)

    def poll(self) -> bool:
        """Return whether all zero-copy outputs are stored in time."""
        self.arrived = all(_arrives(output) for output, _ in self._zero_copies)
        return self.arrived

    def reader(self, name: str) -> Callable[[], Array]:
        """Return the function that returns an output as `result` does."""
        if name in self.fixed and self.values[name].nbytes < LARGE_COPY:
            return self.values[name].copy
        return partial(self.result, name)

    def result(
        self, name: str, out: Array | None = None, rows: int | None = None
    ) -> Array:
        """Return an output of the last run, in `out` or in an array of its own.

        Of the first `rows` samples; None: of all.
        """
        array = self.values[name]
        if rows is not None and rows < len(array):
            array = array[:rows]
        if out is None and array.base is None:
            return array
        if out is None and array.nbytes < LARGE_COPY:
            return array.copy()
        target = np.empty(array.shape, array.dtype) if out is None else out
        copy_rows(target, array)
        return target


def kept(copy: Action) -> Action:
    """Return the start of a copy, whose event is kept until the next start.

    An event waits for its copy when collected.
    """
    events: list[Any] = []

    def start() -> Any:
        events[:] = [copy(is_blocking=False)]
        return events[0]

    return start


def _set_by_value(values: Array, row: Array, set_struct: Action) -> None:
    values[...] = row
    set_struct()


def _arrives(output: memoryview) -> bool:
    """Return whether an output is stored in time."""
    return any(output.tobytes().find(NOT_WRITTEN) < 0 for _ in range(MAX_POLLS))
