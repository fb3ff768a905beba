"""Tables whose columns have names: which of them are read, and the inputs they make.

A column is a number for each sample, or a category, which becomes one input for each
category. Targets are numbers, or the labels of classes. `data_frame` reads samples in
memory, `delimited` text files, and `arrow` files of pyarrow by parts.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clnet.checks import all_finite, check_name, is_many, is_whole
from clnet.errors import (
    ClnetError,
    FormatError,
    InputError,
    counted,
    nearest,
    quoted,
)
from clnet.formats.numbers import is_number
from clnet.nn.columns import Column, Columns

Array = NDArray[Any]

ColumnNames = str | int | Sequence[str | int]
"""Names of columns, or their numbers: from 1, or from -1 for the last."""

MISSING = ("mean", "refuse")
"""Missing values: numbers become the mean, with an indicator; or they are an error."""
UNKNOWN = ("zeros", "refuse")
"""Categories that a network does not know."""
NUMBER, TEXT, DATE = "number", "text", "date"
"""Types of a column's values; booleans are text."""
OR_TEXT = ", or text in a column that is named as the target or as a category"
MICROSECONDS = 86_400 * 1_000_000  # of a day
MANY = 20  # different texts that are no chance
SHOWN = 8  # columns that a note names


def unnamed(at: int) -> str:
    """Return pandas' name of a column that has none, by its position from 0."""
    return f"Unnamed: {at}"


UNNAMED = unnamed(0)  # of an index
_INDEX = re.compile(rf"{UNNAMED}|__index_level_\d+__")
_WHOLE = re.compile(r"0|-?[1-9]\d{0,15}")
_FALSE, _TRUE = "False", "True"


@dataclass(frozen=True)
class Options:
    """The arguments of `clnet.load_table` on columns and their values."""

    target: ColumnNames | None = None
    categories: ColumnNames = ()
    ignore: ColumnNames = ()
    index: ColumnNames | None = None
    dates: ColumnNames = ()
    missing: str = MISSING[0]
    unknown: str = UNKNOWN[0]

    def __post_init__(self) -> None:
        check_name("rule for missing values", self.missing, MISSING)
        check_name("rule for unknown categories", self.unknown, UNKNOWN)

    @property
    def named(self) -> list[object]:
        """The columns that are named, or numbered."""
        asked = (self.target, self.categories, self.ignore, self.index, self.dates)
        return [
            name for names in asked if names is not None
            for name in (names if is_many(names) else [names])
        ]


class Texts(NamedTuple):
    """A column of text."""

    different: list[str]  # The different ones as they occur; a missing one is empty
    codes: NDArray[np.intp]  # Each sample's position among them
    common: list[str]  # As `different`, but numbers and booleans as in all tables

    @property
    def names(self) -> list[str]:
        """The texts: in their common form if all are numbers, or booleans."""
        known = {text for text in self.common if text}
        numbers = all(map(is_decimal, known))
        return self.common if numbers or known <= {_FALSE, _TRUE} else self.different


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
    notes : tuple of str
        What was found in the table without being asked for: its separator, an index,
        columns of text, missing values, unknown categories.
    """

    x: Array
    t: Array
    columns: Columns
    notes: tuple[str, ...] = ()


class NamedTable(ABC):
    """A table whose columns have names, or some of its rows."""

    names: list[str]
    index: set[int]  # Columns that number the rows
    notes: list[str]
    what: str  # Names the table in errors
    decimal: str | None = None
    error_type: type[ClnetError] = FormatError

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def value_type(self, column: int) -> str:
        """Return the type of a column's values: `NUMBER`, `TEXT` or `DATE`."""

    @abstractmethod
    def numbers(self, column: int, dates: bool = False) -> NDArray[np.float64]:
        """Return numbers, or dates in days since 1970 [samples]; NaN: missing."""

    @abstractmethod
    def texts(self, column: int) -> Texts:
        """Return texts."""

    def place(self, row: int) -> str:
        """Return the text that names a row from 0."""
        return f"row {row}"

    def error(self, sentence: str, row: int = -1, column: int = -1) -> ClnetError:
        """Return an error that names a row from 0, and a column."""
        where = "" if row < 0 else f", {self.place(row)}"
        where += "" if column < 0 else f", column {printed(self.names[column])}"
        return self.error_type(f"{self.what}{where}{':' * bool(where)} {sentence}")

    def check_types(self, choice: Choice) -> None:  # noqa: B027  others allow any
        """Raise an error if a column's type is not of what is read."""

    def check_size(self, size: int) -> None:  # noqa: B027  others allow any
        """Raise FormatError if so many bytes are too many for the table."""


