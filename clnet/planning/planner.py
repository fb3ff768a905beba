"""The planner: the cheapest cover of a network's program by variants.

A variant computes a contiguous span of ops. A plan is the shortest path over the cuts
between ops; its edges are candidates: a span, a variant, a configuration, and a device
or the host. Their lengths are times, remembered or measured. Where nothing may be
measured, modelled times replace them on all edges: a measured time is never ranked
against a modelled one. `search` decides what is measured, and a trial measures it: of
calls, host arrays to host arrays, or of steps of training, with all data on the device.

A span measured alone finds its weights in cache more often than in a network. So the
best covers are also measured whole, and ranked by that.

A plan whose runs are too few for a search (`Budget.pays`) has the best cover by the
model, builds included. Where the model may mislead, that cover is measured whole, since
it must be built and compared anyway; if it takes longer than modelled, the search goes
on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clnet.errors import DeviceError, OutOfMemoryError
from clnet.ir.lowering import lower
from clnet.opencl.launch import Launch, may_time_out
from clnet.opencl.rate_probes import PROBE_SECONDS, known, measured
from clnet.planning.candidates import eligible
from clnet.planning.cover import (
    MAX_SPEEDUP,
    TIE_RATIO,
    Candidate,
    Cover,
    PlanReport,
    lower_bound,
    shortest_path,
)
from clnet.planning.explain import Explanation
from clnet.planning.room import check_batch, check_training
from clnet.planning.search import incumbent, search, search_all
from clnet.planning.tuning.budget import CANDIDATE_SECONDS, SHARE, Budget
from clnet.planning.tuning.calls import CallTrial, representative
from clnet.planning.tuning.times import Times
from clnet.runtime.binding import PlanStep
from clnet.runtime.plan import Plan
from clnet.variants.base import MemberVariant, members_of
from clnet.variants.cost import modelled

if TYPE_CHECKING:
    from clnet.ir.program import Program, Span
    from clnet.nn.model import Model
    from clnet.opencl.device import Device
    from clnet.planning.tuning.trial import StepTrial
    from clnet.variants.base import Config, Variant

MAX_COVERS = 4  # measured whole
REASONS = 4  # that an error names
NEAR_CONFIGS = 2.0  # time over the best, up to which configurations are varied
MAX_ERROR = 10.0  # of modelled times, by which they say whether measuring pays


class Planner:
    """The planner of one program for one device and batch size."""

    def __init__(
        self,
        network: Model,
        device: Device,
        batch: int,
        tune: bool | None,
        variants: Sequence[Variant],
        program: Program | None = None,
        budget: Budget | None = None,
        file_times: bool = True,
        trial: type[CallTrial | StepTrial] = CallTrial,
    ) -> None:
        self.network = network
        self.device: Device = known(device)
        self.batch = batch
        self.tune = tune
        self.variants: tuple[Variant, ...] = tuple(variants)
        self.program: Program = program or lower(network)
        self.budget: Budget = budget or Budget()
        # Whether the runs are too few to measure candidates
        self.short: bool = False
        self._trial = trial
        self._file_times = file_times and not tune
        self._programs: dict[Any, int] = {}
        # Trainings are long, and take a batch of one size.
        self._begin(batch if trial.trains else representative(batch))

    def _begin(self, batch: int) -> None:
        """Begin a new report, and times of a batch size."""
        self.report: PlanReport = PlanReport()
        self.times: Times = Times(
            self._trial(self.network, self.program, self.device), batch, self.report,
            self.budget, self._file_times,
        )

    @property
    def searched(self) -> bool:
        """Whether such a search has come to its end before."""
        return self.times.searched(self.variants)

    def note_searched(self, seconds: float) -> bool:
        """Remember a search that came to its end, with calls of so many seconds."""
        ended = self.tune is not False and self.budget.pays(seconds)
        if ended and self.report.too_large is None:
            self.times.note_searched(self.variants)
        return ended

    @property
    def remembers(self) -> bool:
        """Whether remembered times make the best cover."""
        return self._find_cover().measured

    def can_prune(self, seconds: float) -> str | None:
        """Return why no cover takes less time, before any is measured, or None."""
        if not self._trial.trains:
            return None  # its copies are not among the candidates' times
        bounds = [lower_bound(self.times.remembered(c)) for c in self.candidates()]
        path = shortest_path(len(self.program.ops), bounds)
        self._begin(self.times.batch)  # the search adds the refusals again
        if path is None or path.seconds < seconds:
            return None
        return f"even {MAX_SPEEDUP:g} times as fast as modelled it would be no faster"

    def timed_cover(self) -> Cover | None:
        """Return the best cover with the time of a whole call.

        None if the time is not remembered and may not be measured.
        """
        best = self._find_cover()
        if self.tune is False:
            remembered = self.times.remembered_whole(best)
            return None if remembered.timing is None else remembered
        return next(iter(self.times.wholes([best])), None)

    def plan(self) -> Plan:
        """Return the plan of calls, or raise DeviceError if no cover exists."""
        best = self.right_cover()
        if not self.note_searched(best.seconds) and self.tune is not False:
            self.report.unmeasured = (
                f"pruned, or the search's limit of {self.budget.seconds:g} s was over; "
                "`compile` and `clnet tune` search to the end"
            )
        return Plan(
            self.network, self.device, self.batch, best.steps, self.device_steps,
            self.fallback_steps,
            Explanation(self.network, self.device, self.batch, self.report),
        )

    def device_steps(self) -> tuple[PlanStep, ...]:
        """Return the steps for device arrays, which the device computes alone."""
        condition = "as device arrays need: pass host arrays"
        alone = self.report.covers[0].steps  # measured whole: sums of spans may differ
        if any(step.device != self.device for step in alone):
            alone = self._steps_of(self._on_device, condition)
        if not any(launch.device for launch in self._launches(alone)):
            return alone
        # The calling thread computes anyway: it may then do so without helpers. A call
        # with other arrays than before would wait until these return.
        return self._steps_of([
            c for c in self.report.candidates if c.step.device is not None
            and not any(launch.standby for launch in self._launches([c.step]))
        ], condition)

    def fallback_steps(self) -> tuple[PlanStep, ...]:
        """Return the steps for a call whose kernels have timed out."""
        return self._steps_of(
            [c for c in self._on_device if not may_time_out(self._launches([c.step]))],
            "without kernels whose work-groups wait for each other",
        )

    @property
    def _on_device(self) -> list[Candidate]:
        return [c for c in self.report.candidates if c.step.device == self.device]

    def _launches(self, steps: Sequence[PlanStep]) -> tuple[Launch, ...]:
        return tuple(
            launch for step in steps
            for launch in step.variant.launches(step.span, step.config, self.device)
        )

    def _steps_of(
        self, candidates: Sequence[Candidate], condition: str
    ) -> tuple[PlanStep, ...]:
        """Return the steps of the shortest cover, or raise DeviceError without one."""
        left = list(candidates)
        while (cover := self._shortest(left)) is not None:
            wrong = self.times.wrong(cover)
            if not wrong:
                return cover.steps
            left = _without(left, wrong)
        raise DeviceError(
            f"no variant computes this network on {self.device.name} alone, "
            f"{condition}"
        )

    def right_cover(self) -> Cover:
        """Return the best cover whose results are the oracle's on this device.

        A cover is compared before its first answer counts, whatever its times come
        from: the model, the store, or measurements at another batch.
        """
        if not self.report.covers:
            self._find_cover()
        report = self.report
        while wrong := self.times.wrong(report.covers[0]):
            report.candidates = _without(report.candidates, wrong)
            report.covers = self._covers(report.candidates)
            if not report.covers:
                raise self._no_cover()
        return report.covers[0]

    def _find_cover(self) -> Cover:
        """Return the best cover; the report holds the others.

        Memory that cannot suffice is told first, before any is taken. If the
        representative batch does not fit into memory, the batch itself is
        measured.
        """
        self._check_room()
        try:
            return self._find_cover_once()
        except OutOfMemoryError:
            if self.times.batch == self.batch:
                raise
        self._begin(self.batch)
        return self._find_cover_once()

    def _check_room(self) -> None:
        """Raise OutOfMemoryError if the device cannot hold what all covers need."""
        room = self.network, self.program, self.device, self.batch
        if self._trial.trains:
            check_training(*room, members_of(self.variants[0]))
        else:
            check_batch(*room)

    def _find_cover_once(self) -> Cover:
        candidates = self.candidates()
        if self.tune is not False and self._rates_pay(candidates):
            with self.budget.excluded():
                self.device = measured(self.device)
            self._begin(self.times.batch)
            candidates = self.candidates()
        candidates = [self.times.remembered(c) for c in candidates]
        self.short = self.tune is None and self._is_short(candidates)
        if self.tune is not False and not self.short:
            find = search_all if self.tune else search
            candidates = find(self.program, candidates, self.times, self.budget)
            candidates += self._variations(candidates)
            # The order decides between equal times: it is the same in the next search,
            # which knows the variations from the beginning.
            candidates.sort(key=lambda c: c.modelled)
        self.report.candidates = candidates
        self.report.covers = self._covers(candidates)
        if not self.report.covers:
            raise self._no_cover()
        return self.report.covers[0]

    def _is_short(self, candidates: Sequence[Candidate]) -> bool:
        """Return whether no candidate pays, by the whole time of the best cover."""
        best = self._shortest(candidates)
        if best is None or self.budget.pays(best.seconds):
            return False
        if not best.measured and not self.budget.pays(MAX_ERROR * best.seconds):
            return True
        timed = self.times.wholes([best])
        return not timed or not self.budget.pays(timed[0].seconds)

    def _rates_pay(self, candidates: Sequence[Candidate]) -> bool:
        """Return whether the device's rates are to be measured first, once for all.

        They are if a time is missing, and the search is worth as much.
        """
        if self.device.measured is not None:
            return False
        if all(self.times.remembered(c).timing is not None for c in candidates):
            return False
        best = shortest_path(len(self.program.ops), candidates)
        return best is not None and self.budget.pays_for(
            PROBE_SECONDS, best.seconds
        )

    def candidates(self) -> list[Candidate]:
        """Return all eligible candidates, with modelled times."""
        return list(eligible(
            self.program, self.batch, self.times.batch, self.variants, self.device,
            self._configs, self.report.refusals,
        ))

    def _configs(self, variant: Variant, span: Span, device: Device) -> list[Config]:
        """Return the whole space for tuning, else the first and those with times."""
        space = list(variant.space(span, device))
        if self.tune is True:
            return space
        known = [
            config for config in space
            if self.times.lookup(
                PlanStep(span, variant, config, device), span
            ) is not None
        ]
        return [*space[:1], *(config for config in known if config != space[0])]

    def _variations(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return other configurations of single steps near the best, with times.

        Only those without a build count, while the search may go on.
        """
        best = incumbent(len(self.program.ops), candidates)
        variations: list[Candidate] = []
        if best is None:
            return variations
        whole = 0, len(self.program.ops)
        alone = [c for c in candidates if (c.start, c.stop) == whole]
        span = self.program.span(*whole, self.times.batch)
        for c in alone:
            variant, device = c.step.variant, c.step.device
            near = c.timing is not None and c.seconds <= NEAR_CONFIGS * best.seconds
            if device is None or not near:
                continue
            for config in variant.space(span, device):
                step = replace(c.step, config=config)
                known = step in [other.step for other in (*alone, *variations)]
                if known or not self._programs_of(step) <= self._programs_of(c.step):
                    continue
                if not self.budget.pays(best.seconds):
                    return variations
                cost = modelled(variant.cost(span, config, device), device)
                variations.append(self.times.measured(Candidate(*whole, step, cost)))
        return variations

    def _covers(self, candidates: Sequence[Candidate]) -> list[Cover]:
        """Return the covers to compare, best first, timed whole if that is allowed.

        These are the shortest path, the shortest on each device and on the host alone,
        and the shortest through each of the best runs of layers.
        """
        if self.short:
            best = self._shortest(candidates)
            return [] if best is None else [self.times.remembered_whole(best)]
        groups: list[Sequence[Candidate]] = [candidates]
        devices = dict.fromkeys(c.step.device for c in candidates)
        groups += [[c for c in candidates if c.step.device == d] for d in devices]
        # A run may be faster in a whole call than its span's time says.
        runs = sorted(
            (c for c in candidates if c.stop - c.start > 2 and c.fault is None),
            key=lambda c: (c.timing is None, c.seconds),
        )
        for run in runs[:MAX_COVERS]:
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
        # Covers still modelled were pruned, or may not be measured.
        covers = [cover for cover in covers if cover.measured] or covers
        ranked = sorted(covers, key=lambda cover: cover.seconds)[:MAX_COVERS]
        if self.tune is not False and not (
            len(ranked) == 1 and ranked[0].timing is not None
        ):
            ranked = self.times.wholes(ranked)
        elif len(ranked) > 1:
            remembered = [self.times.remembered_whole(cover) for cover in ranked]
            if all(cover.timing is not None for cover in remembered):
                ranked = remembered
        ranked.sort(key=lambda cover: cover.seconds)
        ties = [c for c in ranked if c.seconds <= TIE_RATIO * ranked[0].seconds]
        simplest = min(ties, key=lambda cover: len(cover.steps), default=None)
        return sorted(ranked, key=lambda cover: cover is not simplest)

    def _shortest(self, candidates: Sequence[Candidate]) -> Cover | None:
        """Return the shortest cover by candidates, or None if there is none.

        By measured times alone, if these make a cover; else by modelled ones alone. To
        these the `SHARE` of each candidate's builds is added, which all runs share: the
        driver keeps what is built, for trainings alike too.
        """
        n, build = len(self.program.ops), SHARE * CANDIDATE_SECONDS / self.budget.runs
        cover = incumbent(n, candidates)
        if cover is None:
            modelled = [c.timed(None) for c in candidates if c.fault is None]
            of_step = {id(c.step): c for c in modelled}
            cover = shortest_path(n, [
                replace(c, modelled=c.modelled + build * self._builds(c.step))
                for c in modelled
            ] if build else modelled)
            if cover is None:
                return None
            cover = shortest_path(n, [of_step[id(step)] for step in cover.steps])
        if cover is not None and self._trial.trains and len(cover.candidates) == 1:
            (whole,) = cover.candidates
            if isinstance(whole.step.variant, MemberVariant):
                # A launch of many steps: no wait after each.
                cover = replace(cover, span_seconds=whole.seconds)
            return replace(cover, timing=whole.timing)
        return cover

    def _builds(self, step: PlanStep) -> int:
        """Return the number of programs of a step, by its variant's first span."""
        variant, device = step.variant, step.device
        key = variant.name, tuple(step.config.items()), id(device)
        if key not in self._programs:
            self._programs[key] = len(self._programs_of(step))
        return self._programs[key]

    def _programs_of(self, step: PlanStep) -> set[tuple[object, ...]]:
        """Return the programs that a step builds: none on the host."""
        device = step.device
        return set() if device is None else {
            (launch.source, repr(launch.defines), launch.device or device)
            for launch in step.variant.launches(step.span, step.config, device)
        }

    def _no_cover(self) -> DeviceError:
        """Return the error: of memory, or with the first reasons.

        These are `REASONS`: failures, then refusals.
        """
        if self.report.too_large is not None:
            return self.report.too_large
        names = [variant.name for variant in self.variants]
        refusals = [f"{name}: {text}" for name, text in self.report.refusals]
        reasons = [*self.report.failures, *refusals]
        few = "; ".join(reasons[:REASONS])
        if len(reasons) > REASONS:
            few += f"; and {len(reasons) - REASONS} more"
        hint = "" if "generic" in names else "; name generic too, which computes all"
        by = ", ".join(names) if len(names) <= REASONS else f"{len(names)} variants"
        return DeviceError(
            f"no cover of this network on {self.device.name} by {by}: {few}{hint}"
        )


def _without(
    candidates: Sequence[Candidate], wrong: Sequence[Candidate]
) -> list[Candidate]:
    steps = {id(candidate.step) for candidate in wrong}
    return [candidate for candidate in candidates if id(candidate.step) not in steps]
