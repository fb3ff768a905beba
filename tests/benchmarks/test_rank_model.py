"""The model of training by ranks, on cases that are computed by hand."""

import pytest
from clnet.benchmarks.studies.rank_model import Interconnect, Line, Training

NETWORK = Interconnect(latency=1.0, per_byte=0.5, per_add=0.25)
TRAINING = Training(parameters=8, step=Line(2.0, 0.5), block=3.0)


def test_a_line_goes_through_its_points():
    line = Line.through({2: 7.0, 10: 23.0})
    assert (line.fixed, line.each) == pytest.approx((3.0, 2.0))


def test_costs_are_not_negative():
    assert Line.through({1: 1.0, 4: 16.0}) == Line(0.0, pytest.approx(2.0))
    assert Line.through({1: 4.0, 4: 1.0}) == Line(pytest.approx(2.0), 0.0)


@pytest.mark.parametrize(("ranks", "expected"), [(1, 0.0), (2, 7.0), (4, 14.0)])
def test_recursive_doubling_sends_all_bytes_at_each_level(ranks, expected):
    assert NETWORK.ordered(8, ranks) == expected


def test_all_reduce_takes_the_faster_algorithm():
    # Of 8 bytes among 4 ranks: 4 messages of latency 1, and 6 bytes at 2 * 0.5 + 0.25.
    assert NETWORK.any_order(8, 4) == 4 + 6 * 1.25
    assert NETWORK.any_order(0, 4) == NETWORK.ordered(0, 4) == 2
    assert NETWORK.any_order(8, 1) == 0


@pytest.mark.parametrize(("ranks", "ordered", "expected"), [
    (1, True, 2 + 8 + 7 * 3),  # one rank, eight blocks
    (1, False, 2 + 8),
    (4, True, 2 + 2 + 3 + 14), (4, False, 2 + 2 + 11.5),
    (16, True, 2 + 0.5 + 28), (3, False, 2 + 3 + 4 + 16 / 3 * 1.25),
])
def test_a_step_is_computing_blocks_and_sums(ranks, ordered, expected):
    found = TRAINING.seconds(NETWORK, ranks, batch=16, ordered=ordered)
    assert found == pytest.approx(expected)
