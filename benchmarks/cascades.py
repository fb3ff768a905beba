"""Cascade training beside FANN's: errors over neurons, and times.

For each seed FANN and clnet train from the same ``.net`` file, one after the other in
one process, FANN on one core as always, clnet on all of the device. Both draw their own
candidates. Kernels are built before. Tables of the rows:

    trainings  a row for each number of neurons: the error after the training of the
               outputs, and the seconds since the start, of the wall (median) and of
               the processor, all threads together; the last one is of the end
    wall, processor, neurons, mse
               medians over the seeds of the last rows
    errors     medians over the seeds of the MSE with so many neurons; a training that
               has ended counts with its last error

    python -m benchmarks.cascades                     # rows and table
    python -m benchmarks.cascades --rows FILE.csv     # the table of earlier rows
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from clnet.formats import load_data
from clnet.network import Network
from clnet.nn.fann_parameters import FannParameters
from clnet.nn.layers import Dense

from . import program
from .baselines.fann import library_file, load_library, network_of, samples_of
from .environment import cores, load, now

FANN_DATA = Path("../shared/datasets/fann")
SPIRAL = 97  # samples of a spiral
LIBRARIES = ("fann", "clnet")
Array = np.ndarray[Any, Any]


def parity(bits: int) -> tuple[Array, Array]:
    """Return all numbers of so many bits, and the parity of each."""
    x = (np.arange(2**bits)[:, np.newaxis] >> np.arange(bits)) & 1
    return x.astype(np.float32), (x.sum(axis=1, keepdims=True) % 2).astype(np.float32)


def spirals() -> tuple[Array, Array]:
    """Return two spirals of three turns each.

    Lang and Witbrock, "Learning to tell two spirals apart", 1988.
    """
    i = np.arange(SPIRAL)
    angle, radius = i * np.pi / 16, 6.5 * (104 - i) / 104
    arm = np.stack([radius * np.sin(angle), radius * np.cos(angle)], axis=1)
    t = np.repeat([[1.0], [0.0]], SPIRAL, axis=0)
    return np.concatenate([arm, -arm]).astype(np.float32), t.astype(np.float32)


def mushroom() -> tuple[Array, Array]:
    """Return FANN's mushrooms, from beside the checkout."""
    x, t = load_data(FANN_DATA / "mushroom.train.gz")
    return x, t


@dataclass(frozen=True)
class CascadeCase:
    """A data set, and the parameters of both libraries."""

    data: Callable[[], tuple[Array, Array]]
    seeds: int
    max_neurons: int
    desired_error: float
    parameters: FannParameters = field(default_factory=FannParameters)


TANH = FannParameters(
    cascade_activation_functions=("tanh",), cascade_activation_steepnesses=(0.5, 1.0),
    cascade_num_candidate_groups=8,
)
CASES = {
    "parity-8": CascadeCase(lambda: parity(8), 20, 30, 1e-3),
    "parity-8-tanh": CascadeCase(lambda: parity(8), 20, 30, 1e-3, TANH),
    "two-spirals": CascadeCase(spirals, 10, 30, 1e-3),
    "mushroom": CascadeCase(mushroom, 3, 3, 0.0),
}
CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint,
    ctypes.c_float, ctypes.c_uint,
)
Sizes = list[tuple[int, float, float, float]]
"""Neurons, MSE, and seconds of the wall and of the processor, of each training of the
outputs."""


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter(), time.process_time()

    def __call__(self) -> tuple[float, float]:
        """Return those of the wall, and of the processor for all threads."""
        wall, processor = self._start
        return time.perf_counter() - wall, time.process_time() - processor


def by_fann(fann: ctypes.CDLL, network: Network, x: Array, t: Array, case: CascadeCase,
            seed: int) -> Sizes:
    """Train by FANN."""
    net, data = network_of(fann, network), samples_of(fann, x, t)
    ctypes.CDLL(None).srand(seed)
    outer = x.shape[1] + 1 + t.shape[1]
    sizes: Sizes = []

    def add() -> None:
        neurons = fann.fann_get_total_neurons(net.pointer) - outer
        mse = fann.fann_get_MSE(net.pointer)
        sizes.append((neurons, mse, *clock()))

    def callback(*_: Any) -> int:
        add()
        return 0

    called = CALLBACK(callback)
    fann.fann_set_callback(net.pointer, ctypes.cast(called, ctypes.c_void_p))
    clock = Clock()
    fann.fann_cascadetrain_on_data(
        net.pointer, data.pointer, case.max_neurons, 1, case.desired_error
    )
    add()
    return sizes


