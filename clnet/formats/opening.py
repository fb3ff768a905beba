"""`open_data`: files of any size as sources, which are read by parts."""

from __future__ import annotations

import io
import os
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.checks import NUMBER_KINDS, as_items, as_whole, check_kind, is_many, is_whole
from clnet.errors import FormatError, InputError, quoted
from clnet.formats import arrow, hdf5
from clnet.formats.arrow_files import TABLE_SUFFIXES
from clnet.formats.files import as_path, check_readable, reading
from clnet.formats.named_table import MISSING, UNKNOWN, Options
from clnet.formats.pages import forget
from clnet.formats.sources import ArraySource, Source
from clnet.formats.table import read_header
from clnet.nn.columns import Columns

if TYPE_CHECKING:
    from clnet.formats.named_table import ColumnNames

Array = NDArray[Any]

NPY_SUFFIXES = (".npy",)
HEADER = 1 << 14  # bytes of a .npy file that hold its header: NumPy's are shorter
HDF5_SUFFIXES = (".h5", ".hdf5")
SOURCE_SUFFIXES = (*NPY_SUFFIXES, *HDF5_SUFFIXES, *TABLE_SUFFIXES)
"""Suffixes of files that `open_data` opens."""


def open_data(
    data: str | PathLike[str],
    t: str | PathLike[str] | None = None,
    *,
    target: ColumnNames | None = None,
    categories: ColumnNames = (),
    ignore: ColumnNames = (),
    index: ColumnNames | None = None,
    dates: ColumnNames = (),
    missing: str | None = None,
    unknown: str = UNKNOWN[0],
    outputs: int | None = None,
    columns: Columns | None = None,
) -> Source:
    """Return the samples of a file, to be read by parts by `Network.fit` and others.

    Parameters
    ----------
    data : str or path
        ``.npy``: an array [samples, columns], opened as a memory map. ``.h5``,
        ``.hdf5``: the HDF5 data sets x and t, or the one that is named after a colon,
        as in ``"a.h5:images"`` (extra ``hdf5``). ``.parquet``, ``.arrow``,
        ``.feather``: a table of named columns (extra ``arrow``).
    t : str, path or None
        A second ``.npy`` file, or a data set of the same or another HDF5 file, of the
        targets [samples, n_out], or of numbers or labels [samples]. None: the targets
        are columns of the first.
    target : str, int, sequence of these, or None
        The columns of the targets, by number: from 1, or from -1 for the last; of a
        table also by name. A table's target of text is of class labels.
    categories, ignore, index, dates, unknown
        As for `load_table`, of tables.
    missing : {"mean", "refuse"} or None
        As for `load_table`; the means of numbers are read once. None: ``"mean"`` with
        the columns of a network, which have them, else ``"refuse"``.
    outputs : int or None
        Instead of a target: the number of target columns, the last ones.
    columns : Columns or None
        Of tables: the columns of a network, as for `load_table`. None: all columns but
        the targets are inputs; those of categories are read once for these.

    Returns
    -------
    Source
        The samples, for `Network.fit`, `Network.predict` and `Network.evaluate`. Its
        `columns` are for `Network.columns`.

    Raises
    ------
    FormatError
        If a file is missing or damaged, a column is missing, or the numbers of samples
        differ. Rows that cannot be read, or hold wrong values, raise it as they are
        read.
    InputError
        If an argument is wrong.
    ClnetError
        If h5py or pyarrow is missing.

    Examples
    --------
    >>> import numpy as np
    >>> np.save("table.npy", np.random.default_rng(0).normal(size=(1000, 5)))
    >>> samples = clnet.open_data("table.npy", outputs=1)
    >>> net = clnet.Network.mlp([4, 8, 1], ["tanh", "identity"], seed=0)
    >>> history = net.fit(samples, epochs=2, buffer=10_000)
    >>> net.predict(samples).shape
    (1000, 1)
    """
    if sum(choice is not None for choice in (t, target, outputs)) > 1:
        raise InputError("give one of outputs, target and t")
    if outputs is not None:
        target = tuple(range(-as_whole("outputs", outputs, 0), 0))
    check_kind("columns", columns, Columns)
    targets = () if target is None else target
    suffix = source_suffix(data)
    if suffix in TABLE_SUFFIXES:
        if t is not None:
            raise InputError(
                f"t is for .npy and HDF5, expected the target's columns of {data}"
            )
        missing = missing or MISSING[columns is None]
        options = Options(targets, categories, ignore, index, dates, missing, unknown)
        return arrow.TableSource(as_path(data), options, columns)
    if columns is not None or any(
        as_items(names) or not is_many(names)
        for names in (categories, ignore, dates, () if index is None else index)
    ):
        raise InputError(
            "categories, ignore, index, dates and columns are for tables, expected "
            f"without them: {data} has no names of columns"
        )
    first, second = _arrays(data, t, suffix)
    if target is not None or second is None:
        first, second = split(f"{data}", first, targets)
    try:
        return ArraySource(first, second, name=f"{data}: ")
    except InputError as error:
        raise FormatError(f"{error}") from None


