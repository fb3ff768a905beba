"""scikit-learn's base classes, with the types that it does not ship."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    E = TypeVar("E", bound="BaseEstimator")

    class BaseEstimator:
        """Parameters by name, and whatever else scikit-learn sets."""

        n_features_in_: int

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
else:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

__all__ = ["BaseEstimator", "ClassifierMixin", "RegressorMixin"]
