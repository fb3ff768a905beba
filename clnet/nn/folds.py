"""Folds of samples, and the table of a cross-validation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.errors import counted
from clnet.nn.notebook import html_table
from clnet.nn.random import key, shuffled

Array = NDArray[Any]


def folds_of(classes: Array | None, samples: int, count: int, seed: int) -> list[Array]:
    """Return the samples of each fold, in a random order."""
    order = shuffled(samples, key(seed, 0), 0)
    if classes is not None:
        order = order[np.argsort(classes[order], kind="stable")]
    return [np.sort(order[fold::count]) for fold in range(count)]


@dataclass(frozen=True)
class CrossValidation:
    """The scores of settings over folds; see `Population.cross_validate`."""

    params: list[dict[str, Any]]  # The settings
    # The accuracy of each on the samples that its fold leaves out, or R² where the
    # targets are not classes
    scores: Array
    measure: str  # The score
    histories: Any  # Of all trainings, those of the first setting's folds first

    @property
    def best(self) -> dict[str, Any]:
        """The setting of the largest mean score, the first of equals."""
        return self.params[int(np.argmax(self.results["mean_test_score"]))]

    @property
    def results(self) -> dict[str, Any]:
        """The columns of scikit-learn's ``cv_results_``, times excluded.

        A score that is not finite ranks last.
        """
        params, scores = self.params, self.scores
        mean = scores.mean(axis=1)
        mean[~np.isfinite(mean)] = -np.inf
        return {
            "params": params,
            **{f"param_{name}": [row[name] for row in params] for name in params[0]},
            **{f"split{k}_test_score": fold for k, fold in enumerate(scores.T)},
            "mean_test_score": mean,
            "std_test_score": scores.std(axis=1),
            "rank_test_score": 1 + (mean[:, np.newaxis] < mean).sum(axis=1),
        }

    def __repr__(self) -> str:
        settings, folds = self.scores.shape
        mean = self.results["mean_test_score"].max()
        return (
            f"<CrossValidation of {counted(settings, 'setting')} over "
            f"{counted(folds, 'fold')}: best {mean:.4g} by {self.best}>"
        )

    def _repr_html_(self) -> str:
        results = self.results
        order = np.argsort(results["rank_test_score"], kind="stable").tolist()
        names = [name for name in results if name.startswith("param_")]
        rows = [
            (
                results["rank_test_score"][i], *(results[name][i] for name in names),
                f"{results['mean_test_score'][i]:.4g}",
                f"{results['std_test_score'][i]:.2g}",
            )
            for i in order
        ]
        shown = [name.removeprefix("param_") for name in names]
        return html_table(repr(self)[1:-1], ("rank", *shown, "mean", "std"), rows)
