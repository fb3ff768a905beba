"""Searches whose candidates train together, beside scikit-learn's over the same."""

import pickle

import numpy as np
import pytest

pytest.importorskip("sklearn", "1.6")
import scipy.sparse
from sklearn import model_selection
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.datasets import load_diabetes, load_iris
from sklearn.exceptions import ConvergenceWarning, FitFailedWarning
from sklearn.metrics import accuracy_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale

from clnet.errors import DeviceError
from clnet.sklearn import (
    GridSearchCV,
    MLPClassifier,
    MLPRegressor,
    RandomizedSearchCV,
    search,
    solvers,
    together,
)

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
X, Y = load_iris(return_X_y=True)
X_REGRESSION, Y_REGRESSION = map(scale, load_diabetes(return_X_y=True))
FEW = {"random_state": 0, "max_iter": 30, "hidden_layer_sizes": (8,)}


@pytest.fixture
def alone(monkeypatch):
    """The fits that train one by one, by their parameters."""
    found = []
    original = solvers.fit_stochastic, solvers.fit_lbfgs

    def counted(number):
        def fit(estimator, *arguments):
            found.append(estimator.get_params())
            return original[number](estimator, *arguments)
        return fit

    monkeypatch.setattr("clnet.sklearn.mlp.fit_stochastic", counted(0))
    monkeypatch.setattr("clnet.sklearn.mlp.fit_lbfgs", counted(1))
    return found


def compare(grid, alone, model=None, singles=0, x=X, y=Y, **options):
    """Compare with scikit-learn's search; `singles` candidates train one by one."""
    estimator = MLPClassifier(**FEW) if model is None else model
    options = {"cv": 2, "return_train_score": True, **options}
    ours = GridSearchCV(estimator, grid, **options).fit(x, y)
    fits = 1 + singles * ours.n_splits_  # the last one is the best on all samples
    assert len(alone) == fits
    theirs = model_selection.GridSearchCV(estimator, grid, **options).fit(x, y)
    found, expected = ours.cv_results_, theirs.cv_results_
    assert found.keys() == expected.keys()
    assert found["params"] == expected["params"]
    for name in expected:
        if name.endswith("_score"):
            np.testing.assert_allclose(found[name], expected[name], 1e-4, 1e-6)
        if name.startswith("rank"):
            np.testing.assert_array_equal(found[name], expected[name])
        if name == "mean_fit_time":
            assert (found[name] > 0).all()
    assert ours.best_index_ == theirs.best_index_
    assert ours.best_params_ == theirs.best_params_
    assert ours.best_score_ == pytest.approx(theirs.best_score_, rel=1e-4)
    for one, other in zip(
        ours.best_estimator_.coefs_, theirs.best_estimator_.coefs_, strict=True
    ):
        np.testing.assert_array_equal(one, other)
    return ours


