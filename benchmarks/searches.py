"""The searches of `clnet.sklearn` beside scikit-learn's: times and winners.

200 settings times 5 folds on scikit-learn's digits. `together` is our `GridSearchCV`;
`one-by-one` scikit-learn's over our estimator, of all settings with --full; `sklearn`
scikit-learn's over its own estimator, in as many processes as cores. Where a search
runs over some of the settings alone, evenly spread, its times are scaled to all. The
best estimator's refit is left out. Times are of the processor, of all processes and
threads, and of the wall.

    python -m benchmarks.searches                     # rows and table
    python -m benchmarks.searches --rows FILE.csv     # the table of earlier rows
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterator
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from typing import Any

import numpy as np
import pandas as pd

from . import program
from .environment import cores

FOLDS = 5
SOME = 10  # settings of a search that is scaled to all
GRID: dict[str, list[Any]] = {
    "alpha": [1e-5, 1e-4, 1e-3, 1e-2],
    "learning_rate_init": [float(rate) for rate in np.logspace(-4, -1, 10)],
}
# The batch size, and the neurons of the hidden layer.
CASES: dict[str, tuple[Any, list[int]]] = {
    "batches of 200": ("auto", [8, 16, 32, 64, 100]),
    "batches of 16": (16, [4, 8, 12, 16, 24]),
}
SEARCHES = ("together", "one-by-one", "sklearn")


def processor() -> float:
    """Return the seconds of this process and of the children that have ended."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(getrusage, (RUSAGE_SELF, RUSAGE_CHILDREN))
    )


def settings(case: str) -> list[dict[str, list[Any]]]:
    """Return the grids of one setting each, of a case."""
    from sklearn.model_selection import ParameterGrid

    grid = ParameterGrid({**GRID, "hidden_layer_sizes": CASES[case][1]})
    return [{name: [value] for name, value in setting.items()} for setting in grid]


def measured(name: str, case: str, device: str | None, full: bool) -> dict[str, Any]:
    """Return the row of a search."""
    from joblib.externals.loky import get_reusable_executor
    from sklearn import model_selection, neural_network
    from sklearn.datasets import load_digits

    import clnet.sklearn

    x, y = load_digits(return_X_y=True)
    x = (x / x.max()).astype(np.float32)
    grids = settings(case)
    options = {"random_state": 0, "batch_size": CASES[case][0]}
    theirs, together = name == "sklearn", name == "together"
    chosen = grids
    if not together and (theirs or not full):
        chosen = [grids[i] for i in np.linspace(0, len(grids) - 1, SOME).astype(int)]
    model = neural_network.MLPClassifier(**options) if theirs else (
        clnet.sklearn.MLPClassifier(device=device, **options)
    )
    of: Any = clnet.sklearn.GridSearchCV if together else model_selection.GridSearchCV
    search = of(
        model, chosen, cv=FOLDS, refit=False, n_jobs=-1 if theirs else None
    )
    start, wall = processor(), time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search.fit(x, y)
    wall = time.perf_counter() - wall
    if theirs:
        get_reusable_executor().shutdown(wait=True)
    scale = len(grids) / len(chosen)
    return {
        "case": case, "search": name, "settings": len(chosen), "of": len(grids),
        "cores": cores(), "processor_s": (processor() - start) * scale,
        "wall_s": wall * scale, "score": search.best_score_,
        "best": json.dumps(search.best_params_),
    }


def rows_of(cases: list[str], device: str | None, full: bool) -> Iterator[Any]:
    """Yield the rows."""
    for case in cases:
        for name in SEARCHES:
            yield measured(name, case, device, full)


def table(rows: pd.DataFrame) -> str:
    """Return the times, and how many times as long the others take."""
    first = rows[rows["search"] == SEARCHES[0]].set_index("case")
    for column in ("processor_s", "wall_s"):
        base = rows["case"].map(first[column])
        rows = rows.assign(**{column.replace("_s", " ×"): rows[column] / base})
    return str(rows.drop(columns="best").to_string(index=False, float_format="%.4g"))


def main() -> None:
    """Measure, or show the rows of a file."""
    parser = program.parser(__doc__)
    add = parser.add_argument
    add("--case", nargs="+", choices=CASES, default=[*CASES], help="only these")
    add("--full", action="store_true", help="all settings one by one, too")
    given = parser.parse_args()
    program.run(
        "searches", given, lambda: rows_of(given.case, given.device, given.full), table,
        len(given.case) * len(SEARCHES), anew=True,
    )


if __name__ == "__main__":
    main()
