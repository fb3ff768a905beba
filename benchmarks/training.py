"""Training: FANN's data sets by its rules, and mini-batches with Adam.

The third study trained FANN's networks on a GPU function by function, and was 70 times
slower than the serial library: every call copied to and fro. Its question is asked here
of `Network.fit`, which leaves everything on the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path

from clnet.nn.optimisers import Adam, Incremental, Rprop
from clnet.opencl.device import Device

from .candidates import Candidate
from .frame import Trial
from .options import Options
from .plots import Plot
from .records import Row
from .report import Layout, matrix, number, tables
from .training_cases import BASES as BASES
from .training_cases import EPOCHS, TrainingCase
from .training_peers import Fitted, training_peers
from .training_trials import TRIALS

TAKES = frozenset({"data", "fann_library"})
ABOUT = "training: FANN's rules and Adam, against FANN, NumPy, PyTorch, scikit-learn"
DATA = Path("..", "shared", "datasets", "fann")  # where a checkout has them beside it
FANN_SETS: Mapping[str, tuple[tuple[int, ...], int, str]] = {
    "mushroom": ((125, 32, 2), 4062, "mushroom.train.gz"),
    "robot": ((48, 96, 3), 374, "robot.train"),
    "gene": ((120, 4, 2, 3), 1588, "gene.train"),
}
CHECKED = 5  # epochs of full batches that are compared with the oracle
RATE = 0.1  # at FANN's 0.7 the last bits of float32 decide the course
# Of each network: the batch, steps an epoch and timed epochs, on a CPU and else. Epochs
# last long enough for their one wait not to count.
ADAM: Mapping[tuple[int, ...], tuple[int, tuple[int, int], tuple[int, int]]] = {
    (64, 100, 10): (32, (45, 45), (8, 8)),
    (784, 128, 10): (128, (50, 50), (2, 8)),
    (784, 1024, 1024, 10): (1024, (4, 16), (1, 4)),
    (64,) * 6: (1 << 17, (1, 2), (1, 4)),
}
QUICK = ("robot", "gene", "64-100-10")  # cases
LONG = 10_000_000  # multiply-adds a step beyond which scikit-learn is left out unasked
OURS = Fitted()
PEERS = frozenset(peer.name for peer in training_peers(None))
HOST = frozenset({"torch", "torch-cpu-compile"})
CUDA = frozenset({"torch-cuda", "torch-graph", "torch-compile", "torch-compile-graph"})
LAUNCHES = frozenset(trial.name for trial in TRIALS)  # slow where each sample has some
COMPILED = frozenset({"torch-cpu-compile", "torch-compile", "torch-compile-graph"})


def bases(device: Device) -> Sequence[str]:
    """Return what is timed unasked: each case has one basis."""
    return tuple(BASES)


def trials(device: Device, options: Options) -> tuple[Trial, ...]:
    """Return the trials, a rule after the other; see `command.Study`."""
    cpu = device.type == "cpu"
    folder = DATA if options.data is None else Path(options.data)
    peers = training_peers(options.fann_library)
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
    by_fann = [peer for peer in peers if peer.name != "sklearn"]
    by_adam = [peer for peer in peers if peer.name != "fann"]
    found = (
        *(
            _trial("rprop", case, [*TRIALS, *by_fann], elsewhere | COMPILED)
            for case in full
        ),
        *(
            _trial("incremental", case, [*TRIALS, *by_fann], HOST | CUDA | LAUNCHES)
            for case in single
        ),
        *(_trial("adam", case, by_adam, elsewhere | _long(case)) for case in drawn),
    )
    if options.effort == "quick":
        found = tuple(trial for trial in found if trial.case.name in QUICK)
    return found


def _long(case: TrainingCase) -> Set[str]:
    """Return who takes too long at a case of Adam to be measured unasked."""
    large = case.parameters * case.batch > LONG
    return {"torch-cpu-compile", *(["sklearn"] if large else [])}


def _trial(
    table: str, case: TrainingCase, peers: Sequence[Candidate], on_demand: Set[str]
) -> Trial:
    return Trial(
        table, case, (OURS, *peers), frozenset(on_demand), against=(OURS.name,)
    )


def report(rows: Sequence[Row]) -> str:
    """Return the study's tables: times, times as long as ours took, steps a second."""
    parts = [tables(rows, layout=LAYOUT)]
    steps = [row for row in rows if row.basis == "step" and row.median is not None]
    if steps:
        parts.insert(0, "adam: steps a second\n\n" + matrix(steps, _steps_a_second))
    return "\n\n".join(part for part in parts if part)


def _steps_a_second(row: Row) -> str:
    assert row.median is not None
    return number(1 / row.median)


def _unit(row: Row) -> tuple[str, float]:
    return ("microseconds", 1e6) if row.basis == "step" else ("milliseconds", 1e3)


LAYOUT = Layout(
    title=lambda row: f"{row.table}, {row.basis}", unit=_unit, meanings=BASES,
    ratio=lambda ratio: 1 / ratio, ratio_text="times as long as {} took",
)


PLOTS = (
    Plot(
        "time", "Training", ("rprop", "incremental", "adam"), x=lambda row: row.case,
        x_label="data set or network", y_label="time (µs)", bars=True,
        page=lambda row: f"{row.table}, time of {row.basis}",
    ),
)
