"""``python -m tests.faults 500``: kill and interrupt so many processes at work."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import astuple
from pathlib import Path

from .kills import FILES, WORK, Outcome, outcome

PROGRESS_SECONDS = 15.0
COLUMNS = "processes", "hangs", "files read", "left", "problems"


def main() -> int:
    """Run the command; return 1 if something was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    add = parser.add_argument
    add("count", type=int, nargs="?", default=100, help="processes (%(default)s)")
    add("--kills", action="store_true", help="SIGKILL alone, amid work that writes")
    add("--processes", type=int, default=3, help="at the same time (%(default)s)")
    add("--seconds", type=float, default=float("inf"),
        help="no process starts after this time")
    arguments = parser.parse_args()
    cases = [(work, signal.SIGKILL) for work in FILES]
    if not arguments.kills:
        cases += [(work, sent) for work in WORK
                  for sent in (signal.SIGINT, signal.SIGTERM)]
    outcomes = {(work, sent.name): Outcome() for work, sent in cases}
    end = time.monotonic() + arguments.seconds
    with tempfile.TemporaryDirectory() as name, \
            ThreadPoolExecutor(arguments.processes) as pool:
        folder = Path(name)

        def case(number: int) -> tuple[str, str, Outcome]:
            work, sent = cases[number % len(cases)]
            if time.monotonic() > end:
                return work, sent.name, Outcome()
            own = folder / str(threading.get_ident())
            cache = own / "pocl"
            cache.mkdir(parents=True, exist_ok=True)
            return work, sent.name, outcome(work, sent, own / work, number, cache)

        shown = time.monotonic()
        futures = [pool.submit(case, number) for number in range(arguments.count)]
        for future in as_completed(futures):
            work, sent, found = future.result()
            outcomes[work, sent] += found
            for problem in found.problems:
                print(f"{work} {sent}: {problem}", flush=True)
            if time.monotonic() > shown + PROGRESS_SECONDS:
                shown = time.monotonic()
                done = sum(one.processes for one in outcomes.values())
                print(f"{done} of {arguments.count} processes", flush=True)
    outcomes["all", ""] = sum(outcomes.values(), Outcome())
    print(f"{'work':11} {'signal':8}", *(f"{column:>10}" for column in COLUMNS))
    for (work, sent), found in outcomes.items():
        *counts, problems = astuple(found)
        print(f"{work:11} {sent:8}", *(f"{n:10}" for n in (*counts, len(problems))))
    return int(bool(outcomes["all", ""].problems))


if __name__ == "__main__":
    sys.exit(main())
