"""Cascade training: networks grow, by FANN's rules, and FANN runs them alike."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
from clnet.benchmarks.baselines.fann import (
    Handle,
    library_file,
    load_library,
    network_of,
    samples_of,
)

import clnet
from clnet import Cascade, Dense, Network
from clnet.errors import ClnetWarning, InputError
from clnet.nn.cascade import Stagnation
from clnet.nn.fann_parameters import FannParameters
from clnet.training.cascade.training import CascadeTraining

FEW = Cascade(activation_functions=["tanh", "gaussian"], max_cand_epochs=60,
              max_out_epochs=60)


@pytest.fixture
def fann():
    """FANN's library."""
    file = library_file(None)
    if file is None:
        pytest.skip("FANN's library is not installed")
    return load_library(file)


def parity(bits):
    x = np.array(np.meshgrid(*[[0, 1]] * bits)).reshape(bits, -1).T.astype(np.float32)
    return x, (x.sum(axis=1, keepdims=True) % 2).astype(np.float32)


def fann_network(n_in, n_out, activation="sigmoid", seed=0, **parameters):
    return Network(
        n_in, [Dense(n_out, activation, sources=(0,), initialiser="fann")], seed=seed,
        fann_compatible=True, fann=FannParameters(**parameters),
    )


@pytest.mark.parametrize("seed", range(20))
def test_parity_8_is_solved(seed):
    x, t = parity(8)
    net = fann_network(8, 1, seed=seed)
    history = net.fit(x, t, optimiser="cascade", max_neurons=30, desired_error=1e-3,
                      seed=seed)
    assert net.evaluate(x, t).bit_fail == 0
    assert history.mse[-1] <= 1e-3
    assert "mse is at most 0.001 with" in history.stopped


def test_a_goal_that_is_reached_stays_reached(monkeypatch):
    """Training on as long as the error falls may end above the goal."""
    train = CascadeTraining._train_outputs

    def spoiled(self, desired):
        found = train(self, desired)
        if desired is None:
            outputs = self._bound.outputs
            outputs.start(-outputs.weights(self._shortcut.read))
        return found

    monkeypatch.setattr(CascadeTraining, "_train_outputs", spoiled)
    x, t = parity(4)
    net = fann_network(4, 1)
    history = net.fit(x, t, optimiser="cascade", desired_error=1e-2, seed=0)
    assert history.mse[-1] <= 1e-2
    assert net.evaluate(x, t).bit_fail == 0


def test_fann_loads_and_runs_what_has_grown(fann, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (50, 3)).astype(np.float32)
    t = np.stack([np.sin(3 * x[:, 0]) * x[:, 1], x[:, 2] ** 2], axis=1)
    net = fann_network(3, 2, "tanh")
    net.fit(x, t, optimiser="cascade", max_neurons=6, seed=1)
    assert net.sizes == (3, *[1] * 6, 2)
    net.save(tmp_path / "grown.net")
    handle = Handle(
        fann.fann_create_from_file(bytes(tmp_path / "grown.net")), fann.fann_destroy
    )
    assert fann.fann_get_total_neurons(handle.pointer) == 3 + 1 + 6 + 2
    answers = np.array([
        np.ctypeslib.as_array(
            fann.fann_run(handle.pointer, row.ctypes.data), (2,)
        ).copy() for row in x
    ])
    # Chains of seven float32 layers in two programs, by another exponential.
    np.testing.assert_allclose(net.predict(x), answers, atol=2e-5)
    fann.fann_save(handle.pointer, bytes(tmp_path / "again.net"))
    again = clnet.load(tmp_path / "again.net")
    np.testing.assert_array_equal(again.parameters, net.parameters)
    assert [layer.steepness for layer in again.layers] == pytest.approx(
        [layer.steepness for layer in net.layers]
    )


