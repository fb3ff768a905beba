"""Archives of arrays, ``.npz``: their sizes are proved before memory is taken."""

from __future__ import annotations

import io
import math
import sys
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from clnet.errors import FormatError
from clnet.formats.files import check_memory, read, reading

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_BEGINS = (b"PK\3\4", b"PK\5\6")  # of archives with and without members, as NumPy's
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # that NumPy writes


def load_arrays(path: Path, memory_limit: int | None) -> dict[str, NDArray[Any]]:
    """Return the arrays of an archive by name."""
    content = read(path)
    if not content.startswith(_BEGINS):  # zipfile allows anything before an archive
        raise FormatError(f"{path} is not a .npz file: it begins as no archive")
    with (
        reading(f"{path} is damaged or not a .npz file of plain arrays"),
        zipfile.ZipFile(io.BytesIO(content)) as archive,
    ):
        members = archive.infolist()
        unpacked = sum(member.file_size for member in members)
        check_memory(path, unpacked, len(content), memory_limit)
        return {
            member.filename.removesuffix(".npy"): _array(archive, member)
            for member in members
        }


def read_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, whether it is by columns, and the type of an array in a file."""
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"version {version} of an array is not known")
    return _HEADERS[version](file)


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """Return the array of a member, whose header must announce the bytes there are."""
    if member.compress_type not in _COMPRESSIONS:
        raise ValueError(f"compression {member.compress_type} is not known")
    with archive.open(member) as file:
        content = io.BytesIO(file.read(member.file_size))  # and no more
    shape, _, dtype = read_header(content)
    found = content.getbuffer().nbytes - content.tell()
    if not dtype.itemsize or math.prod(shape) * dtype.itemsize != found:
        raise ValueError(f"{found} bytes are no {dtype} of shape {shape}")
    content.seek(0)
    array: NDArray[Any] = np.lib.format.read_array(content, allow_pickle=False)
    if dtype.kind == "U":  # Python fails in odd ways where the bytes are no text
        native = np.ascontiguousarray(array, dtype.newbyteorder("="))
        if (native.view(np.uint32) > sys.maxunicode).any():
            raise ValueError("a text has characters beyond Unicode")
    return array
