"""Processes that are killed or interrupted while they write files and compute."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
from children import child_environment
from waits import HANG_SECONDS

import clnet
from clnet.errors import FormatError
from clnet.opencl.store import Store
from clnet.training.history import TrainingState

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


def ended(work: str, number: int, folder: Path, seed: int) -> tuple[int, str, str]:
    """Start some work, send a signal after a random time, and wait for the end.

    Returns
    -------
    int, str, str
        The exit code, and what the process has printed: of its work, and of errors.
    """
    folder.mkdir(exist_ok=True)
    with subprocess.Popen(
        [sys.executable, "-c", HEAD + WORK[work] + LOOP, str(folder)], text=True,
        env=child_environment(CLNET_CACHE_DIR=folder),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        try:
            pause = random.Random(seed).uniform(0, MOST_SECONDS)
            process.wait(pause if first else 0)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
        try:
            out, errors = process.communicate(timeout=HANG_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait(), first, "it hangs after the signal"
        return process.returncode, first + out, errors


def faults(work: str, number: int, folder: Path, seed: int) -> list[str]:
    """Return what is wrong after a signal: with the process, and with its files."""
    code, out, errors = ended(work, number, folder, seed)
    found = []
    interrupted = number == signal.SIGINT
    if "ready" not in out or (interrupted and (code or "right" not in out)):
        found.append(f"exit code {code}: {errors[-2000:]}")
    if not interrupted and code != -number:
        found.append(f"exit code {code}, expected {-number}: {errors[-2000:]}")
    try:
        found += unreadable(folder)
    except FormatError as error:
        found.append(str(error))
    return found


def unreadable(folder: Path) -> list[str]:
    """Return what is wrong with the files of any work; none may be a part."""
    found = []
    # A kill at the moment of the rename leaves a name, which the next write sweeps.
    last = folder / "last.net"
    clnet.Network.mlp([1, 1]).save(last)
    last.unlink()
    for path in folder.iterdir():
        name = path.name
        if name == "state.safetensors":
            TrainingState.load(path)
        elif name == "population.safetensors":
            parameters = clnet.Population.load(path).parameters
            # A layer's weights are padded with zeros.
            if len({*np.unique(parameters)} - {0}) > 1:
                found.append(f"{name} is of two times")
        elif name.startswith("net"):
            parameters = clnet.load(path).parameters
            if not np.isfinite(parameters).all():
                found.append(f"{name} holds numbers that are not finite")
        elif name == "data.npz":
            if len({*np.unique(np.hstack(clnet.load_data(path)))}) != 1:
                found.append("data.npz is of two times")
        elif not name.startswith("tuning"):
            found.append(f"{name} is left")
    store = Store(clnet.device("cpu"), folder)
    store.get("span", "key 1")
    if (folder / "tuning-1.damaged").exists():
        found.append("the store was damaged")
    return found
