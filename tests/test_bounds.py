"""The bounds of the tests detect a kernel that omits one product."""

import numpy as np
import pytest
from bounds import (
    ACTIVATION_ERRORS,
    FLOAT32,
    FP16_SPLIT,
    JUMPS,
    LAMBDA,
    slope,
    span_bound,
    sum_error,
    tiny,
    unit,
)
from deviations import deviations
from numpy.lib.stride_tricks import sliding_window_view

from clnet import Dense
from clnet.ir import reference
from clnet.ir.lowering import lower_training
from clnet.network import Network
from clnet.nn.activations import ACTIVATIONS
from clnet.nn.losses import loss_function
from clnet.nn.optimisers import SGD
from clnet.nn.storage.layout import live_elements


def test_every_activation_has_its_errors():
    assert list(ACTIVATION_ERRORS) == list(ACTIVATIONS)
    assert set(JUMPS) < set(ACTIVATIONS)


@pytest.mark.parametrize("reach", [1, 50, 500])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_no_difference_quotient_exceeds_the_slope(name, reach):
    step = 0.001
    v = np.arange(-8, 8, step)
    quotients = np.abs(np.diff(ACTIVATIONS[name].value(v)) / step)
    for point in JUMPS.get(name, ((), 0))[0]:
        quotients[np.abs(v[1:] - point) < 0.01] = 0
    steepest = sliding_window_view(quotients, 2 * reach).max(axis=1)
    middle = v[reach : reach + steepest.size]
    allowed = slope(name, middle, np.full(middle.shape, reach * step))
    assert (steepest <= allowed + 1e-6).all()


@pytest.mark.parametrize("n", [1, 10, 1000, 100_000])
def test_sums_in_float32_stay_within_their_bound(n):
    rng = np.random.default_rng(n)
    a = rng.standard_normal((50, n)).astype(np.float32)
    exact = a.astype(np.float64).sum(axis=1)
    for sums in (a.cumsum(axis=1)[:, -1], a.sum(axis=1)):
        error = np.abs(sums - exact) / np.abs(a).sum(axis=1)
        assert error.max() <= sum_error(n, "float32")


@pytest.mark.parametrize("activation", ["identity", "sigmoid", "tanh", "gelu", "sin"])
@pytest.mark.parametrize(
    "sizes", [(7, 5), (129, 30), (1000, 20), (4000, 8), (50, 60, 7), (30, 200, 31, 4)]
)
def test_an_omitted_weight_is_detected(activation, sizes):
    """Of ten weights, each omitted alone, nine move a result beyond its bound."""
    network = Network.mlp(sizes, activation, seed=1)
    span = network.program.span(0, len(network.program.ops), 3)
    rng = np.random.default_rng(2)
    x = rng.standard_normal((3, sizes[0]))
    exact, bounds = span_bound(span, {"x": x}, network.parameters)
    output = network.program.output.name
    detected = []
    live = live_elements(network.layout, network.storages)
    live = np.flatnonzero(live[: network.layout.weights[0].size])
    for slot in rng.choice(live, 40):
        parameters = network.parameters.astype(np.float64)
        parameters[slot] = 0
        wrong = reference.run(network.program, x, parameters)
        detected.append((np.abs(wrong - exact[output]) > bounds[output]).any())
    assert np.mean(detected) >= 0.9


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_omitted_bias_is_detected(dtype):
    network = Network.mlp([300, 20], "tanh", seed=1, dtype=dtype)
    parameters = np.array(network.parameters)
    slot = network.layout.biases[0]
    parameters[slot.offset : slot.offset + slot.size] = 0.01
    span = network.program.span(0, 2, 3)
    x = np.random.default_rng(2).standard_normal((3, 300))
    exact, bounds = span_bound(span, {"x": x}, parameters)
    without = reference.run(
        network.program, x, network.parameters.astype(np.float64)
    )
    assert (np.abs(without - exact["y1"]) > bounds["y1"]).all()


@pytest.mark.parametrize(("precision", "share"), [("highest", 0.9), ("medium", 0.5)])
def test_a_sample_omitted_from_a_gradient_is_detected(precision, share):
    network = Network.mlp([20, 30, 10], "tanh", seed=1)
    ops = lower_training(network, loss_function("mse"), None).ops
    rng = np.random.default_rng(2)
    inputs = {"x": rng.uniform(-1, 1, (64, 20)), "t": rng.uniform(0, 1, (64, 10))}
    found = [
        deviations(
            ops, inputs, network.parameters, FP16_SPLIT[precision],
            [{"samples": samples}],
        )
        for samples in (64, 63)
    ]
    (full, deviation), (without, _) = found
    for op in ops:
        if hasattr(op, "gradient"):
            name = op.gradient.name
            live = full[name] != 0
            off = np.abs(full[name] - without[name])[live]
            assert (off > LAMBDA * deviation[name][live]).mean() >= share


def of_training(network, rule, x, t, loss="mse", passes=1):
    """Return deviations by name, of steps with the same samples."""
    ops = lower_training(network, loss_function(loss), rule).ops
    one = {"samples": len(x), "seen": len(x), "count": 0, "rate": 0.01, "seed": 0}
    inputs = {"x": x, "t": t, "state": np.zeros((1, network.layout.size))}
    return deviations(ops, inputs, network.parameters, FLOAT32, [one] * passes)


def test_errors_of_two_steps_do_not_cancel():
    """Two of one size and random signs did, in all draws, for one value in 2^16."""
    network = Network.mlp([200, 600], "identity", seed=1)
    x, t = np.zeros((1, 200)), np.zeros((1, 600))
    exact, deviation = of_training(network, SGD(), x, t, passes=2)
    rounding = unit("float32") * np.abs(exact["parameters"])
    assert (LAMBDA * deviation["parameters"] >= rounding).all()


def test_a_value_near_zero_is_not_zero_in_all_draws():
    network = Network.mlp([1, 500, 1], "tanh_stepwise", seed=1)
    exact, deviation = of_training(network, None, np.zeros((500, 1)), np.ones((500, 1)))
    assert not exact["y1"].any()
    assert deviation["y1"].all()


def test_underflow_has_an_error():
    """Of a sigmoid of -1000 a kernel may make the smallest normal number."""
    network = Network(1, [Dense(1, "sigmoid", bias=False)])
    network.parameters = np.where(network.parameters != 0, -1.0, 0.0)
    x, t = np.full((1, 1), 1000.0), np.zeros((1, 1))
    exact, deviation = of_training(network, None, x, t, "binary_cross_entropy")
    assert exact["gradient0"][0, 0] == 0
    assert LAMBDA * deviation["gradient0"][0, 0] > 1000 * tiny("float32")


def test_an_exact_zero_has_no_error():
    network = Network.mlp([3, 4, 2], "relu", seed=1)
    exact, deviation = of_training(network, None, np.zeros((5, 3)), np.zeros((5, 2)))
    assert not exact["gradient0"].any()
    assert not deviation["gradient0"].any()
