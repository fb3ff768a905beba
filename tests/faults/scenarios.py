"""Scenarios of clnet's use, each a function that gives the same result every time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clnet
from clnet import Checkpoint, Device, Network, Sparse
from clnet.opencl.discovery import Devices
from clnet.opencl.store import Store, Timing
from clnet.planning import inference
from clnet.planning.training_planner import plan_training
from clnet.training import fit as training
from clnet.variants import TRAINING_VARIANTS
from clnet.variants.dense.naive import Naive

CPU = clnet.device("cpu")
# The same device, as if it shared no memory with the host: buffers and copies.
APART = replace(CPU, fine_svm=False, companions=())
TWO = [replace(CPU, index="9:1"), replace(CPU, index="9:2")]
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (9, 6)).astype(np.float32)
T = RNG.uniform(-1, 1, (9, 3)).astype(np.float32)
Scenario = Callable[[Path], Callable[[], Any]]


def mlp(**options: Any) -> Network:
    return Network.mlp([6, 5, 3], "tanh", seed=1, **options)


def compiled(
    *variants: str, make: Callable[[], Network] = mlp, device: Device = CPU
) -> Scenario:
    def scenario(folder: Path) -> Callable[[], Any]:
        def run() -> Any:
            plan = make().compile(device, 9, variants=list(variants), tune=False)
            return plan(X).copy()

        return run

    return scenario


def called(*variants: str, device: Device = CPU) -> Scenario:
    def scenario(folder: Path) -> Callable[[], Any]:
        plan = mlp().compile(device, 9, variants=list(variants), tune=False)
        return lambda: plan(X).copy()

    return scenario


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


def predicted_in_chunks(device: Devices = CPU) -> Scenario:
    def scenario(folder: Path) -> Callable[[], Any]:
        network, x = mlp(), np.tile(X, (3, 1))

        def run() -> Any:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(inference, "CHUNK", 8)
                patch.setattr(inference, "VARIANTS", (Naive(),))
                return network.predict(x, device)

        return run

    return scenario


def tuned(folder: Path) -> Callable[[], Any]:
    def run() -> Any:
        plan = mlp().compile(CPU, 9, variants=["naive", "local"], tune=True)
        return np.round(plan(X), 5)

    return run


def on_device_arrays(folder: Path) -> Callable[[], Any]:
    from pyopencl.array import to_device

    plan = mlp().compile(CPU, 9, variants=["naive"], tune=False)
    x, out = (to_device(plan.queue, rows) for rows in (X, np.empty_like(T)))

    def run() -> Any:
        plan(x, out)
        return X  # `get` has calls of its own

    return run


def fitted(
    devices: Devices = CPU, variants: Sequence[str] = (), **options: Any
) -> Scenario:
    chosen = [one for one in TRAINING_VARIANTS if one.name in variants] or None
    plan = partial(plan_training, tune=False, variants=chosen)

    def scenario(folder: Path) -> Callable[[], Any]:
        def run() -> Any:
            network = mlp()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(training, "plan_training", plan)
                history = network.fit(
                    X, T, devices=devices, epochs=3, seed=1, **options
                )
            return np.array([*history.loss, *network.parameters])

        return run

    return scenario


def checkpointed(folder: Path) -> Callable[[], Any]:
    network_file = folder / "net.safetensors"

    def run() -> Any:
        network = mlp()
        network.fit(
            X, T, device=CPU, epochs=2, seed=1, optimiser="adam",
            callbacks=[Checkpoint(network_file)],
        )
        return clnet.load(network_file).parameters

    return run


def saved(suffix: str) -> Scenario:
    def scenario(folder: Path) -> Callable[[], Any]:
        path, network = folder / f"net{suffix}", mlp()

        def run() -> Any:
            network.save(path)
            return clnet.load(path).parameters

        return run

    return scenario


def data_saved(suffix: str) -> Scenario:
    def scenario(folder: Path) -> Callable[[], Any]:
        path = folder / f"data{suffix}"

        def run() -> Any:
            clnet.save_data(path, X, T)
            return np.hstack(clnet.load_data(path))

        return run

    return scenario


def stored(folder: Path) -> Callable[[], Any]:
    def run() -> Any:
        store = Store(CPU, folder)
        store.put("span", "key", Timing(1.0, 2.0, 0.5))
        store.put_fact("probe", True)
        return [store.get("span", "key"), store.fact("probe")]

    return run


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
    "called": called("naive"),
    "called apart": called("naive", device=APART),
    "new parameters": called_with_new_parameters,
    "chunks": predicted_in_chunks(),
    "chunks apart": predicted_in_chunks(APART),
    "chunks of two": predicted_in_chunks(TWO),
    "tuned": tuned,
    "device arrays": on_device_arrays,
    "fit": fitted(optimiser="adam", batch_size=4),
    "fit apart": fitted(APART, optimiser="adam", batch_size=4),
    "fit rprop": fitted(optimiser="rprop", validation=(X, T)),
    "fit of steps": fitted(
        variants=("generic", "generic_backward", "optimisers"), optimiser="adam",
        batch_size=4,
    ),
    "fit on two": fitted(TWO),
    "checkpoint": checkpointed,
    **{f"save {suffix}": saved(suffix) for suffix in (".net", ".safetensors")},
    **{
        f"data {suffix}": data_saved(suffix)
        for suffix in (".data", ".data.gz", ".csv", ".npz")
    },
    "store": stored,
}


def same(found: Any, expected: Any) -> bool:
    """Return whether two results are equal."""
    return bool(np.array_equal(np.asarray(found), np.asarray(expected)))
