"""Data as arrays, ``.npz``, and as a table, ``.csv``.

A ``.npz`` file holds the arrays ``x`` [samples, n_in] and ``t`` [samples, n_out]. ``t``
may be missing if there are no targets. Sizes are proved before memory is taken.

A ``.csv`` file holds one sample a line, numbers separated by commas, with or without a
header. Its targets are the last `outputs` columns; if `outputs` is not given, the
columns named ``t``, ``t`` with a number, or a name that begins with ``target``.
"""

from __future__ import annotations

import csv
import io
import math
import re
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from clnet.checks import NUMBER_KINDS
from clnet.errors import FormatError, quoted, warn
from clnet.formats.files import check_memory, read, reading, write
from clnet.formats.named_table import (
    MICROSECONDS,
    OR_TEXT,
    UNNAMED,
    index_of,
    listed,
)
from clnet.formats.numbers import (
    holds,
    infinite,
    is_number,
    shortest,
    to_number,
    to_numbers,
)
from clnet.nn.columns import Column, Columns

Array = NDArray[Any]

BLOCK = 1 << 14  # cells parsed at a time
NAME_TARGETS = (
    "name the target columns, or give the number of outputs, the last columns, 0 for "
    "none"
)
_TARGET = re.compile(r"t\d*|target.*", re.IGNORECASE)
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_BEGINS = (b"PK\3\4", b"PK\5\6")  # of archives with and without members, as NumPy's
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # that NumPy writes


def load_arrays(path: Path, memory_limit: int | None) -> dict[str, NDArray[Any]]:
    """Return the arrays of an archive by name."""
    content = read(path)
    if not content.startswith(_BEGINS):  # zipfile allows anything before an archive
        raise FormatError(f"{path} is not a .npz file: it begins as no archive")
    with (
        reading(f"{path} is damaged or not a .npz file of plain arrays"),
        zipfile.ZipFile(io.BytesIO(content)) as archive,
    ):
        members = archive.infolist()
        unpacked = sum(member.file_size for member in members)
        check_memory(path, unpacked, len(content), memory_limit)
        return {
            member.filename.removesuffix(".npy"): _array(archive, member)
            for member in members
        }


