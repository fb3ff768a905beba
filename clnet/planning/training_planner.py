"""The planner of training: the cheapest cover of a step's program, measured.

Like the planner of inference it ranks spans by remembered or measured times, and then
the best covers whole; but at the batch size of the training, and with all data on the
device.

A step has many ops, and building a kernel takes longer than measuring it. So the search
is best first: the shortest path by lower bounds is found, its slowest candidate without
a time is measured, and so on until the path is measured. It is then the shortest of
all, unless a kernel is more than `MAX_SPEEDUP` times as fast as its model.

A training too short for that (`Search.pays`) has the best cover by the model, builds
included. Where the model may mislead, that cover is measured whole, since it must be
built and compared anyway; if it takes longer than modelled, the search goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any

from clnet.errors import InputError
from clnet.ir.loss import Tally
from clnet.ir.update import Update
from clnet.opencl.store import store_of
from clnet.planning.cover import (
    MAX_SPEEDUP,
    Candidate,
    Cover,
    SavedPlan,
    lower_bound,
    shortest_path,
)
from clnet.planning.explain import explanation
from clnet.planning.format_planner import NetworkView, best_format, is_auto
from clnet.planning.planner import Planner
from clnet.planning.room import check_training
from clnet.planning.tuning.search import Search
from clnet.planning.tuning.times import Times
from clnet.planning.tuning.trial import Trial
from clnet.variants import VARIANTS
from clnet.variants.training_variants import STEP_VARIANTS

if TYPE_CHECKING:
    from clnet.ir.op import Value
    from clnet.ir.program import Program
    from clnet.nn.model import Model
    from clnet.opencl.device import Device
    from clnet.opencl.session import Session
    from clnet.planning.tuning.measure import Run
    from clnet.runtime.binding import Step
    from clnet.variants.base import Variant

# A validation is a small part of an epoch: its parts are searched only for covers that
# may be this many times as fast as the best single span.
VALIDATION_SPEEDUP = 4.0
NEAR_RATIO = 1.3  # time over the best, up to which covers of one device are searched
MAX_PER_SPAN = 3  # candidates of a span without a time, the best by the model
MAX_ERROR = 10.0  # of modelled times, by which they say whether measuring pays
MAX_KEPT = 64  # plans of a device

TRAINING_VARIANTS: tuple[Variant, ...] = (
    # Training stays on the device and cannot repeat a step after a timeout.
    *(
        variant for variant in VARIANTS
        if variant.name not in (
            "host", "persistent", "persistent_mma", "persistent_mixed", "mma_chain"
        )
    ),
    *STEP_VARIANTS,
)
"""The variants that may compute a training step."""


@dataclass(frozen=True)
class TrainingPlan:
    """The plan of a program of training."""

    network: Model  # The network, or a `NetworkView` of it, whose layout the steps use
    program: Program  # The program, lowered from it
    steps: tuple[Step, ...]  # The chosen cover, in order
    explanation: str  # The text of `explain`

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
    kind: type[TrainingPlanner] | None = None,
) -> TrainingPlan:
    """Return the cheapest steps for a program of training."""
    chosen = TRAINING_VARIANTS if variants is None else tuple(variants)
    search = search or Search()
    last = program.ops[-1]
    if isinstance(last, Update) and last.optimiser.uses_offset:
        lowered = None
    kept: dict[Any, dict[bool, _Kept]] = store_of(device).kept
    tried = variants and chosen  # all variants take longer to hash than all else
    key = program, batch, tried, lowered is None, *map(is_auto, network.layers)
    if tune is None:
        # Short trainings keep their plan, though a longer one has measured since.
        for short, plan in sorted(kept.get(key, {}).items(), reverse=True):
            if not (short and search.pays(plan.seconds)):
                return plan.plan(network)

    def planner(stored: Model) -> TrainingPlanner:
        other = program if lowered is None else lowered(stored)
        make = kind or TrainingPlanner
        return make(stored, device, batch, tune, chosen, other, search)

    best = planner(network) if lowered is None else best_format(
        network, device, planner
    )
    found = best.training_plan()
    if tune is not False:
        while len(kept) >= MAX_KEPT:
            kept.pop(next(iter(kept)), None)
        view = found.network if found.network is not network else None
        name = view.format if isinstance(view, NetworkView) else None
        seconds = best.report.covers[0].seconds
        kept.setdefault(key, {})[best.short] = _Kept(
            name, found.program, found.steps, found.explanation, seconds
        )
    return found


def saved_plan(plan: TrainingPlan, device: Device) -> SavedPlan:
    """Return a device's plan by names."""
    view, places = plan.network, device.places
    return SavedPlan(
        store_of(device).key, plan.steps[0].span.batch,
        view.format if isinstance(view, NetworkView) else None,
        [
            {
                "ops": len(step.span.ops), "variant": step.variant.name,
                "config": dict(step.config), "place": places.index(step.device),
            }
            for step in plan.steps if step.device is not None  # as all of training
        ],
    )


