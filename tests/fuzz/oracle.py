"""Numbers as NumPy and C's strtod read them, and their comparison."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

MEMORY_LIMIT = 1 << 20  # what loaders are given
DATA = Path(__file__).parents[1] / "data"


def same(found: Any, expected: Any) -> None:
    """Assert that two arrays are equal, NaN included."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, f"{found.shape} is not {expected.shape}"
    equal = np.array_equal(found, expected, equal_nan=found.dtype.kind in "fc")
    assert equal, f"{found.ravel()[:9]} is not {expected.ravel()[:9]}"


# --- numbers -------------------------------------------------------------------------

_strtod = ctypes.CDLL(None).strtod
_strtod.restype = ctypes.c_double
_strtod.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p)]


def number(token: bytes) -> float:
    """Return a number as C's strtod reads it to its end."""
    buffer = ctypes.create_string_buffer(token)
    end = ctypes.c_void_p()
    value = _strtod(ctypes.cast(buffer, ctypes.c_char_p), ctypes.byref(end))
    read = (end.value or 0) - ctypes.addressof(buffer)
    assert read == len(token) > 0, f"{token[:40]!r} is no number"
    return float(value)


def numbers(tokens: Sequence[bytes], dtype: str = "float64") -> np.ndarray:
    values = np.array([number(token.strip()) for token in tokens])
    with np.errstate(over="ignore"):
        return values.astype(dtype)
