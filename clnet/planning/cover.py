"""Covers: ways to compute a whole program, and the shortest of them.

A cover is a path over the cuts between ops, its edges spans computed by a variant in a
configuration at a place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from clnet.opencl.device import Device
from clnet.opencl.store import Timing
from clnet.runtime.binding import Step

# The most that was seen is 2.6 (epoch with AVX-512); launches of PoCL's threads, one
# after the other, take a third of what one alone takes.
FASTEST = 3.0  # times as fast as its model no kernel is


@dataclass(frozen=True)
class Candidate:
    """One way to compute one span.

    Attributes
    ----------
    start, stop : int
        The span's ops in the program.
    step : Step
        How; its span has the batch asked for.
    modelled : float
        Seconds by the cost model.
    timing : Timing or None
        Measured, if it is.
    fault : str or None
        Why it cannot be used after all: it failed, or computed something else.
    """

    start: int
    stop: int
    step: Step
    modelled: float
    timing: Timing | None = None
    fault: str | None = None

    @property
    def seconds(self) -> float:
        """The measured time, else the modelled one."""
        return self.modelled if self.timing is None else self.timing.seconds

    @property
    def hand_over(self) -> float:
        """Seconds until the host sees the step's end, beyond the step's own time."""
        place = self.step.device
        if place is None:
            return 0.0
        if self.timing is None:
            return place.launch_cost
        return max(0.0, self.timing.latency - self.timing.seconds)


@dataclass(frozen=True)
class Cover:
    """Candidates that compute the whole program, in order.

    Attributes
    ----------
    candidates : tuple of Candidate
        One after the other.
    added : float
        Sum of their times and of the hand-overs where the place changes.
    timing : Timing or None
        Measured whole, host arrays in and out, if it is.
    """

    candidates: tuple[Candidate, ...]
    added: float
    timing: Timing | None = None

    @property
    def measured(self) -> bool:
        """Whether all its candidates are measured."""
        return all(candidate.timing is not None for candidate in self.candidates)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of the candidates."""
        return tuple(candidate.step for candidate in self.candidates)

    @property
    def seconds(self) -> float:
        """The whole measured time, else the sum."""
        return self.added if self.timing is None else self.timing.seconds


@dataclass
class PlanReport:
    """What the planner saw, for `explain`.

    Attributes
    ----------
    candidates : list of Candidate
        All that were eligible.
    refusals : dict of (variant name, sentence) to list of (start, stop)
        Why the others were not.
    failures : list of str
        What was eligible and failed, a sentence each.
    covers : list of Cover
        Those compared in the end, best first.
    unmeasured : str
        What those without times are and why they have none, if that is to be told.
    formats : list of (str, float)
        Formats of the layers that leave theirs to be chosen, and seconds of a whole
        call or step of training, best first; empty where there was nothing to choose.
    untried : list of (str, str)
        Formats that were not tried, and why.
    devices : list of (str, float)
        Devices, and seconds of a whole call, best first; empty where one was named.
    """

    candidates: list[Candidate] = field(default_factory=list)
    refusals: dict[tuple[str, str], list[tuple[int, int]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    covers: list[Cover] = field(default_factory=list)
    unmeasured: str = ""
    formats: list[tuple[str, float]] = field(default_factory=list)
    untried: list[tuple[str, str]] = field(default_factory=list)
    devices: list[tuple[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class _Path:
    """Candidates from cut 0 on, and the sum of their times and hand-overs so far."""

    candidates: tuple[Candidate, ...] = ()
    seconds: float = 0.0

    @property
    def place(self) -> Device | None:
        """Where it ends."""
        return self.candidates[-1].step.device if self.candidates else None

    @property
    def handed_over(self) -> float:
        """The sum until the host has seen its end."""
        hand_over = self.candidates[-1].hand_over if self.candidates else 0.0
        return self.seconds + hand_over

    def then(self, candidate: Candidate) -> _Path:
        """Return the path with one more candidate."""
        stays = self.place == candidate.step.device
        before = self.seconds if stays else self.handed_over
        return _Path((*self.candidates, candidate), before + candidate.seconds)


def shortest_path(n: int, candidates: Iterable[Candidate]) -> Cover | None:
    """Return the shortest path from cut 0 to cut n, hand-overs between places included.

    Leaving a place for another, or for the host at the end, costs the hand-over of the
    candidate that ends there. So of the paths to a cut that end at one place two may
    go on: the shortest, if the place stays, and the shortest handed over.
    """
    paths: dict[int, list[_Path]] = {0: [_Path()]}
    for candidate in sorted(candidates, key=lambda c: (c.stop, c.start)):
        before = paths.get(candidate.start, [])
        here = paths.get(candidate.stop, [])
        paths[candidate.stop] = list(
            _useful([*here, *(path.then(candidate) for path in before)])
        )
    best = min(paths.get(n, []), key=lambda p: p.handed_over, default=None)
    if best is None or not best.candidates:
        return None
    return Cover(best.candidates, best.handed_over)


def lower_bound(candidate: Candidate) -> Candidate:
    """Return a candidate as if measured, with the least time that it may take."""
    if candidate.timing is not None:
        return candidate
    least = candidate.modelled / FASTEST
    return replace(candidate, timing=Timing(least, least, 0.0))


def least_through(n: int, candidates: Sequence[Candidate]) -> list[float]:
    """Return of each the seconds of the shortest path that takes it.

    From cut 0 to cut n, hand-overs aside.
    """
    before, after = [0.0, *[inf] * n], [*[inf] * n, 0.0]
    for c in sorted(candidates, key=lambda c: c.stop):
        before[c.stop] = min(before[c.stop], before[c.start] + c.seconds)
    for c in sorted(candidates, key=lambda c: -c.start):
        after[c.start] = min(after[c.start], c.seconds + after[c.stop])
    return [before[c.start] + c.seconds + after[c.stop] for c in candidates]


def _useful(paths: Iterable[_Path]) -> Iterable[_Path]:
    """Yield for each place the paths that may go on: one, or two."""
    by_place: dict[Device | None, list[_Path]] = {}
    for path in paths:
        by_place.setdefault(path.place, []).append(path)
    for same in by_place.values():
        staying = min(same, key=lambda path: path.seconds)
        leaving = min(same, key=lambda path: path.handed_over)
        yield staying
        if leaving is not staying:
            yield leaving
