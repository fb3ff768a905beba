"""The oracle of trials: ops in float64, and on perturbed values.

How far a perturbation moves a result tells how far rounding may.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.ir.batch import Gather
from clnet.ir.reference import silent
from clnet.ir.update import GradientNorm, Update
from clnet.planning.tuning.measure import OVERFLOW_RATIO, perturb

if TYPE_CHECKING:
    from clnet.ir.op import Op
    from clnet.nn.optimisers import Optimiser

Array = NDArray[Any]

# Data sets, and the oracle's draws of perturbed values. Rounding may flip a count or a
# sign in one set. Settings may bring many near to flipping, in each set: the draws of
# the last attempt have flipped what rounding may.
ATTEMPTS = ((0, 1), (1, 1), (0, 16))
CHECKED_FLOPS = 3e8  # of a check; larger batches are checked at a smaller size
RATES = (1e-4, 1.0)  # of learning, in trials
ROUNDINGS = 4  # of a parameter and a value of the state, by the step of an optimiser


def overflows(
    largest: float, exact: Mapping[str, Array], perturbed: Mapping[str, Array],
    dtype: str,
) -> bool:
    """Return whether a trial's values are too large for the kernels' dtype.

    `largest` is that of all values in float64; the results are of `run_perturbed`.
    """
    return largest > OVERFLOW_RATIO * float(np.finfo(dtype).max) or any(
        np.any(np.isfinite(values) & ~np.isfinite(perturbed[name]))
        for name, values in exact.items()
    )


def farthest(
    exact: Mapping[str, Array], others: Sequence[Mapping[str, Array]]
) -> dict[str, Array]:
    """Return the numbers of others that are farthest from the exact ones."""
    numbers = {}
    for name, values in exact.items():
        rows = np.stack([other[name] for other in others])
        with silent():
            at = np.abs(rows - values).argmax(axis=0)  # NaN, if there is one
        numbers[name] = np.take_along_axis(rows, at[np.newaxis], axis=0)[0]
    return numbers


def tame_rate(rule: Optimiser) -> float:
    """Return the learning rate of a trial: the rule's, or the nearest of `RATES`.

    It is an argument of the kernels, so that any rate tries the same programs; after
    steps of an extreme one there is nothing to compare.
    """
    return min(max(rule.rate, RATES[0]), RATES[1])


def run_perturbed(
    op: Op, values: dict[str, Any], parameters: Array, relative: float, dtype: str,
    draw: int = 1,
) -> None:
    """Run an op in float64, on values perturbed by a relative amount, by draw.

    The perturbed step of an optimiser is in the dtype of the kernels, from parameters
    and a state a few roundings off: constants of any size may make it cancel, overflow
    or underflow there.
    """
    if isinstance(op, Gather):  # the data set may be large
        op.run(values, parameters)
        for value in op.batch:
            values[value.name] = values[value.name].astype(np.float64)
        return
    for value in op.reads:
        if value.whole:
            continue
        rows = values[value.name].astype(np.float64, copy=False)
        values[value.name] = perturb(rows, relative, draw) if relative else rows
    if not relative or not isinstance(op, (GradientNorm, Update)):
        op.run(values, parameters)
        return
    few = ROUNDINGS * float(np.finfo(dtype).eps)
    arrays = [value.name for value in op.reads if not value.whole]
    narrow = {**values, **{name: values[name].astype(dtype) for name in arrays}}
    if isinstance(op, Update):
        arrays.append("state")
        narrow["state"] = perturb(values["state"], few, draw).astype(dtype)
    flat = perturb(parameters, few, draw).astype(dtype)
    op.run(narrow, flat)
    if isinstance(op, Update):
        parameters[...] = flat
    for name in (*arrays, *(value.name for value in op.writes)):
        values[name] = narrow[name].astype(np.float64)
