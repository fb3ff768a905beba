"""``clnet bench``: select a study's trials, run them, keep and show the rows."""

from __future__ import annotations

import fnmatch
import sys
import textwrap
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, cast

import pandas as pd
from tqdm import tqdm

from clnet.cli.summary import pairs
from clnet.errors import WIDTH, ClnetWarning, FormatError, InputError, unknown
from clnet.formats.files import write
from clnet.opencl.device import Device
from clnet.opencl.discovery import device as find_device

from .environment import load
from .harness import Harness, Options, Trial
from .measurements import (
    RESULTS,
    Measurement,
    ResultsFile,
    latest,
    measurements,
    read,
    table_of,
)
from .report.html_report import write_report
from .report.plots import Plot, draw
from .report.tables import number
from .studies import (
    dispatch,
    feedforward,
    local,
    population,
    scaling,
    small,
    sparse,
    training,
)
from .timing import EFFORTS

NONE = "none"
QUIET = 0.5  # load average above which times on the host mean little


class Study(Protocol):
    """The contents of a study's module."""

    ABOUT: str
    BASES: Mapping[str, str]  # the clocks, with their meanings
    BASELINES: frozenset[str]  # names of candidates that are not clnet's
    TAKES: frozenset[str]  # of `harness.STUDY_OPTIONS`
    PLOTS: Sequence[Plot]

    def bases(self, device: Device) -> Sequence[str]:
        """Return the bases that are timed by default on a device."""
        ...

    def trials(self, device: Device, options: Options) -> tuple[Trial, ...]:
        """Return the trials on a device, in order, by the effort and `TAKES`."""
        ...

    def report(self, rows: pd.DataFrame) -> str:
        """Return rows as printed tables."""
        ...


STUDIES: dict[str, Study] = {
    "feedforward": cast(Study, feedforward), "sparse": cast(Study, sparse),
    "training": cast(Study, training), "dispatch": cast(Study, dispatch),
    "local": cast(Study, local), "small": cast(Study, small),
    "scaling": cast(Study, scaling), "population": cast(Study, population),
}


def run(
    study: str | None, device: str | None, out: str | None, rows: str | None,
    options: Options,
) -> None:
    """List the studies, show a file's rows, or run a study.

    Rows are kept as they are measured; an interruption loses none. The folder of
    results is that of `rows`, or `RESULTS`, where `out` is None.
    """
    if study is not None and study not in STUDIES:
        raise unknown("study", study, STUDIES)
    if rows is not None:
        path = Path(rows)
        table = read(path)
        names = list(table["study"].unique())
        if len(names) != 1 or study not in (None, *names):
            studies = " and ".join(names) or "no study"
            raise InputError(
                f"{path} has rows of {studies}, not of {study or 'one study'}"
            )
        if names[0] not in STUDIES:
            raise unknown("study", names[0], STUDIES)
        folder = path.parent if out is None else Path(out)
        if options.model:
            options.check(names[0], STUDIES[names[0]].TAKES)
            _predict(table, folder / path.name)
        else:
            _show(names[0], table, folder / path.name, path)
    elif study is None:
        print(pairs([(name, module.ABOUT) for name, module in STUDIES.items()]))
    elif options.model:
        options.check(study, STUDIES[study].TAKES)
        file = ResultsFile(Path(out or RESULTS), study, find_device(device))
        _predict(read(file.path), file.path)
    else:
        _measure(study, find_device(device), Path(out or RESULTS), options)


def _predict(rows: pd.DataFrame, stem: Path) -> None:
    """Print the predictions of `scaling` by its rows, and write them beside `stem`."""
    rows = latest(rows)
    predicted = scaling.model(rows)
    path = stem.with_name(f"{stem.stem}-model.csv")
    text = predicted.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    write(path, [text.encode()])
    print(scaling.model_report(rows, predicted))
    print(f"\n{len(predicted)} predictions in {path}", flush=True)


