"""Launches bound to memory: what inference and training both replay.

A variant describes launches; here each becomes a kernel with its arguments, on the
queue of its place, and what must wait for what is said once.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.ir.ops import Span, Value
from clnet.opencl.device import Device
from clnet.opencl.launch import (
    Argument,
    ByValueInput,
    HelperTimeout,
    Launch,
    Scalar,
    Scratch,
    TimeoutFlag,
    ZeroCopyOutput,
)
from clnet.opencl.memory import Action, Memory
from clnet.opencl.session import Session
from clnet.variants.base import Config, Variant

Array = NDArray[Any]


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
    device : Device or None
        Which of the device's places runs it; None: the host.
    """

    span: Span
    variant: Variant
    config: Config
    device: Device | None


class Standby:
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


class Binding:
    """Launches of steps bound to memory, in the order in which they are enqueued.

    A base: what knows where parameters and the like are says so in `_memory`.

    Parameters
    ----------
    session : Session
        Where.
    steps : sequence of Step
        Of one batch and dtype.

    Attributes
    ----------
    session : Session
        Where.
    batch : int
        Samples a run.
    dtype : str
        Type of all values.
    """

    def __init__(self, session: Session, steps: Sequence[Step]) -> None:
        self.session = session
        self.batch = steps[0].span.batch
        self.dtype = steps[0].span.dtype
        self._values: dict[str, Memory] = {}
        self._scratch: dict[tuple[int, str], Memory] = {}
        self._helper_timeout: Memory | None = None
        self._timeout_flag: Memory | None = None
        self._uses: dict[str, list[tuple[Any, int]]] = {}
        self._by_value: dict[str, list[tuple[Any, int]]] = {}
        self._zero_copy: dict[str, list[tuple[Any, int]]] = {}
        self._scalars: dict[str, list[Callable[[float], None]]] = {}
        self._standbys: list[Standby] = []
        self._actions: list[Action] = []
        self._used: set[Device] = set()  # whose queues launches are enqueued on
        self._busy: list[Device] = []  # those of them that may still be busy

    def write(self, value: Value, rows: Array) -> None:
        """Fill the device's memory of a value by its rows [rows, width], and wait."""
        whole = np.zeros((len(rows), value.stride), self.dtype)
        whole[:, : value.width] = rows
        self._value(value).write(self.session, whole)

    def _memory(self, argument: Argument) -> Memory:
        """Return the memory that an argument names, made at its first use."""
        raise TypeError(f"{argument!r} is no argument of a launch here")

    def _value(self, value: Value) -> Memory:
        if value.name not in self._values:
            rows = value.height(self.batch)
            size = rows * value.stride * np.dtype(self.dtype).itemsize
            self._values[value.name] = Memory(self.session, size)
        return self._values[value.name]

    def _ready(self, step: Step, launches: Iterable[Launch]) -> None:
        """Append a wait where a step would not find those before at their end.

        Only the order of one queue makes launches wait for each other.
        """
        queues = {launch.device or step.device for launch in launches}
        if self._busy and {*self._busy, *queues} != {step.device}:
            self._wait()

    def _append(self, action: Action, launch: Launch, place: Device) -> None:
        self._actions.append(action)
        if launch.standby:  # on a queue of its own
            return
        self._used.add(place)
        if place not in self._busy:
            self._busy.append(place)

    def _wait(self) -> None:
        """Append the wait for the places that ran since the last one."""
        self._actions += self._ends()

    def _ends(self) -> list[Action]:
        """Return the waits for the places that ran since the last one."""
        # The one enqueued last first: a companion in the calling thread is done.
        busy, self._busy = self._busy, []
        return [self.session.queues[place].finish for place in reversed(busy)]

    def _handle_helper_timeout(self) -> None:
        """Wait for the standby launches if a kernel's wait for them hit its bound."""
        assert self._helper_timeout is not None
        if self._helper_timeout.first(self.session):
            for standby in self._standbys:
                standby.finish()
            self._helper_timeout.write(self.session, np.zeros(1, np.int32))

    def timed_out(self) -> bool:
        """Return whether a kernel's wait has hit its bound since this was last asked.

        Where kernels wait for each other, this waits for all launches.
        """
        distress = self._timeout_flag
        if distress is None:
            return False
        if distress.array is not None or len(self.session.queues) > 1:
            self.session.finish()
        found = bool(distress.first(self.session))
        if found:
            distress.write(self.session, np.zeros(1, np.int32))
        return found

    def _bound(self, number: int, launch: Launch, place: Device) -> Action:
        """Return the enqueueing of a launch of the numbered step."""
        kernel = self.session.kernel(launch, place)
        for index, argument in enumerate(launch.arguments):
            kernel.set_arg(index, self._resolved(number, argument))
            if isinstance(argument, ByValueInput):
                uses = self._by_value.setdefault(argument.value.name, [])
                uses.append((kernel, index))
            if isinstance(argument, ZeroCopyOutput):
                uses = self._zero_copy.setdefault(argument.value.name, [])
                uses.append((kernel, index))
            if isinstance(argument, Value):
                self._uses.setdefault(argument.name, []).append((kernel, index))
            if isinstance(argument, Scalar):
                setting = partial(set_number, kernel, index, self._kind(argument))
                self._scalars.setdefault(argument.name, []).append(setting)
        if launch.standby:
            standby = Standby(self.session, place, kernel, launch)
            self._standbys.append(standby)
            weakref.finalize(self, standby.finish)
            return standby.start
        return launching(
            self.session.queues[place], kernel, launch.global_size, launch.local_size,
            events=self.session.profiling,
        )

    def _resolved(self, number: int, argument: Argument) -> Any:
        if isinstance(argument, int):
            return np.int32(argument)
        if isinstance(argument, float):
            return np.dtype(self.dtype).type(argument)
        if isinstance(argument, Scalar):
            return self._kind(argument)(0)
        if isinstance(argument, Value):
            return self._value(argument).argument
        if isinstance(argument, Scratch):
            key = (number, argument.name)
            if key not in self._scratch:
                self._scratch[key] = Memory(self.session, argument.size)
            return self._scratch[key].argument
        if isinstance(argument, ByValueInput):
            return by_value_struct(argument.value)
        if isinstance(argument, ZeroCopyOutput):
            return np.uint64(0)
        if isinstance(argument, HelperTimeout):
            if self._helper_timeout is None:
                self._helper_timeout = Memory(self.session, np.dtype(np.int32).itemsize)
            return self._helper_timeout.argument
        if isinstance(argument, TimeoutFlag):
            if self._timeout_flag is None:
                self._timeout_flag = Memory(self.session, np.dtype(np.int32).itemsize)
            return self._timeout_flag.argument
        return self._memory(argument).argument

    def _kind(self, scalar: Scalar) -> Callable[[float], Any]:
        kinds: dict[str, Callable[[float], Any]] = {
            "int": np.int32, "uint": np.uint32, "real": np.dtype(self.dtype).type,
        }
        return kinds[scalar.kind]


