"""Networks of a population beside the oracle, within the bounds of rounding."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np
from bounds import FLOAT32, FP16_SPLIT
from differential.cases import Case, Options
from differential.check import Oracle, Skipped, initial_state, lowered

from clnet.nn.optimisers import OPTIMISERS
from clnet.nn.regularisation import Regularisation
from clnet.opencl.discovery import device
from clnet.opencl.program import matrix_units


def compare_with_oracle(population, x, t, options):
    """Train a population; each network is within its error bounds."""
    start = population.parameters
    histories = population.fit(x, t, **options)
    for number, before in enumerate(start):
        check_network(population, number, before, histories[number], x, t, **{
            name: value[number] if isinstance(value, list) else value
            for name, value in options.items()
        })
    return histories


def check_network(population, number, before, history, x, t, *, optimiser, epochs,
                  seed, batch_size=None, shuffle=True, sample_weight=None, rows=None,
                  learning_rate=None, schedule=None, l1=0.0, l2=0.0,
                  desired_error=None):
    """Check the parameters and the last errors of a network of a population.

    `before` [size] are its initial parameters, `sample_weight` [networks, samples] or
    [samples], the others its own of `Population.fit`.
    """
    assert desired_error is None  # rounding may decide the epoch of a stop
    own = np.arange(len(x)) if rows is None else rows
    arrays = [x[own].astype(np.float32), t[own].astype(np.float32)]
    if sample_weight is not None:
        shape = len(population), len(x)
        weights = np.broadcast_to(sample_weight, shape)[number, own]
        arrays.append(weights[:, np.newaxis].astype(np.float32))
    n, rule, network = len(own), OPTIMISERS[optimiser](), population[number]
    if learning_rate is not None:
        rule = replace(rule, learning_rate=learning_rate)
    batch = min(batch_size or rule.default_batch or n, n)
    case = Case(
        seed, "fit", x.shape[1], network.layers, batch=batch,
        options=Options(
            rule, "mse", n, batches=batch < n, epochs=epochs,
            shuffled=batch < n and shuffle, weighted=sample_weight is not None,
            regularisation=Regularisation(l1=l1, l2=l2), schedule=schedule,
        ),
    )
    program = lowered(case, network)
    values = {v.name: one for v, one in zip(program.inputs, arrays, strict=True)}
    last, size = history[-1].training, n * network.n_out
    with suppress(Skipped):  # of an ill-conditioned training there is no bound
        Oracle(
            case, program, {**values, "state": initial_state(case, before)}, before,
            FP16_SPLIT["highest"] if matrix_units(device()) else FLOAT32, *arrays[2:],
        ).check(
            {"parameters": population.parameters[[number]], "totals": np.array([[
                last.loss * n, last.mse * size, last.bit_fail, 0, 0, 0
            ]])},
            {"parameters": network._live},
        )
