"""Copies: of records, without what they cache; of arrays, by several threads."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from typing import Any, TypeVar

T = TypeVar("T")

# One thread copies 6 GB/s, four 22, eight 34, sixteen no more; the bus of a GPU takes
# 40 (32 cores, H100).
COPY_THREADS = min(8, max(4, (os.cpu_count() or 1) // 4))


class Uncached:
    """A base whose copies and pickles leave out cached properties."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes but cached properties, which follow from others."""
        cached = {
            name for owner in type(self).__mro__ for name, found in vars(owner).items()
            if isinstance(found, cached_property)
        }
        return {
            name: value for name, value in self.__dict__.items() if name not in cached
        }


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(COPY_THREADS, "clnet-copy")


if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=_threads.cache_clear)


def by_threads(call: Callable[[T], object], items: Iterable[T]) -> None:
    """Call a function for each item, by `COPY_THREADS` threads, and wait.

    The error of the first item is raised, of those that failed. Calls make none of
    their own.
    """
    deque(_threads().map(call, items), maxlen=0)
