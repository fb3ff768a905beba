"""Heartbeats: each rank tells the next one, once in a while, that it lives.

A thread sends them, so that a long kernel or a long callback is no fault, but a
process that is stopped, or a machine that is gone, is. The thread also watches its own
rank: one that stands still, neither waiting for others nor using the processor, hangs.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

BEAT_SECONDS = 0.5
LIMIT_SECONDS = 6.0  # without a beat, after which a rank counts as lost
STILL_SECONDS = 60.0  # without a move, after which a rank hangs
IDLE = 0.02  # of a core: less is no work
ALIVE, DONE = 0, 1


class Watch:
    """The watch over the thread that makes it: whether it moves or works.

    Attributes
    ----------
    polls : int
        Of all ranks' waits for each other, in which a thread may stay for long.
    """

    polls: ClassVar[int] = 0

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._place = self._seen()
        self._since = time.monotonic(), time.process_time()

    def _seen(self) -> tuple[int, ...]:
        frame = sys._current_frames().get(self._thread)
        place = (0, 0) if frame is None else (id(frame), frame.f_lasti)
        return (*place, Watch.polls)

    def hangs(self) -> str | None:
        """Return where the thread has stood still for too long, or None."""
        now, used, seen = time.monotonic(), time.process_time(), self._seen()
        seconds, work = now - self._since[0], used - self._since[1]
        if seen != self._place or work > max(IDLE * seconds, IDLE):
            self._place, self._since = seen, (now, used)
        elif seconds > STILL_SECONDS:
            frame = sys._current_frames().get(self._thread)
            last = traceback.extract_stack(frame)[-1]
            return f"{last.name} ({Path(last.filename).name}, line {last.lineno})"
        return None


class Heartbeat:
    """The thread that sends this rank's beats and receives the previous rank's.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        A communicator for beats alone.
    lost : callable
        Called with the communicator and a sentence if the previous rank is lost, or
        this one hangs.
    """

    def __init__(self, comm: Any, lost: Callable[[Any, str], None]) -> None:
        self._comm, self._lost = comm, lost
        self._rank, self._size = comm.Get_rank(), comm.Get_size()
        self._done = threading.Event()
        self._watch = Watch()
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
            place = None if told else self._watch.hangs()
            if place is not None:
                self._lost(comm, (
                    f"rank {self._rank} of {self._size} hangs: for "
                    f"{STILL_SECONDS:g} s it has stood still in {place}"
                ))
                return
            pause = BEAT_SECONDS / 100 if told else BEAT_SECONDS
            if told:
                time.sleep(pause)
            else:
                self._done.wait(pause)
        for request, _ in sent:
            request.Wait()
