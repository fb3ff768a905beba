"""The solvers: scikit-learn's stop rules and learning rates over `Network.fit`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.optimize
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from clnet.checks import is_sparse
from clnet.nn.losses import loss_function
from clnet.nn.optimisers import SGD, Adam, Optimiser, optimiser
from clnet.nn.random import key, permuted

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

    from clnet.network import Network
    from clnet.training.callbacks import Training
    from clnet.training.history import Epoch, History, TrainingState

Array = NDArray[Any]

CHUNK_BYTES = 1 << 22  # of rows of a sparse matrix that are dense at a time
LEAST_RATE = 1e-6  # at which an adaptive learning rate ends the training
SEED_BITS = 31
BATCH = 200  # samples of a step of scikit-learn, where none are given
DIVERGED = (
    "Solver produced non-finite parameter weights. The input data may contain large "
    "values and need to be preprocessed."
)


def unconverged(epochs: int) -> str:
    """Return the warning of a training that so many epochs have ended."""
    return (
        f"Stochastic Optimizer: Maximum iterations ({epochs}) reached and the "
        "optimization hasn't converged yet."
    )


@dataclass(frozen=True)
class Objective:
    """scikit-learn's objective in terms of a loss of clnet.

    scikit-learn's gradients are those of the loss summed over the outputs. Most losses
    of clnet are means over them.

    Attributes
    ----------
    loss : str
        A name of `clnet.nn.losses`.
    value : float
        Factor from clnet's loss to the loss that scikit-learn reports.
    gradient : float
        Factor from clnet's gradients to scikit-learn's.
    """

    loss: str
    value: float = 1.0
    gradient: float = 1.0

    @classmethod
    def of(cls, loss: str, outputs: int) -> Objective:
        """Return the objective of a loss, by its name here or in another library."""
        name = loss_function(loss).name
        if name == "mse":
            return cls(name, 0.5, outputs / 2)
        if name == "binary_cross_entropy":
            return cls(name, outputs, outputs)
        return cls(name)


@dataclass
class Samples:
    """The samples of a training.

    Attributes
    ----------
    x : ndarray or scipy.sparse matrix, shape [n, n_in]
        Inputs.
    t : ndarray, shape [n, n_out]
        Targets.
    weight : ndarray, shape [n], or None
        Factor of each sample's loss.
    """

    x: Any
    t: Array
    weight: Array | None

    def __len__(self) -> int:
        return int(self.x.shape[0])

    @property
    def mean_weight(self) -> float:
        """The mean of the weights; 1 without."""
        return 1.0 if self.weight is None else float(self.weight.mean())

    def rows(self, order: Array | slice) -> Samples:
        """Return some of the samples, dense."""
        x = self.x[order]
        weight = None if self.weight is None else self.weight[order]
        return Samples(x.toarray() if is_sparse(x) else x, self.t[order], weight)


@dataclass
class OptimizerState:
    """The learning rate and the optimiser's state between calls, without parameters.

    Attributes
    ----------
    rule : Optimiser
        The rule; if it is a solver's, its learning rate is 1, and `learning_rate` the
        factor of each epoch.
    learning_rate : float
        Of the next epoch.
    state : TrainingState or None
        Without its parameters, which are the network's; None: no epoch is done.
    """

    rule: Optimiser
    learning_rate: float
    state: TrainingState | None = None

    @classmethod
    def of(cls, estimator: BaseEstimator, objective: Objective) -> OptimizerState:
        """Return the state before the first epoch."""
        chosen = estimator.optimiser
        if chosen is not None:
            rule = optimiser(chosen)
            return cls(rule, rule.rate)
        scale = objective.gradient
        if estimator.solver == "sgd":
            rule = SGD(
                learning_rate=scale, momentum=float(estimator.momentum),
                nesterov=bool(estimator.nesterovs_momentum and estimator.momentum > 0),
            )
        else:
            rule = Adam(
                learning_rate=1.0, beta1=float(estimator.beta_1),
                beta2=float(estimator.beta_2), eps=estimator.epsilon / scale,
            )
        return cls(rule, float(estimator.learning_rate_init))

    def resumed(self, network: Network) -> TrainingState | None:
        """Return the state with the network's parameters."""
        if self.state is None:
            return None
        return replace(self.state, parameters=network.parameters)

    def stop(self, history: History) -> None:
        """Take the state at the end of a call of `Network.fit`."""
        self.state = replace(history.state, parameters=np.empty(0))

    def change_rate(self, rate: float) -> None:
        """Set the learning rate; velocities keep their lengths, as scikit-learn's.

        clnet's velocity is a sum of gradients, scikit-learn's one of steps.
        """
        if self.state is not None and isinstance(self.rule, SGD) and rate > 0:
            values = self.state.values * (self.learning_rate / rate)
            self.state = replace(self.state, values=values)
        self.learning_rate = rate


