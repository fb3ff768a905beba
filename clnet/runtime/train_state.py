"""Train states: parameters and the optimiser's state on a device, with snapshots."""

from __future__ import annotations

import threading
import weakref
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.opencl.memory import Memory
from clnet.opencl.session import device_errors

if TYPE_CHECKING:
    from clnet.nn.description import Relayout
    from clnet.opencl.session import Session

Array = NDArray[Any]


class TrainState:
    """Parameters and the optimiser's state on a device, with two snapshots."""

    def __init__(
        self, session: Session, parameters: Array, state: Array,
        relayout: Relayout | None = None, members: int = 1,
    ) -> None:
        self._session, self._members = session, members
        self._unread: weakref.ref[MemberStates] | None = None
        self._relayout = relayout
        self._initial: tuple[Array, ...] = ()  # on the host; read for their padding
        if relayout is not None:
            self._initial = parameters, state
            parameters = self._to_device_layout(parameters)
            state = self._to_device_layout(state)
        self._dtype = parameters.dtype.name
        self._slots = len(state)
        self.size: int = parameters.size
        self.parameters: Memory = Memory(session, parameters.nbytes)
        self.state: Memory = Memory(session, members * state.nbytes)
        self._gradients: Memory | None = None
        # States only if asked for.
        self._state_snapshots: list[Memory] = []
        self._states: list[Memory | Array | None] = [None, None]  # of the snapshots
        self.reset(parameters, state)

    def reset(self, parameters: Array, state: Array) -> None:
        """Start from other parameters and another state, in the device's layout."""
        self._states = [None, None]
        unread = None if self._unread is None else self._unread()
        if unread is not None:
            unread.read()
        self.parameters.write(self._session, parameters)
        if state.size:
            self.state.write_repeated(self._session, state, self._members)

    @cached_property
    def _snapshots(self) -> list[Memory]:
        """Memory for parameters, where a training takes snapshots."""
        size = self.parameters.size
        return [Memory(self._session, size) for _ in range(2)]

    @property
    def can_snapshot_state(self) -> bool:
        """Whether the device has memory for snapshots of the state."""
        return bool(self._state_snapshots) or self._session.free >= 2 * self._state_size

    @property
    def host_is_apart(self) -> bool:
        """Whether the host's memory, which takes snapshots too, is not the device's."""
        return self._session.device.type != "cpu"

    def snapshot(self, number: int, with_state: bool) -> None:
        """Take a snapshot after all enqueued steps."""
        self._states[number] = None
        self._snapshots[number].copy_from(self._session, self.parameters)
        if with_state and (self.can_snapshot_state or not self.host_is_apart):
            if not self._state_snapshots:
                self._state_snapshots = [
                    Memory(self._session, self._state_size) for _ in range(2)
                ]
            self._state_snapshots[number].copy_from(self._session, self.state)
            self._states[number] = self._state_snapshots[number]
        elif with_state:
            self._states[number] = self.state.read(
                self._session, self._slots * self.size, self._dtype
            )

    def restore(self, number: int) -> None:
        """Restore a snapshot after all enqueued steps; without a state, that stays."""
        self.parameters.copy_from(self._session, self._snapshots[number])
        state = self._states[number]
        if isinstance(state, Memory):
            self.state.copy_from(self._session, state)
        elif state is not None:
            self._session.finish()
            self.state.write(self._session, state)

    def kept_parameters(self, number: int) -> Array:
        """Return the parameters [size] of a snapshot."""
        flat = self._snapshots[number].read(self._session, self.size, self._dtype)
        return self._to_host_layout(flat, 0)

    @property
    def _state_size(self) -> int:
        return self._slots * self.size * np.dtype(self._dtype).itemsize

    @property
    def gradients(self) -> Memory:
        """The flat gradient buffer, zero at first; made at its first use."""
        if self._gradients is None:
            size = self.size * np.dtype(self._dtype).itemsize
            self._gradients = Memory(self._session, size)
        return self._gradients

    def replace(self, parameters: Array) -> None:
        """Replace the parameters [size] after all enqueued steps."""
        self._session.finish()
        self.parameters.write(self._session, self._to_device_layout(parameters))

    def member_parameters(self) -> Array:
        """Return the parameters of many networks [members, size of one]."""
        flat = self.parameters.read(self._session, self.size, self._dtype)
        return flat.reshape(self._members, -1)

    def member_states(self) -> MemberStates:
        """Return the states of many networks, which are read when asked for."""
        shape = self._members, self._slots, self.size // self._members
        states = MemberStates(self._session, self.state, shape, self._dtype)
        self._unread = weakref.ref(states)
        return states

    def values(self) -> tuple[Array, Array]:
        """Return parameters [size] and state [slots, size]."""
        parameters = self.parameters.read(self._session, self.size, self._dtype)
        state = self.state.read(self._session, self._slots * self.size, self._dtype)
        state = state.reshape(self._slots, self.size)
        return self._to_host_layout(parameters, 0), self._to_host_layout(state, 1)

    def _to_device_layout(self, values: Array) -> Array:
        """Return values [..., size] in the device's layout."""
        return values if self._relayout is None else self._relayout.forward(values)

    def _to_host_layout(self, values: Array, number: int) -> Array:
        """Return values in the host's layout; 0: parameters, 1: state."""
        if self._relayout is None:
            return values
        return self._relayout.backward(values, self._initial[number])


class MemberStates:
    """The optimiser's states of many networks, on the device until they are needed."""

    def __init__(
        self, session: Session, memory: Memory, shape: tuple[int, int, int], dtype: str
    ) -> None:
        self._session, self._shape, self._dtype = session, shape, dtype
        self._memory: Memory | None = memory
        self._values: Array = np.zeros(0, dtype)
        self._lock = threading.Lock()  # another thread's training may take the memory
        session.unread.add(self)

    def read(self) -> None:
        """Copy all states to the host: the memory is about to be used for others."""
        count = self._shape[0] * self._shape[1] * self._shape[2]
        with self._lock:
            if self._memory is None:
                return
            with device_errors(self._session):
                flat = self._memory.read(self._session, count, self._dtype)
            self._values, self._memory = flat.reshape(self._shape), None
            self._session.unread.discard(self)

    def of(self, member: int) -> Array:
        """Return a copy of one network's state [slots, size]."""
        _, slots, size = self._shape
        start = member * slots * size
        with self._lock:
            if self._memory is None:
                state: Array = self._values[member].copy()
                return state
            with device_errors(self._session):
                flat = self._memory.read(
                    self._session, slots * size, self._dtype, start
                )
        return flat.reshape(slots, size)
