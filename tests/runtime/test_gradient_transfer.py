"""Gradients on their way: pieces, their order, and sums on the host."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clnet import Network
from clnet.ir.lowering import lower_training
from clnet.ir.program import split_program
from clnet.nn.losses import loss_function
from clnet.nn.optimisers import SGD
from clnet.runtime.binding import PlanStep
from clnet.runtime.device_sums import add_all
from clnet.runtime.gradient_transfer import bus_seconds, completing_steps, pieces_of
from clnet.variants.reference.generic import Generic


@given(st.lists(st.integers(1, 40), min_size=2, max_size=5), st.integers(1, 500))
def test_pieces_cover_the_buffer_once(sizes, length):
    layout = Network.mlp(sizes).layout
    pieces = pieces_of(layout, length)
    covered = np.zeros(layout.size, int)
    for piece in pieces:
        assert 0 < piece.stop - piece.start <= length
        covered[piece] += 1
    assert (covered == 1).all()
    assert [piece.start for piece in pieces] == sorted(p.start for p in pieces)


def test_a_piece_of_a_large_matrix_waits_for_no_other():
    network = Network.mlp([40, 30, 20, 10], "tanh")
    program = lower_training(network, loss_function("mse"), SGD())
    gradients, _ = split_program(program)
    steps = [
        PlanStep(gradients.span(i, i + 1, 1), Generic(), {}, None)
        for i in range(len(gradients.ops))
    ]
    pieces = pieces_of(network.layout, 256)
    ends = completing_steps(steps, pieces)
    large = [slot for slot in network.layout.weights if slot.size >= 256]
    own = [
        {
            end for piece, end in zip(pieces, ends, strict=True)
            if slot.offset <= piece.start < slot.offset + slot.size
        }
        for slot in large
    ]
    assert [len(one) for one in own] == [1, 1]
    assert max(own[1]) < min(own[0]), "the last layer's gradients are the first"
    assert max(ends) == len(steps) - 1


@pytest.mark.parametrize("count", [2, 3, 8])
def test_the_host_adds_in_the_devices_order(count):
    arrays = list(np.random.default_rng(0).standard_normal((count, 1001), np.float32))
    total = np.empty(1001, np.float32)
    add_all(arrays, total)
    expected = arrays[0]
    for array in arrays[1:]:
        expected = expected + array
    np.testing.assert_array_equal(total, expected)


class Copies:
    """A device with copies, which end at once."""

    copies = True
    pieces = tuple(slice(8 * i, 8 * i + 8) for i in range(40))

    def __init__(self, log):
        self.log = log

    def start_trial(self, numbers):
        self.log.append("start")

    def end_trial(self, numbers):
        self.log.append("end")


def test_all_devices_copy_at_once_where_a_bus_is_measured():
    log = []
    assert bus_seconds([Copies(log), Copies(log), Copies(log)]) > 0
    assert log == 3 * (3 * ["start"] + 3 * ["end"])
    shared = Copies(log)
    shared.copies = False
    assert bus_seconds([shared, shared]) == 0
