"""The planner of training: the cheapest cover of a step's program, measured.

As the planner of inference it ranks spans by times that are remembered or measured on
demand, and the best whole covers against each other; but at the batch that is trained,
and with all data on the device.

A step has many ops, and to build a kernel takes longer than to measure it. So no more
is measured than tells which cover is the shortest: where a span is not measured, a
`FASTEST`-th of its modelled time stands in, and only where the shortest path by such
times is not yet measured, its slowest such span is. In the end that path is the
shortest of all, unless a kernel is more than `FASTEST` times as fast as its model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from clnet.ir.ops import Program, Value
from clnet.ir.training_ops import Tally, Update
from clnet.nn.model import Model
from clnet.opencl.device import Device
from clnet.opencl.store import Timing
from clnet.planning.cover import FASTEST, Candidate, Cover, lower_bound, shortest_path
from clnet.planning.explain import explanation
from clnet.planning.format_planner import best_stored
from clnet.planning.planner import Planner
from clnet.planning.tuning.search import Search
from clnet.planning.tuning.times import Times
from clnet.planning.tuning.trial import Trial
from clnet.runtime.binding import Step
from clnet.variants import TRAINING_VARIANTS, Variant

# A validation is a small part of an epoch: its parts are tried only where they may be
# so many times as fast as what computes all of it.
VALIDATION = 4.0
NEAR = 1.3  # paths of one place that may be this near the best are looked for
MOST = 3  # candidates of one span that are tried, the best by the model


@dataclass(frozen=True)
class TrainingPlan:
    """How a training program is computed.

    Attributes
    ----------
    network : Model
        In whose layout: what was planned, or a `NetworkView` of it.
    program : Program
        Lowered from it.
    steps : tuple of Step
        In order.
    explanation : str
        Why these.
    """

    network: Model
    program: Program
    steps: tuple[Step, ...]
    explanation: str

    def explain(self) -> str:
        """Return the chosen cover, the losers with their times, and the refusals."""
        return self.explanation


def plan_training(
    network: Model,
    program: Program,
    device: Device,
    batch: int,
    *,
    tune: bool | None = None,
    variants: Sequence[Variant] | None = None,
    lowered: Callable[[Model], Program] | None = None,
    search: Search | None = None,
) -> TrainingPlan:
    """Return the cheapest steps for a program of training.

    Parameters
    ----------
    network : Model
        What the program was lowered from.
    program : Program
        Of one step.
    device : Device
        Where.
    batch : int
        Samples a step.
    tune : bool or None
        As for `Network.compile`.
    variants : sequence of Variant or None
        Those that may be used; None: all of training.
    lowered : callable or None
        Lowers the same from a network of other formats: the format of layers that
        leave theirs to be chosen is that of the shortest step. None: formats stay.
    search : Search or None
        Told of what is measured.

    Raises
    ------
    DeviceError
        If they do not compute the whole program.
    """
    chosen = TRAINING_VARIANTS if variants is None else tuple(variants)

    def planner(stored: Model) -> _TrainingPlanner:
        other = program if lowered is None else lowered(stored)
        return _TrainingPlanner(stored, device, batch, tune, chosen, other, search)

    last = program.ops[-1]
    if lowered is None or (isinstance(last, Update) and last.optimiser.by_place):
        return planner(network).training_plan()
    return best_stored(network, device, planner).training_plan()


class _TrainingTimes(Times):
    whole = "training step"

    @cached_property
    def _trial(self) -> Trial:
        return Trial(self.session, self.network, self.program)

    def _timed(
        self, steps: Sequence[Step], inputs: Sequence[Value], outputs: Sequence[Value],
        *, on_device: bool, alike: Sequence[Step] = (),
    ) -> Timing:
        return self._trial.measure(steps, outputs)


class _TrainingPlanner(Planner):
    def _times(self, batch: int) -> Times:
        return _TrainingTimes(
            self.network, self.program, self.device, self.batch, self.report,
            self.search,
        )

    def can_prune(self, seconds: float) -> str | None:
        hopes = [lower_bound(self.times.remembered(c)) for c in self._candidates()]
        path = shortest_path(len(self.program.ops), hopes)
        self._begin(self.times.batch)  # the search tells of refusals again
        if path is None or path.seconds < seconds:
            return None
        return f"even {FASTEST:g} times as fast as modelled it would be no faster"

    def training_plan(self) -> TrainingPlan:
        chosen = self._best()
        self.report.unmeasured = "ways to compute spans: " + (
            "nothing new may be measured" if self.tune is False else
            f"even {FASTEST:g} times as fast as modelled they would make no faster "
            f"step, or {MOST} others of their span are modelled faster"
        )
        text = explanation(
            self.network, self.device, self.batch, self.report, self.program
        )
        return TrainingPlan(self.network, self.program, chosen.steps, text)

    def _measured(self, candidates: list[Candidate]) -> list[Candidate]:
        """Return the candidates with times, measuring those that tell the best path.

        First of those that span the program, so that its parts are tried only where
        they may be faster. Then of those that stay on one place and may be close: a
        path's times may add up to less or more than it takes.
        """
        if self.tune is True:
            return super()._measured(candidates)
        found = [self.times.remembered(c) for c in candidates]
        n = len(self.program.ops)
        wholes = [i for i, c in enumerate(found) if c.stop - c.start == n]
        trains = not isinstance(self.program.ops[-1], Tally)
        least = self._search(found, wholes, inf)
        limit = least if trains else least / VALIDATION
        shorter = self._search(found, range(len(found)), limit)
        among = range(len(found)) if shorter < least else wholes
        for place in self.device.places:
            here = [i for i in among if found[i].step.device == place]
            self._search(found, here, NEAR * min(least, shorter))
        return found

    def _search(
        self, candidates: list[Candidate], among: Sequence[int], limit: float
    ) -> float:
        """Measure until the shortest path is, or cannot be as short as a limit.

        Returns
        -------
        float
            Its seconds; infinite, if there is none up to the limit.
        """
        while True:
            hopes = {i: lower_bound(candidates[i]) for i in _tried(candidates, among)}
            path = shortest_path(len(self.program.ops), hopes.values())
            if path is None or path.seconds > limit:
                return inf
            parts = {id(part) for part in path.candidates}
            unknown = [
                i for i, hope in hopes.items()
                if id(hope) in parts and candidates[i].timing is None
            ]
            if not unknown:
                return path.seconds
            slowest = max(unknown, key=lambda i: candidates[i].modelled)
            candidates[slowest] = self.times.measured(candidates[slowest])

    def _covers(self, candidates: Sequence[Candidate]) -> list[Cover]:
        covers = super()._covers(candidates)
        if self.tune is not False and len(covers) == 1:
            return self._contest(covers) if covers[0].timing is None else covers
        return covers

    def _shortest(self, candidates: Iterable[Candidate]) -> Cover | None:
        cover = super()._shortest(candidates)
        if cover is None or len(cover.candidates) > 1:
            return cover
        (whole,) = cover.candidates
        return replace(cover, timing=whole.timing)  # its span's is the whole's


def _tried(candidates: Sequence[Candidate], among: Sequence[int]) -> Iterator[int]:
    """Yield those with times, and of each span the `MOST` best that have no fault."""
    tried: Counter[tuple[int, int]] = Counter()
    for i in sorted(among, key=lambda i: candidates[i].modelled):
        candidate = candidates[i]
        if candidate.fault is None:
            span = candidate.start, candidate.stop
            tried[span] += 1
            if candidate.timing is not None or tried[span] <= MOST:
                yield i
