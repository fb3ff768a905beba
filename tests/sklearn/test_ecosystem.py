"""The estimators within scikit-learn's and joblib's tools, on real data."""

import sys

import numpy as np
import pytest

pytest.importorskip("sklearn", "1.6")
pytest.importorskip("pandas")
import joblib
import sklearn
from children import run_python
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.ensemble import StackingClassifier
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from clnet.sklearn import MLPClassifier, MLPRegressor

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
X, Y = load_iris(return_X_y=True)
# Without a penalty folds of all sizes share kernels.
FEW = {"random_state": 0, "max_iter": 40, "learning_rate_init": 0.01, "alpha": 0}


def scaled(**options):
    return make_pipeline(StandardScaler(), MLPClassifier(**FEW, **options))


def test_grid_search():
    search = GridSearchCV(
        scaled(), {"mlpclassifier__hidden_layer_sizes": [(5,), (20, 20)]}, cv=3
    )
    assert search.fit(X, Y).best_score_ > 0.9
    assert search.best_estimator_.predict(X).shape == Y.shape


def test_pipeline_of_a_table_with_names():
    table = load_breast_cancer(as_frame=True)
    found = scaled().fit(table.data, table.target)
    assert found.score(table.data, table.target) > 0.95
    one = MLPRegressor(max_iter=2, alpha=0).fit(table.data, table.target)
    assert list(one.feature_names_in_) == list(table.data.columns)
    with pytest.raises(ValueError, match="feature names"):
        one.predict(table.data[table.data.columns[::-1]])


def test_column_transformer():
    table = load_diabetes(as_frame=True, scaled=False).frame
    table["sex"] = table["sex"].map({1.0: "female", 2.0: "male"})
    x, y = table.drop(columns="target"), table["target"] / 100
    columns = ColumnTransformer(
        [("one", OneHotEncoder(), ["sex"])], remainder=StandardScaler(),
        sparse_threshold=1,  # which gives a sparse matrix
    )
    found = make_pipeline(columns, MLPRegressor(**FEW)).fit(x, y)
    assert found.score(x, y) > 0.45


def test_calibrated_classifier():
    x, y = load_breast_cancer(return_X_y=True)
    found = CalibratedClassifierCV(scaled(), cv=3).fit(x[::2], y[::2])
    assert found.score(x[1::2], y[1::2]) > 0.93
    probabilities = found.predict_proba(x[1::2])
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, 1e-6)


def test_permutation_importance():
    found = permutation_importance(
        scaled().fit(X, Y), X, Y, n_repeats=3, random_state=0
    )
    assert found.importances_mean[2:].min() > found.importances_mean[:2].max()


def test_stacking_classifier():
    found = StackingClassifier(
        [("network", scaled()), ("linear", LogisticRegression(max_iter=500))], cv=3
    )
    assert found.fit(X, Y).score(X, Y) > 0.93


def test_metadata_routing():
    weights = np.random.default_rng(0).uniform(0.5, 2, len(X))
    with sklearn.config_context(enable_metadata_routing=True):
        one = MLPClassifier(**FEW).set_fit_request(sample_weight=True)
        found = make_pipeline(
            StandardScaler().set_fit_request(sample_weight=False), one
        )
        found.fit(X, Y, sample_weight=weights)
    x = StandardScaler().fit_transform(X)
    expected = MLPClassifier(**FEW).fit(x, Y, sample_weight=weights)
    np.testing.assert_array_equal(found[-1].coefs_[0], expected.coefs_[0])


@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_joblib(backend):
    expected = cross_val_score(scaled(), X, Y, cv=3)
    with joblib.parallel_config(backend, n_jobs=2):
        found = cross_val_score(scaled(), X, Y, cv=3)
    np.testing.assert_array_equal(found, expected)
    assert expected.min() > 0.85


FORK = """
import joblib, multiprocessing, os, sys
from sklearn.datasets import load_iris
from clnet.errors import DeviceError
from clnet.sklearn import MLPClassifier
multiprocessing.set_start_method("fork")  # Python's default before 3.14
X, Y = load_iris(return_X_y=True)
estimator = MLPClassifier(max_iter=2, alpha=0)
def fit():  # returns its error: joblib may hang where tasks raise, as it kills workers
    # Before OpenCL is loaded: processes that share a cold cache of PoCL may fail.
    cache = os.environ["POCL_CACHE_DIR"] = os.path.join(sys.argv[2], str(os.getpid()))
    os.makedirs(cache, exist_ok=True)
    try:
        return estimator.fit(X, Y).n_iter_
    except DeviceError as error:
        return error
if sys.argv[1] == "used":
    fit()
with joblib.parallel_config("multiprocessing", n_jobs=2):
    print(*joblib.Parallel()(joblib.delayed(fit)() for _ in range(2)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="joblib forks on Linux")
@pytest.mark.parametrize(("before", "expected"), [
    ("unused", "2 2"),
    ("used", "this process was forked from one that had used OpenCL"),
])
def test_forks_of_joblib(before, expected, tmp_path):
    done = run_python("-W", "ignore", "-c", FORK, before, tmp_path)
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout
