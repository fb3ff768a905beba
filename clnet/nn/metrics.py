"""Metrics of a network's outputs against targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clnet.checks import as_numbers, column_hint
from clnet.errors import InputError
from clnet.nn.fann_parameters import BIT_FAIL_LIMIT, bit_fail_limit
from clnet.nn.labels import output_middles, symmetric_outputs
from clnet.nn.notebook import html_table

if TYPE_CHECKING:
    from clnet.nn.model import Model
    from clnet.nn.scaling import Scaling

CONFUSED = 100  # classes of a confusion table, at most


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Metrics of outputs against targets; the text omits those that do not apply.

    Attributes
    ----------
    mse : float
        Mean of the squared errors over samples and outputs.
    bit_fail : int
        Number of errors of at least the bit-fail limit.
    accuracy : float or None
        For classes, the share of samples whose largest output is the largest target;
        with one output, of those where both are on the same side of the middle of the
        output function's range. None: the targets are not classes.
    mae : float or None
        Where there is no accuracy, the mean of the absolute errors.
    r2 : float or None
        Where there is no accuracy, the coefficient of determination, as scikit-learn's
        `r2_score`: ``1 - sum (t - y)^2 / sum (t - mean t)^2``, the mean over outputs;
        an output whose targets are all equal counts 1 without an error, else 0.
    rmse : float or None
        Where there is no accuracy, the root of the mean of the squared errors.
    confusion : ndarray, shape [classes, classes], or None
        Where there is an accuracy, and at most ``CONFUSED`` classes: how many samples
        of each class, by row, the outputs put in each class, by column.
    """

    mse: float
    bit_fail: int
    accuracy: float | None = None
    mae: float | None = None
    r2: float | None = None
    rmse: float | None = None
    confusion: NDArray[np.int64] | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        shown = [one.name for one in fields(self) if one.compare]
        values = ((name, getattr(self, name)) for name in shown)
        parts = [f"{name}={value!r}" for name, value in values if value is not None]
        return f"{type(self).__name__}({', '.join(parts)})"

    def _repr_html_(self) -> str:
        names = [one.name for one in fields(self) if one.compare]
        rows = [(name, f"{value:.6g}") for name in names
                if (value := getattr(self, name)) is not None]
        text = html_table("", ("metric", "value"), rows)
        if self.confusion is None:
            return text
        counts = [(number, *row) for number, row in enumerate(self.confusion.tolist())]
        headers = ("class", *(str(number) for number in range(len(counts))))
        return text + html_table("samples by class and answer", headers, counts)


def evaluate(
    y: ArrayLike,
    t: ArrayLike,
    halved: Sequence[bool] = (False,),
    bit_fail_limit: float = BIT_FAIL_LIMIT,
    middles: Sequence[float | None] = (None,),
) -> Evaluation:
    """Return the metrics of outputs y [batch, n_out] against targets t [batch, n_out].

    There is an accuracy where every output function's range has a middle, or where
    several outputs have one-hot targets; else there are MAE and R².

    Parameters
    ----------
    y, t : array_like, shape [batch, n_out] or [n_out]
        Outputs and targets.
    halved, bit_fail_limit, middles
        As for `Metrics`.

    Raises
    ------
    InputError
        If they are not numbers, the shapes differ or there is no sample.
    """
    metrics = Metrics(halved, bit_fail_limit, middles)
    metrics.add(y, t)
    return metrics.evaluation()


