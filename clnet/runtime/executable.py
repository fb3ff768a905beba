"""Executables: inference steps bound to buffers, run by plans and timed by the tuner.

All memory and kernels are made once. A run uploads, enqueues and downloads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from numpy.typing import NDArray

from clnet.ir.reference import silent_caller
from clnet.opencl.bound import Bound
from clnet.opencl.launch import PARAMETERS, ByValueInput, Constant, Packed, phases
from clnet.opencl.memory import has_nan
from clnet.runtime.binding import LaunchSchedule, PlanStep
from clnet.runtime.parameter_store import (
    NO_PARAMETERS,
    PackedMemory,
    ParameterStore,
    parameter_store,
)
from clnet.runtime.transfers import HostArrays, kept

if TYPE_CHECKING:
    from clnet.ir.op import Function, Op, Value
    from clnet.nn.model import Model
    from clnet.opencl.commands import Action
    from clnet.opencl.memory import Memory
    from clnet.opencl.session import Session

Array = NDArray[Any]
T = TypeVar("T")


class HostSteps:
    """Steps in NumPy, whose ops are bound to the parameters of the last run."""

    def __init__(self, host: HostArrays) -> None:
        self.ops: list[Op] = []
        self._host = host
        self._call: Callable[..., None] = silent_caller()
        self._parameters = NO_PARAMETERS
        self._functions: list[tuple[str, Function]] = []  # with the value that each has

    def run(self) -> None:
        """Compute the ops."""
        if self._host.parameters is not self._parameters:
            self._parameters = self._host.parameters
            self._functions = [
                (op.writes[0].name, op.bound(self._parameters)) for op in self.ops
            ]
        self._call(self._compute)

    def _compute(self) -> None:
        values, fixed = self._host.values, self._host.fixed
        for name, function in self._functions:
            if name in fixed:  # downloads of the next run write there
                values[name][...] = function(values)
            else:
                values[name] = function(values)


class Executable:
    """Inference steps bound to buffers."""

    def __init__(
        self,
        session: Session,
        network: Model,
        steps: Sequence[PlanStep],
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        on_device: bool = False,
    ) -> None:
        self.session: Session = session
        self.network: Model = network
        self.batch: int = steps[0].span.batch
        self.dtype: str = steps[0].span.dtype
        self.store: ParameterStore = parameter_store(session, network)
        self.bound: Bound = Bound(session, self.dtype, self.batch, {
            PARAMETERS.name: self.store.memory
        })
        self.schedule: LaunchSchedule = LaunchSchedule(session)
        self._actions = self.schedule.actions
        self.host: HostArrays = HostArrays(self.bound, self.schedule)
        self.x: dict[str, Array] = self.host.inputs
        self.result: Callable[..., Array] = self.host.result
        # Held while commands are enqueued: all read the same parameters.
        self.enqueuing: threading.RLock = threading.RLock()
        self.downloads: list[Action] = []
        self._waits: list[Action] = []
        self._ends: list[Action] = []  # of a run, after its actions
        # With pinned memory, a copy and a wait are faster than a blocking copy.
        self._blocking = session.device.type == "cpu"
        self._results: list[Any] = []  # events of the downloads of a started call
        self._buffers: dict[str, Any] = {}  # bound by `bind`
        names = {value.name for value in inputs}
        on_host, valid_on_device = (set(), names) if on_device else (names, set())
        if not on_device:
            for value in inputs:
                self.x[value.name] = self.host.array(value)
        with self.store.lock:
            self.store.add_reader(self)
            for number, step in enumerate(steps):
                self._add(number, step, on_host, valid_on_device)
        used = self.schedule.used
        if on_device and used != {session.device}:  # else its queue's order does
            self._actions.insert(0, session.queue.finish)
            self.schedule.append_waits()
        if not on_device:
            self._add_downloads(
                [value for value in outputs if value.name not in on_host]
            )
        if self.bound.has_helpers:
            self._ends.append(self.bound.handle_helper_timeout)

    def _add(
        self, number: int, step: PlanStep, on_host: set[str], on_device: set[str]
    ) -> None:
        """Append the transfers that a step needs, then its actions.

        `on_host` and `on_device` are the names of valid values on each side, updated.
        """
        written = {value.name for op in step.span.ops for value in op.writes}
        if step.device is None:
            self._add_on_host(step, on_host)
            on_host |= written
            on_device -= written
            return
        launches = step.variant.launches(step.span, step.config, step.device)
        self.schedule.order_after_busy(step, launches)
        arguments = list(chain.from_iterable(launch.arguments for launch in launches))
        by_value = {
            argument.value for argument in arguments
            if isinstance(argument, ByValueInput) and argument.value.name in self.x
        }
        for value in step.span.inputs:
            if value.name not in on_device and value not in by_value:
                self.host.upload(value)
                on_device.add(value.name)
        packed: dict[Packed, PackedMemory] = {}
        for argument in arguments:
            if isinstance(argument, Packed):
                packed[argument] = self.store.packed(argument)
                self.bound.buffers[argument.name] = packed[argument]
            elif isinstance(argument, Constant):
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
                        if isinstance(table, Constant)
                    ]
                    refills += [(packed[fill], action, tables) for fill in fills]
                else:
                    self._actions += self.host.by_value_updates(launch, by_value)
                    self.schedule.append(action, launch, device)
        for memory, action, tables in refills:  # all, or after a failure none
            memory.refill.append(action)
            memory.sources += tables
        on_device |= written
        on_host -= written

    def _add_on_host(self, step: PlanStep, on_host: set[str]) -> None:
        """Append a step in NumPy, to the one before if that is in NumPy too."""
        for value in step.span.inputs:
            if value.name not in on_host:
                copy = self.host.download(value)
                if copy is not None:
                    self._actions.append(partial(copy, is_blocking=True))
                on_host.add(value.name)
        self.schedule.append_waits()
        steps = host_steps(self._actions[-1]) if self._actions else None
        if steps is None:
            steps = HostSteps(self.host)
            self._actions.append(steps.run)
        steps.ops.extend(step.span.ops)

    def _add_downloads(self, outputs: list[Value]) -> None:
        """Add the ways of outputs on the device to the host, and the wait for them."""
        device, zero_copies = self.session.device, False
        if device.mapped_host_memory:
            zero_copies = self.host.take_zero_copies(outputs)
        copies = [self.host.download(value) for value in outputs]
        self.downloads = [copy for copy in copies if copy is not None]
        busy = self.schedule.busy
        if not self.downloads or busy != [device] or not self._blocking:
            self._waits += self.schedule.waits_for_busy()
        self._ends = [
            partial(copy, is_blocking=True) if self._blocking else kept(copy)
            for copy in self.downloads
        ]
        if zero_copies and not self.downloads:
            self._ends.append(self._poll_outputs)
        else:
            self._ends += self._waits

    def run(self, parameters: Array | None = None) -> None:
        """Compute the outputs from the inputs, and wait for host outputs."""
        self.with_parameters(self.compute, parameters)

    def compute(self) -> None:
        """Run by the parameters that the buffers hold; `enqueuing` is held."""
        for action in self._actions:
            action()
        for end in self._ends:
            end()

    def _poll_outputs(self) -> None:
        """Poll for the zero-copy outputs, then wait unless all arrived in time."""
        self.session.queue.flush()
        if not self.host.poll():
            for wait in self._waits:
                wait()

    def start(self, parameters: Array | None = None) -> None:
        """Start to compute the outputs, which are valid after `finish`."""
        self.host.arrived = False
        self.with_parameters(self._enqueue, parameters)
        self._results = [copy(is_blocking=False) for copy in self.downloads]
        for queue in self.session.queues.values():
            queue.flush()

    def finish(self) -> None:
        """Wait for the outputs of the started run, and for no later run."""
        one_queue = len(self.session.queues) == 1
        if self._results and one_queue and not self.bound.has_helpers:
            for event in self._results:
                event.wait()
            return
        if self.downloads and self._blocking:
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

    def with_parameters(
        self, work: Callable[[], T], parameters: Array | None = None
    ) -> T:
        """Do work that enqueues launches, all of which read the same parameters."""
        with self.enqueuing:
            flat = self.network.parameters
            if parameters is not None:
                flat = self.network.in_layout(parameters)
            self.host.parameters = flat
            if self.store.parameters is flat:
                return work()
        with self.store.filled(flat):
            return work()

    def result_timed_out(self, result: Array) -> bool:
        """Return whether a kernel's wait timed out and made results of the run NaN.

        The flag is read only if the result has NaN: a read takes as long as a launch.
        """
        return (
            self.bound.can_time_out and not self.host.arrived and has_nan(result)
            and self.bound.timed_out()
        )

    def bind(self, name: str, buffer: Any) -> None:
        """Bind a caller's buffer as the named value of all kernels."""
        bound_now = self._buffers.get(name)
        if bound_now is buffer or (bound_now is not None and bound_now == buffer):
            return
        for standby in self.bound.standbys:  # they may use an earlier call's buffer
            standby.finish()
        self.bound.set_argument(name, buffer)
        self._buffers[name] = buffer


def host_steps(action: Action) -> HostSteps | None:
    """Return the steps in NumPy that an action runs; None: it runs none."""
    owner = getattr(action, "__self__", None)
    return owner if isinstance(owner, HostSteps) else None
