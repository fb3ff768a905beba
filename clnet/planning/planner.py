"""The planner: the cheapest cover of a network's program by variants.

Every op must be computed by some variant; a variant computes a contiguous span. So a
plan is a path over the cuts between ops, its edges spans computed by a variant in a
configuration at a place (a device's queue, or the host), and the planner takes the
shortest. Edges are measured times from the tuning store, or measured now; only where
nothing may be measured do modelled times stand in, and then for all edges: a measured
time is never ranked against a modelled one.

Alone measured, spans find their weights in cache more often than in a network. So the
best paths are also measured whole, host arrays to host arrays, and the best of those is
taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from clnet.errors import DeviceError, OutOfMemoryError
from clnet.ir.lowering import lower
from clnet.ir.ops import Program, Span
from clnet.nn.model import Model
from clnet.opencl.device import Device
from clnet.opencl.launch import may_fail
from clnet.planning.candidates import eligible
from clnet.planning.cover import (
    Candidate,
    Cover,
    PlanReport,
    least_through,
    lower_bound,
    shortest_path,
)
from clnet.planning.explain import explanation
from clnet.planning.tuning.measure import representative
from clnet.planning.tuning.search import Search
from clnet.planning.tuning.times import Times
from clnet.runtime.binding import Step
from clnet.runtime.plan import Plan
from clnet.variants import Variant
from clnet.variants.base import Config

PROSPECT = 5.0  # a span is measured unless the model gives it this many times the best
CLOSE = 2.0  # whole covers this near the best are measured again: the machine may
# have been busy with something else
AGAIN = 3  # so many times
SIMPLER = 1.05  # of covers this near the best the one of fewest steps is taken
COVERS = 4  # whole covers that are measured against each other


class Planner:
    """The planning of one network for one device and batch.

    Parameters
    ----------
    network : Model
        What to run.
    device : Device
        Where.
    batch : int
        Samples a call.
    tune : bool or None
        As for `Network.compile`.
    variants : tuple of Variant
        Those that may be used.
    program : Program or None
        What is to be computed; None: the network's own.
    search : Search or None
        How long it may measure; None: as long as it takes.

    Attributes
    ----------
    report : PlanReport
        What was seen, for `explain`.
    """

    def __init__(
        self,
        network: Model,
        device: Device,
        batch: int,
        tune: bool | None,
        variants: tuple[Variant, ...],
        program: Program | None = None,
        search: Search | None = None,
    ) -> None:
        self.network = network
        self.device = device
        self.batch = batch
        self.tune = tune
        self.variants = variants
        self.program: Program = program or lower(network)
        self.search = search or Search()
        self._begin(representative(batch))

    def _begin(self, batch: int) -> None:
        """Start a search, with a batch to measure."""
        self.report = PlanReport()
        self.times = self._times(batch)

    def _times(self, batch: int) -> Times:
        return Times(
            self.network, self.program, self.device, batch, self.report, self.search
        )

    def can_prune(self, seconds: float) -> str | None:
        """Return why no cover can be shorter, before any is measured; None: one may."""
        return None

    def timed(self) -> Cover | None:
        """Return the best cover with the time of a whole call.

        None if that is not remembered and may not be measured. Raises DeviceError if no
        cover exists.
        """
        chosen = self._chosen()
        if self.tune is False:
            remembered = self.times.remembered_whole(chosen)
            return None if remembered.timing is None else remembered
        return next(iter(self._contest([chosen])), None)

    def plan(self) -> Plan:
        """Return the plan, or raise DeviceError if no cover exists."""
        chosen, report = self._best(), self.report

        here = [c for c in report.candidates if c.step.device == self.device]

        def device_steps() -> tuple[Step, ...]:
            return self._steps_of(here, "as device arrays need: pass host arrays")

        def spare_steps() -> tuple[Step, ...]:
            alone = [
                c for c in here if not may_fail(
                    c.step.variant.launches(c.step.span, c.step.config, self.device)
                )
            ]
            return self._steps_of(alone, "without kernels that wait for each other")

        text = explanation(self.network, self.device, self.batch, report)
        return Plan(
            self.network, self.device, self.batch, chosen.steps, device_steps,
            spare_steps, text,
        )

    def _steps_of(
        self, candidates: Sequence[Candidate], wanted: str
    ) -> tuple[Step, ...]:
        cover = self._shortest(candidates)
        if cover is None:
            raise DeviceError(
                f"no variant computes this network on {self.device.name} alone, "
                f"{wanted}"
            )
        return cover.steps

    def _best(self) -> Cover:
        """Return the best cover, searched for once."""
        return self.report.covers[0] if self.report.covers else self._chosen()

    def _chosen(self) -> Cover:
        """Return the best cover; the survey then tells of the others.

        Where the batch fits into memory and the one that is measured in its stead does
        not, the batch itself is measured.
        """
        try:
            return self._searched()
        except OutOfMemoryError:
            if self.times.batch == self.batch:
                raise
        self._begin(self.batch)
        return self._searched()

    def _searched(self) -> Cover:
        found = self._candidates()
        if self.tune is not False:
            found = self._measured(found)
        else:
            found = [self.times.remembered(c) for c in found]
        self.report.candidates = found
        covers = self._covers(found)
        if not covers:
            raise DeviceError(self._no_cover())
        self.report.covers = covers
        return covers[0]

    def _candidates(self) -> list[Candidate]:
        return list(eligible(
            self.program, self.batch, self.times.batch, self.variants, self.device,
            self._configs, self.report.refusals,
        ))

    def _configs(
        self, variant: Variant, span: Span, place: Device
    ) -> list[Config]:
        """Return the configurations to consider: all remembered, or all to measure."""
        space = list(variant.space(span, place))
        if self.tune is True:
            return space
        known = [
            config for config in space
            if self.times.lookup(Step(span, variant, config, place)) is not None
        ]
        return [*space[:1], *(config for config in known if config != space[0])]

    def _measured(self, candidates: list[Candidate]) -> list[Candidate]:
        """Return the candidates with times, measuring those that have prospects.

        The likely ones first: the search's time may not suffice for all.
        """
        found = [self.times.remembered(c) for c in candidates]
        limits = self._limits(found)
        unknown = [
            i for i, c in enumerate(found) if c.timing is None
            and (self.tune is True or c.modelled <= limits[c.start, c.stop])
        ]
        ranks = self._ranks(found)
        for i in sorted(unknown, key=ranks.__getitem__):
            if self.search.over and self._covered(found):
                self.report.unmeasured = (
                    "ways to compute spans: they have no prospects, or the "
                    f"{self.search.seconds:g} s of the search were over; `compile` and "
                    "`clnet tune` search to the end"
                )
                break
            if self.tune is True or self._may_win(found, i):
                found[i] = self.times.measured(found[i])
        return found

    def _may_win(self, candidates: Sequence[Candidate], i: int) -> bool:
        """Return whether a cover with a candidate may be shorter than the best so far.

        So what takes long to make ready, as tables of all entries of a large layer, is
        not, where others have turned out to be fast.
        """
        n = len(self.program.ops)
        best = shortest_path(n, [c for c in candidates if c.timing is not None])
        hopes = [lower_bound(c) for c in candidates]
        return best is None or least_through(n, hopes)[i] < best.seconds

    def _ranks(self, candidates: Sequence[Candidate]) -> list[tuple[bool, bool, float]]:
        """Return keys by which candidates are sorted, the likely ones before others.

        First the shortest cover by the model. Then the host's, which need not be built,
        and at a stretch: NumPy's threads spin for a while after they have worked. A
        variant's configurations for a span stay together: they share what checks them.
        """
        n = len(self.program.ops)
        modelled = [replace(c, timing=None) for c in candidates]
        cover = shortest_path(n, modelled)
        first = {id(step) for step in cover.steps} if cover else set()
        least: dict[tuple[str, int, int], float] = {}
        groups = [(c.step.variant.name, c.start, c.stop) for c in candidates]
        for group, path in zip(groups, least_through(n, modelled), strict=True):
            least[group] = min(path, least.get(group, path))
        return [
            (id(c.step) not in first, c.step.device is not None, least[group])
            for c, group in zip(candidates, groups, strict=True)
        ]

    def _covered(self, candidates: Iterable[Candidate]) -> bool:
        """Return whether those with times make a cover."""
        timed = [c for c in candidates if c.timing is not None]
        return shortest_path(len(self.program.ops), timed) is not None

    def _limits(
        self, candidates: Sequence[Candidate]
    ) -> dict[tuple[int, int], float]:
        """Return for each span the modelled time up to which it has prospects."""
        rivals: dict[tuple[int, int], list[float]] = {}
        for c in candidates:
            rivals.setdefault((c.start, c.stop), []).append(c.modelled)
        return {span: PROSPECT * min(times) for span, times in rivals.items()}

    def _covers(self, candidates: Sequence[Candidate]) -> list[Cover]:
        """Return the covers to compare, best first: measured whole if that is allowed.

        The shortest path, the shortest on each place alone, and the shortest through
        each run.
        """
        groups: list[Sequence[Candidate]] = [candidates]
        places = dict.fromkeys(c.step.device for c in candidates)
        groups += [[c for c in candidates if c.step.device == p] for p in places]
        # A run may be worth more whole than its span alone tells.
        long = sorted(
            (c for c in candidates if c.stop - c.start > 2 and c.fault is None),
            key=lambda c: (c.timing is None, c.seconds),
        )
        for run in long[:COVERS]:
            outside = [
                c for c in candidates if c.stop <= run.start or c.start >= run.stop
            ]
            groups.append([run, *outside])
        covers: list[Cover] = []
        for group in groups:
            cover = self._shortest(group)
            known = [other.steps for other in covers]
            if cover is not None and cover.steps not in known:
                covers.append(cover)
        # What is still only modelled had no prospects, or may not be measured.
        covers = [cover for cover in covers if cover.measured] or covers
        ranked = sorted(covers, key=lambda cover: cover.seconds)[:COVERS]
        if self.tune is not False and len(ranked) > 1:
            # The host's own cover is measured last, as above.
            ranked.sort(key=lambda cover: any(s.device is None for s in cover.steps))
            ranked = self._contest(ranked)
        elif len(ranked) > 1:
            remembered = [self.times.remembered_whole(cover) for cover in ranked]
            if all(cover.timing is not None for cover in remembered):
                ranked = remembered
        ranked.sort(key=lambda cover: cover.seconds)
        near = [c for c in ranked if c.seconds <= SIMPLER * ranked[0].seconds]
        simplest = min(near, key=lambda cover: len(cover.steps), default=None)
        return sorted(ranked, key=lambda cover: cover is not simplest)

    def _contest(self, covers: Sequence[Cover]) -> list[Cover]:
        """Return the covers that do not fail, with their whole times.

        New times that are close are taken again, in turn, and the least is kept: the
        machine may have been busy with something else.
        """
        known = [self.times.remembered_whole(cover) for cover in covers]
        if all(cover.timing is not None for cover in known):
            return known
        measured = [
            cover if cover.timing is not None else self.times.measured_whole(cover)
            for cover in covers
        ]
        found = [cover for cover in measured if cover is not None]
        for _ in range(AGAIN):
            if self.search.over:
                break
            least = min((cover.seconds for cover in found), default=0.0)
            for i, cover in enumerate(found):
                if len(found) > 1 and cover.seconds <= CLOSE * least:
                    again = self.times.measured_whole(cover)
                    if again is not None and again.seconds < cover.seconds:
                        found[i] = again
        for cover in found:
            self.times.remember_whole(cover)
        return found

    def _shortest(self, candidates: Iterable[Candidate]) -> Cover | None:
        """Return the shortest cover by candidates, or None if there is none.

        By measured times alone, if these make a cover; else by modelled ones alone.
        """
        usable = [c for c in candidates if c.fault is None]
        measured = [c for c in usable if c.timing is not None]
        cover = shortest_path(len(self.program.ops), measured)
        if cover is not None:
            return cover
        modelled = [replace(c, timing=None) for c in usable]
        return shortest_path(len(self.program.ops), modelled)

    def _no_cover(self) -> str:
        refusals = [f"{name}: {text}" for name, text in self.report.refusals]
        reasons = [*refusals, *self.report.failures]
        names = [variant.name for variant in self.variants]
        more = "" if "generic" in names else "; name generic too, which computes all"
        return (
            f"no cover of this network on {self.device.name} by {', '.join(names)}: "
            f"{'; '.join(reasons)}{more}"
        )
