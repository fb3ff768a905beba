"""Two trees beside each other: calls and trainings through the public interface.

Each round times all cases of either tree in a process of its own, one after the other.
The first round of each builds kernels and measures plans; it is no row. Each tree has
its own store of times. Compare the bits by ``python -m tests.differential.same_bits``.

    git worktree add ../before HEAD~1
    python -m benchmarks.before_after ../before         # rows and table
    python -m benchmarks.before_after --rows FILE.csv   # the table of earlier rows
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

SECONDS = 0.05  # of a sample of calls
SAMPLES = 7  # of which the median counts
ROUNDS = 3


def seconds(call: Callable[[], object], end: Callable[[], object] = bool) -> float:
    """Return the median time of a call among many; `end` waits for them."""
    def run(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            call()
        end()
        return (time.perf_counter() - start) / count

    count = max(1, int(SECONDS / max(run(1), run(1), 1e-7)))
    return float(np.median([run(count) for _ in range(SAMPLES)]))


def calls(device: Any) -> Iterator[tuple[str, float]]:
    """Yield the times of calls: plans of host and of device arrays, and `predict`."""
    import pyopencl.array as device_array

    from clnet import Dense, Local, Network, Sparse

    sparse = Sparse(4000, "tanh", density=0.01, format="csr")
    local = [Local(window=5, activation="tanh") for _ in range(8)]
    for name, network, batch in (
        ("16-16-2", Network.mlp([16, 16, 2], "tanh", seed=0), 1),
        ("64 x 6", Network.mlp([64] * 6, "relu", seed=0), 1),
        ("64 x 6", Network.mlp([64] * 6, "relu", seed=0), 1024),
        ("784-128-10", Network.mlp([784, 128, 10], "relu", seed=0), 128),
        ("784-1024-1024-10", Network.mlp([784, 1024, 1024, 10], "relu", seed=0), 1024),
        ("CSR 4000²", Network(4000, [sparse, Dense(10)], seed=0), 32),
        ("local 1024", Network(1024, local, seed=0), 16),
    ):
        x = np.random.default_rng(0).normal(size=(batch, network.n_in)).astype("f4")
        plan = network.compile(device, batch)
        label = f"{name}, batch {batch}"
        yield f"plan, host, {label}", seconds(partial(plan, x))
        yield f"predict, {label}", seconds(partial(network.predict, x, device))
        rows = device_array.to_device(plan.queue, x)
        out = device_array.to_device(plan.queue, plan(x))
        yield f"plan, device, {label}", seconds(
            partial(plan, rows, out=out), plan.queue.finish
        )


def trainings(device: Any) -> Iterator[tuple[str, float]]:
    """Yield the times of trainings that were planned before, and of populations."""
    from clnet import Network, Population

    rng = np.random.default_rng(0)
    x, t = rng.normal(size=(4096, 64)).astype("f4"), rng.random((4096, 10), "f4")
    sizes = [64, 64, 64, 10]
    for name, batch, epochs in (("full batch", 4096, 50), ("mini-batches", 128, 5)):
        network = Network.mlp(sizes, "tanh", seed=0)
        yield f"fit, {name}, an epoch", seconds(partial(
            network.fit, x, t, epochs=epochs, batch_size=batch, optimiser="adam",
            seed=0, device=device,
        )) / epochs
    population = Population(Network.mlp([16, 8, 2], "tanh", seed=0), 256)
    x, t = x[:512, :16].copy(), t[:512, :2].copy()
    yield "population, fit of 50 epochs", seconds(
        partial(population.fit, x, t, epochs=50, device=device)
    )
    yield "population, predict", seconds(
        partial(population.predict, x, device=device)
    )


def measured(tree: Path, cache: Path, device: str | None) -> dict[str, Any]:
    """Return device and driver, and the seconds of a tree's cases, by its process."""
    here = str(Path(__file__).resolve())
    shown = subprocess.run(
        [sys.executable, "-W", "ignore", here, "--cases", device or ""], check=True,
        stdout=subprocess.PIPE, text=True, cwd=tree,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(
            [str(tree), os.environ.get("PYTHONPATH", "")]
        ), "CLNET_CACHE_DIR": str(cache)},
    )
    content: dict[str, Any] = json.loads(shown.stdout.splitlines()[-1])
    return content


def rows(tree: Path, rounds: int, device: str | None) -> Iterator[dict[str, object]]:
    """Yield a row of each tree, round and case."""
    trees = {"before": tree.resolve(), "after": Path(__file__).resolve().parents[1]}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds + 1):
            for name, path in trees.items():
                content = measured(path, Path(folder, name), device)
                for case, time_of in content["cases"].items() if number else ():
                    yield {"tree": name, "round": number, "case": case,
                           "us": f"{time_of * 1e6:.2f}", "device": content["device"],
                           "driver": content["driver"]}


def table(rows: pd.DataFrame) -> str:
    """Return the medians of both trees, and their ratio with the rounds' extremes."""
    times = rows.astype({"us": float}).pivot_table(
        index="case", columns="tree", values="us", sort=False,
        aggfunc=["median", "min", "max"],
    )
    before, after = rows["tree"].unique()
    shown = pd.DataFrame({
        "before, us": times["median"][before], "after": times["median"][after],
        "ratio": times["median"][after] / times["median"][before],
        "least": times["min"][after] / times["max"][before],
        "most": times["max"][after] / times["min"][before],
    })
    text: str = shown.to_string(float_format="%.2f")
    return text


def main() -> None:
    """Measure, or show the rows of a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("tree", nargs="?", type=Path, help="the other tree's folder")
    add("--rounds", type=int, default=ROUNDS)
    add("--device", help="as for clnet.device")
    add("--out", type=Path, help="write the rows to this file")
    add("--rows", type=Path, metavar="CSV", help="show these; measure nothing")
    add("--cases", help=argparse.SUPPRESS)  # a process of one tree: its device
    arguments = parser.parse_args()
    if arguments.cases is not None:
        import clnet

        where = clnet.device(arguments.cases or None)
        print(json.dumps({
            "device": where.name, "driver": where.driver,
            "cases": dict([*calls(where), *trainings(where)]),
        }))
        return
    if arguments.rows is not None:
        print(table(pd.read_csv(arguments.rows)))
        return
    if arguments.tree is None or not (arguments.tree / "clnet").is_dir():
        parser.error("give the folder of another checkout, or --rows")
    frame = pd.DataFrame(rows(arguments.tree, arguments.rounds, arguments.device))
    if arguments.out is not None:
        frame.to_csv(arguments.out, index=False)
    print(table(frame))


if __name__ == "__main__":
    main()
