"""Member replays: trainings of many networks of one shape, bound to device memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.ir.loss import RECORD
from clnet.nn.random import HASH_BITS, half_bits, stream
from clnet.opencl.launch import (
    DROP,
    EPOCH_TABLE,
    MEMBER,
    MEMBER_DROPS,
    MEMBER_ENDS,
    MEMBER_SUBSETS,
    MEMBER_TABLE,
    MEMBER_TOTALS,
    MEMBER_WEIGHTS,
)
from clnet.opencl.memory import Memory
from clnet.runtime.replay import Replay, run_flops
from clnet.variants.training.whole_step import accepted_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clnet.nn.storage.layout import Layout
    from clnet.opencl.session import Session
    from clnet.runtime.binding import PlanStep
    from clnet.runtime.train_state import TrainState

Array = NDArray[Any]

ITEM = np.dtype(np.float32).itemsize
MAX_EPOCHS = 1 << 12  # of a launch
TOTALS_BYTES = 1 << 28  # of the totals of a launch, unless one epoch takes more
MAX_ROWS = 4  # of a launch's totals that are read one by one, before all are
TOTAL = 2 * len(RECORD)  # values of an epoch's totals


def most_epochs(members: int) -> int:
    """Return the epochs of a launch of so many networks at most."""
    return max(1, min(MAX_EPOCHS, TOTALS_BYTES // (members * TOTAL * ITEM)))


class MemberLaunch:
    """A launch of many networks: their ends, and their totals where they are read."""

    def __init__(
        self, session: Session, memory: Memory, ends: Array, epochs: int
    ) -> None:
        self.ran: Array = ends[:, TOTAL].astype(np.int64)
        self.last: Array = ends[:, :TOTAL]
        self._session, self._epochs, self._rows = session, epochs, 0
        self._memory = memory if epochs > 1 else None
        self._read = None if epochs > 1 else self.last[:, np.newaxis]

    @property
    def size(self) -> int:
        """Bytes of memory on the device."""
        return 0 if self._memory is None else self._memory.size

    def totals(self) -> Array:
        """Return the totals of all networks and epochs [active, epochs, 6].

        Those after a network's last epoch are any numbers.
        """
        if self._read is None:
            assert self._memory is not None
            shape = len(self.ran), self._epochs, TOTAL
            flat = self._memory.read(self._session, int(np.prod(shape)), "float32")
            self._read, self._memory = flat.reshape(shape), None
        return self._read

    def totals_of(self, position: int) -> Array:
        """Return the totals of one network's epochs [ran, 6]."""
        self._rows += 1
        if self._memory is None or self._rows > MAX_ROWS:
            totals: Array = self.totals()[position, : self.ran[position]]
            return totals
        size = self._epochs * TOTAL
        flat = self._memory.read(self._session, size, "float32", position * size)
        return flat.reshape(-1, TOTAL)[: self.ran[position]]


