"""The estimators beside scikit-learn's, and what they have beyond."""

import pickle

import numpy as np
import pytest

pytest.importorskip("sklearn", "1.7")
import scipy.sparse
from sklearn import neural_network
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.preprocessing import StandardScaler, scale

import clnet
from clnet import Dense, Network, Sparse
from clnet.nn.random import key, permuted
from clnet.sklearn import MLPClassifier, MLPRegressor, solvers
from clnet.training import group, plans

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
X, Y = load_iris(return_X_y=True)
X_REGRESSION, Y_REGRESSION = map(scale, load_diabetes(return_X_y=True))
TARGETS = {
    "classes": Y, "two classes": Y > 0, "strings": np.array(["a", "b", "c"])[Y],
    "labels": np.stack([Y > 0, Y == 1], axis=1).astype(int),
    "numbers": X[:, 0], "rows of numbers": np.stack([X[:, 0], 2 * X[:, 1]], axis=1),
}
WEIGHTS = np.random.default_rng(0).uniform(0.1, 3, len(X))
WEIGHTINGS = [
    pytest.param(WEIGHTS, id="weighted"),
    pytest.param(None, id="", marks=pytest.mark.sweep),
]


def pair(target, **options):
    """Return our estimator and scikit-learn's, for a kind of target."""
    kind = "MLPRegressor" if "numbers" in target else "MLPClassifier"
    options = {
        "random_state": 0, "max_iter": 20, "shuffle": False, "hidden_layer_sizes": 20,
        **options,
    }
    ours = getattr(clnet.sklearn, kind)(dtype="float64", **options)
    return ours, getattr(neural_network, kind)(**options)


def assert_alike(ours, theirs, rtol=1e-7):
    for name in ("coefs_", "intercepts_"):
        pairs = zip(getattr(ours, name), getattr(theirs, name), strict=True)
        for found, expected in pairs:
            np.testing.assert_allclose(found, expected, rtol, rtol)
    np.testing.assert_allclose(ours.loss_, theirs.loss_, rtol)
    curves = [getattr(one, "loss_curve_", []) for one in (ours, theirs)]
    np.testing.assert_allclose(*curves, rtol)
    names = "n_iter_", "t_", "n_outputs_", "n_layers_", "out_activation_"
    for name in names:
        assert getattr(ours, name) == getattr(theirs, name)


def fitted_alike(target, x=X, weights=None, rtol=1e-7, **options):
    """Return both estimators, which are fitted and alike."""
    ours, theirs = pair(target, **options)
    for one in (ours, theirs):
        one.fit(x, TARGETS[target], sample_weight=weights)
    assert_alike(ours, theirs, rtol)
    return ours, theirs


@pytest.mark.parametrize("weights", WEIGHTINGS)
@pytest.mark.parametrize("target", TARGETS)
def test_a_step_is_scikit_learns(target, weights):
    ours, theirs = fitted_alike(
        target, weights=weights, solver="sgd", learning_rate_init=0.01, alpha=0.1
    )
    np.testing.assert_array_equal(ours.predict(X).dtype, theirs.predict(X).dtype)


@pytest.mark.parametrize("weights", WEIGHTINGS)
@pytest.mark.parametrize("target", [
    # scikit-learn's loss of several numbers is a mean, and its gradients are a sum's.
    name for name in TARGETS if name != "rows of numbers"
])
def test_lbfgs_is_scikit_learns(target, weights):
    # Rounding errors grow from step to step.
    fitted_alike(target, weights=weights, rtol=1e-5, solver="lbfgs", alpha=0.1)


@pytest.mark.parametrize(("rate", "nesterov"), [
    ("adaptive", True), ("invscaling", False),
    pytest.param("constant", True, marks=pytest.mark.sweep),
    pytest.param("adaptive", False, marks=pytest.mark.sweep),
    pytest.param("invscaling", True, marks=pytest.mark.sweep),
])
def test_schedules_are_scikit_learns(rate, nesterov):
    ours, theirs = fitted_alike(
        "classes", solver="sgd", learning_rate=rate, batch_size=50, tol=1e-2, alpha=0,
        nesterovs_momentum=nesterov, n_iter_no_change=3, max_iter=60,
    )
    assert ours._optimizer.learning_rate == theirs._optimizer.learning_rate


