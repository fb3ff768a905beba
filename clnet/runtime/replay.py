"""Replays: training programs bound to device memory, their launches made once.

Between steps only scalars change. Nothing is allocated, and only `read` and `write`
copy between host and device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clnet.nn.storage.layout import Layout, round_up
from clnet.opencl.bound import Bound
from clnet.opencl.launch import (
    EPOCH,
    EPOCH_TABLE,
    GRADIENTS,
    PARAMETERS,
    STATE,
    Launch,
    Scalar,
    phases,
)
from clnet.opencl.memory import Memory, sub_buffer_alignment
from clnet.opencl.process import check_process
from clnet.runtime.binding import LaunchSchedule, PlanStep
from clnet.variants.packing import merge_packings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from clnet.ir.op import Value
    from clnet.opencl.commands import Action
    from clnet.opencl.device import Device
    from clnet.opencl.session import Session
    from clnet.runtime.train_state import TrainState

Array = NDArray[Any]

# Bound of the time of a launch of many steps, or of launches between two waits: Ctrl-C
# is handled between them. It is predicted from earlier steps, at first from operations.
RUN_SECONDS = 0.05
RUN_SHARE = 0.5  # of a compute unit's rate that steps reach, at most
SEPARATE_RECORDS = 64  # records of launches that take each as a buffer
RECORDS = 1 << 14  # records of launches that address them
RECORD_ALIGNMENT = 8  # elements of such a record, or a multiple


def run_flops(device: Device) -> int:
    """Return the operations of a compute unit in `RUN_SECONDS`, at most."""
    rate = device.rates.flops / device.compute_units
    return max(1, int(RUN_SECONDS * RUN_SHARE * rate))


class _Records(NamedTuple):
    """A value's records in one buffer."""

    memory: Memory  # The buffer
    stride: int  # Elements from one record to the next
    size: int  # Bytes of a record that is an argument; 0: kernels address them
    arguments: dict[int, Any]  # Of records, as they are selected