def plan_as_saved(
    saved: SavedPlan,
    network: Model,
    program: Program,
    device: Device,
    batch: int,
    *,
    lowered: Callable[[Model], Program] | None = None,
    search: Search | None = None,
) -> TrainingPlan | None:
    """Return a plan by its names, compared with the oracle on this device."""
    ops = sum(step["ops"] for step in saved.steps)
    here = store_of(device).key, batch, len(program.ops)
    if (saved.device, saved.batch, ops) != here:
        return None
    stored = network
    if saved.format is not None and lowered is not None:
        try:
            stored = NetworkView(network, saved.format)
        except InputError:
            return None
        program = lowered(stored)
    names = {step["variant"] for step in saved.steps}
    variants = tuple(one for one in TRAINING_VARIANTS if one.name in names)
    planner = TrainingPlanner(stored, device, batch, True, variants, program, search)
    return planner.plan_of(saved.steps)


@dataclass(frozen=True)
class _Kept:
    """A plan without its network: trainings alike have the first one's plan."""

    format: str | None  # Of the `NetworkView`; None: the network itself is trained
    program: Program  # As of `TrainingPlan`
    steps: tuple[Step, ...]
    explanation: str
    seconds: float  # Of a step

    def plan(self, network: Model) -> TrainingPlan:
        """Return the plan for a network with the same program."""
        other = network if self.format is None else NetworkView(network, self.format)
        return TrainingPlan(other, self.program, self.steps, self.explanation)


class TrainingTimes(Times):
    """Times of steps of training, on random data."""

    whole = "training step"

    @cached_property
    def _trial(self) -> Trial:
        return Trial(self.session, self.network, self.program)

    def _ready(
        self, steps: Sequence[Step], inputs: Sequence[Value], outputs: Sequence[Value],
        *, on_device: bool, alike: Sequence[Step] = (),
    ) -> Run:
        return self._trial.ready(steps, outputs)

    def _compared(
        self, device: Session, steps: Sequence[Step], inputs: Sequence[Value],
        outputs: Sequence[Value],
    ) -> bool:
        return self._trial.check(steps, outputs).compared