def test_shuffled_mini_batches_are_scikit_learns(monkeypatch):
    ours, theirs = pair(
        "numbers", solver="sgd", shuffle=True, batch_size=40, alpha=0, tol=0
    )
    ours.fit(X, X[:, 0])
    seed, epochs = ours._optimizer.state.seed, iter(range(ours.n_iter_))

    def clnets(order, random_state):
        return permuted(np.arange(len(order)), len(order), key(seed, next(epochs)))

    of_theirs = neural_network._multilayer_perceptron
    monkeypatch.setattr(of_theirs, "shuffle", clnets)
    assert_alike(ours, theirs.fit(X, X[:, 0]))


@pytest.mark.parametrize("target", ["two classes", "numbers"])
def test_early_stopping_is_scikit_learns(target):
    ours, theirs = fitted_alike(
        target, solver="sgd", learning_rate_init=0.1, early_stopping=True, alpha=0,
        batch_size=45, n_iter_no_change=3,
    )
    np.testing.assert_allclose(ours.validation_scores_, theirs.validation_scores_)
    assert ours.best_validation_score_ == pytest.approx(theirs.best_validation_score_)


def test_a_warm_start_that_finds_no_better_score_restores_the_parameters_before():
    found = MLPRegressor(
        early_stopping=True, random_state=0, max_iter=20, learning_rate_init=0.1
    ).fit(X, X[:, 0])
    before, best = found.network_.parameters, found.best_validation_score_
    found.set_params(warm_start=True, learning_rate_init=9.0, max_iter=3)
    found.fit(X, X[:, 0])
    assert found.best_validation_score_ == best
    np.testing.assert_array_equal(found.network_.parameters, before)


def test_parameters_and_defaults_are_scikit_learns():
    for name in ("MLPClassifier", "MLPRegressor"):
        ours = getattr(clnet.sklearn, name)().get_params()
        theirs = getattr(neural_network, name)().get_params()
        assert theirs == {name: ours[name] for name in theirs}
        assert set(ours) - set(theirs) <= {
            "class_weight", "device", "dtype", "dropout", "loss", "network",
            "optimiser", "precision",
        }


@pytest.mark.parametrize("solver", ["adam", "sgd", "lbfgs"])
def test_a_sparse_matrix_is_dense_in_parts_alone(monkeypatch, solver):
    rows = []
    toarray = scipy.sparse.csr_matrix.toarray

    def counted(self, *arguments, **options):
        if self.shape[1] == X.shape[1]:  # not of labels, which scikit-learn makes dense
            rows.append(self.shape[0])
        return toarray(self, *arguments, **options)

    monkeypatch.setattr(solvers, "CHUNK_BYTES", 64 * X.shape[1] * 8)
    monkeypatch.setattr(solvers, "BUFFER", 0)
    options = {"solver": solver, "batch_size": 32, "max_iter": 5, "random_state": 0,
               "dtype": "float64", "hidden_layer_sizes": 10}
    dense = MLPClassifier(**options).fit(X, Y, sample_weight=WEIGHTS)
    monkeypatch.setattr(scipy.sparse.csr_matrix, "toarray", counted)
    matrix = scipy.sparse.csr_matrix(X)
    found = MLPClassifier(**options).fit(matrix, Y, sample_weight=WEIGHTS)
    np.testing.assert_allclose(
        found.predict_proba(matrix), dense.predict_proba(X), 1e-6
    )
    assert rows
    assert max(rows) <= 64


@pytest.mark.parametrize("batch", [1, 8])
def test_weights_of_a_sparse_matrix_are_those_of_the_whole_set(monkeypatch, batch):
    """In each part that is dense at a time, also where all of them are 0."""
    monkeypatch.setattr(solvers, "CHUNK_BYTES", 8 * X.shape[1] * 8)
    monkeypatch.setattr(solvers, "BUFFER", 0)
    x, y = X[:60], Y[:60]
    weights = WEIGHTS[:60] * np.linspace(1, 9, 60)
    weights[16:40] = 0
    options = {"solver": "sgd", "batch_size": batch, "max_iter": 3, "random_state": 0,
               "dtype": "float64", "hidden_layer_sizes": 10, "shuffle": False}
    dense, found = (
        MLPClassifier(**options).fit(matrix, y, sample_weight=weights)
        for matrix in (x, scipy.sparse.csr_matrix(x))
    )
    np.testing.assert_allclose(found.predict_proba(x), dense.predict_proba(x), 1e-6)
    np.testing.assert_allclose(found.loss_curve_, dense.loss_curve_, 1e-9)


