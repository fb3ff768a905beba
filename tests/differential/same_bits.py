"""Compare the bits of two trees: ``python -m tests.differential.same_bits OTHER_TREE``.

A change that promises the same results is run here beside the commit before it, checked
out elsewhere (``git worktree add ../before HEAD~1``). Both trees compute the same cases
through the public interface alone, each in a process of its own: predictions by every
variant, trainings by every optimiser, resumed trainings, data read by parts,
populations, cascades, and ranks of MPI. They share one store of times, so that
the planner has the same rates. A case whose plan differs is told apart from one whose
bits differ.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

BATCHES = (1, 7, 64, 300)  # a sample, a part of a tile, a tile, several
EPOCHS = 10
SAMPLES = 96
RANKS = (1, 2, 4, 8)
Case = tuple[str, str, tuple[np.ndarray, ...]]
"""A case's name, the text of its plan, and its results."""


def networks() -> dict:
    """Return networks of all storages, by name."""
    from clnet import Dense, Local, Network, Sparse

    def sparse(storage):
        return Network(40, [Sparse(48, "tanh", density=0.2, format=storage),
                            Dense(5)], seed=2)

    return {
        "dense": Network.mlp([20, 33, 64, 5], ["relu", "tanh", "sigmoid"], seed=0),
        "wide": Network.mlp([130, 257, 10], "relu", output="softmax", seed=1),
        "float64": Network.mlp([9, 17, 3], "tanh", seed=1, dtype="float64"),
        **{f"sparse {storage}": sparse(storage)
           for storage in ("coo", "csr", "ell", "sell", "hyb", "dia")},
        "local": Network(64, [Local(window=3, activation="tanh") for _ in range(3)],
                         seed=3),
    }


def rows(samples: int, columns: int) -> np.ndarray:
    """Return inputs [samples, columns] that depend on the shape alone."""
    return np.random.default_rng(samples + columns).normal(size=(samples, columns))


def predictions(device: str) -> Iterator[Case]:
    """Yield a case for each network, variant and batch."""
    from clnet.errors import ClnetError
    from clnet.variants import ALL_VARIANTS

    for name, network in networks().items():
        for variant in ALL_VARIANTS:
            for batch in BATCHES:
                try:
                    plan = network.compile(
                        device, batch, tune=False,
                        variants=list({variant.name: None, "generic": None}),
                    )
                except ClnetError:
                    continue  # no batch of this device
                y = plan(rows(batch, network.n_in))
                yield f"predict {name} {variant.name} {batch}", plan.explain(), (y,)


def trained(network, history) -> tuple[str, tuple[np.ndarray, ...]]:
    """Return a training's plan and results."""
    errors = np.array([[epoch.loss, epoch.mse] for epoch in history.epochs])
    return str(history.plan), (network.parameters.copy(), errors)


