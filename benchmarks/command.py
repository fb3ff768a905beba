"""``clnet bench``: choose a study's trials, run them, show and keep the rows."""

from __future__ import annotations

import fnmatch
import sys
import textwrap
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, cast

from tqdm import tqdm

from clnet.cli.summary import WIDTH, pairs
from clnet.errors import ClnetWarning, InputError, unknown
from clnet.opencl.device import Device
from clnet.opencl.discovery import device as find_device

from . import dispatch, feedforward, local, sparse, training
from .frame import Bench, Trial
from .options import Options
from .page import write_page
from .plots import Plot, draw, missing
from .records import Results, Row, newest, read
from .report import fill, number
from .rounds import EFFORTS
from .versions import load

RESULTS = Path("benchmarks", "results")  # from where the command is run
NOBODY = "none"
QUIET = 0.5  # cores; where others use more, times on the host mean little


class Study(Protocol):
    """What a study's module offers."""

    ABOUT: str
    BASES: Mapping[str, str]  # what a time can be of, and what that means
    PEERS: frozenset[str]  # names of candidates that are not ours
    TAKES: frozenset[str]  # of `options.OPEN`
    PLOTS: Sequence[Plot]

    def bases(self, device: Device) -> Sequence[str]:
        """Return what is timed on a device unasked, of `BASES`."""
        ...

    def trials(self, device: Device, options: Options) -> tuple[Trial, ...]:
        """Return what can be measured on a device, in order.

        Parameters
        ----------
        device : Device
            Where.
        options : Options
            Its effort and what of `TAKES` count here; `select` heeds the names.
        """
        ...

    def report(self, rows: Sequence[Row]) -> str:
        """Return rows as tables."""
        ...


STUDIES: dict[str, Study] = {  # in the order in which they were made
    "feedforward": cast(Study, feedforward), "sparse": cast(Study, sparse),
    "training": cast(Study, training), "dispatch": cast(Study, dispatch),
    "local": cast(Study, local),
}


def list_studies() -> str:
    """Return the studies and what they are about, a line each."""
    return pairs([(name, study.ABOUT) for name, study in STUDIES.items()])


def run(name: str, device: str | None, out: str | None, options: Options) -> int:
    """Run a study; return the exit status.

    Rows are kept as they are measured, so that an interruption loses none.

    Parameters
    ----------
    name : str
        Of `STUDIES`.
    device : str or None
        As for `clnet.device`.
    out : str or None
        The folder of the CSV file; None: `RESULTS`.
    options : Options
        What of the study.

    Raises
    ------
    InputError, DeviceError, FormatError
        If a name is unknown, there is no such device, or the file cannot be written.
    """
    if name not in STUDIES:
        raise unknown("study", name, STUDIES)
    study = STUDIES[name]
    options.check(name, study.TAKES)
    where = find_device(device)
    effort = EFFORTS[options.effort]
    bases = options.bases or study.bases(where)
    for basis in bases:
        if basis not in study.BASES:
            raise unknown("basis", basis, study.BASES)
    trials = select(study.trials(where, options), options, study.PEERS)
    folder = RESULTS if out is None else Path(out)
    results = Results(folder, name, where)
    rows: list[Row] = []
    old = read(results.path) if options.resume else []
    progress = _Progress(len(trials))

    def keep(row: Row) -> None:
        results.add(row)
        rows.append(row)
        progress.result(row)

    others = load()
    if others is not None and others > QUIET:
        warnings.warn(
            f"other work kept {others:.1f} cores busy in the last minute: peers that "
            "use all cores may look slow beyond measure",
            ClnetWarning, stacklevel=2,
        )
    bench = Bench(name, where, effort, bases, keep, progress.say, old)
    rows += [
        row for trial in trials for row in bench.done(trial)
        if row.basis in ("", *bases)
    ]
    try:
        for trial in trials:
            progress.start(trial)
            bench.run(trial)
            progress.advance()
    finally:
        progress.close()
        show(name, rows, results.path)
    return 0


