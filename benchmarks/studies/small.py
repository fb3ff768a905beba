"""Small networks: fixed costs of a call, an epoch and a training.

An epoch of FANN's first example takes a microsecond. Here the time of a launch, of a
Python call and of planning is larger than that of the arithmetic.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from clnet.nn.optimisers import Adam, Batch, Incremental, Quickprop, Rprop
from clnet.opencl.device import Device
from clnet.opencl.discovery import device as find_device

from ..baselines.dense import NumPy, ScikitLearn, Torch
from ..baselines.fann import Fann
from ..baselines.jax import Jax, JaxTraining
from ..baselines.training import training_baselines
from ..candidates import BASES as CLOCKS
from ..candidates import Candidate, Prepared, Timer, Wrapped, forward
from ..cases.dense import Array, Case
from ..cases.training import EPOCHS, Train, TrainingCase
from ..harness import Options, Trial
from ..own_candidates import Planned
from ..processes import Guarded, run_in_child
from ..report.plots import Plot
from ..report.tables import basis_title, tables
from .dispatch import Dynamic
from .training import CHECKED, CUDA, DATA, FANN_SETS, RATE
from .training_candidates import Fitted

TAKES = frozenset({"data", "fann_library"})
ABOUT = "small networks: an epoch, a training, the first one, an answer"
BASES = {
    "epoch": "one epoch: a long training less one of an epoch, over the epochs between",
    "fit": f"a training of {EPOCHS} epochs, from its call to its end; not the first",
    "first": f"the first training of {EPOCHS} epochs in a new process on empty caches, "
    "imports not counted",
    "wall": CLOCKS["wall"],
    "arrays": CLOCKS["arrays"],
}
TRAINING = tuple(BASES)[:3]
PARITY, XOR = (8, 32, 1), (2, 3, 1)
LEARNED = {"iris": ((4, 16, 3), 150), "digits": ((64, 128, 10), 1797)}
BATCH = 32  # samples a step of Adam
QUICK = ("xor", "iris")  # cases
BASELINES = frozenset(
    {"fann", "numpy", "sklearn", "torch", "torch-cuda", "torch-graph", "jax"}
)
NO_PEER = {True: "fann", False: "sklearn"}  # of Adam, and of FANN's rules
OURS = "planned"
LONG = 0.02  # seconds that the epochs between the two trainings take at least
MOST = 2.0  # seconds of the long training, about, at most
GROWTH = 4  # of the number of epochs, until it is long enough
FIRST_SECONDS = 300.0  # limit of a first training
# Folders of what is compiled and measured; PoCL's and pyopencl's are in the second.
CACHES = (
    "CLNET_CACHE_DIR", "XDG_CACHE_HOME", "POCL_CACHE_DIR", "CUDA_CACHE_PATH",
    "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR",
)


@dataclass(frozen=True)
class SmallCase(TrainingCase):
    """A training on all patterns of a parity, or on a data set of scikit-learn's."""

    source: str = "file"  # The data. Exclusive or is the parity of two bits

    def missing(self) -> str | None:
        """Return None if the data set exists, else a sentence."""
        if self.source in LEARNED and find_spec("sklearn") is None:
            return f"{self.source} needs scikit-learn, which is not installed"
        return super().missing()

    @cached_property
    def data(self) -> tuple[Array, Array]:
        """Inputs [samples, n_in] and targets [samples, n_out]."""
        if self.source == "file":
            return super().data
        x, labels = self._samples
        if self.source == "parity":
            return 2 * x - 1, labels[:, np.newaxis].astype(self.dtype)
        deviation = x.std(axis=0)
        x = (x - x.mean(axis=0)) / np.where(deviation == 0, 1, deviation)
        return x.astype(self.dtype), np.eye(self.sizes[-1], dtype=self.dtype)[labels]

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """The classes [samples]."""
        return self._samples[1]

    @cached_property
    def _samples(self) -> tuple[Array, NDArray[np.int64]]:
        if self.source == "parity":
            bits = np.array(list(product((0, 1), repeat=self.sizes[0])))
            return bits.astype(self.dtype), bits.sum(axis=1) % 2
        from sklearn import datasets

        x, labels = getattr(datasets, f"load_{self.source}")(return_X_y=True)
        order = np.random.default_rng(self.seed).permutation(len(x))[: self.samples]
        return x[order], labels[order].astype(np.int64)


# Candidates -------------------------------------------------------------------------


@dataclass(frozen=True)
class Whole(Wrapped):
    """A candidate whose trainings are timed as a whole, in three ways.

    Its preparation has a `Prepared.train`.
    """

    def prepare(self, case: SmallCase, device: Device) -> Prepared:
        """Return the candidate prepared, with the timers of `TRAINING`."""
        prepared: Prepared = self.candidate.prepare(case, device)
        train = prepared.train
        assert train is not None
        return replace(prepared, timers={
            "epoch": partial(one_epoch, train),
            "fit": lambda: partial(whole, train),
            "first": lambda: partial(first, self.candidate, case, device),
        })


def whole(train: Train, repeats: int, epochs: int = EPOCHS) -> float:
    """Return the mean seconds of trainings."""
    start = time.perf_counter()
    for _ in range(repeats):
        train(epochs - 1)
    return (time.perf_counter() - start) / repeats


