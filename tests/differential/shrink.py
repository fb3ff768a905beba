"""Smaller cases that fail as well."""

from __future__ import annotations

import time
from ast import literal_eval
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from itertools import chain
from typing import Any

from clnet import Dense, Local
from clnet.errors import ClnetError
from clnet.nn.regularisation import PLAIN

from .cases import FAMILY, Case, Options, family

SECONDS = 60.0  # limit for a case


def shrunk(seed: int, worker: Any) -> str:
    """Return a small case that fails as that of a seed, and its fault, as text.

    If the case does not fail again alone: whether it does after those before it.
    """
    until = [one for one in family(seed // FAMILY) if one.seed <= seed]
    case = until[-1]
    stop = time.monotonic() + SECONDS
    outcome = worker.run(case)
    if outcome.fault is None:
        for one in until:
            outcome = worker.run(one)
        again = "it does" if outcome.fault else "neither: it fails now and then"
        return (
            "run again alone it does not fail; after the cases of its network before "
            f"it {again}"
        )
    fault = outcome.fault
    smaller: Iterator[Case] = chain(_alone(case, outcome.steps), _smaller(case))
    while time.monotonic() < stop:
        for other in smaller:
            if time.monotonic() > stop or not _possible(other):
                continue
            found = worker.run(other).fault
            if found is not None and _alike(found, fault):
                case, fault = other, found
                break
        else:
            break
        smaller = _smaller(case)
    return f"{_text(case)}\n  {fault}"


def _alike(one: str, other: str) -> bool:
    """Return whether two faults are of one kind: the same exception."""
    return one.split(":")[0] == other.split(":")[0]


def _possible(case: Case) -> bool:
    try:
        case.network()
    except (ClnetError, ValueError):
        return False
    return True


def _alone(case: Case, steps: Iterable[tuple[str, str]]) -> Iterator[Case]:
    """Yield the case with one step of its cover, the others by reference variants."""
    for name, config in steps:
        yield replace(case, only=(name, literal_eval(config)))


def _smaller(case: Case) -> Iterator[Case]:
    """Yield cases that are simpler in one point."""
    layers = case.layers
    for i in range(len(layers) if len(layers) > 1 else 0):
        yield replace(case, layers=layers[:i] + layers[i + 1 :])
    for batch in {1, case.batch // 2, case.batch - 1} - {0, case.batch}:
        yield replace(case, batch=batch)
    for n_in in {1, case.n_in // 2, case.n_in - 1} - {0, case.n_in}:
        yield replace(case, n_in=n_in)
    for i, layer in enumerate(layers):
        for other in _simpler(layer):
            yield replace(case, layers=(*layers[:i], other, *layers[i + 1 :]))
    options = case.options
    if not isinstance(options, Options):
        return
    plain: dict[str, Any] = {
        "samples": max(1, options.samples // 2), "batches": False, "shuffled": False,
        "weighted": False, "regularisation": PLAIN, "epochs": 1, "schedule": None,
        "devices": 1, "validation": 0, "members": 1, "subsets": False, "rates": False,
        "penalties": False, "dropouts": False,
    }
    for name, value in plain.items():
        if getattr(options, name) != value:
            yield replace(case, options=replace(options, **{name: value}))


def _simpler(layer: Any) -> Iterator[Any]:
    if not isinstance(layer, (Dense, Local)):
        yield Dense(layer.n_out, layer.activation, layer.steepness, layer.bias)
    one_each = any(isinstance(v, tuple) for v in (layer.activation, layer.steepness))
    if isinstance(layer, Dense) and not one_each:
        for n in {1, layer.n_out // 2, layer.n_out - 1} - {0, layer.n_out}:
            yield replace(layer, n_out=n)
    for name, value in (("activation", "identity"), ("steepness", 1.0),
                        ("dropout", 0.0), ("sources", None), ("bias", False)):
        if getattr(layer, name) != value and not (
            name == "bias" and isinstance(layer, Local)
        ):
            yield replace(layer, **{name: value})


def _text(case: Case) -> str:
    """Return a case as Python, without its defaults."""
    parts = [
        f"{field.name}={getattr(case, field.name)!r}" for field in fields(case)
        if getattr(case, field.name) != field.default
    ]
    return f"Case({', '.join(parts)})"
