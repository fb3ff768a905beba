"""Caches, and copies: of records without their caches, of arrays by several threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache, cached_property
from itertools import accumulate, pairwise
from typing import Any, TypeVar

T = TypeVar("T")

# One thread copies 6 GB/s, four 22, eight 34, sixteen no more; the bus of a GPU takes
# 40 (32 cores, H100).
COPY_THREADS = min(8, max(4, (os.cpu_count() or 1) // 4))
# Of a copy beside others: they read as much as a device of four can take. Each piece
# costs 30 to 60 us of Python's lock, which all wait for.
FEWEST_PIECES = 3


class Uncached:
    """A base whose copies and pickles leave out cached properties."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes but cached properties, which follow from others."""
        cached = {
            name for owner in type(self).__mro__ for name, member in vars(owner).items()
            if isinstance(member, cached_property)
        }
        return {
            name: value for name, value in self.__dict__.items() if name not in cached
        }


class Cache(dict[Any, Any]):
    """A dict of the latest keys: beyond a number, the oldest ones go.

    To take a value that one user has at a time is to `pop` it, and to set it again
    makes it the latest. Threads share it: each call is atomic or harmless.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most: int = most

    def __setitem__(self, key: Any, value: Any) -> None:
        self.pop(key, None)
        if len(self) >= self.most:
            for oldest in list(self)[: len(self) + 1 - self.most]:
                self.pop(oldest, None)
        super().__setitem__(key, value)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(COPY_THREADS, "clnet-copy")


_copies: list[None] = []  # those under way

if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=_threads.cache_clear)
    os.register_at_fork(after_in_child=_copies.clear)


def cut(n: int, shares: int | Sequence[int]) -> list[slice]:
    """Return n rows cut in proportion to shares, or into so many equal ones.

    Equal shares differ by one row at most.
    """
    if isinstance(shares, int):
        shares = [1] * shares
    whole = sum(shares)
    ends = [n * end // whole for end in accumulate(shares, initial=0)]
    return [slice(*pair) for pair in pairwise(ends)]


def by_threads(call: Callable[[T], object], items: Iterable[T]) -> None:
    """Call a function for each item, by this thread and `COPY_THREADS`, and wait.

    The error of the first item is raised, of those that failed. Calls make none of
    their own.
    """
    arguments = list(items)
    started = [_threads().submit(call, argument) for argument in arguments[:-1]]
    try:
        for last in arguments[-1:]:
            call(last)
    finally:
        wait(started)
        for future in started:
            future.result()


@contextmanager
def pieces() -> Iterator[int]:
    """Yield the pieces of a copy by threads, which lasts as long as the context.

    Copies at the same time share the threads.
    """
    _copies.append(None)
    try:
        yield max(FEWEST_PIECES, COPY_THREADS // len(_copies))
    finally:
        _copies.pop()
