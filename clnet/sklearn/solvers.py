"""The solvers: scikit-learn's, over `Network.fit` and SciPy."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.optimize
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from clnet.checks import is_sparse
from clnet.formats.sources import BUFFER, BatchSource
from clnet.ir.lowering import reads_sparse
from clnet.nn.losses import loss_function
from clnet.nn.random import key, permuted
from clnet.opencl.discovery import device_list
from clnet.sklearn.progress import Progress

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

    from clnet.network import Network
    from clnet.nn.optimisers import Optimiser
    from clnet.sklearn.objective import FitData, Objective
    from clnet.training.data_set import DataSet
    from clnet.training.history import History, TrainingState

Array = NDArray[Any]

CHUNK_BYTES = 1 << 22  # of rows of a sparse matrix that are dense at a time
SEED_BITS = 31
CONSTANT_SHARE = 0.99  # of the targets' variance, from which errors are of a constant
BATCH = 200  # samples of a step of scikit-learn, where none are given
DIVERGED = (
    "Solver produced non-finite parameter weights. The input data may contain large "
    "values and need to be preprocessed."
)


def fit_stochastic(
    estimator: BaseEstimator, samples: FitData, objective: Objective, epochs: int,
    validation: tuple[Any, Any, Any] | None = None,
) -> bool:
    """Train for some epochs; return whether a stop rule has ended the training.

    A ValueError tells of parameters that are not finite, a UserWarning of a
    `batch_size` above the number of samples.
    """
    network, optimizer = estimator.network_, estimator._optimizer
    progress, options, seed = start_stochastic(
        estimator, samples, objective, validation
    )
    by_chunks = _reads_chunks(estimator, samples.x)
    while estimator.n_iter_ < epochs and not progress.stopped:
        state = optimizer.resumed(network)
        start = {"seed": seed} if state is None else {"state": state}
        end = estimator.n_iter_ + 1 if by_chunks else epochs
        if by_chunks:
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
    estimator: BaseEstimator, samples: FitData, objective: Objective,
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
        chosen = estimator.optimiser is not None
        return min((rule.default_batch or n) if chosen else BATCH, n)
    if size > n:
        warnings.warn(
            "Got `batch_size` less than 1 or larger than sample size. It is going to "
            "be clipped", stacklevel=5,
        )
    return min(int(size), n)


def _sparse_epoch(
    network: Network, samples: FitData, progress: Progress, *, shuffle: bool,
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
        start = {"seed": seed} if state is None else {"state": state}
        given: dict[str, Any] = {
            "x": part.x, "t": part.t, "sample_weight": part.weight
        }
        if part.weight is not None and (batch_size == 1 or not part.weight.any()):
            given = {"x": _Chunk(part, samples), "t": None}
        history = network.fit(
            **given, epochs=1, shuffle=False, batch_size=min(batch_size, len(part)),
            **start, **options,
        )
        state = replace(history.state, epoch=epoch)
        if history.diverged or not history:
            return history
        loss += history[-1].loss * len(part) / n
    history.state = replace(history.state, epoch=epoch + 1)
    progress.ended(loss, network.parameters)
    return history


class _Chunk(BatchSource):
    """Some weighted samples of a set, whose weights are divided by the set's mean.

    They may all be 0, unlike those of a training.
    """

    def __init__(self, part: FitData, whole: FitData) -> None:
        super().__init__([(part.x, part.t, part.weight)])
        self._weight = whole.weight

    def weights(self, rows: int) -> Iterator[Any]:
        """Yield the weights of the set."""
        return iter([self._weight])


def _reads_chunks(estimator: BaseEstimator, x: Any) -> bool:
    """Return whether samples are a sparse matrix that is read by parts."""
    network = estimator.network_
    if not is_sparse(x):
        return False
    if reads_sparse(network, x) and len(device_list(estimator.device)) == 1:
        return False
    return bool(
        x.shape[0] * x.shape[1] * np.dtype(network.dtype).itemsize > BUFFER
    )


def _chunks(network: Network, n: int, multiple: int = 1) -> Iterator[slice]:
    """Yield slices of n rows that are dense at a time, each of whole batches."""
    size = multiple * network.n_in * np.dtype(network.dtype).itemsize
    rows = multiple * max(1, CHUNK_BYTES // size)
    for first in range(0, n, rows):
        yield slice(first, min(first + rows, n))


def outputs(network: Network, x: Any, **options: Any) -> Array:
    """Return `Network.predict`, of a sparse matrix some rows at a time."""
    if not is_sparse(x) or reads_sparse(network, x):
        return network.predict(x, **options)
    return np.concatenate([
        network.predict(x[rows].toarray(), **options)
        for rows in _chunks(network, x.shape[0])
    ])


def fit_lbfgs(estimator: BaseEstimator, samples: FitData, objective: Objective) -> None:
    """Train by L-BFGS-B of SciPy, over gradients of the device.

    The loss that is minimised is the one of the gradients, which scikit-learn sums over
    outputs; the reported one is scikit-learn's. A ConvergenceWarning tells of another
    end than by `tol`.
    """
    from clnet.training.data_set import LARGE_TARGET, data_set
    from clnet.training.gradients import Gradients

    network, n = estimator.network_, len(samples)
    by_chunks = _reads_chunks(estimator, samples.x)
    chunks = list(_chunks(network, n)) if by_chunks else [slice(0, n)]

    def data_of(rows: slice) -> DataSet:
        part = samples.rows(rows) if by_chunks else samples
        data = data_set(network, part.x, part.t, sparse=True)
        if part.weight is not None:  # sums over all chunks have the same weights
            data = replace(data, weight=part.weight[:, np.newaxis])
        return data

    first = data_of(chunks[0])
    gradients = Gradients(
        network, loss_function(objective.loss), estimator.device, first,
        estimator.precision, len(chunks) * min(estimator.max_iter, estimator.max_fun),
    )
    total = n * samples.mean_weight
    alpha, weights = estimator.alpha, slice(network.layout.biases_start)

    def evaluate(x: Array) -> tuple[float, float, Array]:
        """Return the mean loss, the penalty, and scikit-learn's gradients."""
        parameters = x.astype(network.dtype)
        loss, gradient = 0.0, np.zeros(x.size)
        for rows in chunks:
            if len(chunks) > 1:
                gradients.write(data_of(rows))
            part_loss, part = gradients(parameters)
            loss += part_loss
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
        gradients.write(first)
    with np.errstate(over="ignore"):  # parameters beyond float32's range
        result = scipy.optimize.minimize(
            function, network.parameters.astype(np.float64), method="L-BFGS-B",
            jac=True, callback=say if estimator.verbose else None,
            options={
                "maxfun": estimator.max_fun, "maxiter": estimator.max_iter,
                "gtol": estimator.tol,
            },
        )
    if not np.isfinite(result.x).all():
        raise ValueError(DIVERGED)
    network.parameters = result.x
    loss, penalty, _ = evaluate(result.x)
    estimator.loss_ = loss * objective.value + penalty
    estimator.n_iter_ = min(int(result.nit), estimator.max_iter)
    if result.status != 0:
        warnings.warn(
            f"lbfgs failed to converge after {result.nit} iteration(s) "
            f"(status={result.status}): {result.message}; increase the number of "
            "iterations (max_iter), or scale the data",
            ConvergenceWarning, stacklevel=4,
        )
    elif objective.loss == "mse" and np.abs(samples.t).max() > LARGE_TARGET:
        mean = np.average(samples.t, axis=0, weights=samples.weight)
        squares = np.square(np.asarray(samples.t, np.float64) - mean)
        spread = np.average(squares, axis=0, weights=samples.weight).mean()
        if loss > CONSTANT_SHARE * spread:
            warnings.warn(
                f"lbfgs ended at a mean squared error of {loss:.3g}, and that of the "
                f"targets' mean is {spread:.3g}: scale the targets, as "
                "sklearn.compose.TransformedTargetRegressor does",
                ConvergenceWarning, stacklevel=4,
            )