class MemberReplay(Replay):
    """One launch that trains, or measures, many networks."""

    def __init__(
        self, session: Session, step: PlanStep, layout: Layout, train_state: TrainState,
        subsets: Sequence[Array | None], samples: int, epochs: int,
    ) -> None:
        count = len(subsets)
        whole = accepted_step(step.span)
        weighted = whole.loss.weight is not None
        self._shuffled = whole.gather is not None and whole.gather.shuffled
        self.epochs: int = min(most_epochs(count), epochs)
        lists = [np.asarray(rows, np.int32) for rows in subsets if rows is not None]
        joined = np.concatenate([np.zeros(0, np.int32), *lists])
        drops = count * len(whole.drops) if any(whole.drops) else 1  # not read
        sizes = {
            MEMBER_TABLE: count * MEMBER.itemsize, MEMBER_SUBSETS: joined.nbytes,
            MEMBER_DROPS: drops * DROP.itemsize, MEMBER_TOTALS: count * TOTAL * ITEM,
            MEMBER_ENDS: count * (TOTAL + 1) * ITEM,
            MEMBER_WEIGHTS: count * samples * ITEM if weighted else 1,
        }
        super().__init__(session, [step], layout, train_state, {
            buffer.name: Memory(session, size) for buffer, size in sizes.items()
        })
        self._first_totals = self.bound.memory(MEMBER_TOTALS)
        if joined.size:
            self.bound.memory(MEMBER_SUBSETS).write(session, joined)
        self._rows = np.zeros(count, MEMBER)
        self._rows["index"] = np.arange(count)
        self._rows["samples"] = samples
        self._rows["first"] = -1
        if whole.update is not None:
            penalties = whole.update.regularisation
            self._rows["l1"], self._rows["l2"] = penalties.l1, penalties.l2
        self._drops = [None if drop is None else drop.layer for drop in whole.drops]
        if any(whole.drops):
            self.set_dropout(np.tile(
                [0.0 if drop is None else drop.fraction for drop in whole.drops],
                (count, 1),
            ))
        end = 0
        for row, subset in enumerate(subsets if lists else ()):
            if subset is not None:
                self._rows["samples"][row], self._rows["first"][row] = len(subset), end
                end += len(subset)
        lengths, inverse = np.unique(self._rows["samples"], return_inverse=True)
        self._rows["bits"] = np.array([half_bits(n) for n in lengths.tolist()])[inverse]
        self.set(most=int(lengths[-1]))
        steps = -(-int(lengths[-1]) // self.batch)
        # Of a launch of one epoch, by operations: as many as `run_flops` a core.
        flops = run_flops(session.device) * session.device.compute_units
        self._most_members = max(1, flops // (step.span.flops * steps))

    @property
    def samples(self) -> Array:
        """The samples of an epoch of each member [members]."""
        samples: Array = self._rows["samples"]
        return samples

    def set_members(self, **columns: Array) -> None:
        """Set columns [members] of the table: seed, limits, penalties."""
        for name, values in columns.items():
            self._rows[name] = values

    def set_dropout(self, fractions: Array) -> None:
        """Set the dropout of each member's layers [members, layers]."""
        rows = np.zeros(fractions.shape, DROP)
        for layer, number in enumerate(self._drops):
            if number is not None:
                rows["stream"][:, layer] = stream(number)
        rows["threshold"] = np.rint(fractions * (1 << HASH_BITS))
        rows["factor"], rows["share"] = 1 / (1 - fractions), 1 - fractions
        self.bound.memory(MEMBER_DROPS).write(self.session, rows)

    def write_weights(self, weights: Array) -> None:
        """Set the weights of all samples for each member [members, samples]."""
        self.bound.memory(MEMBER_WEIGHTS).write(
            self.session, np.ascontiguousarray(weights, np.float32)
        )

    def run_members(
        self, members: Array, done: Array, schedule: Array, plans: Array | None = None
    ) -> MemberLaunch:
        """Train some members for some epochs, and wait."""
        active, epochs = len(members), schedule.shape[1] - 1
        # Each is there once: all need no copy of the table.
        rows = self._rows if active == len(self._rows) else self._rows[members]
        rows["epochs"], rows["record"] = done, np.arange(active)
        rows["plan"] = 0 if plans is None else plans
        if self._shuffled:  # those of one order are trained one after the other
            rows = rows[np.lexsort((rows["samples"], rows["seed"]))]
        buffers = self.bound.buffers
        if buffers[EPOCH_TABLE.name].size < schedule.nbytes:
            table = Memory(self.session, 2 * schedule.nbytes)
            self.bound.replace(EPOCH_TABLE, table)
        buffers[EPOCH_TABLE.name].write(self.session, schedule)
        totals = self._first_totals
        if epochs > 1:  # it may be read later, while others run
            totals = Memory(self.session, active * epochs * TOTAL * ITEM)
        self.bound.replace(MEMBER_TOTALS, totals)
        # Launches of more epochs follow one whose time is known. They are of all:
        # parts would leave compute units idle.
        most = self._most_members if epochs == 1 else active
        for first in range(0, active, most):  # between them Ctrl-C is handled
            piece = rows[first : first + most]
            buffers[MEMBER_TABLE.name].write(self.session, piece)
            self.set(members=len(piece), epochs=epochs)
            self.run()
            self.session.finish()
        ends = buffers[MEMBER_ENDS.name].read(
            self.session, active * (TOTAL + 1), "float32"
        )
        return MemberLaunch(self.session, totals, ends.reshape(active, -1), epochs)
