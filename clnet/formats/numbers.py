"""Parsing of numbers and lists: fast with NumPy, with exact error positions."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clnet.errors import FormatError

Array = NDArray[np.float64]

# The syntax of C's strtod, without the optional parentheses of nan. Digits match in one
# way only, so that a mismatch is found in linear time.
_NUMBER = (
    rb"[-+]?(?:0[xX](?:[0-9a-fA-F]+(?:\.[0-9a-fA-F]*)?|\.[0-9a-fA-F]+)"
    rb"(?:[pP][-+]?\d+)?"
    rb"|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
    rb"|(?i:inf(?:inity)?|nan))"
)
_IS_NUMBER = re.compile(_NUMBER)
_NUMBER_LINE = re.compile(rb"^" + _NUMBER + rb"$", re.MULTILINE)
_SPACE = re.compile(rb"\s")
_NOT_SPACE = re.compile(rb"\S")
_WORD = re.compile(rb"\s*(\S*)")
_CLOSED = re.compile(rb"\)")
_TOKEN = 1  # a number, among the bytes of an item's shape
_PUNCTUATION = b"(,)"
_TO_SPACE = bytes.maketrans(_PUNCTUATION, b" " * len(_PUNCTUATION))
_EXCERPT = 30  # bytes of the text that an error shows
# The least number that rounds to infinity: half a step beyond the largest finite one.
_OVERFLOWS = {"float32": float.fromhex("0x1.ffffffp127"), "float64": math.inf}
_SMALL_BLOCK = 1 << 12  # bytes parsed item by item
_BLOCK = 1 << 22  # bytes parsed at a time, so that temporary arrays stay small


def _kinds() -> NDArray[np.uint8]:
    table = np.full(256, _TOKEN, np.uint8)
    table[list(b" \t\n\v\f\r")] = 0
    table[list(_PUNCTUATION)] = list(_PUNCTUATION)
    return table


_KINDS = _kinds()


def is_number(token: bytes) -> bool:
    """Return whether a token is a number's, of whatever range."""
    return _IS_NUMBER.fullmatch(token) is not None


def to_number(token: bytes) -> float | None:
    """Return a number as C's strtod reads it; None: the token is not a number.

    Also None for a finite number beyond float64's range.
    """
    if not is_number(token):
        return None
    value = _value(token)
    return None if math.isinf(value) and not _is_word(token) else value


def to_numbers(tokens: Sequence[bytes], dtype: str) -> Array | None:
    """Return the numbers of tokens, each as `to_number`.

    None: a token is not a number, or is finite and beyond the dtype's range.
    """
    text = b"\n".join(tokens)
    lines = text.count(b"\n") + 1  # more if a token has several
    if len(_NUMBER_LINE.findall(text)) != len(tokens) or lines != len(tokens):
        return None
    hexadecimal = b"x" in text or b"X" in text
    values = np.fromiter(map(_value if hexadecimal else float, tokens), np.float64)
    at = np.flatnonzero(infinite(values, dtype)).tolist()
    return values if all(_is_word(tokens[i]) for i in at) else None


def _value(token: bytes) -> float:
    """Return the value of a number, infinite beyond float64's range."""
    if b"x" not in token and b"X" not in token:
        return float(token)
    try:
        return float.fromhex(token.decode())
    except OverflowError:
        return math.inf


def _is_word(token: bytes) -> bool:
    """Return whether a number is infinity or NaN."""
    return token.lstrip(b"+-")[:1].isalpha()


