"""Early stopping: the restored network has the figure that its epoch reports."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from variant_cases import selected

from clnet import Cascade, Dense, Network, Population
from clnet.errors import ClnetWarning
from clnet.nn.optimisers import SGD, Adam
from clnet.opencl.discovery import device
from clnet.runtime.train_state import TrainState
from clnet.training import segments
from clnet.training.callbacks import MONITORED, Checkpoint, EarlyStopping

DEVICE = device()
TWINS = [DEVICE, replace(DEVICE, index="9:1")]
RNG = np.random.default_rng(0)
X, T = RNG.uniform(-1, 1, (40, 3)), RNG.uniform(-1, 1, (40, 2))
WEIGHTS = RNG.uniform(0, 3, 40)
HELD_OUT = X[:13] + 0.3, -T[:13]
UNEVEN = SGD(1.3, 0.9)  # losses rise and fall


def net(**options):
    return Network(3, [Dense(5, "tanh"), Dense(2, "tanh")], seed=1, **options)


def figure(network, measure, x=X, t=T, weights=None):
    """A measure of a network's outputs, in float64 by NumPy."""
    errors = network.predict(x).astype(float) - t
    if measure.endswith("bit_fail"):
        return np.count_nonzero(abs(errors) >= 0.35)
    return np.average((errors**2).mean(axis=1), weights=weights)


def check(network, history, measure, **weights):
    best = history.epochs[history.best_epoch - 1 - history.epochs.done]
    if measure.startswith("validation_"):
        reported = getattr(best.validation, measure.removeprefix("validation_"))
        expected = figure(network, measure, *HELD_OUT)
    else:
        reported = getattr(best.training, measure)
        expected = figure(network, measure, **weights)
    assert reported == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("measure", "options"), selected(
    {measure: measure for measure in MONITORED},
    {
        "one": {}, "copied": {"device": replace(DEVICE, fine_svm=False, companions=())},
        "twins": {"devices": TWINS}, "weighted": {"sample_weight": WEIGHTS},
        "as batch": {"batch_size": 40}, "batches": {"batch_size": 16},
        "source": {"source": True, "buffer": 1 << 14},
    },
    quick=lambda measure, options: (measure + options) % 2 == 0,
))
def test_the_restored_network_has_the_reported_figure(measure, options):
    options = {"batch_size": 40, **options}
    x, t = X, T
    if options.pop("source", False):
        x, t = [(X[:9], T[:9]), (X[9:], T[9:])], None
    stop, network = EarlyStopping(measure, patience=50), net()
    history = network.fit(
        x, t, optimiser=UNEVEN, epochs=60, validation=HELD_OUT, callbacks=[stop],
        seed=1, **options,
    )
    if options["batch_size"] == 40 or measure.startswith("validation_"):
        check(network, history, measure, weights=options.get("sample_weight"))
    else:  # a mean over steps: of the training up to the best epoch
        again = net()
        again.fit(x, t, optimiser=UNEVEN, epochs=history.best_epoch, seed=1, **options)
        np.testing.assert_array_equal(network.parameters, again.parameters)


@pytest.mark.parametrize("most", [1, 7])
def test_the_best_epoch_is_amid_others_that_run_together(most, monkeypatch):
    monkeypatch.setattr(segments, "SPECULATION_SECONDS", 1e9)
    monkeypatch.setattr(segments, "MAX_EPOCHS", most)
    for patience in 3, 50:
        network = net()
        history = network.fit(
            X, T, optimiser=UNEVEN, epochs=60, batch_size=40,
            callbacks=[EarlyStopping("loss", patience)],
        )
        check(network, history, "loss")
        again = net().fit(X, T, optimiser=UNEVEN, epochs=60, batch_size=40)
        assert again.loss[: len(history)] == history.loss


@pytest.mark.parametrize("measure", ["loss", "validation_loss"])
@pytest.mark.parametrize("first", [1, 4, 9])
def test_a_training_that_goes_on(measure, first, tmp_path):
    path = tmp_path / "x.safetensors"
    options = {"optimiser": UNEVEN, "validation": HELD_OUT, "batch_size": 40}

    def callbacks():
        return [EarlyStopping(measure, patience=50), Checkpoint(path)]

    net().fit(X, T, epochs=first, callbacks=callbacks(), **options)
    for epochs in first, 30:
        network = net()
        history = network.fit(
            X, T, epochs=epochs, callbacks=callbacks(), resume=path, **options
        )
        assert len(history) == epochs
        check(network, history, measure)


