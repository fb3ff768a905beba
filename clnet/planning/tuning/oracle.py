"""The oracle of trials: ops in float64, and the comparison of results with theirs.

The ops run on perturbed values too: how far a perturbation moves a result tells how far
rounding may.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.checks import PRECISIONS
from clnet.errors import ClnetError
from clnet.ir.batch import Gather
from clnet.ir.product import Contraction
from clnet.ir.reference import silent
from clnet.ir.update import GradientNorm, Update
from clnet.opencl.session import device_errors

if TYPE_CHECKING:
    from clnet.ir.op import Op
    from clnet.ir.program import Program, Span
    from clnet.nn.optimisers import Optimiser
    from clnet.opencl.session import Session
    from clnet.runtime.binding import PlanStep

Array = NDArray[Any]

# Relative, and far above rounding, for each type and precision.
TOLERANCE = {"float32": 1e-5, "float64": 1e-13, "high": 1e-3, "medium": 1e-2}
SENSITIVITY = 10.0  # factor of the oracle's change under one random perturbation
COMPARED = 1 << 14  # numbers that are compared at a time
OVERFLOW_RATIO = 1e-6  # of the type's largest number: sums of such values may overflow
THREADED = 1 << 18  # multiply-adds of a product for which a BLAS uses threads
# Data sets, and the oracle's draws of perturbed values. Rounding may flip a count or a
# sign in one set. Settings may bring many near to flipping, in each set: the draws of
# the last attempt have flipped what rounding may.
ATTEMPTS = ((0, 1), (1, 1), (0, 16))
CHECKED_FLOPS = 3e8  # of a check; larger batches are checked at a smaller size
RATES = (1e-4, 1.0)  # of learning, in trials
ROUNDINGS = 4  # of a parameter and a value of the state, by the step of an optimiser


class WrongResultError(ClnetError):
    """A kernel's results differ from the oracle's."""


def quiet_errors(session: Session) -> AbstractContextManager[None]:
    """Return the context of `device_errors` that also silences NumPy's warnings."""
    return _Contexts(device_errors(session), silent())


class _Contexts(AbstractContextManager[None]):
    """Several contexts as one.

    No `ExitStack`, and no generator: their frames keep the error that a context raises,
    and thus buffers, until the collector runs.
    """

    def __init__(self, *contexts: AbstractContextManager[None]) -> None:
        self._contexts = contexts

    def __enter__(self) -> None:
        for context in self._contexts:
            context.__enter__()

    def __exit__(self, *error: Any) -> None:
        for context in reversed(self._contexts):
            context.__exit__(*error)


def names_of(steps: Sequence[PlanStep]) -> str:
    """Return the names of the steps' variants."""
    return ", ".join(sorted({step.variant.name for step in steps}))


def ops_of(steps: Sequence[PlanStep]) -> tuple[Op, ...]:
    """Return the ops of the steps, in order."""
    return tuple(op for step in steps for op in step.span.ops)


def tolerance_of(computation: Span | Program) -> float:
    """Return the relative tolerance of the type and precision of a span or program."""
    exact = computation.precision == PRECISIONS[0]
    return TOLERANCE[computation.dtype if exact else computation.precision]


def difference(
    result: Array, exact: Array, perturbed: Array, tolerance: float, first: int = 0
) -> str | None:
    """Return the first difference from the oracle beyond rounding, or None."""
    squares = np.zeros((3, len(exact)))  # of changes, the oracle's numbers, distances
    counts = np.zeros(len(exact))
    for block in _blocks(*exact.shape):
        right, moved, actual = exact[block], perturbed[block], result[block]
        finite = np.isfinite(right + moved)
        if not finite.all():
            right, moved = np.where(finite, right, 0.0), np.where(finite, moved, 0.0)
            actual = np.where(finite[: len(actual)], actual, 0.0)
        counts[block[0]] += np.count_nonzero(finite, axis=1)
        distances = actual - right[: len(actual)]
        changes = moved - right
        for sums, numbers in zip(squares, (changes, right, distances), strict=True):
            rows = sums[block[0]][: len(numbers)]
            rows += np.einsum("ij,ij->i", numbers, numbers)
    changes, sizes, distances = np.sqrt(squares)
    change = float(np.max(changes, initial=0.0))
    limits = tolerance * (sizes + np.sqrt(counts)) + SENSITIVITY * change
    wrong = np.flatnonzero(~(distances <= limits)[: len(result)])  # NaN is wrong
    if not wrong.size:
        return None
    row = wrong[0]
    return (
        f"differs from the oracle by {distances[row]:.2g} in norm in row "
        f"{first + row}, at most {limits[row]:.2g} was expected"
    )


def _blocks(rows: int, columns: int) -> Iterator[tuple[slice, slice]]:
    """Yield blocks of an array that stay in a core's cache."""
    height = max(1, COMPARED // max(1, columns))
    for top in range(0, rows, height):
        for left in range(0, columns, COMPARED):
            yield slice(top, top + height), slice(left, left + COMPARED)


def run_ops(
    ops: Iterable[Op], sides: Sequence[tuple[dict[str, Any], Array]], tolerance: float,
    dtype: str, largest: float = 0.0,
) -> float:
    """Run ops on values and parameters, exact ones first, then perturbed by draw.

    Returns the largest number that the exact ones write, at least `largest`.
    """
    for op in ops:
        for draw, (values, parameters) in enumerate(sides):
            relative = tolerance if draw else 0.0
            run_perturbed(op, values, parameters, relative, dtype, draw)
        for value in op.writes:
            numbers = sides[0][0][value.name]
            largest = np.fmax.reduce(numbers, axis=None, initial=largest)
            largest = max(largest, -np.fmin.reduce(numbers, axis=None, initial=0.0))
    return float(largest)


def may_overflow(largest: float, dtype: str) -> bool:
    """Return whether sums of values up to the largest may overflow a dtype."""
    return largest > OVERFLOW_RATIO * float(np.finfo(dtype).max)


def overflows(
    largest: float, exact: Mapping[str, Array], perturbed: Mapping[str, Array],
    dtype: str,
) -> bool:
    """Return whether a trial's values are too large for the kernels' dtype.

    `largest` is that of all values in float64; the results are of `run_perturbed`.
    """
    return may_overflow(largest, dtype) or any(
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


def perturb(values: Array, relative: float, draw: int = 1) -> Array:
    """Return values changed by a relative amount, up or down at random by draw."""
    words = np.random.default_rng(draw).bytes(-(-values.size // 8))
    bits = np.unpackbits(np.frombuffer(words, np.uint8), count=values.size)
    factors = np.array((1 - relative, 1 + relative))
    return np.asarray(values * factors[bits].reshape(values.shape))


def uses_threads(ops: Iterable[Op], samples: int) -> bool:
    """Return whether NumPy uses several threads for ops on so many samples."""
    return any(
        samples * op.storage.n_in * op.storage.n_out > THREADED
        for op in ops if isinstance(op, Contraction)
    )
