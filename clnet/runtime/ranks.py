"""Ranks: the processes of an MPI communicator that share a computation.

The main thread never blocks in MPI: it polls requests, and sleeps between polls, so
that ranks that wait leave the processor to ranks that compute.
"""

from __future__ import annotations

import os
import pickle
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

import clnet
from clnet.errors import (
    BuildError,
    ClnetError,
    DeviceError,
    InputError,
    quoted,
    silent,
)
from clnet.nn.copies import cut

Array = NDArray[Any]
T = TypeVar("T")

SPINS = 20  # polls before the first sleep
SLEEP_SECONDS = 20e-6  # the first one; each is longer than the one before
MAX_SLEEP_SECONDS = 1e-3
ABORT_SECONDS = 2.0  # after which a rank ends itself, if MPI does not end it


class Ranks:
    """The ranks of a communicator; made by `joined`."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        hosts = self.gathered(platform.node())
        self.local: int = hosts[: self.rank].count(hosts[self.rank])

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which alone writes files and calls callbacks."""
        return self.rank == 0

    def wait(self, *requests: Any) -> None:
        """Wait for requests."""
        waiting, polls = list(requests), Polls()
        while True:
            waiting = [request for request in waiting if not request.Test()]
            if not waiting:
                return
            polls.pause()

    def gathered(self, value: Any) -> list[Any]:
        """Return the values of all ranks, on each; any that pickle takes."""
        text = np.frombuffer(pickle.dumps(value), np.uint8)
        sizes = np.zeros(self.size, np.int64)
        self.wait(self.comm.Iallgather(np.array([text.size]), sizes))
        padded = np.zeros(sizes.max(), np.uint8)
        padded[: text.size] = text
        texts = np.zeros((self.size, padded.size), np.uint8)
        self.wait(self.comm.Iallgather(padded, texts))
        return [
            pickle.loads(row[:size].tobytes())
            for row, size in zip(texts, sizes, strict=True)
        ]

    def stacked(self, rows: Array) -> Array:
        """Return the rows [n, width] of all ranks, in their order, on each."""
        counts = [n * rows.shape[1] for n in self.gathered(len(rows))]
        stacked = np.empty((sum(counts) // rows.shape[1], rows.shape[1]), rows.dtype)
        self.wait(self.comm.Iallgatherv(np.ascontiguousarray(rows), [stacked, counts]))
        return stacked

    def from_first(self, call: Callable[[], T]) -> T:
        """Return the result of rank 0's call, or raise its error, on each rank."""
        text = np.zeros(0, np.uint8)
        if self.first:
            try:
                outcome: tuple[Any, ClnetError | None] = call(), None
            except BuildError as error:  # of more arguments than pickle gives it
                outcome = None, DeviceError(str(error))
            except ClnetError as error:
                outcome = None, error
            text = np.frombuffer(bytearray(pickle.dumps(outcome)), np.uint8)
        size = np.array([text.size])
        self.wait(self.comm.Ibcast(size, 0))
        if not self.first:
            text = np.zeros(size[0], np.uint8)
        self.wait(self.comm.Ibcast(text, 0))
        result, failure = outcome if self.first else pickle.loads(text.tobytes())
        if failure is not None:
            raise self._as_agreed(failure)
        return result  # type: ignore[no-any-return]

    def together(self, call: Callable[[], T]) -> T:
        """Return the result of this rank's call, which succeeds on all ranks."""
        failure: ClnetError | None = None
        try:
            result = call()
        except ClnetError as error:
            failure = error
        errors = self.gathered(None if failure is None else str(failure))
        for rank, text in enumerate(errors):
            if text is not None:
                other = InputError(f"rank {rank} of {self.size}: {text}")
                raise self._as_agreed(failure or other)
        return result

    def check_alike(self, described: dict[str, Any]) -> None:
        """Raise InputError on all ranks unless their descriptions are equal."""
        rows = self.gathered(described)
        for rank, row in enumerate(rows):
            for name, value in rows[0].items():
                if row.get(name) != value:
                    raise self._as_agreed(InputError(
                        f"rank {rank} of {self.size} has {name.replace('_', ' ')} "
                        f"{row.get(name)}, and rank 0 {value}"
                    ))

    def _as_agreed(self, error: ClnetError) -> ClnetError:
        error.rank = self.rank
        return error


class Polls:
    """Pauses between polls: none at first, then longer ones."""

    def __init__(self) -> None:
        self._count = 0

    def pause(self) -> None:
        """Sleep, if polls have found nothing for a while."""
        self._count += 1
        if self._count > SPINS:
            factor = 1 + (self._count - SPINS) / SPINS
            time.sleep(min(MAX_SLEEP_SECONDS, SLEEP_SECONDS * factor))


@contextmanager
def joined(comm: Any, call: str) -> Iterator[Ranks | None]:
    """Give the ranks of a communicator; all end if one fails.

    A rank that raises an error that the others do not raise writes a sentence on stderr
    and ends all ranks by MPI's Abort.
    """
    if comm is None:
        yield None
        return
    duplicate = _duplicate(comm)
    try:
        ranks = Ranks(duplicate)
        with nullcontext() if ranks.first else silent():  # its warnings are all's
            ranks.check_alike({"clnet": clnet.__version__, "called": call})
            yield ranks
    except BaseException as error:
        if not isinstance(error, ClnetError) or error.rank is None:
            _abort(duplicate, error)
        raise
    finally:
        duplicate.Free()


def _duplicate(comm: Any) -> Any:
    """Return a communicator of the same ranks, whose messages are its own."""
    if not all(hasattr(comm, name) for name in ("Idup", "Iallgather", "Abort")):
        raise InputError(
            "comm must be a communicator of mpi4py, as MPI.COMM_WORLD, not "
            f"{quoted(comm)}"
        )
    duplicate, request = comm.Idup()
    polls = Polls()
    while not request.Test():
        polls.pause()
    return duplicate


def _abort(comm: Any, error: BaseException) -> None:
    """Tell on stderr which error ends this rank, and end all ranks."""
    if not isinstance(error, (ClnetError, KeyboardInterrupt)):
        traceback.print_exception(error)
    end = "was interrupted" if isinstance(error, KeyboardInterrupt) else (
        f"failed: {type(error).__name__}: {error}"
    )
    rank = f"rank {comm.Get_rank()} of {comm.Get_size()}"
    print(f"clnet: {rank} {end}; all ranks end", file=sys.stderr, flush=True)
    comm.Abort(1)
    time.sleep(ABORT_SECONDS)
    os._exit(1)


def sizes_of(n: int, shares: int | Sequence[int]) -> list[int]:
    """Return the samples of each piece of `cut`."""
    return list(map(size_of, cut(n, shares)))


def size_of(piece: slice) -> int:
    """Return the samples of a piece that is cut off."""
    size: int = piece.stop - piece.start
    return size
