"""Steps bound to buffers, and run: what a plan calls, and what the tuner measures.

Everything a run needs is made once; it only copies in, enqueues, and copies out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clnet.errors import InputError
from clnet.ir.ops import Span, Value
from clnet.ir.reference import run_ops
from clnet.nn.model import Model
from clnet.opencl.launch import (
    Argument,
    ByValueInput,
    Packed,
    Parameters,
    Table,
    phases,
)
from clnet.opencl.memory import (
    LARGE,
    Action,
    Memory,
    copy_in,
    copy_out,
    copy_rows,
    staging,
)
from clnet.opencl.session import Session
from clnet.runtime.binding import Binding, Step, by_value_struct, setting
from clnet.runtime.parameter_store import parameter_store

Array = NDArray[Any]
NANOSECOND = 1e-9  # seconds; the unit of OpenCL's clocks
NOT_WRITTEN = b"\xff\xff\xff\xff"  # a NaN that no GPU computes: there is no answer yet
MAX_POLLS = 2000  # some hundred microseconds; then the host waits as for other results


class DeviceTime(NamedTuple):
    """How long the commands of one run took, by the device's clock.

    Attributes
    ----------
    span : float
        Seconds from the first command's start to the last one's end.
    busy : float
        Seconds of the commands alone, what lies between them left out.
    """

    span: float
    busy: float


class Trace(NamedTuple):
    """What one run was made of.

    Attributes
    ----------
    events : list of pyopencl.Event
        Of the device's commands, in the order in which they were enqueued.
    host_seconds : float
        Of the steps on the host.
    """

    events: list[Any]
    host_seconds: float


class Executable(Binding):
    """Steps bound to buffers: what a plan runs, and what the tuner measures.

    Parameters
    ----------
    session : Session
        Where.
    network : Model
        Whose parameters.
    steps : sequence of Step
        In order; every value must be written before it is read, or be an input.
    inputs, outputs : sequence of Value
        What the host provides, and what it wants.
    on_device : bool
        True: inputs and outputs stay in device memory, bound by `bind`.

    Attributes
    ----------
    x : dict of str to ndarray [batch, width]
        Host arrays of the inputs: fill them, then `run`.
    """

    def __init__(
        self,
        session: Session,
        network: Model,
        steps: Sequence[Step],
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        on_device: bool = False,
    ) -> None:
        super().__init__(session, steps)
        self.network = network
        self.store = parameter_store(session, network)
        self.x: dict[str, Array] = {}
        self._host: dict[str, Array] = {}
        self._arrays: set[str] = set()  # of these the host's array stays the same
        self._rows: dict[str, Array] = {}  # with their padding
        self._downloads: list[Action] = []
        self._waits: list[Action] = []
        # Of pinned memory a copy and a wait take less than a copy that waits.
        self._blocks = session.device.type == "cpu"
        self._results: list[Any] = []  # events of a started call's last copies
        self._copies: list[Any] = []  # a copy's event, when it goes, waits for its end
        self._buffers: dict[str, Any] = {}
        self._kept: list[Memory] = []  # shared with other executables
        # Of zero-copy outputs the words, and those that are not written yet.
        self._host_outputs: list[tuple[memoryview, bytes]] = []
        self._polled = False  # all was there long before a kernel's wait hits its bound
        fresh_on_host = set() if on_device else {value.name for value in inputs}
        fresh_on_device = {value.name for value in inputs} if on_device else set()
        if not on_device:
            for value in inputs:
                self.x[value.name] = self._host_array(value)
        with self.store.lock:
            for number, step in enumerate(steps):
                self._add(number, step, fresh_on_host, fresh_on_device)
        if on_device:
            if self._used != {session.device}:  # else its queue's order suffices
                self._actions.insert(0, session.queue.finish)
                self._wait()
            return
        wanted = [value for value in outputs if value.name not in fresh_on_host]
        if session.device.mapped_host_memory:
            wanted = [value for value in wanted if not self._is_zero_copy(value)]
        self._downloads = [
            copy for value in wanted if (copy := self._copy_out(value)) is not None
        ]
        if not self._downloads or self._busy != [session.device] or not self._blocks:
            self._waits = self._ends()

    def run(self) -> None:
        """Compute the outputs from the inputs, and wait for those on the host.

        Raises
        ------
        DeviceError
            If the device fails.
        """
        for words, nothing in self._host_outputs:
            words[:] = nothing
        self._enqueue()
        self._copies += [copy(is_blocking=self._blocks) for copy in self._downloads]
        self._polled = (
            bool(self._host_outputs) and not self._downloads and self._poll_outputs()
        )
        if not self._polled:
            for wait in self._waits:
                wait()
        if self._helper_timeout is not None:
            self._handle_helper_timeout()

    def _poll_outputs(self) -> bool:
        """Return whether all that kernels give the host is there, in a while."""
        self.session.queue.flush()
        for words, _ in self._host_outputs:
            looks = 0
            while words.tobytes().find(NOT_WRITTEN) >= 0:
                looks += 1
                if looks == MAX_POLLS:
                    return False
        return True

    def start(self) -> None:
        """Begin to compute the outputs, which are there after `finish`.

        Raises
        ------
        DeviceError
            If the device fails.
        """
        self._polled = False
        self._enqueue()
        self._results = [copy(is_blocking=False) for copy in self._downloads]
        self._copies += self._results
        for queue in self.session.queues.values():
            queue.flush()

    def finish(self) -> None:
        """Wait for the outputs of the call that was started, and for no later one's."""
        one_queue = len(self.session.queues) == 1
        if self._results and one_queue and self._helper_timeout is None:
            for event in self._results:
                event.wait()
            return
        if self._downloads and self._blocks:
            self.session.queue.finish()
        for wait in self._waits:
            wait()
        if self._helper_timeout is not None:
            self._handle_helper_timeout()

    def _enqueue(self) -> None:
        if self.store.version != self.network.version:
            self.store.refresh(self.network)
        self._copies = [action() for action in self._actions]

    def timed_run(self, first: Action | None = None) -> DeviceTime:
        """Compute as `run` does, and return how long the device took by its own clock.

        Parameters
        ----------
        first : callable, optional
            Enqueues other work, not counted, that keeps the device busy until the host
            has enqueued the run: else the device may wait for the host in between.

        Raises
        ------
        InputError
            If the session does not record times, or no step runs on the device.
        DeviceError
            If the device fails.
        """
        if not self.session.profiling:
            raise InputError("timed_run needs a session made with profiling=True")
        if self.store.version != self.network.version:
            self.store.refresh(self.network)
        if first is not None:
            first()
        found = [event.profile for event in self.traced_run().events]
        if not found:
            raise InputError("timed_run needs a step that runs on the device")
        span = max(one.end for one in found) - min(one.start for one in found)
        busy = sum(one.end - one.start for one in found)
        return DeviceTime(NANOSECOND * span, NANOSECOND * busy)

    def traced_run(self) -> Trace:
        """Compute as `run` does, and return what the device did for it.

        Raises
        ------
        DeviceError
            If the device fails.
        """
        seconds = 0.0
        if self.store.version != self.network.version:
            self.store.refresh(self.network)
        made: list[Any] = []
        for action in self._actions:
            start = time.perf_counter()
            made.append(action())
            if getattr(action, "func", None) == self._run_on_host:
                seconds += time.perf_counter() - start
        made += [copy(is_blocking=True) for copy in self._downloads]
        if self._helper_timeout is not None:
            self._handle_helper_timeout()
        self.session.finish()
        return Trace([event for event in made if event is not None], seconds)

    def failed(self, result: Array) -> bool:
        """Return whether a kernel's wait hit its bound, as its results being NaN tell.

        Asked of the device only where there are such results: asking takes as long as
        a launch.
        """
        return (
            self._timeout_flag is not None and not self._polled
            and bool(np.isnan(result).any())
            and self.timed_out()
        )

    def result(self, name: str, out: Array | None = None) -> Array:
        """Return an output of the last run as an array of the caller's, or `out`."""
        array = self._host[name]
        if out is None and array.base is None:
            return array
        if out is None and array.nbytes < LARGE:
            return array.copy()
        own = np.empty(array.shape, array.dtype) if out is None else out
        copy_rows(own, array)
        return own

    def bind(self, name: str, buffer: Any) -> None:
        """Let kernels read or write a caller's buffer as the named value."""
        if name in self._buffers and self._buffers[name] == buffer:
            return
        for standby in self._standbys:  # they know the buffer of an earlier call
            standby.finish()
        for kernel, index in self._uses[name]:
            kernel.set_arg(index, buffer)
        self._buffers[name] = buffer

    def _host_array(self, value: Value) -> Array:
        """Return the host's array [batch, width] of a value, made at first use."""
        if value.name not in self._host:
            if self.session.device.fine_svm:
                memory = self._value(value)
                array = memory.view(self.dtype, self.batch, value)
            else:
                shape = (self.batch, value.stride)
                rows = self._rows[value.name] = staging(self.session, shape, self.dtype)
                array = rows[:, : value.width]
            self._host[value.name] = array
            self._arrays.add(value.name)
        return self._host[value.name]

    def _add(
        self, number: int, step: Step, on_host: set[str], on_device: set[str]
    ) -> None:
        """Append a step's actions, and the transfers that it needs first."""
        written = {value.name for op in step.span.ops for value in op.writes}
        if step.device is None:
            for value in step.span.inputs:
                if value.name not in on_host:
                    self._download(value)
                    on_host.add(value.name)
            self._wait()
            self._actions.append(partial(self._run_on_host, step.span))
            on_host |= written
            on_device -= written
            return
        launches = step.variant.launches(step.span, step.config, step.device)
        self._ready(step, launches)
        given = {
            argument.value for launch in launches for argument in launch.arguments
            if isinstance(argument, ByValueInput) and argument.value.name in self.x
        }
        for value in step.span.inputs:
            if value.name not in on_device and value not in given:
                self._upload(value)
                on_device.add(value.name)
        packed = {
            argument: self.store.packed(argument)
            for launch in launches for argument in launch.arguments
            if isinstance(argument, Packed)
        }
        self._kept += packed.values()
        filled = {argument for argument, memory in packed.items() if memory.refill}
        for phase in phases(launches):
            self._ready(step, [one for one in phase if one.when != "parameters"])
            for launch in phase:
                fills = packed.keys() & launch.arguments
                if launch.when == "parameters" and filled.issuperset(fills):
                    continue  # another step's launches fill it
                place = launch.device or step.device
                action = self._bound(number, launch, place)
                if launch.when == "parameters":
                    for argument in fills:
                        packed[argument].refill.append(action)
                        packed[argument].sources += [
                            self.store.table(table) for table in launch.arguments
                            if isinstance(table, Table)
                        ]
                else:
                    self._actions += self._by_value_updates(given)
                    self._append(action, launch, place)
        on_device |= written
        on_host -= written

    def _by_value_updates(self, values: Iterable[Value]) -> Iterator[Action]:
        """Yield what puts values among the arguments of the kernels bound last."""
        for value in values:
            struct = by_value_struct(value)
            struct[:1].view(np.int32)[0] = 1
            for kernel, index in self._by_value.pop(value.name, []):
                sets = partial(setting(kernel), index, struct)
                row = self.x[value.name][0]
                yield partial(self._set_by_value, struct[1:], row, sets)

    def _set_by_value(self, values: Array, row: Array, sets: Action) -> None:
        values[...] = row
        sets()

    def _run_on_host(self, span: Span) -> None:
        values = {value.name: self._host[value.name] for value in span.inputs}
        run_ops(span.ops, values, self.store.host)
        for value in span.outputs:
            if value.name in self._arrays:  # the next call's download is there again
                self._host[value.name][...] = values[value.name]
            else:
                self._host[value.name] = values[value.name]

    def _upload(self, value: Value) -> None:
        """Append the copy of a value from the host to the device's memory."""
        memory = self._value(value)
        if memory.array is not None:
            device_view = memory.view(self.dtype, self.batch, value)
            if value.name not in self.x:
                self._actions.append(partial(self._copy_in, device_view, value.name))
            return
        blocking = len(self.session.queues) > 1  # another place's may be the reader
        if value.name in self.x:
            host = self._rows[value.name]
            copy = copy_in(self.session, memory, host)
            self._actions.append(partial(copy, is_blocking=blocking))
            return
        rows = staging(self.session, (self.batch, value.stride), self.dtype)
        self._actions.append(
            partial(self._copy_in, rows[:, : value.width], value.name)
        )
        copy = copy_in(self.session, memory, rows)
        self._actions.append(partial(copy, is_blocking=blocking))

    def _copy_in(self, target: Array, name: str) -> None:
        np.copyto(target, self._host[name])

    def _download(self, value: Value) -> None:
        """Append the copy of a value from the device's memory to the host."""
        copy = self._copy_out(value)
        if copy is not None:
            self._actions.append(partial(copy, is_blocking=True))

    def _copy_out(self, value: Value) -> Action | None:
        """Return the copy of a value to the host, or None if it shares the memory."""
        memory = self._value(value)
        self._host_array(value)
        if memory.array is not None:
            return None
        if self._busy != [self.session.device]:
            self._wait()
        return copy_out(self.session, memory, self._rows[value.name])

    def _is_zero_copy(self, value: Value) -> bool:
        """Let kernels give a value to the host themselves; False: none can."""
        uses = self._zero_copy.get(value.name, ())
        if uses:
            row = self._host_array(value)[0]
            words = memoryview(row.view(np.uint8))
            self._host_outputs.append((words, row.size * NOT_WRITTEN))
            for kernel, index in uses:
                setting(kernel)(index, np.uint64(row.ctypes.data))
        return bool(uses)

    def _memory(self, argument: Argument) -> Memory:
        if isinstance(argument, Parameters):
            return self.store.memory
        if isinstance(argument, Packed):
            return self.store.packed(argument)
        if isinstance(argument, Table):
            self._kept.append(self.store.table(argument))
            return self._kept[-1]
        return super()._memory(argument)
