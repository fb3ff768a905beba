"""Metrics of a network's outputs against targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clnet.checks import as_numbers, column_hint
from clnet.errors import InputError
from clnet.nn.notebook import html_table

BIT_FAIL_LIMIT = 0.35  # FANN's default
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
        Where there is an accuracy, and at most `CONFUSED` classes: how many samples of
        each class, by row, the outputs put in each class, by column.
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
    halved : sequence of bool, length 1 or n_out
        Outputs whose error is halved, as FANN's `fann_test` does for symmetric
        activations.
    bit_fail_limit : float
        Errors of at least this size count as failed.
    middles : sequence of float or None, length 1 or n_out
        Middle of the range of each output's function: 0.5 for sigmoid, 0 for tanh; None
        for unbounded functions, as linear ones.

    Raises
    ------
    InputError
        If they are not numbers, the shapes differ or there is no sample.
    """
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
    for name, given in (("halved", halved), ("middles", middles)):
        if len(given) not in (1, outputs.shape[1]):
            raise InputError(
                f"{name} has {len(given)} entries, expected 1 or {outputs.shape[1]}"
            )
    error = (targets - outputs) * np.where(halved, 0.5, 1.0)
    mse, bit_fail = np.square(error).mean(), (np.abs(error) >= bit_fail_limit).sum()
    if None not in middles or _one_hot(targets):
        classes = max(outputs.shape[1], 2)
        found, expected = (
            one[:, 0] > middles[0] if one.shape[1] == 1 else one.argmax(axis=1)
            for one in (outputs, targets)
        )
        return Evaluation(
            float(mse), int(bit_fail), float((found == expected).mean()),
            confusion=_confusion(expected, found, classes),
        )
    missed = np.abs(targets - outputs)
    return Evaluation(
        float(mse), int(bit_fail), None, float(missed.mean()), _r2(outputs, targets),
        float(np.sqrt(np.square(missed).mean())),
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


def _one_hot(targets: NDArray[np.float64]) -> bool:
    """Return whether each sample [batch, n_out] is one-hot.

    One output is the largest number of all targets, the others are the smallest.
    """
    largest = targets == targets.max()
    return bool(
        targets.shape[1] > 1
        and (largest.sum(axis=1) == 1).all()
        and (largest | (targets == targets.min())).all()
    )


def _r2(outputs: NDArray[np.float64], targets: NDArray[np.float64]) -> float:
    """Return the coefficient of determination; see `Evaluation`."""
    left = np.square(targets - outputs).sum(axis=0)
    spread = np.square(targets - targets.mean(axis=0)).sum(axis=0)
    varies = (targets != targets[0]).any(axis=0)
    share = np.where(varies, left / np.where(varies, spread, 1), left != 0)
    return float(np.where(np.isnan(left), np.nan, 1 - share).mean())
