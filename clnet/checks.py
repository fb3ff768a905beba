"""Checks of what users pass in."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clnet.errors import InputError


def check_count(what: str, found: object) -> None:
    """Raise InputError unless `found` is a whole number of at least 1."""
    whole = isinstance(found, (int, np.integer)) and not isinstance(found, bool)
    if not whole or int(found) < 1:  # type: ignore[call-overload]
        raise InputError(f"{what} must be a whole number of at least 1, not {found!r}")


def as_numbers(what: str, found: ArrayLike, dtype: str) -> NDArray[Any]:
    """Return `found` as an array of a dtype, or raise one sentence.

    Raises
    ------
    InputError
        If it is ragged, complex, or not made of numbers.
    """
    try:
        array = np.asarray(found)
    except ValueError:
        raise InputError(f"{what} must be a rectangular array of numbers") from None
    if array.dtype.kind not in "biuf":
        raise InputError(f"{what}: found dtype {array.dtype}, expected numbers")
    return np.asarray(array, dtype)
