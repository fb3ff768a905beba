"""Copies by several threads."""

import sys
import threading

import numpy as np
import pytest
from children import run_python

from clnet.nn.copies import COPY_THREADS, FEWEST_PIECES, Cache, by_threads, pieces


def test_all_items_are_done_when_it_returns():
    found = np.zeros(100)
    names = set()

    def fill(at):
        found[at] = at
        names.add(threading.current_thread().name)

    by_threads(fill, range(100))
    assert found.tolist() == list(range(100))
    assert len(names) <= COPY_THREADS + 1  # this one too
    by_threads(fill, [])


def test_the_first_items_error_is_raised():
    def fail(at):
        if at > 2:
            raise ValueError(f"item {at}")

    with pytest.raises(ValueError, match="item 3"):
        by_threads(fail, range(50))


def test_copies_at_the_same_time_share_the_threads():
    for _ in range(2):
        with pieces() as alone, pieces() as second, pieces() as third:
            assert alone == COPY_THREADS
            assert second == max(FEWEST_PIECES, COPY_THREADS // 2)
            assert third == max(FEWEST_PIECES, COPY_THREADS // 3)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_fork_has_threads_of_its_own():
    code = (
        "import os, warnings; from clnet.nn.copies import by_threads\n"
        "warnings.simplefilter('ignore')\n"
        "by_threads(abs, range(9))\n"
        "child = os.fork()\n"
        "by_threads(abs, range(9))\n"
        "if child: assert os.waitpid(child, 0)[1] == 0\n"
    )
    run_python("-c", code, check=True)


def test_a_cache_keeps_the_latest():
    cache = Cache(3)
    for key in "abcd":
        cache[key] = key.upper()
    assert list(cache) == ["b", "c", "d"]
    cache["b"] = "again"  # the latest now
    cache["e"] = "E"
    assert cache == {"d": "D", "b": "again", "e": "E"}
    assert cache.pop("d", None) == "D"
    cache["f"] = "F"
    assert list(cache) == ["b", "e", "f"]
