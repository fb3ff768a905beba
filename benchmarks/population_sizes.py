"""Populations of 1 to 100 000 networks: the time and memory of a training.

`population` is `Population.fit`, `jax` one `vmap` of the training, where JAX is
installed; 100 epochs of RPROP from the same initial weights. The memory is that of the
device which clnet has allocated at most, and the growth of the process by what the
training leaves: parameters and histories that are not read.

    python -m benchmarks.population_sizes                  # rows and table
    python -m benchmarks.population_sizes --rows FILE.csv  # the table of earlier rows
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from clnet import Population
from clnet.opencl.device import Device
from clnet.opencl.discovery import device as find_device
from clnet.opencl.session import Session, session

from . import program
from .baselines.jax import JaxTraining
from .cases.training import EPOCHS
from .environment import cores
from .studies.population import population_cases
from .studies.small import SmallCase
from .studies.training import DATA

CASES = ("xor", "parity")
SIZES = tuple(10**i for i in range(6))
REPEATS = 3
MOST_SECONDS = 30.0  # of a training: larger populations are left out


def resident() -> int:
    """Return the bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def ours(case: SmallCase, device: Device) -> Callable[[], Any]:
    """Return the training of a population."""
    network, options = case.network(), case.options
    start = np.tile(network.parameters, (case.networks, 1))
    population = Population.of([network])

    def train() -> Any:
        population.parameters = start
        return population.fit(epochs=EPOCHS, device=device, **options)

    return train


def theirs(case: SmallCase, device: Device) -> Callable[[], Any]:
    """Return the training by JAX."""
    train = JaxTraining().prepare(case, device).train
    assert train is not None
    return lambda: train(EPOCHS - 1)


def measured(name: str, case: SmallCase, device: Device) -> dict[str, Any]:
    """Return the row of a training: the best of some repetitions."""
    place = session(device)
    train = (ours if name == "population" else theirs)(case, device)
    train()  # kernels are built
    sizes = [place.allocated]
    before = resident()

    def counted(buffer: Any) -> None:
        Session.count(place, buffer)
        sizes.append(place.allocated)

    place.count = counted  # type: ignore[method-assign]
    seconds: list[float] = []
    kept: list[Any] = []  # of the last training alone
    for _ in range(REPEATS):
        kept.clear()
        begin = time.perf_counter()
        kept.append(train())
        seconds.append(time.perf_counter() - begin)
    best, grown = min(seconds), resident() - before
    del place.count
    return {
        "case": case.name.rpartition("-")[0], "library": name,
        "networks": case.networks, "epochs": EPOCHS, "seconds": best,
        "us_network_epoch": best / case.networks / EPOCHS * 1e6,
        "device_bytes": max(sizes) if name == "population" else math.nan,
        "process_bytes": grown, "cores": cores(), "device": device.name,
    }


def rows_of(device: Device) -> Iterator[dict[str, Any]]:
    """Yield the rows."""
    shapes = {
        case.name.rpartition("-")[0]: case for case in population_cases(DATA)
    }
    names = ["population"] + ["jax"] * (JaxTraining().missing() is None)
    for name in names:
        for shape in CASES:
            for networks in SIZES:
                case = replace(
                    shapes[shape], name=f"{shape}-{networks}", networks=networks
                )
                row = measured(name, case, device)
                yield row
                if row["seconds"] > MOST_SECONDS / 10:
                    break


def table(rows: pd.DataFrame) -> str:
    """Return the rows as text."""
    return str(rows.to_string(index=False, float_format="%.4g"))


def main() -> None:
    """Measure, or show the rows of a file."""
    given = program.parser(__doc__).parse_args()
    program.run(
        "population_sizes", given, lambda: rows_of(find_device(given.device)), table,
        digits="%.6g", anew=True,
    )


if __name__ == "__main__":
    main()
