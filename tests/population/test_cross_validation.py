"""Cross-validation: the scores of each training alone."""

from __future__ import annotations

from copy import copy

import numpy as np
import pytest

from clnet import InputError, Network, Population
from clnet.nn.folds import folds_of
from clnet.nn.optimisers import Adam

N, SAMPLES = 5, 60
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (SAMPLES, 3))
T = np.stack([X[:, 0] * X[:, 1], X[:, 2] ** 2], axis=1)
RESTS = [np.sort(rest) for rest in np.split(RNG.permutation(SAMPLES), N)]


def shape(**options):
    return Network.mlp([3, 9, 2], "tanh", seed=0, **options)


def test_cross_validation_is_each_training_alone():
    labels = np.array(["a", "b", "c"])[np.digitize(X[:, 0] * X[:, 1], [-0.1, 0.1])]
    network = Network.mlp([3, 8, 3], "tanh", output="softmax", seed=1)
    grid = {"learning_rate": [1e-3, 0.1], "epochs": [2, 9]}
    found = Population.cross_validate(
        network, X, labels, grid, folds=4, optimiser="adam", batch_size=16, seed=5
    )
    assert network.classes is None
    folds = folds_of(np.unique(labels, return_inverse=True)[1], SAMPLES, 4, 5)
    assert sorted(np.concatenate(folds).tolist()) == list(range(SAMPLES))
    for label in "abc":  # spread evenly
        counts = [(labels[fold] == label).sum() for fold in folds]
        assert max(counts) - min(counts) <= 1
    expected = []
    for rate in grid["learning_rate"]:
        for epochs in grid["epochs"]:
            scores = []
            for fold in folds:
                one, rest = copy(network), np.setdiff1d(np.arange(SAMPLES), fold)
                one.fit(
                    X[rest], labels[rest], optimiser=Adam(learning_rate=rate),
                    epochs=epochs, batch_size=16, seed=5,
                )
                scores.append(one.evaluate(X[fold], labels[fold]).accuracy)
            expected.append(scores)
    np.testing.assert_array_equal(found.scores, expected)
    results = found.results
    assert results["params"][2] == {"learning_rate": 0.1, "epochs": 2}
    assert results["param_epochs"] == [2, 9, 2, 9]
    order = np.argsort(results["mean_test_score"])[::-1]
    assert results["rank_test_score"][order[0]] == 1
    assert found.best == results["params"][results["rank_test_score"].argmin()]
    assert "4 settings over 4 folds" in repr(found)
    assert found._repr_html_().count("<tr>") == 5


def test_cross_validation_of_numbers_by_given_folds(same_rounding):
    network = shape(output="identity")
    found = Population.cross_validate(network, X, T, folds=RESTS, epochs=3)
    assert found.scores.shape == (1, N)
    assert found.best == {}
    one, rows = copy(network), np.setdiff1d(np.arange(SAMPLES), RESTS[0])
    one.fit(X[rows], T[rows], epochs=3, seed=0)
    wanted = one.evaluate(X[RESTS[0]], T[RESTS[0]]).r2
    assert found.scores[0, 0] == wanted


@pytest.mark.parametrize(("options", "sentence"), [
    ({"grid": {"layers": [1]}}, "argument of a grid"),
    ({"grid": {"epochs": 3}}, "list of values"), ({"grid": {"epochs": []}}, "list"),
    ({"grid": [1]}, "mapping"), ({"folds": 1}, "folds"), ({"folds": 61}, "61 folds"),
    ({"folds": []}, "folds"), ({"folds": [[60]]}, "0 to 59"), ({"folds": [[]]}, "fold"),
    ({"seed": -1}, "seed"), ({"epochs": 0}, "epochs"),
])
def test_wrong_cross_validations(options, sentence):
    with pytest.raises(InputError, match=sentence) as raised:
        Population.cross_validate(shape(), X, T, **options)
    assert "\n" not in str(raised.value)