RATES = {"learning_rate_init": [1e-3, 0.05]}
REGRESSION = {"model": MLPRegressor(**FEW), "x": X_REGRESSION, "y": Y_REGRESSION}
THIRDS = np.arange(len(X)) % 3
SEARCHES = {
    "a classifier": ({"alpha": [0, 0.1], "solver": ["adam", "sgd"], **RATES}, {}),
    "shapes and activations": (
        {"hidden_layer_sizes": [4, (6, 5)], "activation": ["tanh", "relu"],
         "batch_size": [20, "auto"]}, {},
    ),
    "dropout": (
        {"dropout": [0, 0.1, 0.4], "hidden_layer_sizes": [8, (12, 6)]}, {},
    ),
    "a regressor": (
        [{"learning_rate_init": [1e-3, 0.02], "loss": ["squared_error", "huber"]},
         {"momentum": [0, 0.5], "solver": ["sgd"], "alpha": [1e-3]}], REGRESSION,
    ),
    "two classes": (RATES, {"y": Y > 0}),
    "strings": (RATES, {"y": np.array(["a", "b", "c"])[Y]}),
    "labels": (RATES, {"y": np.stack([Y > 0, Y == 1], axis=1).astype(int)}),
    "candidates that train alone": (
        [{"early_stopping": [True]}, {"solver": ["lbfgs"]},
         {"solver": ["sgd"], "learning_rate": ["adaptive", "invscaling"]},
         {"class_weight": ["balanced"]}, {"dtype": ["float64"]}, {"alpha": [0.1]}],
        {"singles": 6},
    ),
    "sparse inputs, which train alone": (
        {"alpha": [0.1, 0]}, {"singles": 2, "x": scipy.sparse.csr_array(X)},
    ),
    "lists": ({"alpha": [0.1, 0]}, {"x": X.tolist(), "y": Y.tolist()}),
    "folds by masks": (
        {"alpha": [0, 1]}, {"cv": [(k != THIRDS, k == THIRDS) for k in (0, 1)]},
    ),
    "several scores": (
        RATES, {"scoring": ["accuracy", "neg_log_loss"], "refit": "neg_log_loss"},
    ),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_is_scikit_learns(name, alone):
    grid, options = SEARCHES[name]
    compare(grid, alone, **options)


def test_estimators_keep_their_dropout(alone):
    fits = [
        together.Fit(MLPClassifier(dropout=share, **FEW), np.arange(150), X, Y)
        for share in (0.0, 0.2, 0.5, 0.2)
    ]
    together.fit_together(fits, len(X), share=True)
    networks = [one.estimator.network_ for one in fits]
    assert [one.layers[0].dropout for one in networks] == [0.0, 0.2, 0.5, 0.2]
    assert networks[1] is networks[3]
    assert not alone


def test_the_stop_rule_stops_each_by_itself(alone):
    """Also where the penalty has a part in the loss."""
    model = MLPClassifier(
        random_state=1, max_iter=400, n_iter_no_change=3, tol=1e-3,
        learning_rate_init=0.02,
    )
    fits = [
        together.Fit(clone(model).set_params(alpha=alpha), np.arange(n), X[:n], Y[:n])
        for alpha in (0, 1.0) for n in (120, 150)
    ]
    together.fit_together(fits, len(X))
    for one in fits:
        expected = clone(one.estimator).fit(one.X, one.y)
        assert 3 < one.estimator.n_iter_ == expected.n_iter_ < 400
        np.testing.assert_allclose(
            one.estimator.loss_curve_, expected.loss_curve_, rtol=1e-4
        )
        np.testing.assert_allclose(
            one.estimator.coefs_[0], expected.coefs_[0], rtol=1e-3, atol=1e-4
        )
    assert len({one.estimator.n_iter_ for one in fits}) > 1


def test_tables(alone):
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame(X, columns=list("abcd"))
    found = compare({"alpha": [0.1, 0]}, alone, x=table, y=pd.Series(Y))
    assert list(found.feature_names_in_) == list("abcd")


def test_scoring_by_a_function():
    kept = []

    def score(estimator, x, y):
        kept.append((estimator, accuracy_score(y, estimator.predict(x))))
        return kept[-1][1]

    cv = [(np.arange(100), np.arange(50))]
    GridSearchCV(MLPClassifier(**FEW), RATES, cv=cv, scoring=score).fit(X, Y)
    for estimator, expected in kept:  # which are as they were
        assert accuracy_score(Y[:50], estimator.predict(X[:50])) == expected


def test_groups_of_samples(alone):
    groups = np.arange(len(X)) % 5
    options = {"cv": model_selection.GroupKFold(5)}
    ours, theirs = (
        of.GridSearchCV(MLPClassifier(**FEW), {"alpha": [0, 1]}, **options)
        .fit(X, Y, groups=groups) for of in (search, model_selection)
    )
    np.testing.assert_allclose(
        ours.cv_results_["split3_test_score"], theirs.cv_results_["split3_test_score"]
    )
    assert ours.n_splits_ == 5 and len(alone) == 1 + 1 + 2 * 5


def test_folds_that_are_read_once():
    splits = list(model_selection.KFold(3, shuffle=True, random_state=0).split(X))
    model, grid = MLPClassifier(**FEW), {"alpha": [0, 1]}
    ours = GridSearchCV(model, grid, cv=iter(splits)).fit(X, Y)
    theirs = model_selection.GridSearchCV(model, grid, cv=splits).fit(X, Y)
    np.testing.assert_allclose(
        ours.cv_results_["mean_test_score"], theirs.cv_results_["mean_test_score"]
    )


def test_an_unknown_device_fails_as_alone():
    with pytest.raises(DeviceError, match="no device"):
        GridSearchCV(
            MLPClassifier(**FEW, device="gone"), {"alpha": [0]}, error_score="raise"
        ).fit(X, Y)


def test_weights_train_alone(alone):
    found = GridSearchCV(MLPClassifier(**FEW), {"alpha": [0]}, cv=2)
    found.fit(X, Y, sample_weight=np.linspace(0.1, 2, len(X)))
    assert len(alone) == 3


@pytest.mark.filterwarnings("ignore:One or more of the test scores")
def test_a_failing_candidate_has_the_error_score(alone):
    grid = {"alpha": [0, -1]}
    for error_score in (np.nan, 0.25):
        found = GridSearchCV(MLPClassifier(**FEW), grid, cv=3, error_score=error_score)
        with pytest.warns(FitFailedWarning):
            found.fit(X, Y)
        np.testing.assert_array_equal(
            found.cv_results_["mean_test_score"][1], error_score
        )
    with pytest.raises(ValueError, match="alpha"):
        GridSearchCV(MLPClassifier(**FEW), grid, error_score="raise").fit(X, Y)


@pytest.mark.filterwarnings("ignore:One or more of the test scores")
@pytest.mark.filterwarnings("ignore:training diverged")
def test_a_training_that_overflows_fails_as_alone():
    grid = {"learning_rate_init": [0.01, 1e30], "solver": ["sgd"]}
    found = GridSearchCV(MLPRegressor(**FEW), grid, cv=3)
    with pytest.warns(FitFailedWarning, match="non-finite"):
        found.fit(X_REGRESSION, Y_REGRESSION)
    assert found.best_params_["learning_rate_init"] == 0.01


@pytest.mark.filterwarnings("default::sklearn.exceptions.ConvergenceWarning")
def test_the_warning_of_max_iter(alone):
    found = GridSearchCV(MLPClassifier(**FEW), {"alpha": [0]}, cv=2, refit=False)
    with pytest.warns(ConvergenceWarning, match=r"Maximum iterations \(30\)"):
        found.fit(X, Y)
    assert not alone


def test_a_random_search(alone):
    values = {"learning_rate_init": [1e-4, 1e-3, 1e-2, 1e-1], "alpha": [0, 1e-2]}
    options = {"n_iter": 5, "random_state": 3, "cv": 3}
    ours = RandomizedSearchCV(MLPClassifier(**FEW), values, **options).fit(X, Y)
    assert len(alone) == 1
    theirs = model_selection.RandomizedSearchCV(
        MLPClassifier(**FEW), values, **options
    ).fit(X, Y)
    assert ours.best_params_ == theirs.best_params_
    np.testing.assert_allclose(
        ours.cv_results_["mean_test_score"], theirs.cv_results_["mean_test_score"]
    )


def test_pipelines_are_searched_in_scikit_learns_way(alone):
    pipeline = make_pipeline(StandardScaler(), MLPClassifier(**FEW))
    found = GridSearchCV(pipeline, {"mlpclassifier__alpha": [0, 0.1]}, cv=3).fit(X, Y)
    assert len(alone) == 7
    assert found.best_index_ in (0, 1)


@pytest.mark.parametrize(("of", "model"), [
    (GridSearchCV, MLPClassifier), (RandomizedSearchCV, MLPRegressor),
])
def test_it_is_an_estimator(of, model):
    one = of(model(**FEW), {"alpha": [0, 1e-2]}, cv=2)
    if of is RandomizedSearchCV:
        one.set_params(n_iter=2)
    assert clone(one).get_params()["estimator__max_iter"] == 30
    assert is_classifier(one) == (model is MLPClassifier) != is_regressor(one)
    assert of.__name__ in repr(one)
    again = pickle.loads(pickle.dumps(one.fit(X, Y)))
    np.testing.assert_array_equal(again.predict(X), one.predict(X))
    assert again.score(X, Y) == one.score(X, Y)
    assert one.fit(X, Y).best_score_ == again.best_score_
    scores = model_selection.cross_val_score(one, X, Y, cv=2)
    assert scores.shape == (2,)


@pytest.mark.parametrize("grid", [
    {"neurons": [1]}, {"alpha": "small"}, {"hidden_layer_sizes": [(0,)]},
])
def test_wrong_grids(grid):
    with pytest.raises((ValueError, TypeError)) as raised:
        GridSearchCV(MLPClassifier(**FEW), grid, error_score="raise").fit(X, Y)
    with pytest.raises(type(raised.value)) as expected:
        model_selection.GridSearchCV(
            MLPClassifier(**FEW), grid, error_score="raise"
        ).fit(X, Y)
    assert str(raised.value) == str(expected.value)
