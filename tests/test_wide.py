"""Ops over samples of many outputs against the float64 oracle."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import clnet
from clnet import Local, Network, reference
from clnet.activations import ACTIVATIONS
from clnet.binding import Step
from clnet.losses import LOSSES, loss_function
from clnet.lowering import lower_training
from clnet.replay import Learnt, Replay
from clnet.session import session
from clnet.training_ops import ActGrad, BiasGrad, Loss
from clnet.variants.wide import Wide

DEVICE = clnet.device()
CPU = dataclasses.replace(DEVICE, type="cpu")
GPU = dataclasses.replace(DEVICE, type="gpu", simd_width=32)
PLACES = pytest.mark.parametrize("place", [CPU, GPU], ids=["cores", "gpu"])


def check(network, loss, batch, place, *, samples=None, weighted=False, last=False):
    """Compare every op that the variant takes, after as many as come before it."""
    program = lower_training(network, loss_function(loss), None, weighted=weighted)
    rng = np.random.default_rng(4)
    t = rng.uniform(0, 1, (batch, network.n_out))
    if LOSSES[loss].fused == "softmax":
        t /= t.sum(axis=1, keepdims=True)
    values = {"x": rng.uniform(-1, 1, (batch, network.n_in)), "t": t,
              "weight": rng.uniform(0, 2, (batch, 1)), "batch": np.array(batch),
              "samples": samples or batch, "fresh": 1}
    values |= {name: values[name].astype(network.dtype) for name in ("x", "t")}
    parameters = network.parameters.astype("float64")
    variant, seen = Wide(), []
    for i, op in enumerate(program.ops):
        span = program.span(i, i + 1, batch)
        if variant.refuse(span, place) is None:
            seen.append(type(op))
            before = dict(values)
            reference.run_op(op, values, parameters)
            for config in list(variant.space(span, place))[-1 if last else 0 :]:
                learnt = Learnt(session(DEVICE), network.parameters, np.zeros((0, 0)))
                step = Step(span, variant, config, DEVICE)
                replay = Replay(session(DEVICE), [step], network.layout, learnt)
                for value in span.inputs:
                    replay.write(value, before[value.name])
                replay.set(samples=samples or batch)
                replay.run()
                for value in op.writes:
                    compare(op, value, replay, values[value.name], network.dtype)
        else:
            reference.run_op(op, values, parameters)
    return seen


def compare(op, value, replay, exact, dtype):
    if isinstance(op, BiasGrad):
        found = replay.read_gradients()[op.bias.offset]
        terms = 1.0
    else:
        found = replay.read(value)
        terms = np.abs(exact).max()
    tolerance = {"float32": 3e-6, "float64": 1e-13}[dtype]
    np.testing.assert_allclose(found, exact, rtol=tolerance,
                               atol=tolerance * max(1.0, terms))


def local(n_out, activation="tanh", bias="shared", dtype="float32", **options):
    layer = Local(2, activation, bias=bias)
    return Network(n_out + 1, [layer], seed=n_out, dtype=dtype, **options)


@PLACES
@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss(loss, place):
    """Parts of samples, the last not full; weights; samples that do not count."""
    activation = LOSSES[loss].fused or "sigmoid"
    network = Network(9, [clnet.Dense(2500, activation)], seed=1)
    assert Loss in check(network, loss, 3, place, samples=2, weighted=True)
    network = local(67, activation, dtype="float64" if DEVICE.fp64 else "float32")
    assert Loss in check(network, loss, 2, place, last=True)


@PLACES
@pytest.mark.parametrize("name", [n for n in ACTIVATIONS if ACTIVATIONS[n].fann_gradient
                                  or n in ("identity", "relu", "gelu", "softplus")])
def test_derivatives(name, place):
    index = list(ACTIVATIONS).index(name)
    options = {"fann_compatible": True} if index % 2 else {}
    bias = ("shared", "neuron", None)[index % 3]
    layers = [Local(2, name, 0.8, bias=bias), Local(2)]
    network = Network(301, layers, seed=1, **options)
    seen = check(network, "mse", 2, place, last=True)
    assert name == "identity" or ActGrad in seen


@PLACES
def test_millions_of_terms(place):
    """Sums end within the last bits of the exact ones."""
    assert len(check(local((1 << 20) + 3), "mse", 1, place)) == 3


def test_refusals():
    def refusals(network, number):
        program = lower_training(network, loss_function("mse"), None)
        sentences = [
            Wide().refuse(program.span(i, i + 1, 1), GPU)
            for i, op in enumerate(program.ops) if isinstance(op, number)
        ]
        return str(sentences)

    assert "at least 64" in refusals(local(63), Loss)
    assert "all neurons share" in refusals(local(80, bias="neuron"), BiasGrad)
    mixed = Network(80, [Local(1, ("tanh", "relu") * 40)], fann_compatible=True)
    assert "neurons differ" in refusals(mixed, ActGrad)
    assert "outputs differ" in refusals(mixed, Loss)
    assert "no other" in refusals(local(80), clnet.ops.Apply)
