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
    """How long to measure."""

    name: str  # ``"quick"``, ``"normal"`` or ``"full"``
    rounds: int  # Blocks a candidate
    block: float = 0.04  # The least seconds of a block
    # Seconds after which a candidate is skipped, once it has `MIN_ROUNDS`
    budget: float = 3.0


EFFORTS = {
    effort.name: effort
    for effort in (Effort("quick", 5), Effort("normal", 9), Effort("full", 21))
}


@dataclass
class TimedCandidate:
    """A candidate's timer on one basis, and its samples."""

    timer: Timer  # Takes the number of runs; returns the seconds of one
    spins: bool = False  # Whether the candidate's threads spin after a run
    repeats: int = 1  # Runs a block
    # Seconds of one run, one a round
    samples: list[float] = field(default_factory=list)
    spent: float = 0.0  # Seconds in all
    fault: Exception | None = None  # The error that ended it

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

    One that raises has a fault, and is left out.
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
