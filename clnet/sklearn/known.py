"""Fits that a search knows already, as `together` has trained them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import joblib
from sklearn.exceptions import ConvergenceWarning

from clnet.sklearn.progress import unconverged

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

_known: ContextVar[dict[str, BaseEstimator]] = ContextVar("known")


@contextmanager
def known_fits() -> Iterator[dict[str, BaseEstimator]]:
    """Yield the estimators that are fitted already, by `fit_key`; none at first."""
    token = _known.set({})
    try:
        yield _known.get()
    finally:
        _known.reset(token)


def samples_key(X: Any, y: Any) -> str:
    """Return the key of samples."""
    return str(joblib.hash((X, y), hash_name="sha1"))  # twice as fast as md5


def fit_key(estimator: BaseEstimator, samples: str) -> str:
    """Return the key of a fit: of the parameters and of the samples' key."""
    parameters = estimator.get_params(deep=False)
    return str(joblib.hash((type(estimator).__name__, parameters, samples)))


def take_known_fit(estimator: BaseEstimator, X: Any, y: Any, weight: Any) -> bool:
    """Give an estimator the attributes of the same fit, and return whether it is known.

    It warns as that fit if ``max_iter`` has ended it.
    """
    known = _known.get({})
    if not known or weight is not None:
        return False
    fitted = known.get(fit_key(estimator, samples_key(X, y)))
    if fitted is None:
        return False
    vars(estimator).update(vars(fitted))
    parameters = vars(estimator).pop("_shared", None)
    if parameters is not None:
        estimator.network_.parameters = parameters
    if not estimator._converged:
        warnings.warn(
            unconverged(estimator.max_iter), ConvergenceWarning, stacklevel=3
        )
    return True
