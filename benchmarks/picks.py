"""The planner's choices beside the best that a search to the end finds.

For each case there are four plans, whose calls are timed in turn, host to host:

`model`         by the cost model and estimated rates: nothing is measured
`rates`         by the cost model and the device's measured rates
`five seconds`  by measured times, as `predict` chooses after its first calls
`searched`      by a search without a limit; with --all of every candidate in all its
                configurations, with --variants of these variants' alone, else of all
                that may be faster by the model's bound

The last two measure apart. `over_best` is a plan's time over that of the best of all
that are timed in turn: these, and the finalists of the search (the covers that it
compared whole, and all single launches near the best). It is the median of the ratios
of single rounds, and the best is chosen by other rounds: the least of a dozen medians
would be less than what any plan takes. `others` tells how many cores other programs
took meanwhile.

    python -m benchmarks.picks --device gpu           # rows and table
    python -m benchmarks.picks --export TIMES.json    # and the times, as `clnet tune`
    python -m benchmarks.picks --rows FILE.csv        # the table of earlier rows
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from clnet.errors import ClnetError, ClnetWarning
from clnet.ir.lowering import lower
from clnet.ir.program import Program
from clnet.network import Network
from clnet.opencl import rate_probes, times_file
from clnet.opencl.device import Device
from clnet.opencl.discovery import device as find_device
from clnet.opencl.store import store_of
from clnet.planning.explain import Explanation
from clnet.planning.inference import SEARCH_SECONDS
from clnet.planning.planner import Planner
from clnet.planning.tuning.budget import Budget
from clnet.runtime.plan import Plan
from clnet.variants import VARIANTS
from clnet.variants.base import Variant

from . import program
from .candidates import Timer, wall
from .cases.dense import Case
from .environment import device_identity, load, now, versions, worked
from .studies.feedforward import CONFIGURATIONS, DEEP, MANY, NARROW
from .timing import Effort, TimedCandidate, interleave

C = TypeVar("C")

PICKS = ("model", "rates", "five seconds", "searched")
BLOCK_SECONDS = 0.01  # of calls of one plan, before the next plan's turn
ROUNDS = 60  # a multiple of 4
FINALIST = 1.5  # time of a span over the best whole call, up to which it is a finalist
BATCHES = (1, 32, 1024)
QUICK_DEEP = ("deep-64", "deep-512")  # on GPUs


def cases_of(cpu: bool) -> dict[str, Case]:
    """Return the cases by name: the first study's, as far as a device is fit."""
    sizes = {**CONFIGURATIONS, **DEEP}
    names = [*DEEP, "config-1", "config-3"] if cpu else list(CONFIGURATIONS)
    cases = [
        Case(name, sizes[name], "tanh" if name in DEEP else "sigmoid", batch)
        for name in names for batch in (BATCHES[:2] if cpu else BATCHES)
    ]
    if not cpu:
        cases += [Case(name, NARROW[name], "relu", MANY) for name in NARROW]
        cases += [Case(name, DEEP[name], "tanh", 32) for name in QUICK_DEEP]
    return {f"{case.name} x {case.batch}": case for case in cases}


