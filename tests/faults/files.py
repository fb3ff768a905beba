"""Scenarios of files, of the store and of the command line."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clnet
from clnet import Device, Network, Population
from clnet.cli.main import main
from clnet.errors import ClnetError
from clnet.formats import pages
from clnet.formats.sources import Source
from clnet.opencl.store import Store, Timing
from faults.setting import CPU, PARTS, T, X, few_variants, mlp, uninterrupted


def of_file(
    folder: Path, use: Callable[[Network, Source], Any], suffix: str = ".npy"
) -> Callable[[], Any]:
    """Samples of a file, read by parts of four rows."""
    path = folder / f"samples{suffix}"
    table = np.hstack([X, T])
    if suffix == ".npy":
        np.save(path, table)
    else:
        write_arrow(path, table)
    return lambda: use(mlp(), clnet.open_data(path, outputs=3))


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
        patch.setattr(pages, "SHARE", 0)
        return trained_on(network, samples)


def predicted_of(network: Network, samples: Source, device: Device = CPU) -> Any:
    out = np.empty_like(T)
    network.predict(samples, device, out=out, buffer=PARTS)
    return out


def evaluated_on(network: Network, samples: Source) -> Any:
    return network.evaluate(samples, device=CPU, buffer=PARTS).mse


def saved(folder: Path, suffix: str) -> Callable[[], Any]:
    path, network = folder / f"net{suffix}", mlp()

    def run() -> Any:
        network.save(path)
        return clnet.load(path).parameters

    return run


def population_saved(folder: Path) -> Callable[[], Any]:
    path, made = folder / "population.safetensors", Population(mlp(), 3)

    def run() -> Any:
        made.save(path)
        return Population.load(path).parameters

    return run


def data_saved(folder: Path, suffix: str) -> Any:
    path = folder / f"data{suffix}"
    clnet.save_data(path, X, T)
    return np.hstack(clnet.load_data(path))


def stored(folder: Path) -> Any:
    store = Store(CPU, folder)
    store.put("span", "key", Timing(1.0, 2.0, 0.5))
    store.put_fact("probe", True)
    return [store.get("span", "key"), store.fact("probe")]


def commanded(folder: Path, text: str, *results: str) -> Callable[[], Any]:
    """The command line, in this process: its files `results` in the end.

    Its sentence on stderr becomes an error, as if a function had raised it.
    """
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