@pytest.mark.parametrize("target", ["classes", "numbers"])
def test_steps_on_a_wide_sparse_matrix_are_scikit_learns(target):
    matrix = scipy.sparse.random(len(X), 1500, 0.01, "csr", random_state=0)
    fitted_alike(
        target, matrix, solver="sgd", learning_rate_init=0.01, alpha=0.0, batch_size=50
    )


@pytest.mark.parametrize("solver", ["adam", "sgd", "lbfgs"])
def test_a_wide_sparse_matrix_stays_sparse(monkeypatch, solver):
    x = scipy.sparse.random(80, 1500, 0.01, "csr", random_state=0)
    y = np.arange(80) % 3
    options = {"solver": solver, "batch_size": 32, "max_iter": 4, "random_state": 0,
               "dtype": "float64", "hidden_layer_sizes": 10}
    dense = MLPClassifier(**options).fit(x.toarray(), y)
    expected = dense.predict_proba(x.toarray())

    def made_dense(*arguments, **options):
        raise AssertionError("the matrix becomes dense")

    monkeypatch.setattr(scipy.sparse.csr_matrix, "toarray", made_dense)
    found = MLPClassifier(**options).fit(x, y)
    monkeypatch.undo()
    np.testing.assert_allclose(found.loss_, dense.loss_, 1e-9)
    np.testing.assert_allclose(found.predict_proba(x), expected, 1e-6)


def test_a_partial_fit_keeps_plan_and_memory(monkeypatch):
    estimator = MLPClassifier(random_state=0).partial_fit(X, Y, classes=[0, 1, 2])
    estimator.partial_fit(X, Y)

    def made(*arguments, **options):
        raise AssertionError("made anew")

    monkeypatch.setattr(group, "Replay", made)
    plan, planned = plans.plan_training, []
    monkeypatch.setattr(
        plans, "plan_training",
        lambda *a, **o: planned.append(plan(*a, **o)) or planned[-1],
    )
    for _ in range(2):
        estimator.partial_fit(X, Y)
    assert planned[0].steps is planned[1].steps
    assert len(estimator.loss_curve_) == 4
    assert estimator.t_ == 4 * len(X)


