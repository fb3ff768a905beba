"""HDF5 files, opened by h5py, of the extra ``hdf5``.

Data sets are sliced by h5py, but those whose numbers lie in the file as in an array:
they are mapped.
"""

from __future__ import annotations

import re
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.checks import NUMBER_KINDS, installed
from clnet.errors import FormatError, quoted
from clnet.formats.files import as_path, check_readable, reading

Array = NDArray[Any]

_NAMED = re.compile(r"(?P<file>.*\.(?:h5|hdf5)):(?P<name>.+)", re.IGNORECASE)
INPUTS, TARGETS = "x", "t"
"""The data sets that are read where none is named."""


def named(which: object) -> tuple[Path, str | None]:
    """Return the file and the name of ``file.h5:name``; None: there is no name."""
    path = as_path(which)
    match = _NAMED.fullmatch(str(path))
    return (Path(match["file"]), match["name"]) if match else (path, None)


class Hdf5Array:
    """A data set of numbers or text, which is sliced by rows."""

    def __init__(self, path: Path, name: str) -> None:
        with reading(f"{path}:{name} cannot be read"), ExitStack() as closing:
            # A file that stays open is not read anew when it has been mended.
            self._find(closing.enter_context(_opened(path)), path, name)
            if self.map is None:
                closing.pop_all()  # slices read it

    def _find(self, content: Any, path: Path, name: str) -> None:
        data_set = content.get(name)
        import h5py

        if not isinstance(data_set, h5py.Dataset):
            names = _names(content, h5py.Dataset)
            raise FormatError(
                f"{path} has no data set {quoted(name)}, expected "
                + (f"one of {quoted(names)}" if names else "one of numbers")
            )
        text = h5py.check_string_dtype(data_set.dtype) is not None
        if not data_set.shape or (data_set.dtype.kind not in NUMBER_KINDS and not text):
            raise FormatError(
                f"{path}: {name} is an array {list(data_set.shape or ())} of "
                f"{quoted(str(data_set.dtype))}, expected numbers [samples, columns]"
            )
        if data_set.chunks and not data_set.id.get_create_plist().get_nfilters():
            # HDF5 reads beyond chunks that are too short.
            size = data_set.id.get_storage_size()
            chunk_bytes = prod(data_set.chunks) * data_set.dtype.itemsize
            if size % chunk_bytes:
                raise FormatError(
                    f"{path}: {name} has {size} bytes in chunks of {chunk_bytes}, "
                    "expected a multiple"
                )
        self.name: str = f"{path}:{name}"
        self._data_set = data_set.asstr() if text else data_set
        self.shape: tuple[int, ...] = data_set.shape
        self.dtype: Any = np.dtype(object) if text else data_set.dtype
        self.chunks: Any = data_set.chunks
        self.map: Array | None = None
        offset: int | None = None if text else data_set.id.get_offset()  # not of chunks
        stored_type = data_set.id.get_type()
        if offset is not None and stored_type.equal(h5py.h5t.py_create(data_set.dtype)):
            self.map = np.memmap(path, self.dtype, "r", offset, self.shape)

    def __getitem__(self, rows: slice) -> Array:
        with reading(lambda: self._damaged(*rows.indices(self.shape[0])[:2])):
            return np.asarray(self._data_set[rows])

    def _damaged(self, start: int, stop: int) -> str:
        """Name the first row that cannot be read, one of these, by bisection."""
        while stop - start > 1:
            middle = (start + stop) // 2
            try:
                self._data_set[start:middle]
            except Exception:
                stop = middle
            else:
                start = middle
        return f"{self.name}, row {start}: cannot be read"


def data_sets(data: object, t: object) -> tuple[Any, Any]:
    """Return the arrays of inputs and targets; the second may be missing, None."""
    path, name = named(data)
    if t is not None:
        where, target = named(t)
        if target is None:
            where, target = path, str(t)
        return _array(path, name or INPUTS), _array(where, target)
    if name is not None:
        return _array(path, name), None
    x = _array(path, INPUTS)
    with reading(f"{path}:{TARGETS} cannot be read"):
        with _opened(path) as content:
            present = TARGETS in content
        return x, _array(path, TARGETS) if present else None


def _array(path: Path, name: str) -> Array | Hdf5Array:
    data_set = Hdf5Array(path, name)
    return data_set if data_set.map is None else data_set.map


def _opened(path: Path) -> Any:
    h5py = installed("h5py", f"{path}", "hdf5")
    check_readable(path)
    with reading(f"{path} is no whole HDF5 file"):
        return h5py.File(path, "r")


def _names(content: Any, data_set_type: type) -> list[str]:
    """Return the names of a file's data sets.

    By its links: HDF5's visit of objects does not end on some damaged files.
    """
    links: list[bytes] = []
    content.id.links.visit(links.append)
    names = [name.decode("utf-8", "surrogateescape") for name in links]
    return [name for name in names if isinstance(content.get(name), data_set_type)]
