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
    """The turn of one call: `begin` waits for it, `end` gives it to the next.

    Attributes
    ----------
    lock : threading.RLock
        Held by calls that end where they begin: ``with turn.lock``.
    owner : int or None
        The thread that has begun a call; None: no call has begun.
    busy : bool
        Whether a call has the turn that others cannot see by a lock of theirs: direct
        calls then take the long way. A call that is interrupted as it ends may leave it
        True, which costs the next call some time.
    """

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