def index_of(names: Sequence[str]) -> set[int]:
    """Return the columns that are an index by the names that pandas gives them."""
    return {
        at for at, name in enumerate(names)
        if (match := _INDEX.fullmatch(name)) and (at == 0 or match[0][0] == "_")
    }


@dataclass(frozen=True)
class Choice:
    """Columns of a table, by their positions: inputs, targets, and what they hold."""

    inputs: list[int]  # In the order of a network's inputs
    targets: list[int]
    coded: set[int]  # Those of them that hold categories, and dates
    dated: set[int]
    labels: list[int]  # The target of class labels; empty: all hold numbers
    known: bool  # Whether all targets must be known: they were asked for
    by_default: list[int]  # Inputs that hold categories without being named so
    notes: list[str]  # As of `Table`


def choose(
    source: NamedTable, options: Options, columns: Columns | None, *, learn: bool = True
) -> Choice:
    """Return the columns that are read; text is of numbers alone unless `learn`."""
    index = _Index(source)
    coded, dated = set(index.of(options.categories)), set(index.of(options.dates))
    targets = [] if options.target is None else index.of(options.target)
    notes, words = [], []
    known = columns is None or bool(targets)
    if columns is None:
        left = source.index if options.index is None else (
            index.of(options.index, of_index=True)
        )
        skipped = {*left} - {*targets, *coded, *dated} if learn else set()
        if skipped and options.index is None:
            names = listed(source.names[at] for at in sorted(skipped))
            notes.append(f"the index is left out: {names}")
        skipped.update(targets, index.of(options.ignore))
        inputs = [at for at in range(len(source.names)) if at not in skipped]
        if not inputs:
            raise source.error("names only targets, expected at least one input")
        for at in (*inputs, *targets):  # a network keeps their names
            index.of(source.names[at])
        for at in inputs if learn else ():
            if at not in coded | dated and source.value_type(at) != NUMBER:
                if source.value_type(at) == DATE:
                    raise source.error(
                        "holds dates: name it by dates, or leave it out by ignore",
                        column=at,
                    )
                words.append(at)
    else:
        targets = targets or index.of(
            [name for name in columns.targets if name in index.first]
        )
        inputs = index.of([column.name for column in columns.inputs])
        pairs = [*zip(inputs, columns.inputs, strict=True)]
        coded.update(at for at, column in pairs if column.categories)
        dated.update(at for at, column in pairs if column.date)
    labels = [
        at for at in targets
        if at in coded or (at not in dated and source.value_type(at) != NUMBER)
    ]
    if labels and len(targets) > 1:
        if known:
            raise source.error(
                f"has the targets {quoted([source.names[at] for at in targets])}, "
                "expected one of categories, or numbers"
            )
        targets, labels = [], []
    return Choice(
        inputs, targets, coded.union(words), dated, labels, known, words, notes
    )


def read_table(
    source: NamedTable, options: Options, columns: Columns | None, dtype: str,
    *, arrays: bool = False,
) -> Table:
    """Return the samples of a source; see `clnet.load_table`.

    With `arrays` the rules of arrays hold: without columns all are of numbers, and a
    number without a mean stays NaN.
    """
    choice = choose(source, options, columns, learn=not arrays)
    source.check_types(choice)
    decimal = None if arrays else source.decimal
    notes = [*source.notes, *choice.notes]
    inputs = choice.inputs
    if columns is None:
        if arrays:
            chosen_columns = [Column(source.names[at]) for at in inputs]
        else:
            chosen_columns, inputs, learnt_notes = learnt(
                source, [source], choice, options.missing, means=True)
            notes += learnt_notes
        names = tuple(source.names[at] for at in choice.targets)
        columns = Columns(tuple(chosen_columns), names, decimal)
    source.check_size(len(source) * columns.n_in * np.dtype(dtype).itemsize)
    x = np.zeros((len(source), columns.n_in), dtype)
    counts = write_inputs(source, inputs, columns, options, x, finite=not arrays)
    notes += [f"{what}: {listed(counts[what])}" for what in sorted(counts)]
    return Table(x, _targets(source, choice, dtype), columns, tuple(notes))


