"""What is too large for a device is told in a sentence, before memory is taken."""

from __future__ import annotations

import dataclasses
import itertools
import re
import warnings

import numpy as np
import pytest

import clnet
from clnet import Dense, Network, Population
from clnet.errors import OutOfMemoryError
from clnet.opencl import memory
from clnet.variants.reference.generic import Host

CPU = clnet.device("cpu")
ROOM = 1 << 20
INDEX = itertools.count()
SMALL = Network(4, [Dense(3, "tanh"), Dense(2)], seed=0)
LARGE = Network(500, [Dense(700, "tanh"), Dense(2)], seed=0)
SAMPLES = 100_000
X, T = np.zeros((SAMPLES, 4), np.float32), np.zeros((SAMPLES, 2), np.float32)
WIDE = np.zeros((10, 500), np.float32), np.zeros((10, 2), np.float32)


def small(room=ROOM, largest=ROOM):
    """A device of little memory, with a session of its own."""
    return dataclasses.replace(
        CPU, global_memory=room, largest_buffer=largest, index=f"7:{next(INDEX)}"
    )


@pytest.fixture
def no_memory(monkeypatch):
    def refuse(*_):
        raise AssertionError("allocated")

    monkeypatch.setattr(memory.Memory, "__init__", refuse)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def too_large(call):
    with pytest.raises(OutOfMemoryError) as caught:
        call()
    return str(caught.value).removeprefix(f"{CPU.name} has no room for ")


@pytest.mark.usefixtures("no_memory")
@pytest.mark.parametrize("tune", [None, False, True])
@pytest.mark.parametrize("variants", [None, ["generic"]])
def test_a_batch(tune, variants):
    """With the largest whose inputs and outputs fit."""
    def refusal(batch, device):
        return too_large(lambda: SMALL.compile(
            device, batch, tune=tune, variants=variants
        ))

    at_most = (ROOM - SMALL.parameters.nbytes) // (4 * (4 + 2))
    assert refusal(10**9, small()) == (
        "a batch of 1000000000, at least 16000000000 bytes in a buffer: 1048576 are "
        f"the most; take a batch of at most {at_most}"
    )
    needed = SMALL.parameters.nbytes + (at_most + 1) * 24
    assert refusal(at_most + 1, small()) == (
        f"a batch of {at_most + 1}, at least {needed} bytes: it has {ROOM}; take a "
        f"batch of at most {at_most}"
    )
    with pytest.raises(AssertionError, match="allocated"):
        SMALL.compile(small(), at_most, tune=tune, variants=["generic"])


@pytest.mark.usefixtures("no_memory")
def test_a_network():
    size = LARGE.parameters.nbytes
    sentence = (
        f"the parameters of this network, at least {size} bytes in a buffer: {ROOM} "
        "are the most; take sparser layers or another device"
    )
    assert too_large(lambda: LARGE.compile(small())) == sentence
    assert too_large(lambda: LARGE.predict(WIDE[0], small())) == sentence
    double = Network(500, [Dense(700, "tanh"), Dense(2)], seed=0, dtype="float64")
    assert "take float32, sparser layers" in too_large(lambda: double.compile(small()))
    assert re.fullmatch(
        r"the training of this network by adam, with its state and 2 snapshots, at "
        rf"least {5 * size} bytes: it has {4 * size}; take sparser layers or another "
        "device", too_large(lambda: LARGE.fit(
            *WIDE, optimiser="adam", device=small(4 * size, 2 * size)
        )),
    )


@pytest.mark.usefixtures("no_memory")
def test_samples():
    sentence = (
        f"{SAMPLES} samples of training, at least {16 * SAMPLES} bytes in a buffer: "
        f"{ROOM} are the most; pass fewer, or a memory map or batches with a smaller "
        "`buffer`, or take another device"
    )
    for options in {}, {"batch_size": 100}:
        assert too_large(lambda: SMALL.fit(
            X, T, epochs=1, device=small(), **options  # noqa: B023
        )) == sentence
    population = Population(SMALL, 3)
    assert too_large(lambda: population.fit(X, T, device=small())) == sentence


@pytest.mark.usefixtures("no_memory")
def test_a_population():
    population = Population(SMALL, 10_000)
    sentence = too_large(
        lambda: population.fit(X[:9], T[:9], optimiser="sgd", device=small())
    )
    assert sentence.startswith("the training of 10000 networks by sgd, with its state")
    assert sentence.endswith("take fewer at a time, sparser layers or another device")


def test_parts_of_a_prediction_fit():
    net = Network(500, [Dense(2)], seed=0)
    x = np.random.default_rng(0).random((20_000, 500), np.float32)
    y = net.predict(x, small())
    assert np.allclose(y, net.predict(x), atol=1e-5)


def test_a_step_that_keeps_no_values_is_taken_where_these_do_not_fit():
    """A hidden layer of all samples takes more than the device has."""
    net = Network(4, [Dense(900, "tanh"), Dense(2)], seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        history = net.fit(
            X[:500], T[:500], optimiser="rprop", epochs=1, device=small()
        )
    assert len(history) == 1


def test_numpy_refuses_values_beyond_the_memory_of_the_host():
    program = SMALL.program
    assert Host().refuse(program.span(0, 1, 10**4), CPU) is None
    assert "bytes of the host's" in Host().refuse(program.span(0, 1, 10**13), CPU)
