"""Executables: inference steps bound to buffers, run by plans and timed by the tuner.

All memory and kernels are made once. A run uploads, enqueues and downloads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

from clnet.ir.reference import silent_caller
from clnet.opencl.bound import Bound, by_value_struct
from clnet.opencl.commands import Action, argument_setter
from clnet.opencl.launch import (
    PARAMETERS,
    ByValueInput,
    Packed,
    Table,
    ZeroCopyOutput,
    phases,
)
from clnet.opencl.memory import (
    LARGE_COPY,
    Memory,
    copy_in,
    copy_out,
    copy_rows,
    has_nan,
    staging_array,
)
from clnet.runtime.binding import Schedule, Step
from clnet.runtime.parameter_store import (
    NO_PARAMETERS,
    PackedMemory,
    ParameterStore,
    parameter_store,
)
from clnet.runtime.trace import COPY, HOST, Command, Trace, kernel_name
from clnet.runtime.zero_copy import ZeroCopyOutputs

if TYPE_CHECKING:
    from clnet.ir.op import Function, Op, Value
    from clnet.nn.model import Model
    from clnet.opencl.launch import Launch
    from clnet.opencl.session import Session

Array = NDArray[Any]
T = TypeVar("T")


class HostSteps:
    """Steps in NumPy, whose ops are bound to the parameters of the last run."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.call: Callable[..., None] = silent_caller()
        self._parameters = NO_PARAMETERS
        self._functions: list[tuple[str, Function]] = []

    def functions(self, parameters: Array) -> list[tuple[str, Function]]:
        """Return the function of each op, with the name of the value it writes."""
        if parameters is not self._parameters:
            self._functions = [
                (op.writes[0].name, op.bound(parameters)) for op in self.ops
            ]
            self._parameters = parameters
        return self._functions


