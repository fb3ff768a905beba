"""Covers of a program by candidates, the shortest one, and lower bounds.

A cover is a path over the cuts between ops; its edges are candidates. A file keeps a
cover by names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any

from clnet.opencl.store import Timing

if TYPE_CHECKING:
    from clnet.errors import OutOfMemoryError
    from clnet.runtime.binding import PlanStep

# A kernel's speed over its model's. The most seen is 2.6 (epoch with AVX-512); PoCL's
# launches back to back take a third of the time of one alone.
MAX_SPEEDUP = 3.0
TIE_RATIO = 1.05  # time over the best, up to which simpler covers and formats win


@dataclass(frozen=True)
class Candidate:
    """One way to compute one span."""

    start: int  # The span's ops in the program
    stop: int
    step: PlanStep  # Variant, configuration and device; its span has the plan's batch
    modelled: float  # Seconds by the cost model
    timing: Timing | None = None  # The measured time; None: not measured
    # Why it cannot be used after all: it failed, or its results were wrong
    fault: str | None = None

    def timed(self, timing: Timing | None) -> Candidate:
        """Return the candidate with a time, and without a fault."""
        if timing == self.timing and self.fault is None:
            return self
        return replace(self, timing=timing, fault=None)

    @property
    def seconds(self) -> float:
        """The measured time, else the modelled one."""
        return self.modelled if self.timing is None else self.timing.seconds

    @property
    def sync_seconds(self) -> float:
        """Seconds from the step's end until the host sees it."""
        device = self.step.device
        if device is None:
            return 0.0
        if self.timing is None:
            return device.rates.sync
        return max(0.0, self.timing.latency - self.timing.seconds)


@dataclass(frozen=True)
class Cover:
    """Candidates that compute the whole program, in order."""

    candidates: tuple[Candidate, ...]  # In the order of their spans
    # Sum of their times, and of the synchronisation where the device changes
    span_seconds: float
    # Time of the whole, host arrays in and out; None: not measured
    timing: Timing | None = None

    @property
    def measured(self) -> bool:
        """Whether all candidates are measured."""
        return all(candidate.timing is not None for candidate in self.candidates)

    @property
    def steps(self) -> tuple[PlanStep, ...]:
        """The steps of the candidates."""
        return tuple(candidate.step for candidate in self.candidates)

    @property
    def seconds(self) -> float:
        """The whole measured time, else the sum over spans."""
        return self.span_seconds if self.timing is None else self.timing.seconds


@dataclass(frozen=True)
class SavedPlan:
    """The cover of a training by names, for JSON: a resumed training takes its steps.

    Kernels and configurations round differently, so a plan by times that were measured
    since would give other bits.
    """

    device: str  # `Store.key` of the device
    batch: int  # Samples a step
    format: str | None  # Of the `NetworkView`; None: the network itself is trained
    # Of each step: the number of its ops, the variant's name, its configuration, and
    # the number of the device among `Device.places`
    steps: list[dict[str, Any]]

    def __post_init__(self) -> None:
        types = {"ops": int, "variant": str, "config": dict, "place": int}
        if not isinstance(self.format, str | None):
            raise ValueError("the format of a plan is not clnet's")
        for step in self.steps:
            step_types = {name: type(value) for name, value in step.items()}
            if step_types != types or step["ops"] < 1:
                raise ValueError("a step of a plan is not clnet's")


@dataclass
class PlanReport:
    """Results of a search, for `explain`."""

    candidates: list[Candidate] = field(default_factory=list)  # All eligible ones
    # Refused spans
    refusals: dict[tuple[str, str], list[tuple[int, int]]] = field(default_factory=dict)
    # Failures of eligible candidates, a sentence each
    failures: list[str] = field(default_factory=list)
    too_large: OutOfMemoryError | None = None  # The last failure for want of memory
    covers: list[Cover] = field(default_factory=list)  # The covers compared, best first
    # Why candidates have no measured times; "": no reason is printed
    unmeasured: str = ""
    # Formats of the layers of format `"auto"`, and seconds of a whole call or step of
    # training, the chosen one first, then by time; empty: nothing to choose
    formats: list[tuple[str, float]] = field(default_factory=list)
    # Formats that were not tried, and why
    untried: list[tuple[str, str]] = field(default_factory=list)
    # Devices, and seconds of a whole call, best first; empty: one was named
    devices: list[tuple[str, float]] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _Path:
    """Candidates from cut 0 on: the last one, and the path before it."""

    last: Candidate | None = None  # None: the empty path
    before: _Path | None = None  # The path that the last candidate extends
    # Their times, with the synchronisation between them; and until the host sees the
    # end
    seconds: float = 0.0
    synced: float = 0.0

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The candidates, in order."""
        candidates: list[Candidate] = []
        path: _Path | None = self
        while path is not None and path.last is not None:
            candidates.append(path.last)
            path = path.before
        return tuple(reversed(candidates))


def shortest_path(n: int, candidates: Iterable[Candidate]) -> Cover | None:
    """Return the shortest path from cut 0 to cut n, synchronisation included.

    A change of the device, and the end on the host, costs the synchronisation of the
    candidate before. So two of the paths to a cut that end on one device can be part of
    the shortest: the shortest if the device stays, and the shortest with
    synchronisation if it does not.
    """
    # By cut and device (by identity: its hash is slow), the two paths.
    paths: dict[int, dict[int, tuple[_Path, _Path]]] = {0: {id(None): (_Path(),) * 2}}
    for candidate in sorted(candidates, key=lambda c: (c.stop, c.start)):
        ends = paths.setdefault(candidate.stop, {})
        key = id(candidate.step.device)
        sync = candidate.sync_seconds
        for end, (staying, leaving) in paths.get(candidate.start, {}).items():
            before = staying if end == key else leaving
            seconds = staying.seconds if end == key else leaving.synced
            seconds += candidate.seconds
            known = ends.get(key)
            nearer = known is None or seconds < known[0].seconds
            ready = known is None or seconds + sync < known[1].synced
            if nearer or ready:  # few paths are: an object for each took half the time
                path = _Path(candidate, before, seconds, seconds + sync)
                shortest, synced = known or (path, path)
                ends[key] = path if nearer else shortest, path if ready else synced
    whole = [leaving for _, leaving in paths.get(n, {}).values()]
    best = min(whole, key=lambda path: path.synced, default=None)
    if best is None or best.last is None:
        return None
    return Cover(best.candidates, best.synced)


def lower_bound(candidate: Candidate) -> Candidate:
    """Return a candidate with the lower bound of its time, as if measured."""
    if candidate.timing is not None:
        return candidate
    least = candidate.modelled / MAX_SPEEDUP
    return replace(candidate, timing=Timing(least, least, 0.0))


def shortest_through(n: int, candidates: Sequence[Candidate]) -> list[float]:
    """Return for each candidate the seconds of the shortest path through it.

    From cut 0 to cut n, without synchronisation.
    """
    before, after = [0.0, *[inf] * n], [*[inf] * n, 0.0]
    for c in sorted(candidates, key=lambda c: c.stop):
        before[c.stop] = min(before[c.stop], before[c.start] + c.seconds)
    for c in sorted(candidates, key=lambda c: -c.start):
        after[c.start] = min(after[c.start], c.seconds + after[c.stop])
    return [before[c.start] + c.seconds + after[c.stop] for c in candidates]


def device_name(step: PlanStep) -> str:
    """Return a step's device in words: host, calling thread, or device."""
    if step.device is None:
        return "host"
    return "calling thread" if step.device.serial else "device"
