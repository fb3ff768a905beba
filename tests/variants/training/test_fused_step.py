"""fused_step: training on matrix units, by the plain-C path, against the oracle."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from bounds import FUSED_STEP, LAMBDA, OVERFLOWS
from deviations import deviations
from devices import H200
from test_whole_steps import DEVICE, data_of, initial_values, step_scalars, trained

from clnet import Dense, Network
from clnet.ir.lowering import lower_training
from clnet.nn.losses import loss_function
from clnet.nn.optimisers import SGD, Sarprop
from clnet.nn.storage.layout import live_elements
from clnet.opencl.session import session
from clnet.variants.cost import modelled
from clnet.variants.training import group_step
from clnet.variants.training.group_step import FusedStep, GroupStep

SPLIT = {"warps": 2, "rows": 2, "groups": 1, "inside": 0, "chunk": 8}
# Local memory of the device it is for, so that chunks pass through the pipeline.
H200_MEMORY = dataclasses.replace(
    DEVICE, declared_local_memory=H200.declared_local_memory,
    unit_local_memory=H200.unit_local_memory,
)
FUSED = {"warps": 8, "rows": 1, "groups": 1, "inside": 1, "chunk": 8}


def program_of(layers, loss, rule, precision, n_in=21, fann=False, **options):
    network = Network(n_in, layers, seed=3, fann_compatible=fann)
    program = lower_training(network, loss_function(loss), rule, **options)
    return network, program.at(precision)


def checker(network, program, data, batch, precision):
    """Return a check of an epoch's results, by bounds on rounding."""
    exact, deviation = deviations(
        program.ops, initial_values(network, program, batch, data), network.parameters,
        FUSED_STEP[precision], step_scalars(len(data[0]), batch, 1),
    )

    def check(value, found):
        off = np.abs(found - exact[value.name])
        assert (off <= LAMBDA * deviation[value.name]).all(), value.name

    return check


def check_gradients(network, program, data, config, precision):
    """Check totals and gradients of a step of all samples."""
    batch = len(data[0])
    bound, _ = trained(
        network, program, batch, data, FusedStep(), config, H200_MEMORY, 1,
        session(H200_MEMORY),
    )
    check = checker(network, program, data, batch, precision)
    check(program.output, whole(bound.read(program.output)))
    flat = bound.read_gradients()
    assert not flat[~live_elements(network.layout, network.storages)].any()
    for op in program.ops:
        if hasattr(op, "gradient"):
            slot = op.weights if hasattr(op, "weights") else op.bias
            check(op.gradient, flat[np.newaxis, slot.offset : slot.offset + slot.size])


def whole(totals):
    """Return totals [1, 6] with Kahan's compensation added, as the oracle's."""
    both = totals[:, :3] + totals[:, 3:]
    return np.hstack([both, np.zeros_like(both)])


@pytest.fixture(autouse=True)
def matrix_units_anywhere(monkeypatch):
    monkeypatch.setattr(
        group_step, "refuse_without_matrix_units", lambda span, device: None
    )


@pytest.mark.unoptimised
@pytest.mark.parametrize(("config", "precision", "hidden", "scale"), [
    pytest.param(SPLIT, "highest", "relu", 1.0, marks=pytest.mark.sweep),
    (FUSED, "medium", "silu", 1e-6),
    pytest.param(SPLIT, "medium", "silu", 1e-6, marks=pytest.mark.sweep),
    pytest.param(FUSED, "highest", "tanh", 1.0, marks=pytest.mark.sweep),
])
def test_gradients(config, precision, hidden, scale):
    """Samples of very different magnitude, and a partial tile."""
    layers = [Dense(24, hidden), Dense(17, hidden, bias=False), Dense(5, "tanh")]
    network, program = program_of(layers, "mse", None, precision)
    batch = 150
    data = data_of(network, "mse", batch)
    data[0][40:100] *= scale
    check_gradients(network, program, data, config, precision)


@pytest.mark.unoptimised
@pytest.mark.parametrize("exponent", [-38, -6, 26])
def test_zero_deltas(exponent):
    """Those of rows beyond the batch stay zero, for inputs of any magnitude."""
    network, program = program_of([Dense(3, "tanh")], "mse", None, "highest", 5)
    inputs, *targets = data_of(network, "mse", 3)
    inputs = np.copysign(2.0**exponent, inputs)
    check_gradients(network, program, [inputs, *targets], FUSED, "highest")


