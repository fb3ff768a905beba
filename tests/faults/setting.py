"""Devices, samples and a network that scenarios share."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clnet
from clnet import Network
from clnet.formats.sources import BLOCKS
from clnet.planning import inference
from clnet.planning.training_planner import plan_training
from clnet.planning.tuning.times import store_of
from clnet.training import plans
from clnet.training.history import History
from clnet.variants.dense.naive import Naive

CPU = clnet.device("cpu")
# The same device, as if it shared no memory with the host: buffers and copies.
APART = replace(CPU, fine_svm=False, companions=())
GROUPS = replace(APART, type="gpu")  # the same, as if it were a GPU
TWO = [replace(CPU, index="9:1"), replace(CPU, index="9:2")]
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (9, 6)).astype(np.float32)
T = RNG.uniform(-1, 1, (9, 3)).astype(np.float32)
NUMBERS = itertools.count()
PARTS = BLOCKS * 4 * (6 + 3) * 4  # bytes of a buffer whose blocks have four samples
Scenario = Callable[[Path], Callable[[], Any]]  # of a folder: makes what each call does


def each_time(run: Callable[..., Any], *arguments: Any, **options: Any) -> Scenario:
    """Return a scenario that has nothing to prepare: a function of its folder."""
    return lambda folder: partial(run, folder, *arguments, **options)


def prepared(
    make: Callable[..., Callable[[], Any]], *arguments: Any, **options: Any
) -> Scenario:
    """Return a scenario of a function that takes a folder, and returns each call."""
    return lambda folder: make(folder, *arguments, **options)


def mlp(**options: Any) -> Network:
    return Network.mlp([6, 5, 3], "tanh", seed=1, **options)


@contextlib.contextmanager
def few_variants() -> Iterator[pytest.MonkeyPatch]:
    """Let planners search few variants, which are quickly built and measured."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inference, "VARIANTS", (Naive(),))
        patch.setattr(plans, "plan_training", partial(plan_training, tune=False))
        yield patch


@contextlib.contextmanager
def without_times(folder: Path) -> Iterator[None]:
    """Remember no measured time of before: each run has a cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLNET_CACHE_DIR", str(folder / f"cache-{next(NUMBERS)}"))
        store_of.cache_clear()
        try:
            yield
        finally:
            store_of.cache_clear()


def uninterrupted(history: History) -> History:
    """Return a history; raise KeyboardInterrupt if that ended the training."""
    if "interrupted" in history.stopped:
        raise KeyboardInterrupt
    return history