class Replay:
    """Steps of a training program, none on the host, bound to memory.

    `buffers` has memory that others have made, by the names of launches' arguments.
    """

    def __init__(
        self, session: Session, steps: Sequence[PlanStep], layout: Layout,
        train_state: TrainState, buffers: Mapping[str, Memory] | None = None,
    ) -> None:
        self.session: Session = session
        self._size = layout.size
        self.batch: int = steps[0].span.batch
        self.dtype: str = steps[0].span.dtype
        self._train_state = train_state
        self.bound: Bound = Bound(session, self.dtype, self.batch, {
            PARAMETERS.name: train_state.parameters, STATE.name: train_state.state,
            EPOCH_TABLE.name: Memory(session, 2 * EPOCH.itemsize), **(buffers or {}),
        })
        # Without a call in between: it is called every step.
        self.set: Callable[..., None] = self.bound.set
        schedule = LaunchSchedule(session)
        self.schedule: LaunchSchedule = schedule
        self._actions = schedule.actions
        self._records: dict[str, _Records] = {}
        self._on_write: list[Action] = []
        self._inputs_changed = True
        calls: list[Launch] = []
        first: list[Launch] = []
        gather: list[Launch] = []  # left to the next step's packing
        self._ends: list[int] = []  # actions until the end of each step
        for number, step in enumerate(steps):
            assert step.device is not None
            described = step.variant.launches(step.span, step.config, step.device)
            launches, gather = merge_packings((*gather, *described)), []
            following = [after.device for after in steps[number + 1 : number + 2]]
            only_gather = all(launch.gathers is not None for launch in launches)
            if only_gather and following == [step.device]:
                launches, gather = [], launches
            first = first or launches
            # A gather that no packing has taken ends before the step begins, of whose
            # launches another device may run some.
            gathers = [launch for launch in launches if launch.gathers is not None]
            others = [launch for launch in launches if launch.gathers is None]
            for phase in (gathers, *phases(others)):
                schedule.order_after_busy(step, phase)
                for launch in phase:
                    if GRADIENTS in launch.arguments:  # made at their first use
                        self.bound.buffers[GRADIENTS.name] = train_state.gradients
                    device = launch.device or step.device
                    action = self.bound.launch(launch, device, number)
                    if launch.when == "inputs":
                        self._on_write.append(action)
                    else:  # each step changes the parameters
                        schedule.append(action, launch, device)
            calls += [launch for launch in launches if launch.when == "call"]
            self._ends.append(len(self._actions))
        if self.bound.has_helpers:
            schedule.append_waits()
        else:
            schedule.order_after_busy(steps[0], first)  # of the next run
        taken = [
            {a.name for a in call.arguments if isinstance(a, Scalar)}
            for call in calls if not call.standby
        ]
        self.multi_step: bool = all({"steps"} <= names for names in taken)
        self.multi_epoch: bool = all(
            {"steps", "record_stride"} <= names for names in taken
        )
        flops = sum(step.span.flops for step in steps)
        self._first_steps = max(1, run_flops(session.device) // max(flops, 1))
        self.step_seconds: float | None = None
        # The first record of the last run, if it was of whole epochs.
        self._last_run: int | None = None
        self.set(steps=1)

    def run(self) -> None:
        """Enqueue the launches once: one step, or as many as the scalar `steps`."""
        self._take_inputs()
        for action in self._actions:
            action()
        if self.bound.has_helpers:
            self.bound.handle_helper_timeout()

    def run_to(self, steps: Iterable[int]) -> Iterator[int]:
        """Enqueue the launches as `run` does, with a pause after some of the steps."""
        self._take_inputs()
        done = 0
        for number in steps:
            for action in self._actions[done : self._ends[number]]:
                action()
            done = self._ends[number]
            yield number
        for action in self._actions[done:]:
            action()
        if self.bound.has_helpers:
            self.bound.handle_helper_timeout()

    def _take_inputs(self) -> None:
        """Run the launches that follow a change of inputs, if there was one."""
        check_process()
        if self._inputs_changed:
            for action in self._on_write:
                action()
            if self._on_write:
                self.session.finish()
            self._inputs_changed = False

    def run_pass(
        self, samples: int, count: int = 0, seen: int = 0, start: int = 0
    ) -> int:
        """Enqueue the steps of consecutive samples of an order, batch by batch.

        Launches that can do many steps make one run, or a few long ones; the others one
        run per step.
        """
        batch = self.batch
        steps = -(-samples // batch)
        most = self._most_steps
        per_run = min(steps, most) if self.multi_step else 1
        enqueued = 0
        self._last_run = None
        for number in range(0, steps, per_run):
            if enqueued + per_run > most:
                self.session.finish()
                enqueued = 0
            first = number * batch
            left = samples - first
            self.set(
                first=start + first, samples=min(per_run * batch, left),
                seen=seen + first + min(batch, left), fresh=seen + number == 0,
                count=count + number, steps=min(per_run, steps - number),
            )
            self.run()
            enqueued += per_run
        return steps

    @property
    def _most_steps(self) -> int:
        """Steps of a run, or between two waits, at most."""
        if self.step_seconds is None:
            return self._first_steps
        return max(1, int(RUN_SECONDS / self.step_seconds))

    def epochs_per_run(self, samples: int) -> int:
        """Return how many epochs of so many samples one run can do; 0: none."""
        return self._most_steps // -(-samples // self.batch) if self.multi_epoch else 0

    def run_epochs(
        self, samples: int, count: int, epochs: int, record: int = 0,
        schedule: Array | None = None,
    ) -> None:
        """Enqueue several epochs, in as few runs as possible.

        A run ends after an epoch whose totals are not finite or below the scalars
        `squares_limit` or `fails_limit`: `read_records` tells.
        """
        steps = -(-samples // self.batch)
        per_run = self.epochs_per_run(samples)
        stride = self.bound.numbers.get("record_stride", 0)
        for number in range(0, epochs, per_run):
            size = min(per_run, epochs - number)
            if schedule is not None:
                self._schedule(schedule[number : number + size])
            self.set(
                first=0, samples=samples, seen=min(self.batch, samples), fresh=True,
                count=count + number * steps, steps=size * steps,
                scheduled=schedule is not None,
                record_offset=(record + number) * stride,
            )
            self.run()
            self._last_run = record + number

    def _schedule(self, rows: Array) -> None:
        """Set order and rate of the epochs of the next run."""
        self.set(rate=float(rows["rate"][0]), key=rows["key"][0])
        size = rows.nbytes + EPOCH.itemsize  # kernels read the row after the last
        if self.bound.memory(EPOCH_TABLE).size < size:
            self.bound.replace(EPOCH_TABLE, Memory(self.session, 2 * size))
        memory = self.bound.memory(EPOCH_TABLE)
        if memory.array is not None:
            self.session.finish()
        memory.write(self.session, rows)

    def write(self, value: Value, rows: Array) -> None:
        """Fill a value by its rows [rows, width], and wait."""
        self.bound.write(value, rows)
        self._inputs_changed = True

    def read(self, value: Value) -> Array:
        """Wait for all steps, and return a value [rows, width]."""
        memory = self.bound.memory(value)
        rows = value.height(self.batch)
        flat = memory.read(self.session, rows * value.stride, self.dtype)
        return flat.reshape(rows, value.stride)[:, : value.width]

    def add_records(self, value: Value, count: int = SEPARATE_RECORDS) -> int:
        """Give a value an array of records; `select_record` chooses the current one.

        There are `count` of them, or `RECORDS` if these are more and kernels address
        them.
        """
        item, size = np.dtype(self.dtype).itemsize, 0
        if self.multi_epoch:  # a count is behind each
            count = max(count, RECORDS)
            stride = round_up(value.stride + 1, RECORD_ALIGNMENT)
        else:
            size = value.height(self.batch) * value.stride * item
            stride = round_up(size, sub_buffer_alignment(self.session)) // item
        memory = Memory(self.session, count * stride * item)
        self._records[value.name] = _Records(memory, stride, size, {})
        if self.multi_epoch:
            self.bound.set_argument(value.name, memory.argument)
            self.set(record_stride=stride)
        return count

    def select_record(self, value: Value, record: int) -> None:
        """Choose the record of a value that the steps enqueued next use."""
        memory, stride, size, arguments = self._records[value.name]
        if not size:
            self.set(record_offset=record * stride)
            return
        if record not in arguments:
            start = record * stride * np.dtype(self.dtype).itemsize
            arguments[record] = memory.sub_buffer(start, size)
        self.bound.set_argument(value.name, arguments[record])

    def select_input(self, value: Value, argument: Any) -> None:
        """Let the steps enqueued next take an input from another argument."""
        self.bound.set_argument(value.name, argument)
        self._inputs_changed = True

    def read_records(self, value: Value, count: int) -> Array:
        """Wait for all steps, and return a value's first records [count, width].

        There are fewer if the last run of several epochs ended early.
        """
        memory, stride, *_ = self._records[value.name]
        size = count * stride if count > 1 else value.width
        rows = memory.read(self.session, size, self.dtype).reshape(count, -1)
        first = self._last_run
        if first is not None and count > 1:
            count = min(count, first + int(rows[first, value.width]))
        return rows[:count, : value.width]

    def write_gradients(self, flat: Array) -> None:
        """Fill the flat gradient buffer [size], and wait."""
        self._train_state.gradients.write(self.session, flat)

    def read_gradients(self) -> Array:
        """Wait for all steps, and return the flat gradient buffer [size]."""
        self.session.finish()
        memory = self._train_state.gradients
        return memory.read(self.session, self._size, self.dtype)
