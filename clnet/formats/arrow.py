"""Parquet, Arrow and Feather files as sources: pyarrow, of the extra ``arrow``."""

from __future__ import annotations

from bisect import bisect, bisect_left
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from copy import copy
from functools import partial
from itertools import accumulate
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.checks import all_finite
from clnet.errors import FormatError, quoted, warn
from clnet.formats.arrow_files import PLAIN, index_of, opened, reading_rows
from clnet.formats.files import reading
from clnet.formats.named_table import (
    DATE,
    MICROSECONDS,
    MISSING,
    NUMBER,
    OR_TEXT,
    TEXT,
    Choice,
    NamedTable,
    Options,
    Texts,
    check_known,
    choose,
    days_of,
    learnt,
    listed,
    target_numbers,
    texts_of,
    write_inputs,
)
from clnet.formats.sources import Order, Part, Source, ahead
from clnet.nn.columns import Columns
from clnet.nn.copies import by_threads

Array = NDArray[Any]

STEP = 1 << 25  # bytes of numbers that are decoded at a time, in float64
TEXTS = 1 << 21  # rows whose categories are looked for at a time
CONVERTED = 1 << 13  # rows whose columns a thread turns to rows at a time
WIDE = 8  # bytes of integers that a double may not hold


class ArrowRows(NamedTable):
    """Rows of a file: all of them, or those of a record batch."""

    def __init__(
        self, path: Path, names: list[str], batch: Any, first: int = 0
    ) -> None:
        self.names: list[str] = names
        self.what: str = f"{path}"
        self.notes: list[str] = []
        self.index: set[int] = set()
        self._path, self._batch, self._first = path, batch, first

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def column(self, at: int) -> Any:
        """Return a column's array; a batch has those that are read."""
        return _column(self._batch, self.names[at])

    def value_type(self, column: int) -> str:
        """Return the type of a column's values: `NUMBER`, `TEXT` or `DATE`."""
        dtype = self.column(column).type
        if str(dtype) == "null":
            return NUMBER
        if _is_date(dtype):
            return DATE
        return NUMBER if _is_number(dtype) and str(dtype) != "bool" else TEXT

    def place(self, row: int) -> str:
        """Return the text that names a row: by its number in the file, from 0."""
        return f"row {self._first + row}"

    def numbers(self, column: int, dates: bool = False) -> Array:
        """Return numbers in their type, or dates in days since 1970; NaN: missing."""
        import pyarrow as pa

        values = self.column(column)
        if dates and not _is_date(values.type):
            if _is_number(values.type) and values.null_count < len(values):
                raise self.error("holds numbers, expected dates", column=column)
            return days_of(self, column, values.to_pylist())
        with reading_rows(self._path, self._first):
            if _is_date(values.type):
                microseconds = pa.timestamp("us", getattr(values.type, "tz", None))
                values = values.cast(microseconds, safe=False).cast(pa.int64())
                values = values.cast(pa.float64(), safe=False)
                return np.asarray(values.to_numpy(zero_copy_only=False)) / MICROSECONDS
            if pa.types.is_decimal(values.type):
                values = values.cast(pa.string()).cast(pa.float64())  # rounded once
            elif pa.types.is_boolean(values.type) or pa.types.is_null(values.type):
                values = values.cast(pa.float64())
            return np.asarray(values.to_numpy(zero_copy_only=False))

    def texts(self, column: int) -> Texts:
        """Return text, or others as text; a missing one is empty."""
        import pyarrow as pa

        values = self.column(column)
        with reading_rows(self._path, self._first):
            if pa.types.is_dictionary(values.type):
                values = values.cast(values.type.value_type)
            if isinstance(values, pa.ChunkedArray):
                if pa.types.is_string(values.type):
                    values = values.cast(pa.large_string())  # of 2 GB and more
                values = values.combine_chunks()
            coded = values.dictionary_encode(null_encoding="encode")
            texts = texts_of(
                None if text != text else text for text in coded.dictionary.to_pylist())
            return texts._replace(codes=texts.codes[coded.indices.to_numpy()])

    def check_types(self, choice: Choice) -> None:
        """Raise FormatError unless columns hold values of the kinds that are read."""
        import pyarrow as pa

        for at in (*choice.inputs, *(choice.targets if choice.known else ())):
            dtype = self.column(at).type
            text = at in choice.coded or at in choice.labels or at in choice.dated
            value = dtype.value_type if pa.types.is_dictionary(dtype) else dtype
            words = (
                pa.types.is_string(value) or pa.types.is_large_string(value) or (
                    hasattr(pa.types, "is_string_view")
                    and pa.types.is_string_view(value))
            )
            if not (
                (_is_number(value) and (text or value is dtype))
                or pa.types.is_null(dtype) or (text and (_is_date(dtype) or words))
            ):
                raise self.error(
                    f"is of {quoted(str(dtype))}, expected numbers"
                    + (OR_TEXT if words else " or text"), column=at,
                )


