"""Many networks in a launch, a work-group each: every network beside the oracle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from bounds import FLOAT32, FP16_SPLIT, LAMBDA, deviations, tiny

import clnet
from clnet import Dense, Network, Population
from clnet.ir.lowering import lower_training
from clnet.nn.losses import loss_function
from clnet.nn.optimisers import SGD, Adam, Batch, Rprop
from clnet.nn.random import key
from clnet.nn.regularisation import Regularisation
from clnet.nn.storage.layout import live_elements
from clnet.opencl.discovery import device
from clnet.opencl.launch import EPOCH
from clnet.opencl.program import matrix_units
from clnet.opencl.session import session
from clnet.runtime.binding import Step
from clnet.runtime.member_replay import MemberReplay
from clnet.runtime.train_state import TrainState
from clnet.training import population
from clnet.training.population import members_variant
from clnet.variants.members.group_members import GROUPS, TILES, GroupMembers
from clnet.variants.members.members import TrainMembers

DEVICE = device()
SESSION = session(DEVICE)
N, EPOCHS = 3, 2
RATES = np.array([0.01, 0.03, 0.1])


def check(sizes, samples, rule=None, batch=None, *, activation="tanh", loss="mse",
          subsets=None, regular=None, config=None):
    """Train three networks for two epochs, and compare each with the oracle."""
    rule, batch = rule or Batch(), batch or samples
    variant = GroupMembers(N, subsets is not None)
    network = Network.mlp(sizes, activation=activation, seed=0)
    rng = np.random.default_rng(samples)
    gathers = subsets is not None or batch < samples
    program = lower_training(
        network, loss_function(loss), rule, samples=samples if gathers else None,
        shuffled=gathers, regularisation=regular or Regularisation(),
    )
    span = program.span(0, len(program.ops), batch)
    assert variant.refuse(span, DEVICE) is None
    config = config or next(iter(variant.space(span, DEVICE)))
    parameters = np.stack([
        Network.mlp(sizes, activation=activation, seed=i).parameters for i in range(N)
    ])
    state = rule.initial_state(network.layout.size, "float32")
    train_state = TrainState(
        SESSION, parameters.reshape(-1),
        np.tile(state, (N, 1)).reshape(len(state), N * network.layout.size),
    )
    rows = [None] * N if subsets is None else subsets
    bound = MemberReplay(
        SESSION, Step(span, variant, config, DEVICE), network.layout, train_state,
        rows, samples, EPOCHS,
    )
    data = [
        rng.uniform(-1, 1, (samples, network.n_in)).astype(np.float32),
        rng.uniform(0, 1, (samples, network.n_out)).astype(np.float32),
    ]
    for value, array in zip(program.inputs, data, strict=True):
        bound.write(value, array)
    bound.set_members(
        seed=np.arange(N, dtype=np.uint32), squares_limit=np.zeros(N),
        fails_limit=np.zeros(N),
    )
    schedule = np.zeros((N, EPOCHS + 1), EPOCH)
    schedule["rate"] = RATES[:, np.newaxis]
    schedule["key"][:, :EPOCHS] = [key(3, epoch) for epoch in range(EPOCHS)]
    launch = bound.run_members(
        np.arange(N), np.zeros(N, int), schedule, np.arange(N)
    )
    assert (launch.ran == EPOCHS).all()
    found = train_state.values()[0].reshape(parameters.shape)
    live = live_elements(network.layout, network.storages)
    arithmetic = FP16_SPLIT["highest"] if matrix_units(DEVICE) else FLOAT32
    for i in range(N):
        # The oracle's data set is the member's own part.
        own = data if rows[i] is None else [array[rows[i]] for array in data]
        n = len(own[0])
        one = lower_training(
            network, loss_function(loss), rule, samples=n if gathers else None,
            shuffled=gathers, regularisation=regular or Regularisation(),
        )
        values = {
            value.name: array for value, array in zip(one.inputs, own, strict=True)
        }
        full = min(batch, n)
        firsts = [(e, first) for e in range(EPOCHS) for first in range(0, n, full)]
        np.testing.assert_array_equal(launch.totals_of(i)[-1], launch.last[i])
        exact, deviation = deviations(
            one.ops, {**values, "state": state}, parameters[i], arithmetic,
            [{"first": first, "samples": min(full, n - first), "batch": full,
              "seen": min(first + full, n), "fresh": first == 0, "count": count,
              "rate": RATES[i], "seed": i, "key": key(3, e)}
             for count, (e, first) in enumerate(firsts)],
        )
        name = one.ops[-1].parameters.name
        error = np.abs(found[i] - exact[name][0])
        limit = LAMBDA * deviation[name][0] + tiny("float32")
        assert (error <= limit)[live].all(), (i, (error / limit)[live].max())
        assert not found[i][~live].any()
        sums = launch.last[i, :3] + launch.last[i, 3:]
        error = np.abs(sums - exact["totals"][0, :3])
        assert (error <= LAMBDA * deviation["totals"][0, :3] + tiny("float32")).all()


@pytest.mark.parametrize("samples", [1, 7, 9, 64, 65, 131])
def test_samples_around_a_tile(samples):
    check([5, 9, 3], samples)


@pytest.mark.unoptimised
@pytest.mark.parametrize("sizes", [
    [1, 1], [2, 4, 1], [3, 17, 16, 2], [16, 32, 16], [8, 33, 15], [125, 32, 2],
    [47, 96, 3], [64, 101, 10],
])
def test_widths(sizes):
    check(sizes, 66)


@pytest.mark.unoptimised
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("tile", TILES)
def test_every_configuration(tile, group):
    largest = 64 if DEVICE.type == "cpu" else DEVICE.largest_group
    if not tile <= group <= largest:
        pytest.skip("no configuration of this device")
    check([9, 20, 18, 3], 70, config={"tile": tile, "group": group})


@pytest.mark.unoptimised
@pytest.mark.parametrize("rule", [Adam(), SGD(momentum=0.9), Rprop()])
def test_rules_in_mini_batches(rule):
    check([6, 20, 4], 50, rule, 50 if isinstance(rule, Rprop) else 16)


def test_networks_with_rows_of_their_own():
    rng = np.random.default_rng(1)
    rows = [rng.permutation(60)[:n] for n in (20, 37, 60)]
    check([4, 12, 2], 60, subsets=rows)
    check([4, 12, 2], 60, SGD(), 13, subsets=rows)


@pytest.mark.unoptimised
@pytest.mark.parametrize(("activation", "loss"), [
    (["gelu", "softmax"], "categorical_cross_entropy"), ("elu", "mae"),
    ("elliot", "huber"), (["relu", "sigmoid"], "binary_cross_entropy"),
])
def test_functions(activation, loss):
    check([7, 18, 5], 40, activation=activation, loss=loss)


@pytest.mark.parametrize("regular", [
    Regularisation(clip_norm=0.05), Regularisation(l1=1e-2, l2=1e-2, clip_value=0.01),
])
def test_regularisation(regular):
    check([6, 20, 4], 33, SGD(), regular=regular)


def test_refusals():
    def refusal(network, *, weighted=False, where=DEVICE):
        program = lower_training(
            network, loss_function("mse"), Adam(), weighted=weighted
        )
        return GroupMembers(2).refuse(program.span(0, len(program.ops), 8), where)

    net = Network.mlp([4, 8, 2], seed=0)
    assert refusal(net) is None
    assert "float32" in refusal(Network.mlp([4, 8, 2], dtype="float64", seed=0))
    assert "weights" in refusal(net, weighted=True)
    assert "dense" in refusal(Network(4, [clnet.Sparse(3, density=0.5)], seed=0))
    small = replace(DEVICE, unit_local_memory=1000)
    assert "local memory" in refusal(net, where=small)


def test_the_variant_follows_the_device():
    cpu, gpu = clnet.Device("a", "cpu", compute_units=4), clnet.Device("b", "gpu")
    assert members_variant(cpu, 3, True) == TrainMembers(3, True)
    assert members_variant(gpu, 3, False) == GroupMembers(3)


def test_a_population_by_groups(monkeypatch):
    monkeypatch.setattr(
        population, "members_variant", lambda device, *given: GroupMembers(*given)
    )
    rng = np.random.default_rng(0)
    x, t = rng.uniform(-1, 1, (50, 3)), rng.uniform(0, 1, (50, 2))
    found = Population(Network(3, [Dense(8, "tanh"), Dense(2)], seed=0), 4)
    singles = list(found)
    histories = found.fit(
        x, t, optimiser="adam", batch_size=16, epochs=[3, 5, 2, 5], seed=[1, 2, 3, 4]
    )
    assert all(one.plan.startswith("group_members") for one in histories)
    for i, single in enumerate(singles):
        history = single.fit(
            x, t, optimiser="adam", batch_size=16, epochs=[3, 5, 2, 5][i], seed=i + 1
        )
        np.testing.assert_allclose(found.parameters[i], single.parameters, atol=1e-5)
        np.testing.assert_allclose(histories[i].loss, history.loss, rtol=1e-4)