def by_clnet(network: Network, x: Array, t: Array, case: CascadeCase, seed: int,
             device: str | None) -> Sizes:
    """Train by clnet."""
    sizes: Sizes = []

    def callback(training: Any, epoch: Any) -> None:
        sizes.append((epoch.number - 1, epoch.mse, *clock()))

    clock = Clock()
    network.fit(
        x, t, optimiser="cascade", max_neurons=case.max_neurons, seed=seed,
        desired_error=case.desired_error, callbacks=[callback], device=device,
    )
    sizes.append((len(network.layers) - 1, sizes[-1][1], *clock()))
    return sizes


def rows_of(
    names: list[str], fann: ctypes.CDLL, device: str | None
) -> Iterator[dict[str, Any]]:
    """Yield the rows; the last one of a training is of its end."""
    for name in names:
        case = CASES[name]
        x, t = case.data()

        def start(seed: int, x: Array = x, t: Array = t,
                  case: CascadeCase = case) -> Network:
            layer = Dense(t.shape[1], "sigmoid", sources=(0,), initialiser="fann")
            return Network(
                x.shape[1], [layer], seed=seed, fann_compatible=True,
                fann=case.parameters,
            )

        by_clnet(start(0), x, t, case, 0, device)  # builds the kernels
        for seed in range(case.seeds):
            for library in LIBRARIES:
                net = start(seed)
                sizes = by_fann(fann, net, x, t, case, seed) if library == "fann" else (
                    by_clnet(net, x, t, case, seed, device)
                )
                solved = np.nan
                if library == "clnet":
                    solved = float(net.evaluate(x, t).bit_fail == 0)
                for neurons, mse, seconds, processor in sizes:
                    yield {
                        "table": "trainings", "case": name, "seed": seed,
                        "library": library, "cores": cores(), "neurons": neurons,
                        "mse": mse, "median": seconds, "processor": processor,
                        "solved": solved, "load": load(), "date": now(),
                    }


def ends_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the last row of each training."""
    trainings = rows[rows["table"] == "trainings"]
    keys = ["case", "seed", "library"]
    return trainings.groupby(keys, sort=False).last().reset_index()


def medians_of(rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the rows of the tables of medians."""
    ends = ends_of(rows)
    for (case, library), group in ends.groupby(["case", "library"], sort=False):
        shared = {"case": case, "library": library, "cores": cores()}
        for measure in ("median", "processor", "neurons", "mse"):
            name = "wall" if measure == "median" else measure
            yield {**shared, "table": name, "median": group[measure].median()}
        of = rows[(rows["case"] == case) & (rows["library"] == library)]
        sizes = of.pivot_table(
            index="seed", columns="neurons", values="mse", aggfunc="last"
        ).ffill(axis=1)
        for neurons, mse in sizes.median().items():
            yield {**shared, "table": "errors", "neurons": neurons, "median": mse}


def table(rows: pd.DataFrame) -> str:
    """Return medians over the seeds of the ends, and how many times FANN takes."""
    ends = ends_of(rows).rename(columns={"median": "wall"})
    by_case = ends.groupby(["case", "library"], sort=False)
    medians = by_case[["neurons", "mse", "wall", "processor"]].median().unstack()
    medians.columns = [" ".join(column) for column in medians.columns]
    for measure in ("wall", "processor"):
        of = ends.pivot(index=["case", "seed"], columns="library", values=measure)
        ratio = (of["fann"] / of["clnet"]).groupby("case")
        medians[f"{measure} ×"], medians["least"] = ratio.median(), ratio.min()
    medians["solved"] = ends.groupby("case")["solved"].sum()
    medians["seeds"] = ends.groupby("case")["seed"].nunique()
    return str(medians.to_string(float_format="%.3g"))


def main() -> None:
    """Measure, or show the rows of a file."""
    parser = program.parser(__doc__)
    add = parser.add_argument
    add("--case", nargs="+", choices=CASES, default=[*CASES], help="only these")
    add("--fann-library", help="its file; default: the system's")
    given = parser.parse_args()
    library = library_file(given.fann_library)
    if given.rows is None and library is None:
        parser.error("FANN's library is not installed: see --fann-library")

    def measured() -> Iterator[dict[str, Any]]:
        assert library is not None
        for name in given.case:
            CASES[name].data()  # a missing file is told before minutes of work
        rows = []
        for row in rows_of(given.case, load_library(library), given.device):
            rows.append(row)
            yield row
        for row in medians_of(pd.DataFrame(rows)):
            yield {name: row.get(name) for name in rows[0]}

    program.run("cascades", given, measured, table, digits="%.6g", anew=True)


if __name__ == "__main__":
    main()
