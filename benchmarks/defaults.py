"""The choice of `Network.fit`'s defaults: networks judged by samples they never saw.

Every choice of optimiser, rate, batch and epochs trains the same networks on real data
sets: those that scikit-learn brings, standardised, and FANN's, as they are. A score is
the accuracy of classes, or R² of a regression, on the test set; scikit-learn's MLP with
its own defaults is the yardstick. A row has the mean and the extremes over the seeds.

    python -m benchmarks.defaults --data DIR          # DIR holds FANN's data sets
    python -m benchmarks.defaults --rows FILE.csv     # the table of earlier rows
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from clnet.errors import ClnetWarning
from clnet.formats import load_data
from clnet.network import Network
from clnet.nn.optimisers import SGD, Adam, Optimiser, Rprop
from clnet.nn.scaling import Scaling
from clnet.opencl.device import Device
from clnet.opencl.discovery import device as find_device

from . import program
from .cases.dense import Array
from .measurements import RESULTS
from .studies.training import DATA

ROWS = RESULTS / "defaults.csv"
SEEDS = 5
TEST = 0.25  # share of scikit-learn's sets; FANN's have test files
HIDDEN = 64  # neurons
# The data sets of each origin: of classes, and of regression.
BUNDLED = (
    ("iris", "wine", "breast_cancer", "digits"), ("linnerud", "diabetes"),
)
FANN_SETS = (
    ("diabetes", "soybean", "gene", "thyroid", "mushroom"),
    ("robot", "building", "pumadyn-32fm", "kin32fm", "bank32fm", "bank32nh", "abelone",
     "census-house"),
)
# Names of networks: the activations of the hidden layer and, for classes and for
# regression, of the last one. A sigmoid cannot give standardised targets.
NETWORKS = {
    "relu": ("relu", "softmax", "identity"),
    "tanh": ("tanh", "sigmoid", "sigmoid"),
}
SKLEARN = "sklearn"
SHOWN = 5  # choices whose scores on each data set are printed


@dataclass(frozen=True)
class Choice:
    """Arguments of `Network.fit`."""

    name: str  # For the rows
    optimiser: Optimiser | None  # None: scikit-learn's MLP with its defaults
    batch: int | None = None  # Samples a step; None: all
    epochs: int = 100  # Passes over the training set
    schedule: str | None = None  # As for `fit`


CHOICES = (
    Choice("rprop, all", Rprop()),
    Choice("adam 0.001, all", Adam(1e-3)),
    Choice("adam 0.01, all", Adam(1e-2)),
    *(
        Choice(f"adam {rate:g}, {batch}", Adam(rate), batch)
        for batch, rates in ((32, (1e-3, 3e-3, 1e-2)), (128, (1e-3, 3e-3)))
        for rate in rates
    ),
    Choice("adam 0.001, 32, 200 epochs", Adam(1e-3), 32, 200),
    Choice("adam 0.01, 32, cosine", Adam(1e-2), 32, schedule="cosine"),
    Choice("sgd 0.1, momentum 0.9, 32", SGD(1e-1, momentum=0.9), 32),
    Choice(SKLEARN, None, 200, 200),
)


@dataclass(frozen=True)
class Split:
    """A training set and a test set; arrays as for `Network.fit`."""

    x: Array
    t: Array
    x_test: Array
    t_test: Array
    # Whether the network scales its data: inputs, and targets of a regression
    standardised: bool
    classes: bool  # Whether targets are classes, one-hot


@lru_cache(maxsize=1)
def bundled(name: str) -> tuple[Array, Array]:
    """Return inputs and targets of a data set of scikit-learn's."""
    from sklearn import datasets

    x, t = getattr(datasets, f"load_{name}")(return_X_y=True)
    return x, np.eye(t.max() + 1)[t] if name in BUNDLED[0] else t.reshape(len(x), -1)


def bundled_split(name: str, seed: int) -> Split:
    """Return a data set of scikit-learn's, split at random."""
    x, t = bundled(name)
    order = np.random.default_rng(seed).permutation(len(x))
    test, training = np.split(order, [round(TEST * len(x))])
    return Split(
        x[training], t[training], x[test], t[test], True, name in BUNDLED[0]
    )


@lru_cache(maxsize=SEEDS)
def fann_split(name: str, folder: Path, seed: int) -> Split:
    """Return a data set of FANN's, with its own test file for all seeds."""
    parts: list[Array] = []
    for part in ("train", "test"):
        file = folder / f"{name}.{part}"
        parts += load_data(file if file.exists() else Path(f"{file}.gz"))
    x, t, x_test, t_test = parts
    return Split(x, t, x_test, t_test, False, name in FANN_SETS[0])


def splits(folder: Path) -> dict[str, Callable[[int], Split]]:
    """Return the data sets: from their names to functions of the seed."""
    return {
        **{
            f"sklearn {name}": partial(bundled_split, name)
            for names in BUNDLED for name in names
        },
        **{
            f"FANN {name}": partial(fann_split, name, folder)
            for names in FANN_SETS for name in names
        },
    }


