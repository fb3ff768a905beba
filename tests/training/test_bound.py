"""Trainings keep their bindings for later ones that are alike."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

from clnet import Dense, Network
from clnet.opencl.discovery import device
from clnet.opencl.memory import Memory
from clnet.opencl.session import BINDINGS, session
from clnet.planning.training_planner import plan_training
from clnet.training import group, passes
from clnet.training import plans as training_plans

RNG = np.random.default_rng(0)
X, T = RNG.uniform(-1, 1, (40, 3)), RNG.uniform(0, 1, (40, 2))
SESSION = session(device())


@pytest.fixture(autouse=True)
def binds(monkeypatch):
    """The number of bindings made."""
    SESSION.kept.clear()
    made = []

    class Counted(group.Replay):
        def __init__(self, *arguments):
            made.append(1)
            super().__init__(*arguments)

    monkeypatch.setattr(group, "Replay", Counted)
    plan, plans = training_plans.plan_training, {}

    def planned(network, program, *others, **options):
        key = program, others[1]
        if key not in plans:
            plans[key] = plan(network, program, *others, **options)
        return replace(plans[key], network=network)

    monkeypatch.setattr(training_plans, "plan_training", planned)
    return made


def fitted(x=X, t=T, seed=1, **options):
    network = Network(3, [Dense(5, "tanh"), Dense(2, "sigmoid")], seed=seed)
    options = {"optimiser": "rprop", "epochs": 9, "seed": 3, **options}
    history = network.fit(x, t, **options)
    return network.parameters.tobytes(), history.loss, history.state.values.tobytes()


@pytest.mark.parametrize("options", [
    {}, {"validation": (X[:9], T[:9])}, {"optimiser": "adam", "batch_size": 16},
    {"optimiser": "incremental"}, {"desired_error": 0.07},
    {"optimiser": "adam", "schedule": "cosine", "sample_weight": np.ones(40)},
], ids=["rprop", "validation", "adam", "incremental", "desired", "weights"])
def test_a_later_training_has_the_results_of_a_new_binding(binds, options):
    others = X[::-1].copy(), T * 0.5, 2
    first = fitted(**options), fitted(*others, **options)
    made = len(binds)
    assert made == 1 + ("validation" in options)
    for _ in range(2):
        assert (fitted(**options), fitted(*others, **options)) == first
    assert len(binds) == made
    SESSION.kept.clear()
    assert fitted(**options) == first[0]
    assert len(binds) == 2 * made


def test_limits_are_those_of_each_training(binds):
    whole = fitted()
    assert len(fitted(desired_error=1.0)[1]) == 1
    assert fitted() == whole


@pytest.mark.parametrize("change", [
    {"x": X[:30], "t": T[:30]}, {"optimiser": "adam"}, {"loss": "binary_cross_entropy"},
    {"batch_size": 20}, {"l2": 0.1}, {"sample_weight": np.ones(40)},
], ids=["samples", "optimiser", "loss", "batch", "penalty", "weights"])
def test_other_options_have_another_binding(binds, change):
    fitted()
    fitted(**change)
    assert len(binds) == 2


def test_an_interrupted_training_is_not_kept(binds):
    def interrupt(training, epoch):
        raise KeyboardInterrupt

    def fail(training, epoch):
        raise ValueError

    fitted(callbacks=[interrupt])
    assert not SESSION.kept
    with pytest.raises(ValueError):
        fitted(callbacks=[fail])
    assert not SESSION.kept
    fitted()
    assert len(SESSION.kept) == 1


def test_few_and_small_bindings_are_kept(monkeypatch):
    for n in range(10, 10 + BINDINGS + 3):
        fitted(X[:n], T[:n])
    assert len(SESSION.kept) == BINDINGS
    SESSION.kept.clear()
    monkeypatch.setattr(passes, "KEPT_BYTES", X.nbytes // 2)
    fitted()
    assert not SESSION.kept


def test_what_is_kept_holds_no_network():
    network = Network(3, [Dense(5, "tanh"), Dense(2, "sigmoid")], seed=1)
    with pytest.MonkeyPatch.context() as patch:  # the fixture's plans hold it
        patch.setattr(training_plans, "plan_training", plan_training)
        network.fit(X, T, epochs=2)
    assert SESSION.kept
    gone = weakref.ref(network)
    del network
    gc.collect()
    assert gone() is None


def test_memory_that_is_needed_is_freed(monkeypatch):
    fitted()
    assert SESSION.kept
    free = type(SESSION).free
    monkeypatch.setattr(
        type(SESSION), "free",
        property(lambda one: 0 if one.kept else free.fget(one)),
    )
    Memory(SESSION, 8)
    assert not SESSION.kept


def test_parameters_of_a_training_that_has_ended():
    seen = []

    def look(one, epoch):
        seen.append(one)

    network = Network(3, [Dense(5, "tanh"), Dense(2, "sigmoid")], seed=1)
    network.fit(X, T, epochs=2, callbacks=[look])
    one = seen[0]
    fitted(seed=7)  # takes its memory
    np.testing.assert_array_equal(one.parameters, network.parameters)
    one.parameters = 2 * network.parameters
    np.testing.assert_array_equal(one.parameters, network.parameters)
