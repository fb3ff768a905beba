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

import time
import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clnet.binding import Step
from clnet.checks import as_numbers, as_rows, check_count, is_sparse
from clnet.cover import Candidate, Cover, Survey, shortest_path
from clnet.device import Device
from clnet.device import device as find_device
from clnet.errors import (
    ClnetError,
    ClnetWarning,
    DeviceError,
    InputError,
    OutOfMemoryError,
    unknown,
)
from clnet.explain import explanation
from clnet.format_planner import best_stored
from clnet.ops import Program, Span, Value
from clnet.program import source_hash
from clnet.runtime import Plan
from clnet.session import Session, session
from clnet.tuning.measure import (
    SPIN_SECONDS,
    WrongResultError,
    measure,
    representative,
)
from clnet.tuning.store import Store, Timing
from clnet.variants import VARIANTS, Variant
from clnet.variants.base import Config, Cost
from clnet.variants.host import Host

if TYPE_CHECKING:
    from clnet.network import Network

# What a compute unit does at best, for the model only: flops and bytes a second.
RATES = {"cpu": (5e10, 2e10), "gpu": (4e11, 3e10)}
PROSPECT = 5.0  # a span is measured unless the model gives it this many times the best
ALIKE = 8  # equal spans that are timed together, at most
CLOSE = 2.0  # whole covers this near the best are measured again: the machine may
# have been busy with something else
AGAIN = 3  # so many times
SIMPLER = 1.05  # of covers this near the best the one of fewest steps is taken
COVERS = 4  # whole covers that are measured against each other
CHUNK = 8192  # samples a call of `predict`, at most
PLANS = 16  # plans that a network keeps for `predict`


def compile_network(
    network: Network,
    device: str | Device | None,
    batch: int,
    *,
    tune: bool | None = None,
    variants: Sequence[str] | None = None,
) -> Plan:
    """Return the best plan for a network on a device; see `Network.compile`."""
    check_count("batch", batch)
    if tune is not None and not isinstance(tune, bool):
        raise InputError(f"tune must be None, True or False, not {tune!r}")
    where, allowed = find_device(device), _named(variants)

    def planner(stored: Network) -> Planner:
        return Planner(stored, where, int(batch), tune, allowed)

    return best_stored(network, where, planner).plan()


def predict(
    network: Network, x: ArrayLike, device: str | Device | None
) -> NDArray[Any]:
    """Return the outputs for any number of samples; see `Network.predict`."""
    # Sparse ones become dense a chunk at a time: they may be too large as a whole.
    array = as_rows(x) if is_sparse(x) else as_numbers("x", x, network.dtype)
    rows = array[np.newaxis] if array.ndim == 1 else array
    if rows.ndim != 2 or rows.shape[1] != network.n_in:
        raise InputError(
            f"x has shape {list(array.shape)}, expected [batch, {network.n_in}] or "
            f"[{network.n_in}]"
        )
    if rows.shape[0] == 0:
        raise InputError("x has no sample: give at least one")
    where = find_device(device)
    parts = []
    for start in range(0, rows.shape[0], CHUNK):
        chunk = as_numbers("x", rows[start : start + CHUNK], network.dtype)
        parts.append(network.plan_for(where, len(chunk))(chunk))
    y = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return y[0] if array.ndim == 1 else y


def _named(names: Sequence[str] | None) -> tuple[Variant, ...]:
    if names is None:
        return VARIANTS
    known = {variant.name: variant for variant in VARIANTS}
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InputError(f"variants must be a list of names, not {names!r}")
    chosen = list(names)
    if not chosen:
        raise InputError(f"variants is empty: name some of {', '.join(known)}")
    for name in chosen:
        if not isinstance(name, str) or name not in known:
            raise unknown("variant", name, known)
    return tuple(variant for variant in VARIANTS if variant.name in chosen)


@cache
def _store(device: Device) -> Store:
    return Store(device)


