"""Errors: one sentence that names what is wrong and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

WIDTH = 80  # columns of all text that is printed


class ClnetError(Exception):
    """Base of every error that clnet raises on purpose."""


class InputError(ClnetError, ValueError):
    """An argument has the wrong shape, dtype, range or name."""


class FormatError(ClnetError, ValueError):
    """A file is unreadable, truncated, foreign, or holds what is not supported."""


class DeviceError(ClnetError, RuntimeError):
    """A device does not exist, ran out of memory, or failed while running."""


class OutOfMemoryError(DeviceError):
    """A device has not enough memory."""


class BuildError(DeviceError):
    """A kernel did not build on a device.

    Attributes
    ----------
    log : str
        What the device's compiler printed.
    source : str
        The full source text that was given to it.
    """

    def __init__(self, message: str, log: str, source: str) -> None:
        super().__init__(message)
        self.log = log
        self.source = source


def unknown(kind: str, name: object, known: Iterable[str]) -> InputError:
    """Return the error for a name that does not exist, with the nearest known one.

    Parameters
    ----------
    kind : str
        What the name should have been, as in ``"activation"``.
    name : object
        What was given.
    known : iterable of str
        The names that exist.
    """
    names = sorted(known)
    near = nearest(str(name), names)
    hint = f"did you mean {near!r}? " if near else ""
    return InputError(
        f"unknown {kind} {name!r}: {hint}known are {', '.join(names) or 'none'}"
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that one was probably meant to be; "": none is near."""
    names = {one.lower(): one for one in sorted(known)}
    near = difflib.get_close_matches(name.lower(), names, n=1)
    return names[near[0]] if near else ""


def counted(n: int, what: str) -> str:
    """Return so many of something, as "1 output" or "2 outputs"."""
    return f"{n} {what}{'s' * (n != 1)}"


class ClnetWarning(UserWarning):
    """Something did not work out that does not change any result."""