class TrainingPlanner(Planner):
    """The planner of a program of training; see `Planner`."""

    short: bool = False  # whether the training is too short to measure candidates
    timed_by: type[TrainingTimes] = TrainingTimes

    def _times(self, batch: int) -> Times:
        return self.timed_by(
            self.network, self.program, self.device, self.batch, self.report,
            self.search, self._given,
        )

    def _check_room(self) -> None:
        check_training(self.network, self.program, self.device, self.batch)

    def can_prune(self, seconds: float) -> str | None:
        """Return why no cover takes less time, before any is measured, or None."""
        bounds = [lower_bound(self.times.remembered(c)) for c in self._candidates()]
        path = shortest_path(len(self.program.ops), bounds)
        self._begin(self.times.batch)  # the search adds the refusals again
        if path is None or path.seconds < seconds:
            return None
        return f"even {MAX_SPEEDUP:g} times as fast as modelled it would be no faster"

    def plan_of(self, steps: Sequence[Mapping[str, Any]]) -> TrainingPlan | None:
        """Return the plan of steps by name, or None if one refuses or fails."""
        start, wanted = 0, []
        for step in steps:
            stop = start + step["ops"]
            wanted.append((start, stop, step["variant"], step["config"], step["place"]))
            start = stop
        places = self.device.places
        candidates = [
            c for c in self._candidates() if c.step.device is not None and (
                c.start, c.stop, c.step.variant.name, dict(c.step.config),
                places.index(c.step.device),
            ) in wanted
        ]
        cover = shortest_path(len(self.program.ops), candidates)
        if cover is None or self.times.wrong(cover):
            return None
        self.report.candidates, self.report.covers = candidates, [cover]
        found = self._plan_by(cover)
        text = f"{found.explanation}\n\nThe plan is that of the checkpoint."
        return replace(found, explanation=text)

    def training_plan(self) -> TrainingPlan:
        """Return the plan of the best cover whose results are right."""
        best = self._right_cover()
        self.report.unmeasured = (
            "nothing new may be measured" if self.tune is False else
            "the training is too short to measure them; fit(tune=True) does"
            if self.short else
            f"even {MAX_SPEEDUP:g} times as fast as modelled they would make no "
            f"faster step, or {MAX_PER_SPAN} others of their span are modelled faster"
        )
        return self._plan_by(best)

    def _plan_by(self, cover: Cover) -> TrainingPlan:
        text = self._explained(cover)
        return TrainingPlan(self.network, self.program, cover.steps, text)

    def _explained(self, cover: Cover) -> str:
        return explanation(
            self.network, self.device, self.batch, self.report, self.program
        )

    def _measured(self, candidates: list[Candidate]) -> list[Candidate]:
        """Return the candidates with times, as far as the best paths need them.

        Candidates that span the program come first; its parts are searched only for
        faster covers. Next come the covers of one device that may be near the best: the
        sum of a path's times may differ from the time of the whole.
        """
        if self.tune is True:
            return super()._measured(candidates)
        found = [self.times.remembered(c) for c in candidates]
        self.short = self._is_short(found)
        if self.short:
            return found
        n = len(self.program.ops)
        wholes = [i for i, c in enumerate(found) if c.stop - c.start == n]
        trains = not isinstance(self.program.ops[-1], Tally)
        whole = self._best_first(found, wholes, inf)
        limit = whole if trains else whole / VALIDATION_SPEEDUP
        divided = self._best_first(found, range(len(found)), limit)
        among = range(len(found)) if divided < whole else wholes
        for device in self.device.places:
            same = [i for i in among if found[i].step.device == device]
            self._best_first(found, same, NEAR_RATIO * min(whole, divided))
        return found

    def _is_short(self, candidates: Sequence[Candidate]) -> bool:
        """Return whether no candidate pays, by the whole time of the best cover."""
        best = self._shortest(candidates)
        if best is None or self.search.pays(best.seconds):
            return False
        if not best.measured and not self.search.pays(MAX_ERROR * best.seconds):
            return True
        timed = self._time_whole([best])
        return not timed or not self.search.pays(timed[0].seconds)

    def _best_first(
        self, candidates: list[Candidate], among: Sequence[int], limit: float
    ) -> float:
        """Measure until the shortest path by lower bounds has times alone."""
        while True:
            incumbent = self._incumbent(candidates)
            if incumbent is not None and not self.search.pays(incumbent.seconds):
                return inf
            bounds = {
                i: lower_bound(candidates[i]) for i in _considered(candidates, among)
            }
            path = shortest_path(len(self.program.ops), bounds.values())
            if path is None or path.seconds > limit:
                return inf
            on_path = {id(candidate) for candidate in path.candidates}
            unknown = [
                i for i, bound in bounds.items()
                if id(bound) in on_path and candidates[i].timing is None
            ]
            if not unknown:
                return path.seconds
            slowest = max(unknown, key=lambda i: candidates[i].modelled)
            candidates[slowest] = self.times.measured(candidates[slowest])

    def _covers(self, candidates: Sequence[Candidate]) -> list[Cover]:
        if self.short:
            best = self._shortest(candidates)
            return [] if best is None else [self.times.remembered_whole(best)]
        covers = super()._covers(candidates)
        if self.tune is not False and len(covers) == 1:
            return self._time_whole(covers) if covers[0].timing is None else covers
        return covers

    def _shortest(self, candidates: Sequence[Candidate]) -> Cover | None:
        cover = super()._shortest(candidates)
        if cover is None or len(cover.candidates) > 1:
            return cover
        (whole,) = cover.candidates
        return replace(cover, timing=whole.timing)  # the span is the whole program


def _considered(candidates: Sequence[Candidate], among: Sequence[int]) -> Iterator[int]:
    """Yield the candidates with times, and the `MAX_PER_SPAN` best of each span.

    Those with a fault are left out.
    """
    ranks: Counter[tuple[int, int]] = Counter()
    for i in sorted(among, key=lambda i: candidates[i].modelled):
        candidate = candidates[i]
        if candidate.fault is None:
            span = candidate.start, candidate.stop
            ranks[span] += 1
            if candidate.timing is not None or ranks[span] <= MAX_PER_SPAN:
                yield i