def learnt(
    header: NamedTable, batches: Iterable[NamedTable], choice: Choice, missing: str,
    *, means: bool,
) -> tuple[list[Column], list[int], list[str]]:
    """Return the columns of a training, the positions of those that have values, notes.

    With `means` numbers are read too, not categories alone.
    """
    texts: dict[int, dict[str, str]] = {  # of each column, and their common forms
        at: {} for at in choice.inputs if at in choice.coded
    }
    sums = {  # of the values that are there, and their number
        at: np.zeros(2) for at in choice.inputs if means and at not in texts
    }
    samples = 0
    for rows in batches:
        samples += len(rows)
        for at in choice.inputs:
            if at in texts:
                part = rows.texts(at)
                texts[at].update(zip(part.different, part.common, strict=True))
                if at in choice.by_default:
                    _check_words(rows, at, part)
            elif at in sums:
                values = rows.numbers(at, at in choice.dated).astype(np.float64)
                known = values[~np.isnan(values)]
                with np.errstate(over="ignore", invalid="ignore"):  # refused later
                    sums[at] += known.sum(), known.size
    columns, inputs = [], []
    empty, words, lacking = [], Counter[str](), Counter[str]()
    for at in choice.inputs:
        name = header.names[at]
        if at in texts:
            different = Texts(
                [*texts[at]], np.zeros(0, np.intp), [*texts[at].values()])
            column = Column(name, tuple(sorted(set(different.names))))
            if at in choice.by_default:
                words[name] = len(column.categories)
        else:
            total, known_values = sums.get(at, (0.0, samples))
            if not known_values and missing == MISSING[0]:
                empty.append(name)
                continue
            lacking[name] += samples - int(known_values)
            mean = total / max(known_values, 1)
            column = Column(
                name, mean=(mean if np.isfinite(mean) else 0.0) if means else None,
                missing=bool(known_values < samples), date=at in choice.dated,
            )
        columns.append(column)
        inputs.append(at)
    if not columns:
        raise header.error("has no value in the columns of inputs")
    notes = [f"{what}: {names}" for what, names in (
        ("text as categories", listed(words)), ("no value, left out", listed(empty)),
        ("text that differs in most samples, see ignore and dates", listed(
            name for name, count in words.items() if 2 * count > samples > MANY
        )),
        ("missing, the mean and an indicator", listed(+lacking)),
    ) if names]
    return columns, inputs, notes


def _check_words(source: NamedTable, at: int, texts: Texts) -> None:
    """Raise the error of a text among numbers that makes its column one of text."""
    odd = [number for number, text in enumerate(texts.different)
           if text and not is_decimal(text)]
    numbers = sum(map(is_decimal, texts.different))
    if odd and numbers > max(len(odd), MANY):
        row = int((texts.codes == odd[0]).argmax())
        raise source.error(
            f"found {quoted(texts.different[odd[0]])}, expected a number as most "
            "others of the column, or its name among the categories", row, at,
        )


def write_inputs(
    rows: NamedTable, inputs: Sequence[int], columns: Columns, options: Options,
    x: Array, *, finite: bool = True,
) -> dict[str, Counter[str]]:
    """Write inputs to x [samples, n_in], which is zero.

    Return how many samples of each column have a category or lack a value as no sample
    of the training did.
    """
    counts: dict[str, Counter[str]] = {}
    start = 0
    for at, column in zip(inputs, columns.inputs, strict=True):
        part = x[:, start : start + column.width]
        start += column.width
        if column.categories:
            texts = rows.texts(at)
            if options.missing != MISSING[0]:
                check_known(rows, at, texts)
            number, what = _write_one_hot(rows, at, column, texts, part, options), (
                "unknown categories, zeros"
            )
        else:
            values = rows.numbers(at, column.date)
            number, what = _write_numbers(
                rows, at, column, values, part, options, finite
            ), "missing, the mean of the training"
        if number:
            counts.setdefault(what, Counter())[column.name] = number
    return counts


