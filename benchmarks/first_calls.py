"""What a user waits for: each call of a loop of `predict`, from a process's first on.

Each network is predicted by a process of its own, with default arguments: once with
empty caches of clnet and of the driver, then with those that the first has filled.
Another tree is measured in turn with this one.

    python -m benchmarks.first_calls --device gpu                # rows and table
    python -m benchmarks.first_calls --before ../before          # of two trees
    python -m benchmarks.first_calls --rows FILE.csv             # of earlier rows
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

# Sizes and samples a call, and seconds of the loop with empty caches.
CASES = {
    "five layers of 64": ([64] * 6, 1_000_000, 12.0),
    "784-1024-1024-10": ([784, 1024, 1024, 10], 200_000, 12.0),
    "2048-2048-2048-10": ([2048, 2048, 2048, 10], 100_000, 12.0),
    "configuration 1, batch 32": ([200, 400, 500, 100], 32, 10.0),
    "configuration 1, batch 1": ([200, 400, 500, 100], 1, 10.0),
}
AGAIN_SECONDS = 3.0  # of the loop with filled caches
SETTLED = 3.0  # seconds after which the last plan should answer
LONG = 0.1  # seconds of a call that a service notices


def loop(case: str, device: str | None, seconds: float) -> dict[str, Any]:
    """Return the times of calls of this process, in ms."""
    import clnet

    sizes, samples, _ = CASES[case]
    x = np.random.default_rng(0).standard_normal((samples, sizes[0]), dtype="f4")
    network = clnet.Network.mlp(sizes, "tanh", seed=0)
    found = clnet.device(device)
    starts: list[float] = []
    times: list[float] = []
    begin = time.perf_counter()
    while not starts or starts[-1] < seconds:
        start = time.perf_counter()
        network.predict(x, device)
        starts.append(start - begin)
        times.append((time.perf_counter() - start) * 1e3)
    first, later = times[0], np.array(times[1:])
    settled = later[np.array(starts[1:]) > SETTLED]
    return {
        "first_ms": first, "longest_ms": later.max(),
        "longest_at_s": starts[1 + int(later.argmax())],
        "calls_over_100_ms": int((later > LONG * 1e3).sum()),
        "after_3_s_ms": np.median(settled) if len(settled) else None,
        "last_ms": np.median(later[-max(5, len(later) // 10):]), "calls": len(times),
        "device": found.name, "driver": found.driver,
        "numpy": np.__version__, "clnet": clnet.__version__,
    }


def rows(
    before: Path | None, device: str | None, rounds: int
) -> Iterator[dict[str, Any]]:
    """Yield a row of each round, case, tree and state of the caches."""
    trees = {"after": Path(__file__).resolve().parents[1]}
    if before is not None:
        trees = {"before": before.resolve(), **trees}
    for number in range(rounds):
        for case, (*_, seconds) in CASES.items():
            for tree, path in trees.items():
                with tempfile.TemporaryDirectory() as folder:
                    for caches, limit in (
                        ("empty", seconds), ("filled", AGAIN_SECONDS)
                    ):
                        yield {"round": number, "tree": tree, "case": case,
                               "caches": caches,
                               **_of_process(path, folder, case, device, limit)}


def _of_process(
    tree: Path, folder: str, case: str, device: str | None, seconds: float
) -> dict[str, Any]:
    """Return the times of a new process's calls."""
    caches = ("CLNET_CACHE_DIR", "CUDA_CACHE_PATH", "POCL_CACHE_DIR")
    for name in caches:
        Path(folder, name).mkdir(exist_ok=True)
    shown = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__).resolve()), "--loop", case,
         "--seconds", str(seconds), *(["--device", device] if device else [])],
        check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        cwd=folder, env={
            **os.environ, **{name: str(Path(folder, name)) for name in caches},
            "PYTHONPATH": os.pathsep.join(
                [str(tree), os.environ.get("PYTHONPATH", "")]),
        },
    )
    times: dict[str, Any] = json.loads(shown.stdout.splitlines()[-1])
    return times


def table(rows: pd.DataFrame) -> str:
    """Return the medians of the rounds."""
    text: str = rows.groupby(["case", "caches", "tree"], sort=False)[[
        "first_ms", "longest_ms", "calls_over_100_ms", "after_3_s_ms", "last_ms",
    ]].median().to_string(float_format="%.4g")
    return text


def main() -> None:
    """Measure, or show the rows of a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--before", type=Path, metavar="DIR", help="another tree, measured in turn")
    add("--rounds", type=int, default=1)
    add("--device", help="as for clnet.device")
    add("--out", type=Path, help="write the rows to this file")
    add("--rows", type=Path, metavar="CSV", help="show these; measure nothing")
    add("--loop", metavar="CASE", help=argparse.SUPPRESS)  # a process of one case
    add("--seconds", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.loop is not None:
        times = loop(arguments.loop, arguments.device, arguments.seconds)
        print(json.dumps({
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in times.items()
        }))
    elif arguments.rows is not None:
        print(table(pd.read_csv(arguments.rows)))
    else:
        frame = pd.DataFrame(
            rows(arguments.before, arguments.device, arguments.rounds))
        if arguments.out is not None:
            frame.to_csv(arguments.out, index=False)
        print(table(frame))


if __name__ == "__main__":
    main()
