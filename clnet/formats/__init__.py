"""Files of networks and data, in formats known by their suffix.

Imports `nn` and below. Start here: `load_network`, `save`, `load_data` and `save_data`
select the format; `files` reads and writes all files, `numbers` parses text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clnet.checks import as_numbers, as_whole, check_flag, check_kind
from clnet.errors import FormatError, InputError, quoted
from clnet.formats import (
    arrow,
    arrow_files,
    fann,
    fann_data,
    named_table,
    onnx,
    safetensors,
    table,
)
from clnet.formats.data_frame import frame_source
from clnet.formats.delimited import TEXT_SUFFIXES, DelimitedSource
from clnet.formats.files import as_path, check_memory, check_writable
from clnet.formats.named_table import MISSING, UNKNOWN, Options
from clnet.nn.columns import Columns
from clnet.nn.description import as_dtype
from clnet.nn.model import Model

if TYPE_CHECKING:
    from clnet.formats.named_table import ColumnNames, Table

M = TypeVar("M", bound="Model")

NETWORK_FORMATS: dict[str, Any] = {
    ".net": fann, ".safetensors": safetensors, ".onnx": onnx,
}
NETWORK_SUFFIXES = tuple(NETWORK_FORMATS)
TRAINING_SUFFIX = ".safetensors"  # of networks with their training
FANN_DATA_SUFFIXES = (".train", ".test", ".data")
DATA_SUFFIXES = (
    *FANN_DATA_SUFFIXES,
    *(f"{suffix}.gz" for suffix in FANN_DATA_SUFFIXES),
    ".npz",
    ".csv",
)
ARROW_SUFFIXES = arrow_files.TABLE_SUFFIXES
TABLE_SUFFIXES = (*TEXT_SUFFIXES, *ARROW_SUFFIXES)
"""Suffixes of files that `load_table` reads."""


def load_network(
    path: str | PathLike[str], network_type: type[M], dtype: str | None = None,
    memory_limit: int | None = None,
) -> M:
    """Return the network of a file, an object of `network_type`; see `clnet.load`."""
    file = as_path(path)
    suffix = suffix_of(file, NETWORK_SUFFIXES, "networks")
    _check_options(file, dtype, memory_limit)
    if suffix != ".net" and dtype is not None:
        raise InputError(f"dtype is for .net files: {file} holds its own")
    try:
        if suffix == ".net":
            network = fann.load(file, network_type, dtype)
        else:
            network = NETWORK_FORMATS[suffix].load(file, network_type, memory_limit)
    except InputError as error:
        raise FormatError(f"{file} does not describe a network: {error}") from None
    return network


def save(network: Model, path: str | PathLike[str]) -> None:
    """Write a network to a file, whole or not at all; see `Network.save`."""
    file, module = _network_file(network, path)
    module.save(network, file)


def check_save(network: Model, path: str | PathLike[str]) -> None:
    """Raise the errors of a later `save` now, before the work that ends in it."""
    file, module = _network_file(network, path)
    module.check(network, file)
    check_writable(file)


def _network_file(network: Model, path: str | PathLike[str]) -> tuple[Path, Any]:
    """Return a network's file and the module of its format."""
    if not isinstance(network, Model):
        raise InputError(f"a network must be a clnet.Network, not {quoted(network)}")
    file = as_path(path)
    suffix = suffix_of(file, NETWORK_SUFFIXES, "networks")
    return file, NETWORK_FORMATS[suffix]


