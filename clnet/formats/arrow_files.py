"""The files behind a table of `arrow`: their units, and the bytes of these.

Units are row groups and record batches. Of a Parquet file some thousand rows are
decoded at a time. An Arrow file is mapped: the columns of a record batch are read where
they lie, but for compressed ones, of which a batch is unpacked at a time.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import accumulate, pairwise
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.checks import installed
from clnet.errors import FormatError
from clnet.formats import named_table
from clnet.formats.files import check_readable, reading
from clnet.formats.pages import drop_pages, open_direct, read_pages, touch_ranges

Array = NDArray[Any]

PARQUET_SUFFIXES = (".parquet",)
ARROW_SUFFIXES = (".arrow", ".feather")
TABLE_SUFFIXES = (*PARQUET_SUFFIXES, *ARROW_SUFFIXES)
PLAIN = {"float", "double", *(f"{sign}int{8 << at}" for sign in ("", "u")
                              for at in range(4))}
"""Types of columns that are read at once."""
READ = 1 << 25  # bytes of all columns that are read at a time


def index_of(schema: Any) -> set[int]:
    """Return the columns of a schema that were the index of a frame of pandas."""
    index = named_table.index_of(schema.names)
    with suppress(Exception):  # damaged metadata
        levels = (schema.pandas_metadata or {}).get("index_columns", ())
        index |= {at for at, name in enumerate(schema.names) if name in levels}
    return index


class ParquetFile:
    """A Parquet file, whose pages are decoded as they are needed."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        self.schema: Any = pq.read_schema(path)
        self._file = pq.ParquetFile(
            path, buffer_size=READ // (len(self.schema) or 1) or 1, pre_buffer=False
        )
        self.map: mmap.mmap = _mapped(path)
        groups = self._file.metadata
        self.rows: list[int] = [
            groups.row_group(at).num_rows for at in range(groups.num_row_groups)
        ]
        if (rows := sum(self.rows)) != groups.num_rows:
            raise FormatError(
                f"{path} has groups of {rows} rows in all, expected the file's "
                f"{groups.num_rows}"
            )
        sizes = [
            groups.row_group(at).total_byte_size for at in range(groups.num_row_groups)
        ]
        self._ends = [end / sum(sizes) for end in [0, *accumulate(sizes)]]

    def is_direct(self, columns: Sequence[int]) -> bool:
        """Return False: pyarrow reads columns through the page cache."""
        return False

    def fetch(self, unit: int, columns: Sequence[int], stopped: Event) -> None:
        """Read the pages of a row group to the page cache, if all columns are read.

        They are estimated from the unpacked sizes: pyarrow ends the process as it is
        asked for a damaged column's place.
        """
        if len(columns) == len(self.schema):
            start, end = (int(len(self.map) * at) for at in self._ends[unit : unit + 2])
            touch_ranges(self.map, (  # few pages are held at a time
                (begin, min(READ, end - begin)) for begin in range(start, end, READ)
            ), stopped)

    def table(self) -> Any:
        """Return all rows as a table of pyarrow."""
        return self._file.read()

    def batches(
        self, unit: int, columns: Sequence[int], size: int, fetched: None = None
    ) -> Iterator[Any]:
        """Yield the record batches of a row group, of at most so many rows."""
        names = [self.schema.names[at] for at in columns]
        yield from self._file.iter_batches(size, [unit], names)

    def in_place(self, columns: Sequence[Any]) -> Array | None:
        """Return None: columns are decoded one by one."""
        return None


