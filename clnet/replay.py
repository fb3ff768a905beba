"""A training program bound to device memory: launches made once, replayed each step.

Between steps only scalars change: nothing is allocated, and nothing moves between host
and device unless `read` or `write` is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.ops import Layout, Value
from clnet.runtime import Action, Memory, Session, Step
from clnet.variants.base import (
    Alarm,
    Argument,
    Gradients,
    Launch,
    Packed,
    Parameters,
    Scalar,
    Scratch,
    State,
    Table,
    in_order,
)

Array = NDArray[Any]


class Learnt:
    """What training changes: parameters and the optimiser's state, on a device.

    Parameters
    ----------
    session : Session
        Where.
    parameters : ndarray, shape [size]
        The flat buffer at first.
    state : ndarray, shape [slots, size]
        The optimiser's at first.
    """

    def __init__(self, session: Session, parameters: Array, state: Array) -> None:
        self._session = session
        self._dtype = parameters.dtype.name
        self._slots = len(state)
        self.size = parameters.size
        self.parameters = Memory(session, parameters.nbytes)
        self.state = Memory(session, state.nbytes)
        self._kept = [Memory(session, parameters.nbytes) for _ in range(2)]
        self.parameters.write(session, parameters)
        for kept in self._kept:
            kept.write(session, parameters)
        if state.size:
            self.state.write(session, state)

    def keep(self, queue: Any) -> None:
        """Enqueue a copy of the parameters, on the device; the last two are kept."""
        import pyopencl as cl

        self._kept.reverse()
        newest, now = self._kept[0], self.parameters
        options = {} if now.array is None else {"is_blocking": False}
        cl.enqueue_copy(queue, newest.argument, now.argument, **options)

    def values(self) -> tuple[Array, Array]:
        """Return parameters [size] and state [slots, size]."""
        parameters = self.parameters.read(self._session, self.size, self._dtype)
        state = self.state.read(self._session, self._slots * self.size, self._dtype)
        return parameters, state.reshape(self._slots, self.size)

    def kept(self) -> list[Array]:
        """Return the parameters of the last two calls of `keep`, the newest first."""
        return [
            memory.read(self._session, self.size, self._dtype) for memory in self._kept
        ]


class Replay:
    """Steps of one place bound to buffers.

    Parameters
    ----------
    session : Session
        Where.
    steps : sequence of Step
        Of `planner.plan_training`.
    layout : Layout
        The flat buffer's.
    learnt : Learnt
        Parameters and state that the steps read and change.
    """

    def __init__(
        self, session: Session, steps: Sequence[Step], layout: Layout, learnt: Learnt
    ) -> None:
        place = steps[0].place
        assert place is not None
        self._session = session
        self._place = place
        self.queue = session.queues[place]
        self.batch = steps[0].span.batch
        self._dtype = np.dtype(steps[0].span.dtype)
        self._kinds: dict[str, Callable[[float], Any]] = {
            "int": np.int32, "uint": np.uint32, "real": self._dtype.type,
        }
        self._learnt = learnt
        self._layout = layout
        self._memories: dict[tuple[str, Any], Memory] = {}
        self._uses: dict[str, list[tuple[Any, int, Any]]] = {}
        self._scalars: dict[str, float] = {}
        self._actions: list[Action] = []
        self._on_write: list[Action] = []
        self._stale = True  # what follows from the inputs alone
        for number, step in enumerate(steps):
            launches = step.variant.launches(step.span, step.config, place)
            for launch in in_order(launches):
                action = self._bound(number, launch)
                if launch.when == "inputs":
                    self._on_write.append(action)
                else:  # a step has always changed the parameters
                    self._actions.append(action)

    def set(self, **scalars: float) -> None:
        """Set what changes from step to step, by the names of `training_ops.SCALARS`.

        ``key``, a sequence, is set by its words ``key0``, ``key1`` …
        """
        for name, number in scalars.items():
            if self._scalars.get(name) != number:
                self._scalars[name] = number
                for kernel, index, kind in self._uses.get(name, ()):
                    kernel.set_arg(index, kind(number))

    def run(self) -> None:
        """Enqueue one step."""
        if self._stale:
            for action in self._on_write:
                action()
            self._stale = False
        for action in self._actions:
            action()

    def write(self, value: Value, rows: Array) -> None:
        """Fill a value by its rows [rows, width], and wait."""
        whole = np.zeros((len(rows), value.stride), self._dtype)
        whole[:, : value.width] = rows
        self._value(value).write(self._session, whole)
        self._stale = True

    def read(self, value: Value) -> Array:
        """Wait for all steps, and return a value [rows, width]."""
        self.queue.finish()
        rows = value.height(self.batch)
        flat = self._value(value).read(
            self._session, rows * value.stride, self._dtype.name
        )
        return flat.reshape(rows, value.stride)[:, : value.width]

    def read_gradients(self) -> Array:
        """Wait for all steps, and return the flat gradient buffer [size]."""
        self.queue.finish()
        return self._gradient_memory().read(
            self._session, self._layout.size, self._dtype.name
        )

    def _bound(self, number: int, launch: Launch) -> Action:
        import pyopencl as cl

        kernel = self._session.kernel(launch, self._place)
        for index, argument in enumerate(launch.arguments):
            if isinstance(argument, Scalar):
                kind = self._kinds[argument.kind]
                self._uses.setdefault(argument.name, []).append((kernel, index, kind))
                kernel.set_arg(index, kind(0))
            else:
                kernel.set_arg(index, self._resolved(number, argument))
        return partial(
            cl.enqueue_nd_range_kernel, self.queue, kernel, launch.global_size,
            launch.local_size,
        )

    def _resolved(self, number: int, argument: Argument) -> Any:
        if isinstance(argument, int):
            return np.int32(argument)
        if isinstance(argument, float):
            return self._dtype.type(argument)
        if isinstance(argument, Parameters):
            return self._learnt.parameters.argument
        if isinstance(argument, State):
            return self._learnt.state.argument
        if isinstance(argument, Gradients):
            return self._gradient_memory().argument
        if isinstance(argument, Value):
            return self._value(argument).argument
        if isinstance(argument, Table):
            return self._table(argument).argument
        if isinstance(argument, Packed):
            return self._memory(("packed", argument.key), argument.size).argument
        if isinstance(argument, Scratch):
            key = f"scratch {argument.name}"
            return self._memory((key, number), argument.size).argument
        if isinstance(argument, Alarm):  # no helpers that could be late
            return self._memory(("alarm", None), 4).argument
        raise TypeError(f"{argument!r} is no argument of a launch")

    def _table(self, table: Table) -> Memory:
        key = ("table", table.key)
        if key not in self._memories:
            values = table.make()
            self._memory(key, values.nbytes).write(self._session, values)
        return self._memories[key]

    def _value(self, value: Value) -> Memory:
        size = value.height(self.batch) * value.stride * self._dtype.itemsize
        return self._memory(("value", value.name), size)

    def _gradient_memory(self) -> Memory:
        size = self._layout.size * self._dtype.itemsize
        return self._memory(("gradients", None), size)

    def _memory(self, key: tuple[str, Any], size: int) -> Memory:
        if key not in self._memories:
            self._memories[key] = Memory(self._session, size)
        return self._memories[key]
