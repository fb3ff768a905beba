"""Turns: locks that a call holds from its start to its end, whatever interrupts it."""

from __future__ import annotations

import threading
from contextlib import suppress


def release(lock: threading.RLock) -> None:
    """Release a lock if this thread holds it.

    An interrupt (Ctrl-C) may come between `acquire` and the statement after it: the
    `try` that ends in this must begin before `acquire`.
    """
    with suppress(RuntimeError):
        lock.release()


class Turn:
    """The turn of one call: `begin` waits for it, `end` gives it to the next."""

    def __init__(self) -> None:
        self.lock: threading.RLock = threading.RLock()
        self.owner: int | None = None
        self.busy: bool = False

    @property
    def is_mine(self) -> bool:
        """Whether this thread has begun a call that has not ended."""
        return self.owner == threading.get_ident()

    def begin(self) -> None:
        """Wait for the turn; after an error in here, call `end` all the same."""
        self.lock.acquire()
        self.owner = threading.get_ident()
        self.busy = True

    def end(self) -> None:
        """End this thread's turn, if it has it."""
        if self.is_mine:
            self.busy = False
            self.owner = None
        release(self.lock)
