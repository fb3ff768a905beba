"""Processes that are killed or interrupted while they write files and compute."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from dataclasses import astuple, dataclass, field
from operator import add
from pathlib import Path

import numpy as np
from children import child_environment, signalled

import clnet
from clnet.errors import FormatError
from clnet.formats import files
from clnet.opencl.store import Store
from clnet.training.history import TrainingState

TEMPORARY = files.TEMPORARY.format("*")
MOST_SECONDS = 0.3  # from a process's first work to its signal
HEAD = """
import sys
import time
from functools import partial
from pathlib import Path
import numpy as np
import clnet
from clnet.opencl.store import Store, Timing
from clnet.training import plans
plans.plan_training = partial(plans.plan_training, tune=False)  # at once
folder = Path(sys.argv[1])
CPU = clnet.device("cpu")
network = clnet.Network.mlp([20, 40, 30], "tanh", seed=1)
x = np.linspace(-1, 1, 60, dtype=np.float32).reshape(3, 20)
t = np.zeros((3, 30), np.float32)
"""
WORK = {
    "save": """
def work(number):
    network.parameters = np.full_like(network.parameters, number)
    network.save(folder / "net.safetensors")
    network.save(folder / "net.net")
    clnet.save_data(folder / "data.npz", x * 0 + number, t + number)
""",
    "population": """
population = clnet.Population(network, 200)
def work(number):
    population.parameters = np.full_like(population.parameters, number)
    population.save(folder / "population.safetensors")
""",
    "checkpoint": """
def work(number):
    history = network.fit(
        x, t, device=CPU, epochs=3, optimiser="adam", seed=1,
        callbacks=[clnet.Checkpoint(folder / "net.safetensors")],
    )
    if "interrupted" in history.stopped:
        raise KeyboardInterrupt
    history.state.save(folder / "state.safetensors")
""",
    "cascade": """
few = clnet.Cascade(
    activation_functions=["tanh"], max_out_epochs=9, max_cand_epochs=9
)
def save(training, epoch):
    training.network.save(folder / "net_grows.safetensors")
def work(number):
    grown = clnet.Network(20, [clnet.Dense(30, "tanh")], seed=1)
    history = grown.fit(
        x, t, device=CPU, max_neurons=3, optimiser=few, seed=1, callbacks=[save]
    )
    if "interrupted" in history.stopped:
        raise KeyboardInterrupt
    grown.save(folder / "net_grown.net")
""",
    "store": """
store = Store(CPU, folder)
def work(number):
    store.put("span", f"key {number % 50}", Timing(1.0, 2.0, 0.5))
    store.put_fact("fact", True)
""",
    "predict": """
def work(number):
    y = network.predict(x, CPU)
    assert np.array_equal(y, first), "another result"
first = network.predict(x, CPU)
""",
    "tune": """
def work(number):
    network.compile(CPU, 3, variants=["naive", "split"], tune=True)(x)
""",
}
FILES = ("save", "population", "checkpoint", "cascade", "store")  # work that writes
LOOP = """
try:
    work(0)
    print("ready", flush=True)
    number, end = 0, time.monotonic() + 60  # also without a parent that sends signals
    while time.monotonic() < end:
        number += 1
        work(number)
except KeyboardInterrupt:
    pass
work(1)
print("right", flush=True)
"""


@dataclass
class Outcome:
    """Counts of processes that got a signal."""

    processes: int = 0  # Those that started to work
    hangs: int = 0  # Those that did not end after the signal
    files: int = 0  # Files of theirs that were read back
    left: int = 0  # Temporary files of killed processes
    # All that was wrong, a sentence each
    problems: list[str] = field(default_factory=list)

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(*map(add, astuple(self), astuple(other)))


def ended(
    work: str, number: int, folder: Path, seed: int, cache: Path | None
) -> tuple[int, str, str] | None:
    """Start some work, send a signal after a random time, and wait for the end."""
    folder.mkdir(exist_ok=True)
    caches = {"CLNET_CACHE_DIR": folder} | ({"POCL_CACHE_DIR": cache} if cache else {})
    with subprocess.Popen(
        [sys.executable, "-c", HEAD + WORK[work] + LOOP, str(folder)], text=True,
        env=child_environment(**caches),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:
        pause = random.Random(seed).uniform(0, MOST_SECONDS)
        found = signalled(process, number, pause)
    return None if found is None else (process.returncode, *found)


def outcome(
    work: str, number: int, folder: Path, seed: int, cache: Path | None = None
) -> Outcome:
    """Return the outcome of a signal: for the process, and for its files."""
    found = Outcome()
    end = ended(work, number, folder, seed, cache)
    if end is None:
        found.hangs = 1
        found.problems.append("it hangs after the signal")
    else:
        code, out, errors = end
        found.processes = int("ready" in out)
        interrupted = number == signal.SIGINT
        right = not code and "right" in out if interrupted else code == -number
        if not found.processes or not right:
            found.problems.append(f"exit code {code}: {errors[-2000:]}")
    try:
        check_files(folder, found)
    except FormatError as error:
        found.problems.append(str(error))
    return found


def check_files(folder: Path, found: Outcome) -> None:
    """Read the files of any work, and add to an outcome; none may be a part."""
    for temporary in folder.glob(TEMPORARY):
        temporary.unlink()
        found.left += 1
    for path in folder.iterdir():
        name = path.name
        if name == "state.safetensors":
            TrainingState.load(path)
        elif name == "population.safetensors":
            parameters = clnet.Population.load(path).parameters
            # A layer's weights are padded with zeros.
            if len({*np.unique(parameters)} - {0}) > 1:
                found.problems.append(f"{name} is of two times")
        elif name.startswith("net"):
            parameters = clnet.load(path).parameters
            if not np.isfinite(parameters).all():
                found.problems.append(f"{name} holds numbers that are not finite")
        elif name == "data.npz":
            if len({*np.unique(np.hstack(clnet.load_data(path)))}) != 1:
                found.problems.append("data.npz is of two times")
        elif not name.startswith("tuning"):
            found.problems.append(f"{name} is left")
            continue
        found.files += 1
    store = Store(clnet.device("cpu"), folder)
    store.get("span", "key 1")
    if (folder / "tuning-1.damaged").exists():
        found.problems.append("the store was damaged")
