"""``python -m tests.differential``: many cases, in several processes.

Results are appended to a file, and a run that was interrupted goes on where it was. The
report names the cases that failed, with the command that runs one alone, and a smaller
case that fails alike.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter, defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .cases import CASCADES, POPULATIONS
from .shrink import shrunk
from .workers import FAMILY, Job, Result, Worker, jobs, wait

CHUNK = 4  # families that a worker takes at once: they share kernels
SHRUNK = 10  # faults that are shrunk, one of a family


def main() -> int:
    """Run the command; return 1 if a case failed."""
    args = _arguments()
    if args.cascades or args.populations:
        args.seed += (CASCADES if args.cascades else POPULATIONS) * FAMILY
    # Workers compute the oracle on one thread each.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    args.folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("CLNET_CACHE_DIR", str(args.folder.resolve()))
    log = args.folder / "results.jsonl"
    done = [] if args.cases == 1 else list(_read(log))
    wanted = list(jobs(args.seed, args.cases, args.each))
    todo = _todo(wanted, done)
    first, last = wanted[0].first, wanted[-1].last
    results = [one for one in done if first <= one.first < last]
    workers: list[Worker] = []
    try:
        _run(todo, results, workers, args, log)
    except KeyboardInterrupt:
        print("\ninterrupted: the same command goes on here", file=sys.stderr)
    finally:
        for worker in workers:
            worker.close()
    return report(results, args)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.differential", description=(__doc__ or "").split("\n")[0]
    )
    add = parser.add_argument
    add("--seed", type=int, default=0, help="seed of the first case (%(default)s)")
    add("--cases", type=int, default=1000, help="how many (%(default)s)")
    add("--each", type=int, default=FAMILY,
        help="cases of a network at most (%(default)s): fewer try more networks")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--cascades", action="store_true",
        help="cascade trainings alone, which the others do not have; adds to the seed")
    kind.add_argument("--populations", action="store_true",
        help="populations alone; adds to the seed")
    add("--device", help="as for `clnet.device`; the default device otherwise")
    add("--processes", type=int, default=1, help="worker processes (%(default)s)")
    add("--seconds", type=float, default=float("inf"), help="limit of the time")
    add("--folder", type=Path, default=Path("differential"),
        help="results, by which the run goes on (%(default)s)")
    add("--no-shrink", action="store_true", help="do not look for smaller cases")
    return parser.parse_args()


def _read(log: Path) -> list[Result]:
    if not log.is_file():
        return []
    found = []
    for line in log.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue  # half a line, of a run that was killed
        row["faults"] = {int(seed): text for seed, text in row["faults"].items()}
        row["steps"] = [tuple(step) for step in row["steps"]]
        found.append(Result(**row))
    return found


def _todo(wanted: list[Job], done: list[Result]) -> list[Job]:
    covered = {seed for one in done for seed in range(one.first, one.last)}
    todo = []
    for job in wanted:
        left = [seed for seed in range(job.first, job.last) if seed not in covered]
        if left:
            todo.append(Job(job.family, left[0], left[-1] + 1))
    return todo


def _run(
    todo: list[Job], results: list[Result], workers: list[Worker],
    args: argparse.Namespace, log: Path,
) -> None:
    """Run jobs until none is left or the time is over, and append their results."""
    stop = time.monotonic() + args.seconds
    count = min(args.processes, len(todo))
    workers += [Worker(args.device, number) for number in range(count)]
    queues: dict[Worker, list[Job]] = {worker: [] for worker in workers}
    todo = list(reversed(todo))
    total = sum(job.last - job.first for job in todo)
    chunk = max(1, min(CHUNK, len(todo) // max(1, 2 * count)))
    with _bar(total) as bar, log.open("a", encoding="utf-8") as file:
        while time.monotonic() < stop:
            for worker in workers:
                queue = queues[worker]
                if worker.job is None and not queue and todo:
                    queue += [todo.pop() for _ in range(min(chunk, len(todo)))]
                if worker.job is None and queue:
                    worker.send(queue.pop(0))
            if not any(worker.job for worker in workers):
                return
            wait(workers, 1.0)
            for worker in workers:
                for result in (worker.job and worker.result()) or ():
                    results.append(result)
                    file.write(json.dumps(asdict(result)) + "\n")
                    file.flush()
                    bar.update(result.last - result.first)
                    for seed, text in list(result.faults.items())[:1]:
                        bar.write(f"{seed}: {text}")
                    rest, worker.job = worker.job, None
                    if rest is not None:
                        queues[worker].insert(0, rest)


class _Lines:
    """Progress without tqdm: a line every now and then."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._next = total, 0, 0.0

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None:
        self.write(f"{self._done} of {self._total} cases")

    def update(self, count: int) -> None:
        self._done += count
        if time.monotonic() > self._next:
            self._next = time.monotonic() + 15
            self.write(f"{self._done} of {self._total} cases")

    def write(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


def _bar(total: int) -> Any:
    try:
        from tqdm import tqdm
    except ImportError:
        return _Lines(total)
    if not sys.stderr.isatty():
        return _Lines(total)
    return tqdm(total=total, unit=" cases", dynamic_ncols=True)


def report(results: list[Result], args: argparse.Namespace) -> int:
    """Print the counts and the faults; return 1 if there is a fault."""
    counts: Counter[str] = Counter()
    for result in results:
        counts.update(result.counts)
    faults = {s: text for r in results for s, text in sorted(r.faults.items())}
    steps = {step for result in results for step in result.steps}
    variants = Counter(name for name, _ in steps)
    total = sum(result.last - result.first for result in results)
    seconds = sum(result.seconds for result in results)
    made = len({result.family for result in results})
    print(f"{total} cases of {made} networks in {seconds:.0f} s of the workers")
    for name, count in sorted(counts.items()):
        print(f"  {count:7} {name}")
    print(f"{len(steps)} configurations of {len(variants)} variants: " + ", ".join(
        f"{name} {count}" for name, count in sorted(variants.items())
    ))
    margin = max((result.margin for result in results), default=0.0)
    print(
        f"largest error of a prediction: {margin:.2f} of its bound, but for functions "
        "that jump"
    )
    print(f"{len(faults)} cases failed")
    networks: dict[int, list[int]] = defaultdict(list)
    for seed in sorted(faults):
        networks[seed // FAMILY].append(seed)
    worker = Worker(args.device, 0) if networks and not args.no_shrink else None
    for number, (first, *others) in enumerate(networks.values()):
        where = f" --device {args.device}" if args.device else ""
        more = f", and {len(others)} more of its network" if others else ""
        print(f"  python -m tests.differential --seed {first} --cases 1{where}{more}\n"
              f"    {faults[first].splitlines()[0][:300]}", flush=True)
        if worker is not None and number < SHRUNK:
            print(f"    shrunk: {shrunk(first, worker)}", flush=True)
    if worker is not None:
        worker.close()
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
