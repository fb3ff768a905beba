"""Fits of many estimators side by side, for a search."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.checks import is_sparse
from clnet.errors import ClnetError, DeviceError
from clnet.nn.conversion import alike, dropout_of, with_dropout
from clnet.sklearn.progress import OptimizerState, Progress
from clnet.sklearn.solvers import start_stochastic

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

    from clnet.network import Network
    from clnet.training.member_training import MemberTraining
    from clnet.training.options import TrainingOptions

Array = NDArray[Any]


@dataclass
class Fit:
    """One fit of a search."""

    estimator: BaseEstimator  # To fit
    rows: Array  # The samples of its training set, by their numbers
    X: Any  # These samples
    y: Any
    # Its share of the time that a training together took; 0: it is not fitted
    seconds: float = 0.0


@dataclass
class _Start:
    """A fit before its first epoch."""

    fit: Fit
    progress: Progress
    options: TrainingOptions
    seed: int


class _AlikeFits:
    """Fits of one shape of network and the same targets, and the data of all.

    Networks may differ in dropout.
    """

    def __init__(
        self, network: Network, device: str | None, classes: Any, n: int
    ) -> None:
        from clnet.opencl.discovery import device as find_device
        from clnet.training.data_set import DataSet

        self.network, self.device = network, find_device(device)
        self._key = device, classes
        self._data = DataSet(
            np.zeros((n, network.n_in), network.dtype),
            np.zeros((n, network.n_out), network.dtype),
        )
        self._filled = np.zeros(n, bool)
        self._starts: list[_Start] = []

    def takes(self, network: Network, device: str | None, classes: Any) -> bool:
        """Return whether a fit is of this shape."""
        return self._key == (device, classes) and alike(self.network, network)

    def add(self, start: _Start, x: Array, t: Array) -> None:
        """Add a fit, and those of its samples that no other has."""
        rows = start.fit.rows
        new = ~self._filled[rows]
        self._data.x[rows[new]], self._data.t[rows[new]] = x[new], t[new]
        self._filled[rows] = True
        self._starts.append(start)

    def fit(self, share: bool) -> None:
        """Train all that a kernel takes, those of one kind at a time.

        If `share`, estimators of one dropout have one network, and parameters apart.
        """
        from clnet.opencl.session import device_errors, session
        from clnet.training.member_training import MemberTraining, kinds_of
        from clnet.training.members import Members, PopulationData

        kinds: dict[Any, list[_Start]] = {}
        for start, kind in zip(self._starts, kinds_of(
            [start.options for start in self._starts],
            [len(start.fit.rows) for start in self._starts],
        ), strict=True):
            drops = dropout_of(start.fit.estimator.network_).any()
            kinds.setdefault((kind, drops), []).append(start)
        samples = PopulationData(self._data, None, None)
        networks: dict[tuple[float, ...], Network] = {}
        for starts in kinds.values():
            begin = time.perf_counter()
            trained = [start.fit.estimator.network_ for start in starts]
            dropout = np.stack([dropout_of(network) for network in trained])
            options = list(dict.fromkeys(start.options for start in starts))
            training = MemberTraining(
                with_dropout(self.network, dropout.max(axis=0)), Members(
                    options,
                    np.array([options.index(start.options) for start in starts]),
                    np.array([start.seed for start in starts]), dropout,
                    [start.fit.rows.astype(np.int32) for start in starts],
                ), samples, self.device,
            )
            if training.refusal is not None:
                continue
            with device_errors(session(self.device)):
                finite = training.fit(
                    np.stack([network.parameters for network in trained]),
                    [_Rules(starts)],
                )
            if training.interrupted:
                raise KeyboardInterrupt
            for start in starts:
                start.fit.estimator._converged = start.progress.stopped
            for i in np.flatnonzero(finite).tolist():
                fit, parameters = starts[i].fit, training.parameters[i]
                fit.seconds = (time.perf_counter() - begin) / len(starts)
                if share:
                    fit.estimator.network_ = networks.setdefault(
                        tuple(dropout[i]), trained[i]
                    )
                    fit.estimator._shared = parameters
                else:
                    trained[i].parameters = parameters


class _Rules:
    """A callback of `MemberTraining`: scikit-learn's rules stop each fit."""

    def __init__(self, starts: Sequence[_Start]) -> None:
        self._starts = starts

    def __call__(self, training: MemberTraining, active: Array) -> Array:
        """Return which fits stop [active]."""
        parameters, losses = training.parameters, training.last[active, 0]
        return np.array([
            self._starts[i].progress.ended(float(loss), parameters[i])
            for i, loss in zip(active.tolist(), losses, strict=True)
        ])


def fit_together(fits: Sequence[Fit], samples: int, share: bool = False) -> None:
    """Fit estimators side by side; those that get `seconds` are fitted then.

    `samples` is the number of all. If `share`, estimators of one shape may share a
    network and its plans: only those that `take_known_fit` gives, and one at a time.
    """
    shapes: list[_AlikeFits] = []
    for fit in fits:
        estimator = fit.estimator
        try:
            started = _started(fit)
            if started is None:
                continue
            key = estimator.network_, estimator.device, _classes(estimator)
            shape = next((shape for shape in shapes if shape.takes(*key)), None)
            if shape is None:
                shape = _AlikeFits(*key, samples)
                shapes.append(shape)
        except (ClnetError, ValueError, TypeError, Warning):
            continue
        shape.add(*started)
    for shape in shapes:
        with suppress(DeviceError):  # as of memory, which one network may not lack
            shape.fit(share)


def _started(fit: Fit) -> tuple[_Start, Array, Array] | None:
    """Return a fit before its first epoch, and its samples; None: it is fitted alone.

    Only where the learning rate is constant and the loss of the training stops it.
    """
    from clnet.training.fit_options import FitOptions
    from clnet.training.options import resolved

    estimator = fit.estimator
    if (
        not estimator._stochastic or estimator._schedule != "constant"
        or estimator.early_stopping or estimator.verbose or is_sparse(fit.X)
    ):
        return None
    samples, objective = estimator._prepared(fit.X, fit.y, None, False)
    if samples.weight is not None:
        return None
    network = estimator.network_
    estimator._optimizer = OptimizerState.of(estimator, objective)
    progress, options, seed = start_stochastic(estimator, samples, objective, None)
    if options.pop("schedule", None) is not None:  # of a constant rate
        rule = options["optimiser"]
        rate = rule.learning_rate * estimator._optimizer.learning_rate
        options["optimiser"] = replace(rule, learning_rate=rate)
    chosen = resolved(network, FitOptions(
        samples.x, samples.t, epochs=estimator.max_iter, **options
    ), len(samples))
    t = samples.t.astype(network.dtype)
    return _Start(fit, progress, chosen, seed), samples.x, t


def _classes(estimator: BaseEstimator) -> Any:
    """Return what the targets of fits with the same samples depend on."""
    classes = getattr(estimator, "classes_", None)
    return None if classes is None else tuple(classes.tolist())