def _write_numbers(
    rows: NamedTable, at: int, column: Column, values: NDArray[np.float64], x: Array,
    options: Options, finite: bool,
) -> int:
    """Write the inputs of a column of numbers; return how many lack unexpectedly."""
    missing = np.isnan(values)
    lacking = bool(missing.any())
    refused = options.missing != MISSING[0]
    if lacking and (refused or (finite and column.mean is None)):
        raise rows.error(
            "the value is missing, expected a number", int(missing.argmax()), at
        )
    if lacking and column.mean is not None:
        values = np.where(missing, np.float64(column.mean), values)
    with np.errstate(over="ignore", invalid="ignore"):
        x[:, 0] = values
    if finite and not all_finite(x[:, 0]):
        row = int((~np.isfinite(x[:, 0])).argmax())
        raise rows.error(
            f"found {values[row]}, expected a finite number within {x.dtype}", row,
            at,
        )
    if column.missing:
        x[:, 1] = missing
        return 0
    return int(missing.sum()) if column.mean is not None else 0


def check_known(rows: NamedTable, at: int, texts: Texts) -> None:
    """Raise the error of the first text that is missing."""
    if "" in texts.names:
        row = int((texts.codes == texts.names.index("")).argmax())
        raise rows.error("the value is missing, expected text", row, at)


def _write_one_hot(
    rows: NamedTable, at: int, column: Column, texts: Texts, x: Array,
    options: Options,
) -> int:
    """Write the inputs of a column of categories; return how many are unknown."""
    index = {category: number for number, category in enumerate(column.categories)}
    of_numbers = all(is_decimal(text) for text in column.categories if text)
    numbers = np.array([
        index.get(text, index.get(other, -1) if other or of_numbers else -1)
        for text, other in zip(texts.different, texts.common, strict=True)
    ], np.intp)
    positions = numbers[texts.codes]
    known = positions >= 0
    if known.all():
        x[np.arange(len(positions)), positions] = 1
        return 0
    if options.unknown != UNKNOWN[0]:
        row = int((~known).argmax())
        raise rows.error(
            f"found {quoted(texts.different[texts.codes[row]])}, expected one of the "
            f"categories {quoted(list(column.categories))}", row, at,
        )
    x[known.nonzero()[0], positions[known]] = 1
    return int(len(known) - known.sum())


def _targets(source: NamedTable, choice: Choice, dtype: str) -> Array:
    """Return targets: numbers [samples, targets], or labels [samples]."""
    if not choice.labels:
        return target_numbers(source, choice, np.dtype(dtype))
    texts = source.texts(choice.labels[0])
    if choice.known:
        check_known(source, choice.labels[0], texts)
    return labels_of(texts)


def target_numbers(rows: NamedTable, choice: Choice, dtype: np.dtype[Any]) -> Array:
    """Return targets of numbers [samples, targets]."""
    t = np.empty((len(rows), len(choice.targets)), dtype)
    for target, at in enumerate(choice.targets):
        values = rows.numbers(at, at in choice.dated)
        with np.errstate(over="ignore", invalid="ignore"):  # refused here
            t[:, target] = values
        if choice.known and not all_finite(t[:, target]):
            row = int((~np.isfinite(t[:, target])).argmax())
            problem = "the value is missing" if np.isnan(values[row]) else (
                f"found {values[row]}"
            )
            raise rows.error(
                f"{problem}, expected a finite number within {dtype}", row, at
            )
    return t


