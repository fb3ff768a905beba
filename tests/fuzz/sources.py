"""Files that are read by parts: arrays, data sets of HDF5, tables of Arrow and Parquet.

The first rows are read and compared. The oracle is NumPy's, h5py's or pyarrow's own
reading of the whole file.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import clnet

from . import mutations
from .oracle import same

ROWS = 40  # that are read of a file
PART = 7  # of these at a time
NAMES = ("a", "b", "kind", "t")

Samples = tuple[np.ndarray, np.ndarray | None]


def samples_of(source: Any) -> Samples:
    """Return the first inputs and targets of a source, in float64."""
    parts: list[Any] = []
    for part in source.parts(PART):
        parts.append(part)
        if sum(len(one.x) for one in parts) >= ROWS:
            break
    x = np.concatenate([np.asarray(part.x) for part in parts])[:ROWS]
    if parts[0].t is None:
        return x, None
    return x, np.concatenate([np.asarray(part.t) for part in parts])[:ROWS]


def load_array(path: Path) -> Samples:
    """The last column is the target."""
    return samples_of(clnet.open_data(path, outputs=1))


def _array_check(rows: np.ndarray, read: Samples) -> np.ndarray:
    x, t = read
    same(x, rows[:ROWS, :-1])
    same(t, rows[:ROWS, -1:])
    return x


# --- .npy ----------------------------------------------------------------------------

def npy_seeds() -> list[bytes]:
    x = np.arange(24.0).reshape(8, 3)
    found = []
    for array in (x, x.astype(np.float32), np.asfortranarray(x), x.astype(">i2"),
                  x.astype(np.uint8), x.astype(np.float16)):
        file = io.BytesIO()
        np.save(file, array)
        found.append(file.getvalue())
    return found


def npy_mutate(rng: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """Change the header, its text, or bytes."""
    kind = rng.randrange(4)
    if kind == 0:
        return mutations.with_header(rng, content)
    if kind == 1:
        return mutations.text(rng, content[:128], [content]) + content[128:]
    return mutations.binary(rng, content, others)


def npy_check(content: bytes, read: Samples) -> np.ndarray:
    return _array_check(np.load(io.BytesIO(content), allow_pickle=False), read)


# --- HDF5 ----------------------------------------------------------------------------

def hdf5_seeds() -> list[bytes]:
    import h5py

    x, t = np.arange(24.0).reshape(8, 3), np.arange(8.0)[:, np.newaxis]
    found = []
    for dtype, options in (
        ("f8", {}), ("f4", {"chunks": (3, 3)}), (">f4", {}), ("i2", {}),
        ("f4", {"chunks": (3, 2), "compression": "gzip", "shuffle": True}),
        ("f2", {"chunks": (8, 3), "fletcher32": True}),
        ("u1", {"chunks": (3, 3), "maxshape": (None, 3)}),
    ):
        file = io.BytesIO()
        with h5py.File(file, "w", libver="latest" if dtype == "f2" else None) as made:
            made.create_dataset("x", data=x.astype(dtype), **options)
            made["t"] = t
        found.append(file.getvalue())
    return found


def load_hdf5(path: Path) -> Samples:
    """The targets are a data set of their own."""
    return samples_of(clnet.open_data(path))


def hdf5_check(content: bytes, read: Samples) -> np.ndarray:
    import h5py

    with TemporaryDirectory() as folder:  # some are read by name alone
        path = Path(folder) / "x.h5"
        path.write_bytes(content)
        with h5py.File(path, "r") as file:
            x = file["x"][:ROWS]
            proved = file["x"].fletcher32 or not file["x"].chunks
            t = file["t"][:ROWS] if "t" in file else None
    if proved:  # HDF5 reads beyond chunks that are too short, or at wrong places
        same(read[0], x)
    assert (t is None) == (read[1] is None)
    if t is not None:
        same(read[1], t)
    return read[0] if proved else np.zeros((1, 1))


# --- Arrow and Parquet ---------------------------------------------------------------

def table_of(rng: Random, rows: int) -> Any:
    """Return a table whose columns have any types, mostly those that are read."""
    import pyarrow as pa

    numbers = [rng.choice((0, 1, 2, 3, 5, 100)) for _ in range(rows)]
    texts = [rng.choice(("x", "y", "zz", "")) for _ in range(rows)]
    plain = [pa.float64(), pa.float32(), pa.int8(), pa.uint64(), pa.float16(),
             pa.int32()]
    odd: list[Any] = [
        pa.array(numbers, pa.int32()).cast(pa.decimal128(12, 1)),
        pa.array([one > 1 for one in numbers]), pa.array([None] * rows),
        pa.array([[one] for one in numbers]), pa.array(numbers, pa.timestamp("s")),
        pa.array([None, *numbers[1:]], pa.int16()), pa.array([{"a": 1}] * rows),
        pa.array([np.inf, *map(float, numbers[1:])]), pa.array(texts, pa.binary()),
        pa.array(texts).dictionary_encode(), pa.array(texts, pa.large_string()),
    ]
    columns: list[Any] = []
    for name in NAMES:
        if rng.random() < 0.1:
            columns.append(rng.choice(odd))
        elif name == "kind":
            made = pa.array(texts)
            columns.append(made if rng.random() < 0.5 else made.dictionary_encode())
        else:
            columns.append(pa.array(numbers).cast(rng.choice(plain)))
    return pa.table(columns, list(NAMES))


def arrow_file(rng: Random) -> bytes:
    import pyarrow as pa

    table = table_of(rng, rng.choice((1, 8, 30)))
    packed = rng.choice((None, None, "lz4", "zstd"))
    file = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=packed, unify_dictionaries=True)
    with pa.ipc.new_file(file, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rng.choice((5, 100)))
    return file.getvalue()


def parquet_file(rng: Random) -> bytes:
    import pyarrow.parquet as pq

    file = io.BytesIO()
    pq.write_table(
        table_of(rng, rng.choice((1, 8, 30))), file,
        row_group_size=rng.choice((5, 100)),
        compression=rng.choice(("none", "snappy", "gzip", "zstd")),
        use_dictionary=rng.random() < 0.5, version=rng.choice(("1.0", "2.6")),
        data_page_version=rng.choice(("1.0", "2.0")),
        write_page_checksum=rng.random() < 0.2,
    )
    return file.getvalue()


def _is_read(content: bytes, suffix: str) -> bool:
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"x{suffix}"
        path.write_bytes(content)
        try:
            load_table(path)
        except clnet.FormatError:
            return False
    return True


def _table_seeds(suffix: str) -> list[bytes]:
    write = parquet_file if suffix == ".parquet" else arrow_file
    made: Iterable[bytes] = (_valid(write, seed) for seed in range(30))
    return [content for content in made if content and _is_read(content, suffix)][:8]


def _valid(write: Any, seed: int) -> bytes:
    try:
        return bytes(write(Random(seed)))
    except Exception:  # a type that the format does not have
        return b""


def arrow_seeds() -> list[bytes]:
    return _table_seeds(".arrow")


def parquet_seeds() -> list[bytes]:
    return _table_seeds(".parquet")


def arrow_mutate(rng: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """Write another table, or change bytes."""
    made = _valid(arrow_file, rng.randrange(1 << 30)) if rng.random() < 0.1 else b""
    return made or mutations.binary(rng, content, others)


def parquet_mutate(rng: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """Write another table, or change bytes."""
    made = _valid(parquet_file, rng.randrange(1 << 30)) if rng.random() < 0.1 else b""
    return made or mutations.binary(rng, content, others)


def load_table(path: Path) -> Samples:
    """The column `kind` has categories, the last column is the target."""
    return samples_of(clnet.open_data(path, target=-1, categories="kind"))


def _table_check(table: Any, read: Samples) -> np.ndarray:
    x, t = read
    inputs = []
    for name in table.column_names[:-1]:
        values = table[name].to_pylist()
        if name == "kind" or isinstance(values[0], (str, bool)):
            texts = [str(one) for one in values]
            inputs += [[one == kind for one in texts] for kind in sorted(set(texts))]
        else:
            inputs.append(table[name].to_numpy())
    same(x, np.array([np.asarray(one).astype(x.dtype) for one in inputs]).T[:ROWS])
    assert t is not None
    if t.dtype.kind in "OU":
        assert t.ravel().tolist() == [str(one) for one in table[-1].to_pylist()][:ROWS]
        return x
    same(t.ravel(), table[-1].to_numpy()[:ROWS].astype(t.dtype))
    return x


def arrow_check(content: bytes, read: Samples) -> np.ndarray:
    import pyarrow as pa

    return _table_check(pa.ipc.open_file(content).read_all(), read)


def parquet_check(content: bytes, read: Samples) -> np.ndarray:
    """By row groups: pyarrow reads others where one has more values than rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Threads of pyarrow's must not outlast it: others measure memory.
    file = pq.ParquetFile(io.BytesIO(content))
    groups = [file.read_row_group(at, use_threads=False)
              for at in range(file.num_row_groups)]
    return _table_check(pa.concat_tables(groups), read)
