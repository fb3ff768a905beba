"""Metrics of a network's outputs against targets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clnet.checks import as_numbers, column_hint
from clnet.errors import InputError
from clnet.nn.fann_parameters import BIT_FAIL_LIMIT, bit_fail_limit
from clnet.nn.labels import encoded, output_middles, symmetric_outputs
from clnet.nn.notebook import html_table

if TYPE_CHECKING:
    from clnet.nn.model import Model
    from clnet.nn.scaling import Scaling

CONFUSED = 100  # classes of which each has figures of its own, at most
MOST_SCORES = 1 << 24  # outputs that are kept for the areas under curves, at most


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
        output function's range. For several-hot targets, the share of those with all
        outputs on the targets' sides: subset accuracy, scikit-learn's
        ``accuracy_score``. None: the targets are not classes.
    hamming_loss : float or None
        For several-hot targets, the share of outputs on the wrong side, as
        scikit-learn's.
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
    precision, recall, f1 : ndarray, shape [classes], or None
        Likewise, also for several-hot targets: of the samples put in a class the share
        that is of it, of those of it the share put in it, and the harmonic mean of the
        two; 0 where there is no such sample, as in scikit-learn.
    auc : ndarray, shape [classes], or None
        On the command line: area under the receiver operating characteristic of each
        class against all others, as scikit-learn's ``roc_auc_score``; NaN for a class
        of none or of all samples. None beyond ``MOST_SCORES`` outputs.
    support : ndarray, shape [classes], or None
        Samples of each class.
    """

    mse: float
    bit_fail: int
    accuracy: float | None = None
    mae: float | None = None
    r2: float | None = None
    rmse: float | None = None
    hamming_loss: float | None = None
    confusion: NDArray[np.int64] | None = field(default=None, compare=False)
    precision: NDArray[np.float64] | None = field(default=None, compare=False)
    recall: NDArray[np.float64] | None = field(default=None, compare=False)
    f1: NDArray[np.float64] | None = field(default=None, compare=False)
    auc: NDArray[np.float64] | None = field(default=None, compare=False)
    support: NDArray[np.int64] | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        shown = [metric.name for metric in fields(self) if metric.compare]
        values = ((name, getattr(self, name)) for name in shown)
        parts = [f"{name}={value!r}" for name, value in values if value is not None]
        return f"{type(self).__name__}({', '.join(parts)})"

    def _repr_html_(self) -> str:
        names = [metric.name for metric in fields(self) if metric.compare]
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
    several outputs have one-hot targets; else there are MAE and R². Targets of several
    outputs are several-hot where they are two numbers, one below and one above the
    middles, and not one-hot. The other arguments are those of `Metrics`.
    """
    metrics = Metrics(halved, bit_fail_limit, middles)
    metrics.add(y, t)
    return metrics.evaluation()


class Metrics:
    """The metrics of samples that come in parts, in float64.

    The spread of the targets is merged as by Chan, Golub and LeVeque ("Updating
    formulae and a pairwise algorithm for computing sample variances", 1979). `halved`
    are the outputs whose error FANN's `fann_test` halves, those of symmetric functions;
    errors of at least `bit_fail_limit` count as failed; `middles` are those of each
    output function's range, 0.5 for sigmoid, 0 for tanh, None for unbounded ones. Both
    have one entry, or one an output. With `auc` all outputs are kept, for the areas
    under curves.
    """

    def __init__(
        self, halved: Sequence[bool], bit_fail_limit: float,
        middles: Sequence[float | None], auc: bool = False,
    ) -> None:
        self._halved, self._limit, self._middles = halved, bit_fail_limit, middles
        self._scores: list[tuple[Any, Any]] | None = [] if auc else None
        self._several_hot = True
        self._values: set[float] = set()  # of targets that may be several-hot
        # Several-hot targets, outputs, and both, of each output.
        self._hot: NDArray[np.int64] = np.zeros((3, 0), np.int64)
        self._wrong: float = 0  # several-hot outputs
        self._all_right: float = 0  # samples without a wrong one
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
        for name, values in (("halved", self._halved), ("middles", self._middles)):
            if len(values) not in (1, width):
                raise InputError(
                    f"{name} has {len(values)} entries, expected 1 or {width}"
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
            answers, expected = self._classes(outputs), self._classes(targets)
            self._right += int((answers == expected).sum())
            counts = _confusion(expected, answers, max(width, 2))
            if counts is not None and self._confusion is not None:
                counts += self._confusion
            self._confusion = counts
        if np.isnan(outputs).any():  # of no class
            self._right = self._wrong = self._all_right = np.nan
        if self._several_hot:
            self._several_hot = (
                None not in self._middles and 1 < width <= CONFUSED
                and self._add_several_hot(outputs, targets)
            )
        self._count = total
        if self._scores is not None:
            self._scores.append((outputs, targets))
            if total * width > MOST_SCORES:
                self._scores = None

    def _classes(self, numbers: NDArray[np.float64]) -> NDArray[Any]:
        """Return the class of each sample of outputs or targets [batch, n_out]."""
        if numbers.shape[1] > 1:
            return np.asarray(numbers.argmax(axis=1))
        middles = np.asarray(self._middles, float)
        return np.asarray(numbers[:, 0] > middles[0], np.intp)

    def _add_several_hot(
        self, outputs: NDArray[np.float64], targets: NDArray[np.float64]
    ) -> bool:
        """Count outputs on the targets' sides; return whether targets are two numbers.

        The numbers lie on both sides of every middle.
        """
        middles = np.asarray(self._middles, float)
        ends = float(targets.min()), float(targets.max())
        self._values.update(ends)
        low, high = min(self._values), max(self._values)
        if len(self._values) > 2 or not np.isin(targets, ends).all() or (
            low < high and not ((low < middles) & (middles < high)).all()
        ):
            return False
        answers, expected = outputs > middles, targets > middles
        sets = np.asarray([expected, answers, expected & answers])
        self._hot = sets.sum(axis=1) + (self._hot if self._count else np.int64(0))
        self._wrong += int((answers != expected).sum())
        self._all_right += int((answers == expected).all(axis=1).sum())
        return True

    def evaluation(self) -> Evaluation:
        """Return the metrics of all samples, of which there is one at least."""
        numbers = self._count * self._first.size
        mse = self._squares / numbers
        if self._several_hot and not self._one_hot:
            return Evaluation(
                mse, self._fails, self._all_right / self._count,
                hamming_loss=self._wrong / numbers, **self._figures(*self._hot),
            )
        if None not in self._middles or self._one_hot:
            accuracy, confusion = self._right / self._count, self._confusion
            return Evaluation(
                mse, self._fails, accuracy, confusion=confusion,
                **{} if confusion is None else self._figures(
                    confusion.sum(axis=1), confusion.sum(axis=0), confusion.diagonal()
                ),
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

    def _figures(
        self, support: NDArray[np.int64], answered: NDArray[np.int64],
        right: NDArray[np.int64],
    ) -> dict[str, Any]:
        """Return figures by class: of samples, of those put in it, of those of both."""
        if np.isnan(self._right):
            return {}
        return {
            "precision": right / np.maximum(answered, 1),
            "recall": right / np.maximum(support, 1),
            "f1": 2 * right / np.maximum(answered + support, 1),
            "auc": self._areas(), "support": support,
        }

    def _areas(self) -> NDArray[np.float64] | None:
        """Return the area under the curve of each class; None: outputs are not kept."""
        if self._scores is None:
            return None
        outputs, targets = map(np.concatenate, zip(*self._scores, strict=True))
        if self._one_hot:
            positive = self._classes(targets)[:, np.newaxis] == range(targets.shape[1])
        else:
            positive = targets > np.asarray(self._middles, float)
        areas = [
            _area(scores[of_class], scores[~of_class])
            for scores, of_class in zip(outputs.T, positive.T, strict=True)
        ]
        return np.resize(areas, max(len(areas), 2))  # one output's two are equal


def _area(
    positive: NDArray[np.float64], negative: NDArray[np.float64]
) -> float:
    """Return the probability that a positive's score is above a negative's.

    Ties count half: the statistic of Mann and Whitney, the area under the curve.
    """
    if not positive.size or not negative.size or not (
        np.isfinite(positive).all() and np.isfinite(negative).all()
    ):
        return float("nan")
    negative = np.sort(negative)
    below, within = (
        np.searchsorted(negative, positive, side) for side in ("left", "right")
    )
    return float((below.mean() + within.mean()) / 2 / negative.size)


def metrics_of(network: Model, scaling: Scaling | None, auc: bool = False) -> Metrics:
    """Return the metrics of a network's outputs, in the units of a scaling."""
    symmetric = symmetric_outputs(network)
    halved = symmetric if network.fann_compatible else (False,) * len(symmetric)
    return Metrics(
        halved, bit_fail_limit(network.fann), output_middles(network, scaling), auc
    )


def evaluations(
    network: Model, scaling: Scaling | None, pairs: Iterable[tuple[NDArray[Any], Any]],
    members: int = 1, auc: bool = False,
) -> list[Evaluation]:
    """Return the metrics of each of some networks of one shape.

    Pairs are outputs [members, samples, n_out], and the targets, which may be as for
    `fit`.
    """
    metrics = [metrics_of(network, scaling, auc) for _ in range(members)]
    for ys, t in pairs:
        if t is None:
            raise InputError("the batches have no targets to compare the outputs with")
        if ys.ndim == 3:
            t, _ = encoded(network, t, network.classes)
        for y, metric in zip(ys, metrics, strict=True):
            metric.add(y, t)
    return [metric.evaluation() for metric in metrics]


def _confusion(
    expected: NDArray[Any], answers: NDArray[Any], classes: int
) -> NDArray[np.int64] | None:
    """Return how often each class was found for each class; None: they are many."""
    if classes > CONFUSED:
        return None
    pairs = expected * classes + answers
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
