"""`MLPClassifier` and `MLPRegressor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.preprocessing import LabelBinarizer
from sklearn.utils import column_or_1d
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import (
    _check_partial_fit_first_call,
    type_of_target,
    unique_labels,
)
from sklearn.utils.validation import validate_data

from clnet.checks import PRECISIONS, is_sparse
from clnet.nn.activations import SOFTMAX
from clnet.nn.losses import loss_function
from clnet.sklearn.bases import ClassifierMixin, RegressorMixin
from clnet.sklearn.mlp import MLP, Array, checked_sample_weight

if TYPE_CHECKING:
    from clnet.network import Network
    from clnet.nn.optimisers import Optimiser

OUTPUT_LOSSES = {
    "sigmoid": "binary_cross_entropy", SOFTMAX: "categorical_cross_entropy"
}


class MLPClassifier(ClassifierMixin, MLP):
    """A network for classes, with the interface of scikit-learn's `MLPClassifier`.

    Parameters and attributes that are not here are those of
    `sklearn.neural_network.MLPClassifier`.

    Parameters
    ----------
    activation : str
        One of scikit-learn's names, or any of clnet's for hidden layers.
    loss : str
        ``"log_loss"``, or a name of `clnet.nn.losses` that fits the last layer.
    class_weight : dict, "balanced" or None
        Factor of each class' loss, as in scikit-learn's linear classifiers.
    device : str or None
        As for `clnet.device`: a name, so that the estimator can go to other processes.
    dtype : {"float32", "float64"} or None
        Type of the weights and of the arithmetic; None: that of X, as in scikit-learn.
    precision : str
        As for `clnet.Network.compile`.
    dropout : float
        Share of the hidden layers' outputs that each step drops.
    optimiser : str, Optimiser or None
        A name or row of `clnet.optimisers`, with its own constants and batch size,
        instead of `solver` and its constants.
    network : Network or None
        The network to train a copy of, from its weights on, instead of one by
        `hidden_layer_sizes` and `activation`: with sparse or locally connected layers,
        or trained before. It keeps its dtype.

    Attributes
    ----------
    network_ : Network
        The network, which has all weights.

    Examples
    --------
    >>> from clnet.sklearn import MLPClassifier
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = MLPClassifier(
    ...     (20,), learning_rate_init=0.01, max_iter=500, random_state=0
    ... )
    >>> model.fit(X, y).score(X, y) > 0.9
    True
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **MLP._parameter_constraints,
        "class_weight": [dict, StrOptions({"balanced"}), None],
    }

    def __init__(
        self, hidden_layer_sizes: Any = (100,), activation: str = "relu", *,
        solver: str = "adam", alpha: float = 0.0001, batch_size: Any = "auto",
        learning_rate: str = "constant", learning_rate_init: float = 0.001,
        power_t: float = 0.5, max_iter: int = 200, shuffle: bool = True,
        random_state: Any = None, tol: float = 0.0001, verbose: Any = False,
        warm_start: bool = False, momentum: float = 0.9,
        nesterovs_momentum: bool = True, early_stopping: bool = False,
        validation_fraction: float = 0.1, beta_1: float = 0.9, beta_2: float = 0.999,
        epsilon: float = 1e-08, n_iter_no_change: float = 10, max_fun: int = 15000,
        loss: str = "log_loss", class_weight: Any = None, device: str | None = None,
        dtype: str | None = "float32", precision: str = PRECISIONS[0],
        dropout: float = 0.0, optimiser: str | Optimiser | None = None,
        network: Network | None = None,
    ) -> None:
        self._keep(locals())

    def _checked(
        self, X: Any, y: Any, incremental: bool, first: bool
    ) -> tuple[Any, Any, Array]:
        """Return X, y, and the targets [n_samples, n_outputs]: true or false."""
        X, y = validate_data(
            self, X, y, accept_sparse=["csr", "csc"], multi_output=True,
            dtype=(np.float64, np.float32), reset=first,
        )
        if is_sparse(y):  # labels of several classes a sample
            y = y.toarray()
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        if first and not (incremental and hasattr(self, "classes_")):
            self._label_binarizer = LabelBinarizer().fit(y)
            self.classes_: NDArray[Any] = self._label_binarizer.classes_
        else:
            classes = unique_labels(y)
            if incremental and len(np.setdiff1d(classes, self.classes_)):
                raise ValueError(
                    f"`y` has classes not in `self.classes_`. `self.classes_` has "
                    f"{self.classes_}. 'y' has {classes}."
                )
            if not incremental and set(classes) != set(self.classes_):
                raise ValueError(
                    "warm_start can only be used where `y` has the same classes as in "
                    f"the previous call to fit. Previously got {self.classes_}, `y` "
                    f"has {classes}"
                )
        targets = self._label_binarizer.transform(y).astype(bool)
        return X, y, targets.reshape(len(y), -1)

    def _weight(
        self, X: Any, y: Any, sample_weight: Any, incremental: bool
    ) -> Array | None:
        """Return the weights of samples, those of their classes included."""
        weight = checked_sample_weight(sample_weight, X)
        if self.class_weight is None:
            return weight
        if incremental and self.class_weight == "balanced":
            raise ValueError(
                "class_weight 'balanced' is not supported for partial_fit, which sees "
                "some samples alone: expected a dict, as of compute_class_weight"
            )
        of_classes: Array = compute_sample_weight(self.class_weight, y)
        return of_classes if weight is None else weight * of_classes

    def _last_activation(self) -> str:
        return SOFTMAX if self._label_binarizer.y_type_ == "multiclass" else "sigmoid"

    def _loss(self) -> str:
        if self.loss == "log_loss":
            return OUTPUT_LOSSES[self._last_activation()]
        return str(self.loss)

    def _labels(self, targets: Array) -> Array:
        labels: Array = self._label_binarizer.inverse_transform(targets)
        return labels

    def _decoded(self, y: Array) -> Array:
        return self._labels(y.ravel() if self.n_outputs_ == 1 else y)

    @available_if(MLP._has_partial_fit)  # type: ignore[untyped-decorator]
    def partial_fit(
        self, X: Any, y: Any, sample_weight: Any = None, classes: Any = None
    ) -> MLPClassifier:
        """Train for one epoch, and return the estimator.

        Parameters
        ----------
        X, y, sample_weight
            As for `fit`.
        classes : array_like, shape [n_classes], or None
            All classes; for the first call.
        """
        y = y.toarray() if is_sparse(y) else y
        if _check_partial_fit_first_call(self, classes):
            multilabel = type_of_target(y).startswith("multilabel")
            self._label_binarizer = LabelBinarizer().fit(y if multilabel else classes)
        self._fit(X, y, sample_weight, incremental=True)
        return self

    def predict_proba(self, X: Any) -> Array:
        """Return the classes' probabilities [n_samples, n_classes] for inputs."""
        y = self._checked_outputs(X)
        return np.hstack([1 - y, y]) if self.n_outputs_ == 1 else y

    def predict_log_proba(self, X: Any) -> Array:
        """Return the logarithms of `predict_proba`."""
        y = self.predict_proba(X)
        return np.asarray(np.log(y, out=y))

    def __sklearn_tags__(self) -> Any:
        """Say that samples may have several labels."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


class MLPRegressor(RegressorMixin, MLP):
    """A network for numbers, with the interface of scikit-learn's `MLPRegressor`.

    Parameters and attributes that are not here are those of
    `sklearn.neural_network.MLPRegressor`.

    Parameters
    ----------
    loss : str
        ``"squared_error"``, or a name of `clnet.nn.losses`.
    activation : str
        One of scikit-learn's names, or any of clnet's for hidden layers.
    device : str or None
        As for `clnet.device`: a name, so that the estimator can go to other processes.
    dtype : {"float32", "float64"} or None
        Type of the weights and of the arithmetic; None: that of X, as in scikit-learn.
    precision : str
        As for `clnet.Network.compile`.
    dropout : float
        Share of the hidden layers' outputs that each step drops.
    optimiser : str, Optimiser or None
        A name or row of `clnet.optimisers`, with its own constants and batch size,
        instead of `solver` and its constants.
    network : Network or None
        The network to train a copy of, from its weights on, instead of one by
        `hidden_layer_sizes` and `activation`: with sparse or locally connected layers,
        or trained before. It keeps its dtype.

    Attributes
    ----------
    network_ : Network
        The network, which has all weights.

    Examples
    --------
    >>> from clnet.sklearn import MLPRegressor
    >>> X = np.linspace(-1, 1, 200)[:, np.newaxis]
    >>> model = MLPRegressor(hidden_layer_sizes=(20,), solver="lbfgs", random_state=0)
    >>> model.fit(X, X[:, 0] ** 2).score(X, X[:, 0] ** 2) > 0.99
    True
    """

    def __init__(
        self, loss: str = "squared_error", hidden_layer_sizes: Any = (100,),
        activation: str = "relu", *, solver: str = "adam", alpha: float = 0.0001,
        batch_size: Any = "auto", learning_rate: str = "constant",
        learning_rate_init: float = 0.001, power_t: float = 0.5, max_iter: int = 200,
        shuffle: bool = True, random_state: Any = None, tol: float = 0.0001,
        verbose: Any = False, warm_start: bool = False, momentum: float = 0.9,
        nesterovs_momentum: bool = True, early_stopping: bool = False,
        validation_fraction: float = 0.1, beta_1: float = 0.9, beta_2: float = 0.999,
        epsilon: float = 1e-08, n_iter_no_change: float = 10, max_fun: int = 15000,
        device: str | None = None, dtype: str | None = "float32",
        precision: str = PRECISIONS[0], dropout: float = 0.0,
        optimiser: str | Optimiser | None = None, network: Network | None = None,
    ) -> None:
        self._keep(locals())

    def _checked(
        self, X: Any, y: Any, incremental: bool, first: bool
    ) -> tuple[Any, Any, Array]:
        """Return X, y, and the targets [n_samples, n_outputs]."""
        X, y = validate_data(
            self, X, y, accept_sparse=["csr", "csc"], multi_output=True, y_numeric=True,
            dtype=(np.float64, np.float32), reset=first,
        )
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        return X, y, y.reshape(len(y), -1)

    def _weight(
        self, X: Any, y: Any, sample_weight: Any, incremental: bool
    ) -> Array | None:
        return checked_sample_weight(sample_weight, X)

    def _last_activation(self) -> str:
        return loss_function(self.loss).activation or "identity"

    def _loss(self) -> str:
        return str(self.loss)

    def _labels(self, targets: Array) -> Array:
        return targets

    def _decoded(self, y: Array) -> Array:
        return y.ravel() if y.shape[1] == 1 else y

    @available_if(MLP._has_partial_fit)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> MLPRegressor:
        """Train for one epoch, and return the estimator; see `fit`."""
        self._fit(X, y, sample_weight, incremental=True)
        return self
