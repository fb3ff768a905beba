"""Tables whose columns have names, and ``.csv`` files as such; see `data_frame`.

A column is a number for each sample, or a category, which becomes one input for each
category. Targets are numbers, or the labels of classes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from clnet.checks import all_finite, is_many, is_whole
from clnet.errors import ClnetError, FormatError, InputError, nearest, quoted
from clnet.formats.files import check_memory
from clnet.formats.numbers import holds, is_number, to_number, to_numbers
from clnet.formats.table import BLOCK, OR_TEXT, cells_of, text_of
from clnet.nn.columns import Column, Columns

Array = NDArray[Any]

ColumnNames = str | int | Sequence[str | int]
"""Names of columns, or their numbers: from 1, or from -1 for the last."""

_WHOLE = re.compile(r"0|-?[1-9]\d{0,15}")


class Texts(NamedTuple):
    """A column of text: the different ones as they occur, and each sample's number.

    A missing one is empty.
    """

    found: list[str]
    codes: NDArray[np.intp]


@dataclass(frozen=True)
class Table:
    """The samples of a table.

    Attributes
    ----------
    x : ndarray, shape [samples, n_in]
        Inputs; each category of a column is an input of its own.
    t : ndarray, shape [samples, targets], or [samples]
        Targets: numbers, or the labels of classes [samples]; NaN or None where they are
        missing.
    columns : Columns
        The columns that these are, for `Network.columns`.
    """

    x: Array
    t: Array
    columns: Columns


class Header(Protocol):
    """A table whose columns are chosen by name or number."""

    names: list[str]

    def numeric(self, column: int) -> bool:
        """Return whether a column's first value is a number."""
        ...

    def error(self, sentence: str, row: int = -1, column: int = -1) -> ClnetError:
        """Return an error that names a sample from 0, and a column."""
        ...


class Source(Header, Protocol):
    """A table that columns are read from."""

    def read(
        self, numbers: Sequence[int], texts: Sequence[int]
    ) -> tuple[NDArray[np.float64], list[Texts]]:
        """Return columns of numbers [samples, columns], and columns of text.

        A missing number is NaN.
        """
        ...

    def check_size(self, size: int) -> None:
        """Raise FormatError if so many bytes are too many for the table."""
        ...


def names_of(
    asked: Iterable[ColumnNames], columns: Columns | None
) -> list[str]:
    """Return the names that only a header holds: those that are no numbers."""
    found = [] if columns is None else [column.name for column in columns.inputs]
    for one in asked:
        many = one if is_many(one) else [one]
        found += [name for name in many if isinstance(name, str)]
    return [name for name in found if not is_number(name.encode())]


class Choice(NamedTuple):
    """Columns of a table, by their positions: inputs, targets, and what they hold.

    Attributes
    ----------
    inputs, targets : list of int
        In the order of a network's inputs and outputs.
    coded : set of int
        Those of them that hold categories.
    labels : list of int
        The target that holds the labels of classes; empty: all hold numbers.
    known : bool
        Whether all targets must be known: they were asked for.
    """

    inputs: list[int]
    targets: list[int]
    coded: set[int]
    labels: list[int]
    known: bool

    def columns(
        self, names: Sequence[str], found: Mapping[int, Iterable[str]]
    ) -> Columns:
        """Return the columns of a network, with the categories of inputs."""
        return Columns(
            tuple(
                Column(names[at], tuple(sorted(found[at])) if at in self.coded else ())
                for at in self.inputs
            ),
            tuple(names[at] for at in self.targets),
        )


def choose(
    source: Header,
    target: ColumnNames,
    categories: ColumnNames,
    ignore: ColumnNames,
    columns: Columns | None,
) -> Choice:
    """Return the columns that arguments of `clnet.load_table` name."""
    index = _Index(source)
    coded = set(index.of(categories))
    if columns is None:
        targets = index.of(target)
        left = {*targets, *index.of(ignore)}
        inputs = [at for at in range(len(source.names)) if at not in left]
        if not inputs:
            raise source.error("names only targets, expected at least one input")
        for at in (*inputs, *targets):  # a network keeps their names
            index.of(source.names[at])
    else:
        targets = index.of(target) or index.of(
            [name for name in columns.targets if name in index.first]
        )
        inputs = index.of([column.name for column in columns.inputs])
        coded |= {
            at for at, column in zip(inputs, columns.inputs, strict=True)
            if column.categories
        }
    labels = [at for at in targets if at in coded or not source.numeric(at)]
    if labels and len(targets) > 1:
        raise source.error(
            f"has the targets {quoted([source.names[at] for at in targets])}, expected "
            "one of categories, or numbers"
        )
    known = columns is None or bool(index.of(target))
    return Choice(inputs, targets, coded, labels, known)