def source_suffix(data: str | PathLike[str]) -> str:
    """Return the suffix of a file that `open_data` opens, or raise FormatError."""
    name = hdf5.named(data)[0].name.lower()
    for suffix in SOURCE_SUFFIXES:
        if name.endswith(suffix):
            return suffix
    raise FormatError(
        f"{data} has no suffix of data that are read by parts: known are "
        f"{', '.join(SOURCE_SUFFIXES)}"
    )


def is_source(data: object) -> bool:
    """Return whether `open_data` opens a file of this name."""
    try:
        return bool(source_suffix(data))  # type: ignore[arg-type]  # others raise
    except FormatError:
        return False


def _arrays(data: object, t: object, suffix: str) -> tuple[Any, Any]:
    """Return the arrays of inputs and targets; the second may be missing, None."""
    if suffix in HDF5_SUFFIXES:
        return hdf5.data_sets(data, t)
    x = map_npy(as_path(data))
    return x, None if t is None else map_npy(as_path(t), f"{NUMBER_KINDS}U")


def map_npy(path: Path, letters: str = NUMBER_KINDS) -> Array:
    """Return the array of a ``.npy`` file as a memory map, read-only.

    `letters` are NumPy's, of the types that are read. The error of a file that ends too
    early names the first row that is missing.
    """
    check_readable(path)
    with reading(f"{path} is not a .npy file"), path.open("rb") as file:
        head = io.BytesIO(file.read(HEADER))
        shape, by_columns, dtype = read_header(head)
        start = head.tell()
        size = os.fstat(file.fileno()).st_size - start
    if dtype.kind not in letters or not dtype.itemsize or min(shape, default=0) < 1:
        raise FormatError(
            f"{path} is an array {list(shape)} of {dtype}, expected numbers "
            "[samples, columns]"
        )
    row = dtype.itemsize * int(np.prod(shape[1:], dtype=object))
    if size < row * shape[0]:
        raise FormatError(
            f"{path} ends in row {size // row}, expected {shape[0]} rows of {row} bytes"
        )
    with reading(f"{path} cannot be mapped"):
        return np.memmap(path, dtype, "r", start, shape, "F" if by_columns else "C")


class _LastRows:
    """Rows of an array in a file; the last ones that were read are kept."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self._last: tuple[slice, Array] | None = None

    def __getitem__(self, rows: slice) -> Array:
        if self._last is None or self._last[0] != rows:
            read = self.array[rows]
            self._last = rows, np.array(read)
            forget(read)
        return self._last[1]


class _Picked:
    """Columns of an array that is read by rows."""

    chunks = None

    def __init__(self, rows: _LastRows, columns: list[int]) -> None:
        run = slice(columns[0], columns[-1] + 1)
        self._rows = rows
        self._columns = run if [*range(run.start, run.stop)] == columns else columns
        self.shape: tuple[int, ...] = (rows.array.shape[0], len(columns))
        self.dtype: Any = rows.array.dtype

    def __getitem__(self, rows: slice) -> Array:
        return self._rows[rows][:, self._columns]


def split(name: str, array: Any, target: ColumnNames) -> tuple[Any, Any]:
    """Return the inputs and targets of an array [samples, columns]; or no targets.

    `target` holds numbers of columns, from 1, or from -1 for the last; also as text.
    """
    if len(array.shape) != 2:
        raise FormatError(
            f"{name} is an array {list(array.shape)}, expected [samples, columns]"
        )
    width = int(array.shape[1])
    asked = [target] if isinstance(target, str) or is_whole(target) else target
    if not is_many(asked):
        raise InputError(f"target must be numbers of columns, not {quoted(target)}")
    targets = [_column(name, width, number) for number in asked]
    left = [at for at in range(width) if at not in targets]
    if not left:
        raise FormatError(f"{name} has {width} columns, expected one for inputs too")
    if not targets:
        return array, None
    if isinstance(array, np.memmap):
        run = range(left[0], left[-1] + 1)
        ends = range(min(targets), max(targets) + 1)
        if [*run] == left and [*ends] == targets:  # two views
            return array[:, run.start : run.stop], array[:, ends.start : ends.stop]
    rows = _LastRows(array)
    return _Picked(rows, left), _Picked(rows, targets)


def _column(name: str, width: int, asked: Any) -> int:
    try:
        number = int(asked)
    except (TypeError, ValueError):
        raise FormatError(
            f"{name} has no names of columns, expected a number, not {quoted(asked)}"
        ) from None
    if not 1 <= abs(number) <= width:
        raise FormatError(f"{name} has {width} columns, and none of number {number}")
    return number - 1 if number > 0 else width + number
