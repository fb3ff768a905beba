"""FANN's data files: ``.train``, ``.test`` and ``.data``; gzipped if ``.gz`` follows.

The first line holds the numbers of samples, inputs and outputs. The inputs and outputs
of each sample follow, separated by any white space.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.errors import FormatError, counted
from clnet.formats.files import most_memory, read, unzipped, write
from clnet.formats.numbers import Items, Text, shortest

Array = NDArray[Any]


def load(
    path: Path, dtype: str | None = None, memory_limit: int | None = None
) -> tuple[Array, Array]:
    """Return inputs [samples, n_in] and targets [samples, n_out] of a data file."""
    number_type = dtype or "float32"
    text = Text(path, unzipped(path, read(path), memory_limit))
    samples, n_in, n_out = (
        text.whole(f"number of {what}") for what in ("samples", "inputs", "outputs")
    )
    announced = (
        f"{counted(samples, 'sample')} of {counted(n_in, 'input')} and "
        f"{counted(n_out, 'output')}, as it announces"
    )
    if samples == 0 or n_in == 0:
        raise FormatError(
            f"{path}, line 1: found {counted(samples, 'sample')} of "
            f"{counted(n_in, 'input')}, expected at least 1 of each"
        )
    items, width = Items("n"), n_in + n_out
    start = text.at
    values, bad = items.parse(
        text.text, start, len(text.text), number_type, number_type
    )
    if len(values) > samples * width:
        at = items.offset(text.text, start, samples * width)
        raise text.error(f"the end of the file after {announced}", at)
    if bad is not None:
        raise text.error(f"a number within {number_type}", bad)
    if len(values) < samples * width:
        sample, column = divmod(len(values), width)
        # FANN writes a line of inputs and a line of outputs for each sample.
        line = 2 + 2 * sample + (column >= n_in)
        raise FormatError(
            f"{path}, line {line}: the file ends after {len(values)} numbers, expected "
            f"{samples * width}: {announced}"
        )
    rows = values.reshape(samples, width)
    return np.ascontiguousarray(rows[:, :n_in]), np.ascontiguousarray(rows[:, n_in:])


def save(path: Path, x: Array, t: Array) -> None:
    """Write inputs [samples, n_in] and targets [samples, n_out].

    Numbers are exact: each has as many digits as it needs to be read back unchanged.
    FANN's own writer keeps six decimals.
    """
    lines = _lines(x, t)
    if path.suffix.lower() == ".gz":
        lines = iter([_zipped(b"".join(lines))])
    write(path, lines)


def _lines(x: Array, t: Array) -> Iterator[bytes]:
    yield f"{len(x)} {x.shape[1]} {t.shape[1]}\n".encode()
    for inputs, targets in zip(x, t, strict=True):
        for row in (inputs, targets):
            yield ("".join(f"{number} " for number in shortest(row)) + "\n").encode()


def _zipped(text: bytes) -> bytes:
    """Return a text gzipped, so that it can be loaded without a larger limit."""
    content = gzip.compress(text, mtime=0)
    if len(text) > most_memory(len(content), None):
        return gzip.compress(text, 0, mtime=0)
    return content
