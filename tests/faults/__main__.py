"""``python -m tests.faults 500``: kill and interrupt so many processes at work."""

from __future__ import annotations

import signal
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .kills import FILES, WORK, faults

PROCESSES = 3  # at the same time


def main() -> int:
    """Run the command; return 1 if something was wrong."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    cases = [(work, signal.SIGKILL) for work in FILES]
    cases += [(work, sent) for work in WORK for sent in (signal.SIGINT, signal.SIGTERM)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(PROCESSES) as pool:
        def case(number: int) -> list[str]:
            work, sent = cases[number % len(cases)]
            found = faults(work, sent, Path(folder) / f"{work}-{number % 12}", number)
            return [f"{number} {work} {sent.name}: {fault}" for fault in found]

        problems = 0
        for found in pool.map(case, range(count)):
            problems += len(found)
            for problem in found:
                print(problem, flush=True)
    print(f"{count} processes, {problems} problems")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
