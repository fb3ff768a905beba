"""A training program bound to device memory: launches made once, replayed each step.

Between steps only scalars change: nothing is allocated, and nothing moves between host
and device unless `read` or `write` is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.ir.ops import Value
from clnet.nn.relayout import Relayout
from clnet.nn.storage.layout import Layout, round_up
from clnet.opencl.launch import (
    Argument,
    Gradients,
    Launch,
    Packed,
    Parameters,
    Scalar,
    State,
    Table,
    phases,
)
from clnet.opencl.memory import Action, Memory, part_alignment
from clnet.opencl.session import Session
from clnet.runtime.binding import Binding, Step
from clnet.variants.base import span_flops
from clnet.variants.packing import together

Array = NDArray[Any]

RUN_FLOPS = 10**10  # of many steps in a run: so that it ends, and Ctrl-C is heard


class TrainState:
    """What training changes: parameters and the optimiser's state, on a device.

    Parameters
    ----------
    session : Session
        Where.
    parameters : ndarray, shape [size]
        The flat buffer at first.
    state : ndarray, shape [slots, size]
        The optimiser's at first.
    relayout : Relayout or None
        Where all that is given and returned lies on the device; None: as it is given.

    Attributes
    ----------
    size : int
        Elements of the flat buffer on the device.
    """

    def __init__(
        self, session: Session, parameters: Array, state: Array,
        relayout: Relayout | None = None,
    ) -> None:
        self._session = session
        self._relayout = relayout
        self._by_value: tuple[Array, ...] = ()  # read for their padding
        if relayout is not None:
            self._by_value = parameters, state
            parameters, state = self._there(parameters), self._there(state)
        self._dtype = parameters.dtype.name
        self._slots = len(state)
        self.size = parameters.size
        self.parameters = Memory(session, parameters.nbytes)
        self.state = Memory(session, state.nbytes)
        self._gradients: Memory | None = None
        # The last two kept, the newest first; states only where `keep` is asked to.
        self._kept = [Memory(session, parameters.nbytes) for _ in range(2)]
        self._kept_states: list[Memory] = []
        self._whole = [False, False]
        self.parameters.write(session, parameters)
        for kept in self._kept:
            kept.write(session, parameters)
        if state.size:
            self.state.write(session, state)

    @property
    def keeps_states(self) -> bool:
        """Whether there is room to keep states."""
        size = self._slots * self.size * np.dtype(self._dtype).itemsize
        return bool(self._kept_states) or self._session.free >= 2 * size

    def keep(self, whole: bool) -> None:
        """Copy the parameters, once all steps are done; the last two are kept.

        Parameters
        ----------
        whole : bool
            Whether the state is kept as well, so that training can go on from there.
        """
        if whole and not self._kept_states:
            size = self._slots * self.size * np.dtype(self._dtype).itemsize
            self._kept_states = [Memory(self._session, size) for _ in range(2)]
        for kept in (self._kept, self._kept_states, self._whole):
            kept.reverse()
        self._whole[0] = whole
        self._kept[0].take(self._session, self.parameters)
        if whole:
            self._kept_states[0].take(self._session, self.state)

    def restore(self, number: int) -> None:
        """Go back to what was kept, once all steps are done.

        Parameters
        ----------
        number : int
            0: at the last call of `keep`; 1: at the one before. Parameters alone go
            back if no state was kept.
        """
        self.parameters.take(self._session, self._kept[number])
        if self._whole[number]:
            self.state.take(self._session, self._kept_states[number])

    @property
    def gradients(self) -> Memory:
        """The flat gradient buffer, zero at first; made when it is first asked for."""
        if self._gradients is None:
            size = self.size * np.dtype(self._dtype).itemsize
            self._gradients = Memory(self._session, size)
        return self._gradients

    def replace(self, parameters: Array) -> None:
        """Replace the parameters [size], once the steps so far are done."""
        self._session.finish()
        self.parameters.write(self._session, self._there(parameters))

    def values(self) -> tuple[Array, Array]:
        """Return parameters [size] and state [slots, size]."""
        parameters = self.parameters.read(self._session, self.size, self._dtype)
        state = self.state.read(self._session, self._slots * self.size, self._dtype)
        state = state.reshape(self._slots, self.size)
        return self._returned(parameters, 0), self._returned(state, 1)

    def _there(self, values: Array) -> Array:
        """Return values [..., size] as they lie on the device."""
        return values if self._relayout is None else self._relayout.moved(values)

    def _returned(self, values: Array, number: int) -> Array:
        """Return values as those lie that were given: parameters, or state."""
        if self._relayout is None:
            return values
        return self._relayout.moved_back(values, self._by_value[number])


class Replay(Binding):
    """Steps of a training program, none of the host's, bound to memory.

    Parameters
    ----------
    session : Session
        Where.
    steps : sequence of Step
        Of `planner.plan_training`.
    layout : Layout
        The flat buffer's.
    train_state : TrainState
        Parameters and state that the steps read and change.

    Attributes
    ----------
    many_at_once, many_epochs : bool
        Whether all launches can do many steps in a run, and steps of several epochs.
    """

    def __init__(
        self, session: Session, steps: Sequence[Step], layout: Layout,
        train_state: TrainState,
    ) -> None:
        super().__init__(session, steps)
        self._train_state = train_state
        self._layout = layout
        self._shared: dict[str, Memory] = {}  # tables and packed buffers
        self._numbers: dict[str, float] = {}
        self._places: dict[str, tuple[Memory, int, list[Any]]] = {}
        self._on_write: list[Action] = []
        self._stale = True  # what follows from the inputs alone
        calls: list[Launch] = []
        first: list[Launch] = []
        for number, step in enumerate(steps):
            assert step.device is not None
            launches = together(
                step.variant.launches(step.span, step.config, step.device)
            )
            first = first or launches
            for phase in phases(launches):
                self._ready(step, phase)
                for launch in phase:
                    place = launch.device or step.device
                    action = self._bound(number, launch, place)
                    if launch.when == "inputs":
                        self._on_write.append(action)
                    else:  # a step has always changed the parameters
                        self._append(action, launch, place)
            calls += phases(launches)[1]
        if self._helper_timeout is not None:
            self._wait()
        else:
            self._ready(steps[0], first)  # of the next run
        self.many_at_once, self.many_epochs = (
            all(
                any(isinstance(a, Scalar) and a.name == name for a in call.arguments)
                for call in calls if not call.standby
            )
            for name in ("steps", "apart")
        )
        flops = sum(span_flops(step.span) for step in steps)
        self._most = max(1, RUN_FLOPS // max(flops, 1))
        self.set(steps=1)

    def set(self, **scalars: float) -> None:
        """Set what changes from step to step, by the names of `training_ops.SCALARS`.

        ``key``, a sequence, is set by its words ``key0``, ``key1`` …
        """
        numbers = self._numbers
        for name, number in scalars.items():
            if numbers.get(name) != number:
                numbers[name] = number
                for setting in self._scalars.get(name, ()):
                    setting(number)

    def run(self) -> None:
        """Enqueue the launches once: a step, or as many as the scalar says."""
        if self._stale:
            for action in self._on_write:
                action()
            if self._on_write:
                self.session.finish()
            self._stale = False
        for action in self._actions:
            action()
        if self._helper_timeout is not None:
            self._handle_helper_timeout()

    def run_pass(self, samples: int, count: int = 0) -> int:
        """Enqueue steps, batch by batch, over the first samples of an epoch's order.

        In one run, or a few long ones, if all launches can do many steps at once; else
        in a run each.

        Parameters
        ----------
        samples : int
            How many.
        count : int
            Steps taken before.

        Returns
        -------
        int
            How many steps they make.
        """
        batch = self.batch
        steps = -(-samples // batch)
        together = min(steps, self._most) if self.many_at_once else 1
        for number in range(0, steps, together):
            first = number * batch
            left = samples - first
            self.set(
                first=first, samples=min(together * batch, left),
                seen=first + min(batch, left), fresh=number == 0,
                count=count + number, steps=min(together, steps - number),
            )
            self.run()
        return steps

    def epochs_a_run(self, samples: int) -> int:
        """Return how many epochs of so many samples one run can do; 0: not even one."""
        return self._most // -(-samples // self.batch) if self.many_epochs else 0

    def run_epochs(
        self, samples: int, count: int, epochs: int, place: int = 0
    ) -> None:
        """Enqueue several epochs of one order and rate, in as few runs as can be.

        Parameters
        ----------
        samples, count
            As of `run_pass`.
        epochs : int
            How many.
        place : int
            Of the first one's totals, if these have places.
        """
        steps = -(-samples // self.batch)
        together = self.epochs_a_run(samples)
        for number in range(0, epochs, together):
            self.set(
                first=0, samples=samples, seen=min(self.batch, samples), fresh=True,
                count=count + number * steps,
                steps=min(together, epochs - number) * steps,
                place=(place + number) * self._numbers.get("apart", 0),
            )
            self.run()

    def write(self, value: Value, rows: Array) -> None:
        """Fill a value by its rows [rows, width], and wait."""
        super().write(value, rows)
        self._stale = True

    def read(self, value: Value) -> Array:
        """Wait for all steps, and return a value [rows, width]."""
        memory = self._value(value)
        if memory.array is not None or len(self.session.queues) > 1:
            self.session.finish()  # else the copy waits in the one queue
        rows = value.height(self.batch)
        flat = memory.read(self.session, rows * value.stride, self.dtype)
        return flat.reshape(rows, value.stride)[:, : value.width]

    def spread(self, value: Value, places: int) -> None:
        """Give a value several places, of which `select_place` says where it is now."""
        rows = value.height(self.batch)
        size = rows * value.stride * np.dtype(self.dtype).itemsize
        pitch = round_up(size, part_alignment(self.session))
        memory = Memory(self.session, places * pitch)
        arguments = [memory.part(i * pitch, size) for i in range(places)]
        if self.many_epochs:  # kernels find each place themselves
            arguments = [memory.argument] * places
            self.set(apart=pitch // np.dtype(self.dtype).itemsize)
        self._places[value.name] = memory, pitch, arguments

    def select_place(self, value: Value, place: int) -> None:
        """Let the steps enqueued next find a value in one of its places."""
        argument = self._places[value.name][2][place]
        self.set(place=place * self._numbers.get("apart", 0))
        for kernel, index in self._uses[value.name]:
            kernel.set_arg(index, argument)

    def read_places(self, value: Value, count: int) -> Array:
        """Wait for all steps, and return a value in its first places [count, width]."""
        memory, pitch, _ = self._places[value.name]
        if memory.array is not None or len(self.session.queues) > 1:
            self.session.finish()
        apart = pitch // np.dtype(self.dtype).itemsize
        rows = np.zeros((count, apart), self.dtype)
        size = rows.size - apart + value.width
        rows.reshape(-1)[:size] = memory.read(self.session, size, self.dtype)
        return rows[:, : value.width]

    @property
    def may_fail(self) -> bool:
        """Whether kernels wait for each other."""
        return self._timeout_flag is not None

    def write_gradients(self, flat: Array) -> None:
        """Fill the flat gradient buffer [size], and wait."""
        self._memory(Gradients()).write(self.session, flat)

    def read_gradients(self) -> Array:
        """Wait for all steps, and return the flat gradient buffer [size]."""
        self.session.finish()
        memory = self._memory(Gradients())
        return memory.read(self.session, self._layout.size, self.dtype)

    def _memory(self, argument: Argument) -> Memory:
        if isinstance(argument, Parameters):
            return self._train_state.parameters
        if isinstance(argument, State):
            return self._train_state.state
        if isinstance(argument, Gradients):
            return self._train_state.gradients
        if isinstance(argument, Packed):
            if argument.key not in self._shared:
                self._shared[argument.key] = Memory(self.session, argument.size)
            return self._shared[argument.key]
        if isinstance(argument, Table):
            if argument.key not in self._shared:
                values = argument.make()
                memory = Memory(self.session, values.nbytes)
                memory.write(self.session, values)
                self._shared[argument.key] = memory
            return self._shared[argument.key]
        return super()._memory(argument)