@pytest.mark.parametrize("solver", ["adam", "sgd"])
def test_epochs_one_by_one_are_a_fit(solver):
    options = {"solver": solver, "batch_size": 40, "random_state": 0, "tol": 0.0}
    whole = MLPClassifier(max_iter=6, n_iter_no_change=9, **options).fit(X, Y)
    parts = MLPClassifier(**options)
    for _ in range(6):
        parts.partial_fit(X, Y, classes=[0, 1, 2])
    for found, expected in zip(parts.coefs_, whole.coefs_, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert parts.loss_curve_ == whole.loss_curve_


def test_a_pickled_estimator_is_small_and_trains_on_with_the_same_bits():
    estimator = MLPClassifier(random_state=0).partial_fit(X, Y, classes=[0, 1, 2])
    estimator.predict(X)
    content = pickle.dumps(estimator)
    weights = estimator.network_.parameters.nbytes
    assert len(content) < 3 * weights + 10_000  # and two moments each
    other = pickle.loads(content)
    np.testing.assert_array_equal(other.predict_proba(X), estimator.predict_proba(X))
    for one in (estimator, other):
        one.partial_fit(X, Y)
    np.testing.assert_array_equal(other.coefs_[0], estimator.coefs_[0])


def test_weights_may_be_replaced():
    estimator = MLPRegressor(max_iter=2, hidden_layer_sizes=5).fit(X, X[:, 0])
    estimator.coefs_[1] = np.zeros((5, 1))
    estimator.intercepts_ = [np.zeros(5), np.array([7.0])]
    np.testing.assert_array_equal(estimator.predict(X), np.full(len(X), 7, np.float32))
    with pytest.raises(ValueError, match="read-only"):
        estimator.coefs_[0][0, 0] = 1
    with pytest.raises(clnet.InputError, match="shape"):
        estimator.coefs_[0] = np.zeros((3, 5))
    estimator.coefs_ = [np.ones((4, 5)), np.ones((5, 1))]
    assert [one.sum() for one in estimator.coefs_] == [20, 5]


def test_a_network_of_sparse_layers():
    network = Network(4, [
        Sparse(30, "tanh", density=0.3), Dense(3, "softmax")
    ], seed=1)
    before = network.parameters
    estimator = MLPClassifier(network=network, max_iter=200, learning_rate_init=0.01)
    estimator.fit(scale(X), Y)
    assert estimator.score(scale(X), Y) > 0.9
    np.testing.assert_array_equal(network.parameters, before)
    assert estimator.network_.layers == network.layers
    again = clone(estimator).fit(scale(X), Y)
    assert again.score(scale(X), Y) > 0.9


@pytest.mark.parametrize(("network", "sentence"), [
    (Network.mlp([4, 3], "identity"), "network's last layer is identity, but these "),
    (Network.mlp([4, 2], "softmax"), "network has 4 inputs and 2 outputs, but the da"),
])
def test_a_network_that_does_not_fit_is_refused(network, sentence):
    with pytest.raises(ValueError, match=sentence):
        MLPClassifier(network=network).fit(X, Y)


@pytest.mark.parametrize("options", [
    {"optimiser": "rprop", "device": "cpu", "precision": "medium"},
    {"dropout": 0.1, "activation": "gelu"},
    pytest.param(
        {"optimiser": clnet.optimisers.AdamW(1e-2)}, marks=pytest.mark.sweep
    ),
], ids=repr)
def test_parameters_of_clnet(options):
    x = scale(X)
    found = MLPClassifier(
        random_state=0, max_iter=60, learning_rate_init=0.01, **options
    ).fit(x, Y)
    assert found.score(x, Y) > 0.9


def test_a_loss_of_clnet():
    found = MLPRegressor(
        loss="mae", max_iter=60, learning_rate_init=0.01, random_state=0
    ).fit(X_REGRESSION, Y_REGRESSION)
    assert found.score(X_REGRESSION, Y_REGRESSION) > 0.3


def test_counts_by_poissons_loss():
    rng = np.random.default_rng(0)
    x = rng.normal(0, 1, (300, 3))
    rate = np.exp(x[:, 0] / 2 + x[:, 1] / 3)
    options = {"loss": "poisson", "hidden_layer_sizes": (16,), "random_state": 0}
    for solver in ("adam", "lbfgs"):
        model = MLPRegressor(solver=solver, alpha=1.0, **options)
        y = model.fit(x, rng.poisson(rate)).predict(x)
        assert y.min() > 0
        assert np.corrcoef(y, rate)[0, 1] > 0.8


def test_class_weights_are_weights_of_samples():
    options = {"random_state": 0, "max_iter": 5}
    weights = {0: 1.0, 1: 3.0, 2: 0.5}
    one = MLPClassifier(class_weight=weights, **options).fit(X, Y, WEIGHTS)
    other = MLPClassifier(**options).fit(
        X, Y, WEIGHTS * np.array([weights[y] for y in Y])
    )
    np.testing.assert_array_equal(one.predict_proba(X), other.predict_proba(X))
    balanced = MLPClassifier(class_weight="balanced")
    with pytest.raises(ValueError, match="class_weight 'balanced' is not supported"):
        balanced.partial_fit(X, Y, classes=[0, 1, 2])


@pytest.mark.parametrize(("options", "weights", "sentence"), [
    ({"dropout": 0.5, "solver": "lbfgs"}, None, "dropout needs a stochastic solver"),
    ({"activation": "relo"}, None, "activation 'relo'"),
    ({"loss": "poisson"}, None, "loss poisson does not fit a last layer of softmax"),
    ({"optimiser": "lbfgs"}, None, "optimiser 'lbfgs' is unclear"),
    ({"activation": 3}, None, "The 'activation' parameter"),
    ({"device": 3}, None, "The 'device' parameter"),
    ({}, np.zeros(len(X)), "sample_weight|weights"),
    ({"hidden_layer_sizes": (3, 0)}, None, "hidden_layer_sizes must be > 0"),
    ({"loss": "huber", "activation": "tanh"}, None, "does not fit a last layer of so"),
    ({"dropout": 0.5, "network": Network.mlp([4, 3], "softmax")}, None, "dropout of"),
])
def test_bad_arguments_are_refused_in_a_sentence(options, weights, sentence):
    with pytest.raises(ValueError, match=sentence):
        MLPClassifier(**options).fit(X, Y, weights)


def test_another_shape_is_no_warm_start():
    estimator = MLPClassifier(max_iter=1, warm_start=True).fit(X, Y)
    estimator.set_params(hidden_layer_sizes=(5, 6))
    with pytest.raises(ValueError, match=r"\[100\], but hidden.* is \[5, 6\]"):
        estimator.fit(X, Y)
    assert estimator.set_params(warm_start=False).fit(X, Y).n_layers_ == 4


def test_what_float32_cannot_hold_is_refused():
    with pytest.raises(ValueError, match="x holds inf at"):
        MLPClassifier().fit(X * 1e300, Y)


def test_an_unfitted_estimator_says_so():
    assert not hasattr(MLPClassifier(), "coefs_")
    with pytest.raises(NotFittedError):
        MLPClassifier().predict(X)


def test_no_convergence_is_told():
    with pytest.warns(ConvergenceWarning, match="Maximum iterations .3. reached"):
        MLPClassifier(max_iter=3).fit(X, Y)
    with pytest.warns(ConvergenceWarning, match="lbfgs failed to converge after 3"):
        MLPClassifier(solver="lbfgs", max_iter=3).fit(X, Y)


def test_lbfgs_that_learns_the_mean_alone_says_so():
    """Targets far from 0 saturate a sigmoid at once: SciPy takes that for the end."""
    rng = np.random.default_rng(0)
    x = rng.normal(0, 1, (100, 3))
    t = 1e6 + 1e4 * x.sum(axis=1)
    model = MLPRegressor(
        hidden_layer_sizes=(20,), activation="logistic", solver="lbfgs", random_state=1,
        dtype="float32",
    )
    with pytest.warns(ConvergenceWarning, match=r"lbfgs ended at .*: scale the target"):
        model.fit(x, t)
    assert model.score(x, t) <= 0.01


def test_dtypes():
    for dtype, of_x, expected in (
        (None, "float64", "float64"), (None, "float32", "float32"),
        ("float32", "float64", "float32"),
    ):
        found = MLPRegressor(dtype=dtype, max_iter=1, alpha=0)
        found.fit(X.astype(of_x), X[:, 0])
        assert found.coefs_[0].dtype == expected
        assert found.predict(X.astype(of_x)).dtype == expected


def test_an_interrupted_training_keeps_its_weights(monkeypatch):
    ended = solvers.Progress.ended

    def interrupted(self, *arguments):
        if self._estimator.n_iter_ == 3:
            raise KeyboardInterrupt
        return ended(self, *arguments)

    monkeypatch.setattr(solvers.Progress, "ended", interrupted)
    with pytest.warns(UserWarning, match="Training interrupted by user."):
        found = MLPClassifier(random_state=0).fit(X, Y)
    assert found.n_iter_ == 3
    assert found.predict(X).shape == Y.shape


def test_accuracy_on_real_data():
    x, y = load_breast_cancer(return_X_y=True)
    x = StandardScaler().fit_transform(x)
    found = MLPClassifier(random_state=0).fit(x[::2], y[::2])
    assert found.score(x[1::2], y[1::2]) > 0.95


def test_sparse_labels_are_those_of_the_array():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4))
    y = (x[:, :3] > 0).astype(int)
    models = [MLPClassifier((5,), max_iter=5, random_state=0) for _ in range(2)]
    with pytest.warns(ConvergenceWarning):
        dense, given = (model.fit(x, labels) for model, labels in zip(
            models, (y, scipy.sparse.csr_matrix(y)), strict=True))
    assert np.array_equal(dense.predict(x), given.predict(x))
    assert given.score(x, scipy.sparse.csr_matrix(y)) == dense.score(x, y)