class Picks:
    """The plans of one case, on a device without measured rates."""

    def __init__(self, case: Case, device: Device) -> None:
        self.case: Case = case
        self.device: Device = device
        self.network: Network = Network.mlp(case.sizes, case.activation, seed=0)
        self.program: Program = lower(self.network).at(case.precision)
        self.planners: dict[str, Planner] = {}
        self.plans: dict[str, Plan] = {}
        self.seconds: dict[str, float] = {}

    def pick(
        self, name: str, device: Device, tune: bool | None, limit: float = math.inf,
        variants: tuple[Variant, ...] = VARIANTS,
    ) -> None:
        """Choose, and keep the planner with its choice made."""
        start = time.perf_counter()
        self.planners[name] = planner = Planner(
            self.network, device, self.case.batch, tune, variants, self.program,
            Budget(limit),
        )
        self.plans[name] = planner.plan()
        self.seconds[name] = time.perf_counter() - start

    def finalists(self) -> Iterator[Plan]:
        """Yield plans that may be faster than the search's own."""
        planner = self.planners[PICKS[-1]]
        covers, ops = planner.report.covers, len(self.program.ops)
        finalists = [cover.steps for cover in covers] + [
            (candidate.step,) for candidate in planner.report.candidates
            if (candidate.start, candidate.stop) == (0, ops)
            and candidate.timing is not None
            and candidate.seconds <= FINALIST * covers[0].seconds
        ]
        for steps in finalists:
            yield Plan(
                self.network, planner.device, self.case.batch, steps, tuple, tuple,
                Explanation(
                    self.network, planner.device, self.case.batch, planner.report
                ),
            )

    def rows(self) -> Iterator[dict[str, Any]]:
        """Time the plans in turn, and yield a row of each."""
        plans = self.plans
        shape = self.case.batch, self.case.sizes[0]
        x = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
        every = (*self.finalists(), *plans.values())
        distinct = {repr(plan.steps): plan for plan in every}
        start, before, process = time.perf_counter(), worked(), time.process_time()
        times = in_turn({key: wall(plan, [x]) for key, plan in distinct.items()})
        after = worked()
        others = None if before is None or after is None else (
            after - before - (time.process_time() - process)
        ) / (time.perf_counter() - start)
        best = best_of(times)
        ratios = over_best(times)
        for name in PICKS:
            if name not in plans:
                continue
            key, planner = repr(plans[name].steps), self.planners[name]
            low, median, high = statistics.quantiles(times[key], n=4)
            candidates = planner.report.candidates
            yield {
                "case": self.case.name, "batch": self.case.batch,
                "precision": self.case.precision, "pick": name,
                "median": median, "low": low, "high": high,
                "over_best": ratios[key], "chosen_in_s": self.seconds[name],
                "candidates": len(candidates),
                "measured": sum(each.timing is not None for each in candidates),
                "complete": not planner.report.unmeasured.endswith("to the end"),
                "cover": cover_text(plans[name].steps),
                "timed": len(distinct), "best": cover_text(distinct[best].steps),
                "others": others,
            }


def in_turn(
    timers: Mapping[str, Timer], limit: float = math.inf
) -> dict[str, list[float]]:
    """Return the seconds of calls, of rounds in turn, in about so many seconds."""
    entries = {key: TimedCandidate(timer) for key, timer in timers.items()}
    effort = Effort("", ROUNDS, BLOCK_SECONDS, limit / len(timers))
    interleave(list(entries.values()), effort)
    for entry in entries.values():
        if entry.fault is not None:
            raise entry.fault
    return {key: entry.samples for key, entry in entries.items()}


def best_of(times: Mapping[str, Sequence[float]]) -> str:
    """Return the key of the least median."""
    return min(times, key=lambda key: statistics.median(times[key]))


