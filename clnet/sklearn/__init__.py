"""Estimators for scikit-learn's users: `MLPClassifier` and `MLPRegressor`.

They have the parameters, defaults, methods and attributes of those in
``sklearn.neural_network``, and compute by `clnet.Network`. `GridSearchCV` and
`RandomizedSearchCV` train all their candidates and folds side by side. This package
imports scikit-learn, and all of clnet but the command line. Start at ``estimators``;
``mlp`` is their base, ``solvers`` has the training loops, ``together`` that of many
estimators, ``progress`` their stop rules.
"""

from clnet.errors import ClnetError

try:
    from clnet.sklearn.estimators import MLPClassifier, MLPRegressor
    from clnet.sklearn.search import GridSearchCV, RandomizedSearchCV
except ModuleNotFoundError as _error:
    if _error.name is None or _error.name.split(".")[0] not in ("sklearn", "scipy"):
        raise
    raise ClnetError(
        f"clnet.sklearn needs scikit-learn, which is not installed ({_error}): "
        "pip install 'clnet[sklearn]'"
    ) from None

__all__ = ["GridSearchCV", "MLPClassifier", "MLPRegressor", "RandomizedSearchCV"]