@pytest.mark.parametrize("algorithm", ["rprop", "quickprop"])
@pytest.mark.parametrize("error", ["linear", "tanh"])
def test_outputs_are_trained_as_fann_trains_them(fann, algorithm, error, tmp_path):
    """Ten epochs of the outputs alone give FANN's weights, as `cascade_train` of 0."""
    x, t = parity(5)
    net = fann_network(
        5, 1, "tanh", training_algorithm=algorithm, train_error_function=error,
        cascade_max_out_epochs=10,
    )
    handle, data = network_of(fann, net), samples_of(fann, x, t)
    fann.fann_cascadetrain_on_data(handle.pointer, data.pointer, 0, 0, 0.0)
    history = net.fit(x, t, optimiser="cascade", max_neurons=0)
    fann.fann_test_data(handle.pointer, data.pointer)
    mse = fann.fann_get_MSE(handle.pointer)
    assert net.evaluate(x, t).mse == pytest.approx(mse, rel=1e-4)
    fann.fann_save(handle.pointer, bytes(tmp_path / "fann.net"))
    theirs = clnet.load(tmp_path / "fann.net")
    np.testing.assert_allclose(net.parameters, theirs.parameters, atol=1e-5)
    assert net.sizes == (5, 1)
    assert history.stopped == "max_neurons 0 is reached"


def test_a_new_neuron_is_frozen_and_its_output_weights_are_multiplied(monkeypatch):
    """With one epoch of outputs their weights are the multiplied ones, plus a step."""
    x, t = parity(3)
    net = Network(3, [Dense(1, "tanh")], seed=0)
    cascade = replace(FEW, max_out_epochs=1, min_out_epochs=0)
    net.fit(x, t, optimiser=cascade, max_neurons=1, seed=0)
    first = net.weights(0).copy(), net.biases(0).copy()
    net.fit(x, t, optimiser=cascade, max_neurons=1, seed=1)
    np.testing.assert_array_equal(net.weights(0), first[0])
    np.testing.assert_array_equal(net.biases(0), first[1])
    assert net.sizes == (3, 1, 1, 1)


def test_equal_seeds_give_equal_networks():
    x, t = parity(4)
    nets = [Network(4, [Dense(1, "sigmoid")], seed=0) for _ in range(3)]
    for net, seed in zip(nets, (5, 5, 6), strict=True):
        net.fit(x, t, optimiser=FEW, max_neurons=2, seed=seed)
    np.testing.assert_array_equal(nets[0].parameters, nets[1].parameters)
    assert not np.array_equal(nets[0].parameters, nets[2].parameters)


@pytest.mark.parametrize("rule", ["quickprop", "sarprop"])
def test_the_other_rules_lower_the_error(rule):
    x, t = parity(3)
    net = Network(3, [Dense(1, "tanh")], seed=0)
    history = net.fit(x, 2 * t - 1, optimiser=Cascade(rule), max_neurons=4, seed=0)
    assert history.mse[-1] < 0.6 * history.mse[0]


def test_the_errors_of_the_history_are_the_networks():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (70, 2)).astype(np.float32)
    t = (x[:, :1] * x[:, 1:]).astype(np.float32)
    net = Network(2, [Dense(1)], seed=0)
    found = []

    def callback(training, epoch):
        network = training.network
        found.append((
            len(network.layers), network.evaluate(x[:20], t[:20]).mse,
            epoch.validation.mse,
        ))

    net.fit(x, t, optimiser=FEW, max_neurons=3, seed=0, validation=(x[:20], t[:20]),
            callbacks=[callback])
    assert [row[0] for row in found] == [1, 2, 3, 4]
    for _, mse, validation in found:
        assert validation == pytest.approx(mse, rel=1e-4)


def test_early_stopping_takes_neurons_back():
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, (20, 2)).astype(np.float32)
    t = rng.uniform(-1, 1, (20, 1)).astype(np.float32)
    net = Network(2, [Dense(1)], seed=0)
    stopping = clnet.EarlyStopping(patience=2)
    history = net.fit(
        x, t, optimiser=FEW, max_neurons=8, seed=0, validation=(x + 0.1, -t),
        callbacks=[stopping],
    )
    assert len(net.layers) == history.best_epoch
    best = history.epochs[history.best_epoch - 1].validation.mse
    assert net.evaluate(x + 0.1, -t).mse == pytest.approx(best, rel=1e-4)


def test_a_callback_stops_and_what_has_grown_is_kept():
    x, t = parity(4)
    net = Network(4, [Dense(1, "sigmoid")], seed=0)
    history = net.fit(
        x, t, optimiser=FEW, max_neurons=9, callbacks=[lambda *_: len(_[0].history) > 2]
    )
    assert net.sizes == (4, 1, 1, 1)
    assert history.stopped == "<lambda> stopped after 2 neurons"