def read_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, whether it is by columns, and the type of an array in a file."""
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"version {version} of an array is not known")
    return _HEADERS[version](file)


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """Return the array of a member, whose header must announce the bytes there are."""
    if member.compress_type not in _COMPRESSIONS:
        raise ValueError(f"compression {member.compress_type} is not known")
    with archive.open(member) as file:
        content = io.BytesIO(file.read(member.file_size))  # and no more
    shape, _, dtype = read_header(content)
    nbytes = content.getbuffer().nbytes - content.tell()
    if not dtype.itemsize or math.prod(shape) * dtype.itemsize != nbytes:
        raise ValueError(f"{nbytes} bytes are no {dtype} of shape {shape}")
    content.seek(0)
    array: NDArray[Any] = np.lib.format.read_array(content, allow_pickle=False)
    if dtype.kind == "U":  # Python fails in odd ways where the bytes are no text
        native = np.ascontiguousarray(array, dtype.newbyteorder("="))
        if (native.view(np.uint32) > sys.maxunicode).any():
            raise ValueError("a text has characters beyond Unicode")
    return array


def load_npz(
    path: Path, dtype: str | None = None, memory_limit: int | None = None
) -> tuple[Array, Array]:
    """Return inputs [samples, n_in] and targets [samples, n_out] of a ``.npz`` file."""
    arrays = load_arrays(path, memory_limit)
    x = arrays.pop("x", None)
    t = arrays.pop("t", None)
    if x is None or arrays:
        names = sorted([*arrays, *(["t"] if t is not None else [])])
        raise FormatError(f"{path} holds the arrays {quoted(names)}, expected x and t")
    if t is None:
        t = x[:, :0] if x.ndim == 2 else x
    for name, array in (("x", x), ("t", t)):
        if array.dtype.kind not in NUMBER_KINDS or array.ndim != 2:
            raise FormatError(
                f"{path}: {name} is {array.dtype} {quoted(list(array.shape))}, "
                "expected numbers [samples, columns]"
            )
    if len(x) != len(t) or 0 in x.shape:
        raise FormatError(
            f"{path}: x is {list(x.shape)} and t is {list(t.shape)}, expected the same "
            "number of samples, at least 1, and at least 1 input"
        )
    small = np.result_type(x, t, np.float32) == np.float32
    number_type = dtype or ("float32" if small else "float64")
    return _narrowed(path, "x", x, number_type), _narrowed(path, "t", t, number_type)


def save_npz(path: Path, x: Array, t: Array) -> None:
    """Write the arrays x [samples, n_in] and t [samples, n_out]."""
    buffer = io.BytesIO()
    np.savez(buffer, x=x, t=t)
    write(path, [buffer.getvalue()])


def load_csv(
    path: Path, dtype: str | None = None, outputs: int | None = None
) -> tuple[Array, Array]:
    """Return inputs [samples, n_in] and targets [samples, n_out] of a ``.csv`` file.

    Warns of an index that pandas wrote, which is left out.
    """
    text, _ = text_of(path)
    number_type = dtype or "float32"
    first, named = _first_row(path, text)
    values = _values(path, text, len(first), named, number_type)
    targets = _targets(path, first if named else [], len(first), outputs)
    inputs = ~targets
    if index := index_of(first):
        inputs[sorted(index)] = False
        warn(f"{path}: the index is left out: {listed(first[at] for at in index)}")
    rows = values.astype(number_type)
    return np.ascontiguousarray(rows[:, inputs]), np.ascontiguousarray(
        rows[:, targets]
    )


def save_csv(
    path: Path, x: Array, t: Array, columns: Columns | None = None,
    beside: Mapping[str, Array] | None = None,
) -> None:
    """Write a table with a header."""
    width = 1 if t.ndim == 1 else t.shape[1]
    if columns is None:
        columns = Columns(tuple(Column(f"x{i}") for i in range(x.shape[1])))
    targets = columns.targets
    if len(targets) != width:
        targets = ("class",) if t.ndim == 1 else tuple(f"t{i}" for i in range(width))
    more = dict(beside or {})
    names = [*(column.name for column in columns.inputs), *targets, *more]
    added = np.column_stack(list(more.values())) if more else np.zeros((len(x), 0))
    write(path, _lines(names, x, t, columns, added))


def _lines(
    names: list[str], x: Array, t: Array, columns: Columns, beside: Array
) -> Iterator[bytes]:
    line = io.StringIO()
    writer = csv.writer(line, lineterminator="\n")

    def encoded(cells: Sequence[object]) -> bytes:
        line.seek(0)
        line.truncate()
        writer.writerow(cells)
        return line.getvalue().encode()

    if not all(name.isdecimal() for name in names):  # of a table without a header
        yield encoded(names)
    numbers = columns.inputs == tuple(Column(column.name) for column in columns.inputs)
    for inputs, targets, more in zip(x, t, beside, strict=True):
        cells = shortest(inputs) if numbers else _cells(inputs, columns)
        answers = shortest(targets) if t.ndim > 1 else (targets,)
        yield encoded([*cells, *answers, *shortest(more)])


def _cells(inputs: Array, columns: Columns) -> Iterator[str]:
    """Yield the cells of one sample's inputs, categories by their names."""
    start = 0
    for column in columns.inputs:
        part = inputs[start : start + column.width]
        start += column.width
        if column.categories:
            yield column.categories[int(part.argmax())] if part.any() else ""
        elif column.missing and part[1]:
            yield ""
        elif column.date:
            time = np.timedelta64(round(float(part[0]) * MICROSECONDS), "us")
            yield str(np.datetime_as_string(np.datetime64(0, "us") + time, "auto"))
        else:
            yield from shortest(part[:1])


def header_of(path: Path, outputs: int | None) -> Columns | None:
    """Return the columns that `load_csv` reads by the header; None: it has none."""
    text, _ = text_of(path)
    first, named = _first_row(path, text)
    if not named or len(set(first)) < len(first):
        return None
    targets = _targets(path, first, len(first), outputs)
    index = index_of(first)
    return Columns(
        tuple(Column(name) for at, (name, is_target) in enumerate(
            zip(first, targets, strict=True)
        ) if not is_target and at not in index),
        tuple(np.array(first, object)[targets].tolist()),
    )


def _narrowed(path: Path, name: str, values: Array, dtype: str) -> Array:
    """Return an array in a dtype, or raise FormatError if it exceeds its range."""
    if (infinite(values, dtype) & ~np.isinf(values)).any():
        raise FormatError(f"{path}: {name} holds numbers beyond {dtype}'s range")
    with np.errstate(invalid="ignore"):  # signalling NaN
        return np.ascontiguousarray(values, dtype)


