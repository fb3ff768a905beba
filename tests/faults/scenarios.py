"""Scenarios of clnet's use, each a function that gives the same result every time."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from clnet import EarlyStopping, Network, Sparse
from faults.calls import (
    buffered,
    called,
    called_on_two,
    called_with_new_parameters,
    compiled,
    evaluated,
    on_device_arrays,
    predicted,
    predicted_by_population,
    predicted_in_chunks,
    started,
    tuned,
)
from faults.files import (
    commanded,
    data_saved,
    evaluated_on,
    of_file,
    population_saved,
    predicted_of,
    saved,
    stored,
    trained_on,
    trained_past_the_cache,
)
from faults.setting import APART, GROUPS, TWO, Scenario, T, X, mlp
from faults.trainings import cascaded, checkpointed, fitted, resumed, together

SCENARIOS: dict[str, Scenario] = {
    "naive": compiled("naive"),
    "naive, host": compiled("naive", "host"),
    "cpu": compiled("cpu"),
    "naive apart": compiled("naive", device=APART),
    "split, host apart": compiled("split", "host", device=APART),
    "generic float64": compiled("generic", make=lambda: mlp(dtype="float64")),
    "csr": compiled(
        "csr", make=lambda: Network(6, [Sparse(3, density=0.5, seed=1)], seed=1)
    ),
    "buffer": buffered,
    "called": called("naive"),
    "called apart": called("naive", device=APART),
    "called on two": called_on_two,
    "started": started,
    "new parameters": called_with_new_parameters,
    "chunks": predicted_in_chunks(),
    "chunks apart": predicted_in_chunks(APART),
    "chunks of two": predicted_in_chunks(TWO),
    "predicted": predicted,
    "ensemble": predicted_by_population(),
    "ensemble apart": predicted_by_population(APART),
    "ensemble one by one": predicted_by_population(members=1),
    "evaluated": evaluated,
    "tuned": tuned(afresh=False),
    "tuned afresh": tuned(afresh=True),
    "device arrays": on_device_arrays(returned=False),
    "device arrays returned": on_device_arrays(returned=True),
    "fit": fitted(optimiser="adam", batch_size=4),
    "fit apart": fitted(APART, optimiser="adam", batch_size=4),
    "fit rprop": fitted(optimiser="rprop", validation=(X, T)),
    "fit of steps": fitted(
        variants=("generic", "generic_backward", "optimisers"), optimiser="adam",
        batch_size=4,
    ),
    "fit on two": fitted(TWO),
    "fit the best": fitted(
        validation=(X, T), callbacks=[EarlyStopping(patience=1)]
    ),
    "fit of a file": of_file(trained_on),
    "fit of a file apart": of_file(partial(trained_on, device=APART)),
    "fit of a large file": of_file(trained_past_the_cache),
    "predict a file": of_file(predicted_of),
    "predict a file apart": of_file(partial(predicted_of, device=APART)),
    "evaluate a file": of_file(evaluated_on),
    "population": together(),
    "population apart": together(APART),
    "population by groups": together(APART, groups=True),
    "save population": population_saved,
    "cascade": cascaded(),
    "cascade apart": cascaded(APART),
    "cascade by groups": cascaded(GROUPS),
    "checkpoint": checkpointed,
    "resumed": resumed,
    **{f"save {suffix}": saved(suffix) for suffix in (".net", ".safetensors")},
    **{
        f"data {suffix}": data_saved(suffix)
        for suffix in (".data", ".data.gz", ".csv", ".npz")
    },
    "store": stored,
    "clnet devices": commanded("devices"),
    "clnet info": commanded("info net.net"),
    "clnet predict": commanded(
        "predict net.net data.npz --device cpu --out data-out.csv", "data-out.csv"
    ),
    "clnet train": commanded(
        "train data.csv --network net.net --optimiser rprop --epochs 2 --seed 1 "
        "--device cpu --save net-out.safetensors", "net-out.safetensors",
    ),
    "clnet convert": commanded("convert net.net net-out.safetensors",
                               "net-out.safetensors"),
    "clnet convert data": commanded("convert data.csv data-out.data", "data-out.data"),
    "clnet explain": commanded("explain net.net --device cpu"),
}


if find_spec("pyarrow") is not None:  # an extra
    SCENARIOS["fit of a table"] = of_file(trained_on, ".arrow")


def same(found: Any, expected: Any) -> bool:
    """Return whether two results are equal."""
    if isinstance(expected, tuple):
        return isinstance(found, tuple) and all(map(same, found, expected))
    return bool(np.array_equal(np.asarray(found), np.asarray(expected)))
