"""Buffers, queues, and plans run to their results.

Nothing here chooses: a plan's steps come from `clnet.planner`. Everything a call needs
is made once, when the plan is; a call only copies in, enqueues, and copies out.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clnet.checks import as_numbers
from clnet.device import Device
from clnet.errors import DeviceError, InputError
from clnet.ops import Span, Value
from clnet.program import build, source_text
from clnet.reference import run_ops
from clnet.variants.base import (
    Alarm,
    Argument,
    Config,
    Launch,
    Packed,
    Parameters,
    Scratch,
    Table,
    Variant,
    in_order,
)

if TYPE_CHECKING:
    from clnet.network import Network

Array = NDArray[Any]
Action = Callable[[], Any]
ALIGNMENT = 64  # bytes; a cache line, and the widest vector
NANOSECOND = 1e-9  # seconds; the unit of OpenCL's clocks


@dataclass(frozen=True)
class Step:
    """A span of a program, and how it is computed.

    Attributes
    ----------
    span : Span
        What.
    variant : Variant
        How.
    config : mapping of str to int
        The point of the variant's tuning space.
    place : Device or None
        Which of the device's places runs it; None: the host.
    """

    span: Span
    variant: Variant
    config: Config
    place: Device | None


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


class Session:
    """One context of a device and its companions, with a queue for each place.

    Parameters
    ----------
    device : Device
        As `clnet.device` gives it.
    profiling : bool
        Whether queues record the device's own times.
    """

    def __init__(self, device: Device, profiling: bool = False) -> None:
        import pyopencl as cl

        self.device = device
        self.profiling = profiling
        self.errors: tuple[type[Exception], ...] = (cl.Error, MemoryError)
        properties = cl.command_queue_properties.PROFILING_ENABLE if profiling else 0
        try:
            self.context = cl.Context([place.handle for place in device.places])
            self.queues = {
                place: cl.CommandQueue(self.context, place.handle, properties)
                for place in device.places
            }
        except cl.Error as error:
            raise DeviceError(f"{device.name} gives no context: {error}") from error
        self.queue = self.queues[device]
        self.allocated = 0
        self._programs: dict[tuple[str, Device], Any] = {}
        self._stores: weakref.WeakKeyDictionary[Network, ParameterStore] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def free(self) -> int:
        """Bytes that one more buffer may have."""
        device = self.device
        left = max(0, device.global_memory - self.allocated)
        return min(device.largest_buffer, left)

    def finish(self) -> None:
        """Wait for all that was enqueued."""
        for queue in self.queues.values():
            queue.finish()

    def kernel(self, launch: Launch, place: Device) -> Any:
        """Return a new kernel object for a launch; programs are built once."""
        import pyopencl as cl

        text = source_text(launch.source, launch.defines, place)
        program = self._programs.get((text, place))
        if program is None:
            program = build(self.context, place, text, launch.source)
            self._programs[text, place] = program
        return cl.Kernel(program, launch.kernel)

    def store(self, network: Network) -> ParameterStore:
        """Return the device's copy of a network's parameters."""
        found = self._stores.get(network)
        if found is None:
            found = self._stores[network] = ParameterStore(self, network)
        return found


def session(device: Device, profiling: bool = False) -> Session:
    """Return the process's session of a device; contexts are slow to make."""
    with _one_at_a_time:
        return _session(device, profiling)


_session = cache(Session)
_one_at_a_time = threading.Lock()