def trainings(device: str) -> Iterator[Case]:
    """Yield trainings by every optimiser, resumed ones, and ones read by parts."""
    from clnet.nn.optimisers import OPTIMISERS

    options = {"epochs": EPOCHS, "seed": 5, "device": device, "tune": False}
    for shape in ("dense", "wide", "float64", "sparse csr", "local"):
        for optimiser in OPTIMISERS:
            for batch in (None, 32, 1):
                rule = OPTIMISERS[optimiser]
                if rule.batch is not None and batch not in (None, rule.batch):
                    continue
                if batch == 1 and shape != "dense":
                    continue
                network = networks()[shape]
                x = rows(SAMPLES, network.n_in)
                t = np.abs(np.sin(x[:, :1])) * np.eye(network.n_out)[:1].repeat(
                    SAMPLES, axis=0)
                history = network.fit(x, t, optimiser=optimiser, batch_size=batch,
                                      **options)
                yield f"fit {shape} {optimiser} {batch}", *trained(network, history)
                if shape != "dense" or batch == 1:
                    continue
                network = networks()[shape]
                half = network.fit(
                    x, t, optimiser=optimiser, batch_size=batch,
                    **options | {"epochs": EPOCHS // 2})
                history = network.fit(
                    x, t, optimiser=optimiser, batch_size=batch, state=half.state,
                    **options | {"epochs": EPOCHS - EPOCHS // 2})
                yield f"resume {optimiser} {batch}", *trained(network, history)
    network = networks()["dense"]
    x = rows(SAMPLES, network.n_in).astype(np.float32)
    t = np.tanh(x[:, :network.n_out])
    parts = [(x[i:i + 20], t[i:i + 20]) for i in range(0, SAMPLES, 20)]
    history = network.fit(parts, optimiser="adam", batch_size=8, buffer=20_000,
                          **options)
    yield "stream adam", *trained(network, history)


def populations(device: str) -> Iterator[Case]:
    """Yield populations and cascades."""
    from clnet import Cascade, Dense, Network, Population

    for sizes in ([2, 3, 1], [8, 16, 2], [20, 64, 5]):
        for optimiser, batch in (("rprop", None), ("adam", 32), ("sgd", 32)):
            population = Population(Network.mlp(sizes, "tanh", seed=0), 7)
            x = rows(SAMPLES, sizes[0])
            histories = population.fit(
                x, np.tanh(x[:, :1]).repeat(sizes[-1], 1), optimiser=optimiser,
                batch_size=batch, epochs=EPOCHS, seed=list(range(7)), device=device,
                tune=False)
            yield (f"population {sizes} {optimiser}", "", (
                population.parameters.copy(),
                np.array([history.mse for history in histories])))
    x = np.array([[a, b, a * b] for a in (-1, 1) for b in (-1, 1)], float)
    network = Network(3, [Dense(1, "tanh")], seed=0)
    network.fit(x, x[:, :1] * x[:, 1:2], optimiser=Cascade(), max_neurons=2, seed=0,
                device=device)
    yield "cascade", "", (network.parameters.copy(),)


def ranks(device: str) -> Iterator[Case]:
    """Yield the training of this process's rank; rank 0 alone yields it."""
    from mpi4py import MPI

    network = networks()["dense"]
    x = rows(SAMPLES, network.n_in)
    history = network.fit(
        x, np.tanh(x[:, :network.n_out]), optimiser="adam", batch_size=32, seed=5,
        epochs=EPOCHS, device=device, tune=False, comm=MPI.COMM_WORLD, blocks=8)
    if MPI.COMM_WORLD.rank == 0:
        yield "ranks", "", trained(network, history)[1]


SUITES = {
    suite.__name__: suite for suite in (predictions, trainings, populations, ranks)
}


def digests(suite: str, device: str) -> dict[str, list[str]]:
    """Return the digest of each case's plan, and of its results."""
    cases = {}
    for name, plan, arrays in SUITES[suite](device):
        chosen = re.sub(r"[\d.]+ ?(ns|us|ms|s)\b", "", plan.partition("\n\n")[0])
        bits = hashlib.sha256(b"".join(
            np.ascontiguousarray(array).tobytes() for array in arrays))
        cases[name] = [hashlib.sha256(chosen.encode()).hexdigest()[:16],
                       bits.hexdigest()[:16]]
    return cases


def digests_of(
    tree: Path, suite: str, device: str, cache: str
) -> dict[str, list[str]]:
    """Return the digests that a tree computes, in a process of its own."""
    command = [sys.executable, "-W", "ignore", str(Path(__file__).resolve()),
               "--digests", suite, "--device", device]
    environment = os.environ | {"PYTHONPATH": str(tree), "CLNET_CACHE_DIR": cache}
    counts = RANKS if suite == "ranks" else (0,)
    cases = {}
    for count in counts:
        starter = ["mpiexec", "-n", str(count)] if count else []
        output = subprocess.run(
            starter + command, env=environment, stdout=subprocess.PIPE, text=True,
            check=True, cwd=tree).stdout
        cases |= {f"{name} {count}" if count else name: digest
                  for name, digest in json.loads(output.splitlines()[-1]).items()}
    return cases


def main() -> int:
    """Compare this tree with another; return 1 if bits differ."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tree", type=Path, nargs="?", help="the other tree's folder")
    parser.add_argument("--device", default="pocl")
    parser.add_argument("--suites", nargs="*", default=list(SUITES), choices=SUITES)
    parser.add_argument("--digests", choices=SUITES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.digests:
        cases = digests(options.digests, options.device)
        if cases:
            print(json.dumps(cases), flush=True)
        return 0
    if options.tree is None or not (options.tree / "clnet").is_dir():
        parser.error("give the folder of another checkout")
    this, other = Path(__file__).resolve().parents[2], options.tree.resolve()
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as cache:
        for suite in options.suites:
            if suite == "ranks" and not (
                    shutil.which("mpiexec") and importlib.util.find_spec("mpi4py")):
                print("ranks: skipped, MPI is missing")
                continue
            before = digests_of(other, suite, options.device, cache)
            after = digests_of(this, suite, options.device, cache)
            for name in sorted(before | after):
                old, new = before.get(name), after.get(name)
                verdict = ("missing" if new is None else "new" if old is None else
                           "same" if old[1] == new[1] else
                           "other plan" if old[0] != new[0] else "other bits")
                counts[verdict] += 1
                if verdict != "same":
                    print(f"{verdict}: {name}", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return int(bool(counts["other bits"] or counts["missing"]))


if __name__ == "__main__":
    sys.exit(main())
