"""Kernels of cascade training are compared with NumPy before they train, once."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from clnet import Cascade, Dense, Network
from clnet.errors import ClnetWarning
from clnet.opencl.discovery import device
from clnet.planning.tuning import times
from clnet.training.cascade import training, trial
from clnet.training.cascade.reference import ReferenceBinding
from clnet.training.cascade.trial import LEAST, reduced
from clnet.variants.cascade.cascade import TILE, NeuronsTraining, NeuronValues

pytestmark = pytest.mark.usefixtures("own_store")
DEVICE = device()
# The kernels of GPUs run on CPUs too.
DEVICES = {
    "gpu": dataclasses.replace(DEVICE, type="gpu", companions=()),
    **({"cpu": DEVICE} if DEVICE.type == "cpu" else {}),
}
FEW = Cascade(activation_functions=["tanh", "gaussian"], max_out_epochs=5,
              max_cand_epochs=5)
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (70, 3)).astype(np.float32)
T = RNG.uniform(0, 0.9, (70, 2)).astype(np.float32)


def fit(network=None, chosen=FEW, max_neurons=2, **options):
    network = network or Network(3, [Dense(2, "tanh")], seed=0)
    history = network.fit(
        X, T, optimiser=chosen, max_neurons=max_neurons, seed=1, **options
    )
    return network, history


@pytest.fixture(autouse=True)
def no_kept_bindings():
    for one in DEVICES.values():
        trial.session(one).kept.clear()


@pytest.fixture
def compared(monkeypatch):
    """The launches that were compared."""
    seen, check = [], trial.check
    monkeypatch.setattr(
        trial, "check", lambda *given: seen.append(given[0]) or check(*given)
    )
    return seen


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("options", [
    {}, {"chosen": Cascade("quickprop", max_out_epochs=2, max_cand_epochs=2)},
    {"chosen": dataclasses.replace(FEW, rule="sarprop"), "validation": (X[:9], T[:9])},
    {"loss": "fann_tanh", "max_neurons": 0},
    {"network": Network(3, [Dense(2, "sigmoid")], fann_compatible=True),
     "loss": "fann_linear"},
], ids=["rprop", "quickprop", "sarprop", "fann_tanh", "fann_linear"])
def test_right_kernels_train(where, options, compared):
    assert "cascade of" in fit(device=DEVICES[where], **options)[1].plan
    assert len(compared) == 1


def corrupted(monkeypatch, kind, wrong):
    """Change the launches of a kind of description."""
    launch = kind.launch

    def changed(self, device):
        found = launch(self, device)
        return dataclasses.replace(
            found, defines={**found.defines, **wrong(self, found.defines)}
        )

    monkeypatch.setattr(kind, "launch", changed)


def factor(candidates):
    """RPROP's constant."""
    return lambda training, defines: (
        {"INCREASE_FACTOR": "1.3f"} if training.candidates == candidates else {}
    )


def function(residuals):
    """The outputs' or the candidates' function."""
    return lambda values, defines: {} if values.residuals != residuals else {
        "FUNCTIONS(X)": defines["FUNCTIONS(X)"].replace("act_tanh", "act_elu")
    }


@pytest.mark.parametrize("where", [
    where if number == 0 else pytest.param(where, marks=pytest.mark.sweep)
    for number, where in enumerate(DEVICES)
])
@pytest.mark.parametrize(("kind", "wrong", "sentence"), [
    (NeuronsTraining, factor(candidates=False), "differs .* of outputs that read 3 v"),
    (NeuronsTraining, factor(candidates=True), "differs .* of candidates that read 3"),
    (NeuronValues, function(residuals=True), "differs .* residuals of training by 3 v"),
    (NeuronValues, function(residuals=False), "differs .* that read 6 values"),
    (NeuronsTraining, lambda *_: {"RECORD": "no number"}, "does not build"),
], ids=["outputs", "candidates", "errors", "values", "build"])
def test_numpy_trains_where_a_kernel_is_wrong(
    where, kind, wrong, sentence, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(training, "bound", lambda parts, session: ReferenceBinding(parts))
        expected, _ = fit()
    corrupted(monkeypatch, kind, wrong)
    with pytest.warns(ClnetWarning, match=f"cascade is left out: .*{sentence}"):
        found, history = fit(device=DEVICES[where])
    assert history.plan.startswith("NumPy: 16 candidates together; ")
    np.testing.assert_array_equal(found.parameters, expected.parameters)


def test_kernels_are_compared_once_per_device(compared):
    def count(**options):
        compared.clear()
        fit(**options)
        return len(compared)

    assert count() == 1
    assert count(network=Network(3, [Dense(2, "tanh")], seed=5)) == 0
    session = trial.session(DEVICE)
    session.kept.clear()
    times.store_of.cache_clear()  # another process
    assert count() == 0
    assert count(max_neurons=3) == 1
    assert count(chosen=dataclasses.replace(FEW, rule="quickprop")) == 1


def test_large_trainings_are_compared_at_a_smaller_size(monkeypatch, compared):
    monkeypatch.setattr(trial, "CHECKED_FLOPS", 1)
    monkeypatch.setattr(trial, "LEAST", TILE)
    n = 5 * TILE + 7
    network, x = Network(1, [Dense(1)]), np.linspace(-1, 1, n).reshape(n, 1)
    network.fit(x, x, optimiser=FEW, max_neurons=1, seed=0, validation=(x[:9], x[:9]))
    assert LEAST == 4 * TILE
    (parts,) = compared
    assert [one.samples for one in parts.samples] == [TILE + 7, 9]
    assert parts.outputs.samples == parts.candidates.samples == parts.samples[0]
    monkeypatch.undo()
    assert reduced(parts) == parts
