"""Rounds: candidates measured in turn, so that what drifts meets all alike.

Each candidate takes one block of runs a round, forwards in one round and backwards in
the next.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from clnet.planning.tuning.measure import SPIN_SECONDS

from .candidates import Timer

SETTLE_SECONDS = 0.005  # waited after all others, whose threads sleep sooner
LEAST_ROUNDS = 3  # however long they take


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes
    ----------
    name : str
        ``"quick"``, ``"normal"`` or ``"full"``.
    rounds : int
        Blocks of each candidate.
    block : float
        Seconds that a block lasts at least.
    budget : float
        Seconds of measuring after which a candidate sits out, once it has
        `LEAST_ROUNDS`.
    """

    name: str
    rounds: int
    block: float = 0.04
    budget: float = 3.0


EFFORTS = {
    effort.name: effort
    for effort in (Effort("quick", 5), Effort("normal", 9), Effort("full", 21))
}


@dataclass
class Entry:
    """A candidate's timer on one basis, and what it has measured.

    Attributes
    ----------
    timer : callable
        Runs so many times; returns the seconds of one run.
    spins : bool
        Whether the candidate's threads spin on afterwards.
    repeats : int
        Runs a block.
    samples : list of float
        Seconds of one run, one a round.
    spent : float
        Seconds in all.
    fault : Exception or None
        Why it was given up.
    """

    timer: Timer
    spins: bool = False
    repeats: int = 1
    samples: list[float] = field(default_factory=list)
    spent: float = 0.0
    fault: Exception | None = None

    def warm_up(self, least: float) -> None:
        """Find how many runs make a block of at least so many seconds."""
        while True:
            start = time.perf_counter()
            self.timer(self.repeats)
            seconds = time.perf_counter() - start
            if seconds >= least:
                return
            factor = 1.2 * least / max(seconds, 1e-6)
            self.repeats = math.ceil(self.repeats * min(10.0, max(1.5, factor)))

    def block(self) -> None:
        """Measure one block, after a run that wakes threads and fills caches."""
        start = time.perf_counter()
        if self.repeats > 1:
            self.timer(1)
        self.samples.append(self.timer(self.repeats))
        self.spent += time.perf_counter() - start


def interleave(
    entries: Sequence[Entry],
    effort: Effort,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Measure entries in rounds, after one round of warming up.

    Parameters
    ----------
    entries : sequence of Entry
        Their samples are filled; one that fails gets its fault and is left out.
    effort : Effort
        How long.
    pause : callable
        Waits so many seconds.
    """
    spun = True  # the oracle, if nobody else
    for number in range(-1, effort.rounds):
        for entry in entries if number % 2 else reversed(entries):
            tired = entry.spent > effort.budget and len(entry.samples) >= LEAST_ROUNDS
            if tired or entry.fault is not None:
                continue
            pause(SPIN_SECONDS if spun else SETTLE_SECONDS)
            spun = entry.spins
            try:
                if number < 0:
                    entry.warm_up(effort.block)
                else:
                    entry.block()
            except Exception as error:  # whatever a peer may raise
                entry.fault = error


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return lower quartile, median and upper quartile of at least one number."""
    if len(samples) == 1:
        return samples[0], samples[0], samples[0]
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    return low, median, high
