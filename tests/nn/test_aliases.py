"""Names of other libraries: each means one row, and its owner's function."""

import numpy as np
import pytest

from clnet import Dense, InputError, Network
from clnet.nn.activations import (
    ACTIVATIONS,
    SOFTMAXES,
    activation,
    activation_name,
    fann_activation,
)
from clnet.nn.aliases import (
    ACTIVATION,
    ALIASES,
    FANN,
    LOSS,
    OPTIMISER,
    PYTORCH,
    UNCLEAR,
)
from clnet.nn.losses import LOSSES, loss_function
from clnet.nn.optimisers import OPTIMISERS, optimiser

ROWS = {ACTIVATION: {*ACTIVATIONS, *SOFTMAXES}, LOSS: {*LOSSES},
        OPTIMISER: {*OPTIMISERS}}
FIND = {ACTIVATION: activation_name, LOSS: lambda name: loss_function(name).name,
        OPTIMISER: lambda name: optimiser(name).name}
NAMES = [
    (kind, owner, name, own) for kind, owners in ALIASES.items()
    for owner, names in owners.items() for name, own in names.items()
]


@pytest.mark.parametrize(("kind", "owner", "name", "own"), NAMES)
def test_a_name_means_its_row(kind, owner, name, own):
    assert FIND[kind](name) == own


@pytest.mark.parametrize("kind", ROWS)
def test_a_name_has_one_meaning(kind):
    found = [name for one, _, name, _ in NAMES if one == kind]
    assert len(found) == len(set(found))
    assert not ROWS[kind] & {*found, *UNCLEAR[kind]}
    assert not {*found} & {*UNCLEAR[kind]}
    assert all(FIND[kind](own) == own for one, _, _, own in NAMES if one == kind)


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in UNCLEAR for name in UNCLEAR[kind]]
)
def test_an_unclear_name_is_refused_in_one_sentence(kind, name):
    with pytest.raises(InputError, match=f"^{kind} '{name}' is unclear: .*[^.]$"):
        FIND[kind](name)


def test_fann_has_twenty_activations():
    names = [name for name in ALIASES[ACTIVATION][FANN] if name.startswith("FANN_")]
    for number, name in enumerate(names):
        assert activation(name) is fann_activation(number)
    assert len(names) == 20


def test_layers_have_clnet_s_own_names():
    assert Dense(2, "Softmax").activation == "softmax"
    assert Dense(2, "FANN_SIGMOID_SYMMETRIC") == Dense(2, "tanh")
    assert Dense(2, ("logistic", "SiLU")).activation == ("sigmoid", "silu")
    with pytest.raises(InputError, match="softmax belongs to a whole layer"):
        Dense(2, ("logistic", "Softmax"))


def test_fit_takes_the_names_of_others():
    x = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    for optimised, loss, output in (
        ("Adam", "CrossEntropyLoss", "Softmax"), ("SGD", "BCELoss", "Sigmoid"),
        ("FANN_TRAIN_RPROP", "squared_error", "logistic"),
    ):
        network = Network.mlp([2, 3, 2], ["ReLU", output], seed=1)
        history = network.fit(
            x, np.eye(2)[[0, 1, 1, 0]], optimiser=optimised, loss=loss, epochs=2
        )
        assert len(history) == 2


def test_cross_entropy_of_classes_is_not_binary_s():
    network = Network.mlp([2, 3, 2], "sigmoid", seed=1)
    with pytest.raises(InputError, match="needs a last layer of softmax, found sigm"):
        network.fit(np.eye(2), np.eye(2), loss="cross_entropy")


# PyTorch's own functions ------------------------------------------------------------

V = np.linspace(-6, 6, 97)


def test_activations_are_pytorch_s():
    torch = pytest.importorskip("torch")
    for name, own in ALIASES[ACTIVATION][PYTORCH].items():
        if own in SOFTMAXES:
            continue
        function = getattr(torch.nn.functional, name, None)
        function = getattr(torch.nn, name)() if function is None else function
        expected = function(torch.tensor(V)).numpy()
        np.testing.assert_allclose(activation(name).value(V), expected, 1e-13, 1e-15)


def test_losses_are_pytorch_s():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    y, t = rng.normal(size=(2, 5, 3))
    t = np.eye(3)[rng.integers(0, 3, 5)]
    half = np.ones(3)
    for name in ALIASES[LOSS][PYTORCH]:
        row = loss_function(name)
        found = row.value(y, t, half)
        found = found.mean() if row.mean else found.sum(axis=1).mean()
        function = getattr(torch.nn, name, None)
        function = getattr(torch.nn.functional, name) if function is None \
            else function()
        outputs, targets = torch.tensor(y), torch.tensor(t)
        if name == "BCELoss":  # reads probabilities; clnet's reads their logits
            outputs = torch.sigmoid(outputs)
        if name in ("NLLLoss", "nll_loss"):
            outputs, targets = torch.log_softmax(outputs, 1), targets.argmax(1)
        assert found == pytest.approx(float(function(outputs, targets)), rel=1e-13)