class Progress:
    """scikit-learn's stop rules and fitted attributes, epoch by epoch.

    It is a callback of `Network.fit`, and ends the call where the training ends or the
    learning rate changes.

    Parameters
    ----------
    estimator : MLPClassifier or MLPRegressor
        The estimator; its attributes change.
    samples : Samples
        The training set.
    steps : int
        Steps of an epoch.
    value : float
        `Objective.value`.
    validation : (X, y, sample_weight) or None
        The set whose score stops the training.

    Attributes
    ----------
    rate : float
        The learning rate of the next epoch.
    stopped : bool
        Whether the training has ended.
    """

    def __init__(
        self, estimator: BaseEstimator, samples: Samples, steps: int, value: float,
        validation: tuple[Any, Any, Any] | None,
    ) -> None:
        self._estimator = estimator
        self._n = len(samples)
        self._value = value
        self._validation = validation
        self._best: Array | None = None
        # The penalty's share of an epoch's loss, for a sum of squares of the weights.
        self._penalty = 0.5 * estimator.alpha * steps / self._n / samples.mean_weight
        self._middle = (steps - 1) / (2 * steps)  # the mean step's place in an epoch
        self._squares = self._sum_of_squares(estimator.network_.parameters)
        self.rate: float = estimator._optimizer.learning_rate
        self.stopped: bool = False

    def _sum_of_squares(self, parameters: Array) -> float:
        weights = parameters[: self._estimator.network_.layout.biases_start]
        return float(np.dot(weights, weights))

    def __call__(self, training: Training, epoch: Epoch) -> bool:
        """Return whether the call ends; see `Network.fit`."""
        if not self._penalty and self._validation is None:
            return self.ended(epoch.loss)
        parameters = training.parameters
        if self._validation is not None:
            training.network.parameters = parameters
        return self.ended(epoch.loss, parameters)

    def ended(self, loss: float, parameters: Array | None = None) -> bool:
        """Count an epoch, and return whether the call ends.

        Parameters
        ----------
        loss : float
            clnet's mean loss, without the penalty.
        parameters : ndarray or None
            After the epoch; None: there is no penalty.
        """
        estimator = self._estimator
        estimator.n_iter_ += 1
        estimator.t_ += self._n
        estimator.loss_ = loss * self._value
        if parameters is not None:
            # Exact for one step; for several, the sum of squares changes evenly.
            before, self._squares = self._squares, self._sum_of_squares(parameters)
            mean = before + (self._squares - before) * self._middle
            estimator.loss_ += self._penalty * mean
        estimator.loss_curve_.append(estimator.loss_)
        self._say(f"Iteration {estimator.n_iter_}, loss = {estimator.loss_:.8f}")
        improved = self._improved()
        count = 0 if improved else estimator._no_improvement_count + 1
        estimator._no_improvement_count = count
        now = estimator._optimizer.learning_rate
        if estimator._schedule == "invscaling":
            base, power = estimator.learning_rate_init, estimator.power_t
            self.rate = base / (estimator.t_ + 1) ** power
        if count > estimator.n_iter_no_change:
            self._stop()
        return self.stopped or self.rate != now

    def _improved(self) -> bool:
        """Return whether the loss or the validation's score is better by `tol`."""
        estimator = self._estimator
        if self._validation is None:
            best = estimator.best_loss_
            estimator.best_loss_ = min(best, estimator.loss_)
            return bool(estimator.loss_ <= best - estimator.tol)
        score = estimator._score(*self._validation)
        estimator.validation_scores_.append(score)
        self._say(f"Validation score: {score:f}")
        best = estimator.best_validation_score_
        if score > best:
            estimator.best_validation_score_ = score
            self._best = estimator.network_.parameters
        return not score < best + estimator.tol

    def diverged(self) -> None:
        """Count the epoch of early stopping in which the loss is not finite."""
        self.stopped = True
        self._estimator.n_iter_ += 1
        self._estimator.validation_scores_.append(float("nan"))

    def restore_best(self) -> None:
        """Give the network the parameters of the best validation."""
        if self._best is not None:
            self._estimator.network_.parameters = self._best

    def _stop(self) -> None:
        """Stop, or reduce the learning rate if it is adaptive."""
        estimator = self._estimator
        subject = "Training loss" if self._validation is None else "Validation score"
        reason = (
            f"{subject} did not improve more than tol={estimator.tol:f} for "
            f"{estimator.n_iter_no_change} consecutive epochs."
        )
        adaptive = bool(estimator._schedule == "adaptive")
        self.stopped = not adaptive or self.rate <= LEAST_RATE
        if not self.stopped:
            self.rate /= 5
            estimator._no_improvement_count = 0
            self._say(f"{reason} Setting learning rate to {self.rate:f}")
        elif estimator._schedule == "adaptive":
            self._say(f"{reason} Learning rate too small. Stopping.")
        else:
            self._say(f"{reason} Stopping.")

    def _say(self, text: str) -> None:
        if self._estimator.verbose:
            print(text)