def read_rows(path: Path) -> ArrowRows:
    """Return all rows of a file."""
    file = opened(path)
    with reading(f"{path} cannot be read"):
        rows = ArrowRows(path, file.schema.names, file.table())
    if not len(rows):
        raise rows.error("has no row, expected at least one")
    rows.index = index_of(file.schema)
    return rows


class TableSource(Source):
    """A table of named columns in a file."""

    reads_ahead = True

    def __init__(
        self, path: Path, options: Options | None = None,
        columns: Columns | None = None,
    ) -> None:
        self.path: Path = path
        self.name: str = f"{path}: "
        self._file = opened(path)
        self.names: list[str] = list(self._file.schema.names)
        if (fewest := min(self._file.rows, default=0)) < 0:
            raise FormatError(
                f"{path} has a group of {fewest} rows, expected 0 or more"
            )
        self._starts = [0, *accumulate(self._file.rows)]
        self._longest = max([1, *self._file.rows])
        self.samples: int | None = self._starts[-1]
        self._rows = range(self._starts[-1])
        if not self.samples:
            raise FormatError(f"{path} has no row, expected at least one")
        self._header = ArrowRows(path, self.names, self._file.schema.empty_table())
        self._header.index = index_of(self._file.schema)
        self._options = Options() if options is None else options
        self._told: dict[str, set[str]] = {}
        self._choice = choice = choose(self._header, self._options, columns)
        self._header.check_types(choice)
        self.notes: list[str] = choice.notes
        self._inputs, self._targets = choice.inputs, choice.targets
        self.columns: Columns | None = columns or self._learnt()
        self._label: int | None = choice.labels[0] if choice.labels else None
        types = {str(self._file.schema.field(at).type) for at in self._inputs}
        self._plain = types <= PLAIN and not any(
            column.categories or column.date or column.missing
            for column in self.columns.inputs
        )
        self.dtype: np.dtype[Any] = np.result_type(np.float32, *(
            self._number_type(at) for at in (*self._inputs, *self._targets)
            if at not in choice.coded and at != self._label
        ))

    def size(self, itemsize: int) -> int:
        """Return the bytes of all numbers in a type."""
        assert self.samples is not None
        assert self.columns is not None
        return itemsize * self.samples * (self.columns.n_in + len(self._targets))

    def parts(self, rows: int, order: Order | None = None) -> Iterator[Part]:
        """Yield parts of so many rows at most: a record batch, or a slice of it."""
        assert self.columns is not None
        columns = [*self._inputs, *self._targets]
        # Closed with this generator, which since Python 3.12 may keep it until the end.
        with closing(self._batches(columns, rows, order)) as batches:
            for first, batch in batches:
                x = self._plain_inputs(batch)
                if x is None or not all_finite(x):
                    x = np.empty((batch.num_rows, self.columns.n_in), self.dtype)
                    cuts = range(0, batch.num_rows, CONVERTED)
                    by_threads(partial(self._convert, first, batch, x), cuts)
                yield Part(first, x, self.targets_of(first, batch))

    def section(self, rows: slice) -> TableSource:
        """Return the source of some rows; the parameter is that of `Source.section`.

        Units that hold others too are read, and these are left out.
        """
        section = copy(self)
        section._rows = self._rows[rows]
        section.samples = len(section._rows)
        return section

    def targets(self, rows: int) -> Iterator[Any]:
        """Yield the targets alone, in parts of at most so many rows."""
        for first, batch in self._batches(self._targets, rows):
            yield self.targets_of(first, batch)

    def _read_rows(self, first: int, batch: Any) -> ArrowRows:
        return ArrowRows(self.path, self.names, batch, first)

    def _convert(self, first: int, batch: Any, x: Array, at: int) -> None:
        """Write the inputs of some rows of a record batch, from row `at` on."""
        rows = slice(at, at + CONVERTED)
        self.inputs_of(first + at, batch.slice(at, CONVERTED), x[rows])

    def inputs_of(self, first: int, batch: Any, x: Array) -> None:
        """Write the inputs of a record batch to x [rows, n_in]."""
        assert self.columns is not None
        x[...] = 0  # of categories
        counts = write_inputs(
            self._read_rows(first, batch), self._inputs, self.columns, self._options, x
        )
        for what, names in counts.items():
            told = self._told.setdefault(what, set())
            if new := Counter({k: n for k, n in names.items() if k not in told}):
                told.update(new)
                warn(f"{self.name}{what}: {listed(new)} from row {first} on")

    def _plain_inputs(self, batch: Any) -> Array | None:
        """Return inputs that are plain numbers in columns; None: they are not.

        Columns of an Arrow file that lie evenly spaced are used where they lie. Others
        are copied in one call: a call a column would wait for Python's lock as often,
        beside a training.
        """
        if not self._plain:
            return None
        plain = [_column(batch, self.names[at]) for at in self._inputs]
        if any(column.null_count for column in plain):
            return None
        numbers = self._file.in_place(plain)
        if numbers is None:
            names = [self.names[at] for at in self._inputs]
            try:
                tensor = batch.select(names).to_tensor(row_major=False)
            except (AttributeError, TypeError):  # before pyarrow 17
                return None
            numbers = tensor.to_numpy()
        if numbers.itemsize < WIDE:
            return numbers
        return numbers.astype(self.dtype, copy=False)

    def targets_of(self, first: int, batch: Any) -> Array | None:
        """Return the targets of a record batch: numbers [rows, n], labels [rows]."""
        if not self._targets:
            return None
        rows = self._read_rows(first, batch)
        if self._label is None:
            return target_numbers(rows, self._choice, self.dtype)
        values = rows.column(self._label)
        if values.null_count and not self._choice.known:
            return np.array(values.to_pylist(), object)
        if _is_number(values.type) and not values.null_count:
            return rows.numbers(self._label)
        texts = rows.texts(self._label)
        if self._choice.known:
            check_known(rows, self._label, texts)
        return np.array(texts.different, object)[texts.codes]

    def _number_type(self, at: int) -> np.dtype[Any]:
        """Return NumPy's type for a column of numbers or dates."""
        import pyarrow as pa

        dtype = self._file.schema.field(at).type
        plain = _is_number(dtype) and not pa.types.is_decimal(dtype)
        number_type = dtype.to_pandas_dtype() if plain else np.float64
        return np.dtype(number_type)

    def _learnt(self) -> Columns:
        """Return the columns of a training, with categories and means."""
        choice, missing = self._choice, self._options.missing
        means = missing == MISSING[0]
        read = [at for at in choice.inputs if means or at in choice.coded]
        batches = self._batches(read, TEXTS) if read else ()
        columns, self._inputs, notes = learnt(
            self._header, (self._read_rows(*batch) for batch in batches), choice,
            missing, means=means,
        )
        self.notes += notes
        return Columns(tuple(columns), tuple(self.names[at] for at in choice.targets))

    def _batches(
        self, columns: Sequence[int], rows: int, order: Order | None = None
    ) -> Generator[tuple[int, Any], None, None]:
        """Yield record batches of some columns, each with its first row."""
        wanted = list(dict.fromkeys(columns))
        size = min(rows, STEP // (8 * len(wanted)) or 1)
        first, last = self._rows.start, self._rows.stop
        units = range(bisect(self._starts, first) - 1, bisect_left(self._starts, last))
        ordered = units if order is None else (
            units[number] for number in order(len(units))
        )
        direct, stopped = self._file.is_direct(wanted), Event()
        with ThreadPoolExecutor(1, "clnet-touch") as pool:  # the disk reads meanwhile
            try:
                for unit, coming in ahead(
                    lambda unit: pool.submit(self._file.fetch, unit, wanted, stopped),
                    ordered, -(-rows // self._longest),
                ):
                    fetched = None
                    if direct:
                        with reading_rows(self.path, self._starts[unit]):
                            fetched = coming.result()
                    for row, batch in self._batches_of(unit, wanted, size, fetched):
                        if row >= last:
                            break
                        begin = max(first - row, 0)
                        if begin < batch.num_rows:
                            within = batch.slice(begin, last - row - begin)
                            yield row + begin, within
            finally:
                stopped.set()

    def _batches_of(
        self, unit: int, columns: Sequence[int], size: int, fetched: Any
    ) -> Iterator[tuple[int, Any]]:
        """Yield slices of a unit, of at most so many rows, each with its first row."""
        first = self._starts[unit]
        batches = self._file.batches(unit, columns, size, fetched)
        while True:
            with reading_rows(self.path, first):
                batch = next(batches, None)
            if batch is None:
                break
            yield first, batch
            first += batch.num_rows
        if first != self._starts[unit + 1]:
            raise self._header.error(
                "is missing, expected "
                f"{self._starts[unit + 1] - self._starts[unit]} rows from row "
                f"{self._starts[unit]} on", first,
            )


def _column(batch: Any, name: str) -> Any:
    return batch.column(batch.schema.get_field_index(name))


def _is_date(dtype: Any) -> bool:
    """Return whether a type is of dates or times of dates."""
    import pyarrow as pa

    return bool(pa.types.is_date(dtype) or pa.types.is_timestamp(dtype))


def _is_number(dtype: Any) -> bool:
    """Return whether a type is of numbers or booleans."""
    import pyarrow as pa

    types = pa.types
    return bool(
        types.is_integer(dtype) or types.is_floating(dtype) or types.is_decimal(dtype)
        or types.is_boolean(dtype)
    )
