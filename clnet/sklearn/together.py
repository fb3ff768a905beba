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
    from clnet.training.members import Member
    from clnet.training.population import MemberGroup

Array = NDArray[Any]


@dataclass
class Fit:
    """One fit of a search.

    Attributes
    ----------
    estimator : MLPClassifier or MLPRegressor
        To fit.
    rows : ndarray of int
        The samples of its training set.
    X, y : array_like
        These samples.
    seconds : float
        Its share of the time that a training together took; 0: it is not fitted.
    """

    estimator: BaseEstimator
    rows: Array
    X: Any
    y: Any
    seconds: float = 0.0


@dataclass
class _Start:
    """A fit before its first epoch."""

    fit: Fit
    progress: Progress
    member: Member


class _Shape:
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
        from clnet.training.members import Members, Samples
        from clnet.training.population import MemberGroup, kinds_of

        kinds: dict[Any, list[_Start]] = {}
        for start, kind in zip(self._starts, kinds_of(
            [one.member.options for one in self._starts],
            [len(one.fit.rows) for one in self._starts],
        ), strict=True):
            drops = dropout_of(start.fit.estimator.network_).any()
            kinds.setdefault((kind, drops), []).append(start)
        samples = Samples(self._data, None, None)
        networks: dict[tuple[float, ...], Network] = {}
        for starts in kinds.values():
            begin = time.perf_counter()
            dropout = np.stack([
                dropout_of(one.fit.estimator.network_) for one in starts
            ])
            members = Members.of([one.member for one in starts], dropout)
            group = MemberGroup(
                with_dropout(self.network, dropout.max(axis=0)),
                members, np.arange(len(starts)), samples, self.device,
            )
            if group.refusal is None:
                with device_errors(session(self.device)):
                    trained = _fit(group, starts)
                for one, parameters in trained:
                    one.seconds = (time.perf_counter() - begin) / len(starts)
                    if share:
                        own = one.estimator.network_
                        one.estimator.network_ = networks.setdefault(
                            tuple(dropout_of(own)), own
                        )
                        one.estimator._shared = parameters
                    else:
                        one.estimator.network_.parameters = parameters


def _fit(group: MemberGroup, starts: Sequence[_Start]) -> list[tuple[Fit, Array]]:
    """Train until scikit-learn's rules stop each.

    Return the fits that are finite, and their parameters.
    """
    from clnet.opencl.session import session
    from clnet.runtime.train_state import TrainState
    from clnet.training.member_bound import Rates

    members = [one.member for one in starts]
    parameters = np.stack([one.fit.estimator.network_.parameters for one in starts])
    count, size = parameters.shape
    state = members[0].options.rule.initial_state(size, parameters.dtype.name)
    train_state = TrainState(
        session(group.device), parameters.reshape(-1),
        state, members=count,
    )
    replay = group.launches.training_replay(train_state)
    most = np.array([one.options.epochs for one in members])
    rates = Rates(group.members)
    done, finite = np.zeros(count, int), np.ones(count, bool)
    active = np.arange(count)
    while active.size:
        schedule = rates.schedule(active, done[active], 1)
        launch = replay.run_members(active, done[active], *schedule)
        losses = group.measures(launch.last, replay.samples[active])[:, 0]
        parameters = train_state.member_parameters()
        done[active] += 1
        finite[active] = np.isfinite(losses)
        stays = finite[active] & (done < most)[active]
        for at, i in enumerate(active.tolist()):
            if finite[i] and starts[i].progress.ended(losses[at], parameters[i]):
                stays[at] = False
        active = active[stays]
    parameters = train_state.member_parameters()
    finite &= np.isfinite(parameters).all(axis=1)
    for one in starts:
        one.fit.estimator._converged = one.progress.stopped
    return [(starts[i].fit, parameters[i]) for i in np.flatnonzero(finite).tolist()]


def fit_together(fits: Sequence[Fit], samples: int, share: bool = False) -> None:
    """Fit estimators side by side, by the samples' numbers; some may stay unfitted.

    Parameters
    ----------
    fits : sequence of Fit
        Unfitted estimators, which change; those with `seconds` are fitted then.
    samples : int
        Of all.
    share : bool
        Whether estimators of one shape may share a network and its plans: only those
        that `take_known_fit` gives, and one at a time.
    """
    shapes: list[_Shape] = []
    for one in fits:
        estimator = one.estimator
        try:
            started = _started(one)
            if started is None:
                continue
            key = estimator.network_, estimator.device, _classes(estimator)
            shape = next((shape for shape in shapes if shape.takes(*key)), None)
            if shape is None:
                shape = _Shape(*key, samples)
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
    from clnet.training.members import Member
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
    member = Member(chosen, seed, fit.rows.astype(np.int32), None, None)
    t = samples.t.astype(network.dtype)
    return _Start(fit, progress, member), samples.x, t


def _classes(estimator: BaseEstimator) -> Any:
    """Return what the targets of fits with the same samples depend on."""
    classes = getattr(estimator, "classes_", None)
    return None if classes is None else tuple(classes.tolist())
