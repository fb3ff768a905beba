"""scikit-learn's own checks of estimators."""

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
SHORT = MLPClassifier(max_iter=100, alpha=0)  # few kernels: their builds take long
FLOAT32 = [MLPClassifier(), MLPRegressor()]
FLOAT64 = [MLPClassifier(dtype="float64"), MLPRegressor(dtype="float64")]
LEAST = {MLPClassifier: 68, MLPRegressor: 60}  # checks, by scikit-learn 1.9.1
sklearn_version = tuple(map(int, sklearn.__version__.split(".")[:2]))
REASON = "it compares sums of weighted and of repeated samples to 1e-7"


def expected_failures(estimator):
    """The checks that float32 cannot pass, with the reason."""
    return {
        f"check_sample_weight_equivalence_on_{name}": REASON
        for name in ("dense_data", "sparse_data")
    }


@parametrize_with_checks([SHORT], expected_failed_checks=expected_failures)
def test_a_check(estimator, check):
    check(estimator)


@pytest.mark.sweep
@parametrize_with_checks(FLOAT32, expected_failed_checks=expected_failures)
def test_a_check_in_float32(estimator, check):
    check(estimator)


@pytest.mark.sweep
@parametrize_with_checks(FLOAT64)
def test_a_check_in_float64(estimator, check):
    check(estimator)


@pytest.mark.skipif(sklearn_version < (1, 9), reason="earlier ones have fewer checks")
@pytest.mark.parametrize("estimator", [*FLOAT32, *FLOAT64], ids=repr)
def test_all_checks_are_collected(estimator):
    found = list(estimator_checks_generator(estimator))
    assert len(found) >= LEAST[type(estimator)]
