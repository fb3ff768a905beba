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
from faults.setting import (
    APART,
    GROUPS,
    TWO,
    Scenario,
    T,
    X,
    each_time,
    mlp,
    prepared,
)
from faults.trainings import cascaded, checkpointed, fitted, resumed, together

SCENARIOS: dict[str, Scenario] = {
    "naive": each_time(compiled, "naive"),
    "naive, host": each_time(compiled, "naive", "host"),
    "cpu": each_time(compiled, "cpu"),
    "naive apart": each_time(compiled, "naive", device=APART),
    "split, host apart": each_time(compiled, "split", "host", device=APART),
    "generic float64": each_time(
        compiled, "generic", make=lambda: mlp(dtype="float64")
    ),
    "csr": each_time(
        compiled, "csr",
        make=lambda: Network(6, [Sparse(3, density=0.5, seed=1)], seed=1),
    ),
    "buffer": each_time(buffered),
    "called": prepared(called, "naive"),
    "called apart": prepared(called, "naive", device=APART),
    "called on two": called_on_two,
    "started": started,
    "new parameters": called_with_new_parameters,
    "chunks": prepared(predicted_in_chunks),
    "chunks apart": prepared(predicted_in_chunks, APART),
    "chunks of two": prepared(predicted_in_chunks, TWO),
    "predicted": each_time(predicted),
    "ensemble": prepared(predicted_by_population),
    "ensemble apart": prepared(predicted_by_population, APART),
    "ensemble one by one": prepared(predicted_by_population, members=1),
    "evaluated": evaluated,
    "tuned": each_time(tuned, afresh=False),
    "tuned afresh": each_time(tuned, afresh=True),
    "device arrays": prepared(on_device_arrays, returned=False),
    "device arrays returned": prepared(on_device_arrays, returned=True),
    "fit": each_time(fitted, optimiser="adam", batch_size=4),
    "fit apart": each_time(fitted, APART, optimiser="adam", batch_size=4),
    "fit rprop": each_time(fitted, optimiser="rprop", validation=(X, T)),
    "fit of steps": each_time(
        fitted, variants=("generic", "generic_backward", "optimisers"),
        optimiser="adam", batch_size=4,
    ),
    "fit on two": each_time(fitted, TWO),
    "fit the best": each_time(
        fitted, validation=(X, T), callbacks=[EarlyStopping(patience=1)]
    ),
    "fit of a file": prepared(of_file, trained_on),
    "fit of a file apart": prepared(of_file, partial(trained_on, device=APART)),
    "fit of a large file": prepared(of_file, trained_past_the_cache),
    "predict a file": prepared(of_file, predicted_of),
    "predict a file apart": prepared(of_file, partial(predicted_of, device=APART)),
    "evaluate a file": prepared(of_file, evaluated_on),
    "population": each_time(together),
    "population apart": each_time(together, APART),
    "population by groups": each_time(together, APART, groups=True),
    "save population": population_saved,
    "cascade": each_time(cascaded),
    "cascade apart": each_time(cascaded, APART),
    "cascade by groups": each_time(cascaded, GROUPS),
    "checkpoint": each_time(checkpointed),
    "resumed": resumed,
    "save .net": prepared(saved, ".net"),
    "save .safetensors": prepared(saved, ".safetensors"),
    **{
        f"data {suffix}": each_time(data_saved, suffix)
        for suffix in (".data", ".data.gz", ".csv", ".npz")
    },
    "store": each_time(stored),
    "clnet devices": prepared(commanded, "devices"),
    "clnet info": prepared(commanded, "info net.net"),
    "clnet predict": prepared(
        commanded, "predict net.net data.npz --device cpu --out data-out.csv",
        "data-out.csv",
    ),
    "clnet train": prepared(
        commanded, "train data.csv --network net.net --optimiser rprop --epochs 2 "
        "--seed 1 --device cpu --save net-out.safetensors", "net-out.safetensors",
    ),
    "clnet convert": prepared(
        commanded, "convert net.net net-out.safetensors", "net-out.safetensors"
    ),
    "clnet convert data": prepared(
        commanded, "convert data.csv data-out.data", "data-out.data"
    ),
    "clnet explain": prepared(commanded, "explain net.net --device cpu"),
}


if find_spec("pyarrow") is not None:  # an extra
    SCENARIOS["fit of a table"] = prepared(of_file, trained_on, ".arrow")


def same(found: Any, expected: Any) -> bool:
    """Return whether two results are equal."""
    if isinstance(expected, tuple):
        return isinstance(found, tuple) and all(map(same, found, expected))
    return bool(np.array_equal(np.asarray(found), np.asarray(expected)))
