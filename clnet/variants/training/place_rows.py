"""place_rows: samples from host memory, shuffled into a block by CPU cores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from clnet.opencl.launch import Launch

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

CHUNK = 1 << 18  # bytes that a work-item reads: half of a core's cache
LINE = 64  # bytes of a cache line
TILE = 16  # rows, and columns, that the kernel reads at a time: two vectors
TYPES = {
    "f4": "float", "f8": "double", "i1": "char", "u1": "uchar", "i2": "short",
    "u2": "ushort", "i4": "int", "u4": "uint", "i8": "long", "u8": "ulong",
}
"""OpenCL's types of the host's numbers, by NumPy's codes."""


def place_rows(
    dtype: str, stride: int, types: tuple[DTypeLike, DTypeLike], samples: int,
    sample_bytes: int, columns: bool,
) -> tuple[Launch, int]:
    """Return the launch that places some samples, and the rows of a work-item.

    Its arguments are those of ``place_rows.cl``.
    """
    x, t = (TYPES[np.dtype(type_).str[1:]] for type_ in types)
    rows = max(1, CHUNK // sample_bytes)
    if columns:
        rows = max(TILE, rows // TILE * TILE)
    defines: dict[str, int | str] = {
        "REAL": TYPES[np.dtype(dtype).str[1:]], "FROM_X": x, "FROM_T": t,
        "LINES": int(stride * np.dtype(dtype).itemsize % LINE == 0),
        "COLUMNS": int(columns), "TILE": TILE,
    }
    return Launch.of_groups(
        "training/place_rows.cl", "place_rows", defines, -(-samples // rows), 1,
    ), rows
