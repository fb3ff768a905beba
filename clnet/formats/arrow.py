"""Parquet, Arrow and Feather files as sources: pyarrow, of the extra ``arrow``."""

from __future__ import annotations

from bisect import bisect, bisect_left
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
from clnet.errors import ClnetError, FormatError, quoted, warn
from clnet.formats.arrow_files import PLAIN, index_of, opened, reading_rows
from clnet.formats.named_table import (
    DATE,
    MICROSECONDS,
    MISSING,
    NUMBER,
    TEXT,
    Choice,
    Options,
    Texts,
    choose,
    days_of,
    listed,
    printed,
    texts_of,
    write_inputs,
)
from clnet.formats.sources import Order, Part, Source
from clnet.formats.table import OR_TEXT
from clnet.nn.columns import Column, Columns
from clnet.nn.copies import by_threads

Array = NDArray[Any]

STEP = 1 << 25  # bytes of numbers that are decoded at a time, in float64
TEXTS = 1 << 21  # rows whose categories are looked for at a time
CONVERTED = 1 << 13  # rows whose columns a thread turns to rows at a time
WIDE = 8  # bytes of integers that a double may not hold


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
        self.index: set[int] = index_of(self._file.schema)
        self._options = Options() if options is None else options
        self._told: dict[str, set[str]] = {}
        choice = choose(self, self._options, columns)
        self.notes: list[str] = choice.notes
        for at in (*choice.inputs, *(choice.targets if choice.known else ())):
            self._check_type(at, choice)
        self._known, self._dated = choice.known, choice.dated
        self._inputs, self._targets = choice.inputs, choice.targets
        self.columns: Columns | None = columns or self._learnt(choice)
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

    def kind(self, column: int) -> str:
        """Return the kind of a column's values."""
        dtype = self._file.schema.field(column).type
        if str(dtype) == "null":
            return NUMBER
        if _is_date(dtype):
            return DATE
        return NUMBER if _is_number(dtype) and str(dtype) != "bool" else TEXT

    def error(self, sentence: str, row: int = -1, column: int = -1) -> ClnetError:
        """Return an error that names a row from 0, and a column."""
        where = "" if row < 0 else f", row {row}"
        where += "" if column < 0 else f", column {printed(self.names[column])}"
        return FormatError(f"{self.path}{where}{':' * bool(where)} {sentence}")

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

    def _convert(self, first: int, batch: Any, x: Array, at: int) -> None:
        """Write the inputs of some rows of a record batch, from row `at` on."""
        rows = slice(at, at + CONVERTED)
        self.inputs_of(first + at, batch.slice(at, CONVERTED), x[rows])

    def inputs_of(self, first: int, batch: Any, x: Array) -> None:
        """Write the inputs of a record batch to x [rows, n_in]."""
        assert self.columns is not None
        x[...] = 0  # of categories
        counts = write_inputs(
            _BatchRows(self, first, batch), self._inputs, self.columns, self._options, x
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
        if self._label is None:
            t = np.empty((batch.num_rows, len(self._targets)), self.dtype)
            for column, at in enumerate(self._targets):
                _write(t[:, column], self.values_of(first, batch, at))
            if self._known:
                self._check_finite(first, t, self._targets)
            return t
        values = _column(batch, self.names[self._label])
        if self._known:
            self._check_missing(first, values, self._label, "a label")
        elif values.null_count:
            return np.array(values.to_pylist(), object)
        if _is_number(values.type):
            return self.values_of(first, batch, self._label)
        texts = self.texts_of(first, batch, self._label)
        return np.array(texts.found, object)[texts.codes]

    def values_of(self, first: int, batch: Any, at: int) -> Array:
        """Return a column of numbers or dates, of each row; a missing one is NaN."""
        import pyarrow as pa

        values = _column(batch, self.names[at])
        if at in self._dated and not _is_date(values.type):
            return days_of(_BatchRows(self, first, batch), at, values.to_pylist())
        with reading_rows(self.path, first):
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

    def texts_of(self, first: int, batch: Any, at: int) -> Texts:
        """Return a column of text, or of others as text; a missing one is empty."""
        import pyarrow as pa

        values = _column(batch, self.names[at])
        with reading_rows(self.path, first):
            if isinstance(values, pa.DictionaryArray):
                values = values.dictionary_decode()
            coded = values.dictionary_encode(null_encoding="encode")
            texts = texts_of(coded.dictionary.to_pylist())
            return texts._replace(codes=texts.codes[coded.indices.to_numpy()])

    def _check_missing(self, first: int, values: Any, at: int, what: str) -> None:
        if values.null_count:
            row = int(values.is_null().to_numpy(zero_copy_only=False).argmax())
            raise self.error(
                f"the value is missing, expected {what}", first + row, at
            )

    def _check_finite(self, first: int, values: Array, columns: Sequence[int]) -> None:
        if not all_finite(values):
            finite = np.isfinite(values)
            row, column = divmod(int(finite.argmin()), values.shape[1])
            raise self.error(
                f"found {values[row, column]}, expected a finite number",
                first + row, columns[column],
            )

    def _check_type(self, at: int, choice: Choice) -> None:
        """Raise FormatError unless a column holds values of the kind that is read."""
        import pyarrow as pa

        dtype = self._file.schema.field(at).type
        text = at in choice.coded or at in choice.labels or at in choice.dated
        value = dtype.value_type if pa.types.is_dictionary(dtype) else dtype
        if _is_number(value) and (text or value is dtype):
            return
        if pa.types.is_null(dtype) or (_is_date(dtype) and text):
            return
        words = (
            pa.types.is_string(value) or pa.types.is_large_string(value)
            or (hasattr(pa.types, "is_string_view") and pa.types.is_string_view(value))
        )
        if text and words:
            return
        raise self.error(
            f"is of {quoted(str(dtype))}, expected numbers"
            + (OR_TEXT if words else " or text"), column=at,
        )

    def _number_type(self, at: int) -> np.dtype[Any]:
        """Return NumPy's type for a column of numbers or dates."""
        import pyarrow as pa

        dtype = self._file.schema.field(at).type
        plain = _is_number(dtype) and not pa.types.is_decimal(dtype)
        number_type = dtype.to_pandas_dtype() if plain else np.float64
        return np.dtype(number_type)

    def _learnt(self, choice: Choice) -> Columns:
        """Return the columns of a training, with categories and means."""
        texts: dict[int, dict[str, str]] = {  # and their common forms
            at: {} for at in choice.inputs if at in choice.coded
        }
        sums = {
            at: np.zeros(2) for at in choice.inputs  # of values, and their number
            if at not in choice.coded and self._options.missing == MISSING[0]
        }
        if learnt := [*texts, *sums]:
            for first, batch in self._batches(learnt, TEXTS):
                for at, known in texts.items():
                    part = self.texts_of(first, batch, at)
                    known.update(zip(part.found, part.common, strict=True))
                for at, total in sums.items():
                    values = self.values_of(first, batch, at).astype(np.float64)
                    known_values = values[~np.isnan(values)]
                    total += known_values.sum(), known_values.size
        lacking = {at for at, (_, n) in sums.items() if n < (self.samples or 0)}
        empty = [at for at in lacking if not sums[at][1]]
        self._inputs = [at for at in choice.inputs if at not in empty]
        if not self._inputs:
            raise self.error("has no value in the columns of inputs")
        categories = {
            at: Texts([*known], np.zeros(0, np.intp), [*known.values()]).names
            for at, known in texts.items()
        }
        learnt_columns = [
            Column(
                self.names[at], tuple(sorted(set(categories.get(at, ())))),
                float(sums[at][0] / sums[at][1]) if at in lacking else None,
                at in lacking, at in choice.dated,
            ) for at in self._inputs
        ]
        for what, columns in (
            ("text as categories", choice.by_default), ("no value, left out", empty),
            ("missing, the mean and an indicator", sorted(lacking.difference(empty))),
        ):
            if columns:
                self.notes.append(f"{what}: {listed(self.names[at] for at in columns)}")
        targets = tuple(self.names[at] for at in choice.targets)
        return Columns(tuple(learnt_columns), targets)

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
        with ThreadPoolExecutor(1, "clnet-touch") as ahead:  # the disk reads meanwhile
            try:
                for unit, coming in _ahead(
                    lambda unit: ahead.submit(self._file.fetch, unit, wanted, stopped),
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
            raise self.error(
                "is missing, expected "
                f"{self._starts[unit + 1] - self._starts[unit]} rows from row "
                f"{self._starts[unit]} on", first,
            )


class _BatchRows:
    """The rows of a record batch, from one on."""

    def __init__(self, source: TableSource, first: int, batch: Any) -> None:
        self._source = source
        self._first = first
        self._batch = batch

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def numbers(self, column: int, dates: bool = False) -> Array:
        """Return numbers, or dates in days since 1970 [rows]; NaN: missing."""
        return self._source.values_of(self._first, self._batch, column)

    def texts(self, column: int) -> Texts:
        """Return texts."""
        return self._source.texts_of(self._first, self._batch, column)

    def error(self, sentence: str, row: int = -1, column: int = -1) -> ClnetError:
        """Return an error that names a row of the file, and a column."""
        return self._source.error(
            sentence, row if row < 0 else self._first + row, column
        )


def _ahead(
    read: Callable[[int], Future[Any]], units: Iterable[int], count: int
) -> Iterator[tuple[int, Future[Any]]]:
    """Yield units, each with what comes of it; `read` is called for so many more."""
    held: deque[tuple[int, Future[Any]]] = deque()
    for unit in units:
        held.append((unit, read(unit)))
        if len(held) > count:
            yield held.popleft()
    yield from held


def _column(batch: Any, name: str) -> Any:
    return batch.column(batch.schema.get_field_index(name))


def _write(column: Array, numbers: Array) -> None:
    with np.errstate(invalid="ignore"):  # a signalling NaN is refused later
        column[...] = numbers


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