def fit_stochastic(
    estimator: BaseEstimator, samples: Samples, objective: Objective, epochs: int,
    validation: tuple[Any, Any, Any] | None = None,
) -> bool:
    """Train epoch by epoch; return whether a stop rule has ended the training.

    Parameters
    ----------
    estimator : MLPClassifier or MLPRegressor
        The estimator, with its network and `OptimizerState`.
    samples : Samples
        The training set.
    objective : Objective
        Of the loss.
    epochs : int
        At most.
    validation : (X, y, sample_weight) or None
        As for `Progress`.

    Raises
    ------
    ValueError
        If parameters are not finite.

    Warns
    -----
    UserWarning
        If `batch_size` is larger than the number of samples.
    """
    network, optimizer = estimator.network_, estimator._optimizer
    progress, options, seed = start_stochastic(
        estimator, samples, objective, validation
    )
    while estimator.n_iter_ < epochs and not progress.stopped:
        state = optimizer.resumed(network)
        start = {"seed": seed} if state is None else {"state": state}
        end = estimator.n_iter_ + 1 if is_sparse(samples.x) else epochs
        if is_sparse(samples.x):
            fit = partial(_sparse_epoch, network, samples, progress)
        else:
            fit = partial(
                network.fit, samples.x, samples.t, sample_weight=samples.weight,
                epochs=end - estimator.n_iter_, callbacks=[progress],
            )
        history = fit(device=estimator.device, **start, **options)
        optimizer.stop(history)
        if history.diverged and validation is None:
            raise ValueError(DIVERGED)
        if history.diverged:
            progress.diverged()
        elif progress.rate != optimizer.learning_rate:
            optimizer.change_rate(progress.rate)
        elif not progress.stopped and estimator.n_iter_ < end:
            warnings.warn("Training interrupted by user.", stacklevel=4)
            progress.stopped = True
    progress.restore_best()
    return progress.stopped


