"""Errors: one sentence that names what is wrong and what would be right."""

from __future__ import annotations

import math
import reprlib
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import TypeVar

WIDTH = 80  # columns of printed text
MOST_REASON = 200  # characters of another library's error
ASK_DOCTOR = "`clnet doctor` looks for the cause"  # of a set-up without a device

T = TypeVar("T")


def printable(text: str) -> str:
    """Return a text with control characters and surrogates escaped."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )


class ClnetError(Exception):
    """Base of every error that clnet raises on purpose: one printable sentence.

    Paths and names of a caller may hold control characters, which are escaped here.

    Attributes
    ----------
    rank : int or None
        The number of this process among those of MPI that all raise the error; None: no
        other process is known to.

    Examples
    --------
    >>> try:
    ...     clnet.load("nowhere/a.net")
    ... except clnet.ClnetError as error:
    ...     print(error)
    cannot read nowhere/a.net: there is no folder nowhere
    """

    rank: int | None = None

    def __init__(self, message: str = "") -> None:
        super().__init__(printable(message))


class InputError(ClnetError, ValueError):
    """An argument has the wrong shape, dtype, range or name.

    Examples
    --------
    >>> clnet.Dense(0)
    Traceback (most recent call last):
    clnet.errors.InputError: n_out must be ...
    """


class FormatError(ClnetError, ValueError):
    """A file is unreadable, truncated, foreign, or holds something unsupported.

    Examples
    --------
    >>> clnet.load("network.txt")
    Traceback (most recent call last):
    clnet.errors.FormatError: network.txt ...
    """


class DeviceError(ClnetError, RuntimeError):
    """A device does not exist, ran out of memory, or failed while running.

    Examples
    --------
    >>> clnet.device("abacus")
    Traceback (most recent call last):
    clnet.errors.DeviceError: no device matches 'abacus': there are ...
    """


class OutOfMemoryError(DeviceError):
    """A device does not have enough memory."""


class BuildError(DeviceError):
    """A kernel did not build on a device.

    Attributes
    ----------
    log : str
        Output of the device's compiler.
    source : str
        The full source text.
    """

    def __init__(self, message: str, log: str, source: str) -> None:
        super().__init__(message)
        self.log = log
        self.source = source


class ClnetWarning(UserWarning):
    """A problem that changes no result; its sentence is printable, as an error's.

    Examples
    --------
    >>> import warnings
    >>> warnings.simplefilter("error", clnet.ClnetWarning)  # as errors, in tests
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(printable(message))


_silent = ContextVar("_silent", default=False)


@contextmanager
def silent() -> Iterator[None]:
    """Keep this thread's warnings back: filters of `warnings` are of all threads."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


def warn(sentence: str) -> None:
    """Warn by a `ClnetWarning` at the line outside clnet that has called it."""
    if _silent.get():
        return
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _is_own(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(sentence, ClnetWarning, stacklevel=1 + level)


def _is_own(frame: FrameType) -> bool:
    package = __name__.partition(".")[0]
    return str(frame.f_globals.get("__name__")).partition(".")[0] == package


def unknown(kind: str, name: object, known: Iterable[str]) -> InputError:
    """Return the error for an unknown name; it suggests the nearest known one.

    Parameters
    ----------
    kind : str
        Kind of the name, as in ``"activation"``.
    name : object
        The unknown name.
    known : iterable of str
        The known names.
    """
    names = sorted(known)
    near = nearest(name, names) if isinstance(name, str) else ""
    hint = f"did you mean {near!r}? " if near else ""
    return InputError(
        f"unknown {kind} {quoted(name)}: {hint}known are {', '.join(names) or 'none'}"
    )


def known_row(
    kind: str, name: object, rows: Mapping[str, T], others: Iterable[str] = ()
) -> T:
    """Return the row of a name, or raise the error of `unknown`.

    Parameters
    ----------
    kind : str
        Kind of the name, as in ``"activation"``.
    name : object
        The name.
    rows : mapping of str
        The rows by name.
    others : iterable of str
        Further names that the error lists.
    """
    if not isinstance(name, str) or name not in rows:
        raise unknown(kind, name, (*rows, *others))
    return rows[name]


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name nearest to a name, case aside; "": none is near."""
    import difflib

    names = {original.lower(): original for original in sorted(known)}
    near = difflib.get_close_matches(name.lower(), names, n=1)
    return names[near[0]] if near else ""


def counted(n: int, noun: str) -> str:
    """Return a count with its noun, as "1 output" or "2 outputs"."""
    return f"{n} {noun}{'s' * (n != 1)}"


class _Excerpt(reprlib.Repr):
    """Representations of at most about 80 characters."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 80

    def repr_int(self, number: int, _: int) -> str:
        digits = math.floor(abs(number).bit_length() * math.log10(2)) + 1
        return repr(number) if digits <= 30 else f"a number of about {digits} digits"


_EXCERPT = _Excerpt()


def quoted(value: object) -> str:
    """Return a value, of a file or an argument, as an error shows it.

    That is its `repr` in one line, with control characters escaped, and shortened in
    the middle.
    """
    return _in_one_line(_EXCERPT.repr(value))


def reason(error: Exception) -> str:
    """Return the message of another library's error, as an error of clnet shows it.

    Of the system's errors their sentence, without their number and file.
    """
    told = isinstance(error, OSError) and error.strerror
    text = told.lower() if told else str(error)
    return _in_one_line(
        text if len(text) <= MOST_REASON else f"{text[:MOST_REASON]}…"
    )


def _in_one_line(text: str) -> str:
    """Return a text with white space as blanks, and control characters escaped."""
    return printable(" ".join(text.split()))