class ArrowFile:
    """An Arrow file, which is mapped."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        self.map: mmap.mmap = _mapped(path)
        self._buffer = self._held = pa.py_buffer(self.map)
        self._readers: dict[tuple[int, ...], Any] = {}
        self._in_place = False  # whether the last record batch was used where it lies
        self.schema: Any = pa.ipc.open_file(self._buffer).schema
        reader = self._reader([0])
        self.rows: list[int] = []
        for at in range(reader.num_record_batches):
            with reading_rows(path, sum(self.rows)):
                self.rows.append(reader.get_batch(at).num_rows)
        flat = all(str(dtype) in PLAIN for dtype in self.schema.types)
        self._direct = open_direct(path, len(self.map)) if flat else None

    def _reader(self, columns: Sequence[int]) -> Any:
        """Return the reader of some columns."""
        import pyarrow as pa

        key = tuple(columns)
        if key not in self._readers:
            # Of some fields, a reader copies the whole batch at once.
            fields = None if len(key) == len(self.schema) else list(key)
            options = pa.ipc.IpcReadOptions(included_fields=fields)
            self._readers[key] = pa.ipc.open_file(self._buffer, options=options)
        return self._readers[key]

    def table(self) -> Any:
        """Return all rows as a table of pyarrow."""
        table = self._reader(range(len(self.schema))).read_all()
        table.validate(full=True)
        return table

    def is_direct(self, columns: Sequence[int]) -> bool:
        """Return whether record batches are read past the page cache: whole ones."""
        return self._direct is not None and len(columns) == len(self.schema)

    def fetch(
        self, unit: int, columns: Sequence[int], stopped: Event
    ) -> tuple[Any, Any] | None:
        """Read a record batch past the page cache; return it with its new buffer.

        None: it is packed, or its pages were read to the page cache.
        """
        import pyarrow as pa

        direct = self.is_direct(columns)
        if not direct and not self._in_place:
            return None
        # Another thread has readers of its own.
        batch = pa.ipc.open_file(self._buffer).get_batch(unit)
        spans = list(self._lying(batch))
        if not direct:
            touch_ranges(self.map, spans, stopped)
            return None
        assert self._direct is not None
        buffers = [
            buffer for column in batch.columns for buffer in column.buffers()
            if buffer is not None
        ]
        if not len(spans) == len(buffers) > 0:
            return None
        begin = min(start for start, _ in spans) // mmap.PAGESIZE * mmap.PAGESIZE
        size = max(start + size for start, size in spans) - begin
        room = pa.py_buffer(read_pages(self._direct, begin, size))
        before = self._buffer.address + begin
        columns = [
            pa.Array.from_buffers(column.type, len(column), [
                None if buffer is None else
                room.slice(buffer.address - before, buffer.size)
                for buffer in column.buffers()
            ])
            for column in batch.columns
        ]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema), room

    def batches(
        self, unit: int, columns: Sequence[int], size: int,
        fetched: tuple[Any, Any] | None = None,
    ) -> Iterator[Any]:
        """Yield slices of a record batch, of at most so many rows."""
        batch, self._held = (
            (self._reader(columns).get_batch(unit), self._buffer) if fetched is None
            else fetched
        )
        self._in_place = any(True for _ in self._lying(batch))
        for start in range(0, batch.num_rows, size):
            part = batch.slice(start, size)
            part.validate(full=True)
            yield part
            drop_pages(self.map)

    def in_place(self, columns: Sequence[Any]) -> Array | None:
        """Return columns of one type as one array [rows, columns], where they lie.

        None: they are not in the file's buffer, or not evenly spaced.
        """
        rows, types = len(columns[0]), {column.type for column in columns}
        buffers = [column.buffers()[1] for column in columns]
        if len(types) > 1 or any(buffer is None for buffer in buffers):
            return None
        item = columns[0].type.bit_width // 8
        starts = [
            buffer.address - self._held.address + column.offset * item
            for column, buffer in zip(columns, buffers, strict=True)
        ]
        size = rows * item
        step, *others = {after - before for before, after in pairwise(starts)} or {size}
        last = starts[-1] + size
        if not 0 <= starts[0] < last <= self._held.size or starts[0] % item:
            return None
        if others or step < size or step % item:
            return None
        dtype = columns[0].type.to_pandas_dtype()
        items = np.frombuffer(self._held, dtype, (last - starts[0]) // item, starts[0])
        return np.lib.stride_tricks.as_strided(
            items, (rows, len(columns)), (item, step), writeable=False
        )

    def _lying(self, batch: Any) -> Iterator[tuple[int, int]]:
        """Yield start and size of the columns that lie in the map."""
        for column in batch.columns:
            for buffer in column.buffers():
                start = 0 if buffer is None else buffer.address - self._buffer.address
                if buffer is not None and 0 <= start < len(self.map):
                    yield start, buffer.size


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def opened(path: Path) -> ParquetFile | ArrowFile:
    """Return the file of a path."""
    installed("pyarrow", f"{path}", "arrow")
    check_readable(path)
    parquet = path.name.lower().endswith(PARQUET_SUFFIXES)
    described = "Parquet file" if parquet else (
        "Arrow file, as of pyarrow.feather.write_feather and pyarrow.ipc.new_file"
    )
    with reading(f"{path} is no whole {described}"):
        file = ParquetFile(path) if parquet else ArrowFile(path)
        names = file.schema.names
    if not names:
        raise FormatError(f"{path} has no column, expected one for inputs")
    return file


def reading_rows(path: Path, row: int) -> AbstractContextManager[None]:
    """Return the context in which rows are read, from one on."""
    return reading(f"{path}, row {row}: cannot be read")
