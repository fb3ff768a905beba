"""``python -m tests.meaning INSTRUMENT``: random cases that judge meaning."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from .runner import run

INSTRUMENTS = sorted(
    path.stem for path in Path(__file__).parent.glob("*.py")
    if not path.stem.startswith(("_", "test_")) and path.stem != "runner"
)


def main() -> int:
    """Run the command; return 1 if a case is wrong."""
    parser = argparse.ArgumentParser("python -m tests.meaning", description=__doc__)
    add = parser.add_argument
    add("instrument", choices=INSTRUMENTS)
    add("--seed", type=int, default=0, help="of the first case (%(default)s)")
    add("--cases", type=int, default=100, help="how many (%(default)s)")
    add("--processes", type=int, default=1, help="at the same time (%(default)s)")
    add("--seconds", type=float, default=float("inf"),
        help="no case starts after this time")
    given = parser.parse_args()
    os.environ.setdefault("POCL_EXTRA_BUILD_FLAGS", "-cl-opt-disable")  # builds count
    report = run(
        given.instrument, given.seed, given.cases, given.processes, given.seconds
    )
    print(report.text(given.instrument))
    return bool(report.faults)


if __name__ == "__main__":
    sys.exit(main())
