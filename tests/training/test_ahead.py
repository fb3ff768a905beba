"""Epochs begun before those in front of them are told: nobody sees that they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clnet import Dense, Network
from clnet.errors import ClnetWarning
from clnet.nn.optimisers import SGD
from clnet.opencl.discovery import device
from clnet.runtime import replay
from clnet.runtime.binding import Step
from clnet.training import fit as training
from clnet.variants.training.group_step import GroupStep

DEVICE = device()
COPYING = replace(DEVICE, fine_svm=False, companions=())  # as GPUs: one queue, copies
PLACES = pytest.mark.parametrize("place", [DEVICE, COPYING], ids=["shared", "copied"])
RNG = np.random.default_rng(0)
X, T = RNG.uniform(-1, 1, (40, 3)), RNG.uniform(0, 1, (40, 2))
EPOCHS = 12
KINDS = pytest.mark.parametrize("options", [
    {"optimiser": "rprop", "validation": (X[:9], T[:9])},
    {"optimiser": "adam", "batch_size": 16, "schedule": "exponential"},
    {"optimiser": "sarprop"},
], ids=["rprop", "adam", "sarprop"])


def net(last="sigmoid"):
    return Network(3, [Dense(5, "tanh"), Dense(2, last)], seed=1)


@pytest.fixture
def ahead(monkeypatch):
    """Sets how many epochs are begun together."""
    monkeypatch.setattr(training, "AHEAD_SECONDS", 1e9)
    return lambda most: monkeypatch.setattr(training, "AHEAD", most)


class Acts:
    """Looks at the parameters after some epochs, replaces them, stops."""

    def __init__(self, looks=(), replaces=(), stop=None):
        self.looks, self.replaces, self.stop = looks, replaces, stop
        self.seen = []

    def __call__(self, training, epoch):
        number = epoch.number
        self.seen.append((number, epoch.loss, len(training.history)))
        if number in self.looks:
            self.seen.append(training.parameters.tobytes())
        if number in self.replaces:
            training.parameters = 0.5 * training.parameters
        return number == self.stop


def all_of(place, options, **acts):
    """Return everything that a training tells."""
    network, callback = net(), Acts(**acts)
    history = network.fit(
        X, T, epochs=EPOCHS, seed=2, device=place, callbacks=[callback], **options
    )
    state = history.state
    measures = [(epoch.training, epoch.validation) for epoch in history]
    return (
        network.parameters.tobytes(), measures, history.stopped, callback.seen,
        state.epoch, state.count, state.values.tobytes(),
    )


@PLACES
@KINDS
def test_all_is_as_one_by_one(ahead, place, options):
    several = [
        {}, {"stop": 7}, {"looks": (4, 8, 9)}, {"looks": (6,), "stop": 11},
        {"replaces": (5, 9)},
    ]
    found = []
    for most in (1, 5):
        ahead(most)
        found.append([all_of(place, options, **acts) for acts in several])
    assert found[0] == found[1]


@settings(max_examples=15, deadline=None)
@given(
    st.sets(st.integers(1, EPOCHS)), st.sets(st.integers(1, EPOCHS)),
    st.integers(1, EPOCHS), st.integers(2, 9),
)
def test_whatever_callbacks_do(looks, replaces, stop, most):
    acts = {"looks": looks, "replaces": replaces, "stop": stop}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "AHEAD_SECONDS", 1e9)
        found = []
        for several in (1, most):
            patch.setattr(training, "AHEAD", several)
            found.append(all_of(COPYING, {"optimiser": "rprop"}, **acts))
    assert found[0] == found[1]


@pytest.mark.parametrize("flops", [1, 10**9])
@pytest.mark.parametrize("options", [
    {"optimiser": "rprop"}, {"optimiser": "adam", "batch_size": 16, "shuffle": False},
    {"optimiser": "sarprop"},
], ids=["rprop", "adam", "sarprop"])
def test_several_epochs_a_launch(ahead, monkeypatch, options, flops):
    plan = training.plan_training

    def one_group(network, program, device, batch, **others):
        span, variant = program.span(0, len(program.ops), batch), GroupStep()
        config = next(c for c in variant.space(span, device) if c["alone"])
        found = plan(network, program, device, batch, tune=False)
        return replace(found, steps=(Step(span, variant, config, device),))

    monkeypatch.setattr(training, "plan_training", one_group)
    monkeypatch.setattr(replay, "RUN_FLOPS", flops)
    several = [{}, {"stop": 7}, {"looks": (4, 9)}]
    found = []
    for most in (1, 5):
        ahead(most)
        found.append([all_of(DEVICE, options, **acts) for acts in several])
    assert found[0] == found[1]


def test_epochs_are_begun_together(ahead, monkeypatch):
    ahead(4)
    found = []
    begin = training.Training._begin

    def counted(self, rates):
        found.append(len(rates))
        begin(self, rates)

    monkeypatch.setattr(training.Training, "_begin", counted)
    net().fit(X, T, epochs=EPOCHS)  # nobody can look
    assert found == [1, 4, 4, 3]
    found.clear()
    net().fit(X, T, epochs=EPOCHS, callbacks=[Acts()])
    assert found == [1, 1, 2, 4, 4]
    found.clear()
    net().fit(X, T, epochs=EPOCHS, callbacks=[Acts(looks=range(EPOCHS + 1))])
    assert found == [1] * EPOCHS
    found.clear()  # a function of the caller's may read what a callback changes
    net().fit(X, T, epochs=EPOCHS, optimiser="adam", schedule=lambda epoch: 1.0)
    assert found == [1] * EPOCHS


@PLACES
def test_a_divergence_is_found_where_it_was(ahead, place):
    found = []
    for most in (1, 6):
        ahead(most)
        network = Network(3, [Dense(2)], seed=1)
        with pytest.warns(ClnetWarning, match="training diverged"):
            history = network.fit(
                X, T, optimiser=SGD(3.0), epochs=400, batch_size=20, device=place,
                shuffle=False,
            )
        found.append((network.parameters.tobytes(), history.loss, history.stopped))
        assert np.isfinite(network.parameters).all()
    assert 20 < len(found[0][1]) < 400
    np.testing.assert_array_equal(found[0][1], found[1][1])
    assert (found[0][0], found[0][2]) == (found[1][0], found[1][2])


def test_ctrl_c_and_faults_leave_the_epochs_that_were_told(ahead):
    for error, until in ((KeyboardInterrupt, 7), (ValueError, 7)):
        parameters = []
        for most in (1, 5):
            ahead(most)
            network = net()

            def fail(training, epoch, error=error, until=until):
                if epoch.number == until:
                    raise error

            try:
                history = network.fit(X, T, epochs=EPOCHS, callbacks=[fail])
                assert history.state.epoch == until
            except ValueError:
                pass
            parameters.append(network.parameters.tobytes())
        assert parameters[0] == parameters[1]