def test_ctrl_c_keeps_the_network_so_far():
    x, t = parity(4)
    net = Network(4, [Dense(1, "sigmoid")], seed=0)

    def interrupt(training, epoch):
        if epoch.number == 2:
            raise KeyboardInterrupt

    history = net.fit(x, t, optimiser=FEW, max_neurons=9, callbacks=[interrupt])
    assert net.sizes == (4, 1, 1)
    assert history.stopped.startswith("interrupted after 2 trainings of the outputs")


def test_progress_counts_neurons(capsys):
    x, t = parity(3)
    net = Network(3, [Dense(1, "sigmoid")], seed=0)
    net.fit(x, t, optimiser=FEW, max_neurons=2, seed=0, progress=True)
    assert "2/2" in capsys.readouterr().err
    net.fit(x, t, optimiser=FEW, max_neurons=1, seed=0)
    assert capsys.readouterr().err == ""


def test_labels_scaling_and_a_later_fit():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(m, 1, (30, 2)) for m in (10, 14)])
    labels = ["a"] * 30 + ["b"] * 30
    net = Network(2, [Dense(1, "sigmoid")], seed=0)
    net.scaling = clnet.Scaling.of(x, np.zeros((60, 1)), outputs=None)
    net.fit(x, labels, optimiser=FEW, max_neurons=2, seed=0, scale=True)
    assert net.classes == ("a", "b")
    assert net.evaluate(x, labels, scale=True).accuracy > 0.9
    net.fit(x, labels, optimiser="rprop", epochs=30, batch_size=60, scale=True)
    assert net.evaluate(x, labels, scale=True).accuracy > 0.9


def test_plans_of_before_tell_that_the_network_has_grown():
    x, t = parity(3)
    net = Network(3, [Dense(1, "sigmoid")], seed=0)
    plan = net.compile(batch=8, tune=False)
    plan(x)
    net.fit(x, t, optimiser=FEW, max_neurons=1, seed=0)
    with pytest.raises(InputError, match="has grown since: compile it again"):
        plan(x)
    assert net.predict(x).shape == net.compile(batch=8, tune=False)(x).shape == (8, 1)


def test_the_network_records_fanns_parameters(tmp_path):
    x, t = parity(3)
    net = Network(3, [Dense(1, "sigmoid")], seed=0)
    cascade = replace(FEW, rule="quickprop", weight_multiplier=0.25)
    net.fit(x, t, optimiser=cascade, loss="fann_linear", max_neurons=1, seed=0)
    net.save(tmp_path / "net.net")
    found = clnet.load(tmp_path / "net.net").fann
    assert found.training_algorithm == "quickprop"
    assert found.cascade_weight_multiplier == 0.25
    assert found.train_error_function == "linear"
    assert Cascade.of_fann(found) == cascade


@pytest.mark.parametrize("options, words", [
    ({"epochs": 5}, "takes no epochs, found 5: give max_neurons"),
    ({"batch_size": 4}, "takes no batch_size, found 4"),
    ({"sample_weight": np.ones(8)}, "takes no sample_weight"),
    ({"schedule": "cosine"}, "takes no schedule"),
    ({"l2": 0.1}, "takes no l2"),
    ({"precision": "high"}, "takes no precision"),
    ({"resume": "a.safetensors"}, "takes no resume"),
    ({"loss": "mae"}, "takes the loss mse, fann_linear or fann_tanh, not mae"),
    ({"max_neurons": -1}, "max_neurons"),
    ({"seed": -1}, "a seed"),
    ({"validation": 3}, "must be .x, t."),
    ({"validation": (*parity(3), np.ones(8))}, "takes no sample_weight"),
])
def test_what_does_not_apply_is_refused(options, words):
    x, t = parity(3)
    net = Network(3, [Dense(1, "sigmoid")], seed=0)
    with pytest.raises(InputError, match=words):
        net.fit(x, t, optimiser="cascade", **options)
    assert net.sizes == (3, 1)


