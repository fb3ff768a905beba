"""Samples whose values have names: frames of any library, dicts, rows, records.

Frames are read by narwhals, which imports no library of frames itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clnet.checks import NUMBER_KINDS, as_array, is_sparse
from clnet.errors import ClnetError, InputError, quoted, reason, warn
from clnet.formats.named_table import (
    DATE,
    NUMBER,
    OR_TEXT,
    TEXT,
    NamedTable,
    Options,
    Texts,
    as_text,
    days_of,
    index_of,
    printed,
    read_table,
    texts_of,
    unnamed,
)

if TYPE_CHECKING:
    from clnet.nn.columns import Columns

Array = NDArray[Any]
_PLAIN = {str, bool, int, float, type(None)}


class FrameSource(NamedTable):
    """Samples in memory whose columns have names."""

    error_type: type[ClnetError] = InputError

    def __init__(
        self, names: Sequence[Hashable], column: Callable[[int], Any], samples: int,
        what: str, *, single: bool = False,
    ) -> None:
        self.names: list[str] = [
            str(name) or unnamed(at) for at, name in enumerate(names)
        ]
        self.index: set[int] = index_of(self.names)
        self.notes: list[str] = []
        self.what: str = what
        self.single: bool = single
        self._column = column
        self._samples = samples
        for size, part in ((len(names), "column"), (samples, "sample")):
            if not size:
                raise self.error(f"has no {part}: give at least one")

    @cached_property
    def _arrays(self) -> dict[int, Array]:
        return {}

    def __len__(self) -> int:
        return self._samples

    def value_type(self, column: int) -> str:
        """Return the type of a column's values: `NUMBER`, `TEXT` or `DATE`."""
        letter = self._array(column).dtype.kind
        return NUMBER if letter in "iuf" else DATE if letter == "M" else TEXT

    def numbers(self, column: int, dates: bool = False) -> NDArray[np.float64]:
        """Return numbers, or dates in days since 1970 [samples]; NaN: missing."""
        array = self._array(column)
        if dates:
            if array.dtype.kind in NUMBER_KINDS and not np.isnan(array).all():
                raise self.error("holds numbers, expected dates", column=column)
            days = array if array.dtype.kind == "M" else array.tolist()
            return days_of(self, column, [None if day != day else day for day in days])
        if array.dtype.kind not in NUMBER_KINDS:
            row, value = next(
                (row, value) for row, value in enumerate(array.tolist())
                if value is not None
            )
            raise self.error(
                f"found {quoted(value)}, expected a number{OR_TEXT}", row, column
            )
        return array.astype(np.float64)

    def texts(self, column: int) -> Texts:
        """Return texts."""
        values = [
            None if _is_missing(value) else value
            for value in self._array(column).tolist()
        ]
        if not set(map(type, values)) <= _PLAIN:
            for row, value in enumerate(values):
                if not isinstance(value, (str, Real, Decimal, type(None))):
                    raise self.error(
                        f"found {quoted(value)}, expected text or a number", row, column
                    )
        return texts_of(values)

    def _array(self, at: int) -> Array:
        """Return a column [samples]: of numbers, with NaN for missing ones, or others.

        Missing ones among others are None.
        """
        if at not in self._arrays:
            name = f"{self.what}, column {printed(self.names[at])}"
            array = as_array(name, self._column(at))
            if array.shape != (self._samples,):
                raise self.error(
                    f"has shape {list(array.shape)}, expected [{self._samples}], a "
                    "value for each sample", column=at,
                )
            if array.dtype.kind == "O":
                array = array.copy()
                missing = [_is_missing(value) for value in array.tolist()]
                array[missing] = np.nan
                array = as_array(name, array)
                if array.dtype.kind == "O":
                    array[missing] = None
            self._arrays[at] = array
        return self._arrays[at]


def frame_source(values: object, what: str) -> FrameSource | None:
    """Return samples whose values have names; None: they have none."""
    if isinstance(values, FrameSource):
        return values
    if isinstance(values, np.ndarray):
        return _structured(values, what)
    if hasattr(type(values), "columns"):
        return _frame(values, what)
    named = _named_values(values)
    if named is not None:
        columns = list(named.values())
        if not any(map(np.ndim, columns)):
            return _rows([named], what, single=True)
        samples = max(np.shape(column)[0] for column in columns if np.ndim(column))
        return FrameSource(list(named), columns.__getitem__, samples, what)
    rows = values if isinstance(values, (list, tuple)) else ()
    if not rows or _named_values(rows[0]) is None:
        return None
    return _rows([_named_values(row) for row in rows], what)


