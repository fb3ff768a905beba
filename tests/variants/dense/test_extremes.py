"""Matrix units on zeros, denormals, huge numbers, infinity, NaN, by the plain-C path.

Each is in one sample, or in one row of weights, and leaves all others as they are.
"""

from __future__ import annotations

import numpy as np
import pytest
from bounds import FP16_SPLIT, span_bound, unit
from devices import H200, ONE_GROUP
from spans import program_of, span_at

from clnet import Dense, Network
from clnet.checks import PRECISIONS
from clnet.ir.product import Outer
from clnet.opencl.program import WARP_GROUP_MMA
from clnet.opencl.session import session
from clnet.runtime.binding import PlanStep
from clnet.runtime.executable import Executable
from clnet.runtime.replay import Replay
from clnet.runtime.train_state import TrainState
from clnet.variants.dense import fused_mma, mma, persistent
from clnet.variants.training.gemm_backward import MmaBackward

TINY = float(np.finfo(np.float32).tiny)  # below it, devices may flush to zero
SAMPLES = {
    "zero": 0.0, "minus zero": -0.0, "denormal": 1e-40, "small": 1e-30, "large": 1e30,
    "infinite": np.inf, "nan": np.nan,
}
BATCH = 64  # the least of mma_chain
VARIANTS = {
    "fused_mma": (fused_mma.FusedMma(), fused_mma.KEYS, (1, 1, 1, 1)),
    "mma of warps": (mma.Mma(), mma.KEYS, mma.SHAPES[2][-1]),
    "mma of warp groups": (
        mma.Mma(), mma.KEYS, (WARP_GROUP_MMA, 64, 32, 4, 1, 4, 3, 4, 1),
    ),
    "mma_chain": (mma.MmaChain(), mma.CHAIN_KEYS, (64, 32, 32, 4, 2)),
    "persistent_mma": (
        persistent.PersistentMma(), persistent.KEYS, (2, 2, 1, 2),
    ),
}


class Plan:
    """A network by one variant, which has the network's parameters of each call."""

    def __init__(
        self, variant, sizes, precision="highest", bias=True, hidden="identity"
    ):
        kernel, keys, shape = VARIANTS[variant]
        layers = [Dense(n, hidden, bias=bias) for n in sizes[1:-1]]
        self.network = Network(
            sizes[0], [*layers, Dense(sizes[-1], "identity", bias=bias)], seed=1
        )
        program = self.network.program.at(precision)
        self.span = program.span(0, len(program.ops), BATCH)
        assert kernel.refuse(self.span, H200) is None
        config = {**dict(zip(keys, shape, strict=True)), "parts": 1}
        step = PlanStep(self.span, kernel, config, ONE_GROUP)
        self.executable = Executable(
            session(ONE_GROUP), self.network, [step], self.span.inputs,
            self.span.outputs,
        )
        self.parameters = self.network.parameters.copy()
        self.arithmetic = FP16_SPLIT[precision]

    def check(self, x, parameters):
        """Assert that finite outputs are right, and others not finite."""
        self.network.parameters = parameters
        name, (y,) = self.span.inputs[0].name, self.span.outputs
        self.executable.x[name][...] = x
        self.executable.run()
        found = self.executable.result(y.name)
        with np.errstate(all="ignore"):
            exact, bound = span_bound(self.span, {name: x}, parameters, self.arithmetic)
            flushed, _ = span_bound(self.span, {name: flush(x)}, flush(parameters))
            finite = np.isfinite(exact[y.name].astype(np.float32))
        np.testing.assert_array_equal(np.isfinite(found), finite)
        y_exact = exact[y.name][finite]
        allowed = bound[y.name][finite] + np.abs(flushed[y.name][finite] - y_exact)
        assert (np.abs(found[finite] - y_exact) <= allowed + TINY * BATCH).all()


def flush(v):
    """Return values with those below TINY as zeros, which kernels may take them for."""
    return np.where(np.abs(v) < TINY, 0, v)


def linear(variant):
    """Return sizes of a network without other activations, as short as may be."""
    return (20, 17, 5) if variant == "mma_chain" else (20, 5)


def samples(n_in):
    """Return samples of which the first have an extreme value, all or in one input."""
    x = np.random.default_rng(0).uniform(-1, 1, (BATCH, n_in)).astype(np.float32)
    for i, value in enumerate(SAMPLES.values()):
        x[2 * i] = value if not np.isfinite(value) else value * x[2 * i]
        x[2 * i + 1, 1] = value
    return x


def slots(plan, number=-1):
    """Return the offsets of a layer's weights and biases, by default the last one's."""
    layer = plan.span.layers[number]
    return layer.apply.weights.offset, layer.act.bias and layer.act.bias.offset


@pytest.mark.parametrize("precision", PRECISIONS[:2])
@pytest.mark.parametrize("variant", VARIANTS)
def test_in_samples(variant, precision):
    """Infinity and NaN reach all outputs."""
    plan = Plan(variant, linear(variant), precision)
    plan.check(samples(20), plan.parameters)


