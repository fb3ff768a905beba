"""scikit-learn's learning rates and stop rules, from epoch to epoch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.nn.optimisers import SGD, Adam, Optimiser, optimiser

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

    from clnet.network import Network
    from clnet.sklearn.objective import FitData, Objective
    from clnet.training.callbacks import Training
    from clnet.training.history import Epoch, History, TrainingState

Array = NDArray[Any]

LEAST_RATE = 1e-6  # at which an adaptive learning rate ends the training


def unconverged(epochs: int) -> str:
    """Return the warning of a training that so many epochs have ended."""
    return (
        f"Stochastic Optimizer: Maximum iterations ({epochs}) reached and the "
        "optimization hasn't converged yet."
    )


@dataclass
class OptimizerState:
    """The learning rate and the optimiser's state between calls, without parameters."""

    rule: Optimiser  # A solver's has the rate 1, and `learning_rate` is its factor
    learning_rate: float  # Of the next epoch
    state: TrainingState | None = None  # Without parameters; None: no epoch is done

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
    learning rate changes. A `validation`, (X, y, sample_weight), has a score that stops
    the training; `value` is that of `Objective`.
    """

    rate: float  # The learning rate of the next epoch
    stopped: bool = False  # Whether the training has ended

    def __init__(
        self, estimator: BaseEstimator, samples: FitData, steps: int, value: float,
        validation: tuple[Any, Any, Any] | None,
    ) -> None:
        self._estimator = estimator
        self._n = len(samples)
        self._value = value
        self._validation = validation
        # Of a warm start, those that the fit before has restored.
        self._best: Array | None = (
            None if validation is None or estimator.best_validation_score_ == -np.inf
            else estimator.network_.parameters
        )
        # The penalty's share of an epoch's loss, for a sum of squares of the weights.
        self._penalty = 0.5 * estimator.alpha * steps / self._n / samples.mean_weight
        self._middle = (steps - 1) / (2 * steps)  # the mean step's place in an epoch
        self._squares = self._sum_of_squares(estimator.network_.parameters)
        self.rate = estimator._optimizer.learning_rate

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

        `loss` is clnet's mean loss, without the penalty, which `parameters` have.
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
