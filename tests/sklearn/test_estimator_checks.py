"""scikit-learn's own checks of estimators."""

from __future__ import annotations

from itertools import product

import pytest

pytest.importorskip("sklearn", "1.6")
from sklearn.utils.estimator_checks import parametrize_with_checks

from clnet.sklearn import MLPClassifier, MLPRegressor

pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning"
)
ESTIMATORS = [
    estimator(dtype=dtype)
    for estimator, dtype in product(
        (MLPClassifier, MLPRegressor), ("float64", "float32")
    )
]


@parametrize_with_checks(ESTIMATORS)
def test_a_check(estimator, check):
    check(estimator)
