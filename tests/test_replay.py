"""Replaying a training's launches: when each runs, and where."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from clnet.device import device
from clnet.losses import loss_function
from clnet.lowering import lower_training
from clnet.network import Dense, Network
from clnet.replay import Learnt, Replay
from clnet.runtime import Step, session
from clnet.variants.generic_backward import GenericBackward

DEVICE = device()
SESSION = session(DEVICE)


@dataclasses.dataclass(frozen=True)
class Changed(GenericBackward):
    """The generic kernels, with something else in their launches."""

    change: dict = dataclasses.field(default_factory=dict, hash=False)

    def launches(self, span, config, device):
        launches = super().launches(span, config, device)
        return tuple(dataclasses.replace(one, **self.change) for one in launches)


def gathering(change):
    """A replay that gathers 4 of 10 samples, and what it reads and writes."""
    network = Network(3, [Dense(2)], seed=1)
    program = lower_training(network, loss_function("mse"), None, samples=10)
    span = program.span(0, 1, 4)
    learnt = Learnt(SESSION, network.parameters, np.zeros((0, 0)))
    step = Step(span, Changed(change=change), {}, DEVICE)
    return Replay(SESSION, [step], network.layout, learnt), span


@pytest.mark.parametrize("when", ["call", "parameters", "inputs"])
def test_a_launch_runs_when_what_it_needs_has_changed(when):
    replay, span = gathering({"when": when})
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
