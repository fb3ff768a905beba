"""scikit-learn's base classes, with the types that it does not ship."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    E = TypeVar("E", bound="BaseEstimator")

    class BaseEstimator:
        """Parameters by name, and whatever else scikit-learn sets."""

        n_features_in_: int

        @classmethod
        def _get_param_names(cls) -> list[str]: ...

        def __getattr__(self, name: str) -> Any: ...

        def get_params(self, deep: bool = True) -> dict[str, Any]:
            """Return the parameters by name."""
            ...

        def set_params(self: E, **params: Any) -> E:
            """Set parameters by name."""
            ...

        def __sklearn_tags__(self) -> Any: ...

    class ClassifierMixin:
        """The accuracy of a classifier."""

        def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
            """Return the accuracy."""
            ...

    class RegressorMixin:
        """The R² of a regressor."""

        def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
            """Return R²."""
            ...

    class Search(BaseEstimator):
        """The base of scikit-learn's searches."""

        estimator: Any

        def fit(self, X: Any, y: Any = None, **params: Any) -> Any:
            """Search."""
            ...

        def _run_search(
            self, evaluate_candidates: Any, *, callback_ctx: Any = None
        ) -> None: ...

        def _format_results(
            self, candidate_params: Any, n_splits: int, out: Any,
            more_results: Any = None,
        ) -> Any: ...

    class GridSearch(Search):
        """scikit-learn's `GridSearchCV`."""

        def __init__(
            self, estimator: Any, param_grid: Any, **options: Any
        ) -> None: ...

    class RandomizedSearch(Search):
        """scikit-learn's `RandomizedSearchCV`."""

        def __init__(
            self, estimator: Any, param_distributions: Any, **options: Any
        ) -> None: ...
else:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.model_selection import GridSearchCV as GridSearch
    from sklearn.model_selection import RandomizedSearchCV as RandomizedSearch
    from sklearn.model_selection._search import BaseSearchCV as Search

__all__ = [
    "BaseEstimator", "ClassifierMixin", "GridSearch", "RandomizedSearch",
    "RegressorMixin", "Search",
]
