"""Heartbeats: each rank tells the next one, once in a while, that it lives.

A thread sends them, so that a long kernel or a long callback is no fault, but a
process that is stopped, or a machine that is gone, is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

BEAT_SECONDS = 0.5
LIMIT_SECONDS = 6.0  # without a beat, after which a rank counts as lost
ALIVE, DONE = 0, 1


class Heartbeat:
    """The thread that sends this rank's beats and receives the previous rank's.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        A communicator for beats alone.
    lost : callable
        Called with the communicator and a sentence if the previous rank is lost.
    """

    def __init__(self, comm: Any, lost: Callable[[Any, str], None]) -> None:
        self._comm, self._lost = comm, lost
        self._rank, self._size = comm.Get_rank(), comm.Get_size()
        self._done = threading.Event()
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
        last: float | None = None
        told = ended = False
        while not (told and ended):
            if not told:
                told = self._done.is_set()
                beat = np.array([DONE if told else ALIVE], np.int8)
                sent = [pair for pair in sent if not pair[0].Test()]
                sent.append((comm.Isend(beat, following), beat))
            now = time.monotonic()
            while not ended and comm.Iprobe(previous):
                beat = np.zeros(1, np.int8)
                comm.Recv(beat, previous)
                last, ended = now, beat[0] == DONE
            if not ended and last is not None and now - last > LIMIT_SECONDS:
                self._lost(comm, (
                    f"rank {previous} of {self._size} has given no sign of life for "
                    f"{LIMIT_SECONDS:g} s: it hangs, it was killed, or its machine "
                    "cannot be reached"
                ))
                return
            pause = BEAT_SECONDS / 100 if told else BEAT_SECONDS
            if told:
                time.sleep(pause)
            else:
                self._done.wait(pause)
        for request, _ in sent:
            request.Wait()
