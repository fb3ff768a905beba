"""Steps of a training on the device and by the float64 oracle."""

from __future__ import annotations

import numpy as np

from clnet.ir import reference
from clnet.ir.activation import BiasAct, Softmax
from clnet.ir.product import Apply
from clnet.ir.update import GradientNorm, Update
from clnet.opencl.discovery import device
from clnet.opencl.session import session
from clnet.planning.training_planner import plan_training
from clnet.runtime.binding import PlanStep
from clnet.runtime.replay import Replay
from clnet.runtime.train_state import TrainState
from clnet.variants.reference.generic import Generic, GenericBackward
from clnet.variants.training.optimisers import Norm, Optimisers

DEVICE = device()
SESSION = session(DEVICE)
TOLERANCE = {"float32": 3e-5, "float64": 1e-12}


def generic_steps(program, batch):
    """Return the program by the generic variants alone."""
    steps = []
    for i, op in enumerate(program.ops):
        forward = isinstance(op, (Apply, BiasAct, Softmax))
        update = isinstance(op, Update)
        backward = Optimisers() if update else GenericBackward()
        backward = Norm() if isinstance(op, GradientNorm) else backward
        variant = Generic() if forward else backward
        span = program.span(i, i + 1, batch)
        assert variant.refuse(span, DEVICE) is None
        steps.append(PlanStep(span, variant, {}, DEVICE))
    return steps


def state_of(rule, size, dtype="float64"):
    slots = 0 if rule is None else rule.slots
    state = np.zeros((slots, size), dtype)
    if rule is not None:
        state[...] = np.reshape(rule.initial, (slots, 1))
    return state


def run_step(replay, scalars):
    """Run a step by its scalars."""
    replay.set(**scalars)
    replay.run()


def run_both(network, program, batch, data, scalars, planned=False):
    """Run steps on the device and by the oracle.

    Return the Replay, its TrainState, and the oracle's values and parameters.
    """
    rule = program.ops[-1].optimiser if isinstance(program.ops[-1], Update) else None
    size = network.layout.size
    train_state = TrainState(
        SESSION, network.parameters, state_of(rule, size, network.dtype)
    )
    steps = generic_steps(program, batch)
    if planned:
        steps = plan_training(network, program, DEVICE, batch, tune=False).steps
    replay = Replay(SESSION, steps, network.layout, train_state)
    parameters = network.parameters.astype(np.float64)
    values = {"batch": np.array(batch), "state": state_of(rule, size)}
    for value in program.inputs:
        replay.write(value, data[value.name])
        values[value.name] = data[value.name].astype(network.dtype).astype(np.float64)
    for numbers in scalars:
        run_step(replay, numbers)
        values.update(numbers)
        reference.run_ops(program.ops, values, parameters)
    return replay, train_state, values, parameters


def agree(found, expected, dtype):
    size = max(1e-30, float(np.abs(expected).max(initial=0)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE[dtype] * size)
