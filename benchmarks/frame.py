"""The frame: prepare, check, measure in turn, and keep every row at once.

A study gives trials: a case, and who computes it. Each candidate is prepared and its
results are compared with the float64 oracle; what is missing, is refused, fails or is
wrong becomes a row that says so. The others are then measured in turn (`rounds`).
"""

from __future__ import annotations

import contextlib
import gc
import re
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from clnet.errors import ClnetError
from clnet.opencl.device import Device

from .candidates import Candidate, Prepared, RefusedError
from .cases import Work, WrongError
from .floor import Floor, Machine
from .records import ENVIRONMENT, SUBJECT, Row, newest, parts
from .rounds import Effort, Entry, interleave, quartiles
from .versions import device_identity, load, now, versions

REASON_LENGTH = 200  # letters
DATA = "data"  # the candidate of a row that tells that there are none


@dataclass(frozen=True)
class Trial:
    """A case, and who computes it.

    Attributes
    ----------
    table : str
        Of the study; rows of one table are read together.
    case : Work
        What.
    candidates : tuple of Candidate
        Who.
    on_demand : frozenset of str
        Names of candidates that take long here: only run where they are asked for.
    against : tuple of str
        Names of peers; the first that is measured on a basis is the others' measure.
    """

    table: str
    case: Work
    candidates: tuple[Candidate, ...]
    on_demand: frozenset[str] = frozenset()
    against: tuple[str, ...] = ("numpy",)