def show(name: str, rows: Sequence[Row], path: Path) -> None:
    """Print a study's rows as tables; write its pictures and page beside their file.

    Parameters
    ----------
    name : str
        Of `STUDIES`.
    rows : sequence of Row
        What to show; of equal ones the last.
    path : Path
        The rows' file.

    Raises
    ------
    InputError, FormatError
        If the name is unknown, or a file cannot be written.
    """
    if name not in STUDIES:
        raise unknown("study", name, STUDIES)
    study = STUDIES[name]
    rows = newest(rows)
    if rows:
        text = study.report(rows)
        print(text + "\n")
        reason = missing()
        pictures = [] if reason else draw(
            study.PLOTS, rows, path.with_suffix(""), study.PEERS
        )
        page = path.with_suffix(".html")
        write_page(page, path.stem, study.ABOUT, text, pictures, rows)
        for picture in pictures:
            print(picture.path)
        if reason:
            print(fill(reason))
        print(page)
    print(f"{len(rows)} rows in {path}", flush=True)


def show_file(name: str | None, file: str) -> None:
    """Show the rows of a file; see `show`.

    Parameters
    ----------
    name : str or None
        The study; None: the rows'.
    file : str
        Of rows.

    Raises
    ------
    InputError, FormatError
        If the rows are another study's or none, or a file cannot be read or written.
    """
    path = Path(file)
    rows = read(path)
    if not rows:
        raise InputError(f"{path} has no rows")
    found = rows[0].study
    if name not in (None, found):
        raise InputError(f"{path} has rows of {found}, not of {name}")
    show(found, rows, path)


def select(
    trials: Sequence[Trial], options: Options, peers: frozenset[str]
) -> tuple[Trial, ...]:
    """Return the trials, and in them the candidates, that the options ask for.

    Parameters
    ----------
    trials : sequence of Trial
        The study's.
    options : Options
        What is asked for.
    peers : frozenset of str
        Names of candidates that are not ours.

    Raises
    ------
    InputError
        If a name fits nothing.
    """
    _check_names("table", options.tables, {trial.table for trial in trials})
    _check_names("case", options.cases, {trial.case.name for trial in trials})
    there = {c.name for trial in trials for c in trial.candidates}
    _check_names("variant", options.variants, {*(there - peers), NOBODY})
    _check_names("peer", options.peers, {*(there & peers), NOBODY})
    found = []
    for trial in trials:
        if not (
            _fits(trial.table, options.tables) and _fits(trial.case.name, options.cases)
        ):
            continue
        chosen = []
        for candidate in trial.candidates:
            asked = options.peers if candidate.name in peers else options.variants
            if asked is None:
                unasked = candidate.name not in trial.on_demand
                wanted = unasked or options.effort == "full"
            else:
                wanted = _fits(candidate.name, asked)
            if wanted:
                chosen.append(candidate)
        if chosen:
            found.append(replace(trial, candidates=tuple(chosen)))
    if not found:
        raise InputError("nothing is left to measure: ask for less at once")
    return tuple(found)


def _fits(name: str, patterns: Sequence[str] | None) -> bool:
    return patterns is None or any(fnmatch.fnmatchcase(name, p) for p in patterns)


def _check_names(
    kind: str, patterns: Sequence[str] | None, known: Iterable[str]
) -> None:
    names = sorted(known)
    for pattern in patterns or ():
        if not fnmatch.filter(names, pattern):
            raise unknown(kind, pattern, names)


class _Progress:
    """A bar on stderr, or plain lines where that is no terminal."""

    def __init__(self, trials: int) -> None:
        self._bar = tqdm(
            total=trials, unit="case", ncols=WIDTH, leave=False,
            disable=not sys.stderr.isatty(),
        )
        self._trials = trials
        self._done = 0
        self._title = ""

    def start(self, trial: Trial) -> None:
        """Name the trial that begins."""
        self._title = f"{trial.table} {trial.case.name} batch {trial.case.batch}"
        self._line(f"[{self._done + 1}/{self._trials}] {self._title}")

    def say(self, text: str) -> None:
        """Say what is being done."""
        if self._bar.disable:
            self._line(f"  {text}")
        else:
            self._bar.set_description_str(
                textwrap.shorten(f"{self._title}: {text}", WIDTH // 2)
            )

    def result(self, row: Row) -> None:
        """Show a row."""
        if row.median is None:
            self._line(f"  {row.candidate}: {row.status}: {row.reason}")
        elif self._bar.disable:
            time = number(1e6 * row.median)
            self._line(f"  {row.basis} {row.candidate}: {time} us")

    def advance(self) -> None:
        """Count a trial as done."""
        self._done += 1
        self._bar.update()

    def close(self) -> None:
        """Take the bar away."""
        self._bar.close()

    def _line(self, text: str) -> None:
        if self._bar.disable:
            print(text, file=sys.stderr, flush=True)
        else:
            self._bar.write(text, file=sys.stderr)
