"""Heartbeats: each rank tells the next one, once in a while, that it lives.

A thread sends them, so that a long kernel or a long callback is no fault, but a
process that is stopped, or a machine that is gone, is. The thread also watches its own
rank: one that stands still hangs. Seconds are counted by the thread's own turns, so
that a machine that stands still as a whole is no fault of a rank.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from clnet.runtime.watch import Watch

BEAT_SECONDS = 0.5
LIMIT_SECONDS = 6.0  # without a beat, after which a rank counts as lost
TURN_SECONDS = 1.0  # that a turn counts at most
ALIVE, DONE = 0, 1


class Heartbeat:
    """The thread that sends this rank's beats and receives the previous rank's."""

    def __init__(self, comm: Any, lost: Callable[[Any, str], None]) -> None:
        self._comm, self._lost = comm, lost
        self._rank, self._size = comm.Get_rank(), comm.Get_size()
        self._done = threading.Event()
        self.watch: Watch | None = None
        self._thread = threading.Thread(
            target=self._run, name="clnet-heartbeat", daemon=True
        )

    def start(self) -> None:
        """Start the thread, if there are other ranks."""
        if self._size > 1:
            self._thread.start()

    def end(self) -> None:
        """Tell the next rank that no beats follow, and wait for the previous one."""
        self._done.set()
        if self._size > 1:
            self._thread.join()
        self._comm.Free()

    def _run(self) -> None:
        comm, size = self._comm, self._size
        previous, following = (self._rank - 1) % size, (self._rank + 1) % size
        sent: list[tuple[Any, Any]] = []
        silence: float | None = None  # since the last beat
        told = ended = False
        before = time.monotonic()
        while not (told and ended):
            now = time.monotonic()
            turn, before = min(now - before, TURN_SECONDS), now
            if not told:
                told = self._done.is_set()
                beat = np.array([DONE if told else ALIVE], np.int8)
                sent = [pair for pair in sent if not pair[0].Test()]
                sent.append((comm.Isend(beat, following), beat))
            if silence is not None:
                silence += turn
            while not ended and comm.Iprobe(previous):
                beat = np.zeros(1, np.int8)
                comm.Recv(beat, previous)
                silence, ended = 0.0, beat[0] == DONE
            if not ended and silence is not None and silence > LIMIT_SECONDS:
                self._lost(comm, (
                    f"rank {previous} of {self._size} has given no sign of life for "
                    f"{LIMIT_SECONDS:g} s: it hangs, it was killed, or its machine "
                    "cannot be reached"
                ))
                return
            watch = None if told else self.watch
            still = None if watch is None else watch.hangs(turn)
            if still is not None:
                self._lost(comm, f"rank {self._rank} of {self._size} hangs: {still}")
                return
            if told:
                time.sleep(BEAT_SECONDS / 100)
            else:
                self._done.wait(BEAT_SECONDS)
        for request, _ in sent:
            request.Wait()
