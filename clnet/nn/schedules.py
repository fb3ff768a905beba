"""Learning-rate schedules: the factor of an optimiser's rate, epoch by epoch.

A schedule is a callable of the epoch's number, counted from 0. Three usual ones are
here, as frozen rows.

Examples
--------
>>> halve = clnet.schedules.Step(every=10, factor=0.5)
>>> [halve(epoch) for epoch in (0, 9, 10, 25)]
[1.0, 1.0, 0.5, 0.25]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from clnet.checks import as_finite, check_name, convert_wholes, is_number
from clnet.errors import InputError, quoted

Schedule = Callable[[int], float]


@dataclass(frozen=True)
class Step:
    """``factor ** (epoch // every)``: step decay.

    Attributes
    ----------
    every : int
        Epochs from one step to the next.
    factor : float
        Above 0.
    """

    every: int = 30
    factor: float = 0.1

    def __post_init__(self) -> None:
        convert_wholes(self, "every")
        _check_factor(self.factor)

    def __call__(self, epoch: int) -> float:
        """Return the factor of an epoch, counted from 0."""
        return float(self.factor ** (epoch // self.every))


@dataclass(frozen=True)
class Exponential:
    """``factor ** epoch``: exponential decay.

    Attributes
    ----------
    factor : float
        Above 0.
    """

    factor: float = 0.97

    def __post_init__(self) -> None:
        _check_factor(self.factor)

    def __call__(self, epoch: int) -> float:
        """Return the factor of an epoch, counted from 0."""
        return float(self.factor**epoch)


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from 1 down to `final`, then constant.

    Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm restarts", 2017,
    without restarts.

    Attributes
    ----------
    epochs : int
        Epochs of the descent.
    final : float
        From 0 to 1.
    """

    epochs: int
    final: float = 0.0

    def __post_init__(self) -> None:
        convert_wholes(self, "epochs")
        if not is_number(self.final) or not 0 <= self.final <= 1:
            raise InputError(
                f"final must be a number from 0 to 1, not {quoted(self.final)}"
            )

    def __call__(self, epoch: int) -> float:
        """Return the factor of an epoch, counted from 0."""
        progress = min(epoch / self.epochs, 1.0)
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * progress)) / 2


def _check_factor(factor: object) -> None:
    if not as_finite("factor", factor) > 0:
        raise InputError(f"factor must be a number above 0, not {quoted(factor)}")


def constant(epoch: int) -> float:
    """Return 1: every epoch has the optimiser's rate."""
    return 1.0


SCHEDULES: dict[str, Callable[[int], Schedule]] = {
    "step": lambda _: Step(),
    "exponential": lambda _: Exponential(),
    "cosine": Cosine,
}
"""Schedules by name, for a training of so many epochs."""


def schedule(rule: str | Schedule | None, last: int) -> Schedule:
    """Return a schedule by its name, or as it is; None: a constant rate.

    Its factors are checked at each call.

    Parameters
    ----------
    rule : str, callable or None
        A name of `SCHEDULES`, or a function of the epoch's number.
    last : int
        Epochs of the training, those before it was resumed included.

    Raises
    ------
    InputError
        If there is none of that name, it is not callable, or a call does not return a
        finite number of at least 0.
    """
    if rule is None:
        return constant
    if isinstance(rule, str):
        check_name("schedule", rule, SCHEDULES)
        return SCHEDULES[rule](last)
    if not callable(rule) or isinstance(rule, type):
        raise InputError(
            f"a schedule must be one of {', '.join(SCHEDULES)}, or a function of the "
            f"epoch's number, not {quoted(rule)}"
        )

    def checked(epoch: int) -> float:
        try:
            factor = rule(epoch)
        except OverflowError:
            factor = math.inf
        if not is_number(factor) or not 0 <= factor < math.inf:
            raise InputError(
                f"the schedule returned {quoted(factor)} for epoch {epoch}, expected a "
                "finite number of at least 0"
            )
        return float(factor)

    return checked


def predictable(schedule: str | Schedule | None) -> bool:
    """Return whether a schedule's factors depend on the epoch's number alone.

    A function of the caller's may read state that a callback changes.
    """
    return schedule is None or isinstance(schedule, (str, Step, Exponential, Cosine))
