"""The formats by name, and their memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from clnet.checks import INT_MAX, as_whole, check_name
from clnet.errors import InputError
from clnet.nn.storage.dense import MaskedStorage
from clnet.nn.storage.sparse import (
    SHARE,
    CooStorage,
    CsrStorage,
    DiaStorage,
    EllStorage,
    SellStorage,
    SparseStorage,
    hyb_width,
    index_array,
)

if TYPE_CHECKING:
    from clnet.nn.storage.base import Storage
    from clnet.nn.storage.pattern import Pattern

Part = MaskedStorage | SparseStorage
Parts = tuple[Part, ...]
"""Storages that add up to a matrix."""


def hyb(pattern: Pattern, share: float = SHARE) -> Parts:
    """Return the parts of a pattern: an `EllStorage`, a `CooStorage`, or both."""
    first = pattern.ranks < hyb_width(pattern, share)
    if first.all():
        return (EllStorage(pattern),)
    if not first.any():
        return (CooStorage(pattern),)
    return EllStorage(pattern.where(first)), CooStorage(pattern.where(~first))


FORMATS: dict[str, Callable[[Pattern], Parts]] = {
    "dense": lambda pattern: (MaskedStorage.of(pattern),),
    "coo": lambda pattern: (CooStorage(pattern),),
    "csr": lambda pattern: (CsrStorage(pattern),),
    "ell": lambda pattern: (EllStorage(pattern),),
    "hyb": hyb,
    "dia": lambda pattern: (DiaStorage(pattern),),
    "sell": lambda pattern: (SellStorage(pattern),),
}
"""Constructors of a pattern's storages, by the format's name."""

AUTO = "auto"
DEFAULT_FORMAT = "csr"
"""The format of ``"auto"`` where nothing was measured. Above the memory limit it is the
format of the fewest bytes."""


def check_format(name: object) -> None:
    """Raise InputError unless a name is one of `FORMATS` or ``"auto"``."""
    check_name("format", name, (*FORMATS, AUTO))


def parts(
    blocks: Sequence[Pattern | None],
    name: str,
    item_size: int,
    memory_limit: int | None = None,
) -> tuple[Parts, ...]:
    """Return the storages of each block of a matrix, in one format.

    A block without entries is None. ``"auto"`` is `DEFAULT_FORMAT`, or, where all
    blocks take more bytes than the limit, the format of the fewest. InputError: the
    format is unknown, or the limit too small.
    """
    check_format(name)

    def size(form: str) -> int:
        return padded_nbytes(blocks, form, item_size)

    format_name = DEFAULT_FORMAT if name == AUTO else name
    if memory_limit is not None and size(format_name) > memory_limit:
        if name == AUTO:
            format_name = min(FORMATS, key=size)
        needed = size(format_name)
        if needed > memory_limit:
            raise InputError(
                f"the {sum(len(b) for b in blocks if b is not None)} connections of a "
                f"layer need {needed} bytes as {format_name}, the memory limit is "
                f"{memory_limit}"
            )
    make = FORMATS[format_name]
    storages = tuple(() if block is None else make(block) for block in blocks)
    for storage in itertools.chain(*storages):
        as_whole(f"the number of values as {format_name}", storage.size, most=INT_MAX)
    return storages


def nbytes(storages: Iterable[Storage], item_size: int) -> int:
    """Return the bytes of storages: values, of item_size each, and index arrays."""
    return sum(storage.nbytes(item_size) for storage in storages)


def predicted_nbytes(pattern: Pattern, name: str, item_size: int) -> int:
    """Return the bytes of a pattern in a format, without making large arrays."""
    n_out, n_in = pattern.n_out, pattern.n_in
    index = item_size + index_array(np.zeros(0, np.int64), n_in).itemsize
    if name == "ell":
        lengths = index_array(np.zeros(0, np.int64), pattern.longest + 1).itemsize
        return n_out * (pattern.longest * index + lengths)
    if name == "dia":
        return DiaStorage(pattern).offsets.size * (n_out * item_size + 4)
    if name == "sell":
        storage = SellStorage(pattern)
        rows = index_array(np.zeros(0, np.int64), n_out).itemsize
        lengths = index_array(np.zeros(0, np.int64), pattern.longest + 1).itemsize
        starts = 4 * (storage.slices + 1)
        return storage.size * index + starts + n_out * (rows + lengths)
    return nbytes(FORMATS[name](pattern), item_size)


def padded_nbytes(
    blocks: Iterable[Pattern | None], name: str, item_size: int
) -> int:
    """Return the bytes of blocks in a format, or in the default one of ``"auto"``."""
    form = DEFAULT_FORMAT if name == AUTO else name
    return sum(
        predicted_nbytes(block, form, item_size)
        for block in blocks if block is not None
    )
