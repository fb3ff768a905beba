"""Bindings: launches bound to memory, replayed by inference and training.

A variant describes launches. Here each becomes a kernel with its arguments on the queue
of its device, with the waits between queues.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.ir.op import Value
from clnet.opencl.commands import (
    Action,
    Standby,
    argument_setter,
    prepared_launch,
)
from clnet.opencl.launch import (
    Argument,
    ByValueInput,
    EpochTable,
    HelperTimeout,
    Launch,
    MemberTotals,
    Scalar,
    Scratch,
    TimeoutFlag,
    ZeroCopyOutput,
)
from clnet.opencl.memory import Memory

if TYPE_CHECKING:
    from clnet.ir.program import Span
    from clnet.opencl.device import Device
    from clnet.opencl.session import Session
    from clnet.variants.base import Config, Variant

Array = NDArray[Any]


@dataclass(frozen=True)
class Step:
    """A span of a program with the variant that computes it."""

    span: Span  # The ops
    variant: Variant  # Of all ops of the span
    config: Config  # A point of the variant's tuning space
    # The device or its companion that runs the step; None: the host
    device: Device | None


class Binding:
    """Launches of steps bound to memory, in the order in which they are enqueued.

    A base class: subclasses extend `_memory` by parameters, tables and the like.
    """

    def __init__(self, session: Session, steps: Sequence[Step]) -> None:
        self.session = session
        self.batch: int = steps[0].span.batch
        self.dtype: str = steps[0].span.dtype
        self._values: dict[str, Memory] = {}
        self._scratch: dict[tuple[int, str], Memory] = {}
        self._helper_timeout: Memory | None = None
        self._timeout_flag: Memory | None = None
        # Of each value or scalar, the kernels and argument indices that take it.
        self._uses: dict[str, list[tuple[Any, int]]] = {}
        self._by_value: dict[str, list[tuple[Any, int]]] = {}
        self._zero_copy: dict[str, list[tuple[Any, int]]] = {}
        # Of a type of argument, likewise: those whose memory may be replaced.
        self._replaceable: dict[type, list[tuple[Any, int]]] = {}
        self._scalars: dict[str, list[Callable[[float], None]]] = {}
        self._standbys: list[Standby] = []
        self._actions: list[Action] = []
        self._kernels: dict[Action, str] = {}  # the names of those that launch
        self._used: set[Device] = set()  # devices with launches
        self._busy: list[Device] = []  # devices with launches since the last wait

    def write(self, value: Value, rows: Array) -> None:
        """Fill a value on the device by its rows [rows, width], and wait.

        Nothing else writes to its padding, which is zero.
        """
        memory, dtype = self._value(value), value.type_in(self.dtype)
        if memory.array is not None:
            memory.view(dtype, len(rows), value)[...] = rows
            return
        padded = np.zeros((len(rows), value.stride), dtype)
        padded[:, : value.width] = rows
        memory.write(self.session, padded)

    def _memory(self, argument: Argument) -> Memory:
        """Return the memory that an argument names, made at its first use."""
        raise TypeError(f"{argument!r} is not supported here")

    def _value(self, value: Value) -> Memory:
        if value.name not in self._values:
            rows = value.height(self.batch)
            item = np.dtype(value.type_in(self.dtype)).itemsize
            size = rows * value.stride * item
            self._values[value.name] = Memory(self.session, size)
        return self._values[value.name]

    def _replace_memory(self, argument: type, memory: Memory) -> None:
        """Give all arguments of a type another memory."""
        for kernel, index in self._replaceable.get(argument, ()):
            kernel.set_arg(index, memory.argument)

    def _order_after_busy(self, step: Step, launches: Iterable[Launch]) -> None:
        """Append waits unless one queue's order already ends all earlier launches."""
        devices = {launch.device or step.device for launch in launches}
        if self._busy and {*self._busy, *devices} != {step.device}:
            self._append_waits()

    def _append(self, action: Action, launch: Launch, device: Device) -> None:
        self._actions.append(action)
        source, kernel = launch.source.rpartition("/")[2][:-3], launch.kernel
        self._kernels[action] = kernel if kernel == source else f"{source}: {kernel}"
        if launch.standby:  # on a queue of its own
            return
        self._used.add(device)
        if device not in self._busy:
            self._busy.append(device)

    def _append_waits(self) -> None:
        """Append the waits for all busy devices."""
        self._actions += self._waits_for_busy()

    def _waits_for_busy(self) -> list[Action]:
        """Return the waits for all busy devices, which are idle after them."""
        # The last one first: a companion in the calling thread has then ended.
        busy, self._busy = self._busy, []
        return [self.session.queues[device].finish for device in reversed(busy)]

    def _handle_helper_timeout(self) -> None:
        """Wait for the standby launches if a kernel's wait for them timed out.

        All other launches have ended.
        """
        assert self._helper_timeout is not None
        array = self._helper_timeout.array  # shared memory needs no copy
        if self._helper_timeout.flag(self.session) if array is None else array.any():
            for standby in self._standbys:
                standby.finish()
            self._helper_timeout.clear_flag(self.session)

    def timed_out(self) -> bool:
        """Return whether a kernel's wait has timed out since the last query.

        Waits for all launches, if there are kernels that can time out.
        """
        memory = self._timeout_flag
        if memory is None:
            return False
        found = memory.flag(self.session)
        if found:
            memory.clear_flag(self.session)
        return found

    def _bound(self, number: int, launch: Launch, device: Device) -> Action:
        """Return the action that enqueues a launch of the numbered step."""
        kernel = self.session.kernel(launch, device)
        for index, argument in enumerate(launch.arguments):
            kernel.set_arg(index, self._resolved(number, argument))
            use = kernel, index
            if isinstance(argument, ByValueInput):
                self._by_value.setdefault(argument.value.name, []).append(use)
            if isinstance(argument, ZeroCopyOutput):
                self._zero_copy.setdefault(argument.value.name, []).append(use)
            if isinstance(argument, Value):
                self._uses.setdefault(argument.name, []).append(use)
            if isinstance(argument, (EpochTable, MemberTotals)):
                self._replaceable.setdefault(type(argument), []).append(use)
            if isinstance(argument, Scalar):
                set_value = partial(set_scalar, kernel, index, self._type(argument))
                self._scalars.setdefault(argument.name, []).append(set_value)
        if launch.standby:
            standby = Standby(self.session, device, kernel, launch)
            self._standbys.append(standby)
            weakref.finalize(self, standby.finish)
            return standby.start
        return prepared_launch(
            self.session.queues[device], kernel, launch.global_size, launch.local_size,
            # Of a CPU an event costs nothing, and pyopencl's own call takes 0.3 us
            # less than that by ctypes.
            events=self.session.profiling or device.type == "cpu",
            late_errors=device.late_errors,
        )

    def _resolved(self, number: int, argument: Argument) -> Any:
        """Return an argument of the numbered step as `set_arg` accepts it."""
        if isinstance(argument, int):
            return np.int32(argument)
        if isinstance(argument, float):
            return np.dtype(self.dtype).type(argument)
        if isinstance(argument, Scalar):
            return self._type(argument)(0)
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

    def _type(self, scalar: Scalar) -> Callable[[float], Any]:
        types: dict[str, Callable[[float], Any]] = {
            "int": np.int32, "uint": np.uint32, "real": np.dtype(self.dtype).type,
        }
        return types[scalar.kind]


def by_value_struct(value: Value) -> Array:
    """Return an empty struct of ``by_value_input.h`` as an array of float32."""
    return np.zeros(1 + value.width, np.float32)


def set_scalar(
    kernel: Any, index: int, scalar_type: Callable[[float], Any], number: float
) -> None:
    """Set a kernel's argument to a number."""
    argument_setter(kernel)(index, scalar_type(number))
