"""The harness: prepare candidates, check their results, time them, keep every row.

A study consists of trials: a case and its candidates. Each candidate is prepared, and
its results are compared with the float64 oracle. One that is missing, refuses, fails or
is wrong has a row that says so. The others are timed in turn (`timing`).
"""

from __future__ import annotations

import contextlib
import gc
import re
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from clnet.errors import ClnetError, InputError
from clnet.opencl.device import Device

from .candidates import Candidate, Prepared, RefusedError
from .cases.dense import WrongError
from .cases.training import Workload
from .environment import device_identity, load, now, versions
from .measurements import ENVIRONMENT, SUBJECT, Measurement
from .roofline import Floor, Roofline
from .timing import Effort, TimedCandidate, interleave

REASON_LENGTH = 200  # letters
DATA = "data"  # the candidate of the row of a case whose data are missing
# The options that only some studies take, and their names on the command line.
STUDY_OPTIONS = {
    "batches": "--batch", "precisions": "--precision", "tune": "--tune",
    "data": "--data", "fann_library": "--fann-library", "model": "--model",
}


@dataclass(frozen=True)
class Options:
    """The options of a run; None: the study's default."""

    effort: str = "normal"  # Of `timing.EFFORTS`
    batches: Sequence[int] | None = None  # Samples a call
    precisions: Sequence[str] | None = None  # Of products, as PyTorch names them
    # Names, with ``*`` and ``?``
    tables: Sequence[str] | None = None
    cases: Sequence[str] | None = None
    # Names of candidates, clnet's and others; ``["none"]``: none
    variants: Sequence[str] | None = None
    baselines: Sequence[str] | None = None
    bases: Sequence[str] | None = None  # Of the study's `BASES`
    # Whether all configurations of clnet's variants are measured first
    tune: bool = False
    data: str | None = None  # The folder of the data sets
    fann_library: str | None = None  # The file of FANN's library; None: the system's
    resume: bool = False  # Whether rows of the file are kept instead of measured again
    # Whether times are predicted by the file's rows instead of measured
    model: bool = False

    def check(self, study: str, taken: Collection[str]) -> None:
        """Raise InputError if an option is given that a study does not take."""
        for field in fields(self):
            value = getattr(self, field.name)
            refused = field.name in STUDY_OPTIONS and field.name not in taken
            if refused and value != field.default:
                allowed = ", ".join(
                    option for name, option in STUDY_OPTIONS.items() if name in taken
                )
                raise InputError(
                    f"the study {study} takes no {STUDY_OPTIONS[field.name]}"
                    + (f", but {allowed}" if allowed else "")
                )


@dataclass(frozen=True)
class Trial:
    """A case and its candidates."""

    table: str  # Of the study; rows of one table are read together
    case: Workload
    candidates: tuple[Candidate, ...]
    # Names of slow candidates, which run only if named
    on_demand: frozenset[str] = frozenset()
    # Baselines; ratios are those to the first that was measured
    against: tuple[str, ...] = ("numpy",)
    roofline: bool = True  # Whether times are compared with the roofline's floor