@contextlib.contextmanager
def limit(seconds: float | None) -> Iterator[None]:
    """Raise TimeoutError in the block when so many seconds are over.

    Without effect where the system has no such timer, and outside the main thread.
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
        if left:  # another's timer goes on
            rest = max(left - (time.monotonic() - start), 1e-3)
            signal.setitimer(signal.ITIMER_REAL, rest, interval)


@dataclass(frozen=True)
class Contender:
    """A candidate that is ready, and right.

    Attributes
    ----------
    candidate : Candidate
        Who.
    prepared : Prepared
        Its memory and calls.
    error : float
        Of its results.
    """

    candidate: Candidate
    prepared: Prepared
    error: float


class Bench:
    """Runs trials on a device.

    Parameters
    ----------
    study : str
        Name of the study.
    device : Device
        Where.
    effort : Effort
        How long.
    bases : sequence of str
        What to time, of `candidates.BASES`.
    keep : callable
        Gets each row as soon as it is there.
    say : callable
        Gets a line on what is being done.
    done : sequence of Row
        Earlier rows: what they tell of this device and these versions is not measured
        again. Who was missing is asked again.
    """

    def __init__(
        self,
        study: str,
        device: Device,
        effort: Effort,
        bases: Sequence[str],
        keep: Callable[[Row], None],
        say: Callable[[str], None] = lambda line: None,
        done: Sequence[Row] = (),
    ) -> None:
        self.device = device
        self._study = study
        self._effort = effort
        self._bases = bases
        self._keep = keep
        self._say = say
        self._machine = Machine(device)
        self._environment: dict[str, Any] = {
            **device_identity(device), **versions(), "load": load(),
        }
        here = tuple(self._environment[name] for name in ENVIRONMENT)
        self._done: dict[tuple[Any, ...], dict[str, Row]] = {}
        for row in newest(done):
            if parts(row, ENVIRONMENT) == here:
                self._done.setdefault(parts(row, SUBJECT), {})[row.basis] = row

    def done(self, trial: Trial) -> list[Row]:
        """Return the earlier rows of a trial."""
        return [
            row for candidate in trial.candidates
            for row in self._earlier(trial, candidate.name).values()
        ]

    def run(self, trial: Trial) -> None:
        """Measure a trial; rows measured before an interruption are kept too."""
        missing = trial.case.missing()
        if missing is not None:
            self._no_time(trial, DATA, "missing", missing)
            return
        contenders = []
        for candidate in trial.candidates:
            earlier = self._earlier(trial, candidate.name)
            given_up = "" in earlier and earlier[""].status != "missing"
            if given_up or earlier.keys() >= set(self._bases):
                continue
            self._say(f"{candidate.name}: preparing")
            contender = self._contender(trial, candidate)
            if contender is not None:
                contenders.append(contender)
        if not contenders:
            return
        try:
            floor = self._floor(trial.case)
            for basis in self._bases:
                self._measure(trial, basis, contenders, floor)
        finally:
            # Plans and their actions refer to each other, and hold the device's memory.
            contenders.clear()
            gc.collect()

    def _contender(self, trial: Trial, candidate: Candidate) -> Contender | None:
        """Return a candidate ready and checked; or None, and a row says why."""
        try:
            with limit(candidate.patience):
                missing = candidate.missing()
                if missing is not None:
                    if "" not in self._earlier(trial, candidate.name):
                        self._no_time(trial, candidate.name, "missing", missing)
                    return None
                prepared = candidate.prepare(trial.case, self.device)
                error = prepared.check()
        except RefusedError as refusal:
            self._no_time(trial, candidate.name, "refused", str(refusal))
        except WrongError as wrong:
            self._no_time(trial, candidate.name, "wrong", str(wrong))
        except Exception as fault:  # whatever a peer may raise
            self._no_time(trial, candidate.name, "failed", sentence(fault))
        else:
            return Contender(candidate, prepared, error)
        return None

    def _floor(self, case: Work) -> Floor | None:
        try:
            return self._machine.floor(case)
        except Exception as fault:  # the figures do without
            self._say(f"no floor: {sentence(fault)}")
            return None

    def _measure(
        self,
        trial: Trial,
        basis: str,
        contenders: Sequence[Contender],
        floor: Floor | None,
    ) -> None:
        entries: list[tuple[Contender, Entry]] = []
        for contender in contenders:
            prepared = contender.prepared
            earlier = self._earlier(trial, contender.candidate.name)
            if basis not in prepared.timers or basis in earlier:
                continue
            try:
                timer = prepared.timers[basis]()
            except Exception as fault:  # as above
                self._no_time(
                    trial, contender.candidate.name, "failed", sentence(fault), basis
                )
                continue
            entries.append((contender, Entry(timer, prepared.spins)))
        if not entries:
            return
        names = ", ".join(contender.candidate.name for contender, _ in entries)
        self._say(f"{basis}: {names}")
        gc.collect()
        gc.disable()  # as timeit does
        try:
            interleave([entry for _, entry in entries], self._effort)
        finally:
            gc.enable()
            self._keep_times(trial, basis, entries, floor)

    def _keep_times(
        self,
        trial: Trial,
        basis: str,
        entries: Sequence[tuple[Contender, Entry]],
        floor: Floor | None,
    ) -> None:
        medians = {
            contender.candidate.name: statistics.median(entry.samples)
            for contender, entry in entries
            if entry.samples and entry.fault is None
        }
        measured = set(medians)
        for row in self.done(trial):
            if row.basis == basis and row.median is not None:
                medians[row.candidate] = row.median
        against = next((name for name in trial.against if name in medians), "")
        for contender, entry in entries:
            candidate, prepared = contender.candidate, contender.prepared
            if entry.fault is not None:
                self._no_time(
                    trial, candidate.name, "failed", sentence(entry.fault), basis
                )
            if candidate.name not in measured:
                continue
            median = medians[candidate.name]
            low, _, high = quartiles(entry.samples)
            found = {
                "config": prepared.config, "status": "measured", "basis": basis,
                "median": median, "low": low, "high": high,
                "rounds": len(entry.samples), "error": contender.error,
                "threads": prepared.threads, "against": against,
                "ratio": medians[against] / median if against else None,
            }
            if floor is not None:
                found |= {
                    "floor": floor.seconds, "bound": floor.bound,
                    "over_floor": median / floor.seconds,
                    "bandwidth": floor.bandwidth, "rate": floor.rate,
                }
            self._keep(self._row(trial, candidate.name, found))

    def _earlier(self, trial: Trial, candidate: str) -> dict[str, Row]:
        """Return a candidate's rows of earlier runs, by basis."""
        if not self._done:
            return {}
        subject = self._row(trial, candidate, {"status": "", "basis": ""})
        return self._done.get(parts(subject, SUBJECT), {})

    def _no_time(
        self, trial: Trial, candidate: str, status: str, reason: str,
        basis: str = "",
    ) -> None:
        found = {"status": status, "reason": reason, "basis": basis}
        self._keep(self._row(trial, candidate, found))

    def _row(self, trial: Trial, candidate: str, found: dict[str, Any]) -> Row:
        case = trial.case
        empty: dict[str, Any] = {
            "config": "", "reason": "", "median": None, "low": None, "high": None,
            "rounds": 0, "error": None, "against": "", "ratio": None, "floor": None,
            "bound": "", "over_floor": None, "bandwidth": None, "rate": None,
            "threads": None,
        }
        return Row(
            study=self._study, table=trial.table, case=case.name,
            sizes="-".join(str(n) for n in case.sizes), activation=case.activation,
            batch=case.batch, dtype=case.dtype, precision=case.precision,
            seed=case.seed, candidate=candidate, effort=self._effort.name,
            tolerance=case.tolerance, date=now(), **self._environment,
            **{**empty, **found},
        )


def sentence(fault: BaseException) -> str:
    """Return an exception in one line, without the folders of paths in it."""
    text = str(fault).strip() or "no message"
    line = re.sub(r"(?:/[\w.+-]+){2,}", lambda path: path[0].rpartition("/")[2],
                  text.splitlines()[0])
    name = "" if isinstance(fault, ClnetError) else f"{type(fault).__name__}: "
    return (name + line)[:REASON_LENGTH]