def test_max_neurons_is_of_cascade_training():
    net = Network(3, [Dense(1, "sigmoid")], seed=0)
    with pytest.raises(InputError, match="max_neurons is of cascade training"):
        net.fit(*parity(3), max_neurons=3)
    with pytest.raises(InputError, match="cascade training grows one network"):
        clnet.Population(net, 2).fit(*parity(3), optimiser="cascade")
    fixed = fann_network(3, 1, training_algorithm="incremental")
    with pytest.raises(InputError, match="not by incremental"):
        fixed.fit(*parity(3), optimiser="cascade")


def test_targets_out_of_reach_are_warned_of():
    net = Network(3, [Dense(1, "sigmoid")], seed=0)
    x, t = parity(3)
    with pytest.warns(ClnetWarning), warnings.catch_warnings():
        net.fit(x, 5 * t, optimiser=FEW, max_neurons=0)


class FannsRule:
    """The loop of FANN's `fann_train_candidates` over given scores, as an oracle."""

    def __init__(self, fraction, patience, least, most):
        self.arguments = fraction, patience, least, most

    def epochs(self, scores):
        fraction, patience, least, most = self.arguments
        target, backslide, stagnation = 0.0, -1e20, most
        for i, score in enumerate(scores[:most]):
            if score > target or score < backslide:
                target, backslide = score * (1 + fraction), score * (1 - fraction)
                stagnation = i + patience
            if i >= stagnation and i >= least:
                return i + 1
        return min(most, len(scores))


@pytest.mark.parametrize("seed", range(20))
def test_stagnation(seed):
    rng = np.random.default_rng(seed)
    scores = np.cumsum(rng.normal(0.2, 1, 60)) * (rng.random(60) < 0.7)
    arguments = 0.05, int(rng.integers(1, 8)), int(rng.integers(0, 20)), 50
    rule, end = Stagnation(*arguments), None
    for epoch, score in enumerate(scores[:50]):
        before = rule.earliest(epoch)
        if rule.ends(epoch, score):
            end = epoch + 1
            assert before <= end
            break
    assert (end or 50) == FannsRule(*arguments).epochs(scores)


def test_a_checkpoint_holds_the_network_to_go_on_from(tmp_path):
    x, t = parity(3)
    file = tmp_path / "net.safetensors"
    found = []
    for saves in [], [clnet.Checkpoint(file, every=2)]:
        net = Network(3, [Dense(1, "sigmoid")], seed=0)
        net.fit(x, t, optimiser="cascade", max_neurons=2, seed=1, desired_error=0,
                callbacks=saves)
        found.append(net.parameters)
    np.testing.assert_array_equal(*found)
    loaded = clnet.load(file)
    np.testing.assert_array_equal(loaded.parameters, net.parameters)
    for one in net, loaded:
        one.fit(x, t, optimiser="cascade", max_neurons=1, seed=2)
    assert loaded.sizes == net.sizes
    np.testing.assert_array_equal(loaded.parameters, net.parameters)


def test_sources_are_read_whole():
    x, t = parity(4)
    batches = [(x[i:i + 5], t[i:i + 5]) for i in range(0, len(x), 5)]
    found = []
    for samples in ((x, t), (batches, None), (iter(batches), None)):
        net = Network(4, [Dense(1, "sigmoid")], seed=0)
        history = net.fit(*samples, optimiser="cascade", max_neurons=1, seed=1,
                          validation=batches if samples[1] is None else (x, t))
        found.append((net.parameters.tobytes(), history.validation_loss))
    assert found[1:] == found[:1] * 2


def test_an_interrupt_takes_back_a_neuron_without_trained_outputs(monkeypatch):
    x, t = parity(3)
    train, calls = CascadeTraining._train_outputs, []

    def interrupted(self, desired):
        calls.append(desired)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return train(self, desired)

    monkeypatch.setattr(CascadeTraining, "_train_outputs", interrupted)
    net = Network(3, [Dense(1, "sigmoid")], seed=0)
    history = net.fit(x, t, optimiser="cascade", max_neurons=3, seed=1)
    assert history.stopped.startswith("interrupted after 1 training of the outputs")
    assert net.sizes == (3, 1)
    assert net.evaluate(x, t).mse == pytest.approx(history.mse[-1], rel=1e-5)
