"""Cases of an instrument, in several processes: counts by kind, and those that failed.

An instrument is a module of this package with

``case(seed)``
    Returns the kinds of what it has judged, a `Counter`; raises for what is wrong.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

Case = Callable[[int], Counter[str]]
PROGRESS_SECONDS = 20.0


@dataclass
class Report:
    """The results of cases."""

    cases: int = 0  # Their number
    counts: Counter[str] = field(default_factory=Counter)  # What was judged, by kind
    # The sentence of each case that failed, by its seed
    faults: dict[int, str] = field(default_factory=dict)

    def add(self, seed: int, result: Counter[str] | str) -> None:
        """Add the kinds of a case, or the sentence of its fault."""
        self.cases += 1
        if isinstance(result, str):
            self.faults[seed] = result
        else:
            self.counts += result

    def text(self, instrument: str) -> str:
        """Return the counts, and of each fault the command that runs it again."""
        lines = [f"{self.cases} cases, {len(self.faults)} wrong"]
        lines += [f"{count:>9}  {kind}" for kind, count in self.counts.most_common()]
        for seed, sentence in sorted(self.faults.items()):
            command = f"python -m tests.meaning {instrument} --seed {seed} --cases 1"
            lines += [f"{command}\n    {sentence}"]
        return "\n".join(lines)


def run(
    instrument: str, first: int, cases: int, processes: int = 1,
    seconds: float = float("inf"), show: Callable[[str], object] = print,
) -> Report:
    """Run cases of an instrument from a seed on."""
    report, begin = Report(), time.monotonic()
    shown = begin
    for seed, result in _results(instrument, first, cases, processes, begin + seconds):
        report.add(seed, result)
        if isinstance(result, str):
            show(f"seed {seed}: {result}")
        if time.monotonic() > shown + PROGRESS_SECONDS:
            shown = time.monotonic()
            show(f"{report.cases} cases, {len(report.faults)} wrong, "
                 f"{report.counts.total()} judged, {shown - begin:.0f} s")
    return report


def _results(
    instrument: str, first: int, cases: int, processes: int, end: float
) -> Iterator[tuple[int, Counter[str] | str]]:
    seeds = iter(range(first, first + cases))
    if processes == 1:
        for seed in seeds:
            if time.monotonic() > end:
                return
            yield seed, _result(instrument, seed)
        return
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(
        processes, get_context("spawn"), _begin, (folder,)
    ) as pool:
        running = {}
        while True:
            while len(running) < 2 * processes and time.monotonic() < end:
                seed = next(seeds, None)
                if seed is None:
                    break
                running[pool.submit(_result, instrument, seed)] = seed
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()


def _begin(folder: str) -> None:
    """Give a process its own caches: a cold cache of PoCL is not to be shared."""
    own = Path(folder) / str(os.getpid())
    for name, where in (("POCL_CACHE_DIR", "pocl"), ("CLNET_CACHE_DIR", "clnet")):
        (own / where).mkdir(parents=True)
        os.environ[name] = str(own / where)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"


def _result(instrument: str, seed: int) -> Counter[str] | str:
    case: Case = import_module(f"{__package__}.{instrument}").case
    try:
        return case(seed)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
