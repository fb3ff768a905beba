"""All-reduce of the gradients of devices of one process, through pinned host memory.

Pieces go both ways at once, the last layer's first, while devices compute others. A
device receives one gradient: of two devices the other's, which it adds to its own; of
more the sum, which the host adds in the devices' order. So all have the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.nn.copies import by_threads
from clnet.opencl.bound import Bound
from clnet.opencl.launch import GRADIENTS, Scratch
from clnet.opencl.memory import Memory, staging_array
from clnet.runtime.gradient_transfer import (
    GradientTransfer,
    bus_seconds,
    completing_steps,
    pieces_of,
)
from clnet.variants.training.optimisers import gradient_sum

if TYPE_CHECKING:
    from clnet.nn.storage.layout import Layout
    from clnet.opencl.session import Session
    from clnet.runtime.binding import Step

Array = NDArray[Any]

CHUNK_BYTES = 4 << 20  # a copy to or from a current GPU takes some 80 us
SUM_THREADS = 4  # of a piece: with eight a step was a quarter longer (two H100)


class GradientExchange:
    """The all-reduce of the flat gradient buffers of several devices."""

    def __init__(
        self, sessions: Sequence[Session], gradients: Sequence[Memory],
        layout: Layout, dtype: str, receivers: int,
    ) -> None:
        self._pieces = pieces_of(layout, CHUNK_BYTES // np.dtype(dtype).itemsize)
        self._bytes = layout.size * np.dtype(dtype).itemsize
        self._transfers = [
            GradientTransfer(*one, dtype, self._pieces, lends=True)
            for one in zip(sessions, gradients, strict=True)
        ]
        self._receivers = range(receivers)
        self._completed: list[dict[int, list[int]]] = [{} for _ in sessions]
        self._order: list[int] = []
        self._additions: list[_Addition] = []
        if len(sessions) == 2:
            self._additions = [
                _Addition(*one, layout.size, dtype)
                for one in zip(sessions[:receivers], gradients, strict=False)
            ]
        else:
            self._total = staging_array(sessions[0], (layout.size,), dtype)
        self._bus_seconds = bus_seconds(self._transfers)

    def plan(self, number: int, steps: Sequence[Step]) -> None:
        """Take the steps of a device that compute its gradients."""
        ends = completing_steps(steps, self._pieces)
        order = sorted(range(len(ends)), key=ends.__getitem__)
        self._completed[number] = {
            end: list(pieces) for end, pieces in groupby(order, ends.__getitem__)
        }
        if not number or not self._order:
            self._order = order

    def pauses(self, number: int) -> list[int]:
        """Return the numbers of a device's steps that complete pieces, ascending."""
        return list(self._completed[number])

    def start(self, number: int, run: Iterable[int]) -> None:
        """Start the downloads from a device, as its steps are enqueued."""
        self._transfers[number].begin()
        for end in run:
            self._transfers[number].start_download(self._completed[number][end])

    def exchange(self, senders: Sequence[int]) -> None:
        """Replace receivers' gradients by the sum, before the steps enqueued next."""
        for number, transfer in enumerate(self._transfers):
            if number not in senders:
                transfer.finish()  # it may still read the sum of the step before
        adds = bool(self._additions) and len(senders) == 2
        for piece in self._order:
            found = [self._transfers[i].downloaded(piece) for i in senders]
            total = found[0]
            if len(found) > 1 and not adds:
                total = self._total[self._pieces[piece]]
                add_all(found, total)
            for number in self._receivers:
                transfer = self._transfers[number]
                if adds:
                    received = self._additions[number].received
                    transfer.start_upload(piece, found[1 - number], received)
                elif list(senders) != [number]:
                    transfer.start_upload(piece, total)
        for number in self._receivers:
            self._transfers[number].end_uploads()
            if adds:
                self._additions[number].run()

    def end(self) -> None:
        """Let the next uploads wait for the steps that read the sum."""
        for number in self._receivers:
            self._transfers[number].hold_uploads()

    def explain(self, step_seconds: float | None) -> str:
        """Return the bytes that cross the bus in a step, and the share of its time."""
        late = [
            sum(self._pieces[i].stop - self._pieces[i].start for i in last)
            for completed in self._completed if completed
            for last in [completed[max(completed)]]
        ]
        early = 1 - max(late) / self._pieces[-1].stop
        text = (
            f"{self._bytes / 1e6:.3g} MB of gradients each way, "
            f"{self._bus_seconds * 1e3:.3g} ms on the bus a step"
        )
        if step_seconds is not None:
            text += f", {self._bus_seconds / step_seconds:.0%} of its time"
        return f"{text}; {early:.0%} of them while others are computed"


class _Addition:
    """The addition of the other device's gradients, on one of two devices."""

    def __init__(
        self, session: Session, gradients: Memory, size: int, dtype: str
    ) -> None:
        launch = gradient_sum(size, dtype, session.device)
        self._session = session
        self._bound = Bound(session, dtype, buffers={GRADIENTS.name: gradients})
        self._run = self._bound.launch(launch, session.device)
        self.received: Memory = self._bound.memory(next(
            argument for argument in launch.arguments if isinstance(argument, Scratch)
        ))

    def run(self) -> None:
        """Enqueue it."""
        self._run()
        self._session.barrier()


def add_all(arrays: Sequence[Array], total: Array) -> None:
    """Add arrays [n] in their order, by `SUM_THREADS` threads."""
    cuts = [len(total) * i // SUM_THREADS for i in range(SUM_THREADS + 1)]

    def add(part: slice) -> None:
        first, second, *others = (array[part] for array in arrays)
        with np.errstate(all="ignore"):  # of the padding too
            np.add(first, second, out=total[part])
            for other in others:
                np.add(total[part], other, out=total[part])

    by_threads(add, (slice(*pair) for pair in pairwise(cuts)))
