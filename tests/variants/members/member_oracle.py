"""Networks that train side by side in a launch: each beside the oracle."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

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


@dataclass(frozen=True)
class Case:
    """Networks and their data set. Kernels that train alike share the oracle's run."""

    sizes: tuple[int, ...]
    samples: int
    rule: Any
    batch: int
    activation: Any
    loss: str
    rows: tuple[tuple[int, ...], ...] | None
    regular: Any
    exact: bool
    dropout: float
    weighted: bool

    def networks(self):
        return [
            Network.mlp(
                self.sizes, activation=self.activation, seed=i,
                dropout=(i + 1) / N * self.dropout,
            )
            for i in range(N)
        ]

    def regularisation(self, i):
        l1, l2 = self.regular.l1, self.regular.l2
        return replace(self.regular, l1=(i + 1) * l1, l2=(i + 1) * l2)

    def program(self, network, samples, regular):
        """Return the program of a training of one network."""
        gathers = self.rows is not None or self.batch < self.samples
        return lower_training(
            network, loss_function(self.loss), self.rule,
            samples=samples if gathers else None, shuffled=gathers,
            regularisation=regular, weighted=self.weighted,
        )

    def data(self):
        """Return inputs, targets and weights, if there are any."""
        rng = np.random.default_rng(self.samples)
        x = rng.uniform(-1, 1, (self.samples, self.sizes[0])).astype(np.float32)
        t = rng.uniform(0, 1, (self.samples, self.sizes[-1])).astype(np.float32)
        data = [np.rint(3 * x) if self.exact else x, t]
        if self.weighted:
            weights = rng.uniform(0, 2, (self.samples, 1)).astype(np.float32)
            t[0], weights[0] = OVERFLOWS, 0
            data.append(weights)
        return data


@cache
def expected(case, i, split):
    """Return the parameters and totals of network i, and their deviations."""
    network, data = case.networks()[i], case.data()
    # The oracle's data set is the member's own part.
    own = data if case.rows is None else [array[[*case.rows[i]]] for array in data]
    n = len(own[0])
    program = case.program(network, n, case.regularisation(i))
    full = min(case.batch, n)
    firsts = [(e, first) for e in range(EPOCHS) for first in range(0, n, full)]
    exact, deviation = deviations(
        program.ops, {
            **{
                value.name: array
                for value, array in zip(program.inputs, own, strict=True)
            },
            "state": case.rule.initial_state(network.layout.size, "float32"),
        },
        network.parameters, FP16_SPLIT["highest"] if split else FLOAT32,
        [{"first": first, "samples": min(full, n - first), "batch": full,
          "seen": min(first + full, n), "fresh": first == 0, "count": count,
          "rate": RATES[i], "seed": i, "key": key(3, e)}
         for count, (e, first) in enumerate(firsts)],
    )
    name = program.ops[-1].parameters.name
    return [(values[name][0], values["totals"][0, :3]) for values in (exact, deviation)]


def check(make, sizes, samples, rule=None, batch=None, *, activation="tanh",
          loss="mse", subsets=None, regular=None, config=None, exact=False,
          split=False, dropout=0.0, weighted=False):
    """Train three networks for two epochs, and compare each with the oracle.

    `make` returns the variant of so many networks and samples, with subsets or without.
    Inputs are small integers if they shall be `exact`; factors are `split` as for
    matrix units, also where there are none. Where they are `weighted`, the first
    sample's error overflows, and its weight is 0.
    """
    case = Case(
        tuple(sizes), samples, rule or Batch(), batch or samples,
        activation if isinstance(activation, str) else tuple(activation), loss,
        subsets and tuple(tuple(rows.tolist()) for rows in subsets), regular or PLAIN,
        exact, dropout, weighted,
    )
    variant = make(N, samples, subsets is not None)
    networks, data = case.networks(), case.data()
    network = networks[-1]
    program = case.program(network, samples, case.regular)
    span = program.span(0, len(program.ops), case.batch)
    reason = variant.refuse(span, DEVICE)
    if reason is not None and "local memory" in reason:
        pytest.skip(reason)  # as llvmpipe's 32 KiB
    assert reason is None
    config = config or next(iter(variant.space(span, DEVICE)))
    parameters = np.stack([one.parameters for one in networks])
    state = case.rule.initial_state(network.layout.size, "float32")
    train_state = TrainState(
        SESSION, parameters.reshape(-1),
        np.tile(state, (N, 1)).reshape(len(state), N * network.layout.size),
    )
    bound = MemberReplay(
        SESSION, PlanStep(span, variant, config, DEVICE), network.layout, train_state,
        subsets or [None] * N, samples, EPOCHS,
    )
    for value, array in zip(program.inputs, data[:2], strict=False):
        bound.write(value, array)
    if weighted:
        bound.write_weights(np.broadcast_to(data[2][:, 0], (N, samples)))
    penalties = [case.regularisation(i) for i in range(N)]
    bound.set_members(
        seed=np.arange(N, dtype=np.uint32), squares_limit=np.zeros(N),
        fails_limit=np.zeros(N), l1=np.array([one.l1 for one in penalties]),
        l2=np.array([one.l2 for one in penalties]),
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
    trained = train_state.values()[0].reshape(parameters.shape)
    live = live_elements(network.layout, network.storages)
    for i in range(N):
        np.testing.assert_array_equal(launch.totals_of(i)[-1], launch.last[i])
        (weights, totals), (off, totals_off) = expected(
            case, i, split or bool(matrix_units(DEVICE))
        )
        error = np.abs(trained[i] - weights)
        limit = LAMBDA * off + tiny("float32")
        assert (error <= limit)[live].all(), (i, (error / limit)[live].max())
        assert not trained[i][~live].any()
        error = np.abs(launch.last[i, :3] + launch.last[i, 3:] - totals)
        assert (error <= LAMBDA * totals_off + tiny("float32")).all()
