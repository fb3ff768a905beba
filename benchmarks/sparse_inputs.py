"""`clnet.sklearn`'s classifier beside scikit-learn's on wide sparse matrices.

Both train on the same random matrix of scipy.sparse, with ENTRIES numbers a sample, as
texts have: a hidden layer of HIDDEN neurons, Adam, batches of 200, EPOCHS epochs. They
take turns, each time in a new process. clnet's trains once before, so that kernels are
built and compared: `first_s`, of an epoch. Times are of the processor, of all threads,
and of the wall, which other work disturbs. `peak_gb` is the process's memory at most.

    python -m benchmarks.sparse_inputs                     # rows and table
    python -m benchmarks.sparse_inputs --rows FILE.csv     # the table of earlier rows
"""

from __future__ import annotations

import multiprocessing
import resource
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from . import program

INPUTS = (2_000, 20_000, 100_000, 200_000, 1_000_000)
SAMPLES, ENTRIES, CLASSES = 2000, 100, 4
HIDDEN, EPOCHS, ROUNDS = 100, 3, 2
SKLEARN, CLNET = "sklearn", "clnet"


def samples(inputs: int) -> tuple[Any, Any]:
    """Return a sparse matrix [SAMPLES, inputs] and classes."""
    from scipy.sparse import csr_matrix

    rng = np.random.default_rng(0)
    numbers = rng.random(SAMPLES * ENTRIES, dtype=np.float32) / 10
    columns = rng.integers(0, inputs, SAMPLES * ENTRIES)
    starts = np.arange(SAMPLES + 1) * ENTRIES
    x = csr_matrix((numbers, columns, starts), shape=(SAMPLES, inputs))
    x.sum_duplicates()
    return x, rng.integers(0, CLASSES, SAMPLES)


def trained(library: str, inputs: int, device: str | None) -> dict[str, Any]:
    """Return the row of one training, in a process of its own."""
    from sklearn import neural_network

    import clnet.sklearn

    x, y = samples(inputs)
    options = {"random_state": 0, "n_iter_no_change": EPOCHS}

    def model(epochs: int) -> Any:
        if library == SKLEARN:
            return neural_network.MLPClassifier(HIDDEN, max_iter=epochs, **options)
        ours: Any = clnet.sklearn.MLPClassifier
        return ours(HIDDEN, max_iter=epochs, device=device, **options)

    row: dict[str, Any] = {"inputs": inputs, "estimator": library, "first_s": 0.0}
    with warnings.catch_warnings(), threadpool_limits(1, "blas"):
        warnings.simplefilter("ignore")
        if library == CLNET:
            wall = time.perf_counter()
            model(1).fit(x, y).predict(x)
            row["first_s"] = time.perf_counter() - wall
        chosen = model(EPOCHS)
        for name, call in (("fit", chosen.fit), ("predict", chosen.predict)):
            wall, processor = time.perf_counter(), time.process_time()
            call(*(x, y) if name == "fit" else (x,))
            row[f"{name}_processor_s"] = time.process_time() - processor
            row[f"{name}_s"] = time.perf_counter() - wall
    row["loss"] = chosen.loss_
    row["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return row


def measured(inputs: Sequence[int], device: str | None) -> Iterator[dict[str, Any]]:
    """Yield the rows."""
    spawn = multiprocessing.get_context("spawn")
    for width in inputs:
        for _ in range(ROUNDS):
            for library in (SKLEARN, CLNET):
                with spawn.Pool(1) as pool:
                    yield pool.apply(trained, (library, width, device))


def table(rows: pd.DataFrame) -> str:
    """Return medians, and how many times as long scikit-learn takes."""
    wide = rows.pivot_table(
        index="inputs", columns="estimator", aggfunc="median", values=[
            "fit_processor_s", "fit_s", "predict_s", "peak_gb", "first_s",
        ],
    )
    for name in ("fit_processor_s", "fit_s"):
        wide[f"times as fast, {name}", ""] = (
            wide[name, SKLEARN] / wide[name, CLNET]
        )
    text: str = wide.to_string(float_format="%.2f")
    return text


def main() -> None:
    """Measure, or show the rows of a file."""
    parser = program.parser(__doc__)
    parser.add_argument(
        "--inputs", nargs="+", type=int, default=INPUTS, help="default: %(default)s"
    )
    given = parser.parse_args()
    program.run(
        "sparse_inputs", given, lambda: measured(given.inputs, given.device), table,
        len(given.inputs) * ROUNDS * 2,
    )


if __name__ == "__main__":
    main()