@contextlib.contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raise TimeoutError in the block after so many seconds.

    There is no limit on systems without interval timers, or outside the main thread.
    """
    main = threading.current_thread() is threading.main_thread()
    if seconds is None or not main or not hasattr(signal, "setitimer"):
        yield
        return

    def ring(*_: Any) -> None:
        raise TimeoutError(f"not ready after {seconds:g} s")

    handler = signal.signal(signal.SIGALRM, ring)
    start = time.monotonic()
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:  # an outer timer goes on
            rest = max(left - (time.monotonic() - start), 1e-3)
            signal.setitimer(signal.ITIMER_REAL, rest, interval)


@dataclass(frozen=True)
class Ready:
    """A candidate that is prepared, with the relative error of its results."""

    name: str
    prepared: Prepared
    error: float


class Harness:
    """Runs trials on a device.

    Rows of `done` of this device and these versions are not measured again, but for
    candidates that were missing.
    """

    def __init__(
        self,
        study: str,
        device: Device,
        effort: Effort,
        bases: Sequence[str],
        on_row: Callable[[Measurement], None],
        log: Callable[[str], None] = lambda line: None,
        done: Sequence[Measurement] = (),
    ) -> None:
        self.device = device
        self._study = study
        self._effort = effort
        self._bases = bases
        self._on_row = on_row
        self._log = log
        self._roofline = Roofline(device)
        self._environment: dict[str, Any] = {
            **device_identity(device), **versions(), "load": load(),
        }
        current = [self._environment[name] for name in ENVIRONMENT]
        self._done: dict[tuple[Any, ...], dict[str, Measurement]] = {}
        for row in done:
            if [getattr(row, name) for name in ENVIRONMENT] == current:
                self._done.setdefault(_subject(row), {})[row.basis] = row

    def done(self, trial: Trial) -> list[Measurement]:
        """Return the earlier rows of a trial."""
        return [
            row for candidate in trial.candidates
            for row in self._earlier(trial, candidate.name).values()
        ]

    def run(self, trial: Trial) -> None:
        """Measure a trial; an interruption keeps the rows measured before."""
        missing = trial.case.missing()
        if missing is not None:
            self._add(trial, DATA, status="missing", reason=missing)
            return
        ready = []
        for candidate in trial.candidates:
            earlier = self._earlier(trial, candidate.name)
            failed = "" in earlier and earlier[""].status != "missing"
            if failed or earlier.keys() >= set(self._bases):
                continue
            self._log(f"{candidate.name}: preparing")
            prepared = self._prepare(trial, candidate)
            if prepared is not None:
                ready.append(prepared)
        if not ready:
            return
        try:
            floor = self._floor(trial.case) if trial.roofline else None
            for basis in self._bases:
                self._measure(trial, basis, ready, floor)
        finally:
            # Plans and their actions are reference cycles that hold device memory.
            ready.clear()
            gc.collect()

    def _prepare(self, trial: Trial, candidate: Candidate) -> Ready | None:
        """Return a candidate prepared and checked; or None, and add a row."""
        name = candidate.name
        try:
            with time_limit(candidate.timeout):
                missing = candidate.missing()
                if missing is None:
                    prepared = candidate.prepare(trial.case, self.device)
                    return Ready(name, prepared, prepared.check())
            if "" not in self._earlier(trial, name):
                self._add(trial, name, status="missing", reason=missing)
        except RefusedError as refusal:
            self._add(trial, name, status="refused", reason=str(refusal))
        except WrongError as wrong:
            self._add(trial, name, status="wrong", reason=str(wrong))
        except Exception as fault:  # a baseline may raise anything
            self._add(trial, name, status="failed", reason=sentence(fault))
        return None

    def _floor(self, case: Workload) -> Floor | None:
        try:
            return self._roofline.floor(case)
        except Exception as fault:  # times are kept without a floor
            self._log(f"no floor: {sentence(fault)}")
            return None

    def _measure(
        self, trial: Trial, basis: str, ready: Sequence[Ready], floor: Floor | None
    ) -> None:
        entries: list[tuple[Ready, TimedCandidate]] = []
        for candidate in ready:
            timers = candidate.prepared.timers
            if basis not in timers or basis in self._earlier(trial, candidate.name):
                continue
            try:
                entry = TimedCandidate(timers[basis](), candidate.prepared.spins)
            except Exception as fault:  # as above
                self._add_failure(trial, candidate.name, basis, fault)
            else:
                entries.append((candidate, entry))
        if not entries:
            return
        self._log(f"{basis}: {', '.join(candidate.name for candidate, _ in entries)}")
        gc.collect()
        gc.disable()  # as timeit does
        try:
            interleave([entry for _, entry in entries], self._effort)
        finally:
            gc.enable()
            self._add_times(trial, basis, entries, floor)

    def _add_times(
        self, trial: Trial, basis: str,
        entries: Sequence[tuple[Ready, TimedCandidate]], floor: Floor | None,
    ) -> None:
        quartiles: dict[str, list[float]] = {
            candidate.name: np.quantile(entry.samples, (0.25, 0.5, 0.75)).tolist()
            for candidate, entry in entries if entry.samples and entry.fault is None
        }
        medians = {name: median for name, (_, median, _) in quartiles.items()}
        medians |= {
            row.candidate: row.median for row in self.done(trial)
            if row.basis == basis and row.median is not None
        }
        against = next((name for name in trial.against if name in medians), "")
        for candidate, entry in entries:
            if entry.fault is not None:
                self._add_failure(trial, candidate.name, basis, entry.fault)
            if candidate.name not in quartiles:
                continue
            low, median, high = quartiles[candidate.name]
            bounds = {} if floor is None else {
                "floor": floor.seconds, "bound": floor.bound,
                "over_floor": median / floor.seconds, "bandwidth": floor.bandwidth,
                "rate": floor.rate,
            }
            self._add(
                trial, candidate.name, status="measured", basis=basis, median=median,
                low=low, high=high, config=candidate.prepared.config,
                rounds=len(entry.samples), error=candidate.error,
                threads=candidate.prepared.threads, against=against,
                ratio=medians[against] / median if against else None, **bounds,
            )

    def _earlier(self, trial: Trial, candidate: str) -> dict[str, Measurement]:
        """Return a candidate's rows of earlier runs, by basis."""
        subject = _subject(self._row(trial, candidate, status=""))
        return self._done.get(subject, {})

    def _add_failure(
        self, trial: Trial, candidate: str, basis: str, fault: Exception
    ) -> None:
        reason = sentence(fault)
        self._add(trial, candidate, status="failed", basis=basis, reason=reason)

    def _add(self, trial: Trial, candidate: str, **values: Any) -> None:
        self._on_row(self._row(trial, candidate, **values))

    def _row(self, trial: Trial, candidate: str, **values: Any) -> Measurement:
        case = trial.case
        return Measurement(
            study=self._study, table=trial.table, case=case.name,
            sizes="-".join(str(n) for n in case.sizes), activation=case.activation,
            batch=case.batch, dtype=case.dtype, precision=case.precision,
            seed=case.seed, candidate=candidate, effort=self._effort.name,
            tolerance=case.tolerance, date=now(), **self._environment, **values,
        )


def _subject(row: Measurement) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in SUBJECT)


def sentence(fault: BaseException) -> str:
    """Return an exception in one line, without folders."""
    text = str(fault).strip() or "no message"
    line = re.sub(r"(?:/[\w.+-]+){2,}", lambda path: path[0].rpartition("/")[2],
                  text.splitlines()[0])
    name = "" if isinstance(fault, ClnetError) else f"{type(fault).__name__}: "
    return (name + line)[:REASON_LENGTH]
