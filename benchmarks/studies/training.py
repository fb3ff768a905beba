"""Training: FANN's data sets by its rules, and mini-batches with Adam.

The third study trained FANN's networks on a GPU, function by function, with copies for
every call: 70 times slower than the serial library. `Network.fit` leaves all data on
the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path

import pandas as pd

from clnet.nn.optimisers import Adam, Incremental, Rprop
from clnet.opencl.device import Device

from ..baselines.training import training_baselines
from ..candidates import Candidate
from ..cases.training import BASES as BASES
from ..cases.training import EPOCHS, TrainingCase
from ..harness import Options, Trial
from ..report.plots import Plot
from ..report.tables import basis_title, metric_tables, tables
from .training_candidates import STAGES, Fitted

TAKES = frozenset({"data", "fann_library"})
ABOUT = "training: FANN's rules and Adam, beside FANN, NumPy, PyTorch, scikit-learn"
DATA = Path("..", "shared", "datasets", "fann")  # beside the checkout
FANN_SETS: Mapping[str, tuple[tuple[int, ...], int, str]] = {
    "mushroom": ((125, 32, 2), 4062, "mushroom.train.gz"),
    "robot": ((48, 96, 3), 374, "robot.train"),
    "gene": ((120, 4, 2, 3), 1588, "gene.train"),
}
CHECKED = 5  # epochs of full batches compared with the oracle
RATE = 0.1  # at FANN's 0.7 float32's roundings grow until errors differ
# Of each network: the batch, steps an epoch and timed epochs, on a CPU and otherwise.
# Epochs are long compared with their one wait.
ADAM: Mapping[tuple[int, ...], tuple[int, tuple[int, int], tuple[int, int]]] = {
    (64, 100, 10): (32, (45, 45), (8, 8)),
    (784, 128, 10): (128, (50, 50), (2, 8)),
    (784, 1024, 1024, 10): (1024, (4, 16), (1, 4)),
    (64,) * 6: (1 << 17, (1, 2), (1, 4)),
}
QUICK = ("robot", "gene", "64-100-10")  # cases
LONG = 10_000_000  # multiply-adds a step beyond which scikit-learn is on demand
OURS = Fitted()
BASELINES = frozenset(baseline.name for baseline in training_baselines(None))
HOST = frozenset({"torch", "torch-cpu-compile"})
CUDA = frozenset({"torch-cuda", "torch-graph", "torch-compile", "torch-compile-graph"})
LAUNCHES = frozenset(stage.name for stage in STAGES)  # slow with launches a sample
COMPILED = frozenset({"torch-cpu-compile", "torch-compile", "torch-compile-graph"})


def bases(device: Device) -> Sequence[str]:
    """Return all bases; each case has one."""
    return tuple(BASES)


def trials(device: Device, options: Options) -> tuple[Trial, ...]:
    """Return the trials, rule by rule; see `command.Study`."""
    cpu = device.type == "cpu"
    folder = DATA if options.data is None else Path(options.data)
    baselines = training_baselines(options.fann_library)
    elsewhere = CUDA if cpu else HOST
    full = [
        TrainingCase(
            name, sizes, Rprop(), "mse", samples, samples, EPOCHS, f"{EPOCHS} epochs",
            file=file, folder=folder, checked=CHECKED, initialiser="fann",
        )
        for name, (sizes, samples, file) in FANN_SETS.items()
    ]
    single = [
        replace(
            case, optimiser=Incremental(RATE), loss="fann_linear", batch=1, epochs=1,
            basis="epoch", checked=1,
        )
        for case in full
    ]
    drawn = [
        TrainingCase(
            "-".join(str(n) for n in sizes), sizes, Adam(), "categorical_cross_entropy",
            batch * steps[not cpu], batch, epochs[not cpu], "step", hidden="relu",
            output="softmax",
        )
        for sizes, (batch, steps, epochs) in ADAM.items()
    ]
    by_fann = [peer for peer in baselines if peer.name != "sklearn"]
    by_adam = [peer for peer in baselines if peer.name != "fann"]
    trials = (
        *(
            _trial("rprop", case, [*STAGES, *by_fann], elsewhere | COMPILED)
            for case in full
        ),
        *(
            _trial("incremental", case, [*STAGES, *by_fann], HOST | CUDA | LAUNCHES)
            for case in single
        ),
        *(_trial("adam", case, by_adam, elsewhere | _long(case)) for case in drawn),
    )
    if options.effort == "quick":
        trials = tuple(trial for trial in trials if trial.case.name in QUICK)
    return trials


def _long(case: TrainingCase) -> Set[str]:
    """Return the candidates that take too long for a case of Adam."""
    large = case.parameters * case.batch > LONG
    return {"torch-cpu-compile", *(["sklearn"] if large else [])}


def _trial(
    table: str, case: TrainingCase, others: Sequence[Candidate], on_demand: Set[str]
) -> Trial:
    return Trial(
        table, case, (OURS, *others), frozenset(on_demand), against=(OURS.name,)
    )


def report(rows: pd.DataFrame) -> str:
    """Return the study's tables: steps a second, then times."""
    steps = rows[rows["basis"] == "step"]
    rate = lambda rows: 1 / rows["median"]  # noqa: E731
    parts = metric_tables(steps, "steps a second", rate, basis_title)
    parts.append(tables(rows, title=basis_title, meanings=BASES))
    return "\n\n".join(part for part in parts if part)


PLOTS = (
    Plot(
        "time", "Training", ("rprop", "incremental", "adam"),
        x=lambda rows: rows["case"], x_label="data set or network",
        y_label="time (µs)", bars=True,
        page=lambda rows: rows["table"] + ", time of " + rows["basis"],
    ),
)
