"""lane_members: every network beside the oracle."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from member_oracle import DEVICE, N, check
from variant_cases import alternate

from clnet import Dense, Network
from clnet.ir.lowering import lower_training
from clnet.nn.losses import loss_function
from clnet.nn.optimisers import SGD, Adam, Rprop
from clnet.nn.regularisation import Regularisation
from clnet.variants.members.group_members import MATRIX_TILES, LaneMembers

checked = partial(check, LaneMembers)


def lanes(count, teams, tile, matrix=0):
    return {"matrix": matrix, "lanes": count, "teams": teams, "tile": tile}


@pytest.mark.unoptimised
@pytest.mark.parametrize(("sizes", "samples"), [
    ([2, 3, 1], 4), ([1, 1, 1], 1), ([3, 7, 2], 9), ([8, 32, 1], 33), ([5, 37, 3], 7),
])
def test_widths(sizes, samples):
    checked(sizes, samples)


@pytest.mark.unoptimised
@pytest.mark.parametrize(("teams", "tile"), alternate([1, 2, 4], [1, 2, 4]))
def test_every_configuration(teams, tile):
    checked([3, 6, 2], 21, config=lanes(8, teams, tile))


@pytest.mark.unoptimised
@pytest.mark.parametrize("teams", [1, 2])
def test_two_networks_that_share_a_warp(teams):
    checked([3, 15, 2], 21, config=lanes(8, teams, 4))
    checked([8, 32, 1], 70, config=lanes(16, teams, 4))


matrix = partial(check, config=lanes(32, 1, 8, 1), split=True)


@pytest.mark.unoptimised
@pytest.mark.parametrize(("case", "exact"), alternate(
    [([8, 32, 1], 70), ([3, 7, 2], 9), ([11, 37, 3], 35), ([1, 1, 1], 1)],
    [False, True],
))
def test_matrix_units(case, exact):
    sizes, samples = case
    make = partial(LaneMembers, exact=exact)
    matrix(make, sizes, samples, exact=exact)


@pytest.mark.unoptimised
@pytest.mark.parametrize(("teams", "tile"), alternate([1, 2], MATRIX_TILES))
def test_every_configuration_of_matrix_units(teams, tile):
    matrix(LaneMembers, [9, 20, 2], 70, config=lanes(32, teams, tile, 1))


@pytest.mark.unoptimised
@pytest.mark.parametrize("rule", [Adam(), SGD(momentum=0.9), Rprop()])
def test_rules_on_matrix_units(rule):
    matrix(LaneMembers, [4, 17, 2], 25, rule, 25 if isinstance(rule, Rprop) else 8)


@pytest.mark.unoptimised
def test_rows_and_penalties_on_matrix_units():
    rng = np.random.default_rng(1)
    rows = [rng.permutation(30)[:n] for n in (10, 18, 30)]
    matrix(LaneMembers, [4, 17, 2], 30, SGD(), 7, subsets=rows)
    matrix(LaneMembers, [4, 17, 2], 11, SGD(), regular=Regularisation(clip_norm=0.05))
    matrix(LaneMembers, [4, 17, 3], 40, activation=["gelu", "softmax"],
           loss="categorical_cross_entropy")


@pytest.mark.parametrize(("network", "samples", "sentence"), [
    (Network.mlp([3, 4, 4, 1], seed=0), 8, "one hidden layer"),
    (Network.mlp([3, 65, 1], seed=0), 8, "at most 64 hidden neurons"),
    (Network.mlp([48, 16, 1], seed=0), 8, "registers"),
    (Network.mlp([8, 16, 1], seed=0), 1 << 14, "bytes of local memory"),
    (Network(3, [Dense(2, ["tanh", "sigmoid"]), Dense(1)], seed=0), 8, "differ"),
    (Network.mlp([3, 4, 1], dtype="float64", seed=0), 8, "float32"),
])
def test_refusals(network, samples, sentence):
    program = lower_training(network, loss_function("mse"), Adam())
    span = program.span(0, len(program.ops), 8)
    assert sentence in LaneMembers(N, samples).refuse(span, DEVICE)
