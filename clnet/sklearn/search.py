"""`GridSearchCV` and `RandomizedSearchCV`, whose fits train side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import joblib
import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.model_selection import check_cv
from sklearn.utils import _safe_indexing

from clnet.sklearn.bases import GridSearch, RandomizedSearch, Search
from clnet.sklearn.known import fit_key, known_fits, samples_key
from clnet.sklearn.mlp import MLP
from clnet.sklearn.together import Fit, fit_together

ROUTED = frozenset({"groups"})  # parameters of `fit` that are the splitter's alone


class _Splits:
    """scikit-learn's splitter of y, which tells of X, y and the splits before use."""

    def __init__(
        self, splitter_of: Callable[[Any], Any], told: Callable[[Any, Any, Any], None]
    ) -> None:
        self._splitter_of, self._told = splitter_of, told

    def split(self, X: Any, y: Any = None, *groups: Any, **params: Any) -> Any:
        """Return the splits."""
        splits = list(self._splitter_of(y).split(X, y, *groups, **params))
        self._told(X, y, splits)
        return splits


class TogetherSearch(Search):
    """The part of both searches that trains the candidates of all folds together."""

    def fit(self, X: Any, y: Any = None, **params: Any) -> Any:
        """Score all candidates over the folds; train the best on all samples.

        Parameters
        ----------
        X, y, **params
            As for scikit-learn's search.

        Returns
        -------
        self
        """
        self._shares: list[float] = []
        ours = isinstance(self.estimator, MLP) and y is not None
        if not ours or params.keys() - ROUTED:
            return super().fit(X, y, **params)
        with known_fits() as self._fits, joblib.parallel_config("sequential"):
            try:
                return super().fit(X, y, **params)
            finally:
                del self._fits

    def _run_search(
        self, evaluate_candidates: Callable[..., Any], *, callback_ctx: Any = None
    ) -> None:
        # scikit-learn 1.9 has the callbacks' context, earlier versions have none.
        context = {} if callback_ctx is None else {"callback_ctx": callback_ctx}
        if not hasattr(self, "_fits"):
            super()._run_search(evaluate_candidates, **context)
            return

        def evaluate(
            candidates: Iterable[Any], cv: Any = None, *more: Any, **context: Any
        ) -> Any:
            listed = list(candidates)
            known = cv or getattr(self, "_checked_cv_orig", None)
            if known is None and isinstance(self.cv, Iterator):  # before 1.7: is spent
                return evaluate_candidates(listed, cv, *more, **context)
            splits = _Splits(
                lambda y: known or check_cv(
                    self.cv, y, classifier=is_classifier(self.estimator)
                ),
                lambda X, y, splits: self._fit_together(listed, X, y, splits),
            )
            return evaluate_candidates(listed, splits, *more, **context)

        super()._run_search(evaluate, **context)

    def _fit_together(
        self, candidates: list[dict[str, Any]], X: Any, y: Any, splits: Any
    ) -> None:
        numbers = np.arange(len(y))  # splits may be masks
        parts = [
            (numbers[rows], _safe_indexing(X, rows), _safe_indexing(y, rows))
            for rows, _ in splits
        ]
        of_parts = [samples_key(*part[1:]) for part in parts]
        fits, keys = [], []
        for candidate in candidates:
            for part, key in zip(parts, of_parts, strict=True):
                estimator = clone(self.estimator)
                estimator.set_params(**clone(candidate, safe=False))
                fits.append(Fit(estimator, *part))
                keys.append(fit_key(estimator, key))
        # scikit-learn's own scorers keep no estimator.
        share = self.scoring is None or isinstance(self.scoring, (str, list, tuple))
        fit_together(fits, len(y), share)
        for key, fit in zip(keys, fits, strict=True):
            if fit.seconds:
                self._fits[key] = fit.estimator
        self._shares += [fit.seconds for fit in fits]

    def _format_results(
        self, candidate_params: Any, n_splits: int, out: Any, more_results: Any = None
    ) -> Any:
        for result, seconds in zip(out, self._shares, strict=False):
            result["fit_time"] += seconds
        self._shares = [0.0] * len(out)
        return super()._format_results(candidate_params, n_splits, out, more_results)


class GridSearchCV(TogetherSearch, GridSearch):
    """scikit-learn's `GridSearchCV`, with all candidates and folds trained together.

    Parameters and attributes are those of `sklearn.model_selection.GridSearchCV`, and
    so are the scores, but for rounding.

    Parameters
    ----------
    estimator : MLPClassifier or MLPRegressor
        Of `clnet.sklearn`. Any other, also a pipeline, is searched in scikit-learn's
        way.
    n_jobs : int or None
        Processes for an estimator that is none of ours; else the search is one process,
        and the device's cores share the networks.

    Notes
    -----
    Candidates whose networks have the same layers, but for dropout, train as one
    `Population`: each fold is a list of rows, and no sample is copied. Those of other
    ``alpha``, ``solver``, ``batch_size`` or constants of the solver are kernels of
    their own, compiled once.

    One after the other, as in scikit-learn, train candidates with
    ``early_stopping=True``, ``solver="lbfgs"``, a ``learning_rate`` that is not
    constant, ``class_weight``, ``verbose`` or another dtype than float32;
    with sparse X, with parameters of ``fit`` besides ``groups``; those whose training
    overflows; and on devices other than CPUs. ``fit_time`` is a fit's equal share of
    the time that it trained with others.

    Examples
    --------
    >>> from clnet.sklearn import GridSearchCV, MLPClassifier
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = MLPClassifier((20,), max_iter=300, random_state=0)
    >>> search = GridSearchCV(model, {"learning_rate_init": [1e-5, 0.01]}, cv=3)
    >>> search.fit(X, y).best_params_
    {'learning_rate_init': 0.01}
    """


class RandomizedSearchCV(TogetherSearch, RandomizedSearch):
    """scikit-learn's `RandomizedSearchCV`, as `GridSearchCV` is scikit-learn's.

    Parameters and attributes are those of `sklearn.model_selection.RandomizedSearchCV`.

    Parameters
    ----------
    estimator, n_jobs
        As for `GridSearchCV`.
    """
