"""`open_data`: ``.npy`` files of any size, which are read by parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.checks import as_whole, is_whole
from clnet.errors import FormatError, InputError, quoted, reason
from clnet.formats.files import as_path, check_readable
from clnet.formats.sources import ArraySource, Source

Array = NDArray[Any]


def open_data(
    data: str | PathLike[str],
    t: str | PathLike[str] | None = None,
    *,
    target: int | str | Sequence[int | str] | None = None,
    outputs: int | None = None,
) -> Source:
    """Return the samples of a ``.npy`` file, to be read by parts by `Network.fit`.

    Parameters
    ----------
    data : str or path
        A ``.npy`` file of an array [samples, columns], opened as a memory map.
    t : str, path or None
        A second file, of the targets [samples, n_out], or of numbers or labels
        [samples]. None: the targets are columns of the first.
    target : int, str, sequence of these, or None
        The columns of the targets, by number: from 1, or from -1 for the last.
    outputs : int or None
        Instead of a target: the number of target columns, the last ones.

    Returns
    -------
    Source
        The samples, for `Network.fit` and `Network.predict`.

    Raises
    ------
    FormatError
        If a file is missing or damaged, or a column is missing.
    InputError
        If an argument is wrong, or the numbers of samples differ.

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
    if sum(given is not None for given in (t, target, outputs)) > 1:
        raise InputError("give one of outputs, target and t")
    if outputs is not None:
        target = tuple(range(-as_whole("outputs", outputs, 0), 0))
    first = map_npy(as_path(data))
    if t is not None:
        return ArraySource(first, map_npy(as_path(t)), name=f"{data}: ")
    x, targets = split(f"{data}", first, () if target is None else target)
    return ArraySource(x, targets, name=f"{data}: ")


def map_npy(path: Path) -> Array:
    """Return the array of a ``.npy`` file as a memory map, read-only.

    Raises
    ------
    FormatError
        If the file is unreadable, damaged or no array of numbers, or ends too early:
        with the first row that is missing.
    """
    check_readable(path)
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            headers = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }
            if version not in headers:
                raise ValueError(f"version {version} is not known")
            shape, by_columns, dtype = headers[version](file)
            start = file.tell()
    except Exception as error:  # a damaged header raises nearly anything
        raise FormatError(f"{path} is not a .npy file: {reason(error)}") from None
    if dtype.kind not in "biufU" or not dtype.itemsize or not shape or 0 in shape:
        raise FormatError(
            f"{path} is an array {list(shape)} of {dtype}, expected numbers "
            "[samples, columns]"
        )
    size = path.stat().st_size - start
    row = dtype.itemsize * int(np.prod(shape[1:], dtype=object))
    if size < row * shape[0]:
        raise FormatError(
            f"{path} ends in row {size // row}, expected {shape[0]} rows of {row} bytes"
        )
    return np.memmap(path, dtype, "r", start, shape, "F" if by_columns else "C")


class _Picked:
    """Columns of an array that is read by rows.

    Parameters
    ----------
    array : array, shape [samples, width]
        In a file.
    columns : list of int
        Those to keep.
    """

    chunks = None

    def __init__(self, array: Any, columns: list[int]) -> None:
        self._array, self._columns = array, columns
        self.shape: tuple[int, ...] = (array.shape[0], len(columns))
        self.dtype: Any = array.dtype

    def __getitem__(self, rows: slice) -> Array:
        return np.asarray(self._array[rows])[:, self._columns]


def split(
    name: str, array: Any, target: int | str | Sequence[int | str]
) -> tuple[Any, Any]:
    """Return the inputs and targets of an array [samples, columns]; or no targets.

    Parameters
    ----------
    name : str
        The file, for errors.
    array : array
        In a file.
    target : int, or sequence of int
        Numbers of columns: from 1, or from -1 for the last; also as text.

    Raises
    ------
    FormatError
        If it has other axes, or no such column, or no column is left for inputs.
    """
    if len(array.shape) != 2:
        raise FormatError(
            f"{name} is an array {list(array.shape)}, expected [samples, columns]"
        )
    width = int(array.shape[1])
    asked = [target] if isinstance(target, str) or is_whole(target) else target
    if not isinstance(asked, Iterable):
        raise InputError(f"target must be numbers of columns, not {quoted(target)}")
    targets = [_column(name, width, one) for one in asked]
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
    return _Picked(array, left), _Picked(array, targets)


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
