"""Estimators for scikit-learn's users: `MLPClassifier` and `MLPRegressor`.

They have the parameters, defaults, methods and attributes of those in
``sklearn.neural_network``, and compute by `clnet.Network`. This package imports
scikit-learn, and all of clnet but the command line. Start at ``estimators``;
``solvers`` has the training loops.
"""

from clnet.errors import ClnetError

try:
    from clnet.sklearn.estimators import MLPClassifier, MLPRegressor
except ModuleNotFoundError as _error:
    if _error.name is None or _error.name.split(".")[0] not in ("sklearn", "scipy"):
        raise
    raise ClnetError(
        f"clnet.sklearn needs scikit-learn, which is not installed ({_error}): "
        "pip install 'clnet[sklearn]'"
    ) from None

__all__ = ["MLPClassifier", "MLPRegressor"]