def by_value_struct(value: Value) -> Array:
    """Return an empty struct of ``by_value_input.h`` as an array of float32."""
    return np.zeros(1 + value.width, np.float32)


def set_number(
    kernel: Any, index: int, kind: Callable[[float], Any], number: float
) -> None:
    """Set a kernel's argument to a number."""
    setting(kernel)(index, kind(number))


def setting(kernel: Any) -> Callable[[int, Any], None]:
    """Return what sets a kernel's argument to what a number or array holds."""
    # pyopencl's `set_arg` first tries other kinds of arguments: it takes 6.5 us where
    # what its own calls of kernels use takes 0.1 (2026.1).
    found: Callable[[int, Any], None] = getattr(kernel, "_set_arg_buf", kernel.set_arg)
    return found


def launching(
    queue: Any, kernel: Any, global_size: tuple[int, ...], local_size: tuple[int, ...],
    *, events: bool,
) -> Action:
    """Return what enqueues a kernel with the arguments that it has then.

    Without an event where none is asked for. pyopencl makes an event of every launch,
    and one costs the device as well: what follows starts 1.5 to 2 us later (NVIDIA's
    driver 580, H200).

    Parameters
    ----------
    queue : pyopencl.CommandQueue
        Where.
    kernel : pyopencl.Kernel
        What.
    global_size, local_size : tuple of int
        Work-items of the launch, and of a group.
    events : bool
        Whether each call must return its event; else it may return None.
    """
    import pyopencl as cl

    whole = partial(
        cl.enqueue_nd_range_kernel, queue, kernel, global_size, local_size
    )
    enqueue = None if events else _enqueue()
    if enqueue is None:
        return whole
    sizes = [(ctypes.c_size_t * len(size))(*size) for size in (global_size, local_size)]
    arguments = (
        ctypes.c_void_p(queue.int_ptr), ctypes.c_void_p(kernel.int_ptr),
        ctypes.c_uint(len(global_size)), None, *sizes, ctypes.c_uint(0), None, None,
    )
    return partial(_launch, enqueue, arguments, whole)


def _launch(enqueue: Action, arguments: tuple[Any, ...], whole: Action) -> None:
    if enqueue(*arguments):
        whole()  # which raises what is wrong


@cache
def _enqueue() -> Action | None:
    """Return OpenCL's own function of the library that pyopencl has loaded."""
    import pyopencl as cl

    try:
        # Python's lock is kept, as by pyopencl: no two threads' kernels then run in
        # their callers at once. Looked for in what the library depends on, too, but
        # not on Windows.
        found: Action = ctypes.PyDLL(cl._cl.__file__).clEnqueueNDRangeKernel
    except (AttributeError, OSError):
        return None
    return found