def labels_of(texts: Texts) -> Array:
    """Return the labels of a column: whole numbers or booleans if all are, or text.

    A missing one is None, among objects.
    """
    names = texts.names
    known = [text for text in names if text]
    labels: list[Any] = list(names)
    if set(known) <= {_FALSE, _TRUE}:
        labels = [text == _TRUE for text in names]
    elif all(_WHOLE.fullmatch(text) for text in known):
        labels = [int(text or 0) for text in names]
    if len(known) == len(labels) and not isinstance(labels[0], str):
        return np.array(labels)[texts.codes]
    objects = np.empty(len(labels), object)
    objects[:] = labels
    objects[[not text for text in names]] = None
    return objects[texts.codes]


def texts_of(values: Iterable[Any]) -> Texts:
    """Return values as texts; None is missing."""
    order: dict[str, int] = {}
    codes = [
        order.setdefault("" if value is None else as_text(value), len(order))
        for value in values
    ]
    different = list(order)
    return Texts(different, np.array(codes, np.intp), [*map(common, different)])


def as_text(value: Any) -> str:
    """Return the text of a value; whole numbers have no fraction, whatever type."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def common(text: str) -> str:
    """Return the text that a number or a boolean has in all tables; others as it is."""
    if (word := text.capitalize()) in (_FALSE, _TRUE):
        return word
    return as_text(float(text)) if is_decimal(text) and not is_code(text) else text


def is_code(text: str) -> bool:
    """Return whether a number begins with a zero that numbers do not have, as 007."""
    return re.match("[-+]?0[0-9]", text) is not None


def is_decimal(text: str) -> bool:
    """Return whether a text is a finite decimal number."""
    return text[-1:] in "0123456789." and "x" not in text.lower() and (
        is_number(text.encode()) and np.isfinite(float(text))
    )


def days_of(
    samples: NamedTable, at: int, values: Sequence[Any]
) -> NDArray[np.float64]:
    """Return dates in days since 1970, NaN for None; others raise an error."""
    objects = np.empty(len(values), object)
    objects[:] = values
    try:
        times = objects.astype("datetime64[us]")
    except (TypeError, ValueError):
        row = next(row for row, value in enumerate(values) if not _is_date(value))
        raise samples.error(
            f"found {quoted(values[row])}, expected a date as 2020-12-31", row, at
        ) from None
    return np.where(
        np.isnat(times), np.nan, times.astype(np.int64) / MICROSECONDS
    )


def _is_date(value: Any) -> bool:
    with suppress(TypeError, ValueError):
        np.array([value], object).astype("datetime64[us]")
        return True
    return False


def listed(names: Iterable[str] | Counter[str]) -> str:
    """Return the names of columns for a note, each with its number if there is one."""
    shown = [
        f"{printed(name)} ({names[name]})" if isinstance(names, Counter) else
        printed(name) for name in names
    ]
    more = len(shown) - SHOWN
    return ", ".join(shown[:SHOWN]) + (f" and {counted(more, 'other')}" if more > 0
                                       else "")


class _Index:
    """The columns of a source by their names and numbers."""

    def __init__(self, source: NamedTable) -> None:
        self.source = source
        self.first: dict[str, int] = {}
        self.twice: set[str] = set()
        for at, name in enumerate(source.names):
            if self.first.setdefault(name, at) != at:
                self.twice.add(name)

    def of(self, asked: ColumnNames, *, of_index: bool = False) -> list[int]:
        """Return the different columns of names or numbers.

        An error lists no index, unless one is asked `of_index`.
        """
        many = [asked] if isinstance(asked, str) or is_whole(asked) else asked
        if not is_many(many):
            raise InputError(f"columns must be names or numbers, not {quoted(asked)}")
        return list(dict.fromkeys(self._at(name, of_index) for name in many))

    def _at(self, name: object, of_index: bool) -> int:
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
        columns = [
            name for at, name in enumerate(names)
            if of_index or at not in self.source.index
        ]
        hint = f": did you mean {near!r}?" if near else f": it has {quoted(columns)}"
        raise self.source.error(f"has no column {quoted(name)}{hint}")


def printed(name: str) -> str:
    """Return a column's name for an error: short, and quoted where it must be."""
    return name if re.fullmatch(r"[\w.-]{1,40}", name) else quoted(name)
