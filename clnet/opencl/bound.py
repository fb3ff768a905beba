"""Launches bound to memory: one kernel each, its arguments found by their names."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.ir.op import Value
from clnet.opencl.commands import Action, Standby, argument_setter, prepared_launch
from clnet.opencl.launch import (
    HELPER_TIMEOUT,
    KEY,
    TIMEOUT_FLAG,
    Argument,
    Buffer,
    ByValueInput,
    Constant,
    Packed,
    Scalar,
    Scratch,
    ZeroCopyOutput,
)
from clnet.opencl.memory import Memory, filled_memory

if TYPE_CHECKING:
    from clnet.opencl.device import Device
    from clnet.opencl.launch import Launch
    from clnet.opencl.session import Session

Array = NDArray[Any]


class Bound:
    """Launches with the memory that they name.

    Memory that nobody has put into `buffers` is made at its first use, zero at first.
    """

    def __init__(
        self, session: Session, dtype: str = "float32", batch: int = 1,
        buffers: Mapping[str, Memory] | None = None,
    ) -> None:
        self.session: Session = session
        self.dtype: str = dtype
        self.batch: int = batch
        self.buffers: dict[str, Memory] = dict(buffers or {})
        self.standbys: list[Standby] = []
        # The kernels that take an argument of a name, and the argument's index.
        self.uses: dict[str, list[tuple[Any, int]]] = {}
        self._types: dict[str, Callable[[float], Any]] = {
            "int": np.int32, "uint": np.uint32, "real": np.dtype(dtype).type,
        }
        # Of each scalar: setter, index and type of the kernels that take it.
        self._scalars: dict[str, list[tuple[Action, int, Action]]] = {}
        self.numbers: dict[str, float] = {}

    def launch(self, launch: Launch, device: Device, step: int = 0) -> Action:
        """Return the action that enqueues a launch of the numbered step."""
        kernel = self.session.kernel(launch, device)
        for index, argument in enumerate(launch.arguments):
            kernel.set_arg(index, self._resolved(argument, step))
            if isinstance(argument, (int, float)):
                continue
            self.uses.setdefault(argument.name, []).append((kernel, index))
            if isinstance(argument, Scalar):
                setter = argument_setter(kernel), index, self._types[argument.type]
                self._scalars.setdefault(argument.name, []).append(setter)
        if launch.standby:
            standby = Standby(self.session, device, kernel, launch)
            self.standbys.append(standby)
            weakref.finalize(self, standby.finish)  # before its memory is freed
            return standby.start
        return prepared_launch(
            self.session.queues[device], kernel, launch.global_size, launch.local_size,
            # Of a CPU an event costs nothing, and pyopencl's own call takes 0.3 us
            # less than that by ctypes.
            events=self.session.profiling or device.type == "cpu",
            late_errors=device.late_errors,
        )

    def _resolved(self, argument: Argument, step: int) -> Any:
        """Return an argument as `set_arg` accepts it."""
        if isinstance(argument, (Value, Buffer, Scratch, Packed, Constant)):
            return self.memory(argument, step).argument
        if isinstance(argument, Scalar):
            return self._types[argument.type](self.numbers.get(argument.name, 0))
        if isinstance(argument, ByValueInput):
            return argument.struct()
        if isinstance(argument, ZeroCopyOutput):
            return np.uint64(0)  # no host memory
        return self._types["real" if isinstance(argument, float) else "int"](argument)

    def memory(
        self, argument: Value | Buffer | Scratch | Packed | Constant, step: int = 0
    ) -> Memory:
        """Return the memory that an argument of the numbered step names."""
        name = argument.name
        if isinstance(argument, Scratch):  # of one step
            name = f"{step} {name}"
        memory = self.buffers.get(name)
        if memory is None:
            if isinstance(argument, Constant):
                memory = filled_memory(self.session, argument.make())
            elif isinstance(argument, Value):
                item = np.dtype(argument.type_in(self.dtype)).itemsize
                size = argument.height(self.batch) * argument.stride * item
                memory = Memory(self.session, size)
            else:
                memory = Memory(self.session, argument.size)
            self.buffers[name] = memory
        return memory

    def replace(self, buffer: Buffer, memory: Memory) -> None:
        """Give a buffer of all launches another memory."""
        self.buffers[buffer.name] = memory
        self.set_argument(buffer.name, memory.argument)

    def set_argument(self, name: str, argument: Any) -> None:
        """Set an argument of all kernels that take one of this name."""
        for kernel, index in self.uses.get(name, ()):
            kernel.set_arg(index, argument)

    def set(self, *, key: Iterable[int] | None = None, **scalars: float) -> None:
        """Set scalars of the launches that are enqueued next, by their names.

        ``key0``, ``key1`` … are the words of `key`.
        """
        if key is not None:
            words = zip(KEY, key, strict=True)
            scalars.update({word.name: int(value) for word, value in words})
        numbers = self.numbers
        for name, number in scalars.items():
            if numbers.get(name) != number:
                numbers[name] = number
                for setter, index, number_type in self._scalars.get(name, ()):
                    setter(index, number_type(number))

    def write(self, value: Value, rows: Array) -> None:
        """Fill a value on the device by its rows [rows, width], and wait.

        Nothing else writes to its padding, which is zero.
        """
        memory, dtype = self.memory(value), value.type_in(self.dtype)
        if memory.array is not None:
            memory.view(dtype, len(rows), value)[...] = rows
            return
        padded = np.zeros((len(rows), value.stride), dtype)
        padded[:, : value.width] = rows
        memory.write(self.session, padded)

    @property
    def has_helpers(self) -> bool:
        """Whether kernels may time out in their wait for helpers."""
        return HELPER_TIMEOUT.name in self.buffers

    @property
    def can_time_out(self) -> bool:
        """Whether kernels may time out in their wait for other work-groups."""
        return TIMEOUT_FLAG.name in self.buffers

    def handle_helper_timeout(self) -> None:
        """Wait for the standby launches if a kernel's wait for them timed out.

        All other launches have ended.
        """
        memory = self.buffers[HELPER_TIMEOUT.name]
        array = memory.array  # shared memory needs no copy
        if memory.flag(self.session) if array is None else array.any():
            for standby in self.standbys:
                standby.finish()
            memory.clear_flag(self.session)

    def timed_out(self) -> bool:
        """Return whether a kernel's wait has timed out since the last query.

        Waits for all launches, if there are kernels that can time out.
        """
        memory = self.buffers.get(TIMEOUT_FLAG.name)
        if memory is None or not memory.flag(self.session):
            return False
        memory.clear_flag(self.session)
        return True