class Executable:
    """Inference steps bound to buffers."""

    def __init__(
        self,
        session: Session,
        network: Model,
        steps: Sequence[Step],
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        on_device: bool = False,
    ) -> None:
        self.session, self.network = session, network
        self.batch: int = steps[0].span.batch
        self.dtype: str = steps[0].span.dtype
        self.store: ParameterStore = parameter_store(session, network)
        self.bound = Bound(session, self.dtype, self.batch, {
            PARAMETERS.name: self.store.memory
        })
        self.schedule = Schedule(session)
        self._actions = self.schedule.actions
        self.parameters: Array = network.parameters
        self.enqueuing: threading.RLock = threading.RLock()
        self.x: dict[str, Array] = {}
        self._host: dict[str, Array] = {}
        self._fixed: set[str] = set()  # values with one host array for all runs
        self._rows: dict[str, Array] = {}  # host arrays with their padding
        self._downloads: list[Action] = []
        self._waits: list[Action] = []
        self._ends: list[Action] = []  # of a run, after its actions
        # With pinned memory, a copy and a wait are faster than a blocking copy.
        self._blocking = session.device.type == "cpu"
        self._results: list[Any] = []  # events of the downloads of a started call
        self._buffers: dict[str, Any] = {}  # bound by `bind`
        self._zero_copies = ZeroCopyOutputs()
        fresh_on_host = set() if on_device else {value.name for value in inputs}
        fresh_on_device = {value.name for value in inputs} if on_device else set()
        if not on_device:
            for value in inputs:
                self.x[value.name] = self._host_array(value)
        with self.store.lock:
            self.store.add_reader(self)
            for number, step in enumerate(steps):
                self._add(number, step, fresh_on_host, fresh_on_device)
        used = self.schedule.used
        if on_device and used != {session.device}:  # else its queue's order does
            self._actions.insert(0, session.queue.finish)
            self.schedule.append_waits()
        if not on_device:
            self._add_downloads(
                [value for value in outputs if value.name not in fresh_on_host]
            )
        if self.bound.has_helpers:
            self._ends.append(self.bound.handle_helper_timeout)

    def _add_downloads(self, outputs: Sequence[Value]) -> None:
        """Add the ways of outputs on the device to the host, and the wait for them."""
        device = self.session.device
        if device.mapped_host_memory:
            outputs = [value for value in outputs if not self._is_zero_copy(value)]
            self._actions[:0] = self._zero_copies.resets()
        self._downloads = [
            copy for value in outputs if (copy := self._copy_out(value)) is not None
        ]
        busy = self.schedule.busy
        if not self._downloads or busy != [device] or not self._blocking:
            self._waits += self.schedule.waits_for_busy()
        self._ends = [
            partial(copy, is_blocking=True) if self._blocking else _kept(copy)
            for copy in self._downloads
        ]
        if self._zero_copies and not self._downloads:
            self._ends.append(self._poll_outputs)
        else:
            self._ends += self._waits

    def run(self, parameters: Array | None = None) -> None:
        """Compute the outputs from the inputs, and wait for host outputs."""
        self._with_parameters(self.compute, parameters)

    def compute(self) -> None:
        """Run by the parameters that the buffers hold; `enqueuing` is held."""
        for action in self._actions:
            action()
        for end in self._ends:
            end()

    def _poll_outputs(self) -> None:
        """Poll for the zero-copy outputs, then wait unless all arrived in time."""
        self.session.queue.flush()
        if not self._zero_copies.poll():
            for wait in self._waits:
                wait()

    def start(self, parameters: Array | None = None) -> None:
        """Start to compute the outputs, which are valid after `finish`."""
        self._zero_copies.arrived = False
        self._with_parameters(self._enqueue, parameters)
        self._results = [copy(is_blocking=False) for copy in self._downloads]
        for queue in self.session.queues.values():
            queue.flush()

    def finish(self) -> None:
        """Wait for the outputs of the started run, and for no later run."""
        one_queue = len(self.session.queues) == 1
        if self._results and one_queue and not self.bound.has_helpers:
            for event in self._results:
                event.wait()
            return
        if self._downloads and self._blocking:
            self.session.queue.finish()
        for wait in self._waits:
            wait()
        self.wait_for_helpers()

    def wait_for_helpers(self) -> None:
        """Wait for helpers that outlast the enqueued runs."""
        if self.bound.has_helpers:
            self.bound.handle_helper_timeout()

    def _enqueue(self) -> None:
        for action in self._actions:
            action()

    def _with_parameters(
        self, work: Callable[[], T], parameters: Array | None = None
    ) -> T:
        """Do work that enqueues launches, all of which read the same parameters."""
        with self.enqueuing:
            if parameters is None:
                found = self.network.parameters
            else:
                found = self.network.in_layout(parameters)
            self.parameters = found
            if self.store.parameters is found:
                return work()
        with self.store.filled(found):
            return work()

    def traced_run(self) -> Trace:
        """Compute as `run` does, and return the commands of the run."""
        return self._with_parameters(self._traced_run)

    def _traced_run(self) -> Trace:
        commands: list[Command] = []

        def add(name: str, action: Action) -> None:
            start = time.perf_counter()
            event = action()
            if event is not None or name == HOST:
                seconds = time.perf_counter() - start
                commands.append(Command(name, start, seconds, event))

        for action in self._actions:
            host = self._is_host(action)
            launch = self.schedule.launches.get(action)
            name = HOST if host else COPY if launch is None else kernel_name(launch)
            add(name, action)
        for copy in self._downloads:
            add(COPY, partial(copy, is_blocking=True))
        self.session.finish()
        self.wait_for_helpers()
        return Trace(commands)

    def result_timed_out(self, result: Array) -> bool:
        """Return whether a kernel's wait timed out and made results of the run NaN.

        The flag is read only if the result has NaN: a read takes as long as a launch.
        """
        return (
            self.can_time_out and not self._zero_copies.arrived and has_nan(result)
            and self.bound.timed_out()
        )

    @property
    def can_time_out(self) -> bool:
        """Whether a kernel's wait may time out: see `result_timed_out`."""
        return self.bound.can_time_out

    def reader(self, name: str) -> Callable[[], Array]:
        """Return the function that returns an output as `result` does."""
        if name in self._fixed and self._host[name].nbytes < LARGE_COPY:
            return self._host[name].copy
        return partial(self.result, name)

    def result(self, name: str, out: Array | None = None) -> Array:
        """Return an output of the last run, in `out` or in an array of its own."""
        array = self._host[name]
        if out is None and array.base is None:
            return array
        if out is None and array.nbytes < LARGE_COPY:
            return array.copy()
        target = np.empty(array.shape, array.dtype) if out is None else out
        copy_rows(target, array)
        return target

    def bind(self, name: str, buffer: Any) -> None:
        """Bind a caller's buffer as the named value of all kernels."""
        bound_now = self._buffers.get(name)
        if bound_now is buffer or (bound_now is not None and bound_now == buffer):
            return
        for standby in self.bound.standbys:  # they may use an earlier call's buffer
            standby.finish()
        self.bound.set_argument(name, buffer)
        self._buffers[name] = buffer

    def _host_array(self, value: Value) -> Array:
        """Return a value's host array [batch, width], made at its first use."""
        if value.name not in self._host:
            if self.session.device.fine_svm:
                memory = self.bound.memory(value)
                array = memory.view(self.dtype, self.batch, value)
            else:
                rows = self._rows[value.name] = self._staging_rows(value)
                array = rows[:, : value.width]
            self._host[value.name] = array
            self._fixed.add(value.name)
        return self._host[value.name]

    def _staging_rows(self, value: Value) -> Array:
        return staging_array(self.session, (self.batch, value.stride), self.dtype)

    def _add(
        self, number: int, step: Step, on_host: set[str], on_device: set[str]
    ) -> None:
        """Append the transfers that a step needs, then its actions.

        `on_host` and `on_device` are the names of valid values on each side, updated.
        """
        written = {value.name for op in step.span.ops for value in op.writes}
        if step.device is None:
            for value in step.span.inputs:
                if value.name not in on_host:
                    self._download(value)
                    on_host.add(value.name)
            self.schedule.append_waits()
            last = self._actions[-1] if self._actions else None
            if not self._is_host(last):
                last = partial(self._run_on_host, HostSteps())
                self._actions.append(last)
            last.args[0].ops.extend(step.span.ops)
            on_host |= written
            on_device -= written
            return
        launches = step.variant.launches(step.span, step.config, step.device)
        self.schedule.order_after_busy(step, launches)
        by_value = {
            argument.value for launch in launches for argument in launch.arguments
            if isinstance(argument, ByValueInput) and argument.value.name in self.x
        }
        for value in step.span.inputs:
            if value.name not in on_device and value not in by_value:
                self._upload(value)
                on_device.add(value.name)
        packed: dict[Packed, PackedMemory] = {}
        for argument in chain.from_iterable(launch.arguments for launch in launches):
            if isinstance(argument, Packed):
                packed[argument] = self.store.packed(argument)
                self.bound.buffers[argument.name] = packed[argument]
            elif isinstance(argument, Table):
                self.bound.buffers[argument.name] = self.store.table(argument)
        filled = {argument for argument, memory in packed.items() if memory.refill}
        refills: list[tuple[PackedMemory, Action, list[Memory]]] = []
        for phase in phases(launches):
            self.schedule.order_after_busy(
                step, [launch for launch in phase if launch.when != "parameters"]
            )
            for launch in phase:
                fills = packed.keys() & launch.arguments
                if launch.when == "parameters" and filled.issuperset(fills):
                    continue  # another step's launches fill it
                device = launch.device or step.device
                action = self.bound.launch(launch, device, number)
                if launch.when == "parameters":
                    tables = [
                        self.bound.memory(table) for table in launch.arguments
                        if isinstance(table, Table)
                    ]
                    refills += [(packed[one], action, tables) for one in fills]
                else:
                    self._actions += self._by_value_updates(launch, by_value)
                    self.schedule.append(action, launch, device)
        for memory, action, tables in refills:  # all, or after a failure none
            memory.refill.append(action)
            memory.sources += tables
        on_device |= written
        on_host -= written

    def _by_value_updates(
        self, launch: Launch, values: Container[Value]
    ) -> Iterator[Action]:
        """Yield the updates of by-value arguments of the launch that was bound last."""
        for argument in launch.arguments:
            if isinstance(argument, ByValueInput) and argument.value in values:
                struct = by_value_struct(argument.value)
                struct[:1].view(np.int32)[0] = 1
                kernel, index = self.bound.uses[argument.name][-1]
                set_struct = partial(argument_setter(kernel), index, struct)
                row = self.x[argument.value.name][0]
                yield partial(self._set_by_value, struct[1:], row, set_struct)

    def _set_by_value(self, values: Array, row: Array, set_struct: Action) -> None:
        values[...] = row
        set_struct()

    def _run_on_host(self, steps: HostSteps) -> None:
        steps.call(self._compute_on_host, steps)

    def _compute_on_host(self, steps: HostSteps) -> None:
        host = self._host
        for name, function in steps.functions(self.parameters):
            if name in self._fixed:  # downloads of the next run write there
                host[name][...] = function(host)
            else:
                host[name] = function(host)

    def _is_host(self, action: Action | None) -> TypeGuard[partial[None]]:
        return getattr(action, "func", None) == self._run_on_host

    def _upload(self, value: Value) -> None:
        """Append the upload of a value."""
        memory = self.bound.memory(value)
        if memory.array is not None:
            device_view = memory.view(self.dtype, self.batch, value)
            if value.name not in self.x:
                self._actions.append(partial(self._copy_in, device_view, value.name))
            return
        if value.name in self.x:
            rows = self._rows[value.name]
        else:
            rows = self._staging_rows(value)
            self._actions.append(
                partial(self._copy_in, rows[:, : value.width], value.name)
            )
        copy = copy_in(self.session, memory, rows)
        blocking = len(self.session.queues) > 1  # a kernel on another queue may read it
        self._actions.append(
            partial(copy, is_blocking=True) if blocking else _kept(copy)
        )

    def _copy_in(self, target: Array, name: str) -> None:
        np.copyto(target, self._host[name])

    def _download(self, value: Value) -> None:
        """Append the download of a value."""
        copy = self._copy_out(value)
        if copy is not None:
            self._actions.append(partial(copy, is_blocking=True))

    def _copy_out(self, value: Value) -> Action | None:
        """Return the download of a value, or None if the host shares its memory."""
        memory = self.bound.memory(value)
        self._host_array(value)
        if memory.array is not None:
            return None
        if self.schedule.busy != [self.session.device]:
            self.schedule.append_waits()
        return copy_out(self.session, memory, self._rows[value.name])

    def _is_zero_copy(self, value: Value) -> bool:
        """Let kernels store a value to host memory; return whether any can."""
        name = ZeroCopyOutput(value).name
        if name not in self.bound.uses:
            return False
        row = self._host_array(value)[0]
        self._zero_copies.add(row)
        self.bound.set_argument(name, np.uint64(row.ctypes.data))
        return True


def _kept(copy: Action) -> Action:
    """Return the start of a copy, whose event is kept until the next start.

    An event waits for its copy when collected.
    """
    events: list[Any] = []

    def start() -> Any:
        events[:] = [copy(is_blocking=False)]
        return events[0]

    return start
