"""Covers: no path is shorter than the shortest, and the search measures few others."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clnet.opencl.device import Device
from clnet.opencl.store import Timing
from clnet.planning.cover import MAX_SPEEDUP, Candidate, shortest_path
from clnet.planning.search import incumbent, search, search_all
from clnet.runtime.binding import PlanStep
from clnet.variants.reference.generic import Host

A, B = Device("a"), Device("b")


def candidate(start, stop, device, seconds, sync=0.0):
    step = PlanStep(None, Host(), {}, device)
    return Candidate(start, stop, step, 0.0, Timing(seconds, seconds + sync, 0.0))


def length(path):
    """The length of a path by its definition."""
    total = 0.0
    for current, following in itertools.zip_longest(path, path[1:]):
        total += current.seconds
        next_device = following.step.device if following else None
        if next_device != current.step.device:
            total += current.sync_seconds
    return total


def all_paths(candidates, start, n):
    if start == n:
        yield ()
    for c in candidates:
        if c.start == start:
            for rest in all_paths(candidates, c.stop, n):
                yield (c, *rest)


@st.composite
def problems(draw):
    n = draw(st.integers(1, 5))
    spans = [(i, j) for i in range(n) for j in range(i + 1, min(n, i + 3) + 1)]
    return n, draw(
        st.lists(
            st.builds(
                lambda span, *rest: candidate(*span, *rest), st.sampled_from(spans),
                st.sampled_from([None, A, B]), st.integers(0, 20), st.integers(0, 20),
            ),
            max_size=12,
        )
    )


@given(problems())
def test_no_path_is_shorter_than_the_shortest(problem):
    n, candidates = problem
    lengths = [length(path) for path in all_paths(candidates, 0, n)]
    found = shortest_path(n, candidates)
    if not lengths:
        assert found is None
        return
    assert found.span_seconds == length(found.candidates) == min(lengths)
    cuts = [0, *(c.stop for c in found.candidates)]
    assert cuts == [*(c.start for c in found.candidates), n]


def test_a_change_of_device_costs_the_synchronisation():
    same = [candidate(0, 1, A, 10), candidate(1, 2, A, 10)]
    assert shortest_path(2, [*same, candidate(1, 2, B, 4, 5)]).span_seconds == 19
    slow_sync = [candidate(0, 1, A, 10, 8), candidate(1, 2, A, 10)]
    cover = shortest_path(2, [*slow_sync, candidate(1, 2, B, 4, 5)])
    assert [c.step.device for c in cover.candidates] == [A, A]


def test_a_slow_synchronisation_is_no_cost_on_the_same_device():
    slow, quick = candidate(0, 1, A, 9, 5), candidate(0, 1, A, 10)
    following = candidate(1, 2, A, 1)
    assert shortest_path(2, [quick, slow, following]).candidates == (slow, following)
    assert shortest_path(1, [quick, slow]).candidates == (quick,)


def test_leaving_the_host_costs_nothing_and_nothing_covers_nothing():
    host, device = candidate(0, 1, None, 3, 100), candidate(1, 2, A, 4, 2)
    assert shortest_path(2, [host, device]).span_seconds == 9
    assert shortest_path(0, []) is None
    assert shortest_path(2, [host]) is None


class Measuring:
    """Times of candidates by a rule, a note of those asked for, and a budget."""

    trial = SimpleNamespace(per_span=99)

    def __init__(self, seconds, most=10**9):
        self.seconds, self.most, self.asked = seconds, most, []

    def measured(self, c):
        self.asked.append(c.step)
        seconds = self.seconds[id(c.step)]
        return Candidate(
            c.start, c.stop, c.step, c.modelled,
            None if seconds is None else Timing(seconds, seconds, 0.0),
            "it broke" if seconds is None else None,
        )

    def pays(self, seconds):
        return len(self.asked) < self.most


def found_by(find, problem, factors, **limits):
    """The times, and the best cover, after a search for modelled candidates."""
    n, candidates = problem
    modelled = [
        Candidate(c.start, c.stop, c.step, c.seconds + 1) for c in candidates
    ]
    times = Measuring({
        id(c.step): None if factor is None else factor * c.modelled
        for c, factor in zip(modelled, factors, strict=False)
    }, **limits)
    candidates = find(SimpleNamespace(ops=[None] * n), modelled, times, times)
    assert [c.step for c in candidates] == [c.step for c in modelled]
    return times, incumbent(n, candidates)


FACTORS = st.lists(
    st.none() | st.floats(1 / MAX_SPEEDUP, 3.0), min_size=12, max_size=12
)


@given(problems(), FACTORS)
def test_the_search_finds_the_best_sum_of_times(problem, factors):
    """Whatever fails, while no kernel is faster than `MAX_SPEEDUP` times its model."""
    every, best = found_by(search_all, problem, factors)
    assert len(every.asked) == len(problem[1])
    few, cover = found_by(search, problem, factors)
    assert len(few.asked) == len(set(map(id, few.asked)))
    if best is None:
        assert cover is None
        return
    assert cover.span_seconds == pytest.approx(best.span_seconds)


@given(problems(), st.integers(0, 12))
def test_a_budget_that_ends_leaves_the_best_by_the_model(problem, most):
    n, candidates = problem
    _, cover = found_by(search, problem, [1.0] * 12, most=most)
    path = shortest_path(n, [
        candidate(c.start, c.stop, c.step.device, c.seconds + 1) for c in candidates
    ])
    assert (cover is None) == (path is None)
    if most == 0 and cover is not None:  # one cover is measured all the same
        assert cover.span_seconds == path.span_seconds
