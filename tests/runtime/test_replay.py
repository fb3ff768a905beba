"""Replays of training steps: the order of launches, devices, and long runs."""

from __future__ import annotations

import dataclasses
import gc

import numpy as np
import pytest

from clnet import Dense, Network
from clnet.ir.activation import BiasAct
from clnet.ir.lowering import lower_training
from clnet.ir.product import Apply
from clnet.ir.update import Update
from clnet.nn.losses import loss_function
from clnet.nn.optimisers import Rprop
from clnet.opencl.discovery import device
from clnet.opencl.launch import Scalar
from clnet.opencl.session import session
from clnet.runtime.binding import PlanStep
from clnet.runtime.replay import Replay
from clnet.runtime.train_state import TrainState
from clnet.variants.dense.cpu import Cpu
from clnet.variants.reference.generic import Generic, GenericBackward
from clnet.variants.training.optimisers import Optimisers

DEVICE = device()
SESSION = session(DEVICE)


@dataclasses.dataclass(frozen=True)
class Changed(GenericBackward):
    """The generic kernels with changed fields in their launches."""

    change: dict = dataclasses.field(default_factory=dict, hash=False)

    def launches(self, span, config, device):
        launches = super().launches(span, config, device)
        return tuple(dataclasses.replace(one, **self.change) for one in launches)


def gather_replay(change, variant=None):
    """A replay that gathers 4 of 10 samples, and its span."""
    network = Network(3, [Dense(2)], seed=1)
    program = lower_training(network, loss_function("mse"), None, samples=10)
    span = program.span(0, 1, 4)
    train_state = TrainState(SESSION, network.parameters, np.zeros((0, 0)))
    step = PlanStep(span, variant or Changed(change=change), {}, DEVICE)
    return Replay(SESSION, [step], network.layout, train_state), span


@pytest.mark.parametrize("when", ["call", "parameters", "inputs"])
def test_launches_run_after_their_changes(when):
    replay, span = gather_replay({"when": when})
    (data, _), (batch, _) = span.inputs, span.outputs
    x = np.arange(30, dtype=np.float32).reshape(10, 3)
    replay.write(data, x)
    replay.run()
    np.testing.assert_array_equal(replay.read(batch), x[:4])
    replay.set(first=2)
    replay.run()
    first = 0 if when == "inputs" else 2
    np.testing.assert_array_equal(replay.read(batch), x[first : first + 4])
    replay.write(data, -x)
    replay.run()
    np.testing.assert_array_equal(replay.read(batch), -x[2:6])


# Several devices --------------------------------------------------------------------

CPU = device("cpu")
SERIAL = next((one for one in CPU.companions if one.serial), None)


def trained(network, data, steps_of, epochs=3):
    """Parameters and totals after some steps of RPROP."""
    program = lower_training(network, loss_function("mse"), Rprop())
    here = session(CPU)
    train_state = TrainState(
        here, network.parameters,
        np.stack([np.full(network.layout.size, 0.1), np.zeros(network.layout.size)])
        .astype(network.dtype),
    )
    steps = steps_of(program, len(data["x"]))
    replay = Replay(here, steps, network.layout, train_state)
    for value in program.inputs:
        replay.write(value, data[value.name])
    for count in range(epochs):
        replay.set(samples=replay.batch, seen=replay.batch, fresh=1, count=count)
        replay.run()
    totals = replay.read(program.output)
    return train_state.values()[0], totals


def generic(program, batch, forward=None, device_of=lambda number: CPU):
    """Steps of generic kernels, or of a given variant for the layers."""
    steps = []
    start = 0
    while start < len(program.ops):
        op = program.ops[start]
        size, variant, config = 1, GenericBackward(), {}
        if isinstance(op, Update):
            variant = Optimisers()
        elif isinstance(op, (Apply, BiasAct)):
            variant = Generic()
            if forward is not None:
                size, (variant, config) = 2, forward
        span = program.span(start, start + size, batch)
        assert variant.refuse(span, device_of(start)) is None
        steps.append(PlanStep(span, variant, config, device_of(start)))
        start += size
    return steps


