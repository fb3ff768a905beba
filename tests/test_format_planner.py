"""Formats chosen by measurement, and networks that follow another's parameters."""

from __future__ import annotations

import numpy as np
import pytest

import clnet
from clnet import Dense, Network, Sparse, format_planner, reference
from clnet.cover import Cover
from clnet.errors import DeviceError, InputError
from clnet.format_planner import Follower, best_stored
from clnet.storage import FORMATS, Pattern
from clnet.storage.formats import foreseen
from clnet.tuning.store import Timing

CPU = clnet.device("cpu")
GPU = clnet.Device("some gpu", "gpu")
RNG = np.random.default_rng(1)
MASK = RNG.random((30, 20)) < 0.3


def network_of(**options):
    layers = [
        Sparse(30, "tanh", pattern=MASK, **options), Dense(5, "sigmoid"),
        Sparse(7, density=0.4, sources=(0, 2)),
    ]
    return Network(20, layers, seed=1)


@pytest.mark.parametrize("form", FORMATS)
def test_a_follower_has_the_parameters_of_whom_it_follows(form):
    network = network_of()
    follower = Follower(network, form)
    for _ in range(2):
        assert follower.version == network.version
        for number in range(3):
            for what in ("weights", "biases"):
                np.testing.assert_array_equal(
                    getattr(follower, what)(number), getattr(network, what)(number)
                )
        padding = np.delete(follower.parameters, follower._places[1])
        assert not padding.any()
        network.parameters = RNG.uniform(-1, 1, network.parameters.shape)
    with pytest.raises(InputError, match="follows"):
        follower.parameters = follower.parameters
    with pytest.raises(ValueError, match="read-only"):
        follower.parameters[0] = 1


def test_formats_that_were_named_stay():
    follower = Follower(network_of(format="ell"), "dia")
    assert follower.matrices[0].format == "ell"
    assert follower.matrices[2].format == "dia"


class FakePlanner:
    """A planner whose whole calls take the seconds given."""

    def __init__(self, network, seconds):
        self.network = network
        self.survey = clnet.cover.Survey()
        self.format = network.matrices[0].format.replace("masked", "dense")
        self.seconds = seconds.get(self.format)

    def timed(self):
        if self.seconds is None:
            return None
        if self.seconds < 0:
            raise DeviceError("too small")
        return Cover((), 0.0, Timing(self.seconds, self.seconds, 0.0))


def chosen(network, device, **seconds):
    tried = []

    def planner(stored):
        tried.append(FakePlanner(stored, seconds))
        return tried[-1]

    best = best_stored(network, device, planner)
    return best.format, best.survey, [one.format for one in tried]


def test_the_format_of_the_shortest_calls_is_taken():
    found, survey, tried = chosen(network_of(), GPU, csr=3, sell=2, ell=4, dense=5)
    assert (found, tried) == ("sell", ["csr", "sell", "ell", "dia", "dense"])
    assert survey.formats == [("sell", 2), ("csr", 3), ("ell", 4), ("dense", 5)]
    assert chosen(network_of(), CPU, csr=3, dense=5)[::2] == (
        "csr", ["csr", "dia", "dense"]
    )


def test_what_fails_or_is_not_known_is_left_out():
    found, survey, _ = chosen(network_of(), GPU, csr=3, sell=-1, dense=5)
    assert found == "csr"
    assert survey.formats == [("csr", 3), ("dense", 5)]
    assert survey.failures == ["sell: too small"]
    # Nothing may be measured, and nothing is remembered.
    assert chosen(network_of(), GPU, dense=1)[::2] == ("csr", ["csr"])


def test_there_is_nothing_to_choose():
    assert chosen(Network(20, [Sparse(30, pattern=MASK, format="ell")]), GPU)[2] == [
        "ell"
    ]
    assert chosen(Network.mlp([3, 2]), GPU)[2] == ["dense"]


def test_what_needs_much_more_memory_is_not_tried(monkeypatch):
    monkeypatch.setattr(format_planner, "SMALL", 0)
    pattern = np.eye(200, dtype=bool)
    pattern[3] = True
    network = Network(200, [Sparse(200, pattern=pattern)], seed=1)
    _, survey, tried = chosen(network, GPU, csr=3)
    assert tried == ["csr"]
    assert [name for name, _ in survey.larger] == ["sell", "ell", "dia", "dense"]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("shape", [(30, 20), (3, 70_000), (70_000, 3)])
def test_bytes_are_foreseen_exactly(form, shape):
    flat = np.sort(RNG.choice(shape[0] * shape[1], 200, replace=False))
    pattern = Pattern(*shape, *np.divmod(flat, shape[1]))
    size = sum(part.nbytes(8) for part in FORMATS[form](pattern))
    assert foreseen(pattern, form, 8) == size


def test_memory_limits_stay():
    limit = network_of().matrices[0].nbytes(4)
    network = network_of(memory_limit=limit)
    found, survey, tried = chosen(network, CPU, csr=3, dense=1)
    assert (found, tried) == ("csr", ["csr"])
    assert f"the memory limit is {limit}" in survey.failures[0]


def test_plans_run_in_the_chosen_format():
    network = network_of()
    plan = network.compile("cpu", 3)
    text = plan.explain()
    assert "formats of the layers" in text
    assert max(map(len, text.splitlines())) <= 80
    again = network.compile("cpu", 3, tune=False)
    assert type(again.network) is type(plan.network)  # remembered
    x = RNG.uniform(-1, 1, (3, 20)).astype("float32")
    for one in (plan, again):
        for _ in range(2):
            np.testing.assert_allclose(
                one(x), reference.run(network.program, x, network.parameters),
                atol=1e-5,
            )
            network.parameters = RNG.uniform(-1, 1, network.parameters.shape)