@pytest.mark.parametrize("scale", [0.0, 1e-30, 3e8, 1e30])
@pytest.mark.parametrize("variant", VARIANTS)
def test_in_samples_by_weights_of_any_scale(variant, scale):
    """Samples of zeros give zeros, where there are no biases to limit their scale."""
    plan = Plan(variant, linear(variant), bias=False)
    x = samples(20)
    with np.errstate(all="ignore"):
        x[np.abs(x).max(axis=1) * scale > 1e30] = 0
    plan.check(x, plan.parameters * np.float32(scale))


@pytest.mark.parametrize("variant", VARIANTS)
def test_in_samples_near_the_largest_number(variant):
    """Sums of scaled values overflow only where the outputs do."""
    plan = Plan(variant, linear(variant), bias=False)
    x = np.random.default_rng(0).uniform(-1, 1, (BATCH, 20)).astype(np.float32)
    x[:8] *= np.float32(3e38)
    x[8:16, 1] = 3e38
    plan.check(x, plan.parameters * np.float32(1e-9))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_huge_input_beside_a_huge_weight(variant):
    """The scales of a sample and of a row overflow together, their products do not."""
    plan = Plan(variant, linear(variant), bias=False)
    x = np.random.default_rng(0).uniform(-1, 1, (BATCH, 20)).astype(np.float32)
    x[:8, :2] = 1e30, 1e-3
    weights, _ = slots(plan, 0)
    parameters = plan.parameters.copy()
    parameters[weights : weights + 2] = 0, 1e30
    plan.check(x, parameters)


@pytest.mark.parametrize("shape", [mma.SHAPES[2][-1], mma.SHAPES[2][-4]])
def test_a_huge_error_beside_a_huge_input(shape):
    """Of two samples: the gradient of their weight has no part of them."""
    network = Network(5, [Dense(3, "identity", bias=False)], seed=1)
    span = span_at(program_of(network), Outer, 1, BATCH)
    assert MmaBackward().refuse(span, H200) is None
    config = {**dict(zip(mma.KEYS, shape, strict=True)), "parts": 1}
    replay = Replay(
        session(ONE_GROUP), [PlanStep(span, MmaBackward(), config, ONE_GROUP)],
        network.layout, TrainState(session(ONE_GROUP), network.parameters,
                                   np.zeros((0, 0))),
    )
    rng = np.random.default_rng(0)
    rows = {
        value.width: rng.uniform(-1, 1, (BATCH, value.width)).astype(np.float32)
        for value in span.inputs
    }
    rows[5][:2, 0], rows[3][:2, 0] = (0, 1e30), (1e30, 0)
    for value in span.inputs:
        replay.write(value, rows[value.width])
    replay.run()
    gradient = replay.read_gradients()[: network.layout.size]
    assert np.isfinite(gradient).all()
    x, dy = (rows[width].astype(np.float64) for width in (5, 3))
    weights = network.storages[0].matrix(gradient[: network.layout.weights[0].size])
    sizes = np.outer(np.abs(dy).max(axis=0), np.abs(x).max(axis=0))
    assert (np.abs(weights - dy.T @ x) <= BATCH * unit("float32") * sizes).all()


@pytest.mark.parametrize("value", [0.0, 1e-40, 1e4, 1e8, 1e12, 1e30, 3e38])
@pytest.mark.parametrize("variant", VARIANTS)
def test_in_a_hidden_neurons_weights_and_biases(variant, value):
    """The others of its layer, which alone are read, are as they were."""
    plan = Plan(variant, (20, 17, 16, 5), hidden="tanh")
    x = np.random.default_rng(0).uniform(-1, 1, (BATCH, 20)).astype(np.float32)
    for layer in (0, 1):
        following, end = slots(plan, layer + 1)
        for offset in slots(plan, layer):
            parameters = plan.parameters.copy()
            parameters[offset] = value
            stride = plan.span.layers[layer + 1].apply.storage.stride
            parameters[following:end:stride] = 0
            plan.check(x, parameters)


@pytest.mark.parametrize("value", [0.0, 1e-40, 1e12, 1e30, 3e38, np.inf, np.nan])
@pytest.mark.parametrize("variant", VARIANTS)
def test_in_the_last_layers_weights_and_biases(variant, value):
    """Other neurons have gains of their own."""
    plan = Plan(variant, (20, 17, 5), hidden="tanh")
    x = np.random.default_rng(0).uniform(-1, 1, (BATCH, 20)).astype(np.float32)
    for offset in slots(plan):
        parameters = plan.parameters.copy()
        parameters[offset + 1] = value
        plan.check(x, parameters)
    weights, bias = slots(plan)
    parameters = plan.parameters.copy()
    with np.errstate(invalid="ignore"):
        parameters[weights:bias] *= value  # all of them, beside ordinary biases
    plan.check(x, parameters)