def data_of(network, batch=20):
    rng = np.random.default_rng(3)
    return {"x": rng.uniform(-1, 1, (batch, network.n_in)),
            "t": rng.uniform(0, 1, (batch, network.n_out))}


@pytest.mark.skipif(SERIAL is None, reason="no serial companion")
@pytest.mark.parametrize("device_of", [
    lambda number: SERIAL, lambda number: (CPU, SERIAL)[number % 2],
    lambda number: (SERIAL, CPU)[number % 3 == 0],
], ids=["serial", "alternating", "every third"])
def test_steps_of_several_devices_wait_for_each_other(device_of):
    network = Network(5, [Dense(40, "tanh"), Dense(3, "tanh")], seed=2)
    data = data_of(network)
    expected = trained(network, data, generic)
    found = trained(
        network, data, lambda *parts: generic(*parts, device_of=device_of)
    )
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.skipif(SERIAL is None, reason="no serial companion")
@pytest.mark.parametrize("workers", [2, 5])
def test_standby_launches_in_training(workers):
    network = Network(5, [Dense(100, "tanh"), Dense(64, "tanh")], seed=2)
    data = data_of(network)

    def result(**config):
        forward = (Cpu(), {"group": 2, **config})
        return trained(network, data, lambda *parts: generic(*parts, forward), 30)

    expected = result(workers=1, caller=0)
    for _ in range(3):
        found = result(workers=workers, caller=1)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)
    gc.collect()


# Many steps per run -----------------------------------------------------------------


def test_a_pass_sets_the_scalars_of_each_batch():
    replay, _ = gather_replay({})
    runs = []
    replay.run = lambda: runs.append(dict(replay.bound.numbers))
    assert replay.run_pass(10, count=7) == 3
    assert runs == [
        {"first": 0, "samples": 4, "seen": 4, "fresh": 1, "count": 7, "steps": 1},
        {"first": 4, "samples": 4, "seen": 8, "fresh": 0, "count": 8, "steps": 1},
        {"first": 8, "samples": 2, "seen": 10, "fresh": 0, "count": 9, "steps": 1},
    ]


class Counting(Changed):
    """Launches with the number of steps among their arguments."""

    def launches(self, span, config, device):
        first, *rest = super().launches(span, config, device)
        arguments = (*first.arguments[:-1], Scalar("steps"))
        first = dataclasses.replace(first, arguments=arguments)
        return (first, *(dataclasses.replace(one, when="inputs") for one in rest))


@pytest.mark.parametrize("n", [10, 3, 4])
def test_a_pass_in_one_run(n):
    replay, _ = gather_replay({}, Counting())
    runs = []
    replay.run = lambda: runs.append(dict(replay.bound.numbers))
    assert replay.run_pass(n, count=7) == -(-n // 4)
    assert runs == [
        {"first": 0, "samples": n, "seen": min(n, 4), "fresh": 1, "count": 7,
         "steps": -(-n // 4)},
    ]


@pytest.mark.parametrize(("n", "most"), [(10, 2), (17, 3), (4, 3), (24, 3), (19, 4)])
def test_the_runs_of_a_pass_have_bounded_steps(n, most, monkeypatch):
    replay, span = gather_replay({}, Counting())
    monkeypatch.setattr(
        "clnet.runtime.replay.run_flops", lambda device: most * span.flops
    )
    replay, _ = gather_replay({}, Counting())
    runs = []
    replay.run = lambda: runs.append(dict(replay.bound.numbers))
    steps = replay.run_pass(n)
    assert sum(run["steps"] for run in runs) == steps == -(-n // 4)
    for run in runs:
        assert run["steps"] == -(-run["samples"] // 4) <= most
        assert run["first"] + run["samples"] <= n
