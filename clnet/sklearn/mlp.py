"""`MLP`, the base of the estimators: parameters, targets, training, outputs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from copy import copy
from functools import cache
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
    validate_data,
)

from clnet.checks import PRECISIONS, is_sparse
from clnet.network import Network
from clnet.nn.activations import activation_name
from clnet.nn.aliases import ACTIVATION, ALIASES, SKLEARN
from clnet.nn.description import DTYPES
from clnet.nn.optimisers import Optimiser
from clnet.sklearn.bases import BaseEstimator
from clnet.sklearn.known import take_known_fit
from clnet.sklearn.objective import FitData, Objective
from clnet.sklearn.progress import OptimizerState, unconverged
from clnet.sklearn.solvers import fit_lbfgs, fit_stochastic, outputs

Array = NDArray[Any]


class LayerArrays(list[Array]):
    """The weights, or biases, of all layers, read-only; to replace one is to set it."""

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
    """The base of both estimators: parameters, targets, training, outputs."""

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **MLPClassifier._parameter_constraints,
        "activation": [str],
        "loss": [str],
        "device": [str, None],
        "dtype": [StrOptions(set(DTYPES)), None],
        "precision": [StrOptions(set(PRECISIONS))],
        "dropout": [Interval(Real, 0, 1, closed="left")],
        "optimiser": [str, Optimiser, None],
        "network": [Network, None],
    }

    @classmethod
    @cache  # scikit-learn inspects the constructor's signature each time
    def _get_param_names(cls) -> list[str]:
        return super()._get_param_names()

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
            Inputs. A sparse matrix stays one where samples have few entries; of others
            that are large some rows at a time are dense.
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
    ) -> tuple[FitData, Objective]:
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
        return FitData(_cast(X, dtype), targets, _cast(weight, dtype)), objective

    @property
    def _stochastic(self) -> bool:
        return self.solver != "lbfgs" or self.optimiser is not None

    @property
    def _schedule(self) -> str:
        """How the learning rate changes; only `sgd`'s does."""
        by_solver = self.solver == "sgd" and self.optimiser is None
        return str(self.learning_rate) if by_solver else "constant"

    def _has_partial_fit(self) -> bool:
        if not self._stochastic:
            raise AttributeError(
                "partial_fit is only available for stochastic optimizers. "
                f"{self.solver} is not stochastic."
            )
        return True

    def _fit_stochastic(
        self, samples: FitData, objective: Objective, incremental: bool
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

    def _split(self, samples: FitData) -> tuple[FitData, tuple[Any, Any, Any]]:
        """Return the samples of training, and those of validation, as scikit-learn."""
        arrays = [samples.x, samples.t]
        if samples.weight is not None:
            arrays.append(samples.weight)
        stratified = is_classifier(self) and self.n_outputs_ == 1
        split = train_test_split(
            *arrays, random_state=self._random_state,
            test_size=self.validation_fraction,
            stratify=samples.t if stratified else None,
        )
        weights = split[4:] or [None, None]
        if split[1].shape[0] < 2:
            raise ValueError(
                "The validation set is too small. Increase 'validation_fraction' or "
                "the size of your dataset."
            )
        train = FitData(split[0], split[2], weights[0])
        return train, (split[1], self._labels(split[3]), weights[1])

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
        self.out_activation_: str = next((
            theirs for theirs, ours in ALIASES[ACTIVATION][SKLEARN].items()
            if ours == last
        ), last)
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
        sizes, expected = (given.n_in, given.n_out), (n_in, self.n_outputs_)
        if sizes != expected:
            raise ValueError(
                f"network has {sizes[0]} inputs and {sizes[1]} outputs, but the data "
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
        answers: Array = self._decoded(self._checked_outputs(X))
        return answers

    def _score(self, X: Any, y: Any, sample_weight: Any) -> float:
        """Return the score of a validation set, which is checked already."""
        answers = self._decoded(self._outputs(X))
        if answers.dtype.kind == "f" and not np.isfinite(answers).all():
            return float("nan")
        measure = accuracy_score if is_classifier(self) else r2_score
        return float(measure(y, answers, sample_weight=sample_weight))

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
        converted = array.astype(dtype, copy=False)
    return converted.tocsr() if is_sparse(converted) else converted


def checked_sample_weight(weight: Any, X: Any) -> Array | None:
    """Return checked weights of samples."""
    if weight is None:
        return None
    checked: Array = _check_sample_weight(weight, X)
    if not checked.sum() > 0:
        raise ValueError(
            f"sample_weight sums to {checked.sum():g}, expected a sum above zero"
        )
    return checked
