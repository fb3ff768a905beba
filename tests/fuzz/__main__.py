"""Damage files for as long as wanted, check what clnet makes of them, print counts."""

from __future__ import annotations

import argparse
import faulthandler
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO

sys.path.insert(0, str(Path(__file__).parents[1]))  # of bounds.py

SLICE = 60.0  # seconds of a process: a crash costs no more
HANGS = 60  # seconds of one file: the process then ends, as by a crash


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("parsers", nargs="*", help="names; all without any")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the whole run")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--seed", type=int, default=0, help="of the first slice")
    parser.add_argument("--predictions", type=float, default=1.0, metavar="SHARE",
                        help="of the accepted networks that are predicted with")
    parser.add_argument("--folder", type=Path, default=Path("fuzz"),
                        help="for the counts, tallies.jsonl, and for failing files")
    parser.add_argument("--atheris", action="store_true",
                        help="guide one parser's mutations by coverage, until stopped")
    parser.add_argument("--slice", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.atheris:
        from .guided import guided

        return guided(arguments.parsers[0], arguments.folder, arguments.seed)
    if arguments.slice:
        return one_slice(arguments)
    return many_slices(arguments)


def one_slice(arguments: argparse.Namespace) -> int:
    """Fuzz one parser in this process, and print its tally."""
    from .runner import fuzz, limit_memory

    limit_memory()
    faulthandler.enable()
    if hasattr(signal, "alarm"):
        signal.alarm(int(arguments.seconds) + HANGS)
    print(json.dumps(asdict(fuzz(
        arguments.parsers[0], arguments.seed, arguments.folder,
        seconds=arguments.seconds, predictions=arguments.predictions,
    ))))
    return 0


def many_slices(arguments: argparse.Namespace) -> int:
    """Run slices of all parsers in turn, and print the counts; 1: there are failures.
    """
    from .parsers import PARSERS

    names = arguments.parsers or list(PARSERS)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    memory = Path("/dev/shm")
    end, seed = time.monotonic() + arguments.seconds, arguments.seed
    running: list[tuple[str, int, IO[str], subprocess.Popen[str]]] = []
    tallies: list[dict[str, object]] = []
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        while running or time.monotonic() < end - 1:
            while len(running) < arguments.jobs and time.monotonic() < end - 1:
                name = names[seed % len(names)]
                length = min(SLICE, end - time.monotonic())
                # A pipe would be full of failures.
                output = TemporaryFile("w+")  # noqa: SIM115  # closed by `finished`
                running.append((name, seed, output, subprocess.Popen(
                    [sys.executable, "-m", "tests.fuzz", "--slice", name,
                     "--seed", str(seed), "--seconds", str(length),
                     "--predictions", str(arguments.predictions), "--folder", folder],
                    stdout=output,
                )))
                seed += 1
            time.sleep(0.2)
            for job in [job for job in running if job[-1].poll() is not None]:
                running.remove(job)
                tallies.append(finished(*job, Path(folder), arguments.folder))
    print_counts(tallies)
    return int(any(tally["failures"] for tally in tallies))


def finished(
    name: str, seed: int, output: IO[str], process: subprocess.Popen[str],
    folder: Path, kept: Path,
) -> dict[str, object]:
    """Return a slice's tally; a crash is one failure. Failing files are kept."""
    if process.returncode:
        tally = {"parser": name, "seed": seed, "mutants": 0, "failures": [
            f"the process ended with {process.returncode}"]}
        for path in folder.glob(f"{name}-{seed}.*"):
            path.rename(path.with_name(f"failure-crash-{path.name}"))
    else:
        output.seek(0)
        tally = json.loads(output.read().splitlines()[-1])
    output.close()
    for path in folder.glob("failure-*"):
        (kept / path.name).write_bytes(path.read_bytes())
        path.unlink()
    for failure in tally["failures"]:
        print(failure, flush=True)
    with (kept / "tallies.jsonl").open("a") as file:
        file.write(json.dumps(tally) + "\n")
    return tally


def print_counts(tallies: list[dict[str, object]]) -> None:
    """Print a row for each parser, and one for all."""
    rows: dict[str, Counter[str]] = {}
    for tally in tallies:
        for name in (str(tally["parser"]), "all"):
            row = rows.setdefault(name, Counter())
            for key, value in tally.items():
                if key in ("slowest", "most_memory"):
                    row[key] = max(row[key], value)
                elif key not in ("parser", "seed"):
                    row[key] += len(value) if isinstance(value, list) else value
    print(f"{'parser':12} {'mutants':>10} {'accepted':>10} {'predicted':>10} "
          f"{'compared':>10} {'slowest':>9} {'memory':>9} {'failures':>9}")
    for name, row in sorted(rows.items(), key=lambda pair: pair[0] == "all"):
        print(f"{name:12} {row['mutants']:10} {row['accepted']:10} "
              f"{row['predicted']:10} {row['compared']:10} {row['slowest']:7.2f} s "
              f"{row['most_memory'] / 1e6:6.1f} MB {row['failures']:9}")


if __name__ == "__main__":
    sys.exit(main())
