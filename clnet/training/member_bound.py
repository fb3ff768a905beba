"""Launches of a population bound to device memory, and the schedule of their epochs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.nn.random import keys
from clnet.nn.schedules import schedule as find_schedule
from clnet.opencl.launch import EPOCH
from clnet.opencl.session import KEPT_BYTES, session
from clnet.runtime.member_replay import MAX_EPOCHS, MemberReplay
from clnet.runtime.train_state import TrainState
from clnet.training.passes import LIMIT_MARGIN
from clnet.variants.training.whole_step import accepted_step

if TYPE_CHECKING:
    from clnet.ir.program import Program
    from clnet.nn.model import Model
    from clnet.opencl.device import Device
    from clnet.runtime.binding import Step
    from clnet.training.data_set import DataSet
    from clnet.training.members import Members, Samples

Array = NDArray[Any]

KEPT_SHARE = 128  # of a device's memory is for launches that are kept


@dataclass
class MemberBound:
    """Launches of steps bound to memory, kept for a later training that is alike."""

    program: Program  # Of a step; held so that no other gets its id
    train_state: TrainState  # Parameters [members, size] and state
    replay: MemberReplay  # The launches
    keeps: bool  # Whether they are small enough to be kept, and of no rows of their own
    data: tuple[Array, ...]  # The inputs and targets on the device, where they are kept
    epochs: int = 1  # Of the next launch, by the time of the last one


class MemberLaunches:
    """Launches of the steps of members of one kind, and of their validation."""

    def __init__(
        self, network: Model, members: Members, samples: Samples, device: Device,
        program: Program, step: Step, validation: Step | None = None,
    ) -> None:
        self._network, self._members, self._samples = network, members, samples
        self._device, self._program = device, program
        self._step, self._validation = step, validation

    def training_replay(self, train_state: TrainState) -> MemberReplay:
        """Return the launches of steps, which end at the members' limits."""
        members = self._members
        replay = self._replay(
            self._step, train_state, members.rows, self._samples.training,
            self._most_epochs,
        )
        self._set_members(replay)
        return replay

    @property
    def _most_epochs(self) -> int:
        return min(MAX_EPOCHS, max(one.epochs for one in self._members.options))

    @property
    def _key(self) -> tuple[Any, ...]:
        """The key of the launches of members that train alike."""
        step = self._step
        return (
            id(self._program), step.span.batch, step.variant, *step.config.items(),
            len(self._members), len(self._samples.training), self._most_epochs,
        )

    def bound(self, start: Array) -> MemberBound:
        """Return the launches of steps that begin at parameters [members, size]."""
        place, (count, size) = session(self._device), start.shape
        data = self._samples.training
        state = self._members.options[0].rule.initial_state(size, start.dtype.name)
        found: MemberBound | None = place.kept.pop(self._key, None)
        if found is not None:
            found.train_state.reset(start.reshape(-1), state)
            if not all(map(_same, found.data, (data.x, data.t))):
                self._write(found.replay, self._step, data)
                found.data = data.x.copy(), data.t.copy()
            self._set_members(found.replay)
            return found
        train_state = TrainState(place, start.reshape(-1), state, members=count)
        held = start.nbytes + train_state.state.size
        held += sum(one.nbytes for one in data.arrays)
        most = max(KEPT_BYTES, self._device.global_memory // KEPT_SHARE)
        keeps = self._members.rows is None and held <= most
        return MemberBound(
            self._program, train_state, self.training_replay(train_state), keeps,
            (data.x.copy(), data.t.copy()) if keeps else (),
        )

    def keep(self, bound: MemberBound) -> None:
        """Keep launches for a later training that is alike."""
        session(self._device).keep(self._key, bound)

    def _set_members(self, replay: MemberReplay) -> None:
        """Set the members' weights, seeds and limits."""
        members = self._members
        if members.dropout.any():
            replay.set_dropout(members.dropout)
        if members.weights is not None:
            replay.write_weights(members.balanced_weights())
        sizes = members.sizes(len(self._samples.training))
        limits = np.array([
            (0.0, 0.0) if one.desired is None else
            one.desired.limits(n * self._network.n_out)
            for one, n in zip(members.options, sizes, strict=True)
        ])[members.which] * (1 + LIMIT_MARGIN)
        replay.set_members(
            seed=(members.seeds & 0xFFFFFFFF).astype(np.uint32),
            squares_limit=limits[:, 0], fails_limit=limits[:, 1],
            l1=members.each(lambda one: one.regularisation.l1),
            l2=members.each(lambda one: one.regularisation.l2),
        )

    def validation_replay(self, train_state: TrainState) -> MemberReplay | None:
        """Return the launches that measure the validation, if there is one."""
        samples = self._samples.validation
        if samples is None:
            return None
        assert self._validation is not None
        replay = self._replay(
            self._validation, train_state, self._members.rests, samples, 1
        )
        if samples.weight is not None:
            shape = len(self._members), len(samples)
            replay.write_weights(np.broadcast_to(samples.weight[:, 0], shape))
        return replay

    def _replay(
        self, step: Step, train_state: TrainState,
        subsets: Sequence[Array | None] | None, samples: DataSet, epochs: int,
    ) -> MemberReplay:
        replay = MemberReplay(
            session(self._device), step, self._network.layout, train_state,
            subsets or [None] * len(self._members), len(samples), epochs,
        )
        self._write(replay, step, samples)
        return replay

    def _write(self, replay: MemberReplay, step: Step, samples: DataSet) -> None:
        x, t, *_ = accepted_step(step.span).data
        replay.write(x, samples.x)
        replay.write(t, samples.t)


def _same(one: Array, other: Array) -> bool:
    """Return whether two arrays of a dtype have the same bits."""
    return one.shape == other.shape and np.array_equal(
        one.view(np.uint8), np.ascontiguousarray(other).view(np.uint8)
    )


class Rates:
    """Orders and rates of the epochs of all members."""

    def __init__(self, members: Members) -> None:
        self._which, self._seeds = members.which, members.seeds
        self._shuffled = members.options[0].shuffled
        self._rates = [
            (options.rule.rate, find_schedule(options.schedule, options.epochs))
            for options in members.options
        ]

    def schedule(
        self, active: Array, done: Array, epochs: int
    ) -> tuple[Array, Array]:
        """Return the epochs after those done, of members that differ."""
        differing = [self._which[active], done]
        if self._shuffled:
            differing.append(self._seeds[active])
        plans, number = np.zeros(len(active), np.int64), 1
        for column in differing:
            if (column != column[0]).any():
                values, inverse = np.unique(column, return_inverse=True)
                plans = plans * len(values) + inverse
                number *= len(values)
        if number > 1:
            _, first, plans = np.unique(plans, return_index=True, return_inverse=True)
        else:
            first = np.zeros(1, int)
        found = np.zeros((len(first), epochs + 1), EPOCH)
        rates: dict[tuple[int, int], list[float]] = {}
        orders: dict[tuple[int, int], Array] = {}
        for row, at in zip(found, first.tolist(), strict=True):
            start, member = int(done[at]), active[at]
            key = int(self._which[member]), start
            if key not in rates:
                rate, factor = self._rates[key[0]]
                rates[key] = [rate * factor(start + i) for i in range(epochs)]
            row["rate"][:epochs] = rates[key]
            if self._shuffled:
                order = int(self._seeds[member]), start
                if order not in orders:
                    orders[order] = keys(*order, epochs)
                row["key"][:epochs] = orders[order]
        return found, plans
