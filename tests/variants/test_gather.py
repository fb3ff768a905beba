"""Mini-batches gathered from a data set, by a launch of their own or a packing's."""

from __future__ import annotations

import numpy as np
import pytest
from training_oracle import (
    DEVICE,
    SESSION,
    agree,
    generic_steps,
    run_both,
    run_step,
    state_of,
)
from variant_cases import alternate

from clnet import Dense, Network
from clnet.ir import reference
from clnet.ir.lowering import lower_training
from clnet.nn.losses import loss_function
from clnet.nn.optimisers import SGD
from clnet.nn.random import key
from clnet.opencl.program import WARP_GROUP_MMA
from clnet.runtime.binding import PlanStep
from clnet.runtime.replay import Replay
from clnet.runtime.train_state import TrainState
from clnet.variants import packing
from clnet.variants.dense.cpu import Cpu, serial_companion
from clnet.variants.dense.mma import KEYS, SHAPES, Mma
from clnet.variants.reference.generic import GenericBackward

SAMPLES, BATCH = 23, 12
SCALARS = [  # of an epoch's steps, the last of which is not full
    {"first": first, "samples": samples, "seen": first + samples, "rate": 0.1,
     "fresh": int(first == 0), "count": first // BATCH, "seed": 0, "key": key(8, 3)}
    for first, samples in ((0, BATCH), (BATCH, SAMPLES - BATCH))
]


def weighted_training(network, shuffled):
    """Return the program of a training by mini-batches, and its data set."""
    program = lower_training(
        network, loss_function("mse"), SGD(0.1), samples=SAMPLES, shuffled=shuffled,
        weighted=True,
    )
    rng = np.random.default_rng(1)
    return program, {
        value.name: rng.uniform(0, 1, (SAMPLES, value.width))
        for value in program.inputs
    }


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("planned", [False, True])
def test_mini_batches_are_gathered(shuffled, planned):
    network = Network(5, [Dense(4, "tanh"), Dense(2)], seed=5)
    program, data = weighted_training(network, shuffled)
    replay, train_state, values, parameters = run_both(
        network, program, BATCH, data, SCALARS, planned
    )
    totals = replay.read(program.output)[0]
    agree(totals[:2] + totals[3:5], values["totals"][0, :2], "float32")
    agree(train_state.values()[0], parameters, "float32")
    for value in () if planned else program.ops[0].writes:
        np.testing.assert_array_equal(
            replay.read(value), values[value.name].astype(np.float32)
        )


@pytest.mark.unoptimised
@pytest.mark.parametrize(("n_in", "shuffled"), alternate([5, 70, 4200], [False, True]))
def test_a_packing_gathers_its_batch(n_in, shuffled, monkeypatch):
    """Steps of a launch less, with the bits of two launches."""
    network = Network(n_in, [Dense(40, "tanh"), Dense(2)], seed=5)
    program, data = weighted_training(network, shuffled)
    steps = generic_steps(program, BATCH)
    shape = next(s for s in SHAPES[2] if s[0] == WARP_GROUP_MMA and s[2] == 32)
    config = {**dict(zip(KEYS, shape, strict=True)), "parts": 1}
    steps[1:3] = [PlanStep(program.span(1, 3, BATCH), Mma(), config, DEVICE)]

    def results():
        state = state_of(program.ops[-1].optimiser, network.layout.size, "float32")
        train_state = TrainState(SESSION, network.parameters, state)
        replay = Replay(SESSION, steps, network.layout, train_state)
        for value in program.inputs:
            replay.write(value, data[value.name])
        for numbers in SCALARS:
            run_step(replay, numbers)
        kernels = [launch.kernel for launch in replay.schedule.launches.values()]
        arrays = [replay.read(value) for value in program.ops[0].writes]
        return kernels, [*arrays, replay.read(program.output), train_state.values()[0]]

    kernels, found = results()
    monkeypatch.setattr(packing, "_can_gather", lambda *_: False)
    kernels_before, expected = results()
    assert [k for k in kernels_before if "gather" not in k] == kernels != kernels_before
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.skipif(serial_companion(DEVICE) is None, reason="no calling thread")
def test_a_batch_is_gathered_before_the_calling_thread_reads_it():
    """It read the rows of the step before, which no value showed in most runs."""
    network = Network(300, [Dense(40, "tanh"), Dense(2)], seed=5)
    program, data = weighted_training(network, shuffled=True)
    steps = generic_steps(program, BATCH)
    config = {"workers": 2, "group": 1, "caller": 1}
    steps[1:3] = [PlanStep(program.span(1, 3, BATCH), Cpu(), config, DEVICE)]
    state = state_of(program.ops[-1].optimiser, network.layout.size, "float32")
    train_state = TrainState(SESSION, network.parameters, state)
    replay = Replay(SESSION, steps, network.layout, train_state)
    for value in program.inputs:
        replay.write(value, data[value.name])
    launches = replay.schedule.launches
    kernels = [
        launches[action].kernel if action in launches else "wait"
        for action in replay.schedule.actions
    ]
    assert "wait" in kernels[kernels.index("gather") : kernels.index("lead")]
    run_step(replay, SCALARS[0])
    (batch,) = steps[1].span.inputs
    hidden = np.tanh(replay.read(batch) @ network.weights(0).T + network.biases(0))
    (y,) = steps[1].span.outputs
    np.testing.assert_allclose(replay.read(y), hidden, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shuffled", [False, True])
def test_many_rows_are_gathered(shuffled):
    """Groups of several rows, the last not full, beyond a grid of 65535 groups."""
    rows, batch = 70_001, 70_000
    network = Network(3, [Dense(2)], seed=5)
    program = lower_training(
        network, loss_function("mse"), None, samples=rows, shuffled=shuffled
    )
    span = program.span(0, 1, batch)
    train_state = TrainState(SESSION, network.parameters, np.zeros((0, 0)))
    step = PlanStep(span, GenericBackward(), {}, DEVICE)
    replay = Replay(SESSION, [step], network.layout, train_state)
    numbers = {"first": 5, "key": key(8, 3)}
    values = {"batch": np.array(batch), **numbers}
    for value in span.inputs:
        values[value.name] = np.arange(rows * value.width, dtype=np.float32).reshape(
            rows, value.width
        )
        replay.write(value, values[value.name])
    run_step(replay, numbers)
    reference.run_ops(span.ops, values, network.parameters)
    for value in span.ops[0].writes:
        np.testing.assert_array_equal(replay.read(value), values[value.name])