def one_epoch(train: Train) -> Timer:
    """Return the timer of an epoch, as the difference of two trainings.

    The long one is long enough that the epochs, not the set-up, are most of its time.
    """
    epochs, short = GROWTH, whole(train, 2, 1)
    while True:
        train(epochs)  # anything that depends on the number of epochs is made
        seconds = whole(train, 1, 1 + epochs)
        if seconds >= max(2 * short, short + LONG) or seconds > MOST:
            break
        epochs *= GROWTH

    def timer(repeats: int) -> float:
        long = whole(train, repeats, 1 + epochs)
        return (long - whole(train, repeats, 1)) / epochs

    return timer


def first(
    candidate: Candidate, case: SmallCase, device: Device, repeats: int
) -> float:
    """Return the mean seconds of first trainings, each in a new process.

    RuntimeError: the process fails; the message is the last line of its errors.
    """
    total = 0.0
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, **dict.fromkeys(CACHES, folder)}
            done = run_in_child(
                FIRST_SECONDS, environment, first_training, candidate, case,
                device.index,
            )
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise RuntimeError(lines[-1] if lines else "the process of it crashed")
        total += float(done.stdout.split()[-1])
    return total / repeats


def first_training(candidate: Candidate, case: SmallCase, index: str) -> None:
    """Print the seconds of a first training; see `BASES`."""
    for module in candidate.requires:
        import_module(module)
    assert case.data
    start = time.perf_counter()
    device = find_device(index) if candidate.name == OURS else Device(index)
    train = candidate.prepare(case, device).train
    assert train is not None
    train(EPOCHS - 1)
    print(time.perf_counter() - start)


@dataclass(frozen=True)
class Predicted(Candidate):
    """`Network.predict`."""

    name: str = "predict"

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Return the call."""
        network = case.network
        return forward(case, lambda x: network.predict(x, device))


def trials(device: Device, options: Options) -> tuple[Trial, ...]:
    """Return the trials, rule by rule, and the answers; see `command.Study`."""
    cpu = device.type == "cpu"
    shown = BASELINES - (CUDA if cpu else frozenset())
    peers = [
        Whole(peer)
        for peer in (*training_baselines(options.fann_library), JaxTraining())
        if peer.name in shown
    ]
    cases = small_cases(DATA if options.data is None else Path(options.data))
    answers: list[Candidate] = [
        Planned(), Predicted(), *([] if cpu else [Dynamic()]),
        Guarded(Fann(options.fann_library)), NumPy(), ScikitLearn(),
        *(Torch(name) for name in sorted(shown) if name.startswith("torch")), Jax(),
    ]
    against = ("fann", "sklearn", "numpy")
    trials = [
        Trial(
            case.optimiser.name, case, (
                Whole(Fitted(clocked=False)),
                *(peer for peer in peers if peer.name != NO_PEER[case.by_loss]),
            ),
            against=against, roofline=False,
        )
        for case in cases
    ]
    trials += [
        Trial(
            "answer", Case(name, sizes, "tanh"), tuple(answers), against=against,
            roofline=False,
        )
        for name, sizes in {case.name: case.sizes for case in cases}.items()
    ]
    if options.effort == "quick":
        trials = [trial for trial in trials if trial.case.name in QUICK]
    return tuple(trials)


def small_cases(folder: Path, large: bool = False) -> tuple[SmallCase, ...]:
    """Return the cases of training; FANN's data sets are in a folder.

    `large` adds the one with the most samples.
    """
    xor, parity = (
        SmallCase(
            name, sizes, Rprop(), "mse", 2 ** sizes[0], 2 ** sizes[0], 1, "epoch",
            checked=CHECKED, initialiser="fann", source="parity",
        )
        for name, sizes in (("xor", XOR), ("parity", PARITY))
    )
    sets = [
        replace(
            xor, name=name, sizes=sizes, samples=n, batch=n, file=file, folder=folder,
            source="file",
        )
        for name, (sizes, n, file) in FANN_SETS.items() if large or name != "mushroom"
    ]
    rules = [
        replace(case, optimiser=rule, loss="fann_linear")
        for rule in (Batch(), Quickprop()) for case in (xor, parity)
    ]
    single = [
        replace(
            case, optimiser=Incremental(RATE), loss="fann_linear", batch=1, checked=1
        )
        for case in (xor, parity)
    ]
    learned = [
        SmallCase(
            name, sizes, Adam(), "categorical_cross_entropy", n, BATCH, 1, "epoch",
            hidden="relu", output="softmax", source=name,
        )
        for name, (sizes, n) in LEARNED.items()
    ]
    return (xor, parity, *sets, *rules, *single, *learned)


# The report --------------------------------------------------------------------------


def bases(device: Device) -> Sequence[str]:
    """Return all bases: those of trainings, and that of answers."""
    return tuple(BASES)


def report(rows: pd.DataFrame) -> str:
    """Return the times, and how many times as fast as FANN or another peer."""
    return tables(rows, title=basis_title, meanings=BASES)


PLOTS = (
    Plot(
        "time", "Small networks",
        ("rprop", "batch", "quickprop", "incremental", "adam", "answer"),
        x=lambda rows: rows["case"], x_label="network", y_label="time (µs)", bars=True,
        page=basis_title,
    ),
)
