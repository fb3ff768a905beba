"""Sums of gradients over the blocks of a step, in one order for any number of ranks.

A step's samples are cut into blocks, whose gradients are the leaves of a binary tree. A
rank adds its own blocks, a subtree, and then exchanges sums with ranks at distance
1, 2, 4 … ("recursive doubling": Thakur, Rabenseifner and Gropp, "Optimization of
collective communication operations in MPICH", 2005). Both of a pair add the same two
numbers, so that all ranks have the root's bits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.opencl.memory import Memory, staging_array
from clnet.runtime.ranks import Polls

if TYPE_CHECKING:
    from clnet.opencl.session import Session
    from clnet.runtime.ranks import Ranks

Array = NDArray[Any]

PIECE_BYTES = 1 << 18  # of a message
WINDOW = 8  # pieces on their way at a time


class RankSums:
    """One rank's side of the sums of a flat gradient buffer.

    Parameters
    ----------
    ranks : Ranks
        All ranks.
    session : Session
        Of this rank's device.
    gradients : Memory
        The flat gradient buffer on the device.
    size : int
        Its elements.
    dtype : str
        Type of the elements.
    ordered : bool
        Whether the order is the tree's; else it is that of MPI's all-reduce.
    """

    def __init__(
        self, ranks: Ranks, session: Session, gradients: Memory, size: int, dtype: str,
        ordered: bool,
    ) -> None:
        self._ranks, self._session, self._gradients = ranks, session, gradients
        self._ordered = ordered
        self._size, self._dtype = size, dtype
        self._received = np.zeros(size if ranks.size > 1 else 0, dtype)
        item = np.dtype(dtype).itemsize
        length = PIECE_BYTES // item
        self._pieces = [
            slice(start, min(start + length, size)) for start in range(0, size, length)
        ]
        self._item = item
        self._free: list[Array] = []  # buffers
        self._partial: list[Array | None] = []  # sums of subtrees, the largest first
        self._leaves = 0

    def add(self, present: bool) -> None:
        """Add the next of this rank's blocks, after all enqueued steps.

        Parameters
        ----------
        present : bool
            Whether the block has samples; else it adds nothing.
        """
        node = self._downloaded() if present else None
        count = self._leaves
        while count & 1:  # the left sibling waits
            node = self._merged(self._partial.pop(), node)
            count >>= 1
        self._partial.append(node)
        self._leaves += 1

    def sum_up(self, present: Sequence[bool]) -> None:
        """Replace the gradients on the device by the sum over all ranks' blocks.

        Parameters
        ----------
        present : sequence of bool
            Whether each rank has samples in its blocks.
        """
        while len(self._partial) > 1:
            last = self._partial.pop()
            self._partial.append(self._merged(self._partial.pop(), last))
        own = self._partial.pop() if self._partial else None
        self._leaves = 0
        if own is None:
            own = self._buffer()
            own[...] = 0
        if self._ranks.size > 1:
            (self._exchange if self._ordered else self._reduce)(own, present)
        self._upload(own)
        self._free.append(own)

    def _merged(self, left: Array | None, right: Array | None) -> Array | None:
        if left is None or right is None:
            return right if left is None else left
        with np.errstate(all="ignore"):  # of the padding too
            np.add(left, right, out=left)
        self._free.append(right)
        return left

    def _buffer(self) -> Array:
        if self._free:
            return self._free.pop()
        return staging_array(self._session, (self._size,), self._dtype)

    def _downloaded(self) -> Array:
        import pyopencl as cl

        found = self._buffer()
        self._session.finish()
        if self._gradients.array is not None:
            found[...] = self._gradients.array[: found.nbytes].view(found.dtype)
        else:
            cl.enqueue_copy(self._session.queue, found, self._gradients.argument)
        return found

    def _upload(self, values: Array) -> None:
        self._gradients.write(self._session, values)

    def _reduce(self, own: Array, present: Sequence[bool]) -> None:
        comm, received = self._ranks.comm, self._received
        self._ranks.wait(*(
            comm.Iallreduce(own[piece], received[piece]) for piece in self._pieces
        ))
        own[...] = received

    def _exchange(self, own: Array, present: Sequence[bool]) -> None:
        """Add the other ranks' sums to this rank's, piece by piece, level by level."""
        comm, rank = self._ranks.comm, self._ranks.rank
        waiting = deque(enumerate(self._pieces))
        active: list[_Piece] = []
        polls = Polls()
        while waiting or active:
            while waiting and len(active) < WINDOW:
                number, piece = waiting.popleft()
                active.append(_Piece(
                    comm, rank, present, number, own[piece], self._received[piece]
                ))
            before = len(active)
            active = [one for one in active if not one.done()]
            if len(active) == before:
                polls.pause()
            else:
                polls = Polls()


class _Piece:
    """A piece of a sum on its way up the tree."""

    def __init__(
        self, comm: Any, rank: int, present: Sequence[bool], tag: int, own: Array,
        received: Array,
    ) -> None:
        self._comm, self._rank, self._present, self._tag = comm, rank, present, tag
        self._own, self._received = own, received
        self._width = 1  # ranks whose sum this rank has
        self._requests: list[Any] = []
        self._receives = self._sends = False
        self._start()

    def done(self) -> bool:
        """Go on as far as messages have arrived; return whether the sum is complete."""
        while self._width < len(self._present):
            if not all(request.Test() for request in self._requests):
                return False
            if self._receives and self._sends:
                with np.errstate(all="ignore"):
                    np.add(self._own, self._received, out=self._own)
            elif self._receives:
                self._own[...] = self._received
            self._width *= 2
            self._start()
        return True

    def _start(self) -> None:
        if self._width == len(self._present):
            return
        width, other = self._width, self._rank ^ self._width
        self._sends, self._receives = (
            any(self._present[first : first + width])
            for first in (self._rank // width * width, other // width * width)
        )
        self._requests = []
        if self._receives:
            request = self._comm.Irecv(self._received, other, self._tag)
            self._requests.append(request)
        if self._sends:
            self._requests.append(self._comm.Isend(self._own, other, self._tag))