def over_best(times: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the median ratio of each plan's times to the best's of the same rounds.

    The best of two rounds of four is chosen by the other two.
    """
    ratios: dict[str, list[float]] = {key: [] for key in times}
    for half in (0, 1):
        judges, judged = (
            {key: [call for number, call in enumerate(row) if number // 2 % 2 == rounds]
             for key, row in times.items()}
            for rounds in (half, 1 - half)
        )
        best = judged[best_of(judges)]
        for key, row in judged.items():
            ratios[key] += np.divide(row, best).tolist()
    return {key: statistics.median(row) for key, row in ratios.items()}


@contextmanager
def empty_store() -> Iterator[None]:
    """Measure anew, and leave the times out of the others' store."""
    known = os.environ["CLNET_CACHE_DIR"]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CLNET_CACHE_DIR"] = folder
        store_of.cache_clear()
        try:
            yield
        finally:
            os.environ["CLNET_CACHE_DIR"] = known
            store_of.cache_clear()


def cover_text(steps: Sequence[Any]) -> str:
    """Return a cover in words, equal neighbours once with their number."""
    names = (
        f"{step.variant.name}({','.join(map(str, step.config.values()))})"
        for step in steps
    )
    runs = ((name, len(list(same))) for name, same in groupby(names))
    return " ".join(name if n == 1 else f"{n}*{name}" for name, n in runs)


def rows_of(
    cases: Sequence[Case], device: Device, limit: float, each: float, every: bool,
    variants: tuple[Variant, ...] = VARIANTS,
) -> Iterator[dict[str, Any]]:
    """Yield the rows; the store is empty at first.

    The most important cases come first: `limit` seconds are for all, `each` for the
    search of a case. With `every`, `searched` measures every candidate, of some
    variants.
    """
    start = time.perf_counter()
    plain = replace(device, measured=None)
    choices = [Picks(case, plain) for case in cases]
    for picks in choices:
        picks.pick("model", plain, False)
    with_rates = rate_probes.measured(plain)
    for picks in choices:
        picks.pick("rates", with_rates, False)
    print(f"{time.perf_counter() - start:.0f} s: {len(choices)} cases by the model")
    for picks in choices:
        left = limit - (time.perf_counter() - start)
        if left < 2 * SEARCH_SECONDS:
            return
        try:
            with empty_store():
                picks.pick("five seconds", with_rates, None, SEARCH_SECONDS)
            left = limit - (time.perf_counter() - start)
            seconds = min(each, max(0.0, left))
            picks.pick("searched", with_rates, every or None, seconds, variants)
            yield from picks.rows()
        except ClnetError as error:
            print(f"{picks.case.name} x {picks.case.batch}: {error}")


def table(
    rows: pd.DataFrame, picks: Sequence[str] = PICKS,
    index: Sequence[str] = ("case", "batch", "precision"),
    shown: Sequence[str] = ("cover",),
) -> str:
    """Return each pick's ratio to the best, and the time of the search's, in us.

    The search is the last of `picks`. A case is named by the columns of `index`; those
    of `shown` tell of the search's choice.
    """
    ratios = rows.pivot_table(
        index=[*index], columns="pick", values="over_best", sort=False
    )
    rows = rows.assign(us=1e6 * rows["median"])
    best = rows[rows["pick"] == picks[-1]].set_index([*index])[["us", *shown]]
    best[[*shown]] = best[[*shown]].apply(lambda column: column.str.slice(0, 40))
    return str(ratios[[*picks]].join(best).to_string(float_format="%.3g"))


def options(description: str | None, case: str) -> argparse.ArgumentParser:
    """Return the parser of a benchmark of choices; `case` is an example."""
    parser = program.parser(description)
    add = parser.add_argument
    add("--case", nargs="+", help=f'as "{case}", the most important first')
    add("--seconds", type=float, default=math.inf, help="limit of all cases")
    add("--each", type=float, default=math.inf, help="limit of the search of a case")
    return parser


def chosen(
    parser: argparse.ArgumentParser, names: Sequence[str] | None, known: dict[str, C]
) -> list[C]:
    """Return the cases of some names, or all; end with an error for another name."""
    for name in names or ():
        if name not in known:
            parser.error(f"no case {name!r}: there are {', '.join(known)}")
    return [known[name] for name in names or known]


@contextmanager
def own_times() -> Iterator[None]:
    """Measure all times anew, in a store of this program's own."""
    warnings.simplefilter("ignore", ClnetWarning)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CLNET_CACHE_DIR"] = folder
        times_file.SHIPPED = Path(folder)
        yield


def kept(
    rows: Iterable[dict[str, Any]], name: str, given: argparse.Namespace,
    device: Device, shown: str,
) -> pd.DataFrame:
    """Append rows to their file as they come, print a line of each, and return them."""
    file, listed = program.file_of(name, given), []
    where = {"date": now(), **device_identity(device), **versions()}
    for row in rows:
        listed.append({**row, "load": load(), **where})
        program.append(file, listed[-1])
        print(
            f"{row['case']} {row['pick']}: {1e6 * row['median']:.2f} us, "
            f"{row['over_best']:.2f}, {row[shown][:60]}", flush=True,
        )
    return pd.DataFrame(listed)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, or show the rows of a file."""
    parser = options(__doc__, "config-3 x 32")
    add = parser.add_argument
    add("--all", action="store_true", help="search every candidate")
    add("--variants", nargs="+", help="search every candidate of these alone")
    add("--export", type=Path, metavar="JSON", help="write the times for the package")
    given = parser.parse_args(arguments)
    if given.rows is not None:
        print(table(pd.read_csv(given.rows)))
        return
    with own_times():
        device = find_device(given.device)
        cases = chosen(parser, given.case, cases_of(device.type == "cpu"))
        variants = tuple(
            variant for variant in VARIANTS
            if given.variants is None or variant.name in given.variants
        )
        every = given.all or given.variants is not None
        rows = kept(
            rows_of(cases, device, given.seconds, given.each, every, variants), "picks",
            given, device, "cover",
        )
        if given.export is not None:
            times_file.export_times(rate_probes.known(device), given.export)
    print(table(rows))


if __name__ == "__main__":
    main()
