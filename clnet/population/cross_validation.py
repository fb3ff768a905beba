"""Cross-validations: all settings of a grid, on folds, as one population."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clnet.checks import (
    as_array,
    as_items,
    as_numbers,
    as_whole,
    check_name,
    is_whole,
)
from clnet.errors import InputError, counted, quoted
from clnet.formats.data_frame import named_inputs
from clnet.nn.conversion import dropout_of
from clnet.nn.folds import CrossValidation, folds_of
from clnet.nn.labels import are_labels, encoded
from clnet.nn.metrics import one_hot
from clnet.training.fit_options import EACH, PopulationOptions

if TYPE_CHECKING:
    from clnet.network import Network

Array = NDArray[Any]


def cross_validation(
    network: Network, x: ArrayLike, t: ArrayLike,
    grid: Mapping[str, Sequence[Any]] | None, folds: int | Sequence[ArrayLike],
    options: Mapping[str, Any],
) -> CrossValidation:
    """Return the scores of all settings on samples that their training leaves out."""
    from clnet.training.population import fit_population

    settings = _settings(grid)
    x, _ = named_inputs(network.columns, x)
    x, t = as_numbers("x", x), as_array("t", t)
    if x.ndim != 2 or t.ndim not in (1, 2) or len(x) != len(t):
        raise InputError(
            f"x and t have shapes {list(x.shape)} and {list(t.shape)}, expected "
            f"[samples, {network.n_in}] and [samples, {network.n_out}]"
        )
    left_out = _left_out(network, t, folds, options["seed"])
    everything, count = np.arange(len(x)), len(settings) * len(left_out)
    columns: dict[str, Any] = {
        name: [values[name] for values in settings for _ in left_out]
        for name in settings[0]
    }
    rows = [np.setdiff1d(everything, fold) for fold in left_out] * len(settings)
    network = copy(network)
    histories, parameters = fit_population(
        network, np.tile(dropout_of(network), (count, 1)),
        np.tile(network.parameters, (count, 1)),
        PopulationOptions(x, t, rows=rows, **{**options, **columns}),
    )
    device, scale = options["device"], bool(options.get("scale"))
    scores = []
    for number, row in enumerate(parameters):
        fold, network.parameters = left_out[number % len(left_out)], row
        evaluation = network.evaluate(x[fold], t[fold], device, scale=scale)
        measure = "r2" if evaluation.accuracy is None else "accuracy"
        scores.append(getattr(evaluation, measure))
    return CrossValidation(
        settings, np.array(scores).reshape(len(settings), len(left_out)), measure,
        histories,
    )


def _settings(grid: Mapping[str, Sequence[Any]] | None) -> list[dict[str, Any]]:
    """Return all combinations of a grid's values, those of the last name fastest."""
    if grid is None:
        return [{}]
    if not isinstance(grid, Mapping):
        raise InputError(
            f"grid must be a mapping of names to lists, not {quoted(grid)}"
        )
    for name, values in grid.items():
        check_name("argument of a grid", name, EACH)
        if isinstance(values, str) or not as_items(values):
            raise InputError(
                f"grid's {name} must be a list of values, not {quoted(values)}"
            )
    return [
        dict(zip(grid, values, strict=True)) for values in product(*grid.values())
    ]


def _left_out(
    network: Network, t: Array, folds: int | Sequence[ArrayLike], seed: int
) -> list[Array]:
    """Return the samples that each fold leaves out."""
    n = len(t)
    if not is_whole(folds):
        listed = [as_array("a fold", fold) for fold in as_items(folds)]
        for fold in listed:
            if fold.ndim != 1 or not fold.size or fold.dtype.kind not in "iu" or (
                fold.min() < 0 or fold.max() >= n
            ):
                raise InputError(f"a fold must be numbers of samples, 0 to {n - 1}")
        if not listed:
            raise InputError(
                f"folds must be a number or lists of samples: {quoted(folds)}"
            )
        return listed
    count = as_whole("folds", folds, 2)
    if count > n:
        raise InputError(
            f"{counted(count, 'fold')} need as many samples, and there are {n}"
        )
    targets = as_numbers("t", encoded(network, t, network.classes)[0])
    classes = None
    if are_labels(network, t):
        classes = np.unique(t.reshape(-1), return_inverse=True)[1]
    elif targets.ndim == 2 and targets.size and one_hot(targets):
        classes = targets.argmax(axis=1)
    return folds_of(classes, n, count, as_whole("seed", seed, 0))
