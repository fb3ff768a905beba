"""Networks that train side by side in a launch: each beside the oracle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from bounds import FLOAT32, FP16_SPLIT, LAMBDA, OVERFLOWS, tiny
from deviations import deviations

from clnet import Network
from clnet.ir.lowering import lower_training
from clnet.nn.losses import loss_function
from clnet.nn.optimisers import Batch
from clnet.nn.random import key
from clnet.nn.regularisation import PLAIN
from clnet.nn.storage.layout import live_elements
from clnet.opencl.discovery import device
from clnet.opencl.launch import EPOCH
from clnet.opencl.program import matrix_units
from clnet.opencl.session import session
from clnet.runtime.binding import PlanStep
from clnet.runtime.member_replay import MemberReplay
from clnet.runtime.train_state import TrainState

DEVICE = device()
SESSION = session(DEVICE)
N, EPOCHS = 3, 2
RATES = np.array([0.01, 0.03, 0.1])


def check(make, sizes, samples, rule=None, batch=None, *, activation="tanh",
          loss="mse", subsets=None, regular=None, config=None, exact=False,
          split=False, dropout=0.0, weighted=False):
    """Train three networks for two epochs, and compare each with the oracle.

    `make` returns the variant of so many networks and samples, with subsets or without.
    Inputs are small integers if they shall be `exact`; factors are `split` as for
    matrix units, also where there are none. Where they are `weighted`, the first
    sample's error overflows, and its weight is 0.
    """
    rule, batch, regular = rule or Batch(), batch or samples, regular or PLAIN
    own_regular = [
        replace(regular, l1=(i + 1) * regular.l1, l2=(i + 1) * regular.l2)
        for i in range(N)
    ]
    variant = make(N, samples, subsets is not None)
    fractions = [(i + 1) / N * dropout for i in range(N)]
    networks = [
        Network.mlp(sizes, activation=activation, seed=i, dropout=fraction)
        for i, fraction in enumerate(fractions)
    ]
    network = networks[-1]
    rng = np.random.default_rng(samples)
    gathers = subsets is not None or batch < samples
    program = lower_training(
        network, loss_function(loss), rule, samples=samples if gathers else None,
        shuffled=gathers, regularisation=regular, weighted=weighted,
    )
    span = program.span(0, len(program.ops), batch)
    reason = variant.refuse(span, DEVICE)
    if reason is not None and "local memory" in reason:
        pytest.skip(reason)  # as llvmpipe's 32 KiB
    assert reason is None
    config = config or next(iter(variant.space(span, DEVICE)))
    parameters = np.stack([one.parameters for one in networks])
    state = rule.initial_state(network.layout.size, "float32")
    train_state = TrainState(
        SESSION, parameters.reshape(-1),
        np.tile(state, (N, 1)).reshape(len(state), N * network.layout.size),
    )
    rows = [None] * N if subsets is None else subsets
    bound = MemberReplay(
        SESSION, PlanStep(span, variant, config, DEVICE), network.layout, train_state,
        rows, samples, EPOCHS,
    )
    data = [
        rng.uniform(-1, 1, (samples, network.n_in)).astype(np.float32),
        rng.uniform(0, 1, (samples, network.n_out)).astype(np.float32),
    ]
    if exact:
        data[0] = np.rint(3 * data[0])
    for value, array in zip(program.inputs, data, strict=False):
        bound.write(value, array)
    if weighted:
        weights = rng.uniform(0, 2, (samples, 1)).astype(np.float32)
        data[1][0], weights[0] = OVERFLOWS, 0
        bound.write(program.inputs[1], data[1])
        bound.write_weights(np.broadcast_to(weights[:, 0], (N, samples)))
        data.append(weights)
    bound.set_members(
        seed=np.arange(N, dtype=np.uint32), squares_limit=np.zeros(N),
        fails_limit=np.zeros(N), l1=np.array([one.l1 for one in own_regular]),
        l2=np.array([one.l2 for one in own_regular]),
    )
    if dropout:
        bound.set_dropout(np.array([
            [layer.dropout for layer in one.layers] for one in networks
        ]))
    schedule = np.zeros((N, EPOCHS + 1), EPOCH)
    schedule["rate"] = RATES[:, np.newaxis]
    schedule["key"][:, :EPOCHS] = [key(3, epoch) for epoch in range(EPOCHS)]
    launch = bound.run_members(
        np.arange(N), np.zeros(N, int), schedule, np.arange(N)
    )
    assert (launch.ran == EPOCHS).all()
    found = train_state.values()[0].reshape(parameters.shape)
    live = live_elements(network.layout, network.storages)
    arithmetic = FP16_SPLIT["highest"] if split or matrix_units(DEVICE) else FLOAT32
    for i in range(N):
        # The oracle's data set is the member's own part.
        own = data if rows[i] is None else [array[rows[i]] for array in data]
        n = len(own[0])
        one = lower_training(
            networks[i], loss_function(loss), rule, samples=n if gathers else None,
            shuffled=gathers, regularisation=own_regular[i], weighted=weighted,
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