def score(
    choice: Choice, hidden_name: str, split: Split, seed: int, device: Device
) -> float:
    """Return the score of a network on the test set after training."""
    if choice.optimiser is None:
        return _score_of_sklearn(split, seed)
    hidden, last, other = NETWORKS[hidden_name]
    if not split.classes:
        last = "identity" if split.standardised else other
    sizes = [split.x.shape[1], HIDDEN, split.t.shape[1]]
    network = Network.mlp(sizes, [hidden, last], seed=seed)
    scale = split.standardised
    if scale:
        outputs = None if split.classes else (-1.0, 1.0)
        network.scaling = Scaling.of(split.x, split.t, outputs=outputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClnetWarning)  # a divergence is a low score
        network.fit(
            split.x, split.t, optimiser=choice.optimiser, batch_size=choice.batch,
            epochs=choice.epochs, schedule=choice.schedule, seed=seed, device=device,
            scale=scale, tune=False,
        )
    x = network.scaling.scale_input(split.x_test) if network.scaling else split.x_test
    y = network.compile(device, len(x), tune=False)(x)
    if network.scaling:
        y = network.scaling.descale_output(y)
    return _score(split, y)


def _score(split: Split, y: Array) -> float:
    from sklearn.metrics import accuracy_score, r2_score

    if not split.classes:
        return float(r2_score(split.t_test, y))
    return float(accuracy_score(split.t_test.argmax(axis=1), y.argmax(axis=1)))


def _score_of_sklearn(split: Split, seed: int) -> float:
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, StandardScaler

    scaler = StandardScaler if split.standardised else FunctionTransformer
    options = {"hidden_layer_sizes": (HIDDEN,), "random_state": seed}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        if split.classes:
            model = make_pipeline(scaler(), MLPClassifier(**options))
            model.fit(split.x, split.t.argmax(axis=1))
            return float(model.score(split.x_test, split.t_test.argmax(axis=1)))
        model = make_pipeline(scaler(), TransformedTargetRegressor(
            MLPRegressor(**options), transformer=scaler()
        ))
        single = split.t.shape[1] == 1
        model.fit(split.x, split.t.ravel() if single else split.t)
        return float(model.score(split.x_test, split.t_test))


def measured(
    sets: dict[str, Callable[[int], Split]], device: Device
) -> Iterator[dict[str, Any]]:
    """Yield the rows."""
    for name, split in sets.items():
        for choice in CHOICES:
            for network in NETWORKS if choice.optimiser else [SKLEARN]:
                scores = [
                    score(choice, network, split(seed), seed, device)
                    for seed in range(SEEDS)
                ]
                yield {
                    "data": name, "samples": len(split(0).x), "network": network,
                    "choice": choice.name, "epochs": choice.epochs, "seeds": SEEDS,
                    "mean": np.mean(scores), "low": min(scores), "high": max(scores),
                }


def table(rows: pd.DataFrame) -> str:
    """Return the mean scores of the choices, and how far each is from the best.

    The first column is the mean over all data sets and networks of the score, less the
    best choice's of that data set and network. Scores below 0 count as 0.
    """
    rows = rows.assign(mean=rows["mean"].clip(lower=0))
    wide = rows[rows["network"] != SKLEARN].pivot_table(
        index="choice", columns=["network", "data"], values="mean", sort=False
    )
    behind = wide.max() - wide
    summary = pd.DataFrame({
        "behind the best": behind.mean(axis="columns"),
        "at most": behind.max(axis="columns"),
        **{network: behind[network].mean(axis="columns") for network in NETWORKS},
    })
    by_set = rows.pivot_table(
        index=["data", "network"], columns="choice", values="mean", sort=False
    )
    by_set[SKLEARN] = by_set.groupby("data")[SKLEARN].transform("max")
    by_set = by_set.loc[(slice(None), list(NETWORKS)), :]
    summary = summary.sort_values("behind the best")
    shown = list(dict.fromkeys([CHOICES[0].name, *summary.index[:SHOWN], SKLEARN]))
    return "\n\n".join([
        summary.to_string(float_format="%.4f"),
        by_set[shown].to_string(float_format="%.3f"),
    ])


def main() -> None:
    """Measure, or show the rows of a file."""
    parser = program.parser(__doc__)
    add = parser.add_argument
    add("--data", type=Path, default=DATA, help="folder of FANN's data sets")
    add("--sets", metavar="A,B", help="only these data sets, as in 'FANN gene'")
    parser.set_defaults(out=ROWS)
    given = parser.parse_args()
    sets = splits(given.data)
    if given.sets:
        sets = {name: sets[name] for name in given.sets.split(",")}
    kinds = sum(len(NETWORKS) if choice.optimiser else 1 for choice in CHOICES)
    program.run(
        "defaults", given, lambda: measured(sets, find_device(given.device)), table,
        kinds * len(sets),
    )


if __name__ == "__main__":
    main()
