"""Populations: many small networks of one shape, trained side by side.

A small network fills neither a GPU nor the cores of a CPU. Peers train as many as the
machine takes at a time: FANN and scikit-learn one on each core, JAX all of them as one
vectorised function.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd

from clnet import Population
from clnet.nn.optimisers import Adam
from clnet.opencl.device import Device

from ..baselines.fann import FannTraining
from ..baselines.jax import JaxTraining
from ..baselines.torch_population import TorchPopulation
from ..baselines.training import ScikitLearnTraining
from ..candidates import Baseline, Candidate, Prepared
from ..cases.training import Trained, TrainingCase, trainer
from ..environment import cores
from ..harness import Options, Trial
from ..report.plots import Plot
from ..report.tables import basis_title, tables
from .small import BASES as SMALL
from .small import SmallCase, Whole, small_cases
from .training import DATA
from .training_candidates import Fitted

TAKES = frozenset({"data", "fann_library"})
ABOUT = "populations: many small networks side by side, beside those of other libraries"
BASES = {name: f"{SMALL[name]}, of all networks" for name in ("epoch", "fit")}
# Of each case of `small`: numbers of networks by default, and with --full.
NETWORKS: Mapping[str, tuple[int, ...]] = {
    "xor": (1000, 10_000), "parity": (1000, 100, 10_000), "robot": (100, 1000),
    "gene": (100,), "mushroom": (100, 1000), "iris": (200, 1000),
    "digits": (20, 100, 1000), "fold": (100, 1000),
}
FOLD = ((64, 100, 10), 1437)  # four fifths of the digits
QUICK = ("xor", "iris")
TORCH = ("torch-baddbmm", "torch-vmap")
BASELINES = frozenset({"fann", "jax", "sklearn", *TORCH})


@dataclass(frozen=True)
class Together(Candidate):
    """`Population.fit`."""

    name: str = "population"

    def prepare(self, case: TrainingCase, device: Device) -> Prepared:
        """Return the training of all networks, from the case's initial weights."""
        network, options = case.network(), case.options
        start = np.tile(network.parameters, (case.networks, 1))
        population = Population.of([network])

        def train(epochs: int) -> Trained:
            population.parameters = start
            histories = population.fit(epochs=1 + epochs, device=device, **options)
            return case.outcome(histories[0])

        threads = device.compute_units if device.type == "cpu" else None
        return trainer(case, train, config="members", threads=threads)


@dataclass(frozen=True)
class OneByOne(Candidate):
    """`Network.fit`, one network after the other."""

    name: str = "one-by-one"

    def prepare(self, case: TrainingCase, device: Device) -> Prepared:
        """Return the trainings, each from the case's initial weights."""
        alone = Fitted(clocked=False).prepare(case, device)
        train_one = alone.train
        assert train_one is not None

        def train(epochs: int) -> Trained:
            for _ in range(case.networks):
                trained = train_one(epochs)
            return trained

        return trainer(case, train, threads=alone.threads)


@dataclass(frozen=True)
class ScikitLearnProcesses(Baseline):
    """scikit-learn's `MLPClassifier` in as many processes as cores."""

    name: str = "sklearn"
    requires: ClassVar[tuple[str, ...]] = ("sklearn",)

    def prepare(self, case: TrainingCase, device: Device) -> Prepared:
        """Return the trainings of equal shares of the networks in each process."""
        single = ScikitLearnTraining().prepare(replace(case, networks=1), device)
        processes = min(cores(), case.networks)
        shares = [len(part) for part in np.array_split(range(case.networks), processes)]
        # The module makes the benchmarks importable, also for a checkout.
        pool = ProcessPoolExecutor(
            processes, get_context("spawn"), import_module, ("clnet.cli.bench",)
        )

        def train(epochs: int) -> Trained:
            work = partial(_share, case, epochs)
            return Trained(next(iter(pool.map(work, shares))), math.nan)

        return trainer(case, train, config=single.config, threads=processes)


def _share(case: TrainingCase, epochs: int, count: int) -> list[float]:
    """Train some networks in this process, and return the last one's losses."""
    from threadpoolctl import threadpool_limits

    host = Device("of this process", "cpu")
    prepared = ScikitLearnTraining().prepare(replace(case, networks=1), host)
    assert prepared.train is not None
    with threadpool_limits(1):  # a core a process
        for _ in range(count):
            outcome = prepared.train(epochs)
    return outcome.errors


def trials(device: Device, options: Options) -> tuple[Trial, ...]:
    """Return the trials, FANN's rule first; see `command.Study`."""
    cases = population_cases(
        DATA if options.data is None else Path(options.data), options.effort == "full"
    )
    peers: dict[bool, list[Candidate]] = {
        False: [FannTraining(options.fann_library)], True: [ScikitLearnProcesses()],
    }
    for candidates in peers.values():
        candidates.append(JaxTraining())
        if device.type != "cpu":
            candidates += map(TorchPopulation, TORCH)
    trials_of = tuple(
        Trial(
            case.optimiser.name, case,
            tuple(map(Whole, (Together(), OneByOne(), *peers[case.by_loss]))),
            against=("fann", "sklearn"), roofline=False,
        )
        for case in cases
    )
    if options.effort == "quick":
        return tuple(
            trial for trial in trials_of if trial.case.name.rpartition("-")[0] in QUICK
        )
    return trials_of


def population_cases(folder: Path, full: bool = False) -> list[SmallCase]:
    """Return the cases: full batches by RPROP, and by Adam of the learned data."""
    cases = small_cases(folder, large=True)
    digits = next(case for case in cases if case.name == "digits")
    sizes, samples = FOLD
    return [
        replace(case, name=f"{case.name}-{networks}", networks=networks,
                batch=case.samples)
        for case in (*cases, replace(digits, name="fold", sizes=sizes, samples=samples))
        if case.optimiser.name == "rprop" or isinstance(case.optimiser, Adam)
        for networks in NETWORKS[case.name][: None if full else 1]
    ]


def bases(device: Device) -> Sequence[str]:
    """Return all bases."""
    return tuple(BASES)


def report(rows: pd.DataFrame) -> str:
    """Return the times, and how many times as fast as FANN or scikit-learn."""
    return tables(rows, title=basis_title, meanings=BASES)


PLOTS = (
    Plot(
        "time", "Populations", ("rprop", "adam"), x=lambda rows: rows["case"],
        x_label="network and their number", y_label="time (µs)", bars=True,
        page=basis_title,
    ),
)
