"""`Trainer`: the loop of every training, over M networks by epochs.

A computation runs some epochs of all networks that still train: `Segments` those of one
network, `MemberTraining` those of many in one launch, `CascadeTraining` those of a
network that grows. The rules of their ends are arrays over the networks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from clnet.training.history import all_done, finite_epochs, interrupted_after

if TYPE_CHECKING:
    from clnet.training.history import History
    from clnet.training.options import DesiredError

Array = NDArray[Any]

# Why a network has stopped; of two reasons the larger one counts. An interrupt leaves
# those that were running so.
RUNNING, ALL_DONE, REACHED, CALLED, DIVERGED = range(5)


class Segment(NamedTuple):
    """Epochs of the active networks that were computed together.

    Measures are of each epoch [active, epochs, 3], or of each network's last one alone
    [active, 1, 3], where launches end at a network's last epoch by themselves.
    """

    ran: Array  # Epochs of each network [active]
    training: Array
    validation: Array | None  # None: no validation set
    seconds: float  # Of an epoch

    def part(self, begin: int, end: int) -> Segment:
        """Return some epochs of the only network."""
        part = slice(begin, end)
        return Segment(
            np.array([end - begin]), self.training[:, part],
            None if self.validation is None else self.validation[:, part], self.seconds,
        )

    def log(self, history: History) -> None:
        """Add the epochs of the only network to its history."""
        history.epochs.add(
            self.training[0], None if self.validation is None else self.validation[0],
            self.seconds,
        )


class Computation(Protocol):
    """What computes the epochs of networks."""

    each_epoch: bool  # Whether each epoch is reported by itself

    @property
    def done(self) -> Array:
        """The epochs of each network that are reported [networks]."""
        ...

    @property
    def ahead(self) -> bool:
        """Whether epochs that were run are not reported."""
        ...

    def run(self, active: Array, left: Array) -> Segment:
        """Run some epochs of the active networks, at most those left [active]."""
        ...


Report = Callable[[Array, Segment, Array], None]
"""Takes the active networks, their epochs, and the codes of their ends [active], of
which it may set some to `CALLED`: the epochs are done, and callbacks look at them."""


class Trainer:
    """Trains networks by a computation until each has a reason to stop.

    `most` are the epochs of each network [networks], `desired` the errors that end
    trainings, and `which` tells the one of each network.
    """

    def __init__(
        self, computation: Computation, report: Report, most: Array,
        desired: Sequence[DesiredError | None], which: Array,
    ) -> None:
        self._computation, self._report = computation, report
        self._most, self._desired, self._which = most, desired, which
        self.codes: Array = np.where(computation.done < most, RUNNING, ALL_DONE)

    def run(self) -> None:
        """Train until no network runs; Ctrl-C leaves the rest running."""
        # This differs from the loop "compute an epoch, look at it, go on" in that:
        # 1. A computation runs as many epochs as it likes before the host looks. What
        #    stops a training by its errors alone is found afterwards, by arrays.
        # 2. Networks stop one by one. Launches are of those that still run.
        # 3. A report may change what was computed: a callback that reads or replaces
        #    the parameters makes the epochs void that were run after its own.
        # 4. `done` changes by the report alone: an interrupt finds whole epochs.
        computation, codes = self._computation, self.codes
        while (active := np.flatnonzero(codes == RUNNING)).size:
            left = (self._most - computation.done)[active]
            segment = computation.run(active, left)
            for epochs, ends in self._parts(left, segment, self._which[active]):
                self._report(active, epochs, ends)
                codes[active] = ends
                if np.count_nonzero(ends) or not computation.ahead:
                    break

    def _parts(
        self, left: Array, segment: Segment, which: Array
    ) -> Iterator[tuple[Segment, Array]]:
        """Yield the epochs to report together, and the codes of their ends [active]."""
        codes = self._codes(left, segment, which)
        count = codes.shape[1]
        if count == 1:
            yield segment, codes[:, 0]
            return
        stops = np.flatnonzero(codes[0])
        size = stops[0] + 1 if stops.size else count
        if self._computation.each_epoch:
            size = 1
        for begin in range(0, count, size):
            end = min(begin + size, count)
            yield segment.part(begin, end), codes[:, end - 1]

    def _codes(self, left: Array, segment: Segment, which: Array) -> Array:
        """Return the code of each epoch [active, epochs], by its measures alone."""
        training = segment.training
        codes = np.zeros(training.shape[:2], int)  # RUNNING
        codes[segment.ran == left, -1] = ALL_DONE
        for number, desired in enumerate(self._desired):
            if desired is not None:
                its = (which == number)[:, np.newaxis]
                codes[its & desired.reached_by(training)] = REACHED
        codes[~finite_epochs(training)] = DIVERGED
        return codes


def reason(
    code: int, history: History, desired: DesiredError | None, caller: str
) -> str:
    """Return why a network has stopped that has not diverged, in one sentence."""
    epochs = len(history)
    if code == CALLED:
        return f"{caller} stopped after epoch {history.epochs.last}"
    if code == REACHED:
        reached = None if desired is None else desired.reached(history[-1])
        assert reached is not None  # both ask the same measures
        return reached
    return all_done(epochs) if code == ALL_DONE else interrupted_after(epochs)
