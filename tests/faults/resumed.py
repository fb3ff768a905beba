"""Trainings that are killed and resumed until they end: they end with the same bits.

``python -m tests.faults.resumed 200`` kills so many processes at least.
"""

from __future__ import annotations

import csv
import random
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import count, product
from pathlib import Path

import numpy as np
from children import child_environment, signalled
from waits import HANG_SECONDS

import clnet
from clnet import Dense, Network, Sparse
from clnet.nn.optimisers import SGD
from clnet.planning import training_planner
from clnet.planning.format_planner import NetworkView

from .kills import TEMPORARY

EPOCHS = 240
EVERY = (1, 7)  # epochs between two checkpoints
PROCESSES = 2  # at the same time
MOST_SECONDS = 0.25  # from the first epoch of a process to its kill
MOST_STARTS = 100  # of a training: each gets on, or the test fails
CHECKPOINT, CURVE, RESULT = "training.safetensors", "curve.csv", "result.npz"


def mlp(**options):
    return Network.mlp([2, 12, 2], ["tanh", "sigmoid"], seed=1, **options)


def sparse():
    return Network(2, [Dense(24, "tanh"), Sparse(24, density=0.3, activation="tanh"),
                       Dense(2, "sigmoid")], seed=1)


CASES = {
    "batch": (mlp, {"optimiser": "batch"}),
    "rprop": (mlp, {"optimiser": "rprop", "schedule": None}),
    "quickprop": (mlp, {"optimiser": "quickprop"}),
    "sarprop": (mlp, {"optimiser": "sarprop"}),
    "incremental": (mlp, {"optimiser": "incremental"}),
    "shuffled": (mlp, {"optimiser": "adam", "batch_size": 16, "schedule": "cosine"}),
    "dropout": (lambda: mlp(dropout=0.2), {"optimiser": "adam", "batch_size": 40}),
    "float64": (lambda: mlp(dtype="float64"),
                {"optimiser": SGD(0.1, 0.9), "batch_size": 50, "clip_norm": 1.0}),
    "sparse": (sparse, {"optimiser": "adam", "l2": 1e-4}),
    "parts": (mlp, {"optimiser": "adam", "batch_size": 16, "buffer": 1600}),
}
"""The network and the options of each training; `fit` shuffles mini-batches."""
VALIDATED = ("shuffled", "dropout")  # and stopped early, maybe
BY_PARTS = "parts"  # whose samples are mapped


class Ready:
    """Tells the parent that the first epoch is done."""

    def __init__(self):
        self.told = False

    def __call__(self, training, epoch):
        if not self.told:
            print("ready", flush=True)
        self.told = True


def mapped(array):
    """Return an array in a file of its own, as a memory map."""
    with tempfile.TemporaryFile() as file:
        found = np.memmap(file, array.dtype, "w+", shape=array.shape)
    found[...] = array
    return found


def train(case, folder, every, epochs, comm=None):
    """Train as far as it goes, by ranks of `comm`; `every` 0: without checkpoints."""
    folder = Path(folder)
    make, options = CASES[case]
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (120, 2))
    inside = (x**2).sum(axis=1) < 0.5
    t = np.stack([inside, ~inside], axis=1).astype(float)
    if case == BY_PARTS:
        x = mapped(x)
    callbacks = []
    if case in VALIDATED:
        options = {**options, "validation": (x[:40], t[:40])}
        callbacks.append(clnet.EarlyStopping(patience=epochs // 2))
    path = folder / CHECKPOINT
    resume = path if path.exists() else None
    if every:
        callbacks += [
            clnet.CSVLogger(folder / CURVE), clnet.Checkpoint(path, every), Ready(),
        ]
    if resume is None:  # one that plans anew takes another format
        training_planner.best_format = lambda network, device, planner: planner(
            NetworkView(network, "dense") if case == "sparse" else network
        )
    network = make()
    history = network.fit(x, t, epochs=epochs, seed=None if resume else 5,
                          device="cpu", callbacks=callbacks, resume=resume, comm=comm,
                          tune=None if comm is None else False, **options)
    if comm is not None and comm.rank:
        return
    np.savez(
        folder / RESULT, parameters=network.parameters, values=history.state.values,
        count=history.state.count, measures=history.epochs.rows[:, :-1],
        stopped=history.stopped,
    )


def start(case, folder, every, epochs):
    folder.mkdir(exist_ok=True)
    code = "import sys; from faults.resumed import train; "
    code += f"train({case!r}, {str(folder)!r}, {every}, {epochs})"
    return subprocess.Popen(
        [sys.executable, "-c", code], text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env=child_environment(),
    )


def killed(case, folder, every, epochs, seed):
    """Train in processes that are killed, until one ends; return how many were."""
    pauses = random.Random(seed)
    for kills in range(MOST_STARTS):
        with start(case, folder, every, epochs) as process:
            pause = pauses.uniform(0, MOST_SECONDS)
            ended = signalled(process, signal.SIGKILL, pause)
        if ended is None:
            raise AssertionError("it hangs after the signal")
        if process.returncode == 0:
            return kills
        if process.returncode != -signal.SIGKILL:
            raise AssertionError(f"exit code {process.returncode}: {ended[1][-2000:]}")
        check_curve(folder / CURVE, None)
    raise AssertionError(f"{MOST_STARTS} processes did not end the training")


def check_curve(path, measures):
    """Check that a table has each epoch once; of a killed process the end may lack."""
    with path.open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    if measures is None:
        rows = rows[:-1]
    assert [int(row[0]) for row in rows] == list(range(1, len(rows) + 1))
    if measures is not None:
        assert [[float(number) for number in row[2:]] for row in rows] == (
            measures.tolist()
        )


def differences(case, folder, every, epochs, seed):
    """Return the kills of a training, and what differs from one without any."""
    whole, parts = folder / f"{case}-whole", folder / f"{case}-{every}-{seed}"
    if not (whole / RESULT).exists():
        with start(case, whole, 0, epochs) as process:
            _, errors = process.communicate(timeout=HANG_SECONDS)
        if process.returncode:
            return 0, [f"exit code {process.returncode}: {errors[-2000:]}"]
    try:
        kills = killed(case, parts, every, epochs, seed)
        return kills, compared(parts, whole)
    except AssertionError as error:
        return 0, [str(error)]


def compared(parts, whole):
    """Return what differs in the folders of two trainings."""
    with np.load(parts / RESULT) as found, np.load(whole / RESULT) as expected:
        wrong = [
            f"{name}: {found[name]} instead of {expected[name]}"
            for name in expected
            if found[name].tobytes() != expected[name].tobytes()
        ]
        check_curve(parts / CURVE, expected["measures"])
    left = {
        path.name for path in parts.iterdir() if not path.match(TEMPORARY)  # of kills
    } - {CHECKPOINT, CURVE, RESULT}
    return wrong + [f"{name} is left" for name in sorted(left)]


def main() -> int:
    """Run the command; return 1 if bits differ."""
    least = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    kills = problems = 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(PROCESSES) as pool:
        for seed in count():
            cases = list(product(CASES, EVERY))
            found = pool.map(
                lambda case, seed=seed: differences(
                    case[0], Path(folder), case[1], EPOCHS, seed
                ),
                cases,
            )
            for (case, every), (number, wrong) in zip(cases, found, strict=True):
                kills, problems = kills + number, problems + bool(wrong)
                print(
                    f"{case}, every {every} epochs: {number} kills",
                    *wrong, sep="\n  ", flush=True,
                )
            if kills >= least or problems:
                break
    print(f"{kills} kills, {problems} trainings that end otherwise")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
