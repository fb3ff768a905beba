"""Measuring: the times of runs, back to back and alone, and of several in turn."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from clnet.opencl.process import check_process
from clnet.opencl.store import Timing

# A BLAS's worker threads spin for some 100 to 200 ms after a call, and occupy cores
# (measured with OpenBLAS 0.3.31). The next measurement waits for them.
SPIN_SECONDS = 0.25
WARM_UP_SECONDS = 0.03  # until clocks are high and threads have cores of their own
ROUNDS = 5
ROUND_SECONDS = 4e-3  # a round repeats until it lasts this long
# Of runs before a round: threads that waited for work of the last round's runs leave
# their cores meanwhile.
SETTLE_SECONDS = 1e-3
REMEASURE_RATIO = 2.0  # time over the best, up to which runs in turn are measured on
REMEASURES = 4  # times as many rounds of these
LONGEST_SECONDS = 0.25  # a longer run is not repeated


@dataclass(frozen=True)
class Run:
    """Steps whose results were right, ready to be timed."""

    start: Callable[[], object]  # Enqueue the work, and wait for its end
    finish: Callable[[], object]
    share: float = 1.0  # The share of a run's time that counts
    warm_up: float | None = None  # Instead of `WARM_UP_SECONDS` and `LONGEST_SECONDS`
    longest: float | None = None

    def shared(self, total: Timing) -> Timing:
        """Return the times that count of those of a run."""
        seconds = total.seconds * self.share
        sync = max(0.0, total.latency - total.seconds)
        return replace(total, seconds=seconds, latency=seconds + sync)


def timing(run: Run) -> Timing:
    """Return the times of runs back to back, and of one with the wait for its end.

    Both are lower quartiles: other work of the machine only adds time.
    """
    rounds = _Rounds(run)
    for _ in range(ROUNDS):
        rounds.add()
    return rounds.timing(0)


def timings(
    runs: Sequence[Run], pays: Callable[[float, float], bool]
) -> list[Timing]:
    """Return the times of runs that are measured in turn, so that load affects all.

    They are medians: a run of several threads that wait for each other loses more to
    other work than a run of one.
    """
    every = [_Rounds(run) for run in runs]
    near = every
    for _ in range(REMEASURES):
        begin = time.perf_counter()
        for number in range(ROUNDS):
            for rounds in near[:: 1 if number % 2 else -1]:
                rounds.add()
        cost = time.perf_counter() - begin
        least = min(rounds.timing(1).seconds for rounds in every)
        near = [
            rounds for rounds in near
            if rounds.timing(1).seconds <= REMEASURE_RATIO * least
        ]
        if len(near) < 2 or not pays(cost, least):
            break
    return [rounds.timing(1) for rounds in every]


class _Rounds:
    """Rounds of a run's time, after a warm-up."""

    def __init__(self, run: Run) -> None:
        self._run = run
        warm_up = WARM_UP_SECONDS if run.warm_up is None else run.warm_up
        longest = LONGEST_SECONDS if run.longest is None else run.longest
        begin = time.perf_counter()
        while True:
            start = time.perf_counter()
            run.start()
            run.finish()
            alone = time.perf_counter() - start
            if start + alone >= begin + warm_up:
                break
        self._repeats = max(1, min(1000, int(ROUND_SECONDS / max(alone, 1e-7))))
        self._long = alone if alone > longest else None
        self._rounds: list[float] = []
        self._singles: list[float] = []

    def add(self) -> None:
        """Measure one more round, unless the run is too long to be repeated."""
        if self._long is not None:
            return
        if self._repeats > 1:
            self._seconds(math.ceil(SETTLE_SECONDS / ROUND_SECONDS * self._repeats))
        self._rounds.append(self._seconds(self._repeats))
        # A round of one run is a single run.
        self._singles.append(
            self._seconds(1) if self._repeats > 1 else self._rounds[-1]
        )

    def timing(self, quartile: int) -> Timing:
        """Return the times that count: a quartile of the rounds, the lower one is 0."""
        if self._long is not None:
            return self._run.shared(Timing(self._long, self._long, 0.0))
        import statistics

        low, median, high = quartiles = statistics.quantiles(self._rounds, n=4)
        alone = statistics.quantiles(self._singles, n=4)[quartile]
        spread = (high - low) / median
        return self._run.shared(Timing(quartiles[quartile], alone, spread))

    def _seconds(self, repeats: int) -> float:
        check_process()
        start = time.perf_counter()
        for _ in range(repeats):
            self._run.start()
        self._run.finish()
        return (time.perf_counter() - start) / repeats
