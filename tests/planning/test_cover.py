"""Covers: no path over the cuts is shorter than the shortest."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from clnet.opencl.device import Device
from clnet.opencl.store import Timing
from clnet.planning.cover import Candidate, shortest_path
from clnet.runtime.binding import Step
from clnet.variants.reference.host import Host

A, B = Device("a"), Device("b")


def candidate(start, stop, place, seconds, extra=0.0):
    step = Step(None, Host(), {}, place)
    return Candidate(start, stop, step, 0.0, Timing(seconds, seconds + extra, 0.0))


def length(path):
    """The length of a path, as the words say it."""
    total = 0.0
    for here, after in itertools.zip_longest(path, path[1:]):
        total += here.seconds
        next_place = after.step.device if after else None
        if next_place != here.step.device:
            total += here.hand_over
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
    assert found.added == length(found.candidates) == min(lengths)
    cuts = [0, *(c.stop for c in found.candidates)]
    assert cuts == [*(c.start for c in found.candidates), n]


def test_changing_the_place_costs_the_hand_over():
    near = [candidate(0, 1, A, 10), candidate(1, 2, A, 10)]
    assert shortest_path(2, [*near, candidate(1, 2, B, 4, 5)]).added == 19
    slow_to_leave = [candidate(0, 1, A, 10, 8), candidate(1, 2, A, 10)]
    cover = shortest_path(2, [*slow_to_leave, candidate(1, 2, B, 4, 5)])
    assert [c.step.device for c in cover.candidates] == [A, A]


def test_the_slower_arrival_may_be_the_better_way_on():
    """What is handed over late is no worse for a step at the same place."""
    late, soon = candidate(0, 1, A, 9, 5), candidate(0, 1, A, 10)
    on = candidate(1, 2, A, 1)
    assert shortest_path(2, [soon, late, on]).candidates == (late, on)
    assert shortest_path(1, [soon, late]).candidates == (soon,)


def test_leaving_the_host_costs_nothing_and_nothing_covers_nothing():
    host, device = candidate(0, 1, None, 3, 100), candidate(1, 2, A, 4, 2)
    assert shortest_path(2, [host, device]).added == 9
    assert shortest_path(0, []) is None
    assert shortest_path(2, [host]) is None
