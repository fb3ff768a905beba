"""Search: which candidates of a program are measured, the most promising first.

A lower bound of a candidate's time is its modelled time over `MAX_SPEEDUP`. The
shortest path by lower bounds is found, its slowest candidate without a time is
measured, and so on until the path is measured. It is then the shortest of all, unless a
kernel is more than `MAX_SPEEDUP` times as fast as its model. A candidate that is on no
such path is never built: building takes longer than measuring.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING

from clnet.ir.loss import Tally
from clnet.planning.cover import (
    Candidate,
    Cover,
    lower_bound,
    shortest_path,
    shortest_through,
)

if TYPE_CHECKING:
    from clnet.ir.program import Program
    from clnet.planning.tuning.budget import Budget
    from clnet.planning.tuning.times import Times

NEAR_COVERS = 1.3  # time over the best, up to which covers of one device are searched
# A validation is a small part of an epoch: its parts are searched only for covers that
# may be this many times as fast as the best single span.
VALIDATION_SPEEDUP = 4.0


def search(
    program: Program, candidates: Sequence[Candidate], times: Times, budget: Budget
) -> list[Candidate]:
    """Return the candidates with times, as far as the best covers need them.

    The best cover by the model comes first: the budget may be over before the times of
    others make one. Next come candidates that span the program, each a cover; others
    are measured only for faster ones. Last come the covers of one device that are near
    the best: the sum of a path's times may differ from the time of the whole.
    """
    timed, n = list(candidates), len(program.ops)
    wholes = [i for i, c in enumerate(timed) if c.stop - c.start == n]
    modelled = shortest_path(n, [c.timed(None) for c in timed])
    limit = inf if modelled is None else modelled.seconds
    if modelled is not None and incumbent(n, timed) is None:
        first = {id(c.step) for c in modelled.candidates}
        for i, candidate in enumerate(timed):
            if id(candidate.step) in first and candidate.timing is None:
                timed[i] = times.measured(candidate)
    whole = _best_first(n, timed, wholes, times, budget, limit)
    limit = whole
    if isinstance(program.ops[-1], Tally):
        limit = whole / VALIDATION_SPEEDUP
    divided = _best_first(n, timed, range(len(timed)), times, budget, limit)
    considered = range(len(timed)) if divided < whole else wholes
    near = NEAR_COVERS * min(whole, divided)
    for device in dict.fromkeys(c.step.device for c in timed):
        same = [i for i in considered if timed[i].step.device == device]
        _best_first(n, timed, same, times, budget, near)
    return timed


def search_all(
    program: Program, candidates: Sequence[Candidate], times: Times, budget: Budget
) -> list[Candidate]:
    """Return all candidates with times, as far as the budget allows.

    The spans of likely covers come first, those of the host before all others: NumPy's
    threads spin for a while after a call. Candidates of a span share an oracle.
    """
    timed, n = list(candidates), len(program.ops)
    paths = shortest_through(n, [c.timed(None) for c in timed])
    spans = [(c.step.device is not None, c.start, c.stop) for c in timed]
    least: dict[tuple[bool, int, int], float] = {}
    for span, path in zip(spans, paths, strict=True):
        least[span] = min(path, least.get(span, inf))

    def rank(i: int) -> tuple[bool, float, int, int, float]:
        on_device, start, stop = spans[i]
        return on_device, least[spans[i]], start, stop, paths[i]

    for i in sorted(range(len(timed)), key=rank):
        if timed[i].timing is None:
            best = incumbent(n, timed)
            if best is not None and not budget.pays(best.seconds):
                break
            timed[i] = times.measured(timed[i])
    return timed


def incumbent(n: int, candidates: Sequence[Candidate]) -> Cover | None:
    """Return the shortest cover by measured times, or None if they make none."""
    return shortest_path(n, [c for c in candidates if c.timing is not None])


def _best_first(
    n: int, candidates: list[Candidate], among: Sequence[int], times: Times,
    budget: Budget, limit: float,
) -> float:
    """Measure until the shortest path among some has times alone; return its seconds.

    `inf` if there is no such path, it is beyond the limit, or the budget is over.
    """
    while True:
        best = incumbent(n, candidates)
        if best is not None and not budget.pays(best.seconds):
            return inf
        considered = _considered(candidates, among, times)
        bounds = {i: lower_bound(candidates[i]) for i in considered}
        path = shortest_path(n, bounds.values())
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
        together = [slowest]
        if candidates[slowest].step.device is None:
            # The host's in a row: NumPy's threads spin for a while after a call.
            together = [
                i for i in bounds
                if candidates[i].step.device is None and candidates[i].timing is None
            ]
        for i in together:
            candidates[i] = times.measured(candidates[i])


def _considered(
    candidates: Sequence[Candidate], among: Sequence[int], times: Times
) -> Iterator[int]:
    """Yield the candidates with times, and the best of each span by the model.

    These are `per_span` of the trial. Those with a fault are left out.
    """
    ranks: Counter[tuple[int, int]] = Counter()
    for i in sorted(among, key=lambda i: candidates[i].modelled):
        candidate = candidates[i]
        if candidate.fault is None:
            span = candidate.start, candidate.stop
            ranks[span] += 1
            if candidate.timing is not None or ranks[span] <= times.trial.per_span:
                yield i