def text_of(path: Path) -> tuple[str, int]:
    """Return the text of a file, and the number of its bytes."""
    content = read(path)
    try:
        return content.decode("utf-8-sig"), len(content)
    except UnicodeDecodeError as error:
        raise FormatError(
            f"{path} is not text: byte {error.start} is not UTF-8"
        ) from None


def _first_row(path: Path, text: str) -> tuple[list[str], bool]:
    """Return the cells of the first line, and whether they are a header."""
    line, cells = next(cells_of(path, text), (0, []))
    if not cells:
        raise FormatError(f"{path} is blank, expected numbers separated by commas")
    if counts_columns(cells, lambda: (
        cell for _, row in islice(cells_of(path, text), 1, None) for cell in row
    )):
        return [cells[0] or UNNAMED, *cells[1:]], True
    named = [not is_number(cell.encode()) for cell in cells]
    if any(named) and not all(named):
        raise FormatError(
            f"{path}, line {line}: found names and numbers, expected only one of them"
        )
    return [cells[0] or UNNAMED, *cells[1:]] if all(named) else cells, all(named)


def counts_columns(first: Sequence[str], others: Callable[[], Iterable[str]]) -> bool:
    """Return whether the first line numbers the columns from 0, as pandas writes.

    The first one may be an index, without a name. Two columns are numbered only if
    others than whole numbers follow: 0,1 may be a sample.
    """
    names = list(first[1:] if first[0] == "" else first)
    if not names or names != [str(number) for number in range(len(names))]:
        return False
    return len(first) > 2 or len(first) > len(names) or not all(
        cell.strip().lstrip("+-").isdecimal() for cell in others()
    )


def cells_of(
    path: Path, text: str, separator: str = ","
) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the cells of each line that is not blank."""
    rows = csv.reader(
        io.StringIO(text, newline=""), delimiter=separator, strict=True
    )
    try:
        for row in rows:
            cells = [cell.strip() for cell in row]
            if len(cells) > 1 or any(cells):
                yield rows.line_num, cells
    except csv.Error as error:
        raise FormatError(f"{path}, line {rows.line_num}: {error}") from None


def _values(
    path: Path, text: str, width: int, named: bool, dtype: str
) -> NDArray[np.float64]:
    """Return the numbers [samples, width], without the header."""
    if len(list(islice(cells_of(path, text), int(named) + 1))) == named:
        raise FormatError(
            f"{path} holds only a header, expected at least one sample"
        )
    # The parser below reads what NumPy does not, and finds the error, if there is one.
    with suppress(ValueError):
        values = np.loadtxt(
            io.StringIO(text, newline=""), delimiter=",", comments=None,
            skiprows=int(named), ndmin=2, quotechar='"',
        )
        if values.shape[1] == width and not infinite(values, dtype).any():
            return values
    numbers = _numbers(path, text, width, named, dtype)
    return np.concatenate([*numbers]).reshape(-1, width)


def _numbers(
    path: Path, text: str, width: int, named: bool, dtype: str
) -> Iterator[NDArray[np.float64]]:
    """Yield the numbers of blocks of lines, or raise the error of the first bad one."""
    lines = islice(cells_of(path, text), int(named), None)
    while block := list(islice(lines, max(1, BLOCK // width))):
        for line, cells in block:
            if len(cells) != width:
                raise FormatError(
                    f"{path}, line {line}: found {len(cells)} cells, expected {width} "
                    "as in the first line"
                )
        tokens = [cell.encode() for _, cells in block for cell in cells]
        numbers = to_numbers(tokens, dtype)
        if numbers is None:
            at = next(
                i for i, token in enumerate(tokens)
                if (number := to_number(token)) is None or not holds(dtype, number)
            )
            raise FormatError(
                f"{path}, line {block[at // width][0]}: found "
                f"{quoted(tokens[at].decode())}, expected a number within {dtype}"
                + OR_TEXT * bool(tokens[at] and not is_number(tokens[at]))
            )
        yield numbers


def _targets(
    path: Path, names: Sequence[str], n: int, outputs: int | None
) -> NDArray[np.bool_]:
    """Return for each of the n columns whether it is a target."""
    if outputs is not None:
        if not 0 <= outputs < n:
            raise FormatError(
                f"{path} has {n} columns, expected more than its {outputs} outputs"
            )
        return np.arange(n) >= n - outputs
    targets = np.array([bool(_TARGET.fullmatch(name)) for name in names])
    if not targets.any():
        raise FormatError(
            f"{path} names no targets (t0, t1, …): {NAME_TARGETS}"
        )
    if targets.all():
        raise FormatError(f"{path} names only targets, expected at least one input")
    return targets
