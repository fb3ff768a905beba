"""A training epoch on a file larger than memory: its rate and its host memory.

A file of each kind is made, trained on for an epoch, and removed. Beside it stand the
disk's plain read rate, before and after, and the rate of samples that are resident.
Each is measured in a process of its own, with the file out of the page cache. Memory is
the peak of the process (getrusage), less that of one that trains on a few samples.

    python -m benchmarks.streams --gigabytes 8 --folder /tmp
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from clnet.opencl.discovery import device as find_device

from . import program
from .environment import cores, device_identity, load, now, versions

Array = NDArray[np.float32]

WIDTH = 64  # inputs, beside one target
HIDDEN = 64
BATCH = 4096
ROWS = 1 << 16  # rows that are made at a time, and of a record batch
GROUP = 1 << 20  # rows of a row group
FEW = 1 << 14  # samples of the process that the others are compared with
RESIDENT = 1 << 20  # samples
EPOCHS = 10  # of resident samples: their median counts
SUFFIXES = {"npy": ".npy", "hdf5": ".h5", "arrow": ".arrow", "parquet": ".parquet"}
PROCESSOR = "processor, s/GB"
OF_FILES = ("disk, GB/s", "memory, MB", "loss")  # columns
PIECE = 8 << 20  # bytes of a plain read


def blocks(rows: int) -> Iterator[Array]:
    """Yield rows [ROWS, WIDTH + 1] of a file; the target is a function of inputs."""
    rng = np.random.default_rng(0)
    for start in range(0, rows, ROWS):
        count = min(ROWS, rows - start)
        block = rng.random((count, WIDTH + 1), np.float32) * 2 - 1
        block[:, -1] = block[:, 0] * block[:, 1] + block[:, 2]
        yield block


def make(path: Path, rows: int) -> None:
    """Write a file of so many rows."""
    writers: dict[str, Callable[[Path, int], None]] = {
        ".npy": _make_npy, ".h5": _make_hdf5,
    }
    writers.get(path.suffix, _make_table)(path, rows)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _make_npy(path: Path, rows: int) -> None:
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {
            "descr": "<f4", "fortran_order": False, "shape": (rows, WIDTH + 1),
        })
        for block in blocks(rows):
            file.write(block.tobytes())


def _make_hdf5(path: Path, rows: int) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        data = file.create_dataset("samples", (rows, WIDTH + 1), "f4")
        start = 0
        for block in blocks(rows):
            data[start : start + len(block)] = block
            start += len(block)


def _make_table(path: Path, rows: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = [*(f"x{at}" for at in range(WIDTH)), "y"]
    schema = pa.schema([(name, pa.float32()) for name in names])
    if path.suffix == ".arrow":
        with pa.ipc.new_file(path, schema) as file:
            for block in blocks(rows):
                file.write(pa.record_batch([*map(pa.array, block.T)], schema))
        return
    with pq.ParquetWriter(path, schema, use_dictionary=False) as file:
        held: list[Any] = []
        for block in blocks(rows):
            held.append(pa.record_batch([*map(pa.array, block.T)], schema))
            if len(held) * ROWS == GROUP:
                file.write_table(pa.Table.from_batches(held))
                held.clear()
        if held:
            file.write_table(pa.Table.from_batches(held))


def forget(path: Path) -> None:
    """Let the system drop a file from the page cache."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def plain_read(path: Path) -> float:
    """Return the seconds that it takes to read a file."""
    forget(path)
    room = bytearray(PIECE)
    start = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.readinto(room):
            pass
    return time.perf_counter() - start