def start_stochastic(
    estimator: BaseEstimator, samples: Samples, objective: Objective,
    validation: tuple[Any, Any, Any] | None,
) -> tuple[Progress, dict[str, Any], int]:
    """Return the stop rules, arguments of `Network.fit`, and the seed of a training.

    The arguments are as for `fit_stochastic`.
    """
    optimizer = estimator._optimizer
    n = len(samples)
    batch = _batch(estimator, optimizer.rule, n)
    progress = Progress(
        estimator, samples, -(-n // batch), objective.value, validation
    )
    options: dict[str, Any] = {
        "optimiser": optimizer.rule, "loss": objective.loss, "batch_size": batch,
        "shuffle": estimator.shuffle, "precision": estimator.precision,
        "l2": estimator.alpha / (
            2 * batch * samples.mean_weight * objective.gradient
        ),
    }
    if estimator.optimiser is None:
        options["schedule"] = lambda epoch: optimizer.learning_rate
    estimator.n_iter_ = 0
    return progress, options, int(estimator._random_state.randint(1 << SEED_BITS))


def _batch(estimator: BaseEstimator, rule: Optimiser, n: int) -> int:
    """Return the samples of a step, at most all n."""
    size = estimator.batch_size
    if size == "auto":
        own = estimator.optimiser is not None
        return min((rule.default_batch or n) if own else BATCH, n)
    if size > n:
        warnings.warn(
            "Got `batch_size` less than 1 or larger than sample size. It is going to "
            "be clipped", stacklevel=5,
        )
    return min(int(size), n)


def _sparse_epoch(
    network: Network, samples: Samples, progress: Progress, *, shuffle: bool,
    batch_size: int, seed: int | None = None, state: TrainingState | None = None,
    **options: Any,
) -> History:
    """Train for an epoch on a sparse matrix, of which some rows at a time are dense.

    The order of the samples is that of `Network.fit` with a dense matrix.
    """
    n = len(samples)
    epoch = 0 if state is None else state.epoch
    order: Array = np.arange(n)
    if shuffle and batch_size < n:
        number = seed if state is None else state.seed
        assert number is not None
        order = permuted(order, n, key(number, epoch))
    loss = 0.0
    for rows in _chunks(network, n, batch_size):
        part = samples.rows(order[rows])
        if part.weight is not None and not part.weight.any():
            continue
        start = {"seed": seed} if state is None else {"state": state}
        history = network.fit(
            part.x, part.t, sample_weight=part.weight, epochs=1, shuffle=False,
            batch_size=min(batch_size, len(part)), **start, **options,
        )
        state = replace(history.state, epoch=epoch)
        if history.diverged or not history:
            return history
        loss += history[-1].loss * len(part) / n
    history.state = replace(history.state, epoch=epoch + 1)
    progress.ended(loss, network.parameters)
    return history


def _chunks(network: Network, n: int, multiple: int = 1) -> Iterator[slice]:
    """Yield slices of n rows that are dense at a time, each of whole batches."""
    size = multiple * network.n_in * np.dtype(network.dtype).itemsize
    rows = multiple * max(1, CHUNK_BYTES // size)
    for first in range(0, n, rows):
        yield slice(first, min(first + rows, n))


def outputs(network: Network, x: Any, **options: Any) -> Array:
    """Return `Network.predict`, of a sparse matrix some rows at a time."""
    if not is_sparse(x):
        return network.predict(x, **options)
    return np.concatenate([
        network.predict(x[rows].toarray(), **options)
        for rows in _chunks(network, x.shape[0])
    ])


def fit_lbfgs(estimator: BaseEstimator, samples: Samples, objective: Objective) -> None:
    """Train by L-BFGS-B of SciPy, over gradients of the device.

    The loss that is minimised is the one of the gradients, which scikit-learn sums over
    outputs; the reported one is scikit-learn's.

    Raises
    ------
    ValueError
        If parameters are not finite.

    Warns
    -----
    ConvergenceWarning
        If it stops for another reason than `tol`.
    """
    from clnet.training.data_set import data_set
    from clnet.training.gradients import Gradients

    network, n = estimator.network_, len(samples)
    chunks = list(_chunks(network, n)) if is_sparse(samples.x) else [slice(0, n)]
    gradients = Gradients(
        network, loss_function(objective.loss), estimator.device, chunks[0].stop,
        samples.weight is not None, estimator.precision,
        len(chunks) * min(estimator.max_iter, estimator.max_fun),
    )
    total = n * samples.mean_weight
    alpha, weights = estimator.alpha, slice(network.layout.biases_start)

    def write(rows: slice) -> None:
        part = samples.rows(rows)
        data = data_set(network, part.x, part.t)
        if part.weight is not None:  # sums over all chunks have the same weights
            data = replace(data, weight=part.weight[:, np.newaxis])
        gradients.write(data)

    def evaluate(x: Array) -> tuple[float, float, Array]:
        """Return the mean loss, the penalty, and scikit-learn's gradients."""
        parameters = x.astype(network.dtype)
        loss, gradient = 0.0, np.zeros(x.size)
        for rows in chunks:
            if len(chunks) > 1:
                write(rows)
            one, part = gradients(parameters)
            loss += one
            gradient += part
        gradient *= objective.gradient / total
        w = x[weights]
        gradient[weights] += alpha / total * w
        return loss / total, 0.5 * alpha / total * float(np.dot(w, w)), gradient

    def function(x: Array) -> tuple[float, Array]:
        loss, penalty, gradient = evaluate(x)
        return loss * objective.gradient + penalty, gradient

    def say(intermediate_result: Any) -> None:
        print(f"Iteration loss = {intermediate_result.fun:.8f}")

    if len(chunks) == 1:
        write(chunks[0])
    with np.errstate(over="ignore"):  # parameters beyond float32's range
        found = scipy.optimize.minimize(
            function, network.parameters.astype(np.float64), method="L-BFGS-B",
            jac=True, callback=say if estimator.verbose else None,
            options={
                "maxfun": estimator.max_fun, "maxiter": estimator.max_iter,
                "gtol": estimator.tol,
            },
        )
    if not np.isfinite(found.x).all():
        raise ValueError(DIVERGED)
    network.parameters = found.x
    loss, penalty, _ = evaluate(found.x)
    estimator.loss_ = loss * objective.value + penalty
    estimator.n_iter_ = min(int(found.nit), estimator.max_iter)
    if found.status != 0:
        warnings.warn(
            f"lbfgs failed to converge after {found.nit} iteration(s) "
            f"(status={found.status}): {found.message}; increase the number of "
            "iterations (max_iter), or scale the data",
            ConvergenceWarning, stacklevel=4,
        )
