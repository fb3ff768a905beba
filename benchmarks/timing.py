"""Interleaved timing: all candidates in rounds, so that drift affects all alike.

In each round every candidate runs one block of repeats; the order alternates.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from clnet.planning.tuning.measure import SPIN_SECONDS

from .candidates import Timer

SETTLE_SECONDS = 0.005  # pause after candidates whose threads do not spin
MIN_ROUNDS = 3  # however long they take


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes
    ----------
    name : str
        ``"quick"``, ``"normal"`` or ``"full"``.
    rounds : int
        Blocks a candidate.
    block : float
        The least seconds of a block.
    budget : float
        Seconds after which a candidate is skipped, once it has `MIN_ROUNDS`.
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
class TimedCandidate:
    """A candidate's timer on one basis, and its samples.

    Attributes
    ----------
    timer : callable
        Takes the number of runs; returns the seconds of one.
    spins : bool
        Whether the candidate's threads spin after a run.
    repeats : int
        Runs a block.
    samples : list of float
        Seconds of one run, one a round.
    spent : float
        Seconds in all.
    fault : Exception or None
        The error that ended it.
    """

    timer: Timer
    spins: bool = False
    repeats: int = 1
    samples: list[float] = field(default_factory=list)
    spent: float = 0.0
    fault: Exception | None = None

    def warm_up(self, block: float) -> None:
        """Find the repeats that take at least `block` seconds."""
        while True:
            start = time.perf_counter()
            self.timer(self.repeats)
            seconds = time.perf_counter() - start
            if seconds >= block:
                return
            factor = 1.2 * block / max(seconds, 1e-6)
            self.repeats = math.ceil(self.repeats * min(10.0, max(1.5, factor)))

    def block(self) -> None:
        """Measure one block after an untimed run, which wakes threads, fills caches."""
        start = time.perf_counter()
        if self.repeats > 1:
            self.timer(1)
        self.samples.append(self.timer(self.repeats))
        self.spent += time.perf_counter() - start


def interleave(
    entries: Sequence[TimedCandidate],
    effort: Effort,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Measure candidates in rounds, after one warm-up round.

    Parameters
    ----------
    entries : sequence of TimedCandidate
        Their samples are filled. One that raises has a fault, and is left out.
    effort : Effort
        The rounds.
    pause : callable
        Waits for a number of seconds.
    """
    spun = True  # by the oracle
    for number in range(-1, effort.rounds):
        for entry in entries if number % 2 else reversed(entries):
            done = entry.spent > effort.budget and len(entry.samples) >= MIN_ROUNDS
            if done or entry.fault is not None:
                continue
            pause(SPIN_SECONDS if spun else SETTLE_SECONDS)
            spun = entry.spins
            try:
                if number < 0:
                    entry.warm_up(effort.block)
                else:
                    entry.block()
            except Exception as error:  # a baseline may raise anything
                entry.fault = error
