"""Plans run to their results.

Nothing here chooses: a plan's steps come from `clnet.planner`. Everything a call needs
is made once, when the plan is; a call only copies in, enqueues, and copies out.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clnet.binding import Binding, Step
from clnet.checks import as_numbers
from clnet.device import Device
from clnet.errors import ClnetWarning, InputError
from clnet.memory import (
    Action,
    Memory,
    copy_in,
    copy_out,
    copy_rows,
    staging,
)
from clnet.ops import Span, Value
from clnet.reference import run_ops
from clnet.session import Session, failed, session
from clnet.variants.base import (
    Argument,
    Packed,
    Parameters,
    Table,
    may_fail,
    phases,
)

if TYPE_CHECKING:
    from clnet.network import Network

Array = NDArray[Any]
NANOSECOND = 1e-9  # seconds; the unit of OpenCL's clocks


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
    network : Network
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
        network: Network,
        steps: Sequence[Step],
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        on_device: bool = False,
    ) -> None:
        super().__init__(session, steps)
        self.network = network
        self.store = session.store(network)
        self.x: dict[str, Array] = {}
        self._host: dict[str, Array] = {}
        self._rows: dict[str, Array] = {}  # with their padding
        self._downloads: list[Action] = []
        self._waits: list[Action] = []
        # Of pinned memory a copy and a wait take less than a copy that waits.
        self._blocks = session.device.type == "cpu"
        self._copies: list[Any] = []  # a copy's event, when it goes, waits for its end
        self._buffers: dict[str, Any] = {}
        self._kept: list[Memory] = []  # shared with other executables
        fresh_on_host = set() if on_device else {value.name for value in inputs}
        fresh_on_device = {value.name for value in inputs} if on_device else set()
        if not on_device:
            for value in inputs:
                self.x[value.name] = self._host_array(value)
        with self.store.lock:
            for number, step in enumerate(steps):
                self._add(number, step, fresh_on_host, fresh_on_device)
        if on_device:
            if self._busy != [session.device]:  # else the order of its queue suffices
                self._wait()
            return
        wanted = [value for value in outputs if value.name not in fresh_on_host]
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
        self._enqueue()
        self._copies += [copy(is_blocking=self._blocks) for copy in self._downloads]
        for wait in self._waits:
            wait()
        if self._alarm is not None:
            self._heed_alarm()

    def start(self) -> None:
        """Begin to compute the outputs, which are there after `finish`.

        Raises
        ------
        DeviceError
            If the device fails.
        """
        self._enqueue()
        self._copies += [copy(is_blocking=False) for copy in self._downloads]
        for queue in self.session.queues.values():
            queue.flush()

    def finish(self) -> None:
        """Wait for the outputs of the call that was started."""
        if self._downloads and self._blocks:
            self.session.queue.finish()
        for wait in self._waits:
            wait()
        if self._alarm is not None:
            self._heed_alarm()

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
        if self._alarm is not None:
            self._heed_alarm()
        self.session.finish()
        return Trace([event for event in made if event is not None], seconds)

    def failed(self, result: Array) -> bool:
        """Return whether a kernel's wait hit its bound, as its results being NaN tell.

        Asked of the device only where there are such results: asking takes as long as
        a launch.
        """
        return (
            self._distress is not None
            and bool(np.isnan(result).any())
            and bool(self._distress.first(self.session))
        )

    def result(self, name: str) -> Array:
        """Return an output of the last run as an array of the caller's own."""
        array = self._host[name]
        if array.base is None:
            return array
        own = np.empty(array.shape, array.dtype)
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
        return self._host[value.name]

    def _add(
        self, number: int, step: Step, on_host: set[str], on_device: set[str]
    ) -> None:
        """Append a step's actions, and the transfers that it needs first."""
        written = {value.name for op in step.span.ops for value in op.writes}
        if step.place is None:
            for value in step.span.inputs:
                if value.name not in on_host:
                    self._download(value)
                    on_host.add(value.name)
            self._wait()
            self._actions.append(partial(self._run_on_host, step.span))
            on_host |= written
            on_device -= written
            return
        launches = step.variant.launches(step.span, step.config, step.place)
        self._ready(step, launches)
        for value in step.span.inputs:
            if value.name not in on_device:
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
                place = launch.place or step.place
                action = self._bound(number, launch, place)
                if launch.when == "parameters":
                    for argument in fills:
                        packed[argument].refill.append(action)
                else:
                    self._append(action, launch, place)
        on_device |= written
        on_host -= written

    def _run_on_host(self, span: Span) -> None:
        values = {value.name: self._host[value.name] for value in span.inputs}
        run_ops(span.ops, values, self.store.host)
        for value in span.outputs:
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

    def _memory(self, argument: Argument) -> Memory:
        if isinstance(argument, Parameters):
            return self.store.memory
        if isinstance(argument, Packed):
            return self.store.packed(argument)
        if isinstance(argument, Table):
            self._kept.append(self.store.table(argument))
            return self._kept[-1]
        return super()._memory(argument)