def read_table(
    source: Source,
    target: ColumnNames,
    categories: ColumnNames,
    ignore: ColumnNames,
    columns: Columns | None,
    dtype: str,
    *,
    finite: bool = True,
) -> Table:
    """Return the samples of a source; see `clnet.load_table`.

    With `finite`, a number that is not is an error.
    """
    choice = choose(source, target, categories, ignore, columns)
    inputs, targets, coded, labels, known = choice
    texts = [at for at in inputs if at in coded] + labels
    of_numbers = dict.fromkeys((*inputs, *targets))
    for at in texts:
        of_numbers.pop(at, None)
    numbers = list(of_numbers)
    values, found = source.read(numbers, texts)
    place = {at: column for column, at in enumerate(numbers)}
    of_text = dict(zip(texts, found, strict=True))
    needed = {*(inputs if finite else ()), *(targets if known else ())}
    _check_finite(source, values, {at: place[at] for at in numbers if at in needed})
    for at in texts:
        if at in inputs or known:
            _check_texts(source, at, of_text[at])
    if columns is None:
        columns = choice.columns(
            source.names, {at: texts.found for at, texts in of_text.items()}
        )
    source.check_size(len(values) * columns.n_in * np.dtype(dtype).itemsize)
    x = np.zeros((len(values), columns.n_in), dtype)
    start = 0
    for at, column in zip(inputs, columns.inputs, strict=True):
        if column.categories:
            one_hot(source, at, column, of_text[at], x[:, start:])
        else:
            x[:, start] = values[:, place[at]]
        start += column.width
    if labels:
        return Table(x, _labels(of_text[labels[0]]), columns)
    t = values[:, [place[at] for at in targets]].astype(dtype)
    return Table(x, t, columns)


def _check_finite(
    source: Source, values: NDArray[np.float64], columns: Mapping[int, int]
) -> None:
    """Raise the error of the first number of some columns that is not finite."""
    chosen = values if len(columns) == values.shape[1] else (
        values[:, list(columns.values())]
    )
    if all_finite(chosen):
        return
    row, wrong = divmod(int(np.isfinite(chosen).argmin()), len(columns))
    number = chosen[row, wrong]
    raise source.error(
        "the value is missing, expected a number" if np.isnan(number) else
        f"found {number}, expected a finite number", row, list(columns)[wrong],
    )


def _check_texts(source: Source, at: int, texts: Texts) -> None:
    """Raise the error of the first text that is missing."""
    if "" in texts.found:
        row = int((texts.codes == texts.found.index("")).argmax())
        raise source.error("the value is missing, expected text", row, at)


class _Index:
    """The columns of a source by their names and numbers."""

    def __init__(self, source: Header) -> None:
        self.source = source
        self.first: dict[str, int] = {}
        self.twice: set[str] = set()
        for at, name in enumerate(source.names):
            if self.first.setdefault(name, at) != at:
                self.twice.add(name)

    def of(self, asked: ColumnNames) -> list[int]:
        """Return the different columns of names or numbers."""
        many = [asked] if isinstance(asked, str) or is_whole(asked) else asked
        if not is_many(many):
            raise InputError(f"columns must be names or numbers, not {quoted(asked)}")
        return list(dict.fromkeys(map(self._at, many)))

    def _at(self, name: object) -> int:
        if isinstance(name, str) and name in self.first:
            if name in self.twice:
                raise self.source.error(
                    f"names two columns {quoted(name)}, expected one"
                )
            return self.first[name]
        number = name
        if isinstance(name, str) and re.fullmatch(r"-?[0-9]{1,9}", name):
            number = int(name)
        names = self.source.names
        if is_whole(number) and 1 <= abs(number) <= len(names):
            return int(number) - 1 if number > 0 else len(names) + int(number)
        near = nearest(name, names) if isinstance(name, str) else ""
        hint = f": did you mean {near!r}?" if near else (
            f": it has {quoted(names)}"
        )
        raise self.source.error(f"has no column {quoted(name)}{hint}")


def one_hot(
    source: Header, at: int, column: Column, texts: Texts, x: Array, first: int = 0
) -> None:
    """Set the inputs x[:, :width] of a column of categories, which are zero.

    The texts are of the samples from `first` on.
    """
    index = {category: number for number, category in enumerate(column.categories)}
    numbers = np.array([index.get(text, -1) for text in texts.found], np.intp)
    chosen = numbers[texts.codes]
    if (chosen < 0).any():
        row = int((chosen < 0).argmax())
        text = texts.found[texts.codes[row]]
        raise source.error(
            f"found {quoted(text)}, expected one of the categories "
            f"{quoted(list(column.categories))}", first + row, at,
        )
    x[np.arange(len(chosen)), chosen] = 1


def _labels(texts: Texts) -> Array:
    """Return the labels of a column: whole numbers or booleans if all are, or text.

    A missing one is None, among objects.
    """
    known = [text for text in texts.found if text]
    labels: list[Any] = list(texts.found)
    if set(known) <= {"False", "True"}:
        labels = [text == "True" for text in texts.found]
    elif all(_WHOLE.fullmatch(text) for text in known):
        labels = [int(text or 0) for text in texts.found]
    if len(known) == len(labels) and not isinstance(labels[0], str):
        return np.array(labels)[texts.codes]
    objects = np.empty(len(labels), object)
    objects[:] = labels
    objects[[not text for text in texts.found]] = None
    return objects[texts.codes]


