"""group_members: every network beside the oracle."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from devices import H200
from member_oracle import DEVICE, check

import clnet
from clnet import Dense, Network, Population
from clnet.ir.lowering import lower_training
from clnet.nn.losses import loss_function
from clnet.nn.optimisers import SGD, Adam
from clnet.nn.regularisation import Regularisation
from clnet.opencl.program import matrix_units
from clnet.training import member_training
from clnet.variants.members.group_members import (
    GROUPS,
    SLICES,
    TILES,
    WARP,
    GroupMembers,
)
from clnet.variants.members.members import exact_factors

checked = partial(check, lambda count, samples, subsets: GroupMembers(count, subsets))
checked_exact = partial(
    check, lambda count, samples, subsets: GroupMembers(count, subsets, exact=True)
)


def has_configuration(tile, group):
    largest = 64 if DEVICE.type == "cpu" else DEVICE.largest_group
    units = matrix_units(DEVICE)
    return tile <= group <= largest and (not units or WARP * tile / group in SLICES)


@pytest.mark.parametrize("samples", [1, 7, 9, 64, 65, 131])
def test_samples_around_a_tile(samples):
    checked([5, 9, 3], samples)


@pytest.mark.unoptimised
@pytest.mark.parametrize("sizes", [
    [1, 1], [2, 4, 1], [3, 17, 16, 2], [16, 32, 16], [8, 33, 15], [125, 32, 2],
    [47, 96, 3], [64, 101, 10],
])
def test_widths(sizes):
    checked(sizes, 66)


@pytest.mark.unoptimised
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("tile", TILES)
def test_every_configuration(tile, group):
    if not has_configuration(tile, group):
        pytest.skip("no configuration of this device")
    checked([9, 20, 18, 3], 70, config={"tile": tile, "group": group})


@pytest.mark.unoptimised
@pytest.mark.parametrize("sizes", [
    [125, 32, 2], [64, 101, 20, 10], [9, 3],
    *(pytest.param(sizes, marks=pytest.mark.sweep)
      for sizes in ([2, 4, 1], [15, 40, 6], [16, 3, 4, 5])),
])
def test_exact_inputs(sizes):
    checked_exact(sizes, 130, exact=True)


@pytest.mark.unoptimised
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("tile", TILES)
def test_exact_inputs_in_every_configuration(tile, group):
    if not has_configuration(tile, group):
        pytest.skip("no configuration of this device")
    checked_exact([20, 35, 5], 140, exact=True, config={"tile": tile, "group": group})


@pytest.mark.unoptimised
@pytest.mark.parametrize("options", [
    {"dropout": 0.6}, {"subsets": [np.arange(9), np.arange(70)[::-1], np.arange(55)]},
    {"regular": Regularisation(clip_norm=0.05)}, {"batch": 16}, {"batch": 48},
    {"regular": Regularisation(l1=1e-2, l2=1e-2), "activation": "gelu"},
    {"activation": ["relu", "softmax"], "loss": "categorical_cross_entropy"},
], ids=str)
def test_exact_inputs_with_options(options):
    checked_exact([6, 20, 3], 70, SGD(momentum=0.9), exact=True, **options)


def test_inputs_are_exact_factors():
    x = np.array([[0, 1], [-255, 0.375]], np.float32)
    assert exact_factors(x, H200)
    assert not exact_factors(x + np.float32(2**-9), H200)
    assert not exact_factors(x.astype(np.float64), H200)
    assert not exact_factors(x, clnet.Device("a", "cpu"))


def test_refusals():
    def refusal(network, where=DEVICE):
        program = lower_training(network, loss_function("mse"), Adam())
        return GroupMembers(2).refuse(program.span(0, len(program.ops), 8), where)

    net = Network.mlp([4, 8, 2], seed=0)
    assert refusal(net) is None
    assert "float32" in refusal(Network.mlp([4, 8, 2], dtype="float64", seed=0))
    assert "dense" in refusal(Network(4, [clnet.Sparse(3, density=0.5)], seed=0))
    small = replace(DEVICE, unit_local_memory=1000)
    assert "local memory" in refusal(net, where=small)


def test_a_population_by_groups(monkeypatch):
    monkeypatch.setattr(
        member_training, "members_variants",
        lambda device, members, samples, subsets, alike: (
            GroupMembers(members, subsets),
        ),
    )
    rng = np.random.default_rng(0)
    x, t = rng.uniform(-1, 1, (50, 3)), rng.uniform(0, 1, (50, 2))
    found = Population(Network(3, [Dense(8, "tanh"), Dense(2)], seed=0), 4)
    singles = list(found)
    histories = found.fit(
        x, t, optimiser="adam", batch_size=16, epochs=[3, 5, 2, 5], seed=[1, 2, 3, 4]
    )
    assert all("\n1-2       group_members" in one.plan for one in histories)
    for i, single in enumerate(singles):
        history = single.fit(
            x, t, optimiser="adam", batch_size=16, epochs=[3, 5, 2, 5][i], seed=i + 1
        )
        np.testing.assert_allclose(found.parameters[i], single.parameters, atol=1e-5)
        np.testing.assert_allclose(histories[i].loss, history.loss, rtol=1e-4)