class Plan:
    """A network compiled for a device and a batch size: call it.

    Not made directly: `Network.compile` returns one.

    Parameters
    ----------
    network : Network
        What to run; when its parameters are replaced, the next call takes the new ones.
    device : Device
        Where.
    batch : int
        Samples a call.
    steps, device_steps : sequence of Step
        The cover for host arrays, and the one for device arrays, which has no host
        steps.
    spare_steps : callable
        Returns a cover whose kernels do not wait for each other.
    explanation : str
        Why these steps.
    """

    def __init__(
        self,
        network: Network,
        device: Device,
        batch: int,
        steps: Sequence[Step],
        device_steps: Callable[[], Sequence[Step]],
        spare_steps: Callable[[], Sequence[Step]],
        explanation: str,
    ) -> None:
        self.network = network
        self.device = device
        self.batch = batch
        self.steps = tuple(steps)
        self._explanation = explanation
        self._session = session(device)
        self._device_steps = device_steps
        self._spare_steps = spare_steps
        self._on_device: Executable | None = None
        self._lock = threading.Lock()
        program = network.program
        self._input, self._output = program.input, program.output
        self._dtype = np.dtype(network.dtype)
        self._shape = (batch, program.input.width)
        self._prepare()

    def _prepare(self) -> None:
        self._executable = Executable(
            self._session, self.network, self.steps, [self._input], [self._output]
        )
        self._x = self._executable.x[self._input.name]

    @property
    def queue(self) -> Any:
        """The `pyopencl.CommandQueue` of the device: make device arrays on it."""
        return self._session.queue

    def explain(self) -> str:
        """Return the chosen cover, the losers with their times, and the refusals."""
        return self._explanation

    def __call__(self, x: Any, out: Any = None) -> Any:
        """Return the outputs for inputs.

        Parameters
        ----------
        x : array_like or pyopencl.array.Array, shape [batch, n_in] or [n_in]
            Inputs; one sample may come without the batch axis if the batch is 1.
            A device array must be contiguous, of the network's dtype, and made in the
            context of `queue`; it is read in place.
        out : pyopencl.array.Array, shape [batch, n_out], optional
            Where a device array's result goes; without it a new one is made.

        Returns
        -------
        ndarray or pyopencl.array.Array, shape [batch, n_out] or [n_out]
            The outputs, on the side where the inputs were. Those on the device are NaN
            where kernels waited for each other in vain; on the host they never are.

        Raises
        ------
        InputError, DeviceError
            If a shape, type or context is wrong, or the device fails.
        """
        if type(x) is not np.ndarray or x.dtype is not self._dtype or out is not None:
            if hasattr(x, "queue"):
                return self._call_on_device(x, out)
            if out is not None:
                raise InputError(
                    "out is for device arrays; a host array's result is new"
                )
            x = as_numbers("x", x, self._dtype.name)
        rank = x.ndim
        if x.shape != self._shape:
            x = self._shaped(x)
        with self._lock:
            copy_rows(self._x, x)
            try:
                self._executable.run()
                y = self._outputs()
            except self._session.errors as error:
                raise failed(self.device, error) from error
        return y if rank == 2 else y[0]

    def start(self, x: Array) -> None:
        """Begin a call, whose outputs `finish` returns: the host is free meanwhile.

        Until then no other call can begin.

        Parameters
        ----------
        x : ndarray, shape [batch, n_in]
            Inputs.

        Raises
        ------
        InputError, DeviceError
            If the shape is wrong, or the device fails: nothing has begun then.
        """
        if x.shape != self._shape:
            x = self._shaped(x)
        self._lock.acquire()
        try:
            copy_rows(self._x, x)
            self._executable.start()
        except BaseException as error:
            self._lock.release()
            if isinstance(error, self._session.errors):
                raise failed(self.device, error) from error
            raise

    def finish(self) -> Array:
        """Wait for the call that was begun, and return its outputs [batch, n_out].

        Raises
        ------
        DeviceError
            If the device fails.
        """
        try:
            self._executable.finish()
            return self._outputs()
        except self._session.errors as error:
            raise failed(self.device, error) from error
        finally:
            self._lock.release()

    def _outputs(self) -> Array:
        """Return the outputs of the last run; if it failed, of one by the spare steps.

        It fails where kernels wait for others that do not run beside them after all, as
        where several programs share the device. The spare steps are then kept.
        """
        y = self._executable.result(self._output.name)
        if not self._executable.failed(y):
            return y
        names = ", ".join(
            step.variant.name for step in self.steps
            if step.place is not None and may_fail(
                step.variant.launches(step.span, step.config, step.place)
            )
        )
        text = (
            f"{names} waited in vain on {self.device.name}, which may have other work: "
            "the plan goes on, and has computed this call again, without it"
        )
        warnings.warn(text, ClnetWarning, stacklevel=4)
        self._explanation += f"\n\n{text}"
        x = self._x.copy()
        self.steps = tuple(self._spare_steps())
        self._device_steps = self._spare_steps
        self._on_device = None
        self._prepare()
        self._x[...] = x
        self._executable.run()
        return self._executable.result(self._output.name)

    def _shaped(self, x: Array) -> Array:
        if x.ndim == 1 and self.batch == 1 and x.shape[0] == self._shape[1]:
            return x[np.newaxis]
        raise InputError(
            f"x has shape {list(x.shape)}, expected {list(self._shape)}: this plan is "
            f"for a batch of {self.batch}"
        )

    def _call_on_device(self, x: Any, out: Any) -> Any:
        import pyopencl as cl
        import pyopencl.array

        self._check_array("x", x, self._input.width)
        if out is not None:
            self._check_array("out", out, self._output.width)
            if out.data == x.data:
                raise InputError("out is x's own memory, expected another array")
        with self._lock:
            if self._on_device is None:
                self._on_device = Executable(
                    self._session, self.network, self._device_steps(), [self._input],
                    [self._output], on_device=True,
                )
            try:
                if out is None:
                    out = pyopencl.array.empty(
                        self.queue, (self.batch, self._output.width), self._dtype
                    )
                self._on_device.bind(self._input.name, x.data)
                self._on_device.bind(self._output.name, out.data)
                if events := [*x.events, *out.events]:
                    cl.wait_for_events(events)
                self._on_device.run()
                if out.queue != self.queue:  # whose order tells its readers nothing
                    self.queue.finish()
            except self._session.errors as error:
                raise failed(self.device, error) from error
        return out if x.ndim == 2 else out.reshape(self._output.width)

    def _check_array(self, what: str, array: Any, width: int) -> None:
        import pyopencl.array

        if not isinstance(array, pyopencl.array.Array):
            raise InputError(
                f"{what} is of type {type(array).__name__}, expected a device array "
                "(pyopencl.array.Array)"
            )
        shapes = [(self.batch, width)] + ([(width,)] if self.batch == 1 else [])
        if array.shape not in shapes or array.dtype != self._dtype:
            raise InputError(
                f"{what} is a device array {list(array.shape)} of {array.dtype}, "
                f"expected {[self.batch, width]} of {self._dtype}"
            )
        if not array.flags.c_contiguous or array.offset:
            raise InputError(
                f"{what} is a device array that is not contiguous from its buffer's "
                "start: pass a copy"
            )
        if array.context != self._session.context:
            raise InputError(
                f"{what} lives in another OpenCL context than the plan: make it on "
                "plan.queue"
            )