@pytest.mark.parametrize("most", [1, 7])
def test_parameters_that_a_callback_replaces_stay(most, monkeypatch):
    """Those before the step are restored; the training goes on from the new ones."""
    monkeypatch.setattr(segments, "SPECULATION_SECONDS", 1e9)
    monkeypatch.setattr(segments, "MAX_EPOCHS", most)
    found = []
    for stops in False, True:
        network, kept = net(), {}

        def replace(one, epoch, kept=kept):
            if epoch.number % 5 == 0:
                one.parameters = one.parameters * np.float32(0.9)
            if epoch.number == 12:
                kept[12] = one.parameters

        callbacks = [replace, EarlyStopping("loss", 50, min_delta=0.03)]
        history = network.fit(X, T, optimiser=UNEVEN, epochs=12, batch_size=40,
                              callbacks=callbacks[: 1 + stops])
        found.append((history.loss, kept[12].tolist()))
    assert found[0] == found[1]
    check(network, history, "loss")


def test_a_training_that_goes_on_from_a_state():
    state = net().fit(X, T, epochs=4, optimiser="batch", seed=1).state
    network = net()
    network.parameters = state.parameters
    rising = replace(state, optimiser=repr(SGD(60.0)))
    rising = replace(rising, values=SGD(60.0).initial_state(*state.values.shape[1:],
                                                            "float32"))
    history = network.fit(
        X, T, epochs=3, optimiser=SGD(60.0), batch_size=40, state=rising,
        callbacks=[EarlyStopping("loss")],
    )
    assert history.best_epoch == 5
    assert history.final_loss(validation=False) == history.loss[0]
    np.testing.assert_array_equal(network.parameters, state.parameters)


def interrupts(monkeypatch, name, at):
    """Let a read of a train state be interrupted, the first time it is the `at`-th."""
    read, count = getattr(TrainState, name), itertools.count(1)

    def interrupted(*given):
        if next(count) == at:
            raise KeyboardInterrupt
        return read(*given)

    monkeypatch.setattr(TrainState, name, interrupted)


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize(("measure", "name", "most"), [
    ("loss", "kept_parameters", 1), ("loss", "kept_parameters", 7),
    ("loss", "values", 7), ("loss", "restore", 7),
    ("validation_loss", "values", 1), ("validation_loss", "values", 7),
])
def test_an_interrupt_amid_a_read(measure, name, at, most, monkeypatch):
    monkeypatch.setattr(segments, "SPECULATION_SECONDS", 1e9)
    monkeypatch.setattr(segments, "MAX_EPOCHS", most)
    interrupts(monkeypatch, name, at)
    network = net()
    options = {"optimiser": UNEVEN, "batch_size": 40}
    try:
        history = network.fit(
            X, T, epochs=40, validation=HELD_OUT, **options,
            callbacks=[EarlyStopping(measure, 50)],
        )
    except KeyboardInterrupt:  # of the end, where the network gets its parameters
        return
    assert len(history) < 40
    if history.best_epoch is not None:
        check(network, history, measure)
    monkeypatch.undo()
    again = net().fit(X, T, epochs=len(history), **options)
    np.testing.assert_array_equal(history.state.values, again.state.values)


@pytest.mark.parametrize("at", [1, 2])
def test_an_interrupt_amid_a_read_of_a_populations_best(at, monkeypatch):
    interrupts(monkeypatch, "member_parameters", at)
    population = Population(net(), 4)
    histories = population.fit(
        X, T, optimiser=Adam(0.1), epochs=30, validation=HELD_OUT, patience=4, seed=1
    )
    assert "interrupted" in histories[0].stopped
    for network, history in zip(population, histories, strict=True):
        if history.best_epoch is not None:
            check(network, history, "validation_loss")


@pytest.mark.filterwarnings("ignore::clnet.ClnetWarning")
def test_an_epoch_whose_last_step_overflows_is_not_the_best():
    network = Network(1, [Dense(1, "identity")], seed=0)
    network.parameters = network.parameters * 0
    x = np.array([[0.0], [0.0], [0.0], [1.0]])
    with pytest.warns(ClnetWarning, match="diverged"):
        history = network.fit(
            x, 4 * x, epochs=5, optimiser=SGD(1e38), batch_size=3, shuffle=False,
            callbacks=[EarlyStopping("loss")],
        )
    assert np.isfinite(history.loss[0])
    assert history.best_epoch is None
    assert np.isfinite(network.parameters).all()


@pytest.mark.parametrize("measure", MONITORED)
def test_a_cascade_reports_the_network_as_it_is(measure):
    network = Network(3, [Dense(2, "tanh")], seed=0)
    few = Cascade(activation_functions=["tanh"], max_out_epochs=9, max_cand_epochs=9)
    history = network.fit(
        X, T, optimiser=few, max_neurons=6, seed=0, validation=HELD_OUT,
        callbacks=[EarlyStopping(measure)],
    )
    check(network, history, measure)


def test_a_population_has_the_reported_losses():
    population = Population(net(), 4)
    histories = population.fit(
        X, T, optimiser=Adam(0.1), epochs=30, validation=HELD_OUT, patience=4, seed=1
    )
    for network, history in zip(population, histories, strict=True):
        check(network, history, "validation_loss")
