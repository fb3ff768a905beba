"""`MLPClassifier` and `MLPRegressor`."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from copy import copy
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import LabelBinarizer
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils._param_validation import Interval, Options, StrOptions
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import (
    _check_partial_fit_first_call,
    type_of_target,
    unique_labels,
)
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
    validate_data,
)

from clnet.checks import PRECISIONS, is_sparse
from clnet.network import Network
from clnet.nn.activations import SOFTMAX, activation_name
from clnet.nn.aliases import ACTIVATION, ALIASES, SKLEARN
from clnet.nn.description import DTYPES
from clnet.nn.optimisers import Optimiser
from clnet.sklearn.bases import BaseEstimator, ClassifierMixin, RegressorMixin
from clnet.sklearn.known import take_known_fit
from clnet.sklearn.solvers import (
    Objective,
    OptimizerState,
    Samples,
    fit_lbfgs,
    fit_stochastic,
    outputs,
    unconverged,
)

Array = NDArray[Any]

OUTPUT_LOSSES = {
    "sigmoid": "binary_cross_entropy", SOFTMAX: "categorical_cross_entropy"
}


class LayerArrays(list[Array]):
    """The arrays of all layers, read-only; to replace one changes the network.

    Parameters
    ----------
    network : Network
        The network.
    biases : bool
        Whether they are the layers' biases, not their weights.
    """

    def __init__(self, network: Network, biases: bool) -> None:
        self._network, self._biases = network, biases
        numbers = range(len(network.layers))
        super().__init__(
            [network.biases(i) for i in numbers] if biases
            else [network.weights(i).T for i in numbers]
        )

    def __setitem__(self, index: Any, value: Any) -> None:
        arrays = list(self)
        arrays[index] = value
        self.assign(arrays)
        super().__init__(type(self)(self._network, self._biases))

    def assign(self, arrays: Sequence[Any]) -> None:
        """Give the network all arrays."""
        network, numbers = self._network, range(len(self._network.layers))
        network.set_layers(
            (network.weights(i), arrays[i]) if self._biases
            else (np.asarray(arrays[i]).T, None)
            for i in numbers
        )

    def __reduce__(self) -> Any:
        return list, (list(self),)


class MLP(BaseEstimator):
    """The base of both estimators: parameters, targets, training, outputs.

    Attributes
    ----------
    network_ : Network
        The network, which has all weights.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "hidden_layer_sizes": [
            "array-like", Interval(Integral, 1, None, closed="left")
        ],
        "activation": [str],
        "solver": [StrOptions({"lbfgs", "sgd", "adam"})],
        "alpha": [Interval(Real, 0, None, closed="left")],
        "batch_size": [
            StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")
        ],
        "learning_rate": [StrOptions({"constant", "invscaling", "adaptive"})],
        "learning_rate_init": [Interval(Real, 0, None, closed="neither")],
        "power_t": [Interval(Real, 0, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "shuffle": ["boolean"],
        "random_state": ["random_state"],
        "tol": [Interval(Real, 0, None, closed="left")],
        "verbose": ["verbose"],
        "warm_start": ["boolean"],
        "momentum": [Interval(Real, 0, 1, closed="both")],
        "nesterovs_momentum": ["boolean"],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="left")],
        "beta_1": [Interval(Real, 0, 1, closed="left")],
        "beta_2": [Interval(Real, 0, 1, closed="left")],
        "epsilon": [Interval(Real, 0, None, closed="neither")],
        "n_iter_no_change": [
            Interval(Integral, 1, None, closed="left"), Options(Real, {np.inf})
        ],
        "max_fun": [Interval(Integral, 1, None, closed="left")],
        "device": [str, None],
        "dtype": [StrOptions(set(DTYPES)), None],
        "precision": [StrOptions(set(PRECISIONS))],
        "dropout": [Interval(Real, 0, 1, closed="left")],
        "optimiser": [str, Optimiser, None],
        "network": [Network, None],
    }

    def _keep(self, parameters: dict[str, Any]) -> None:
        """Keep the constructor's parameters as they are, as scikit-learn asks."""
        for name in self._get_param_names():
            setattr(self, name, parameters[name])

    @property
    def coefs_(self) -> list[Array]:
        """Weights of each layer [n_in, n_out], read-only; assign to replace them.

        Of a locally connected layer [window, n_out].
        """
        return LayerArrays(self.network_, biases=False)

    @coefs_.setter
    def coefs_(self, arrays: Sequence[Any]) -> None:
        LayerArrays(self.network_, biases=False).assign(arrays)

    @property
    def intercepts_(self) -> list[Array]:
        """Biases of each layer [n_out], read-only; assign to replace them."""
        return LayerArrays(self.network_, biases=True)

    @intercepts_.setter
    def intercepts_(self, arrays: Sequence[Any]) -> None:
        LayerArrays(self.network_, biases=True).assign(arrays)

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Train on samples, and return the estimator.

        Parameters
        ----------
        X : array_like or scipy.sparse matrix, shape [n_samples, n_features]
            Inputs. Of a sparse matrix some rows at a time are dense.
        y : array_like, shape [n_samples] or [n_samples, n_outputs]
            Class labels, or numbers of a regression.
        sample_weight : array_like, shape [n_samples], or None
            Factor of each sample's loss; means are over the sum of the weights.

        Raises
        ------
        ValueError
            If an argument is wrong, or parameters are no longer finite.

        Warns
        -----
        ConvergenceWarning
            If ``max_iter`` ends the training.
        """
        if not take_known_fit(self, X, y, sample_weight):
            self._fit(X, y, sample_weight, incremental=False)
        return self

    def _fit(self, X: Any, y: Any, sample_weight: Any, incremental: bool) -> None:
        """Train for `max_iter` epochs at most, or for one more."""
        samples, objective = self._prepared(X, y, sample_weight, incremental)
        if self._stochastic:
            self._fit_stochastic(samples, objective, incremental)
        else:
            if self.dropout:
                raise ValueError(
                    "dropout needs a stochastic solver: solver='lbfgs' expects "
                    f"dropout=0, not {self.dropout!r}"
                )
            samples.t = _cast(samples.t, self.network_.dtype)
            fit_lbfgs(self, samples, objective)

    def _prepared(
        self, X: Any, y: Any, sample_weight: Any, incremental: bool
    ) -> tuple[Samples, Objective]:
        """Return the checked samples; make the network unless there is one."""
        self._validate_params()
        if incremental and self.early_stopping:
            raise ValueError("partial_fit does not support early_stopping=True")
        first = not hasattr(self, "network_") or not (self.warm_start or incremental)
        X, y, targets = self._checked(X, y, incremental, first)
        weight = self._weight(X, y, sample_weight, incremental)
        self._random_state = check_random_state(self.random_state)
        if first:
            self._start(X, targets)
        elif self.network is None and self._widths() != [*self.network_.sizes[1:-1]]:
            raise ValueError(
                f"the network has hidden layers of {[*self.network_.sizes[1:-1]]}, but "
                f"hidden_layer_sizes is {self._widths()} now: fit it without warm_start"
            )
        objective = Objective.of(self._loss(), targets.shape[1])
        dtype = self.network_.dtype
        return Samples(_cast(X, dtype), targets, _cast(weight, dtype)), objective

    @property
    def _stochastic(self) -> bool:
        return self.solver != "lbfgs" or self.optimiser is not None

    @property
    def _schedule(self) -> str:
        """How the learning rate changes; only `sgd`'s does."""
        own = self.solver == "sgd" and self.optimiser is None
        return str(self.learning_rate) if own else "constant"

    def _has_partial_fit(self) -> bool:
        if not self._stochastic:
            raise AttributeError(
                "partial_fit is only available for stochastic optimizers. "
                f"{self.solver} is not stochastic."
            )
        return True

    def _fit_stochastic(
        self, samples: Samples, objective: Objective, incremental: bool
    ) -> None:
        if not (incremental and hasattr(self, "_optimizer")):
            self._optimizer = OptimizerState.of(self, objective)
        validation = None
        if self.early_stopping:
            samples, validation = self._split(samples)
        samples.t = _cast(samples.t, self.network_.dtype)
        epochs = 1 if incremental else self.max_iter
        stopped = fit_stochastic(self, samples, objective, epochs, validation)
        if not (stopped or incremental):
            warnings.warn(unconverged(self.max_iter), ConvergenceWarning, stacklevel=4)

    def _split(self, samples: Samples) -> tuple[Samples, tuple[Any, Any, Any]]:
        """Return the samples of training, and those of validation, as scikit-learn."""
        arrays = [samples.x, samples.t]
        if samples.weight is not None:
            arrays.append(samples.weight)
        stratified = is_classifier(self) and self.n_outputs_ == 1
        found = train_test_split(
            *arrays, random_state=self._random_state,
            test_size=self.validation_fraction,
            stratify=samples.t if stratified else None,
        )
        weights = found[4:] or [None, None]
        if found[1].shape[0] < 2:
            raise ValueError(
                "The validation set is too small. Increase 'validation_fraction' or "
                "the size of your dataset."
            )
        train = Samples(found[0], found[2], weights[0])
        return train, (found[1], self._labels(found[3]), weights[1])

    def _start(self, X: Any, targets: Array) -> None:
        """Make the network, and set the attributes before the first epoch."""
        self.n_iter_ = 0
        self.t_ = 0
        self.n_outputs_: int = targets.shape[1]
        n_in = X.shape[1]
        if self.network is None:
            self.network_: Network = self._mlp(n_in, self.dtype or X.dtype.name)
        else:
            self.network_ = self._copied(n_in)
        self.n_layers_: int = len(self.network_.sizes)
        last = str(self.network_.layers[-1].activation)
        names = {own: name for name, own in ALIASES[ACTIVATION][SKLEARN].items()}
        self.out_activation_: str = names.get(last, last)
        if self._stochastic:
            self.loss_curve_: list[float] = []
            self._no_improvement_count = 0
            stops = self.early_stopping
            self.best_loss_: float | None = None if stops else np.inf
            self.validation_scores_: list[float] | None = [] if stops else None
            self.best_validation_score_: float | None = -np.inf if stops else None

    def _widths(self) -> list[int]:
        """Return the neurons of each hidden layer."""
        hidden = self.hidden_layer_sizes
        widths = [*hidden] if isinstance(hidden, Iterable) else [hidden]
        if any(width <= 0 for width in widths):
            raise ValueError(f"hidden_layer_sizes must be > 0, got {widths}.")
        return widths

    def _mlp(self, n_in: int, dtype: str) -> Network:
        """Return a network with scikit-learn's initial weights for `random_state`."""
        widths = self._widths()
        activation = activation_name(self.activation)
        network = Network.mlp(
            [n_in, *widths, self.n_outputs_],
            [*[activation] * len(widths), self._last_activation()],
            dropout=float(self.dropout), dtype=dtype, seed=0,
        )
        draw = self._random_state.uniform
        factor = 2.0 if activation == "sigmoid" else 6.0
        layers = []
        for layer, n in zip(network.layers, network.sizes, strict=False):
            limit = np.sqrt(factor / (n + layer.n_out))
            weights = draw(-limit, limit, (n, layer.n_out))
            layers.append((weights.T, draw(-limit, limit, layer.n_out)))
        network.set_layers(layers)
        return network

    def _copied(self, n_in: int) -> Network:
        """Return a copy of the given network, if it fits."""
        given: Network = self.network
        found, expected = (given.n_in, given.n_out), (n_in, self.n_outputs_)
        if found != expected:
            raise ValueError(
                f"network has {found[0]} inputs and {found[1]} outputs, but the data "
                f"have {expected[0]} and {expected[1]}"
            )
        last = given.layers[-1].activation
        if is_classifier(self) and last != self._last_activation():
            raise ValueError(
                f"network's last layer is {last}, but these classes need "
                f"{self._last_activation()}"
            )
        if self.dropout:
            raise ValueError(
                "a network's layers have dropout of their own: leave out dropout="
                f"{self.dropout!r}"
            )
        return copy(given)

    def _outputs(self, X: Any) -> Array:
        """Return the network's outputs [n_samples, n_outputs]."""
        return outputs(
            self.network_, X, device=self.device, precision=self.precision
        )

    def _checked_outputs(self, X: Any) -> Array:
        check_is_fitted(self)
        return self._outputs(
            validate_data(self, X, accept_sparse=["csr", "csc"], reset=False)
        )

    def predict(self, X: Any) -> Array:
        """Return the classes, or the numbers, of inputs [n_samples, n_features]."""
        found: Array = self._decoded(self._checked_outputs(X))
        return found

    def _score(self, X: Any, y: Any, sample_weight: Any) -> float:
        """Return the score of a validation set, which is checked already."""
        found = self._decoded(self._outputs(X))
        if found.dtype.kind == "f" and not np.isfinite(found).all():
            return float("nan")
        measure = accuracy_score if is_classifier(self) else r2_score
        return float(measure(y, found, sample_weight=sample_weight))

    def __sklearn_tags__(self) -> Any:
        """Say that inputs may be sparse."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _cast(array: Any, dtype: str) -> Any:
    """Return an array or sparse matrix in a dtype; rows of a matrix can be taken."""
    if array is None:
        return None
    with np.errstate(over="ignore"):  # the fit refuses infinity, in a sentence
        found = array.astype(dtype, copy=False)
    return found.tocsr() if is_sparse(found) else found


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
        "loss": [str],
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
        weight = _sample_weight(sample_weight, X)
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

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **MLP._parameter_constraints,
        "loss": [str],
    }

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
        return _sample_weight(sample_weight, X)

    def _last_activation(self) -> str:
        return "identity"

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


def _sample_weight(weight: Any, X: Any) -> Array | None:
    """Return checked weights of samples."""
    if weight is None:
        return None
    found: Array = _check_sample_weight(weight, X)
    if not found.sum() > 0:
        raise ValueError(
            f"sample_weight sums to {found.sum():g}, expected a sum above zero"
        )
    return found
