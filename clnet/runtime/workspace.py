"""Workspaces: launches of kernels whose sizes change, bound to named buffers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.opencl.commands import Action, prepared_launch
from clnet.opencl.launch import Argument, Launch, Scalar, Scratch
from clnet.opencl.memory import Memory
from clnet.runtime.binding import set_scalar

if TYPE_CHECKING:
    from collections.abc import Callable

    from clnet.opencl.device import Device
    from clnet.opencl.session import Session

Array = NDArray[Any]


class Workspace:
    """The buffers of a session's launches, each by its name.

    Launches that name the same buffer share it. All are in float32.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.running: Device = session.device  # the last launch's
        self._memory: dict[str, Memory] = {}

    def bound(self, launch: Launch) -> BoundLaunch:
        """Return a launch with its buffers, made at their first use."""
        return BoundLaunch(self, launch)

    def memory(self, scratch: Scratch) -> Memory:
        """Return a buffer, zero at first."""
        found = self._memory.get(scratch.name)
        if found is None or found.size < scratch.size:
            found = self._memory[scratch.name] = Memory(self.session, scratch.size)
        return found

    def write(self, scratch: Scratch, values: Array) -> None:
        """Fill the start of a buffer, and wait."""
        self.session.finish()
        self.memory(scratch).write(self.session, np.ascontiguousarray(values))

    @property
    def size(self) -> int:
        """Bytes of all buffers."""
        return sum(memory.size for memory in self._memory.values())

    def read(self, scratch: Scratch, count: int) -> Array:
        """Return the first numbers of a buffer, after all enqueued launches."""
        return self.memory(scratch).read(self.session, count, "float32")


class BoundLaunch:
    """A launch bound to a workspace: call it with its changing scalars by name."""

    def __init__(self, workspace: Workspace, launch: Launch) -> None:
        session = workspace.session
        self._workspace, self._device = workspace, launch.device or session.device
        kernel = session.kernel(launch, self._device)
        self._setters: dict[str, Callable[[float], None]] = {}
        # A workspace may replace a buffer by a larger one: this holds its own.
        self._held: list[Memory] = []
        for index, argument in enumerate(launch.arguments):
            if isinstance(argument, Scalar):
                kind: dict[str, Callable[[float], Any]] = {
                    "int": np.int32, "uint": np.uint32, "real": np.float32,
                }
                self._setters[argument.name] = partial(
                    set_scalar, kernel, index, kind[argument.kind]
                )
            else:
                kernel.set_arg(index, self._resolved(workspace, argument))
        self._run: Action = prepared_launch(
            session.queues[self._device], kernel, launch.global_size, launch.local_size,
            events=session.profiling or session.device.type == "cpu",
            late_errors=session.device.late_errors,
        )

    def _resolved(self, workspace: Workspace, argument: Argument) -> Any:
        if isinstance(argument, int):
            return np.int32(argument)
        if isinstance(argument, float):
            return np.float32(argument)
        assert isinstance(argument, Scratch)
        memory = workspace.memory(argument)
        self._held.append(memory)
        return memory.argument

    def __call__(self, **scalars: float) -> None:
        """Enqueue it; each scalar is given at the first call, and keeps its value."""
        for name, number in scalars.items():
            self._setters[name](number)
        if self._workspace.running is not self._device:
            self._workspace.session.queues[self._workspace.running].finish()
            self._workspace.running = self._device
        self._run()