# --- .csv ----------------------------------------------------------------------------


class CsvSource:
    """A ``.csv`` file.

    Its first line is a header if it holds one of the names that are asked for, or if
    its cells differ and none is a number. Columns of a table without a header are named
    by their numbers, from 1.

    Parameters
    ----------
    path : Path
        The file.
    asked : sequence of str
        Names that are asked for.
    dtype : {"float32", "float64"}
        Type whose range the numbers must not exceed.
    memory_limit : int or None
        As for `check_memory`.
    """

    def __init__(
        self, path: Path, asked: Sequence[str], dtype: str, memory_limit: int | None
    ) -> None:
        self.path: Path = path
        self.dtype: str = dtype
        self.memory_limit: int | None = memory_limit
        self.text: str
        self.size: int
        self.text, self.size = text_of(path)
        head = list(islice(cells_of(path, self.text), 2))
        if not head:
            raise FormatError(
                f"{path} is blank, expected numbers or text separated by commas"
            )
        first = head[0][1]
        different = len(set(first)) == len(first)
        self.named: bool = any(name in first for name in asked) or (
            different and not any(is_number(cell.encode()) for cell in first)
        )
        if self.named and len(head) == 1:
            raise FormatError(
                f"{path} holds only a header, expected at least one sample"
            )
        self.names: list[str] = first if self.named else [
            str(number + 1) for number in range(len(first))
        ]
        self.first: tuple[int, list[str]] = head[int(self.named)]
        self.lines: NDArray[np.int64] = np.zeros(0, np.int64)

    def numeric(self, column: int) -> bool:
        """Return whether a column's first value is a number."""
        cells = self.first[1]
        return column >= len(cells) or is_number(cells[column].encode())

    def read(
        self, numbers: Sequence[int], texts: Sequence[int]
    ) -> tuple[NDArray[np.float64], list[Texts]]:
        """Return columns of numbers [samples, columns], and columns of text.

        A missing number is NaN.
        """
        order: list[dict[str, int]] = [{} for _ in texts]
        values: list[NDArray[np.float64]] = []
        codes: list[list[NDArray[np.intp]]] = [[] for _ in texts]
        lines: list[NDArray[np.int64]] = []
        for block in self._blocks():
            lines.append(np.array([line for line, _ in block], np.int64))
            tokens = [
                cells[at].encode() or b"nan" for _, cells in block for at in numbers
            ]
            found = to_numbers(tokens, self.dtype) if tokens else np.zeros(0)
            if found is None:
                raise self._bad_number(block, tokens, numbers)
            values.append(found.reshape(len(block), len(numbers)))
            for at, index, done in zip(texts, order, codes, strict=True):
                column = [cells[at] for _, cells in block]
                done.append(np.array(
                    [index.setdefault(text, len(index)) for text in column], np.intp
                ))
        self.lines = np.concatenate(lines)
        return np.concatenate(values), [
            Texts(list(index), np.concatenate(done))
            for index, done in zip(order, codes, strict=True)
        ]

    def error(self, sentence: str, row: int = -1, column: int = -1) -> ClnetError:
        """Return an error that names a sample from 0, and a column."""
        if row < 0:
            return FormatError(f"{self.path} {sentence}")
        return self._at(int(self.lines[row]), column, sentence)

    def check_size(self, size: int) -> None:
        """Raise FormatError if so many bytes are too many for the table."""
        check_memory(self.path, size, self.size, self.memory_limit)

    def _blocks(self) -> Iterator[list[tuple[int, list[str]]]]:
        """Yield lines with their numbers, each of as many cells as the first."""
        width = len(self.names)
        lines = islice(cells_of(self.path, self.text), int(self.named), None)
        while block := list(islice(lines, max(1, BLOCK // width))):
            for line, cells in block:
                if len(cells) != width:
                    raise FormatError(
                        f"{self.path}, line {line}: found {len(cells)} cells, expected "
                        f"{width} as in the first line"
                    )
            yield block

    def _bad_number(
        self, block: list[tuple[int, list[str]]], tokens: list[bytes],
        columns: Sequence[int],
    ) -> FormatError:
        """Return the error of the first token that is no number within the dtype."""
        at = next(
            i for i, token in enumerate(tokens)
            if (number := to_number(token)) is None or not holds(self.dtype, number)
        )
        row, column = divmod(at, len(columns))
        text = tokens[at].decode()
        hint = OR_TEXT * (not is_number(tokens[at]))
        return self._at(
            block[row][0], columns[column],
            f"found {quoted(text)}, expected a number within {self.dtype}{hint}",
        )

    def _at(self, line: int, column: int, sentence: str) -> FormatError:
        return FormatError(
            f"{self.path}, line {line}, column {printed(self.names[column])}: "
            f"{sentence}"
        )


def printed(name: str) -> str:
    """Return a column's name for an error: short, and quoted where it must be."""
    return name if re.fullmatch(r"[\w.-]{1,40}", name) else quoted(name)
