"""Dropout: the mask, means that stay, and that only training applies it."""

from __future__ import annotations

import numpy as np
import pytest

import clnet
from clnet import Dense, InputError, Network
from clnet.ir import reference
from clnet.ir.batch import Dropout
from clnet.ir.lowering import lower, lower_training
from clnet.ir.op import Value
from clnet.nn.losses import loss_function
from clnet.nn.optimisers import SGD


def data(n=60):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (n, 2))
    return x, (x[:, :1] * x[:, 1:] > 0).astype(float)


def dropped(fraction, layer=1, seed=3, count=0, shape=(500, 40)):
    x, y = (Value(name, shape[1], shape[1]) for name in "xy")
    values = {"x": np.ones(shape), "seed": seed, "count": count}
    Dropout(x, y, layer, fraction).run(values, np.zeros(0))
    return values["y"]


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9])
def test_the_share_of_zeros_and_the_scale(fraction):
    y = dropped(fraction)
    share = (y == 0).mean()
    assert abs(share - fraction) < 4 * np.sqrt(fraction * (1 - fraction) / y.size)
    np.testing.assert_allclose(y[y != 0], 1 / (1 - fraction))
    # The share is binomial for each neuron and each sample, too.
    for axis in (0, 1):
        shares = (y == 0).mean(axis=axis)
        deviation = np.sqrt(fraction * (1 - fraction) / y.shape[axis])
        assert np.abs(shares - fraction).max() < 5 * deviation


def test_layers_steps_and_seeds_have_independent_masks():
    first = dropped(0.5)
    for other in ({"layer": 2}, {"count": 1}, {"seed": 4}):
        equal = (dropped(0.5, **other) == first).mean()
        assert abs(equal - 0.5) < 4 * 0.5 / np.sqrt(first.size)
    assert np.array_equal(dropped(0.5), first)


def test_no_other_program_contains_dropout():
    plain = Network.mlp([2, 8, 6, 1], "tanh", seed=1)
    network = Network.mlp([2, 8, 6, 1], "tanh", dropout=0.3, seed=1)
    assert lower(network).ops == lower(plain).ops
    loss = loss_function("mse")
    assert lower_training(plain, loss, SGD()).ops == (
        lower_training(network, loss, SGD(), dropout=False).ops
    )
    ops = lower_training(network, loss, SGD()).ops
    assert sum(isinstance(op, Dropout) for op in ops) == 4
    x, _ = data()
    assert np.array_equal(
        reference.run(network.program, x, network.parameters),
        reference.run(plain.program, x, plain.parameters),
    )


def test_gradients_by_finite_differences():
    """The gradient with fixed masks, shortcuts included."""
    layers = [Dense(5, "tanh", initialiser="uniform", dropout=0.4),
              Dense(4, "identity", initialiser="uniform", dropout=0.2),
              Dense(2, "tanh", initialiser="uniform", sources=(0, 1, 2))]
    network = Network(2, layers, seed=2, dtype="float64")
    rng = np.random.default_rng(1)
    x, t = rng.uniform(-1, 1, (6, 2)), rng.uniform(-1, 1, (6, 2))
    program = lower_training(network, loss_function("mse"), None)

    def computed(parameters):
        values = {"x": x, "t": t, "seed": 5, "count": 2}
        reference.run_ops(program.ops, values, parameters)
        return values

    before = network.parameters.copy()
    values, found = computed(before), np.zeros_like(before)
    for op in program.ops:
        if hasattr(op, "gradient"):
            slot = op.weights if hasattr(op, "weights") else op.bias
            found[slot.offset : slot.offset + slot.size] = values[op.gradient.name][0]
    for i in np.flatnonzero(before):
        ends = []
        for sign in (1, -1):
            moved = before.copy()
            moved[i] += sign * 1e-6
            ends.append(computed(moved)["totals"][0, 0])
        assert found[i] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-8)


def test_a_resumed_training_is_bitwise_equal_and_agrees_with_the_oracle():
    x, t = data()
    options = {"optimiser": SGD(0.3, 0.9), "batch_size": 16, "seed": 8}
    whole = Network.mlp([2, 20, 10, 1], ["tanh", "relu", "sigmoid"], dropout=0.25,
                        seed=1)
    part = Network.mlp([2, 20, 10, 1], ["tanh", "relu", "sigmoid"], dropout=0.25,
                       seed=1)
    parameters = whole.parameters.astype(np.float64)
    at_once = whole.fit(x, t, epochs=4, shuffle=False, **options)
    first = part.fit(x, t, epochs=1, shuffle=False, **options)
    part.fit(x, t, epochs=3, shuffle=False, state=first.state, **options)
    assert np.array_equal(whole.parameters, part.parameters)
    program = lower_training(
        whole, loss_function("mse"), options["optimiser"], samples=60
    )
    values = {"batch": 16, "xs": x, "ts": t, "seed": 8, "rate": 0.3,
              "state": np.zeros((1, parameters.size))}
    losses = []
    for epoch in range(4):
        for step in range(4):
            samples = min(16, 60 - 16 * step)
            values.update(first=16 * step, samples=samples, seen=16 * step + samples,
                          fresh=step == 0, count=4 * epoch + step)
            reference.run_ops(program.ops, values, parameters)
        losses.append(values["totals"][0, 0] / 60)
    np.testing.assert_allclose(at_once.loss, losses, rtol=1e-5)
    np.testing.assert_allclose(whole.parameters, parameters, atol=2e-5)


def test_validation_and_prediction_drop_nothing():
    x, t = data()
    network = Network.mlp([2, 20, 1], ["tanh", "sigmoid"], dropout=0.5, seed=1)
    history = network.fit(x, t, epochs=3, validation=(x, t))
    y = reference.run(network.program, x, network.parameters)
    assert history.validation_loss[-1] == pytest.approx(np.mean((y - t) ** 2), rel=1e-5)


def test_files_store_the_fraction(tmp_path):
    network = Network.mlp([2, 4, 1], "tanh", dropout=0.5, seed=1)
    network.save(tmp_path / "a.safetensors")
    assert clnet.load(tmp_path / "a.safetensors").layers[0].dropout == 0.5


@pytest.mark.parametrize("fraction", [1, -0.1, np.nan, "half", None, True])
def test_bad_fractions(fraction):
    with pytest.raises(InputError, match="dropout must be a number of at least 0 and"):
        Dense(3, dropout=fraction)


def test_not_of_the_last_layer():
    with pytest.raises(InputError, match="the last layer has dropout"):
        Network(2, [Dense(3, dropout=0.5)])
