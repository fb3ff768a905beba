"""Waits of tests for conditions, threads and child processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

# Until a thread or a process counts as hung: far above the time that it takes on a
# machine with many processes a core.
HANG_SECONDS = 600.0
POLL_SECONDS = 0.01


def until(condition: Callable[[], object], seconds: float = HANG_SECONDS) -> bool:
    """Wait until a condition holds; return whether it does."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(POLL_SECONDS)
    return True


def join(threads: Iterable[threading.Thread]) -> None:
    """Wait for threads to end; one that hangs fails the test."""
    for thread in threads:
        thread.join(HANG_SECONDS)
        assert not thread.is_alive()
