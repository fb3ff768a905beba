"""The planner's choices for populations beside the best of a search.

For each case there are three plans, whose steps of all networks are timed in turn, in
launches as `Population.fit` has them:

`model`     by the cost model: nothing is measured
`measured`  as a long training chooses: each kernel's usual configuration is measured
`searched`  as with ``tune=True``: all configurations, as far as `--each` allows

`over_best` is a plan's time over the least of all that are timed in turn: these, and
all configurations near the best that the search has found.

    python -m benchmarks.population_picks --device gpu    # rows and table
    python -m benchmarks.population_picks --rows FILE.csv # the table of earlier rows
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from clnet.ir.lowering import lower_training
from clnet.ir.program import Program
from clnet.nn.losses import loss_function
from clnet.opencl import rate_probes
from clnet.opencl.device import Device
from clnet.opencl.discovery import device as find_device
from clnet.opencl.session import session
from clnet.planning.planner import Planner
from clnet.planning.tuning.budget import Budget
from clnet.planning.tuning.trial import StepTrial
from clnet.runtime.binding import PlanStep
from clnet.variants.members import members_variants
from clnet.variants.members.members import exact_factors

from . import picks
from .candidates import Timer, back_to_back
from .picks import FINALIST, cover_text, empty_store
from .studies.population import population_cases
from .studies.small import SmallCase
from .studies.training import DATA

PICKS = ("model", "measured", "searched")
CORES_CASES = ("xor-1000", "iris-1000", "parity-1000", "robot-1000")
CASE_SECONDS = 5.0  # of all timings in turn, about


def cases_of(cpu: bool) -> dict[str, SmallCase]:
    """Return the cases by name, those of the study of populations."""
    cases = {case.name: case for case in population_cases(DATA, full=True)}
    return {name: cases[name] for name in CORES_CASES} if cpu else cases


def rows_of(case: SmallCase, device: Device, each: float) -> Iterator[dict[str, Any]]:
    """Choose, time the choices in turn, and yield a row of each.

    Networks train on all samples a step. The device has measured rates, which `model`
    does not know. The search may take `each` seconds.
    """
    network, (x, _) = case.network(), case.data
    program = lower_training(
        network, loss_function(case.loss), case.optimiser, weighted=False
    )
    exact = exact_factors(np.asarray(x, np.float32), device)
    variants: Any = tuple(
        variant.of_data(exact) for variant in members_variants(
            device, case.networks, case.samples, False, True
        )
    )
    chosen: dict[str, PlanStep] = {}
    planners: dict[str, Planner] = {}
    seconds: dict[str, float] = {}
    with empty_store():
        for name, tune in zip(PICKS, (False, None, True), strict=True):
            start = time.perf_counter()
            planners[name] = planner = Planner(
                network, device if name != PICKS[0] else replace(device, measured=None),
                case.samples, tune, variants, program,
                Budget(each if tune else np.inf), trial=StepTrial,
            )
            (chosen[name],) = planner.right_cover().steps
            seconds[name] = time.perf_counter() - start
        report = planner.report
        steps = [*chosen.values(), *(
            candidate.step for candidate in report.candidates
            if candidate.timing is not None
            and candidate.seconds <= FINALIST * report.covers[0].seconds
        )]
        times = picks.in_turn(
            timers_of({repr(step): step for step in steps}, case, program), CASE_SECONDS
        )
    medians = {key: statistics.median(seconds_of) for key, seconds_of in times.items()}
    best = min(medians, key=medians.__getitem__)
    for name, step in chosen.items():
        low, median, high = statistics.quantiles(times[repr(step)], n=4)
        candidates = planners[name].report.candidates
        yield {
            "case": case.name, "networks": case.networks, "pick": name,
            "median": median, "low": low, "high": high,
            "over_best": median / medians[best], "chosen_in_s": seconds[name],
            "modelled": min(candidate.modelled for candidate in candidates),
            "candidates": len(candidates),
            "measured": sum(each.timing is not None for each in candidates),
            "kernel": cover_text([step]), "timed": len(times),
            "best": cover_text([
                next(step for step in steps if repr(step) == best)
            ]),
        }


def timers_of(
    steps: Mapping[str, PlanStep], case: SmallCase, program: Program
) -> dict[str, Timer]:
    """Return the timers of a step of all networks."""
    device = next(iter(steps.values())).device
    assert device is not None
    trial, place = StepTrial(case.network(), program, device), session(device)

    def timer(step: PlanStep) -> Timer:
        run = trial.ready([step], (), ())
        calls = back_to_back(run.start, place.finish)
        return lambda repeats: run.share * calls(repeats)

    return {key: timer(step) for key, step in steps.items()}


def table(rows: pd.DataFrame) -> str:
    """Return the table of the picks."""
    return picks.table(rows, PICKS, ("case", "networks"), ("kernel", "best"))


def main(given: Sequence[str] | None = None) -> None:
    """Measure, or show the rows of a file."""
    parser = picks.options(__doc__, "parity-1000")
    arguments = parser.parse_args(given)
    if arguments.rows is not None:
        print(table(pd.read_csv(arguments.rows)))
        return
    begin = time.perf_counter()
    with picks.own_times():
        device = rate_probes.measured(find_device(arguments.device))
        cases = picks.chosen(parser, arguments.case, cases_of(device.type == "cpu"))
        rows = picks.kept((
            row for case in cases
            if time.perf_counter() - begin <= arguments.seconds
            for row in rows_of(case, device, arguments.each)
        ), "population_picks", arguments, device, "kernel")
    print(table(rows))


if __name__ == "__main__":
    main()
