"""Layers that no other reads: a training is as if they were not there."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from variant_cases import selected

from clnet import Dense, Network, Sparse, load
from clnet.nn.storage.formats import FORMATS
from clnet.opencl.discovery import device

DEVICE = device()
DEVICES = [DEVICE, replace(DEVICE, index="9:1")]


def samples():
    """Return two classes that no line divides, as x [n, 2] and one-hot t [n, 2]."""
    x = np.random.default_rng(0).uniform(-1, 1, (50, 2))
    inside = (x**2).sum(axis=1) < 0.5
    return x, np.stack([inside, ~inside], axis=1).astype(float)


def without_readers(hidden=(4,), format="auto", **options):  # noqa: A002
    """A network whose last layer has connections to the inputs alone."""
    mask = np.zeros((2, 2 + sum(hidden)), bool)
    mask[:, :2] = True
    layers = [
        Dense(n, "tanh", sources=range(i + 1), **options) for i, n in enumerate(hidden)
    ]
    last = Sparse(2, pattern=mask, format=format, sources=range(len(hidden) + 1))
    return Network(2, [*layers, last], seed=1)


def pruned():
    """A shortcut network whose last layer has lost its connections to the first."""
    network = Network(2, [Dense(4, "tanh"), Dense(2, sources=(0, 1))], seed=1)
    network.set_layer(1, np.eye(2, 6))
    return network.prune(threshold=0.5, layers=[1])


WITHOUT_READERS = {
    "sparse": without_readers, "two": lambda: without_readers((4, 3)), "pruned": pruned,
    **{name: partial(without_readers, format=name) for name in FORMATS},
    "dropout": lambda: without_readers(dropout=0.5),
    "stored as": lambda: without_readers().stored_as("ell"),
    "pruned again": lambda: without_readers().prune(density=0.1, layers=[1]),
}
RULES = {
    "sgd": {"optimiser": "sgd"}, "adam": {"optimiser": "adam", "batch_size": 16},
    "rprop": {"optimiser": "rprop"}, "incremental": {"optimiser": "incremental"},
    "devices": {"optimiser": "sgd", "clip_norm": 0.1, "devices": DEVICES},
}


@pytest.mark.parametrize(("make", "options"), selected(
    WITHOUT_READERS, RULES, quick=lambda network, rule: network % len(RULES) == rule
))
def test_a_layer_without_readers_is_trained_as_not_there(make, options):
    x, t = samples()
    network = make()
    last = len(network.layers) - 1
    plain = Network(2, [Sparse(2, pattern=network.weights(last)[:, :2] != 0)])
    plain.set_layer(0, network.weights(last)[:, :2], network.biases(last))
    before = network.parameters.copy()
    options = {"epochs": 3, "seed": 1, "shuffle": False, **options}
    losses = plain.fit(x, t, **options).loss
    np.testing.assert_allclose(network.fit(x, t, **options).loss, losses, rtol=1e-5)
    np.testing.assert_allclose(
        network.weights(last)[:, :2], plain.weights(0), rtol=0, atol=1e-5
    )
    end = network.layout.weights[last].offset
    np.testing.assert_array_equal(network.parameters[:end], before[:end])


def test_a_file_may_hold_a_layer_without_readers(tmp_path):
    x, t = samples()
    network = without_readers()
    network.save(tmp_path / "a.safetensors")
    loaded = load(tmp_path / "a.safetensors")
    for trained in (network, loaded):
        trained.fit(x, t, epochs=3, seed=1, device=DEVICE)
    np.testing.assert_array_equal(loaded.parameters, network.parameters)
