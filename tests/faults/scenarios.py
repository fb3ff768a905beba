"""Scenarios of clnet's use, each a function that gives the same result every time."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clnet
from clnet import (
    Cascade,
    Checkpoint,
    Dense,
    Device,
    EarlyStopping,
    Network,
    Population,
    Sparse,
)
from clnet.cli.main import main
from clnet.errors import ClnetError
from clnet.formats import direct
from clnet.formats.sources import BLOCKS, Source
from clnet.opencl.discovery import Devices
from clnet.opencl.memory import Memory
from clnet.opencl.session import device_errors, session
from clnet.opencl.store import Store, Timing
from clnet.planning import inference
from clnet.planning.training_planner import TRAINING_VARIANTS, plan_training
from clnet.planning.tuning.times import store_of
from clnet.runtime.data_parallel import ParallelPlan
from clnet.training import plans, population
from clnet.training.history import History, TrainingState
from clnet.variants.dense.naive import Naive
from clnet.variants.members.group_members import GroupMembers

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


def buffered(folder: Path) -> Callable[[], Any]:
    def run() -> Any:
        with device_errors(session(APART)):
            return Memory(session(APART), 80).read(session(APART), 20, "float32")

    return run


def called(*variants: str, device: Device = CPU) -> Scenario:
    def scenario(folder: Path) -> Callable[[], Any]:
        plan = mlp().compile(device, 9, variants=list(variants), tune=False)
        return lambda: plan(X).copy()

    return scenario


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


def predicted_in_chunks(device: Devices = CPU) -> Scenario:
    def scenario(folder: Path) -> Callable[[], Any]:
        network, x = mlp(), np.tile(X, (3, 1))

        def run() -> Any:
            with few_variants() as patch:
                patch.setattr(inference, "CHUNK", 8)
                return network.predict(x, device)

        return run

    return scenario


def predicted(folder: Path) -> Callable[[], Any]:
    """A first call, which measures."""
    def run() -> Any:
        with few_variants(), without_times(folder):
            return mlp().predict(X, CPU)

    return run


def evaluated(folder: Path) -> Callable[[], Any]:
    network = mlp()

    def run() -> Any:
        with few_variants():
            return astuple(network.evaluate(X, T, CPU))

    return run


def tuned(afresh: bool) -> Scenario:
    def scenario(folder: Path) -> Callable[[], Any]:
        def run() -> Any:
            with without_times(folder) if afresh else contextlib.nullcontext():
                plan = mlp().compile(CPU, 9, variants=["naive", "local"], tune=True)
            return np.round(plan(X), 5)

        return run

    return scenario


def on_device_arrays(returned: bool) -> Scenario:
    def scenario(folder: Path) -> Callable[[], Any]:
        from pyopencl.array import to_device

        # pyopencl takes queues of its present class alone: the injector's.
        fresh = replace(CPU, index=f"8:{next(NUMBERS)}")
        plan = mlp().compile(fresh, 9, variants=["naive"], tune=False)
        x, out = (to_device(plan.queue, rows) for rows in (X, np.empty_like(T)))

        def run() -> Any:
            plan(x) if returned else plan(x, out)
            return X  # `get` has calls of its own

        return run

    return scenario


def uninterrupted(history: History) -> History:
    """Return a history; raise KeyboardInterrupt if that ended the training."""
    if "interrupted" in history.stopped:
        raise KeyboardInterrupt
    return history


def fitted(
    devices: Devices = CPU, variants: Sequence[str] = (), **options: Any
) -> Scenario:
    chosen = [one for one in TRAINING_VARIANTS if one.name in variants] or None
    plan = partial(plan_training, tune=False, variants=chosen)

    def scenario(folder: Path) -> Callable[[], Any]:
        def run() -> Any:
            network = mlp()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(plans, "plan_training", plan)
                history = uninterrupted(network.fit(
                    X, T, devices=devices, epochs=3, seed=1, **options
                ))
            return np.array([*history.loss, *network.parameters])

        return run

    return scenario


def of_file(
    use: Callable[[Network, Source], Any], suffix: str = ".npy"
) -> Scenario:
    """Samples of a file, read by parts of four rows."""
    def scenario(folder: Path) -> Callable[[], Any]:
        path = folder / f"samples{suffix}"
        table = np.hstack([X, T])
        if suffix == ".npy":
            np.save(path, table)
        else:
            write_arrow(path, table)

        def run() -> Any:
            return use(mlp(), clnet.open_data(path, outputs=3))

        return run

    return scenario


def write_arrow(path: Path, table: np.ndarray) -> None:
    """Write columns, in record batches of three rows."""
    import pyarrow as pa

    columns = pa.table({f"c{at}": column for at, column in enumerate(table.T)})
    with pa.ipc.new_file(path, columns.schema) as file:
        file.write_table(columns, max_chunksize=3)


def trained_on(network: Network, samples: Source, device: Device = CPU) -> Any:
    history = uninterrupted(network.fit(
        samples, devices=device, epochs=2, seed=1, batch_size=2, tune=False,
        buffer=PARTS,
    ))
    return np.array([*history.loss, *network.parameters])


def trained_past_the_cache(network: Network, samples: Source) -> Any:
    """As on a file that the page cache cannot hold."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct, "SHARE", 0)
        return trained_on(network, samples)


