"""Sums of gradients over the blocks of a step, in one order for any number of ranks.

A step's samples are cut into blocks, whose gradients are the leaves of a binary tree. A
rank adds its own blocks, a subtree, and then exchanges sums with ranks at distance
1, 2, 4 … ("recursive doubling": Thakur, Rabenseifner and Gropp, "Optimization of
collective communication operations in MPICH", 2005). Both of a pair add the same two
numbers, so that all ranks have the root's bits.

Pieces of the last block's gradients are on their way while the block's launches compute
others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.opencl.memory import Memory, staging_array
from clnet.runtime.gradient_transfer import GradientTransfer
from clnet.runtime.ranks import Polls

if TYPE_CHECKING:
    from clnet.nn.storage.layout import Layout
    from clnet.opencl.session import Session
    from clnet.runtime.binding import PlanStep
    from clnet.runtime.ranks import Ranks
    from clnet.runtime.replay import Replay

Array = NDArray[Any]

PIECE_BYTES = 1 << 18  # of a message
WINDOW = 8  # pieces on their way at a time


class RankSums:
    """One rank's side of the sums of a flat gradient buffer over all ranks' blocks.

    The rank adds `blocks` of its own. Without `ordered`, sums have MPI's order.
    """

    def __init__(
        self, ranks: Ranks, session: Session, gradients: Memory, layout: Layout,
        dtype: str, steps: Sequence[PlanStep], blocks: int, *, ordered: bool,
    ) -> None:
        self._ranks, self._session, self._gradients = ranks, session, gradients
        self._size, self._dtype = layout.size, dtype
        self._blocks, self._ordered = blocks, ordered
        exchanged = layout.size if ordered and ranks.size > 1 else 0
        self._received = np.zeros(exchanged, dtype)
        self._transfer = GradientTransfer(
            session, gradients, layout, dtype, steps, PIECE_BYTES
        )
        self._free: list[Array] = []  # buffers
        self._partial: list[Array | None] = []  # sums of subtrees, the largest first
        self._leaves = 0  # blocks of this step so far
        self._has_last = False  # whether the last one has samples
        self._present: list[bool] = []  # whether each rank has any
        self._waiting: deque[int] = deque()  # pieces that are downloaded
        self._active: list[_Tree | _AllReduce] = []

    def begin(self, present: Sequence[bool]) -> None:
        """Begin a step, of which each block of all ranks has samples or none."""
        self._leaves = 0
        self._present = [
            any(present[first : first + self._blocks])
            for first in range(0, len(present), self._blocks)
        ]

    def add(self, number: int, replay: Replay | None) -> None:
        """Compute the next of this rank's blocks; None: it has no samples.

        The pieces of the last block are summed over ranks as they are complete: a rank
        has a power of two of blocks, and the last one ends all its subtrees.
        """
        self._leaves += 1
        if self._leaves == self._blocks:
            self._has_last = replay is not None
            if replay is None:
                self._session.finish()  # it may still read the sum of the step before
                self._waiting += self._transfer.order
                return
            for numbers in self._transfer.run(replay):
                self._waiting += numbers
                self._advance()
            return
        node = None
        if replay is not None:
            replay.run()
            node = self._downloaded()
        count = self._leaves - 1
        while count & 1:  # the left sibling waits
            node = self._merged(self._partial.pop(), node)
            count >>= 1
        self._partial.append(node)

    def finish(self) -> None:
        """Replace the gradients by the sum, before the steps enqueued next."""
        polls = Polls()
        while self._waiting or self._active:
            if self._advance():
                polls = Polls()
            else:
                polls.pause()
        self._transfer.end_uploads()
        self._free += [partial for partial in self._partial if partial is not None]
        self._partial = []

    def end(self) -> None:
        """Let the next uploads wait for the steps that read the sum."""
        self._transfer.hold_uploads()

    def explain(self, step_seconds: float | None) -> str:
        """Return the share of the gradients that is summed beside the steps."""
        early = self._transfer.early
        return f"{early:.0%} of the gradients are summed while others are computed"

    def _advance(self) -> bool:
        """Go on as far as pieces have arrived; return whether any has."""
        waiting, transfer = self._waiting, self._transfer
        before = len(self._active), len(waiting)
        while waiting and len(self._active) < WINDOW:
            if self._has_last and not transfer.has_arrived(waiting[0]):
                break
            number = waiting.popleft()
            self._active.append(self._sum(number, self._added(number)))
        for piece in self._active:
            if piece.done():
                transfer.start_upload(piece.number, piece.total)
        self._active = [piece for piece in self._active if not piece.ended]
        return before != (len(self._active), len(waiting))

    def _added(self, number: int) -> Array:
        """Return a piece of the sum of this rank's blocks."""
        piece, has_sum = self._transfer.pieces[number], self._has_last
        if has_sum:
            total = self._transfer.downloaded(number)
        else:
            total = self._transfer.host[piece]
        for partial in reversed(self._partial):
            if partial is None:
                continue
            if has_sum:
                with np.errstate(all="ignore"):  # of the padding too
                    np.add(partial[piece], total, out=total)
            else:
                total[...] = partial[piece]
                has_sum = True
        if not has_sum:
            total[...] = 0
        return total

    def _sum(self, number: int, total: Array) -> _Tree | _AllReduce:
        if not self._ordered:
            return _AllReduce(self._ranks.comm, number, total)
        received = self._received[self._transfer.pieces[number]]
        return _Tree(
            self._ranks.comm, self._ranks.rank, self._present, number, total, received
        )

    def _merged(self, left: Array | None, right: Array | None) -> Array | None:
        if left is None or right is None:
            return right if left is None else left
        with np.errstate(all="ignore"):  # of the padding too
            np.add(left, right, out=left)
        self._free.append(right)
        return left

    def _downloaded(self) -> Array:
        """Return the gradients of a block in a buffer of their own."""
        gradients = self._free.pop() if self._free else staging_array(
            self._session, (self._size,), self._dtype
        )
        self._gradients.read_into(self._session, gradients)
        return gradients


class _AllReduce:
    """A piece of a sum by MPI's all-reduce; attributes as of `_Tree`."""

    def __init__(self, comm: Any, number: int, total: Array) -> None:
        from mpi4py import MPI

        self.number, self.total = number, total
        self.ended: bool = False
        self._request = comm.Iallreduce(MPI.IN_PLACE, total)

    def done(self) -> bool:
        """Return whether the sum is complete."""
        self.ended = self._request.Test()
        return self.ended


class _Tree:
    """A piece of a sum on its way up the tree."""

    def __init__(
        self, comm: Any, rank: int, present: Sequence[bool], number: int, total: Array,
        received: Array,
    ) -> None:
        self.number, self.total = number, total
        self.ended: bool = False
        self._comm, self._rank, self._present = comm, rank, present
        self._received = received
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
                    np.add(self.total, self._received, out=self.total)
            elif self._receives:
                self.total[...] = self._received
            self._width *= 2
            self._start()
        self.ended = True
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
            request = self._comm.Irecv(self._received, other, self.number)
            self._requests.append(request)
        if self._sends:
            self._requests.append(self._comm.Isend(self.total, other, self.number))