class Metrics:
    """The metrics of samples that come in parts, in float64.

    The spread of the targets is merged as by Chan, Golub and LeVeque ("Updating
    formulae and a pairwise algorithm for computing sample variances", 1979).

    Parameters
    ----------
    halved : sequence of bool, length 1 or n_out
        Outputs whose error is halved, as FANN's `fann_test` does for symmetric
        activations.
    bit_fail_limit : float
        Errors of at least this size count as failed.
    middles : sequence of float or None, length 1 or n_out
        Middle of the range of each output's function: 0.5 for sigmoid, 0 for tanh; None
        for unbounded functions, as linear ones.
    """

    def __init__(
        self, halved: Sequence[bool], bit_fail_limit: float,
        middles: Sequence[float | None],
    ) -> None:
        self._halved, self._limit, self._middles = halved, bit_fail_limit, middles
        self._count = self._fails = 0
        self._right: float = 0
        self._squares = self._missed = self._missed_squares = 0.0
        self._confusion: NDArray[np.int64] | None = None
        self._one_hot = True
        self._first: NDArray[np.float64] = np.zeros(0)  # targets
        self._mean = self._spread = self._left = np.zeros(0)  # of each output
        self._varies = np.zeros(0, bool)

    def add(self, y: ArrayLike, t: ArrayLike) -> None:
        """Add samples; shapes and errors are those of `evaluate`."""
        outputs = as_numbers("outputs", y, "float64")
        targets = as_numbers("targets", t, "float64")
        if outputs.ndim not in (1, 2):
            raise InputError(
                f"outputs have shape {list(outputs.shape)}, expected [batch, n_out] or "
                "[n_out]"
            )
        if outputs.shape != targets.shape:
            hint = column_hint("t", targets, outputs.shape[-1])
            raise InputError(
                f"targets have shape {list(targets.shape)}, expected "
                f"{list(outputs.shape)}{hint}"
            )
        if outputs.size == 0:
            raise InputError("there is no sample to evaluate: give at least one")
        outputs, targets = np.atleast_2d(outputs), np.atleast_2d(targets)
        n, width = outputs.shape
        for name, given in (("halved", self._halved), ("middles", self._middles)):
            if len(given) not in (1, width):
                raise InputError(
                    f"{name} has {len(given)} entries, expected 1 or {width}"
                )
        missed = np.abs(targets - outputs)
        error = missed * np.where(self._halved, 0.5, 1.0)
        self._squares += float(np.square(error).sum())
        self._fails += int((error >= self._limit).sum())
        self._missed += float(missed.sum())
        self._missed_squares += float(np.square(missed).sum())
        if not self._count:
            self._first, self._varies = targets, np.zeros(width, bool)
            self._mean = self._spread = self._left = np.zeros(width)
        self._one_hot = (
            self._one_hot and one_hot(targets)
            and targets.max() == self._first.max()
            and targets.min() == self._first.min()
        )
        self._varies |= (targets != self._first[0]).any(axis=0)
        self._first = self._first[:1]
        self._left = self._left + np.square(missed).sum(axis=0)
        mean, total = targets.mean(axis=0), self._count + n
        away = mean - self._mean
        self._spread = self._spread + np.square(targets - mean).sum(axis=0) + (
            np.square(away) * (self._count * n / total)
        )
        self._mean = self._mean + away * (n / total)
        if None not in self._middles or self._one_hot:
            found, expected = (
                one[:, 0] > self._middles[0] if width == 1 else one.argmax(axis=1)
                for one in (outputs, targets)
            )
            self._right += int((found == expected).sum())
            if np.isnan(outputs).any():  # of no class
                self._right = np.nan
            counts = _confusion(expected, found, max(width, 2))
            if counts is not None and self._confusion is not None:
                counts += self._confusion
            self._confusion = counts
        self._count = total

    def evaluation(self) -> Evaluation:
        """Return the metrics of all samples, of which there is one at least."""
        numbers = self._count * self._first.size
        mse = self._squares / numbers
        if None not in self._middles or self._one_hot:
            return Evaluation(
                mse, self._fails, self._right / self._count, confusion=self._confusion
            )
        share = np.where(
            self._varies, self._left / np.where(self._varies, self._spread, 1),
            self._left != 0,
        )
        r2 = np.where(np.isnan(self._left), np.nan, 1 - share).mean()
        return Evaluation(
            mse, self._fails, None, self._missed / numbers, float(r2),
            float(np.sqrt(self._missed_squares / numbers)),
        )


def metrics_of(network: Model, scaling: Scaling | None) -> Metrics:
    """Return the metrics of a network's outputs, in the units of a scaling."""
    halved = [network.fann_compatible and one for one in symmetric_outputs(network)]
    return Metrics(
        halved, bit_fail_limit(network.fann), output_middles(network, scaling)
    )


def _confusion(
    expected: NDArray[Any], found: NDArray[Any], classes: int
) -> NDArray[np.int64] | None:
    """Return how often each class was found for each class; None: they are many."""
    if classes > CONFUSED:
        return None
    pairs = expected * classes + found
    counts = np.bincount(pairs, minlength=classes**2)
    return counts.reshape(classes, classes)


def one_hot(targets: NDArray[np.float64]) -> bool:
    """Return whether each sample [batch, n_out] is one-hot.

    One output is the largest number of all targets, the others are the smallest.
    """
    largest = targets == targets.max()
    return bool(
        targets.shape[1] > 1
        and (largest.sum(axis=1) == 1).all()
        and (largest | (targets == targets.min())).all()
    )