@dataclass(frozen=True)
class Items:
    """The shape of a list's items: numbers and punctuation, with any white space."""

    shape: str  # `"n"` stands for a number: `"n"`, `"(n,n)"`, `"(nn)"`

    @property
    def width(self) -> int:
        """Numbers an item."""
        return self.shape.count("n")

    def parse(
        self, text: bytes, start: int, stop: int, dtype: str, result: str = "float64"
    ) -> tuple[NDArray[Any], int | None]:
        """Return the items of text[start:stop], up to the first bad one."""
        parsed = [np.zeros((0, self.width), result)]
        size, bad = _BLOCK, None
        while start < stop and bad is None:
            end = self._boundary(text, min(start + size, stop), stop)
            block = text[start:end]
            values = self._fast(block, dtype)
            if values is None and size > _SMALL_BLOCK:
                size = _SMALL_BLOCK  # around the items that need more than NumPy
                continue
            if values is None:
                values, bad = self._slow(block, dtype)
            else:
                size = min(2 * size, _BLOCK)
            parsed.append(values.astype(result))
            start = end if bad is None else start + bad
        return np.concatenate(parsed), None if bad is None else start

    def offset(self, text: bytes, start: int, number: int) -> int:
        """Return the offset of item `number`, from 0, of the list at text[start:]."""
        end = start
        for _ in range(number):
            match = self._pattern.match(text, end)
            if match is None:
                break
            end = match.end()
        return skip_space(text, end)

    def _boundary(self, text: bytes, at: int, stop: int) -> int:
        """Return the first offset from `at` on where an item may end."""
        if at == stop:
            return stop
        match = (_CLOSED if self.shape.endswith(")") else _SPACE).search(text, at, stop)
        return match.end() if match else stop

    def _fast(self, block: bytes, dtype: str) -> Array | None:
        """Parse with NumPy; None unless all items are decimal and finite or NaN."""
        byte_kinds = _KINDS[np.frombuffer(block, np.uint8)]
        events = byte_kinds != 0
        events[1:] &= (byte_kinds[1:] != _TOKEN) | (byte_kinds[:-1] != _TOKEN)
        sequence = byte_kinds[events]
        shape = np.frombuffer(self.shape.replace("n", chr(_TOKEN)).encode(), np.uint8)
        if sequence.size % shape.size:
            return None
        if (sequence.reshape(-1, shape.size) != shape).any():
            return None
        count = sequence.size // shape.size * self.width
        if count == 0:
            return np.zeros((0, self.width))
        tokens = block.translate(_TO_SPACE)
        # NumPy stops at text that is no number, with a warning or, in later versions,
        # an error. The filters of warnings belong to the whole process, and stay.
        try:
            values = np.fromstring(tokens, np.float64, sep=" ")
        except (DeprecationWarning, ValueError):
            return None
        # As many numbers as tokens: NumPy read each but the last to its end.
        if values.size != count or to_number(tokens.rsplit(None, 1)[-1]) is None:
            return None
        if infinite(values, dtype).any():
            return None
        return values.reshape(-1, self.width)

    def _slow(self, block: bytes, dtype: str) -> tuple[Array, int | None]:
        """Parse item by item, up to the first bad one; numbers alone together."""
        if self.shape == "n":
            values = to_numbers(block.split(), dtype)
            if values is not None:
                return values.reshape(-1, 1), None
        rows = array("d")
        bad, end = None, 0
        while (at := skip_space(block, end)) < len(block):
            match = self._pattern.match(block, at)
            tokens = match.groups() if match else (b"",)
            numbers = [to_number(token) for token in tokens]
            row = [x for x in numbers if x is not None and holds(dtype, x)]
            if match is None or len(row) < self.width:
                bad = at
                break
            rows.extend(row)
            end = match.end()
        return np.array(rows).reshape(-1, self.width), bad

    @cached_property
    def _pattern(self) -> re.Pattern[bytes]:
        number = rb"(" + _NUMBER + rb")"
        if self.shape == "n":
            return re.compile(rb"\s*" + number + rb"(?!\S)")
        # White space must separate two numbers without punctuation between them.
        parts = self.shape.replace("nn", "n n").split(" ")
        spaced = [rb"\s*".join(number if c == "n" else re.escape(c.encode())
                               for c in part) for part in parts]
        return re.compile(rb"\s*" + rb"\s+".join(spaced))


def infinite(values: ArrayLike, dtype: str) -> NDArray[np.bool_]:
    """Return for each number whether it is infinite in a type."""
    with np.errstate(over="ignore", invalid="ignore"):  # signalling NaN
        beyond: NDArray[np.bool_] = np.isinf(np.asarray(values).astype(dtype))
    return beyond


