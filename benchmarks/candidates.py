"""Candidates: the implementations to measure; clnet's own are in `own_candidates`.

A `Candidate` is a name in a study; `Prepared` holds its memory for one case.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, ClassVar

from clnet.errors import ClnetError
from clnet.opencl.device import Device

from .cases.dense import Array, Case, check

if TYPE_CHECKING:

    from .cases.training import Train

# The clocks; a candidate offers some of them.
BASES = {
    "wall": "host array in, host array out, by the host's clock",
    "stream": "data on the device, runs back to back, by the host's clock",
    "device": "first kernel's start to the last one's end, by the device's clock",
    "busy": "the kernels alone, by the device's clock",
    "arrays": "device arrays in and out, calls back to back, by the host's clock",
}

Timer = Callable[[int], float]
"""A function that repeats a run, and returns the seconds of one."""


def bases(device: Device) -> Sequence[str]:
    """Return the bases timed by default; on a CPU nothing is transferred."""
    return ("wall",) if device.type == "cpu" else tuple(BASES)[:3]


class RefusedError(ClnetError):
    """A candidate cannot compute the case; the message says why."""


@dataclass(frozen=True)
class Prepared:
    """A candidate prepared for one case."""

    # Returns the relative error of its results; raises `WrongError` if it exceeds the
    # case's tolerance
    check: Callable[[], float]
    # A factory of the timer for each basis that it offers
    timers: Mapping[str, Callable[[], Timer]]
    config: str = ""  # The chosen or tuned configuration, for people
    threads: int | None = None  # Host threads that it uses; None: unknown
    spins: bool = False  # Whether its threads spin after a call, as a BLAS's do
    # The training that `timers` repeat, a `cases.training.Train`
    train: Train | None = None


class Candidate:
    """An implementation to measure, for one kind of case."""

    name: str  # As in the rows and on the command line
    timeout: ClassVar[float | None] = None  # Seconds that `prepare` may take
    requires: ClassVar[tuple[str, ...]] = ()  # The modules that it imports

    def missing(self) -> str | None:
        """Return None if it can be prepared, else the name of a missing module."""
        for module in self.requires:
            if find_spec(module) is None:
                return f"{module} is not installed"
        return None

    def prepare(self, case: Any, device: Device) -> Prepared:
        """Return it prepared for a case; any exception becomes a row."""
        raise NotImplementedError


@dataclass(frozen=True)
class Wrapped(Candidate):
    """Another candidate, which is prepared in a way of its own."""

    candidate: Any  # a frozen dataclass, which is hashable
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.candidate.name)
        object.__setattr__(self, "timeout", self.candidate.timeout)

    def missing(self) -> str | None:
        """Return the candidate's reason."""
        reason: str | None = self.candidate.missing()
        return reason


class Baseline(Candidate):
    """Another library's implementation."""

    timeout: ClassVar[float] = 120.0


def forward(
    case: Case,
    call: Callable[[Array], Array],
    timers: Mapping[str, Callable[[], Timer]] | None = None,
    config: str = "",
    threads: int | None = None,
    spins: bool = False,
) -> Prepared:
    """Return a feed-forward candidate: host array [batch, n_in] in, [batch, n_out] out.

    Parameters are those of `Prepared`; the check and the timer ``"wall"`` are added.
    """
    return Prepared(
        lambda: check(case, call),
        {"wall": lambda: wall(call, case.inputs), **(timers or {})},
        config, threads, spins,
    )


def wall(call: Callable[[Array], Array], inputs: Sequence[Array]) -> Timer:
    """Return the timer of a call on sets of inputs in turn."""

    def timer(repeats: int) -> float:
        start = time.perf_counter()
        for x in islice(cycle(inputs), repeats):
            call(x)
        return (time.perf_counter() - start) / repeats

    return timer


def back_to_back(run: Callable[[], object], finish: Callable[[], object]) -> Timer:
    """Return the timer of runs that are enqueued, and then waited for together."""

    def timer(repeats: int) -> float:
        finish()
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        finish()
        return (time.perf_counter() - start) / repeats

    return timer
