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


def candidate(start, stop, device, seconds, sync=0.0):
    step = Step(None, Host(), {}, device)
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