@pytest.mark.unoptimised
@pytest.mark.parametrize("config", [SPLIT, FUSED])
def test_deltas_of_any_magnitude(config):
    """A neuron's gradients are right beside a neighbour's that are 2^32 times as large.

    Each class is less probable than the one before it.
    """
    network, program = program_of(
        [Dense(5, "softmax")], "categorical_cross_entropy", None, "highest"
    )
    bias = program.ops[1].bias
    parameters = network.parameters.copy()
    parameters[bias.offset : bias.offset + 5] = [0, -0.5, -14, -18, -22]
    network.parameters = parameters
    x, t, weight = data_of(network, "mse", 40)
    t[...] = 0
    t[:, 0] = 1
    check_gradients(network, program, [x, t, weight], config, "highest")


@pytest.mark.unoptimised
def test_softmax_of_clipped_sums():
    """FANN clips sums at 150; the probabilities are those of what is left."""
    network, program = program_of(
        [Dense(5, "softmax")], "categorical_cross_entropy", None, "highest", fann=True
    )
    x, t, weight = data_of(network, "categorical_cross_entropy", 40)
    network.parameters = 100 * network.parameters
    assert np.abs(x @ network.weights(0).T).max() > 150
    check_gradients(network, program, [x, t, weight], SPLIT, "highest")


@pytest.mark.unoptimised
def test_mini_batches():
    layers = [Dense(20, "sigmoid"), Dense(4, "softmax")]
    loss, n, batch = "categorical_cross_entropy", 130, 70
    rule = SGD(momentum=0.5)  # Adam's float32 constants err by more than sums
    network, program = program_of(
        layers, loss, rule, "highest", samples=n, shuffled=True, weighted=True
    )
    data = data_of(network, loss, n)
    data[1][0], data[2][0] = OVERFLOWS, 0  # a sample that counts for nothing
    bound, train_state = trained(
        network, program, batch, data, FusedStep(), SPLIT, H200_MEMORY, 1,
        session(H200_MEMORY),
    )
    check = checker(network, program, data, batch, "highest")
    check(program.output, whole(bound.read(program.output)))
    check(program.ops[-1].parameters, train_state.values()[0][np.newaxis])


def test_refusals():
    def sentence(layers, rule=None, n_in=21):
        _, program = program_of(layers, "mse", rule or SGD(), "highest", n_in)
        return FusedStep().refuse(program.span(0, len(program.ops), 64), H200)

    assert sentence([Dense(64, "relu"), Dense(3, "tanh")]) is None
    assert "here are 160" in sentence([Dense(150, "relu"), Dense(3, "tanh")])
    assert "all layers but the last" in sentence(
        [Dense(9, "relu"), Dense(9, "tanh"), Dense(3, "tanh")]
    )
    assert "neurons differ" in sentence([Dense(2, ("relu", "tanh")), Dense(3, "tanh")])
    assert "epoch's error" in sentence([Dense(9, "relu"), Dense(3, "tanh")], Sarprop())


def test_configs_fit():
    """Gradients are fused where layers are narrow and local memory is large."""
    def configs(width, precision):
        layers = [Dense(width, "relu") for _ in range(5)]
        _, program = program_of(layers, "mse", SGD(), precision, width)
        span = program.span(0, len(program.ops), 1 << 17)
        found = list(FusedStep().space(span, H200))
        for config in found:
            cost = FusedStep().cost(span, config, H200)
            assert cost.scratch > 0
            launches = FusedStep().launches(span, config, H200)
            assert len(launches) == 4 - config["inside"]
        return [config["inside"] for config in found]

    assert configs(64, "medium")[0] == 1
    assert configs(64, "highest")[0] == 0
    assert set(configs(128, "highest")) == {0}


def test_matrix_units_are_needed(monkeypatch):
    monkeypatch.undo()
    _, program = program_of([Dense(3, "tanh")], "mse", SGD(), "highest")
    span = program.span(0, len(program.ops), 64)
    older = dataclasses.replace(H200, compute_capability=(7, 0))
    assert "matrix units" in FusedStep().refuse(span, older)
    assert np.isfinite(FusedStep().cost(span, FUSED, H200).bytes)


def test_the_model_prefers_it_for_large_batches_only():
    """As measured on an H200, where group_step wins small steps."""
    def seconds(variant, sizes, batch):
        layers = [Dense(n, "relu") for n in sizes[1:]]
        _, program = program_of(layers, "mse", SGD(), "highest", sizes[0])
        span = program.span(0, len(program.ops), batch)
        config = next(iter(variant.space(span, H200)))
        return modelled(variant.cost(span, config, H200), H200)

    cases = ((64,) * 6, 1 << 14, True), ((125, 32, 2), 4062, False)
    for sizes, batch, faster in cases:
        ours, theirs = (seconds(v, sizes, batch) for v in (FusedStep(), GroupStep()))
        assert (ours < theirs) == faster
