"""Histories of many trainings side by side, each made when it is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from clnet.runtime.member_replay import TOTAL, MemberLaunch
from clnet.training.history import History
from clnet.training.passes import measures

Array = NDArray[Any]


class Histories(Sequence[History]):
    """The histories of a population's networks, each made when it is first read.

    Parameters
    ----------
    count : int
        Their number.
    make : callable
        Returns the history of a network, by its number.
    """

    def __init__(self, count: int, make: Callable[[int], History]) -> None:
        self._count, self._make = count, make
        self._made: dict[int, History] = {}

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> History: ...

    @overload
    def __getitem__(self, index: slice) -> list[History]: ...

    def __getitem__(self, index: int | slice) -> History | list[History]:
        chosen = range(self._count)[index]
        if isinstance(chosen, range):
            return [self[i] for i in chosen]
        if chosen not in self._made:
            self._made[chosen] = self._make(chosen)
        return self._made[chosen]

    def __repr__(self) -> str:
        return repr(list(self))

    def __reduce__(self) -> Any:
        listed = list(self)
        return Histories, (len(listed), listed.__getitem__)


class MemberLog:
    """The totals of all epochs of a group of networks, as its launches gave them.

    Parameters
    ----------
    count : int
        Number of networks.
    most : int
        Bytes of totals that may stay on the device until they are read.
    """

    def __init__(self, count: int, most: int) -> None:
        self._count, self._most = count, most
        self._launches: list[tuple[Array, MemberLaunch, float]] = []
        # Of epochs with a validation: totals of both and seconds, by epoch.
        self._checked = np.zeros((count, 0, 2 * TOTAL + 1), np.float32)

    def add(self, members: Array, launch: MemberLaunch, seconds: float) -> None:
        """Add a launch of some networks [active]; `seconds` is the time of an epoch."""
        self._launches.append((members, launch, seconds))
        if sum(one.size for _, one, _ in self._launches) > self._most:
            for _, one, _ in self._launches:
                one.totals()

    def add_checked(
        self, members: Array, done: Array, training: Array, validation: Array,
        seconds: float,
    ) -> None:
        """Add an epoch after those done; all totals are of shape [active, 6]."""
        last = int(done.max())
        if last >= self._checked.shape[1]:
            more = np.zeros((self._count, last + 1, 2 * TOTAL + 1), np.float32)
            self._checked = np.concatenate([self._checked, more], axis=1)
        self._checked[members, done] = np.column_stack(
            [training, validation, np.full(len(members), seconds)]
        )

    def fill(self, history: History, number: int, epochs: int, targets: Array) -> None:
        """Add a network's epochs to its history.

        Parameters
        ----------
        history : History
            Of no epoch yet.
        number : int
            The network.
        epochs : int
            How many it has had.
        targets : ndarray, shape [2, 2]
            Samples of the training and of the validation, and outputs.
        """
        if self._checked.size:
            rows = self._checked[number, :epochs]
            history.epochs.add(
                measures(rows[:, :TOTAL], *targets[0]),
                measures(rows[:, TOTAL:-1], *targets[1]), rows[:, -1],
            )
            return
        for members, launch, seconds in self._launches:
            at = int(np.searchsorted(members, number))
            if at < len(members) and members[at] == number:
                history.epochs.add(
                    measures(launch.totals_of(at), *targets[0]), None, seconds
                )
