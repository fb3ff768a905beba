"""The estimators of `clnet.sklearn` beside scikit-learn's: scores and times of `fit`.

Both train with their own defaults on the same splits of scikit-learn's data sets,
standardised: those that it brings, and those that it makes. A score is the accuracy of
classes, or R² of a regression, on the test set. A row has the means over the seeds.
Before the timed ones each trains once, so that kernels are built and plans are made.
Times are of the processor, of all threads: those of the wall are there too.

    python -m benchmarks.estimators                     # rows and table
    python -m benchmarks.estimators --rows FILE.csv     # the table of earlier rows
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from . import program
from .cases.dense import Array

SEEDS = 5
TEST = 0.25  # share of the samples
MANY = 1000  # samples from which the times are compared
# Of scikit-learn's data sets: its loader or maker, and the maker's arguments.
CLASSES: dict[str, dict[str, Any]] = {
    "load_iris": {}, "load_wine": {}, "load_breast_cancer": {}, "load_digits": {},
    "make_moons": {"n_samples": 2000, "noise": 0.25},
    "make_classification": {
        "n_samples": 4000, "n_features": 40, "n_informative": 15, "n_classes": 4,
    },
    "make_gaussian_quantiles": {"n_samples": 2000, "n_features": 10, "n_classes": 3},
}
REGRESSIONS: dict[str, dict[str, Any]] = {
    "load_diabetes": {}, "make_friedman1": {"n_samples": 2000, "noise": 0.5},
    "make_regression": {"n_samples": 2000, "n_features": 20, "noise": 10.0},
}
SKLEARN = "sklearn"
ESTIMATORS = (SKLEARN, "float32", "float64")  # the others are clnet's, of a dtype


def samples(name: str) -> tuple[Array, Array]:
    """Return inputs and targets of a data set, standardised but for classes."""
    from sklearn import datasets
    from sklearn.preprocessing import scale

    options = (CLASSES | REGRESSIONS)[name]
    if name.startswith("load"):
        x, y = getattr(datasets, name)(return_X_y=True)
    else:
        x, y = getattr(datasets, name)(random_state=0, **options)
    return scale(x), y if name in CLASSES else scale(y)


def estimator(library: str, name: str, seed: int, device: str | None) -> Any:
    """Return an estimator of `ESTIMATORS` for a data set."""
    from sklearn import neural_network

    import clnet.sklearn

    of = "MLPClassifier" if name in CLASSES else "MLPRegressor"
    if library == SKLEARN:
        return getattr(neural_network, of)(random_state=seed)
    ours: Callable[..., Any] = getattr(clnet.sklearn, of)
    return ours(random_state=seed, dtype=library, device=device)


def measured(names: list[str], device: str | None) -> Iterator[dict[str, Any]]:
    """Yield the rows."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.model_selection import train_test_split

    for name in names:
        x, y = samples(name)
        split = partial(
            train_test_split, x, y, test_size=TEST,
            stratify=y if name in CLASSES else None,
        )
        results: dict[str, list[list[float]]] = {library: [] for library in ESTIMATORS}
        for seed in (None, *range(SEEDS)):
            x_train, x_test, y_train, y_test = split(random_state=seed or 0)
            for library in ESTIMATORS:
                model = estimator(library, name, seed or 0, device)
                wall, processor = time.perf_counter(), time.process_time()
                # Threads of BLAS that wait for products as small would count too.
                with warnings.catch_warnings(), threadpool_limits(1, "blas"):
                    warnings.simplefilter("ignore", ConvergenceWarning)
                    model.fit(x_train, y_train)
                processor = time.process_time() - processor
                wall = time.perf_counter() - wall
                if seed is not None:
                    score = model.score(x_test, y_test)
                    results[library].append([score, model.n_iter_, processor, wall])
        for library, rows in results.items():
            means = np.mean(rows, axis=0)
            scores = [row[0] for row in rows]
            yield {
                "data": name, "samples": len(x_train), "estimator": library,
                "seeds": SEEDS, "score": means[0], "low": min(scores),
                "high": max(scores), "epochs": means[1], "processor_s": means[2],
                "wall_s": means[3],
            }


def table(rows: pd.DataFrame) -> str:
    """Return the scores, and how many times as long scikit-learn takes."""
    wide = rows.pivot_table(
        index=["data", "samples"], columns="estimator", sort=False,
        values=["score", "processor_s"],
    )
    scores, times = wide["score"], wide["processor_s"]
    ratios = times.rdiv(times[SKLEARN], axis="index").drop(columns=SKLEARN)
    shown = pd.concat({"score": scores, "times as fast": ratios}, axis="columns")
    many = ratios[ratios.index.get_level_values("samples") >= MANY]
    means = scores.mean().to_string(float_format="%.4f")
    least = many.min().to_string(float_format="%.1f")
    return "\n\n".join([
        shown.to_string(float_format="%.3f"), f"mean score\n{means}",
        f"times as fast, from {MANY} samples on, at least\n{least}",
    ])


def main() -> None:
    """Measure, or show the rows of a file."""
    parser, names = program.parser(__doc__), [*CLASSES, *REGRESSIONS]
    parser.add_argument("--sets", metavar="A,B", help=f"of {', '.join(names)}")
    given = parser.parse_args()
    names = given.sets.split(",") if given.sets else names
    program.run(
        "estimators", given, lambda: measured(names, given.device), table,
        len(names) * len(ESTIMATORS),
    )


if __name__ == "__main__":
    main()
