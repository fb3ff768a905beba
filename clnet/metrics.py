"""How far a network's outputs are from targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from clnet.checks import as_numbers, column_hint
from clnet.errors import InputError

BIT_FAIL_LIMIT = 0.35  # FANN's default


@dataclass(frozen=True)
class Evaluation:
    """How far outputs are from targets.

    Attributes
    ----------
    mse : float
        Mean of the squared errors over samples and outputs.
    bit_fail : int
        Number of errors of at least the bit-fail limit.
    accuracy : float
        Share of samples whose largest output is the largest target; with one output,
        of those on the same side of the middle of the targets' range.
    """

    mse: float
    bit_fail: int
    accuracy: float


def evaluate(
    y: ArrayLike,
    t: ArrayLike,
    halved: Sequence[bool] = (False,),
    bit_fail_limit: float = BIT_FAIL_LIMIT,
) -> Evaluation:
    """Return how far outputs y [batch, n_out] are from targets t [batch, n_out].

    Parameters
    ----------
    y, t : array_like, shape [batch, n_out] or [n_out]
        Outputs and targets.
    halved : sequence of bool, length 1 or n_out
        Outputs whose error is halved, as FANN's `fann_test` does for symmetric
        activations.
    bit_fail_limit : float
        Errors of at least this size count as failed.

    Raises
    ------
    InputError
        If they are no numbers, the shapes differ or there is no sample.
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
    if len(halved) not in (1, outputs.shape[1]):
        raise InputError(
            f"halved has {len(halved)} entries, expected 1 or {outputs.shape[1]}"
        )
    error = (targets - outputs) * np.where(halved, 0.5, 1.0)
    if outputs.shape[1] == 1:
        middle = (targets.min() + targets.max()) / 2
        right = (outputs > middle) == (targets > middle)
    else:
        right = outputs.argmax(axis=1) == targets.argmax(axis=1)
    return Evaluation(
        float(np.square(error).mean()),
        int((np.abs(error) >= bit_fail_limit).sum()),
        float(right.mean()),
    )