def load_data(
    path: str | PathLike[str],
    *,
    dtype: str | None = None,
    outputs: int | None = None,
    memory_limit: int | None = None,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the inputs and targets of a file.

    Parameters
    ----------
    path : str or path
        ``.train``, ``.test``, ``.data``, also followed by ``.gz``: FANN's data files;
        ``.npz``: arrays x and t; ``.csv``: a table.
    dtype : {"float32", "float64"} or None
        Type of the arrays; None: float32, or for ``.npz`` the smallest type that holds
        its arrays.
    outputs : int or None
        For ``.csv``: the number of target columns, the last ones; None: the columns
        named ``t``, ``t`` with a number, or ``target…``.
    memory_limit : int or None
        Most bytes that the file may hold or, if it is compressed, unpack to; None: 64
        MiB, and 16 times its size.

    Returns
    -------
    x : ndarray, shape [samples, n_in]
        Inputs.
    t : ndarray, shape [samples, n_out]
        Targets; n_out is 0 if the file has none.

    Raises
    ------
    FormatError
        If the file is missing, unreadable, truncated, foreign, or has an unknown
        suffix, or if it unpacks to more than the limit; with the line where there is
        one.
    InputError
        If dtype is unknown, the limit is wrong, or outputs is wrong or given for
        another suffix.

    Examples
    --------
    >>> clnet.save_data("sums.data", [[1, 2], [3, 4]], [[3], [7]])
    >>> x, t = clnet.load_data("sums.data")
    >>> x.tolist(), t.tolist()
    ([[1.0, 2.0], [3.0, 4.0]], [[3.0], [7.0]])
    """
    file, suffix = _data_file(path)
    _check_options(file, dtype, memory_limit)
    outputs = None if outputs is None else as_whole("outputs", outputs, 0)
    if suffix == ".csv":
        return table.load_csv(file, dtype, outputs)
    if outputs is not None:
        raise InputError(
            f"the number of outputs is for .csv files: {file} holds its own"
        )
    load = table.load_npz if suffix == ".npz" else fann_data.load
    return load(file, dtype, memory_limit)


def load_table(
    source: str | PathLike[str] | Any,
    *,
    target: ColumnNames | None = None,
    categories: ColumnNames = (),
    ignore: ColumnNames = (),
    index: ColumnNames | None = None,
    dates: ColumnNames = (),
    missing: str = MISSING[0],
    unknown: str = UNKNOWN[0],
    header: bool | None = None,
    separator: str | None = None,
    decimal: str | None = None,
    columns: Columns | None = None,
    dtype: str | None = None,
    memory_limit: int | None = None,
) -> Table:
    """Return the samples of a table whose columns are known by name.

    Parameters
    ----------
    source : str, path, or samples whose values have names
        A ``.csv`` or ``.tsv`` file, also followed by ``.gz``, or a ``.parquet``,
        ``.arrow`` or ``.feather`` file (all by the extra ``arrow``); or a frame of any
        library, a dict of columns, or a list of dicts, as for `Network.predict`.
    target : str, int, sequence of these, or None
        Columns to predict, by name or by number: from 1, or from -1 for the last. One
        of text is of class labels. None: those of `columns` that are there.
    categories : str, int, or sequence of these
        Columns of categories, of numbers too: each category of an input becomes an
        input of its own, 0 or 1; a target is of class labels. Columns of text and of
        booleans are of categories without it.
    ignore : str, int, or sequence of these
        Columns to leave out.
    index : str, int, sequence of these, or None
        Columns that number the samples, to leave out. None: those that pandas writes, a
        first one without a name or named ``Unnamed: 0``, and ``__index_level_0__``.
    dates : str, int, or sequence of these
        Columns of dates, as 2020-12-31, which become days since 1970.
    missing : {"mean", "refuse"}
        Missing numbers, as ``NA``, become the mean, and a second input is 1 there;
        missing text is a category. Or they are an error.
    unknown : {"zeros", "refuse"}
        Categories that `columns` do not hold have all inputs 0, or are an error.
    header : bool or None
        Whether the first line of a text file holds names. None: if it holds a name that
        is given, no number, text above numbers, or the columns' numbers from 0.
    separator, decimal : str or None
        The characters between the cells of a text file and before a fraction; None:
        they are found.
    columns : Columns or None
        The columns of a network, `Network.columns`: its inputs are found by their
        names, and have its categories; its targets may be missing, NaN or None, unless
        `target` names them. None: all columns but the targets are inputs.
    dtype : {"float32", "float64"} or None
        Type of the numbers; None: float32.
    memory_limit : int or None
        As for `load_data`; it also bounds the bytes of the inputs.

    Returns
    -------
    Table
        Its ``x`` and ``t`` are for `Network.fit`, its `columns` for `Network.columns`.

    Raises
    ------
    FormatError
        If the file is missing, unreadable or no table, a column or a value is missing,
        or a value is no finite number or of no known category; with line and column.
    InputError
        If an argument is wrong, or the table is no file.

    Examples
    --------
    >>> import csv
    >>> rows = [(120, "red", "apple"), (7, "red", "cherry")]
    >>> with open("fruit.csv", "w") as file:
    ...     csv.writer(file).writerows([("weight", "colour", "kind"), *rows])
    >>> table = clnet.load_table("fruit.csv", target="kind", categories="colour")
    >>> table.x.tolist(), table.t.tolist()
    ([[120.0, 1.0], [7.0, 1.0]], ['apple', 'cherry'])
    """
    if dtype is not None:
        as_dtype(dtype)
    check_kind("columns", columns, Columns)
    check_flag("header", header, optional=True)
    options = Options(target, categories, ignore, index, dates, missing, unknown)
    table_source: named_table.NamedTable | None = frame_source(source, "the table")
    if table_source is None:
        file = as_path(source)
        _check_options(file, dtype, memory_limit)
        suffix = suffix_of(file, (*DATA_SUFFIXES, *TABLE_SUFFIXES), "data")
        if suffix in ARROW_SUFFIXES:
            table_source = arrow.read_rows(file)
        elif suffix in TEXT_SUFFIXES:
            inputs = () if columns is None else columns.inputs
            table_source = DelimitedSource(
                file, [*options.named, *(column.name for column in inputs)],
                header=header, separator=separator, decimal=decimal, columns=columns,
                memory_limit=memory_limit,
            )
        else:
            raise InputError(
                f"{file} has no names of columns: give a file of "
                f"{', '.join(TABLE_SUFFIXES)}"
            )
    assert table_source is not None
    return named_table.read_table(table_source, options, columns, dtype or "float32")


def save_data(path: str | PathLike[str], x: ArrayLike, t: ArrayLike) -> None:
    """Write inputs and targets to a file, whole or not at all.

    Parameters
    ----------
    path : str or path
        A file name with a suffix that `load_data` knows.
    x, t : array_like, shape [samples, n_in] and [samples, n_out]
        Inputs and targets; numbers are written exactly.

    Raises
    ------
    FormatError
        If the file cannot be written or has an unknown suffix.
    InputError
        If the arrays do not have the shapes above.

    Examples
    --------
    >>> clnet.save_data("sums.csv", [[1, 2], [3, 4]], [[3], [7]])
    >>> from pathlib import Path
    >>> print(Path("sums.csv").read_text().strip())
    x0,x1,t0
    1,2,3
    3,4,7
    """
    file, suffix = _data_file(path)
    inputs, targets = (
        as_numbers(what, array, _float_type(array))
        for what, array in (("x", x), ("t", t))
    )
    shapes = f"x is {[*inputs.shape]} and t is {[*targets.shape]}"
    if inputs.ndim != 2 or targets.ndim != 2 or len(inputs) != len(targets):
        raise InputError(f"{shapes}, expected [samples, n_in] and [samples, n_out]")
    if 0 in inputs.shape:
        raise InputError(f"{shapes}, expected at least one sample and one input")
    writers = {".npz": table.save_npz, ".csv": table.save_csv}
    writers.get(suffix, fann_data.save)(file, inputs, targets)


def save_table(
    path: str | PathLike[str], x: NDArray[Any], t: NDArray[Any],
    columns: Columns | None = None, beside: Mapping[str, NDArray[Any]] | None = None,
) -> None:
    """Write a table to a ``.csv`` file, as `load_table` reads it.

    Targets t are numbers [samples, n_out] or labels [samples]; `beside` are more
    columns [samples]. Without `columns` they are named x0, x1, … t0, t1, …, or
    ``class``.
    """
    table.save_csv(as_path(path), x, t, columns, beside)


def check_save_data(path: str | PathLike[str]) -> None:
    """Raise the errors of a later `save_data` now, before the work that ends in it."""
    file, _ = _data_file(path)
    check_writable(file)


def _data_file(path: str | PathLike[str]) -> tuple[Path, str]:
    """Return a data file and its suffix."""
    file = as_path(path)
    return file, suffix_of(file, DATA_SUFFIXES, "data")


def suffix_of(path: str | PathLike[str], known: Iterable[str], what: str) -> str:
    """Return the known suffix of a file name, in upper or lower case.

    `what` names the content of such files in the FormatError of another name.
    """
    name = as_path(path).name.lower()
    for suffix in known:
        if name.endswith(suffix):
            return suffix
    if as_path(path).is_dir():
        raise FormatError(f"{path} is a folder, expected a file of {what}")
    names = ", ".join(dict.fromkeys(known))  # .csv is of data and of tables
    raise FormatError(f"{path} has no suffix for {what}: known are {names}")


def _check_options(file: Path, dtype: str | None, memory_limit: int | None) -> None:
    if dtype is not None:
        as_dtype(dtype)
    if memory_limit is not None:
        as_whole("memory_limit", memory_limit)
        with suppress(OSError):  # whoever reads the file names the fault
            size = file.stat().st_size
            check_memory(file, size, size, memory_limit)


def _float_type(array: ArrayLike) -> str:
    """Return the smallest supported type that holds an array's numbers exactly."""
    try:
        small = np.result_type(np.asarray(array), np.float32) == np.float32
    except (TypeError, ValueError):  # not numbers: as_numbers raises
        return "float64"
    return "float32" if small else "float64"
