"""Scenarios of calls.

Functions that return a callable prepare what each call uses.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from clnet import Device, Network, Population
from clnet.opencl.discovery import Devices
from clnet.opencl.memory import Memory
from clnet.opencl.session import device_errors, session
from clnet.planning import predictions
from clnet.runtime.data_parallel import ParallelPlan
from faults.setting import (
    APART,
    CPU,
    NUMBERS,
    TWO,
    T,
    X,
    few_variants,
    mlp,
    without_times,
)


def compiled(
    folder: Path, *variants: str, make: Callable[[], Network] = mlp,
    device: Device = CPU,
) -> Any:
    plan = make().compile(device, 9, variants=list(variants), tune=False)
    return plan(X).copy()


def buffered(folder: Path) -> Any:
    with device_errors(session(APART)):
        return Memory(session(APART), 80).read(session(APART), 20, "float32")


def called(
    folder: Path, *variants: str, device: Device = CPU
) -> Callable[[], Any]:
    plan = mlp().compile(device, 9, variants=list(variants), tune=False)
    return lambda: plan(X).copy()


def started(folder: Path) -> Callable[[], Any]:
    plan = mlp().compile(APART, 9, variants=["naive"], tune=False)

    def run() -> Any:
        try:
            plan.start(X)
            return plan.finish().copy()
        except BaseException:
            plan.cancel()
            raise

    return run


def called_on_two(folder: Path) -> Callable[[], Any]:
    network = mlp()
    compiled = partial(network.compile, variants=["naive"], tune=False)
    plan = ParallelPlan(network, TWO, 9, compiled)
    return lambda: plan(X)


def called_with_new_parameters(folder: Path) -> Callable[[], Any]:
    network = mlp()
    plan = network.compile(CPU, 9, variants=["cpu"], tune=False)
    first, second = network.parameters.copy(), network.parameters * 2

    def run() -> Any:
        network.parameters = second
        plan(X)
        network.parameters = first
        return plan(X).copy()

    return run


def predicted_in_chunks(folder: Path, device: Devices = CPU) -> Callable[[], Any]:
    network, x = mlp(), np.tile(X, (3, 1))

    def run() -> Any:
        with few_variants() as patch:
            patch.setattr(predictions, "CHUNK", 8)
            return network.predict(x, device)

    return run


def predicted_by_population(
    folder: Path, device: Device = CPU, members: int = 3
) -> Callable[[], Any]:
    population = Population(mlp(), members)

    def run() -> Any:
        with few_variants() as patch:
            patch.setattr(predictions, "CHUNK", 4)  # of the walk, and of one call
            return population.predict(X, device), population.predict(X[:2], device)

    return run


def predicted(folder: Path) -> Any:
    """A first call, which measures."""
    with few_variants(), without_times(folder):
        return mlp().predict(X, CPU)


def evaluated(folder: Path) -> Callable[[], Any]:
    network = mlp()

    def run() -> Any:
        with few_variants():
            return astuple(network.evaluate(X, T, CPU))

    return run


def tuned(folder: Path, afresh: bool) -> Any:
    with without_times(folder) if afresh else contextlib.nullcontext():
        plan = mlp().compile(CPU, 9, variants=["naive", "local"], tune=True)
    return np.round(plan(X), 5)


def on_device_arrays(folder: Path, returned: bool) -> Callable[[], Any]:
    from pyopencl.array import to_device

    # pyopencl takes queues of its present class alone: the injector's.
    fresh = replace(CPU, index=f"8:{next(NUMBERS)}")
    plan = mlp().compile(fresh, 9, variants=["naive"], tune=False)
    x, out = (to_device(plan.queue, rows) for rows in (X, np.empty_like(T)))

    def run() -> Any:
        plan(x) if returned else plan(x, out)
        return X  # `get` has calls of its own

    return run
