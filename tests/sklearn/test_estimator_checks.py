"""scikit-learn's own checks of estimators."""

from __future__ import annotations

import pytest

pytest.importorskip("sklearn", "1.6")
import sklearn
from sklearn.utils.estimator_checks import (
    estimator_checks_generator,
    parametrize_with_checks,
)

from clnet.sklearn import MLPClassifier, MLPRegressor

pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning"
)
ESTIMATORS = [
    estimator(dtype=dtype)
    for dtype in ("float64", "float32") for estimator in (MLPClassifier, MLPRegressor)
]
LEAST = {MLPClassifier: 68, MLPRegressor: 60}  # checks, by scikit-learn 1.9.1
sklearn_version = tuple(map(int, sklearn.__version__.split(".")[:2]))
REASON = "it compares sums of weighted and of repeated samples to 1e-7"


def expected_failures(estimator):
    """The checks that float32 cannot pass, with the reason."""
    names = "dense_data", "sparse_data"
    return {} if estimator.dtype == "float64" else {
        f"check_sample_weight_equivalence_on_{name}": REASON for name in names
    }


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=expected_failures)
def test_a_check(estimator, check):
    check(estimator)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_all_checks_are_collected(estimator):
    if sklearn_version < (1, 9):
        pytest.skip("earlier versions have fewer checks")
    found = list(estimator_checks_generator(estimator))
    assert len(found) >= LEAST[type(estimator)]