def holds(dtype: str, value: float) -> bool:
    """Return whether a type holds a number: it is in range, infinite or NaN."""
    return not abs(value) >= _OVERFLOWS[dtype] or math.isinf(value)


def skip_space(text: bytes, at: int) -> int:
    """Return the first offset from `at` on that is not white space."""
    match = _NOT_SPACE.search(text, at)
    return match.start() if match else len(text)


class Text:
    """A file's text and a read position; errors name file, line, found and expected."""

    def __init__(self, path: Path, text: bytes) -> None:
        self.path = path
        self.text = text
        self.at: int = 0

    def error(self, expected: str, at: int | None = None) -> FormatError:
        """Return the error for the text at an offset; None: at the read position."""
        offset = skip_space(self.text, self.at if at is None else at)
        rest = self.text[offset : offset + _EXCERPT].split(b"\n")[0].rstrip()
        found = repr(rest.decode("utf-8", "replace")) if rest else "the end of the file"
        return FormatError(
            f"{self.path}, line {self.line(offset)}: found {found}, expected {expected}"
        )

    def unsupported(self, what: str, supported: str) -> FormatError:
        """Return the error for unsupported text just before the read position."""
        return FormatError(
            f"{self.path}, line {self.line(max(self.at - 1, 0))}: {what} is not "
            f"supported, only {supported}"
        )

    def line(self, offset: int) -> int:
        """Return the line, from 1, of an offset; of the end, the last one with text."""
        if not self.text[offset : offset + 1]:
            offset = len(self.text.rstrip())
        return self.text.count(b"\n", 0, offset) + 1

    def find(self, what: bytes) -> int:
        """Return the offset of the next occurrence, or of the end."""
        offset = self.text.find(what, self.at)
        return len(self.text) if offset < 0 else offset

    def has(self, key: str) -> bool:
        """Read ``key=`` and return True, if that comes next."""
        start = skip_space(self.text, self.at)
        if not self.text.startswith(f"{key}=".encode(), start):
            return False
        self.at = start + len(key) + 1
        return True

    def key(self, key: str) -> None:
        """Read ``key=``, or raise FormatError."""
        if not self.has(key):
            raise self.error(f"{key}=…")

    def whole(self, what: str) -> int:
        """Read a whole number below 2**32 and return it."""
        token = self._token()
        if not token.isdigit() or len(token) > 10 or int(token) >= 2**32:
            raise self.error(f"{what}, a whole number")
        self._step(token)
        return int(token)

    def real(self, what: str) -> float:
        """Read a real number and return it."""
        token = self._token()
        value = to_number(token)
        if value is None or not holds("float32", value):
            raise self.error(f"{what}, a number in float32")
        self._step(token)
        return value

    def choice(self, what: str, known: Sequence[str]) -> int:
        """Read one of the known words and return its index."""
        token = self._token()
        if token.decode("latin-1") not in known:
            raise self.error(f"{what}, one of {', '.join(known)}")
        self._step(token)
        return known.index(token.decode("latin-1"))

    def items(
        self, items: Items, count: int, stop: int, what: str, then: str, dtype: str
    ) -> Array:
        """Read a list of exactly `count` items up to `stop` and return it."""
        start = self.at
        values, bad = items.parse(self.text, start, stop, dtype)
        if len(values) < count:
            raise self.error(
                f"item {len(values) + 1} of {count}, a {what}, within {dtype}",
                stop if bad is None else bad,
            )
        if len(values) > count or bad is not None:
            at = items.offset(self.text, start, count)
            raise self.error(f"{then} after {count} items, each a {what}", at)
        self.at = stop
        return values

    def _token(self) -> bytes:
        """Return the next word."""
        match = _WORD.match(self.text, self.at)
        return match[1] if match else b""

    def _step(self, token: bytes) -> None:
        self.at = skip_space(self.text, self.at) + len(token)


def shortest(values: NDArray[Any]) -> Sequence[str]:
    """Return the shortest text of each number that reads back as the same number.

    Whole numbers have no decimal point.
    """
    return [
        text[:-2] if text.endswith(".0") else text
        for text in values.astype("U32").ravel().tolist()
    ]
