"""Spans of training programs, and checks of variants against the oracle."""

from __future__ import annotations

import numpy as np

from clnet.ir import reference
from clnet.ir.lowering import lower_training
from clnet.ir.product import Outer
from clnet.nn.losses import loss_function
from clnet.opencl.discovery import device
from clnet.opencl.session import session
from clnet.runtime.binding import Step
from clnet.runtime.replay import Replay
from clnet.runtime.train_state import TrainState

DEVICE = device()
SESSION = session(DEVICE)


def program_of(network):
    return lower_training(network, loss_function("mse"), None)


def span_at(program, kind, length, batch, which=0):
    """Return a span of `length` ops that starts at op number `which` of a kind."""
    starts = [i for i, op in enumerate(program.ops) if isinstance(op, kind)]
    return program.span(starts[which], starts[which] + length, batch)


def check(network, span, variant, config, seed=0, eps=None, capable=DEVICE):
    """Compare a variant's outputs with the float64 oracle.

    eps: relative rounding error of one number, by default the dtype's; capable: a
    device that the variant does not refuse.
    """
    assert variant.refuse(span, capable) is None
    eps = np.finfo(span.dtype).eps if eps is None else eps
    rng = np.random.default_rng(seed)
    train_state = TrainState(SESSION, network.parameters, np.zeros((0, 0)))
    replay = Replay(SESSION, [Step(span, variant, config, DEVICE)], network.layout,
                    train_state)
    values = {}
    for value in span.inputs:
        rows = rng.uniform(-1, 1, (span.batch, value.width)).astype(span.dtype)
        replay.write(value, rows)
        values[value.name] = rows.astype(np.float64)
    reference.run_ops(span.ops, values, network.parameters.astype(np.float64))
    replay.run()
    flat = replay.read_gradients()
    for op in span.ops:
        for value in op.writes:
            if value not in span.outputs:
                continue
            if value.rows is None:
                found = replay.read(value)
            else:
                slot = op.weights if isinstance(op, Outer) else op.bias
                found = flat[np.newaxis, slot.offset : slot.offset + slot.size]
            expected = values[value.name]
            terms = max(span.batch, *(v.width for v in span.inputs))
            np.testing.assert_allclose(
                found, expected, rtol=0,
                atol=10 * eps * np.sqrt(terms)
                * max(1, np.abs(expected).max()),
            )
