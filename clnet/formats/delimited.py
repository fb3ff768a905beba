"""Text files of named columns, ``.csv`` and ``.tsv``, also gzipped: pyarrow reads them.

The separator, the header, the decimal sign and the encoding are found where they are
not given. A column is of numbers if all its values are that are not missing.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.checks import installed
from clnet.errors import FormatError, InputError, quoted
from clnet.formats.files import check_memory, read, unzipped
from clnet.formats.named_table import (
    NUMBER,
    OR_TEXT,
    TEXT,
    NamedTable,
    Texts,
    as_text,
    common,
    days_of,
    index_of,
    is_code,
    is_decimal,
    listed,
    unnamed,
)
from clnet.formats.numbers import is_number
from clnet.formats.table import cells_of, counts_columns

if TYPE_CHECKING:
    from clnet.nn.columns import Columns

TEXT_SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
SEPARATORS = "\t;|,"
"""Separators that are found, the first one that all lines have alike."""
DECIMALS = ".,"
LOST = frozenset((
    "", "?", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan",
    "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan",
    "null",
))
"""Missing values among numbers: those of pandas, and the question mark."""
CELLS = 1 << 20  # cells that are made numbers in one call
SNIFFED = 1 << 16  # characters that are looked at for the separator
BLOCK = 1 << 22  # bytes of a block of pyarrow, in which a row must fit
_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"),
         (codecs.BOM_UTF32_BE, "utf-32"), (codecs.BOM_UTF16_LE, "utf-16"),
         (codecs.BOM_UTF16_BE, "utf-16"))
_SPACES = " \u00a0\u202f'’"
"""Thousands separators beside the comma and the point."""
_EXPONENT = "(?:[eE][-+]?[0-9]+)?"
_FORMS = {
    sign: "^[-+]?(?:(?:[0-9]+|[1-9][0-9]{0,2}(?:[" + re.escape(other) + _SPACES
    + "][0-9]{3})+)(?:" + re.escape(sign) + "[0-9]*)?|" + re.escape(sign)
    + "[0-9]+)" + _EXPONENT + "$"
    for sign, other in zip(DECIMALS, reversed(DECIMALS), strict=True)
}
"""Numbers by their decimal sign, with thousands separators."""


class DelimitedSource(NamedTable):
    """A text file of named columns."""

    def __init__(
        self, path: Path, asked: Sequence[object] = (), *, header: bool | None = None,
        separator: str | None = None, decimal: str | None = None,
        columns: Columns | None = None, memory_limit: int | None = None,
    ) -> None:
        installed("pyarrow", f"{path}", "arrow")
        if separator is not None and len(separator) != 1:
            raise InputError(
                f"separator must be one character, not {quoted(separator)}"
            )
        if decimal not in (None, *DECIMALS):
            raise InputError(f"decimal must be . or , and not {quoted(decimal)}")
        content = read(path)
        self.path: Path = path
        self.what: str = f"{path}"
        self.size: int = len(content)
        self.memory_limit: int | None = memory_limit
        self.notes: list[str] = []
        self._text = self._decoded(unzipped(path, content, memory_limit))
        tabs = path.name.lower().removesuffix(".gz").endswith(".tsv")
        self._separator = separator or ("\t" if tabs else _separator(self._text))
        if self._separator != "," and not (tabs or separator):
            self.notes.append(f"separator {quoted(self._separator)}")
        self._columns = self._cells()
        first = [str(column[0].as_py()).strip() for column in self._columns]
        self.named: bool = (
            self._has_header(first, asked, columns) if header is None else header
        )
        if self.named and len(self._columns[0]) == 1:
            raise FormatError(
                f"{path} holds only a header, expected at least one sample"
            )
        self.names: list[str] = [str(number + 1) for number in range(len(first))]
        if self.named:
            self._columns = [column.slice(1) for column in self._columns]
            self.names = self._different(first)
        elif header is None:
            self.notes.append("no header, columns are named by their numbers")
        self.index: set[int] = index_of(self.names)
        inputs = () if columns is None else columns.inputs
        known = None if columns is None else columns.decimal
        self.decimal: str | None = decimal or known
        self._values = self._parsed(
            decimal, {column.name for column in inputs if column.categories}
        )

    def __len__(self) -> int:
        return len(self._columns[0])

    def value_type(self, column: int) -> str:
        """Return the type of a column's values: `NUMBER`, `TEXT` or `DATE`."""
        return TEXT if self._values[column] is None else NUMBER

    def numbers(self, column: int, dates: bool = False) -> NDArray[np.float64]:
        """Return numbers, or dates in days since 1970 [samples]; NaN: missing."""
        if dates:
            texts = self._strings(column).to_pylist()
            return days_of(
                self, column, [None if text in LOST else text for text in texts]
            )
        values = self._values[column]
        if values is not None:
            return values
        strings = self._strings(column)
        wrong = (
            row for row, text in enumerate(strings.to_pylist())
            if text not in LOST and not is_decimal(text)
        )
        row = next(wrong, 0)
        raise self.error(
            f"found {quoted(strings[row].as_py())}, expected a number{OR_TEXT}", row,
            column,
        )

    def texts(self, column: int) -> Texts:
        """Return texts."""
        encoded = self._strings(column).combine_chunks().dictionary_encode()
        different = encoded.dictionary.to_pylist()
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.intp)
        values = self._values[column]
        if values is None:
            return Texts(different, codes, [common(text) for text in different])
        first = np.zeros(len(different), np.intp)
        first[codes[::-1]] = np.arange(len(codes))[::-1]
        return Texts(different, codes, [
            "" if np.isnan(value) else text if is_code(text) else as_text(value)
            for text, value in zip(different, values[first].tolist(), strict=True)
        ])

    def place(self, row: int) -> str:
        """Return the text that names a row: by its line, from 1."""
        lines = cells_of(self.path, self._text, self._separator)
        return f"line {next(islice(lines, row + self.named, None), (0, []))[0]}"

    def check_size(self, size: int) -> None:
        """Raise FormatError if so many bytes are too many for the table."""
        check_memory(self.path, size, self.size, self.memory_limit)

    def _decoded(self, content: bytes) -> str:
        """Return the text of the file, in the encoding that is found."""
        names = [name for mark, name in _BOMS if content.startswith(mark)]
        for encoding in names or ("utf-8", "cp1252", "latin-1"):
            try:
                text = content.decode(encoding)
            except UnicodeError:
                continue
            if "\0" not in text:
                if encoding not in ("utf-8", "utf-8-sig"):
                    self.notes.append(f"encoding {encoding}")
                return text
        raise FormatError(f"{self.path} is not text, expected a table")

    def _cells(self) -> list[Any]:
        """Return the cells of each column as arrays of text of pyarrow."""
        import pyarrow as pa
        from pyarrow import csv as reader

        _, head = next(cells_of(self.path, self._text, self._separator), (0, []))
        if not head:
            raise FormatError(
                f"{self.path} is blank, expected numbers or text separated by commas"
            )
        names = [str(number) for number in range(len(head))]
        wrong = []

        def judged(row: Any) -> str:
            blank = not row.text.strip()
            wrong.extend([] if blank else [row])
            return "skip" if blank else "error"

        content = pa.py_buffer(self._text.encode())
        try:
            if self._text.count('"') % 2:  # one is open, or amid a cell
                for _ in cells_of(self.path, self._text, self._separator):
                    pass
            table = reader.read_csv(
                content,
                reader.ReadOptions(
                    column_names=names, block_size=min(max(BLOCK, len(self._text) >> 4),
                                                       content.size),
                ),
                reader.ParseOptions(
                    delimiter=self._separator, newlines_in_values=True,
                    invalid_row_handler=judged,
                ),
                reader.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()),
                    strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid as error:
            for line, cells in cells_of(self.path, self._text, self._separator):
                if len(cells) != len(head):
                    raise FormatError(
                        f"{self.path}, line {line}: found {len(cells)} cells, expected "
                        f"{len(head)} as in the first line"
                    ) from None
            raise FormatError(f"{self.path} is no table: {error}") from None
        return list(table.columns)

    def _strings(self, at: int, first: int = 0) -> Any:
        """Return the texts of a column from a row on, without space around them."""
        import pyarrow.compute as pc

        return pc.utf8_trim_whitespace(self._columns[at].slice(first))

    def _has_header(
        self, first: list[str], asked: Sequence[object], columns: Columns | None
    ) -> bool:
        """Return whether the first line holds names."""
        width = len(first)
        names = [
            name for name in asked if isinstance(name, str) and not (
                re.fullmatch("-?[1-9][0-9]*", name) and abs(int(name)) <= width
            )
        ]
        if not {*first}.isdisjoint(names):
            return True
        if columns is not None and not names:  # of a table without a header
            return False
        numbers = [
            is_number(cell.encode())
            or any(re.match(form, cell) for form in _FORMS.values()) for cell in first
        ]
        if len(set(first)) == width and not any(numbers):
            return True
        if len(self._columns[0]) == 1:
            return False
        if counts_columns(first, lambda: (
            cell.as_py() for column in self._columns for cell in column.slice(1)
        )):
            self.notes.append("the header holds the numbers of columns")
            return True
        wholes = all(
            cell.isdecimal() for cell, number in zip(first, numbers, strict=True)
            if number
        )
        return wholes and any(
            not number and cell not in LOST and _signs(self._strings(at, 1))
            for at, (cell, number) in enumerate(zip(first, numbers, strict=True))
        )

    def _different(self, names: list[str]) -> list[str]:
        """Return different names, as pandas makes them."""
        known = set(names)
        unique: dict[str, None] = {}  # in order
        twice = []
        for at, name in enumerate(names):
            new = name or unnamed(at)
            number = 0
            while new in unique or (number and new in known):
                number += 1
                new = f"{name}.{number}"
            twice += [name] * bool(number)
            unique[new] = None
        if twice:
            self.notes.append(
                f"names that occur twice get a number: {listed(dict.fromkeys(twice))}"
            )
        return list(unique)

    def _parsed(
        self, decimal: str | None, coded: set[str]
    ) -> list[NDArray[np.float64] | None]:
        """Return the columns' numbers, NaN for missing ones; None: a column of text.

        Columns of categories tell no decimal sign.
        """
        group = max(1, CELLS // len(self))
        numbers = [
            values for first in range(0, len(self.names), group)
            for values in _cast_each(self._columns[first : first + group])
        ]
        odd = [at for at, values in enumerate(numbers) if values is None]
        if self.decimal != "," and not any(_signs(self._strings(at)) for at in odd):
            return numbers
        columns = [self._strings(at) for at in range(len(self.names))]
        signs = [
            "" if name in coded else _signs(strings)
            for strings, name in zip(columns, self.names, strict=True)
        ]
        only = {sign for sign in signs if len(sign) == 1}
        usual = decimal or (only.pop() if len(only) == 1 else None)
        used = [
            form if len(form) < 2 else usual or self._either(at, columns[at])
            for at, form in enumerate(signs)
        ]
        for at, sign in enumerate(used):
            if sign == "," or (sign and numbers[at] is None):
                numbers[at] = _cast(_plain(columns[at], sign))
        commas = [
            self.names[at] for at, sign in enumerate(used)
            if sign == "," and _any(columns[at], "[.,]")
        ]
        self.decimal = usual or self.decimal
        if commas and decimal is None:
            self.notes.append(f"decimal comma: {listed(commas)}")
        groups = [
            self.names[at] for at in odd if numbers[at] is not None
            and self.names[at] not in commas
        ]
        if groups:
            self.notes.append(f"thousands separators: {listed(groups)}")
        return numbers

    def _either(self, at: int, strings: Any) -> str:
        """Return the decimal sign of numbers that have one of two, as 1,234."""
        comma = _any(strings, ",")
        if self.decimal and (comma or self._separator != ","):
            return self.decimal  # of the training
        if self._separator == "," or not comma:
            return "."
        if self._separator == ";":  # of those who write decimal commas
            return ","
        raise self.error(
            "holds numbers whose comma is before a fraction or between thousands: give "
            "decimal, as . or ,", column=at,
        )


def _lost(strings: Any) -> Any:
    """Return which texts are of missing numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.is_in(strings, pa.array(sorted(LOST)))


def _any(strings: Any, pattern: str) -> bool:
    import pyarrow.compute as pc

    return bool(pc.any(pc.match_substring_regex(strings, pattern)).as_py())


def _plain(strings: Any, sign: str) -> Any:
    """Return numbers of a decimal sign as those of C."""
    import pyarrow.compute as pc

    other = DECIMALS[1 - DECIMALS.index(sign)]
    plain = pc.replace_substring_regex(strings, f"[{re.escape(other)}{_SPACES}]", "")
    return pc.if_else(
        pc.match_substring_regex(strings, _FORMS[sign]),
        pc.replace_substring(plain, sign, "."), strings,
    )


def _signs(strings: Any) -> str:
    """Return the decimal signs with which all values are numbers that are there.

    Both, where they hold no sign; "": they are no numbers.
    """
    import pyarrow.compute as pc

    known = strings.filter(pc.invert(_lost(strings)))
    if not len(known):
        return ""
    return "".join(
        sign for sign in DECIMALS
        if pc.all(pc.match_substring_regex(known, _FORMS[sign])).as_py()
    )


def _cast_each(columns: Sequence[Any]) -> list[NDArray[np.float64] | None]:
    """Return the numbers of columns of one length, as `_cast`, by few calls."""
    import pyarrow as pa

    numbers = _cast(pa.chunked_array(
        [chunk for column in columns for chunk in column.chunks], pa.string()
    ))
    if numbers is not None:
        return list(numbers.reshape(len(columns), -1))
    if len(columns) == 1:
        return [None]
    half = len(columns) // 2
    return [*_cast_each(columns[:half]), *_cast_each(columns[half:])]


def _cast(strings: Any) -> NDArray[np.float64] | None:
    """Return texts as numbers, NaN for missing ones; None: there are others."""
    import pyarrow as pa
    import pyarrow.compute as pc

    trimmed = pc.utf8_trim_whitespace(strings)
    known = pc.if_else(_lost(trimmed), pa.scalar(None, pa.string()), trimmed)
    try:
        return np.asarray(
            known.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64
        )
    except pa.ArrowInvalid:
        return None


def _separator(text: str) -> str:
    """Return the character that separates the cells of a text."""
    head = text[:SNIFFED]
    if len(head) < len(text):
        head = head[: head.rfind("\n") + 1] or head
    for separator in SEPARATORS:
        rows = csv.reader(io.StringIO(head, newline=""), delimiter=separator)
        try:
            widths = {len(row) for row in rows if "".join(row).strip()}
        except csv.Error:
            continue
        if len(widths) == 1 and widths.pop() > 1:
            return separator
    line = next((line for line in head.splitlines() if line.strip()), "")
    return max(reversed(SEPARATORS), key=line.count)