def trained(path: Path | None, samples: int, device: str | None) -> dict[str, float]:
    """Train in this process; return the seconds of an epoch, and the peak of memory.

    Without a file so many samples are resident.
    """
    given: tuple[Any, ...]
    import clnet

    net = clnet.Network.mlp([WIDTH, HIDDEN, 1], ["tanh", "identity"], seed=0)
    options: dict[str, Any] = {
        "batch_size": BATCH, "optimiser": "adam", "seed": 0, "device": device,
        "tune": False,  # measurements take memory of their own
    }
    few = next(blocks(FEW))
    net.fit(few[:, :-1], few[:, -1:], epochs=2, **options)
    if path is None:
        data = np.concatenate(list(blocks(samples)))
        given, epochs = (data[:, :-1], data[:, -1:]), EPOCHS
    else:
        forget(path)
        name = {".h5": f"{path}:samples"}.get(path.suffix, path)
        given, epochs = (clnet.open_data(name, outputs=1),), 1
    start = time.process_time()
    history = net.fit(*given, epochs=epochs, **options)
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "seconds": float(np.median([epoch.seconds for epoch in history])),
        "processor": (time.process_time() - start) / epochs,
        "peak": used.ru_maxrss * 1024, "loss": history[-1].loss,
    }


def apart(*arguments: object) -> dict[str, float]:
    """Return what `trained` finds in a process of its own."""
    command = [sys.executable, "-m", __spec__.name, "--measure", *map(str, arguments)]
    result: dict[str, float] = json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout
    )
    return result


def measured(
    folder: Path, kinds: list[str], gigabytes: float, device: str | None
) -> Iterator[dict[str, object]]:
    """Yield a row for resident samples, and for each kind of file."""
    bytes_of_row = 4 * (WIDTH + 1)
    rows = int(gigabytes * 1e9) // bytes_of_row
    more = () if device is None else ("--device", device)
    least = apart("", FEW, *more)["peak"]
    result = apart("", RESIDENT, *more)
    yield {
        "samples": "resident", "GB": RESIDENT * bytes_of_row / 1e9,
        "GB/s": RESIDENT * bytes_of_row / 1e9 / result["seconds"],
        PROCESSOR: result["processor"] / (RESIDENT * bytes_of_row / 1e9),
    }
    for file_type in kinds:
        path = folder / f"clnet-streams{SUFFIXES[file_type]}"
        try:
            make(path, rows)
            size = path.stat().st_size
            disk = [plain_read(path)]
            result = apart(path, rows, *more)
            disk.append(plain_read(path))
        finally:
            path.unlink(missing_ok=True)
        yield {
            "samples": file_type, "GB": size / 1e9,
            "GB/s": size / 1e9 / result["seconds"],
            "disk, GB/s": " and ".join(f"{size / 1e9 / time:.2f}" for time in disk),
            "memory, MB": (result["peak"] - least) / 1e6,
            PROCESSOR: result["processor"] / size * 1e9, "loss": result["loss"],
        }


def table(rows: pd.DataFrame) -> str:
    """Return the rows as text, without their environment."""
    columns = ["samples", "GB", "GB/s", PROCESSOR, *OF_FILES]
    return str(rows[columns].to_string(index=False, na_rep="", float_format="%.3g"))


def main() -> None:
    """Measure, keep each row at once, and print a table."""
    parser = program.parser(__doc__.splitlines()[0])
    add = parser.add_argument
    add("--folder", type=Path, default=Path())
    add("--gigabytes", type=float, default=1.0, help="of each file")
    add("--kinds", nargs="+", default=list(SUFFIXES), choices=SUFFIXES)
    add("--measure", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure is not None:
        path, samples = given.measure
        print(json.dumps(trained(
            Path(path) if path else None, int(samples), given.device
        )))
        return
    given.folder.mkdir(parents=True, exist_ok=True)

    def rows() -> Iterator[dict[str, object]]:
        where = {
            "cores": cores(), "load": load(), "date": now(),
            **device_identity(find_device(given.device)), **versions(),
        }
        columns = ["samples", "GB", "GB/s", PROCESSOR, *where, *OF_FILES]
        for row in measured(given.folder, given.kinds, given.gigabytes, given.device):
            yield {name: {**row, **where}.get(name) for name in columns}

    program.run("streams", given, rows, table, 1 + len(given.kinds), "%.4g")


if __name__ == "__main__":
    main()
