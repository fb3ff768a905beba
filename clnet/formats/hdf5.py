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

from clnet.checks import NUMBER_KINDS
from clnet.errors import ClnetError, FormatError, quoted
from clnet.formats.files import as_path, check_readable, reading

Array = NDArray[Any]

_NAMED = re.compile(r"(?P<file>.*\.(?:h5|hdf5)):(?P<name>.+)", re.IGNORECASE)
INPUTS, TARGETS = "x", "t"
"""The data sets that are read where none is named."""


def named(which: object) -> tuple[Path, str | None]:
    """Return the file and the name of ``file.h5:name``; None: there is no name."""
    path = as_path(which)
    found = _NAMED.fullmatch(str(path))
    return (Path(found["file"]), found["name"]) if found else (path, None)


class DataSet:
    """A data set of numbers or text, which is sliced by rows."""

    def __init__(self, path: Path, name: str) -> None:
        with reading(f"{path}:{name} cannot be read"), ExitStack() as closing:
            # A file that stays open is not read anew when it has been mended.
            self._find(closing.enter_context(_opened(path)), path, name)
            if self.map is None:
                closing.pop_all()  # slices read it

    def _find(self, content: Any, path: Path, name: str) -> None:
        found = content.get(name)
        h5py = _h5py(path)
        if not isinstance(found, h5py.Dataset):
            names = _names(content, h5py.Dataset)
            raise FormatError(
                f"{path} has no data set {quoted(name)}, expected "
                + (f"one of {quoted(names)}" if names else "one of numbers")
            )
        text = h5py.check_string_dtype(found.dtype) is not None
        if not found.shape or (found.dtype.kind not in NUMBER_KINDS and not text):
            raise FormatError(
                f"{path}: {name} is an array {list(found.shape or ())} of "
                f"{quoted(str(found.dtype))}, expected numbers [samples, columns]"
            )
        if found.chunks and not found.id.get_create_plist().get_nfilters():
            # HDF5 reads beyond chunks that are too short.
            size = found.id.get_storage_size()
            each = prod(found.chunks) * found.dtype.itemsize
            if size % each:
                raise FormatError(
                    f"{path}: {name} has {size} bytes in chunks of {each}, expected a "
                    "multiple"
                )
        self.name: str = f"{path}:{name}"
        self._found = found.asstr() if text else found
        self.shape: tuple[int, ...] = found.shape
        self.dtype: Any = np.dtype(object) if text else found.dtype
        self.chunks: Any = found.chunks
        self.map: Array | None = None
        offset: int | None = None if text else found.id.get_offset()  # not of chunks
        own = found.id.get_type()
        if offset is not None and own.equal(h5py.h5t.py_create(found.dtype)):
            self.map = np.memmap(path, self.dtype, "r", offset, self.shape)

    def __getitem__(self, rows: slice) -> Array:
        with reading(lambda: self._damaged(*rows.indices(self.shape[0])[:2])):
            return np.asarray(self._found[rows])

    def _damaged(self, start: int, stop: int) -> str:
        """Name the first row that cannot be read, one of these, by bisection."""
        while stop - start > 1:
            middle = (start + stop) // 2
            try:
                self._found[start:middle]
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


def _array(path: Path, name: str) -> Array | DataSet:
    found = DataSet(path, name)
    return found if found.map is None else found.map


def _h5py(path: Path) -> Any:
    try:
        import h5py
    except ImportError:
        raise ClnetError(
            f"cannot read {path}: the package h5py is missing: pip install h5py, or "
            "with clnet: pip install 'clnet[hdf5]'"
        ) from None
    return h5py


def _opened(path: Path) -> Any:
    h5py = _h5py(path)
    check_readable(path)
    with reading(f"{path} is no whole HDF5 file"):
        return h5py.File(path, "r")


def _names(content: Any, kind: type) -> list[str]:
    """Return the names of a file's data sets.

    By its links: HDF5's visit of objects does not end on some damaged files.
    """
    found: list[bytes] = []
    content.id.links.visit(found.append)
    names = [name.decode("utf-8", "surrogateescape") for name in found]
    return [name for name in names if isinstance(content.get(name), kind)]