def has_columns(samples: object) -> bool:
    """Return whether an object is a table of named columns."""
    return not is_sparse(samples) and (
        hasattr(type(samples), "columns") or isinstance(samples, Mapping)
        or (isinstance(samples, np.ndarray) and samples.dtype.kind == "V")
    )


def _frame(samples: Any, what: str) -> FrameSource | None:
    """Return the source of a frame; None: narwhals does not know it."""
    import narwhals as nw
    from narwhals.exceptions import DuplicateError

    try:
        frame: Any = nw.from_native(samples, pass_through=True)
        known = isinstance(frame, (nw.DataFrame, nw.LazyFrame))
        if not known and hasattr(samples, "__arrow_c_stream__"):  # a RecordBatch
            frame = nw.from_arrow(samples, backend="pyarrow")
        if isinstance(frame, nw.LazyFrame):
            frame = frame.collect()
        if not isinstance(frame, nw.DataFrame):
            return None
        series = list(frame.iter_columns())
    except DuplicateError as error:
        raise InputError(f"{what} names a column twice: {reason(error)}") from None

    def column(at: int) -> Any:
        values = series[at]
        if values.dtype.is_integer() or values.dtype.is_float():
            return values.to_numpy()  # with NaN for missing ones
        if values.dtype == nw.Datetime:  # in UTC, if there is a zone
            stamps = values.dt.timestamp("us").to_numpy()
            known = ~np.isnan(stamps)
            times = np.full(len(stamps), "NaT", "datetime64[us]")
            times[known] = stamps[known].astype(np.int64).view("datetime64[us]")
            return times
        cells = values.to_list()
        if values.dtype == nw.Date:
            return np.array(
                [None if _is_missing(day) else day for day in cells], "datetime64[us]"
            )
        if values.dtype in (nw.Categorical, nw.Enum):  # of numbers and intervals too
            cells = [None if _is_missing(cell) else as_text(cell) for cell in cells]
        objects = np.empty(len(values), object)
        objects[:] = cells
        return objects

    return FrameSource([item.name for item in series], column, len(frame), what)


def _structured(array: Array, what: str) -> FrameSource | None:
    """Return the source of a structured array; None: it is a plain one."""
    names = array.dtype.names
    if names is None or array.ndim > 1:
        return None
    rows = np.atleast_1d(array)
    return FrameSource(
        names, lambda at: rows[names[at]], len(rows), what, single=not array.ndim
    )


def _named_values(sample: Any) -> Mapping[Any, Any] | None:
    """Return the values of a sample, or columns, by their names; None: it has none."""
    if is_sparse(sample):  # some are dicts, by row and column
        return None
    if isinstance(sample, Mapping):
        return sample
    if isinstance(sample, np.void) and sample.dtype.names:
        return dict(zip(sample.dtype.names, sample.item(), strict=True))
    if isinstance(sample, tuple) and hasattr(sample, "_asdict"):
        return dict(sample._asdict())
    if hasattr(sample, "index") and hasattr(sample, "iloc"):  # a Series of pandas
        index = sample.index
        if type(index).__name__ != "RangeIndex":  # numbers of positions
            return dict(zip(index.tolist(), sample.tolist(), strict=True))
    return None


def _rows(
    rows: Sequence[Mapping[Any, Any] | None], what: str, *, single: bool = False
) -> FrameSource:
    names = list(dict.fromkeys(name for row in rows for name in row or ()))

    def column(at: int) -> Any:
        values = np.empty(len(rows), object)
        for number, row in enumerate(rows):
            if row is None or names[at] not in row:
                raise InputError(
                    f"{what}, row {number} has no column {quoted(str(names[at]))}"
                )
            values[number] = row[names[at]]
        return values

    return FrameSource(names, column, len(rows), what, single=single)


def _is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN, pandas' NA or NaT."""
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):  # of NA, which is neither true nor false
        return np.ndim(value) == 0


def named_inputs(
    columns: Columns | None, x: ArrayLike, name: str = "x"
) -> tuple[ArrayLike, Columns | None]:
    """Return inputs, and their columns: by name where they have names, or as they are.

    Missing numbers become NaN. Warns of unknown categories, and of missing numbers that
    become the mean of a training that had none.
    """
    source = None if type(x) is np.ndarray and not x.dtype.names else (
        frame_source(x, name)
    )
    if source is None or (columns is None and source.single):
        return x, columns
    table = read_table(source, Options(), columns, "float64", arrays=True)
    if table.notes:
        warn(f"{name}: {'; '.join(table.notes)}")
    return table.x[0] if source.single else table.x, table.columns
