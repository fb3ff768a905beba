"""Processes that run cases: a crash or a hang of one costs a case, and no more."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

from .cases import FAMILY, Case, Outcome, family

CONTEXT = get_context("spawn")  # OpenCL does not survive a fork
HANG_SECONDS = 300.0  # of one case, its builds included


@dataclass
class Result:
    """Results of the cases of a family."""

    family: int  # Its number
    first: int  # The seeds: from `first` up to, and not including, `last`
    last: int
    # The sentence of each case that failed, by its seed
    faults: dict[int, str] = field(default_factory=dict)
    # Cases by task and type, and those skipped by their reason
    counts: dict[str, int] = field(default_factory=dict)
    # Variants and configurations that ran
    steps: list[tuple[str, str]] = field(default_factory=list)
    # Largest error of a prediction over its bound, but for functions that jump
    margin: float = 0.0
    seconds: float = 0.0  # Time of the family


@dataclass(frozen=True)
class Job:
    """Cases of one family, from seed `first` up to `last`.

    `left_out` are seeds of the family that ended a process, and do not run again.
    """

    family: int
    first: int
    last: int
    left_out: tuple[int, ...] = ()


def jobs(first: int, cases: int, each: int = FAMILY) -> Iterator[Job]:
    """Yield the jobs of some cases from seed `first` on."""
    number = first // FAMILY
    while cases > 0:
        start = max(first, number * FAMILY)
        stop = min(number * FAMILY + each, start + cases)
        if start < stop:
            yield Job(number, start, stop)
            cases -= stop - start
        number += 1


def run_job(runner: Any, job: Job, now: Any) -> Result:
    """Run a job; the family's cases before it run first, as they share its memory."""
    result = Result(job.family, job.first, job.last)
    counts: Counter[str] = Counter()
    steps: dict[tuple[str, str], None] = {}
    start = time.perf_counter()
    for case in family(job.family):
        if case.seed >= job.last:
            break
        if case.seed in job.left_out:
            continue
        now.value = case.seed
        outcome = runner.run(case)
        if case.seed < job.first:
            continue
        counts[f"{case.task} {case.dtype}"] += 1
        if outcome.skipped is not None:
            counts[outcome.skipped] += 1
        counts["judged by PyTorch"] += outcome.judged
        if outcome.fault is not None:
            result.faults[case.seed] = outcome.fault
        elif case.task == "predict":
            result.margin = max(result.margin, outcome.margin)
        steps.update(dict.fromkeys(outcome.steps))
    result.counts, result.steps = dict(counts), list(steps)
    result.seconds = time.perf_counter() - start
    return result


def _serve(pipe: Any, now: Any, spec: str | None, number: int) -> None:
    """Answer jobs and cases until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    # Before OpenCL is loaded: processes that share a cold cache of PoCL may fail.
    where = os.environ.get("POCL_CACHE_DIR", str(Path.home() / ".cache" / "pocl"))
    os.environ["POCL_CACHE_DIR"] = str(Path(where) / f"differential-{number}")
    Path(os.environ["POCL_CACHE_DIR"]).mkdir(parents=True, exist_ok=True)
    from .runner import Runner, default_device

    runner = Runner(default_device(spec))
    with suppress(EOFError, BrokenPipeError):  # the parent has ended
        while True:
            task = pipe.recv()
            if isinstance(task, Case):
                runner.forget()
                pipe.send(runner.run(task))
            else:
                pipe.send(run_job(runner, task, now))


class Worker:
    """A process that runs one job or case at a time."""

    def __init__(self, spec: str | None, number: int) -> None:
        self._spec, self._number = spec, number
        self.job: Job | None = None
        self._start()

    def _start(self) -> None:
        self._now = CONTEXT.Value("q", -1, lock=False)
        self.pipe, other = CONTEXT.Pipe()
        self._process = CONTEXT.Process(
            target=_serve, args=(other, self._now, self._spec, self._number),
            daemon=True,
        )
        self._process.start()
        other.close()
        self._seen = -1, time.monotonic()

    def send(self, job: Job) -> None:
        """Start a job."""
        self.job = job
        self._now.value = -1
        self._seen = -1, time.monotonic()
        self.pipe.send(job)

    def result(self) -> list[Result] | None:
        """Return the results of the job if it is done, or has ended; else None.

        A crash or a hang ends it: its case is a fault, and `job` the rest, if any.
        """
        assert self.job is not None
        if self.pipe.poll():
            try:
                found = self.pipe.recv()
            except EOFError:
                return self._ended("the process ended")
            self.job = None
            return [found]
        seed = self._now.value
        if seed != self._seen[0]:
            self._seen = seed, time.monotonic()
        elif time.monotonic() - self._seen[1] > HANG_SECONDS:
            return self._ended(f"no answer within {HANG_SECONDS:g} s")
        return None

    def run(self, case: Case) -> Outcome:
        """Run a case alone, and return its outcome."""
        self.pipe.send(case)
        with suppress(EOFError):
            if self.pipe.poll(HANG_SECONDS):
                outcome: Outcome = self.pipe.recv()
                return outcome
        self.close()
        self._start()
        return Outcome("the process ended, or gave no answer")

    def _ended(self, what: str) -> list[Result]:
        assert self.job is not None
        seed = max(self._now.value, self.job.family * FAMILY)
        self.close()
        if self._process.exitcode:
            what += f" with code {self._process.exitcode}"
        stop = max(seed + 1, self.job.first)
        result = Result(self.job.family, self.job.first, stop, {seed: what})
        # The cases before it count when they run again with the rest; they are fast.
        self.job = replace(self.job, first=stop, left_out=(*self.job.left_out, seed))
        if self.job.first >= self.job.last:
            self.job = None
        self._start()
        return [result]

    def close(self) -> None:
        """End the process."""
        self.pipe.close()
        self._process.kill()
        self._process.join()


def wait(workers: list[Worker], seconds: float) -> None:
    """Wait until a worker has a result, or ended, or the time is over."""
    connection.wait([worker.pipe for worker in workers if worker.job], seconds)
