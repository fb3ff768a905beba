"""Speculative epochs: results are those of one epoch at a time, bit for bit."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from variant_cases import selected
from waits import join, until

from clnet import Dense, Network
from clnet.errors import ClnetWarning
from clnet.nn.optimisers import SGD
from clnet.opencl.discovery import device
from clnet.runtime import replay
from clnet.runtime.binding import PlanStep
from clnet.runtime.train_state import TrainState
from clnet.training import group, plans, segments
from clnet.training.network_training import NetworkTraining
from clnet.variants.training.epoch import Sequential, TiledEpoch
from clnet.variants.training.group_step import GroupStep

DEVICE = device()
COPYING = replace(DEVICE, fine_svm=False, companions=())  # one queue, as on GPUs
DEVICES = pytest.mark.parametrize("on", [DEVICE, COPYING], ids=["shared", "copied"])
RNG = np.random.default_rng(0)
X, T = RNG.uniform(-1, 1, (40, 3)), RNG.uniform(0, 1, (40, 2))
EPOCHS = 12
OPTIONS = pytest.mark.parametrize("options", [
    {"optimiser": "rprop", "validation": (X[:9], T[:9])},
    {"optimiser": "adam", "batch_size": 16, "schedule": "exponential"},
    {"optimiser": "sarprop"},
], ids=["rprop", "adam", "sarprop"])


def net(last="sigmoid"):
    return Network(3, [Dense(5, "tanh"), Dense(2, last)], seed=1)


@pytest.fixture
def speculate(monkeypatch):
    """Sets the most epochs of a segment, whatever their time."""
    monkeypatch.setattr(segments, "SPECULATION_SECONDS", 1e9)
    for module in (segments, replay):
        monkeypatch.setattr(module, "RUN_SECONDS", 1e9)
    return lambda most: monkeypatch.setattr(segments, "MAX_EPOCHS", most)


class Acts:
    """Reads the parameters after some epochs, replaces them, stops."""

    def __init__(self, reads=(), replaces=(), stop=None):
        self.reads, self.replaces, self.stop = reads, replaces, stop
        self.seen = []

    def __call__(self, training, epoch):
        number = epoch.number
        self.seen.append((number, epoch.loss, len(training.history)))
        if number in self.reads:
            self.seen.append(training.parameters.tobytes())
        if number in self.replaces:
            training.parameters = 0.5 * training.parameters
        return number == self.stop


def results(on, options, **acts):
    """Return every result of a training."""
    network, callback = net(), Acts(**acts)
    history = network.fit(
        X, T, epochs=EPOCHS, seed=2, device=on, callbacks=[callback], **options
    )
    state = history.state
    measures = [(epoch.training, epoch.validation) for epoch in history]
    return (
        network.parameters.tobytes(), measures, history.stopped, callback.seen,
        state.epoch, state.count, state.values.tobytes(),
    )


@DEVICES
@OPTIONS
def test_results_are_those_of_single_epochs(speculate, on, options):
    several = [
        {}, {"stop": 7}, {"reads": (4, 8, 9)}, {"reads": (6,), "stop": 11},
        {"replaces": (5, 9)},
    ]
    found = []
    for most in (1, 5):
        speculate(most)
        found.append([results(on, options, **acts) for acts in several])
    assert found[0] == found[1]


@settings(max_examples=10)
@given(
    st.sets(st.integers(1, EPOCHS)), st.sets(st.integers(1, EPOCHS)),
    st.integers(1, EPOCHS), st.integers(2, 9),
)
def test_any_actions_of_callbacks(reads, replaces, stop, most):
    acts = {"reads": reads, "replaces": replaces, "stop": stop}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SPECULATION_SECONDS", 1e9)
        found = []
        for length in (1, most):
            patch.setattr(segments, "MAX_EPOCHS", length)
            found.append(results(COPYING, {"optimiser": "rprop"}, **acts))
    assert found[0] == found[1]


def plan_by(variant, monkeypatch, **config):
    """Let trainings be computed by a variant in its first such configuration."""
    plan = plans.plan_training

    def planned(network, program, device, batch, **others):
        span = program.span(0, len(program.ops), batch)
        chosen = (
            PlanStep(span, variant, one, place) for place in device.places
            if variant.refuse(span, place) is None
            for one in variant.space(span, place) if {**one, **config} == one
        )
        step = next(chosen, None)
        if step is None:
            pytest.skip(f"{device.name} has no {variant.name} {config}")
        found = plan(network, program, device, batch, tune=False)
        return replace(found, steps=(step,))

    monkeypatch.setattr(plans, "plan_training", planned)


BY_VARIANT = {
    "group_step": (GroupStep(), {"alone": 1}), "epoch": (TiledEpoch(), {"workers": 1}),
    "lead": (TiledEpoch(), {"caller": 1}),
    "workers": (TiledEpoch(), {"workers": DEVICE.compute_units, "caller": 0}),
    "sequential": (Sequential(), {}),
}
RULES = {
    "rprop": {"optimiser": "rprop"},
    "adam": {"optimiser": "adam", "batch_size": 16, "shuffle": False},
    "shuffled": {"optimiser": "adam", "batch_size": 16, "schedule": "exponential"},
    "sarprop": {"optimiser": "sarprop"}, "incremental": {"optimiser": "incremental"},
    "incremental shuffled":
        {"optimiser": "incremental", "shuffle": True, "schedule": "cosine"},
}


@pytest.mark.parametrize(("by", "options", "flops"), selected(
    BY_VARIANT, RULES, {"steps": 1, "epochs": 10**9},
    quick=lambda by, rule, flops: (by + rule) % 8 == 4 * flops,
))
def test_several_epochs_a_launch(speculate, monkeypatch, by, options, flops):
    variant, config = by
    plan_by(variant, monkeypatch, **config)
    monkeypatch.setattr(replay, "run_flops", lambda device: flops)
    several = [{}, {"stop": 7}, {"reads": (4, 9)}]
    found = []
    for most in (1, 5):
        speculate(most)
        found.append([results(DEVICE, options, **acts) for acts in several])
    assert found[0] == found[1]


@pytest.mark.parametrize("stop", ["mse", "bit_fail"])
@pytest.mark.parametrize("options", [
    {"optimiser": "rprop"}, {"optimiser": "adam", "batch_size": 16},
    {"optimiser": "incremental"},
], ids=["rprop", "adam", "incremental"])
def test_a_launch_ends_at_the_desired_error(speculate, options, stop):
    def trained(**limit):
        network = net()
        history = network.fit(X, T, epochs=60, seed=2, **limit, **options)
        state = history.state
        return history, (
            network.parameters.tobytes(), history.mse, history.bit_fail,
            history.stopped, state.epoch, state.count, state.values.tobytes(),
        )

    whole, _ = trained()
    errors = [getattr(epoch, stop) for epoch in whole]
    limit = errors[30]
    expected = next(i for i, error in enumerate(errors) if error <= limit) + 1
    found = []
    for most in (1, 7, 100):
        speculate(most)
        history, results = trained(desired_error=limit, stop=stop)
        assert len(history) == expected
        assert history.stopped.startswith(f"{stop} ")
        found.append(results)
    assert found[0] == found[1] == found[2]


def test_the_length_of_segments(speculate, monkeypatch):
    speculate(4)
    found = []
    enqueue = segments.Segments._enqueue

    def counted(self, first, rates):
        found.append(len(rates))
        enqueue(self, first, rates)

    monkeypatch.setattr(segments.Segments, "_enqueue", counted)
    net().fit(X, T, epochs=EPOCHS)  # no callback can read the parameters
    assert found == [1, 4, 4, 3]
    found.clear()
    net().fit(X, T, epochs=EPOCHS, callbacks=[Acts()])
    assert found == [1, 1, 2, 4, 4]
    found.clear()
    net().fit(X, T, epochs=EPOCHS, callbacks=[Acts(reads=range(EPOCHS + 1))])
    assert found == [1] * EPOCHS
    found.clear()  # a short segment loses less where a training may stop
    monkeypatch.setattr(segments, "SPECULATION_SECONDS", 0.0)
    for options in ({"callbacks": [Acts()]}, {"desired_error": 1e-9}, {}):
        net().fit(X, T, epochs=EPOCHS, optimiser="adam", batch_size=16, **options,
                  validation=(X, T))  # no kernel does many epochs and this
    assert found[: 2 * EPOCHS] == [1] * 2 * EPOCHS
    assert max(found[2 * EPOCHS :]) == 4  # the first one too, if its time is known
    found.clear()  # a caller's function may read what a callback changes
    net().fit(X, T, epochs=EPOCHS, optimiser="adam", schedule=lambda epoch: 1.0)
    assert found == [1] * EPOCHS


def test_an_interrupt_before_the_first_epoch_leaves_the_network(monkeypatch):
    network = net()
    before = network.parameters.copy()

    def interrupt(*given, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(plans, "plan_training", interrupt)
        with pytest.raises(KeyboardInterrupt):
            network.fit(X, T, epochs=EPOCHS)
    np.testing.assert_array_equal(network.parameters, before)
    assert len(network.fit(X, T, epochs=2)) == 2


@pytest.mark.parametrize(("batch", "steps"), [(40, 1), (16, 3)])
def test_launches_are_as_long_as_their_time_allows(
    speculate, monkeypatch, batch, steps
):
    plan_by(GroupStep(), monkeypatch, alone=1)
    speculate(100)
    launches = []

    class Counted(replay.Replay):
        def run(self):
            launches.append(self.bound.numbers["steps"])
            super().run()

    monkeypatch.setattr(group, "Replay", Counted)
    options = {"optimiser": "adam", "batch_size": batch, "shuffle": False}
    monkeypatch.setattr(replay, "RUN_SECONDS", 1e9)
    net().fit(X, T, epochs=EPOCHS, **options)
    assert launches == [steps, (EPOCHS - 1) * steps]
    launches.clear()
    monkeypatch.setattr(replay, "RUN_SECONDS", 0.0)
    net().fit(X, T, epochs=EPOCHS, **options)
    assert launches == [1] * EPOCHS * steps


@pytest.mark.parametrize("options", [
    {"optimiser": "rprop"}, {"optimiser": "adam", "batch_size": 16},
], ids=["rprop", "adam"])
def test_an_interrupt_amid_launches_leaves_whole_epochs(monkeypatch, options):
    network, other = net(), net()
    # A long training measures, and may choose another kernel than a short one.
    options = {"seed": 2, "tune": False} | options
    run = NetworkTraining.run
    # A shell's background jobs ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupted(running):
        def interrupt():
            if until(lambda: len(running.history) > 10):
                _thread.interrupt_main()

        thread = threading.Thread(target=interrupt, daemon=True)
        thread.start()
        run(running)
        join([thread])

    try:
        with monkeypatch.context() as patch:
            patch.setattr(NetworkTraining, "run", interrupted)
            history = network.fit(X, T, epochs=10**7, **options)
    finally:
        signal.signal(signal.SIGINT, before)
    assert history.stopped.startswith("interrupted")
    assert history.state.epoch == len(history) > 1
    again = other.fit(X, T, epochs=len(history), **options)
    assert again.plan == history.plan
    np.testing.assert_array_equal(
        history.epochs.rows[:, :3], again.epochs.rows[:, :3])
    np.testing.assert_array_equal(network.parameters, other.parameters)


@DEVICES
@pytest.mark.parametrize("options", [
    {"optimiser": "rprop"}, {"optimiser": "adam", "batch_size": 16},
], ids=["rprop", "adam"])
def test_an_interrupted_wait_for_one_epoch_leaves_it_whole(monkeypatch, on, options):
    network, other = net(), net()
    options = {"seed": 2, "tune": False, "devices": on} | options
    monkeypatch.setattr(segments, "MAX_EPOCHS", 1)
    calls = []

    def interrupted(self, count, wait=segments.Segments._measures):
        calls.append(count)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return wait(self, count)

    with monkeypatch.context() as patch:
        patch.setattr(segments.Segments, "_measures", interrupted)
        history = network.fit(X, T, epochs=20, **options)
    assert history.stopped.startswith("interrupted after 4 ")
    again = other.fit(X, T, epochs=4, **options)
    np.testing.assert_array_equal(
        history.epochs.rows[:, :3], again.epochs.rows[:, :3])
    np.testing.assert_array_equal(network.parameters, other.parameters)


@pytest.mark.parametrize("stride", [
    7, pytest.param(1, marks=pytest.mark.sweep)
], ids=["some", "all"])
@pytest.mark.parametrize("on, most, options", [
    (DEVICE, 1, {"optimiser": "rprop"}),
    (COPYING, 1, {"optimiser": "adam", "batch_size": 20, "validation": (X[:9], T[:9])}),
    (DEVICE, 2, {"optimiser": "adam", "batch_size": 20}),
    (COPYING, 0, {"optimiser": "adam", "batch_size": 20}),
], ids=["rprop", "validation", "segment", "snapshots on the host"])
def test_an_interrupt_at_any_call_of_an_epoch_leaves_whole_ones(
    monkeypatch, speculate, on, most, options, stride
):
    options = {"seed": 2, "tune": False, "device": on} | options
    if not most:  # as where a GPU has no memory for a snapshot of the state
        most = 1
        monkeypatch.setattr(TrainState, "can_snapshot_state", False)
        monkeypatch.setattr(TrainState, "host_is_apart", True)
    speculate(most)
    begun = segments.Segments._enqueue, segments.Segments._measures

    def trained(epochs, at=None):
        """Return what an interrupt at a call that computes the fourth epoch leaves."""
        network, calls = net(), 0

        def count(frame, event, argument):
            nonlocal calls
            if event.endswith("call"):
                calls += 1
                if calls - 1 == at:
                    raise KeyboardInterrupt

        def watched(run):
            def watching(self, *arguments):
                sys.setprofile(count if len(self._history) == 3 else None)
                try:
                    return run(self, *arguments)
                finally:
                    sys.setprofile(None)

            return watching

        with monkeypatch.context() as patch:
            for run in begun:
                patch.setattr(segments.Segments, run.__name__, watched(run))
            history = network.fit(X, T, epochs=epochs, **options)
        state = history.state
        arrays = state.parameters, state.values, history.epochs.rows[:, :-1]
        return calls, state.epoch, state.count, network.parameters.tobytes(), [
            array.tobytes() for array in arrays
        ]

    expected = trained(3)[1:]
    calls = trained(3 + most)[0]
    assert calls > 20
    for at in range(0, calls, stride):
        assert trained(3 + most, at)[1:] == expected, at


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_error_of_a_callbacks_end_keeps_the_trained_parameters(error):
    class Ends(Acts):
        def end(self, training):
            raise error

    network, other = net(), net()
    with pytest.raises(error):
        network.fit(X, T, epochs=EPOCHS, seed=2, callbacks=[Ends()])
    other.fit(X, T, epochs=EPOCHS, seed=2)
    np.testing.assert_array_equal(network.parameters, other.parameters)


@DEVICES
def test_a_divergence_stops_at_its_epoch(speculate, on):
    found = []
    for most in (1, 6):
        speculate(most)
        network = Network(3, [Dense(2)], seed=1)
        with pytest.warns(ClnetWarning, match="training diverged"):
            history = network.fit(
                X, T, optimiser=SGD(3.0), epochs=400, batch_size=20, device=on,
                shuffle=False,
            )
        found.append((network.parameters.tobytes(), history.loss, history.stopped))
        assert np.isfinite(network.parameters).all()
    assert 20 < len(found[0][1]) < 400
    np.testing.assert_array_equal(found[0][1], found[1][1])
    assert (found[0][0], found[0][2]) == (found[1][0], found[1][2])


def test_interrupts_and_errors_keep_the_reported_epochs(speculate):
    for error in (KeyboardInterrupt, ValueError):
        parameters = []
        for most in (1, 5):
            speculate(most)
            network = net()

            def fail(training, epoch, error=error):
                if epoch.number == 7:
                    raise error

            try:
                history = network.fit(X, T, epochs=EPOCHS, seed=1, callbacks=[fail])
                assert history.state.epoch == 7
            except ValueError:
                pass
            parameters.append(network.parameters.tobytes())
        assert parameters[0] == parameters[1]