class Planner:
    """The planning of one network for one device and batch.

    Attributes
    ----------
    whole : str
        What the times of whole covers are of.
    """

    whole = "host to host"

    def __init__(
        self,
        network: Network,
        device: Device,
        batch: int,
        tune: bool | None,
        variants: tuple[Variant, ...],
        program: Program | None = None,
    ) -> None:
        self.network = network
        self.device = device
        self.batch = batch
        self.tune = tune
        self.variants = variants
        self.program: Program = program or network.program
        self.survey = Survey()
        self._measured_batch = representative(batch)
        self._times: dict[tuple[str, str], Timing | str] = {}
        self._host_worked = False

    @property
    def session(self) -> Session:
        """The device's, made when it is first asked for."""
        return session(self.device)

    def timed(self) -> Cover | None:
        """Return the best cover with the time of a whole call.

        None if that is not remembered and may not be measured. Raises DeviceError if no
        cover exists.
        """
        chosen = self._chosen()
        if self.tune is False:
            remembered = self._remembered_whole(chosen)
            return None if remembered.timing is None else remembered
        return next(iter(self._contest([chosen])), None)

    def plan(self) -> Plan:
        """Return the plan, or raise DeviceError if no cover exists."""
        chosen = self.survey.covers[0] if self.survey.covers else self._chosen()
        survey = self.survey

        def device_steps() -> tuple[Step, ...]:
            here = [c for c in survey.candidates if c.step.place == self.device]
            cover = self._shortest(here)
            if cover is None:
                raise DeviceError(
                    f"no variant computes this network on {self.device.name} alone, "
                    "as device arrays need: pass host arrays"
                )
            return cover.steps

        text = explanation(self.network, self.device, self.batch, survey)
        return Plan(
            self.network, self.device, self.batch, chosen.steps, device_steps, text
        )

    def _chosen(self) -> Cover:
        """Return the best cover; the survey then tells of the others.

        Where the batch fits into memory and the one that is measured in its stead does
        not, the batch itself is measured.
        """
        try:
            return self._searched()
        except OutOfMemoryError:
            if self._measured_batch == self.batch:
                raise
        self._measured_batch = self.batch
        self.survey = Survey()
        return self._searched()

    def _searched(self) -> Cover:
        candidates = self._candidates()
        if self.tune is not False:
            candidates = self._measured(candidates)
        else:
            candidates = [self._remembered(c) for c in candidates]
        self.survey.candidates = candidates
        covers = self._covers(candidates)
        if not covers:
            raise DeviceError(self._no_cover())
        self.survey.covers = covers
        return covers[0]

    def _spans(self, variant: Variant) -> Iterable[tuple[int, int]]:
        """Return the spans that a variant may compute, as pairs of op numbers."""
        n = len(self.program.ops)
        if variant.reach == "program":
            return [(0, n)]
        if variant.reach in ("op", "pair"):
            longest = 2 if variant.reach == "pair" else 1
            return [
                (i, i + k) for k in range(1, longest + 1) for i in range(n - k + 1)
            ]
        layers = [i for i in range(n - 1) if self._span(i, i + 2).chain is not None]
        single = [(i, i + 2) for i in layers]
        if variant.reach == "layer":
            return single
        # A run: each layer alone, and the longest chains that it does not refuse.
        runs = list(single)
        place = self.device
        start = 0
        while start < n:
            stop = start
            while stop + 2 <= n and self._runs(variant, start, stop + 2, place):
                stop += 2
            if stop - start > 2:
                runs.append((start, stop))
            start = max(stop, start + 1)
        return runs

    def _runs(self, variant: Variant, start: int, stop: int, place: Device) -> bool:
        span = self._span(start, stop)
        return span.layers is not None and variant.refuse(span, place) is None

    def _span(self, start: int, stop: int, batch: int | None = None) -> Span:
        return self.program.span(start, stop, batch or self.batch)

    def _candidates(self) -> list[Candidate]:
        """Return every eligible candidate; refusals go to the survey.

        Configurations and modelled times are those of the batch that is measured, so
        that all batches it stands for have the same candidates.
        """
        found = []
        for variant in self.variants:
            host = isinstance(variant, Host)
            for start, stop in self._spans(variant):
                span = self._span(start, stop)
                priced = self._measuring_span(start, stop)
                for place in (self.device,) if host else self.device.places:
                    sentence = variant.refuse(span, place)
                    configs = [] if sentence else self._configs(variant, priced, place)
                    if not configs:
                        sentence = sentence or "it has no configuration for this size"
                        where = self.survey.refusals.setdefault(
                            (variant.name, sentence), []
                        )
                        if (start, stop) not in where:
                            where.append((start, stop))
                        continue
                    for config in configs:
                        step = Step(span, variant, config, None if host else place)
                        cost = variant.cost(priced, config, place)
                        seconds = _modelled(cost, place)
                        found.append(Candidate(start, stop, step, seconds))
        return found

    def _configs(
        self, variant: Variant, span: Span, place: Device
    ) -> list[Config]:
        """Return the configurations to consider: all remembered, or all to measure."""
        space = list(variant.space(span, place))
        if self.tune is True:
            return space
        known = [
            config for config in space
            if self._lookup(Step(span, variant, config, place)) is not None
        ]
        return [*space[:1], *(config for config in known if config != space[0])]

    def _key(self, step: Step) -> str:
        """Return the store's key of a step: everything but device and span."""
        place = "host" if step.place is None else (
            "calling thread" if step.place.serial else "device"
        )
        config = ",".join(f"{k}={v}" for k, v in sorted(step.config.items()))
        launches = () if step.place is None else step.variant.launches(
            step.span, step.config, step.place
        )
        sources = sorted({launch.source for launch in launches})
        hashes = ",".join(f"{source}:{source_hash(source)}" for source in sources)
        return f"{step.variant.name}({config}) {place} {hashes}".strip()

    def _measuring_span(self, start: int, stop: int) -> Span:
        return self._span(start, stop, self._measured_batch)

    def _lookup(self, step: Step) -> Timing | None:
        span = Span(
            step.span.ops, self._measured_batch, step.span.dtype, step.span.outputs,
        )
        return _store(self.device).get(span.signature, self._key(step))

    def _remembered(self, candidate: Candidate) -> Candidate:
        return _with(candidate, self._lookup(candidate.step))

    def _measured(self, candidates: list[Candidate]) -> list[Candidate]:
        """Return the candidates with times, measuring those that have prospects.

        The host's come last: NumPy's threads spin for a while after they have worked.
        """
        limits = self._limits(candidates)
        order = sorted(
            range(len(candidates)), key=lambda i: candidates[i].step.place is None
        )
        result = list(candidates)
        for i in order:
            candidate = self._remembered(candidates[i])
            if candidate.timing is None and (
                self.tune is True
                or candidate.modelled <= limits[candidate.start, candidate.stop]
            ):
                candidate = self._measure(candidate)
            result[i] = candidate
        return result

    def _limits(
        self, candidates: Sequence[Candidate]
    ) -> dict[tuple[int, int], float]:
        """Return for each span the modelled time up to which it has prospects."""
        rivals: dict[tuple[int, int], list[float]] = {}
        for c in candidates:
            rivals.setdefault((c.start, c.stop), []).append(c.modelled)
        return {span: PROSPECT * min(times) for span, times in rivals.items()}

    def _measure(self, candidate: Candidate) -> Candidate:
        step = candidate.step
        span = self._measuring_span(candidate.start, candidate.stop)
        key = (span.signature, self._key(step))
        if key not in self._times:
            trial, *alike = (
                Step(other, step.variant, step.config, step.place)
                for other in self._alike(span, candidate)
            )
            try:
                timing = self._timed(
                    [trial], span.inputs, span.outputs,
                    on_device=step.place is not None, alike=alike,
                )
            except (DeviceError, WrongResultError) as error:
                self._leave_out(step.variant.name, error)
                self._times[key] = str(error)
            else:
                self._times[key] = timing
                _store(self.device).put(*key, timing)
        found = self._times[key]
        if isinstance(found, str):
            return Candidate(
                candidate.start, candidate.stop, step, candidate.modelled, None, found
            )
        return _with(candidate, found)

    def _timed(
        self, steps: Sequence[Step], inputs: Sequence[Value], outputs: Sequence[Value],
        *, on_device: bool, alike: Sequence[Step] = (),
    ) -> Timing:
        """Measure steps, once the threads of the host's steps before have come to rest.

        Those would take a core from the device, where that is the CPU.
        """
        host = any(step.place is None for step in steps)
        if self._host_worked and not host:
            time.sleep(SPIN_SECONDS)
        self._host_worked = host
        return measure(
            self.session, self.network, steps, inputs, outputs, on_device=on_device,
            alike=alike,
        )

    def _alike(self, span: Span, candidate: Candidate) -> list[Span]:
        """Return a span, and the later ones of its kind that do not overlap."""
        n, length = len(self.program.ops), candidate.stop - candidate.start
        found, end = [span], candidate.stop
        while end + length <= n and len(found) < ALIKE:
            other = self._measuring_span(end, end + length)
            if other.signature == span.signature:
                found.append(other)
                end += length
            else:
                end += 1
        return found

    def _leave_out(self, what: str, error: ClnetError) -> None:
        """Tell the user, and `explain`, of what failed although it was eligible."""
        too_large = isinstance(error, OutOfMemoryError)
        if too_large and self._measured_batch != self.batch:
            raise error
        sentence = f"{what}: failed: {error}"
        if sentence not in self.survey.failures:
            self.survey.failures.append(sentence)
            warnings.warn(f"{what} is left out: {error}", ClnetWarning, stacklevel=2)

    def _covers(self, candidates: Sequence[Candidate]) -> list[Cover]:
        """Return the covers to compare, best first: measured whole if that is allowed.

        The shortest path, the shortest on each place alone, and the shortest through
        each run.
        """
        groups: list[Sequence[Candidate]] = [candidates]
        places = dict.fromkeys(c.step.place for c in candidates)
        groups += [[c for c in candidates if c.step.place == p] for p in places]
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
            ranked.sort(key=lambda cover: any(s.place is None for s in cover.steps))
            ranked = self._contest(ranked)
        elif len(ranked) > 1:
            remembered = [self._remembered_whole(cover) for cover in ranked]
            if all(cover.timing is not None for cover in remembered):
                ranked = remembered
        ranked.sort(key=lambda cover: cover.seconds)
        near = [c for c in ranked if c.seconds <= SIMPLER * ranked[0].seconds]
        simplest = min(near, key=lambda cover: len(cover.steps), default=None)
        return sorted(ranked, key=lambda cover: cover is not simplest)

    def _whole_key(self, cover: Cover) -> tuple[str, str]:
        n = len(self.program.ops)
        span = self._measuring_span(0, n)
        parts = [
            f"{c.start}-{c.stop} {self._key(c.step)}" for c in cover.candidates
        ]
        return f"{self.whole} {span.signature}", "; ".join(parts)

    def _remembered_whole(self, cover: Cover) -> Cover:
        timing = _store(self.device).get(*self._whole_key(cover))
        return Cover(cover.candidates, cover.added, timing)

    def _contest(self, covers: Sequence[Cover]) -> list[Cover]:
        """Return the covers that do not fail, with their whole times.

        New times that are close are taken again, in turn, and the least is kept: the
        machine may have been busy with something else.
        """
        known = [self._remembered_whole(cover) for cover in covers]
        if all(cover.timing is not None for cover in known):
            return known
        measured = [
            cover if cover.timing is not None else self._measured_whole(cover)
            for cover in covers
        ]
        found = [cover for cover in measured if cover is not None]
        for _ in range(AGAIN):
            least = min((cover.seconds for cover in found), default=0.0)
            for i, cover in enumerate(found):
                if len(found) > 1 and cover.seconds <= CLOSE * least:
                    again = self._measured_whole(cover)
                    if again is not None and again.seconds < cover.seconds:
                        found[i] = again
        for cover in found:
            assert cover.timing is not None
            _store(self.device).put(*self._whole_key(cover), cover.timing)
        return found

    def _measured_whole(self, cover: Cover) -> Cover | None:
        """Return the cover with its whole time, or None if it fails."""
        steps = [
            Step(
                self._measuring_span(c.start, c.stop), c.step.variant, c.step.config,
                c.step.place,
            )
            for c in cover.candidates
        ]
        try:
            timing = self._timed(
                steps, self.program.inputs, self.program.outputs, on_device=False
            )
        except (DeviceError, WrongResultError) as error:
            names = dict.fromkeys(step.variant.name for step in steps)
            self._leave_out(f"{' with '.join(names)}, all ops", error)
            return None
        return Cover(cover.candidates, cover.added, timing)

    def _shortest(self, candidates: Iterable[Candidate]) -> Cover | None:
        """Return the shortest cover by candidates, or None if there is none.

        By measured times alone, if these make a cover; else by modelled ones alone.
        """
        usable = [c for c in candidates if c.fault is None]
        measured = [c for c in usable if c.timing is not None]
        cover = shortest_path(len(self.program.ops), measured)
        if cover is not None:
            return cover
        modelled = [
            Candidate(c.start, c.stop, c.step, c.modelled) for c in usable
        ]
        return shortest_path(len(self.program.ops), modelled)

    def _no_cover(self) -> str:
        refusals = [f"{name}: {text}" for name, text in self.survey.refusals]
        reasons = [*refusals, *self.survey.failures]
        names = ", ".join(variant.name for variant in self.variants)
        return (
            f"no cover of this network on {self.device.name} by {names}: "
            f"{'; '.join(reasons)}"
        )


def _modelled(cost: Cost, place: Device) -> float:
    """Return the seconds that the model gives for a cost on a place."""
    flops, bytes_ = RATES["cpu" if place.type == "cpu" else "gpu"]
    units = max(1, cost.compute_units) * cost.efficiency
    busy = max(cost.flops / (flops * units), cost.bytes / (bytes_ * units))
    return busy + cost.launches * place.launch_cost


def _with(candidate: Candidate, timing: Timing | None) -> Candidate:
    return Candidate(
        candidate.start, candidate.stop, candidate.step, candidate.modelled, timing
    )