class Memory:
    """A buffer of a session, zero at first.

    Attributes
    ----------
    argument : object
        What a kernel's `set_arg` takes.
    array : ndarray of uint8 or None
        The host's view of the same bytes, where the device shares memory.

    Raises
    ------
    DeviceError
        If the device has not enough memory.
    """

    def __init__(self, session: Session, size: int) -> None:
        import pyopencl as cl

        size = max(size, 1)
        device = session.device
        if size > session.free:
            gc.collect()  # a network and its plans refer to each other
        if size > session.free:
            raise DeviceError(
                f"{device.name} has no room for {size} bytes: {session.free} are left; "
                "take a smaller batch or another device"
            )
        self.array: Array | None = None
        try:
            if device.fine_svm:
                flags = cl.svm_mem_flags
                self.array = cl.svm_empty(
                    session.context,
                    flags.READ_WRITE | flags.SVM_FINE_GRAIN_BUFFER,
                    (size,), np.uint8, alignment=ALIGNMENT,
                )
                self.array[:] = 0
                self.argument: Any = cl.SVM(self.array)
            else:
                self.argument = cl.Buffer(
                    session.context, cl.mem_flags.READ_WRITE, size
                )
                cl.enqueue_fill_buffer(
                    session.queue, self.argument, np.uint8(0), 0, size
                ).wait()
        except (cl.Error, MemoryError) as error:
            raise DeviceError(
                f"{device.name} has no room for {size} bytes: {error}"
            ) from error
        session.allocated += size
        shared = self.array is not None
        self._release = weakref.finalize(self, _released, session, size, shared)

    def write(self, session: Session, values: Array) -> None:
        """Copy an array to the start of the buffer, and wait for it."""
        import pyopencl as cl

        if self.array is not None:
            flat = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
            self.array[: flat.size] = flat
        else:
            cl.enqueue_copy(
                session.queue, self.argument, np.ascontiguousarray(values),
                is_blocking=True,
            )

    def read(self, session: Session, count: int, dtype: str) -> Array:
        """Return a copy of the buffer's first `count` numbers of a type."""
        import pyopencl as cl

        found = np.empty(count, dtype)
        if self.array is not None:
            found.view(np.uint8)[...] = self.array[: found.nbytes]
        elif count:
            cl.enqueue_copy(session.queue, found, self.argument, is_blocking=True)
        return found

    def first(self, session: Session) -> int:
        """Return the first byte."""
        return int(self.read(session, 1, "uint8")[0])

    def view(self, dtype: str, batch: int, value: Value) -> Array:
        """Return the host's view [batch, width] of a value in shared memory."""
        assert self.array is not None
        size = batch * value.stride * np.dtype(dtype).itemsize
        rows = self.array[:size].view(dtype).reshape(batch, value.stride)
        return rows[:, : value.width]


def _released(session: Session, size: int, shared: bool) -> None:
    if shared:  # unlike a buffer, it goes even while commands use it
        session.finish()
    session.allocated -= size


class PackedMemory(Memory):
    """A buffer of repacked parameters, and the launches that fill it.

    Attributes
    ----------
    refill : list of callable
        Enqueue the launches.
    """

    def __init__(self, session: Session, size: int) -> None:
        super().__init__(session, size)
        self.refill: list[Action] = []


class ParameterStore:
    """The device's copy of a network's parameters, as they are and repacked.

    Attributes
    ----------
    host : ndarray
        The network's own array, as of `version`.
    version : int
        The network's version that the copy holds; -1: none yet.
    lock : threading.RLock
        Held while buffers are added or refilled.
    """

    def __init__(self, session: Session, network: Network) -> None:
        self._session = session
        self.memory = Memory(session, network.parameters.nbytes)
        self.host: Array = network.parameters
        self.version = -1
        self.lock = threading.RLock()
        # Executables hold what they use; what none uses any more goes.
        self._tables: weakref.WeakValueDictionary[str, Memory] = (
            weakref.WeakValueDictionary()
        )
        self._packed: weakref.WeakValueDictionary[str, PackedMemory] = (
            weakref.WeakValueDictionary()
        )

    def table(self, table: Table) -> Memory:
        """Return the buffer of a constant array, uploaded at its first use."""
        memory = self._tables.get(table.key)
        if memory is None:
            values = table.make()
            memory = self._tables[table.key] = Memory(self._session, values.nbytes)
            memory.write(self._session, values)
        return memory

    def packed(self, packed: Packed) -> PackedMemory:
        """Return a repacked buffer, made at its first use."""
        memory = self._packed.get(packed.key)
        if memory is None:
            memory = PackedMemory(self._session, packed.size)
            self._packed[packed.key] = memory
            self.version = -1
        return memory

    def refresh(self, network: Network) -> None:
        """Upload the parameters if they are not the network's present ones."""
        with self.lock:
            if self.version == network.version:
                return
            self._session.finish()  # calls on device arrays may still be running
            version, self.host = network.version, network.parameters
            self.memory.write(self._session, self.host)
            for memory in list(self._packed.values()):
                for action in memory.refill:
                    action()
            self._session.finish()
            self.version = version


