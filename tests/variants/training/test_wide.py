"""Training ops for wide outputs against the float64 oracle."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from spans import results_of, samples_for
from variant_cases import selected

import clnet
from clnet import Local, Network
from clnet.ir import reference
from clnet.ir.activation import ActGrad, BiasGrad
from clnet.ir.loss import Loss
from clnet.ir.lowering import lower_training
from clnet.ir.product import Apply, Outer
from clnet.nn.losses import LOSSES, loss_function
from clnet.nn.storage.layout import live_elements
from clnet.planning.candidates import LONGEST
from clnet.variants.training.stencil_backward import StencilGradients
from clnet.variants.training.wide import Wide

DEVICE = clnet.device()
CPU = dataclasses.replace(DEVICE, type="cpu")
GPU = dataclasses.replace(DEVICE, type="gpu", simd_width=32)
WIDE = Wide()
DEVICES = pytest.mark.parametrize("device", [CPU, GPU], ids=["cores", "gpu"])


def check(
    network, loss, batch, device, variant=WIDE, *, samples=None, weighted=False,
    last=False,
):
    """Compare every accepted span; return the ops of each."""
    program = lower_training(network, loss_function(loss), None, weighted=weighted)
    values = samples_for(network, loss, batch, weighted)
    values |= {name: values[name].astype(network.dtype) for name in ("x", "t")}
    scalars = {"samples": samples or batch}
    values |= {"batch": np.array(batch), "fresh": 1, **scalars}
    reference.run_ops(program.ops, values, network.parameters.astype("float64"))
    live = live_elements(network.layout, network.storages)
    tolerance = {"float32": 3e-6, "float64": 1e-13}[network.dtype]
    seen = []
    for start in range(len(program.ops)):
        for stop in range(start + 1, start + 1 + LONGEST[variant.reach]):
            span = program.span(start, stop, batch)
            if len(span.ops) < stop - start or variant.refuse(span, device) is not None:
                continue
            seen.append([type(op) for op in span.ops])
            for config in list(variant.space(span, device))[-1 if last else 0 :]:
                results = results_of(network, span, variant, config, values, scalars)
                assert not results["gradients"][~live].any()
                for value in span.outputs:
                    exact = values[value.name]
                    np.testing.assert_allclose(
                        results[value.name], exact, rtol=tolerance,
                        atol=tolerance * max(1.0, np.abs(exact).max()),
                    )
    return seen


def local(n_out, activation="tanh", bias="shared", dtype="float32", **options):
    layer = Local(2, activation, bias=bias)
    return Network(n_out + 1, [layer], seed=n_out, dtype=dtype, **options)


@pytest.mark.unoptimised
@pytest.mark.parametrize(("loss", "device"), selected(
    {loss: loss for loss in LOSSES}, {"cores": CPU, "gpu": GPU},
    quick=lambda loss, device: loss % 2 == device,
))
def test_every_loss(loss, device):
    """Parts of samples, the last not full; weights; padding samples."""
    activation = LOSSES[loss].activation or "sigmoid"
    network = Network(9, [clnet.Dense(2500, activation)], seed=1)
    assert [Loss] in check(network, loss, 3, device, samples=2, weighted=True)
    if device is GPU:  # several samples per group, the last group not full
        network = Network(5, [clnet.Dense(11, activation)], seed=1)
        assert [Loss] in check(network, loss, 67, device, samples=66, weighted=True)
    if (device is CPU) == (loss in ("mse", "categorical_cross_entropy")):
        return
    network = local(67, activation, dtype="float64" if DEVICE.fp64 else "float32")
    assert [Loss] in check(network, loss, 2, device, last=True)


NAMES = ("identity", "sigmoid", "tanh", "gaussian", "sin", "cos", "relu", "gelu")


@pytest.mark.parametrize("name", NAMES)
def test_derivatives(name):
    """From outputs and pre-activations, with every kind of bias, FANN's too."""
    index = NAMES.index(name)
    device = (CPU, GPU)[index // 2 % 2]
    options = {"fann_compatible": True} if index % 2 else {}
    bias = ("shared", "neuron", None)[index % 3]
    layers = [Local(2, name, 0.8, bias=bias), Local(2)]
    network = Network(301, layers, seed=1, **options)
    seen = check(network, "mse", 2, device, last=True)
    assert name == "identity" or [ActGrad] in seen


@DEVICES
def test_millions_of_terms(device):
    """Sums are exact to the last bits."""
    assert len(check(local((1 << 20) + 3), "mse", 1, device)) == 3


@DEVICES
@pytest.mark.parametrize("window", [
    1, 3, *(pytest.param(n, marks=pytest.mark.sweep) for n in (2, 8))
])
def test_gradients_in_one_pass(window, device):
    """Edges of vectors and groups, batches of several blocks, every kind of bias."""
    bias = ("shared", "neuron", None)[window % 3]
    for n_out, batch in ((67, 3), (1100, 130 if window == 3 else 1)):
        layers = [Local(window, "gelu" if window == 2 else "tanh", bias=bias)] * 2
        network = Network(
            n_out + 2 * window - 2, layers, seed=window,
            dtype="float64" if window == 8 and DEVICE.fp64 else "float32",
        )
        seen = check(network, "mse", batch, device, StencilGradients(), last=n_out < 99)
        both = [ActGrad, Outer, BiasGrad]
        assert seen == ([both[:2]] * 2 if bias is None else [both[:2], both] * 2)


def test_refusals():
    def refusals(network, kind):
        program = lower_training(network, loss_function("mse"), None)
        sentences = [
            Wide().refuse(program.span(i, i + 1, 1), GPU)
            for i, op in enumerate(program.ops) if isinstance(op, kind)
        ]
        return str(sentences)

    assert "at least 8" in refusals(local(7), Loss)
    assert "at least 64" in refusals(Network(80, [Local(18, "tanh")] * 2), ActGrad)
    assert "all neurons share" in refusals(local(80, bias="neuron"), BiasGrad)
    mixed = Network(80, [Local(1, ("tanh", "relu") * 40)], fann_compatible=True)
    assert "neurons differ" in refusals(mixed, ActGrad)
    assert "outputs differ" in refusals(mixed, Loss)
    assert "no other" in refusals(local(80), Apply)

    def fused(network, last=False):
        program = lower_training(network, loss_function("mse"), None)
        i = next(i for i, op in enumerate(program.ops) if isinstance(op, ActGrad))
        span = program.span(i, i + (3 if last else 2), 1)
        return StencilGradients().refuse(span, GPU)

    assert "at most 8, and here is 9" in fused(Network(80, [Local(9, "tanh")]))
    assert "not dense" in fused(Network(80, [clnet.Dense(9, "tanh")]))
    assert "neurons differ" in fused(mixed)
    assert "another op" in fused(
        Network(80, [Local(2), Local(2, "tanh", bias=None)]), last=True
    )