def predicted_of(network: Network, samples: Source, device: Device = CPU) -> Any:
    out = np.empty_like(T)
    network.predict(samples, device, out=out, buffer=PARTS)
    return out


def evaluated_on(network: Network, samples: Source) -> Any:
    return network.evaluate(samples, device=CPU, buffer=PARTS).mse


def together(device: Device = CPU, *, groups: bool = False) -> Scenario:
    """A population: in one launch, by workers or a work-group each."""
    rows = [np.arange(9), np.arange(2, 9), np.arange(5)]

    def scenario(folder: Path) -> Callable[[], Any]:
        def run() -> Any:
            made = Population(mlp(), 3)
            with pytest.MonkeyPatch.context() as patch:
                if groups:
                    patch.setattr(
                        population, "members_variants",
                        lambda device, members, samples, subsets, alike: (
                            GroupMembers(members, subsets),
                        ),
                    )
                histories = made.fit(
                    X, T, device=device, epochs=[3, 2, 4], seed=1, optimiser="adam",
                    batch_size=4, rows=rows, validation=(X, T), patience=2,
                )
            losses = [uninterrupted(one).loss for one in histories]
            return np.hstack([*losses, made.parameters.reshape(-1)])

        return run

    return scenario


def cascaded(device: Device = CPU) -> Scenario:
    """A cascade training, which adds neurons."""
    few = Cascade(activation_functions=["tanh"], max_cand_epochs=6, max_out_epochs=6)

    def scenario(folder: Path) -> Callable[[], Any]:
        def run() -> Any:
            network = Network(6, [Dense(3, sources=(0,))], seed=1)
            history = uninterrupted(network.fit(
                X, T, device=device, optimiser=few, max_neurons=2, seed=1,
                desired_error=0,
            ))
            return np.array([*history.loss, *network.parameters])

        return run

    return scenario


def checkpointed(folder: Path) -> Callable[[], Any]:
    network_file = folder / "net.safetensors"

    def run() -> Any:
        network = mlp()
        with few_variants():
            uninterrupted(network.fit(
                X, T, device=CPU, epochs=2, seed=1, optimiser="adam",
                callbacks=[Checkpoint(network_file)],
            ))
        return clnet.load(network_file).parameters

    return run


def resumed(folder: Path) -> Callable[[], Any]:
    state_file = folder / "state.safetensors"
    options = {"device": CPU, "epochs": 2, "optimiser": "adam"}
    network = mlp()
    with few_variants():
        state = network.fit(X, T, seed=1, **options).state

    def run() -> Any:
        state.save(state_file)
        network.parameters = network.parameters * 0
        with few_variants():
            history = network.fit(
                X, T, state=TrainingState.load(state_file), **options
            )
        return uninterrupted(history).state.parameters

    return run


def commanded(text: str, *results: str) -> Scenario:
    """The command line, in this process: its files `results` in the end.

    Its sentence on stderr becomes an error, as if a function had raised it.
    """
    def scenario(folder: Path) -> Callable[[], Any]:
        mlp().save(folder / "net.net")
        for name in ("data.npz", "data.csv"):
            clnet.save_data(folder / name, X, T)
        words = [str(folder / word) if "." in word else word for word in text.split()]

        def run() -> Any:
            out, errors = io.StringIO(), io.StringIO()
            with (
                few_variants(), contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(errors),
            ):
                status = main(words)
            sentence = errors.getvalue().removeprefix("clnet: ")
            if status == 130 or "interrupted" in out.getvalue():
                raise KeyboardInterrupt
            if sentence.startswith("not enough memory"):
                raise MemoryError(sentence)
            assert not sentence.startswith("cannot write the output")  # stdout is right
            if status:
                raise ClnetError(sentence)
            return [
                np.hstack(clnet.load_data(folder / name)) if name.startswith("data")
                else clnet.load(folder / name).parameters for name in results
            ]

        return run

    return scenario


def saved(suffix: str) -> Scenario:
    def scenario(folder: Path) -> Callable[[], Any]:
        path, network = folder / f"net{suffix}", mlp()

        def run() -> Any:
            network.save(path)
            return clnet.load(path).parameters

        return run

    return scenario


def population_saved(folder: Path) -> Callable[[], Any]:
    path, made = folder / "population.safetensors", Population(mlp(), 3)

    def run() -> Any:
        made.save(path)
        return Population.load(path).parameters

    return run


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