def _measure(name: str, device: Device, out: Path, options: Options) -> None:
    """Run a study, and show its rows, also if it is interrupted."""
    study = STUDIES[name]
    options.check(name, study.TAKES)
    bases = options.bases or study.bases(device)
    for basis in bases:
        if basis not in study.BASES:
            raise unknown("basis", basis, study.BASES)
    trials = select(study.trials(device, options), options, study.BASELINES)
    file = ResultsFile(out, name, device)
    rows: list[Measurement] = []
    old = measurements(latest(read(file.path))) if options.resume else []
    progress = _Progress(len(trials))

    def keep(row: Measurement) -> None:
        file.add(row)
        rows.append(row)
        progress.result(row)

    busy = load()
    if busy is not None and busy > QUIET:
        warnings.warn(
            f"other programs kept {busy:.1f} cores busy in the last minute: baselines "
            "that use all cores may look much too slow",
            ClnetWarning, stacklevel=2,
        )
    harness = Harness(
        name, device, EFFORTS[options.effort], bases, keep, progress.say, old
    )
    rows += [
        row for trial in trials for row in harness.done(trial)
        if row.basis in ("", *bases)
    ]
    try:
        for trial in trials:
            progress.start(trial)
            harness.run(trial)
            progress.advance()
    finally:
        progress.close()
        _show(name, table_of(rows), file.path, file.path)


def _show(name: str, rows: pd.DataFrame, stem: Path, file: Path) -> None:
    """Print a study's tables; write pictures and report beside `stem`.

    The path of the report and the pictures is `stem`, but for their suffixes; of equal
    rows the last is shown.
    """
    study = STUDIES[name]
    rows = latest(rows)
    if not rows.empty:
        text = study.report(rows)
        print(text + "\n")
        try:
            stem.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FormatError(f"results cannot go to {stem.parent}: {error}") from error
        pictures = draw(study.PLOTS, rows, stem.with_suffix(""), study.BASELINES)
        page = stem.with_suffix(".html")
        write_report(page, study.ABOUT, text, pictures, rows)
        for path in (*(picture.path for picture in pictures), page):
            print(path)
    print(f"{len(rows)} rows in {file}", flush=True)


def select(
    trials: Sequence[Trial], options: Options, baselines: frozenset[str]
) -> tuple[Trial, ...]:
    """Return the trials and candidates that the options ask for.

    InputError: a name fits nothing.
    """
    _check_names("table", options.tables, {trial.table for trial in trials})
    _check_names("case", options.cases, {trial.case.name for trial in trials})
    known = {c.name for trial in trials for c in trial.candidates}
    _check_names("variant", options.variants, {*(known - baselines), NONE})
    _check_names("baseline", options.baselines, {*(known & baselines), NONE})
    selected = []
    for trial in trials:
        if not (
            _fits(trial.table, options.tables) and _fits(trial.case.name, options.cases)
        ):
            continue
        chosen = []
        for candidate in trial.candidates:
            names = (
                options.baselines if candidate.name in baselines else options.variants
            )
            default = candidate.name not in trial.on_demand or options.effort == "full"
            if default if names is None else _fits(candidate.name, names):
                chosen.append(candidate)
        if chosen:
            selected.append(replace(trial, candidates=tuple(chosen)))
    if not selected:
        raise InputError("nothing is left to measure: select more names")
    return tuple(selected)


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
    """A progress bar on stderr, or plain lines if stderr is not a terminal."""

    def __init__(self, trials: int) -> None:
        self._bar = tqdm(
            total=trials, unit="case", ncols=WIDTH, leave=False,
            disable=not sys.stderr.isatty(),
        )
        self._trials = trials
        self._done = 0
        self._title = ""

    def start(self, trial: Trial) -> None:
        """Show the trial to run."""
        self._title = f"{trial.table} {trial.case.name} batch {trial.case.batch}"
        self._line(f"[{self._done + 1}/{self._trials}] {self._title}")

    def say(self, text: str) -> None:
        """Show a line of the harness."""
        if self._bar.disable:
            self._line(f"  {text}")
        else:
            self._bar.set_description_str(
                textwrap.shorten(f"{self._title}: {text}", WIDTH // 2)
            )

    def result(self, row: Measurement) -> None:
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
        """Remove the bar."""
        self._bar.close()

    def _line(self, text: str) -> None:
        if self._bar.disable:
            print(text, file=sys.stderr, flush=True)
        else:
            self._bar.write(text, file=sys.stderr)
