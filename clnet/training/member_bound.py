"""Launches of a population bound to device memory, and the schedule of their epochs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.nn.random import keys
from clnet.nn.schedules import schedule as find_schedule
from clnet.opencl.launch import EPOCH

if TYPE_CHECKING:
    from clnet.ir.ops import Program
    from clnet.runtime.member_replay import MemberReplay
    from clnet.runtime.train_state import TrainState
    from clnet.training.members import Members

Array = NDArray[Any]


@dataclass
class MemberBound:
    """Launches of members, kept for a later training that is alike.

    Attributes
    ----------
    program : Program
        Of a step; held so that no other gets its id.
    train_state : TrainState
        Parameters [members, size] and state.
    replay : MemberReplay
        The launches.
    keeps : bool
        Whether they are small enough to be kept, and of no rows of their own.
    data : tuple of ndarray
        The inputs and targets on the device, where they are kept.
    epochs : int
        Of the next launch, by the time of the last one.
    """

    program: Program
    train_state: TrainState
    replay: MemberReplay
    keeps: bool
    data: tuple[Array, ...]
    epochs: int = 1


class Rates:
    """Orders and rates of the epochs of all members.

    Parameters
    ----------
    members : Members
        Of one kind.
    """

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
        """Return the epochs after those done, of members that differ.

        Returns
        -------
        schedule : ndarray of `launch.EPOCH`, shape [plans, epochs + 1]
            The last epoch is of zeros.
        plans : ndarray of int, shape [active]
            The row of each member.
        """
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
