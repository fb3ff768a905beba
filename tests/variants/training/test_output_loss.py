"""output_loss: a last layer with the loss against the float64 oracle."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from spans import results_of, samples_for
from variant_cases import selected

import clnet
from clnet import Dense, Network
from clnet.ir import reference
from clnet.ir.loss import Loss
from clnet.ir.lowering import lower_training
from clnet.nn.losses import LOSSES, loss_function
from clnet.opencl.session import session
from clnet.planning.candidates import BEFORE_LOSS, FROM_LOSS
from clnet.variants.training.output_loss import MAX_OUTPUTS, OutputLoss

DEVICE = clnet.device()
GPU = dataclasses.replace(DEVICE, type="gpu", simd_width=32)
SESSION = session(DEVICE)
VARIANT = OutputLoss()
TOLERANCE = {"float32": 3e-6, "float64": 1e-13}


def span_of(network, loss, batch, **options):
    """The program of a step without an update, and the span of its last layer."""
    program = lower_training(network, loss_function(loss), None, **options)
    at = next(i for i, op in enumerate(program.ops) if isinstance(op, Loss))
    return program, program.span(at - BEFORE_LOSS, at + FROM_LOSS, batch)


def check(
    network, loss, batch, *, samples=None, weighted=False, fresh=(1,), number=None
):
    """Compare what the span writes, in a configuration or all, with the oracle."""
    program, span = span_of(network, loss, batch, weighted=weighted)
    assert VARIANT.refuse(span, GPU) is None
    values = samples_for(network, loss, batch, weighted, seed=batch)
    values |= {name: values[name].astype(network.dtype) for name in ("x", "t")}
    values |= {"batch": np.array(batch), "samples": samples or batch}
    for number in fresh:
        values["fresh"] = number
        reference.run_ops(program.ops, values, network.parameters.astype("float64"))
    inputs = {name: rows for name, rows in values.items() if name[:6] != "totals"}
    scalars = [{"samples": samples or batch, "fresh": number} for number in fresh]
    configs = list(VARIANT.space(span, GPU))
    assert configs
    if number is not None:
        configs = [configs[number % len(configs)]]
    for config in configs:
        results = results_of(network, span, VARIANT, config, inputs, *scalars)
        for value in span.outputs:
            exact = values[value.name]
            tolerance = TOLERANCE[network.dtype] * max(1.0, np.abs(exact).max())
            np.testing.assert_allclose(
                results[value.name].reshape(exact.shape), exact, rtol=0,
                atol=tolerance, err_msg=f"{value.name} {config}",
            )


def network_of(hidden, n_out, loss, activation="tanh", dtype="float32", **options):
    last = LOSSES[loss].fused or "identity"
    layers = [Dense(hidden, activation, **options), Dense(n_out, last)]
    return Network(5, layers, seed=hidden, dtype=dtype)


@pytest.mark.unoptimised
@pytest.mark.parametrize(("loss", "weighted"), selected(
    {name: name for name, row in LOSSES.items() if not row.positive},
    {"plain": False, "weighted": True},
    quick=lambda loss, weighted: loss % 2 == weighted,
))
def test_every_loss(loss, weighted):
    """With padding samples, and totals of two steps."""
    check(
        network_of(37, 3, loss), loss, 11, samples=10, weighted=weighted, fresh=(1, 0),
        number=int(weighted),
    )


@pytest.mark.unoptimised
@pytest.mark.parametrize("n_out", [1, 4, 5, 31, MAX_OUTPUTS])
def test_numbers_of_outputs(n_out):
    loss = "categorical_cross_entropy"
    check(network_of(70 + n_out, n_out, loss), loss, 9, number=n_out)


@pytest.mark.parametrize("hidden", [1, 3, 4, 127, 128, 129, 260])
def test_widths(hidden):
    check(network_of(hidden, 2, "mse", "relu"), "mse", 5)


@pytest.mark.parametrize("batch", [1, 7, 8, 9, 127, 128, 129, 300])
def test_batches(batch):
    check(network_of(20, 6, "mse", "sigmoid"), "mse", batch)


@pytest.mark.skipif(not DEVICE.fp64, reason="the device has no float64")
def test_float64():
    loss = "categorical_cross_entropy"
    check(network_of(33, 7, loss, dtype="float64"), loss, 17, weighted=True)


@pytest.mark.unoptimised
@pytest.mark.parametrize("name", ["relu", "gelu", "softplus", "sin", "leaky_relu"])
def test_layers_below(name):
    """Derivatives from outputs and from pre-activations, with a steepness."""
    network = network_of(19, 3, "mse", name, steepness=0.7)
    check(network, "mse", 10, number=len(name))


def refusal(network, loss="mse", device=GPU, **options):
    return VARIANT.refuse(span_of(network, loss, 8, **options)[1], device)


def test_refusals():
    assert "is for GPUs" in refusal(
        network_of(9, 3, "mse"), device=dataclasses.replace(DEVICE, type="cpu")
    )
    assert "no other ops" in refusal(Network(5, [Dense(3)], seed=1))
    sparse = clnet.Sparse(3, "identity", density=0.5, seed=1)
    network = Network(5, [Dense(9, "tanh"), sparse], seed=1)
    assert "dense layers only" in refusal(network)
    many = MAX_OUTPUTS + 1
    assert f"here are {many}" in refusal(network_of(9, many, "mse"))
    bent = Network(5, [Dense(9, "tanh"), Dense(3, "tanh", bias=False)], seed=1)
    assert "no other ops" in refusal(bent)
