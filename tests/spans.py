"""Spans of training programs, and checks of variants against the oracle."""

import numpy as np
from bounds import OVERFLOWS, span_bound

from clnet.ir import reference
from clnet.ir.lowering import lower_training
from clnet.nn.losses import LOSSES, loss_function
from clnet.opencl.discovery import device
from clnet.opencl.session import session
from clnet.runtime.binding import PlanStep
from clnet.runtime.executable import Executable
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


def samples_for(network, loss, batch, weighted=False, seed=4):
    """Return x, t and weight that suit a loss; the first sample of weight 0 overflows.

    Without `weighted` the weights are drawn too, but no sample overflows.
    """
    rng = np.random.default_rng(seed)
    t = rng.uniform(0, 1, (batch, network.n_out))
    if LOSSES[loss].fused == "softmax":
        t /= t.sum(axis=1, keepdims=True)
    x, weight = rng.uniform(-1, 1, (batch, network.n_in)), rng.uniform(0, 2, (batch, 1))
    if weighted:
        t[0], weight[0] = OVERFLOWS, 0
    return {"x": x, "t": t, "weight": weight}


def slot_of(op):
    """Return the slot of the gradient that an op writes, or None."""
    if not hasattr(op, "gradient"):
        return None
    return op.bias if hasattr(op, "bias") else op.weights


def results_of(network, span, variant, config, values, *scalars, second=False):
    """Return what a variant writes for values by name; NaN is there before.

    scalars: those of each run. The flat buffer of gradients is named "gradients".
    second: a call with inputs of NaN comes before, of which nothing may be left.
    """
    train_state = TrainState(SESSION, network.parameters, np.zeros((0, 0)))
    replay = Replay(SESSION, [PlanStep(span, variant, config, DEVICE)], network.layout,
                    train_state)
    for known in ({}, values) if second else (values,):
        for value in (*span.outputs, *span.inputs):
            if value in span.inputs and value.name in known:
                replay.write(value, known[value.name].astype(network.dtype))
            elif value.rows is None:
                rows = np.full((span.batch, value.width), np.nan, network.dtype)
                replay.write(value, rows)
        for numbers in scalars or ({},):
            replay.set(**numbers)
            replay.run()
    results = {"gradients": replay.read_gradients()}
    for op in span.ops:
        slot = slot_of(op)
        for value in set(op.writes) & set(span.outputs):
            results[value.name] = replay.read(value) if slot is None else (
                results["gradients"][np.newaxis, slot.offset : slot.offset + slot.size]
            )
    return results


def check(network, span, variant, config, seed=0, eps=None, capable=DEVICE):
    """Compare a variant's outputs with the float64 oracle.

    eps: relative rounding error of one number, by default the dtype's; capable: a
    device that the variant does not refuse.
    """
    assert variant.refuse(span, capable) is None
    eps = np.finfo(span.dtype).eps if eps is None else eps
    rng = np.random.default_rng(seed)
    values = {
        value.name: rng.uniform(-1, 1, (span.batch, value.width)).astype(span.dtype)
        for value in span.inputs
    }
    results = results_of(network, span, variant, config, values)
    values = {name: rows.astype(np.float64) for name, rows in values.items()}
    reference.run_ops(span.ops, values, network.parameters.astype(np.float64))
    terms = max(span.batch, *(v.width for v in span.inputs))
    for value in span.outputs:
        expected = values[value.name]
        bound = 10 * eps * np.sqrt(terms) * max(1, np.abs(expected).max())
        np.testing.assert_allclose(results[value.name], expected, rtol=0, atol=bound)


def check_calls(network, step, draw, calls=3):
    """Compare calls of a step with the oracle.

    Several: words are double-buffered, counters grow, and scratch keeps no state.
    """
    span = step.span
    executable = Executable(
        session(step.device), network, [step], span.inputs, span.outputs
    )
    for _ in range(calls):
        inputs = {}
        for value in span.inputs:
            rows = draw(size=(span.batch, value.width)).astype(span.dtype)
            inputs[value.name] = executable.x[value.name][...] = rows
        executable.run()
        exact, bound = span_bound(span, inputs, network.parameters)
        for value in span.outputs:
            off = np.abs(executable.result(value.name) - exact[value.name])
            assert (off <= bound[value.name]).all(), (step.config, off.max())
