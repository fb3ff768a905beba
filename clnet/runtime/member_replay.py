"""Member replays: trainings of many networks of one shape, bound to device memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.ir.training_ops import RECORD
from clnet.nn.random import half_bits
from clnet.nn.storage.layout import round_up
from clnet.opencl.launch import (
    EPOCH,
    MEMBER,
    Argument,
    EpochTable,
    Members,
    MemberTotals,
    Subsets,
)
from clnet.opencl.memory import Memory
from clnet.runtime.replay import RECORD_ALIGNMENT, RUN_FLOPS, Replay
from clnet.variants.cost import span_flops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clnet.nn.storage.layout import Layout
    from clnet.opencl.session import Session
    from clnet.runtime.binding import Step
    from clnet.runtime.train_state import TrainState

Array = NDArray[Any]

TOTALS_BYTES = 1 << 26  # of the records of a launch, unless one epoch takes more


class MemberReplay(Replay):
    """One launch that trains, or measures, many networks.

    Parameters
    ----------
    session : Session
        Of the step's device.
    step : Step
        Of the variant `TrainMembers`.
    layout : Layout
        Of one network's flat buffer.
    train_state : TrainState
        Parameters [members, size] and state [members, slots, size], flat.
    subsets : sequence of ndarray or None
        The rows of the data set that each member takes; None: all.
    samples : int
        Of the data set.
    epochs : int
        Of a launch at most; fewer where their records take too much memory.

    Attributes
    ----------
    epochs : int
        Epochs of a launch at most.
    """

    def __init__(
        self, session: Session, step: Step, layout: Layout, train_state: TrainState,
        subsets: Sequence[Array | None], samples: int, epochs: int,
    ) -> None:
        count = len(subsets)
        stride = round_up(2 * len(RECORD) + 1, RECORD_ALIGNMENT)
        item = np.dtype(np.float32).itemsize
        most = TOTALS_BYTES // (count * stride * item)
        self.epochs: int = max(1, min(most, epochs))
        self._stride, self._count = stride, count
        lists = [np.asarray(rows, np.int32) for rows in subsets if rows is not None]
        joined = np.concatenate([np.zeros(0, np.int32), *lists])
        self._own: dict[type, Memory] = {
            Members: Memory(session, count * MEMBER.itemsize),
            Subsets: Memory(session, max(1, joined.nbytes)),
            EpochTable: Memory(session, count * (self.epochs + 1) * EPOCH.itemsize),
            MemberTotals: Memory(session, count * self.epochs * stride * item),
        }
        super().__init__(session, [step], layout, train_state)
        if joined.size:
            self._own[Subsets].write(session, joined)
        self._rows = np.zeros(count, MEMBER)
        self._rows["index"] = np.arange(count)
        self._rows["samples"] = [samples if s is None else len(s) for s in subsets]
        self._rows["bits"] = [half_bits(n) for n in self._rows["samples"].tolist()]
        ends = np.cumsum([0 if s is None else len(s) for s in subsets])
        self._rows["first"] = [
            -1 if s is None else end - len(s)
            for s, end in zip(subsets, ends.tolist(), strict=True)
        ]
        steps = -(-int(self._rows["samples"].max()) // self.batch)
        # Of all members of a launch, by operations: as many as `RUN_FLOPS` a core.
        flops = RUN_FLOPS * session.device.compute_units
        self._most_epochs = max(1, flops // (span_flops(step.span) * steps))
        self.set(records=self.epochs, record_stride=stride)

    @property
    def samples(self) -> Array:
        """The samples of an epoch of each member [members]."""
        found: Array = self._rows["samples"]
        return found

    def set_members(self, **columns: Array) -> None:
        """Set columns [members] of the table: seed, squares_limit, fails_limit."""
        for name, values in columns.items():
            self._rows[name] = values

    def run_members(
        self, members: Array, done: Array, schedule: Array
    ) -> tuple[Array, Array]:
        """Train some members for some epochs, and wait.

        Parameters
        ----------
        members : ndarray of int, shape [active]
            Their indices.
        done : ndarray of int, shape [active]
            Epochs that each has done before.
        schedule : ndarray of `launch.EPOCH`, shape [active, epochs + 1]
            Order and rate of each epoch; `epochs` is at most the attribute. Kernels
            read the row after the last, which is of any value.

        Returns
        -------
        totals : ndarray, shape [active, epochs, 6]
            Of each epoch, as `Tally`; those after a member's last one are any numbers.
        ran : ndarray of int, shape [active]
            Epochs of each member: fewer if one's totals are not finite, or below a
            limit.
        """
        active, epochs = schedule.shape[0], schedule.shape[1] - 1
        rows = self._rows[members]
        rows["epochs"] = done
        most = max(1, self._most_epochs // epochs)
        for first in range(0, active, most):  # between them Ctrl-C is handled
            part = slice(first, first + most)
            self._own[EpochTable].write(self.session, schedule[part])
            self._own[Members].write(self.session, rows[part])
            self.set(members=len(rows[part]), epochs=epochs)
            self.run()
            self.session.finish()
        size = self._count * self.epochs * self._stride
        totals = self._own[MemberTotals].read(self.session, size, "float32")
        shape = self._count, self.epochs, self._stride
        records = totals.reshape(shape)[members, :epochs]
        ran: Array = records[:, 0, 2 * len(RECORD)].astype(np.int64)
        return records[:, :, : 2 * len(RECORD)], ran

    def _memory(self, argument: Argument) -> Memory:
        found = self._own.get(type(argument))
        return super()._memory(argument) if found is None else found