class _Standby:
    """A launch that runs beside calls, on a queue of its own.

    The memory that it uses must not go before it has ended: the executable's end waits
    for it.
    """

    def __init__(
        self, session: Session, place: Device, kernel: Any, launch: Launch
    ) -> None:
        import pyopencl as cl

        self._queue = cl.CommandQueue(session.context, place.handle)
        self._enqueue = partial(
            cl.enqueue_nd_range_kernel, self._queue, kernel, launch.global_size,
            launch.local_size,
        )
        self._complete = cl.command_execution_status.COMPLETE
        self._event: Any = None

    def start(self) -> None:
        """Start it unless it is still running."""
        event = self._event
        if event is None or event.command_execution_status == self._complete:
            self._event = self._enqueue()
            self._queue.flush()

    def finish(self) -> None:
        """Wait for its end."""
        self._queue.finish()


class Executable:
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
        self.session = session
        self.network = network
        self.store = session.store(network)
        self.batch = steps[0].span.batch
        self.dtype = steps[0].span.dtype
        self.x: dict[str, Array] = {}
        self._memories: dict[str, Memory] = {}
        self._host: dict[str, Array] = {}
        self._scratch: dict[tuple[int, str], Memory] = {}
        self._uses: dict[str, list[tuple[Any, int]]] = {}
        self._buffers: dict[str, Any] = {}
        self._kept: list[Memory] = []  # shared with other executables
        self._alarm: Memory | None = None
        self._standbys: list[_Standby] = []
        self._actions: list[Action] = []
        self._busy: list[Device] = []  # places whose queues may still be busy
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
        for value in outputs:
            if value.name not in fresh_on_host:
                self._download(value)
        self._wait()

    def run(self) -> None:
        """Compute the outputs from the inputs, and wait for those on the host.

        Raises
        ------
        DeviceError
            If the device fails.
        """
        if self.store.version != self.network.version:
            self.store.refresh(self.network)
        for action in self._actions:
            action()
        if self._alarm is not None:
            self._heed_alarm()

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
        made = [action() for action in self._actions]
        if self._alarm is not None:
            self._heed_alarm()
        self.session.finish()
        times = [event.profile for event in made if event is not None]
        if not times:
            raise InputError("timed_run needs a step that runs on the device")
        span = max(time.end for time in times) - min(time.start for time in times)
        busy = sum(time.end - time.start for time in times)
        return DeviceTime(NANOSECOND * span, NANOSECOND * busy)

    def _heed_alarm(self) -> None:
        """Wait for the standby launches if a kernel's wait for them hit its bound."""
        assert self._alarm is not None
        if self._alarm.first(self.session):
            for standby in self._standbys:
                standby.finish()
            self._alarm.write(self.session, np.zeros(1, np.int32))

    def result(self, name: str) -> Array:
        """Return an output of the last run as an array of the caller's own."""
        array = self._host[name]
        return array if array.base is None else array.copy()

    def load(self, value: Value, array: Array) -> None:
        """Write an array [batch, width] into the device's memory of a value."""
        rows = np.zeros((self.batch, value.stride), self.dtype)
        rows[:, : value.width] = array
        self._memory(value).write(self.session, rows)

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
                memory = self._memory(value)
                array = memory.view(self.dtype, self.batch, value)
            else:
                rows = np.zeros((self.batch, value.stride), self.dtype)
                array = rows[:, : value.width]
            self._host[value.name] = array
        return self._host[value.name]

    def _memory(self, value: Value) -> Memory:
        if value.name not in self._memories:
            size = self.batch * value.stride * np.dtype(self.dtype).itemsize
            self._memories[value.name] = Memory(self.session, size)
        return self._memories[value.name]

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
        # Only the order of one queue makes launches wait for each other.
        queues = {launch.place or step.place for launch in launches}
        if self._busy and {*self._busy, *queues} != {step.place}:
            self._wait()
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
        for launch in in_order(launches):
            if launch.when == "parameters" and filled.issuperset(
                packed.keys() & launch.arguments
            ):
                continue  # another step's launches fill it
            place = launch.place or step.place
            action = self._bound(number, launch, place)
            if action is not None:
                self._actions.append(action)
                if place not in self._busy and not launch.standby:
                    self._busy.append(place)
        on_device |= written
        on_host -= written

    def _run_on_host(self, span: Span) -> None:
        values = {value.name: self._host[value.name] for value in span.inputs}
        run_ops(span.ops, values, self.store.host)
        for value in span.outputs:
            self._host[value.name] = values[value.name]

    def _upload(self, value: Value) -> None:
        """Append the copy of a value from the host to the device's memory."""
        import pyopencl as cl

        memory = self._memory(value)
        if memory.array is not None:
            device_view = memory.view(self.dtype, self.batch, value)
            if value.name not in self.x:
                self._actions.append(partial(self._copy_in, device_view, value.name))
            return
        blocking = len(self.session.queues) > 1  # another place's may be the reader
        if value.name in self.x:
            host = self._host[value.name].base
            self._actions.append(
                partial(cl.enqueue_copy, self.session.queue, memory.argument, host,
                        is_blocking=blocking)
            )
            return
        rows = np.zeros((self.batch, value.stride), self.dtype)
        self._actions.append(
            partial(self._copy_in, rows[:, : value.width], value.name)
        )
        self._actions.append(
            partial(cl.enqueue_copy, self.session.queue, memory.argument, rows,
                    is_blocking=blocking)
        )

    def _copy_in(self, target: Array, name: str) -> None:
        np.copyto(target, self._host[name])

    def _download(self, value: Value) -> None:
        """Append the copy of a value from the device's memory to the host."""
        import pyopencl as cl

        memory = self._memory(value)
        array = self._host_array(value)
        if memory.array is None:
            if self._busy != [self.session.device]:
                self._wait()
            self._actions.append(
                partial(cl.enqueue_copy, self.session.queue, array.base,
                        memory.argument, is_blocking=True)
            )

    def _wait(self) -> None:
        """Append the wait for the places that ran since the last one."""
        # The one enqueued last first: a companion in the calling thread is done.
        for place in reversed(self._busy):
            self._actions.append(self.session.queues[place].finish)
        self._busy = []

    def _bound(self, number: int, launch: Launch, place: Device) -> Action | None:
        """Return the enqueueing of a launch; None for a repacking, which is stored."""
        import pyopencl as cl

        kernel = self.session.kernel(launch, place)
        for index, argument in enumerate(launch.arguments):
            kernel.set_arg(index, self._resolved(number, argument))
            if isinstance(argument, Value):
                self._uses.setdefault(argument.name, []).append((kernel, index))
        if launch.standby:
            standby = _Standby(self.session, place, kernel, launch)
            self._standbys.append(standby)
            weakref.finalize(self, standby.finish)
            return standby.start
        action = partial(
            cl.enqueue_nd_range_kernel, self.session.queues[place], kernel,
            launch.global_size, launch.local_size,
        )
        if launch.when == "parameters":
            for argument in launch.arguments:
                if isinstance(argument, Packed):
                    self.store.packed(argument).refill.append(action)
            return None
        return action

    def _resolved(self, number: int, argument: Argument) -> Any:
        if isinstance(argument, int):
            return np.int32(argument)
        if isinstance(argument, Value):
            return self._memory(argument).argument
        if isinstance(argument, Parameters):
            return self.store.memory.argument
        if isinstance(argument, Packed):
            return self.store.packed(argument).argument
        if isinstance(argument, Table):
            self._kept.append(self.store.table(argument))
            return self._kept[-1].argument
        if isinstance(argument, Scratch):
            key = (number, argument.name)
            if key not in self._scratch:
                self._scratch[key] = Memory(self.session, argument.size)
            return self._scratch[key].argument
        if isinstance(argument, Alarm):
            if self._alarm is None:
                self._alarm = Memory(self.session, np.dtype(np.int32).itemsize)
            return self._alarm.argument
        raise TypeError(f"{argument!r} is no argument of a launch")


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
        explanation: str,
    ) -> None:
        self.network = network
        self.device = device
        self.batch = batch
        self.steps = tuple(steps)
        self._explanation = explanation
        self._session = session(device)
        self._device_steps = device_steps
        self._on_device: Executable | None = None
        self._lock = threading.Lock()
        program = network.program
        self._input, self._output = program.input, program.output
        self._dtype = np.dtype(network.dtype)
        self._shape = (batch, program.input.width)
        self._executable = Executable(
            self._session, network, steps, [program.input], [program.output]
        )
        self._x = self._executable.x[program.input.name]

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
            The outputs, on the side where the inputs were.

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
            self._x[...] = x
            try:
                self._executable.run()
            except self._session.errors as error:
                raise failed(self.device, error) from error
            y = self._executable.result(self._output.name)
        return y if rank == 2 else y[0]

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


def failed(device: Device, error: BaseException) -> DeviceError:
    """Return the error for a device that failed while it ran."""
    return DeviceError(f"{device.name} failed while running: {error}")
