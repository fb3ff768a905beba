"""Gradients on their way between a device and the host, piece by piece.

A piece goes as soon as the launches that compute it have ended, while others compute
the next: backward passes begin with the last layer. Copies have queues of their own,
one each way, so that both directions of a bus are used at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.nn.storage.layout import PARAMETER_ALIGNMENT, round_up
from clnet.opencl.commands import has_ended, marker, wait_on_queue
from clnet.opencl.memory import staging_array

if TYPE_CHECKING:
    from clnet.nn.storage.layout import Layout, Slot
    from clnet.opencl.memory import Memory
    from clnet.opencl.session import Session
    from clnet.runtime.binding import PlanStep
    from clnet.runtime.replay import Replay

Array = NDArray[Any]

MEASURED, TRIALS = 4, 3  # pieces and times that measure a bus; the minimum counts


def pieces_of(layout: Layout, length: int) -> list[slice]:
    """Return the pieces of a flat buffer, of so many elements at most.

    A matrix of at least as many has pieces of its own, so that they need not wait for
    other matrices.
    """
    bounds = {0, layout.size}
    for slot in layout.weights:
        if slot.size >= length:
            end = round_up(slot.offset + slot.size, PARAMETER_ALIGNMENT)
            bounds |= {slot.offset, min(end, layout.size)}
    return [
        slice(start, min(start + length, stop))
        for first, stop in pairwise(sorted(bounds))
        for start in range(first, stop, length)
    ]


def completing_steps(steps: Sequence[PlanStep], pieces: Iterable[slice]) -> list[int]:
    """Return the number of the step that computes the last gradient of each piece."""
    last: dict[Slot, int] = {}
    for number, step in enumerate(steps):
        for op in step.span.ops:
            last |= dict.fromkeys(op.gradient_slots.values(), number)
    return [
        max((
            number for slot, number in last.items()
            if slot.offset < piece.stop and piece.start < slot.offset + slot.size
        ), default=0)
        for piece in pieces
    ]


class GradientTransfer:
    """The copies of a device's flat gradient buffer, in pieces of so many bytes."""

    def __init__(
        self, session: Session, gradients: Memory, layout: Layout, dtype: str,
        steps: Sequence[PlanStep], piece_bytes: int, *, lends: bool = False,
    ) -> None:
        self._session, self._gradients = session, gradients
        self._item = np.dtype(dtype).itemsize
        self.pieces: list[slice] = pieces_of(layout, piece_bytes // self._item)
        ends = completing_steps(steps, self.pieces)
        self.order: list[int] = sorted(range(len(ends)), key=ends.__getitem__)
        # The pieces that each step completes, by the step's number.
        self._completed = {
            end: list(numbers) for end, numbers in groupby(self.order, ends.__getitem__)
        }
        size = layout.size
        self._shared: Array | None = None  # the host's view, if it shares the memory
        if gradients.array is not None:
            self._shared = gradients.array[: size * self._item].view(dtype)
        if self._shared is not None and not lends:
            self._staged = [self._shared]
        else:
            self._staged = [
                staging_array(session, (size,), dtype) for _ in range(1 + lends)
            ]
        self._queues: list[Any] = []
        if self._shared is None:
            self._queues = [session.new_queue() for _ in range(2)]  # down, up
        # An event waits for its command when collected.
        self._downloads: dict[int, list[Any]] = {}
        self._uploads: list[Any] = []
        self._before_uploads: list[Any] = []

    @property
    def host(self) -> Array:
        """The host's side of the last downloads [size]."""
        return self._staged[0]

    @property
    def early(self) -> float:
        """The share of the gradients that is complete before the last step."""
        late = [self.pieces[number] for number in self._completed[max(self._completed)]]
        size: int = sum(piece.stop - piece.start for piece in late)
        whole: int = self.pieces[-1].stop
        return 1 - size / whole

    def run(self, replay: Replay) -> Iterator[list[int]]:
        """Enqueue a device's steps; yield the pieces whose downloads have begun."""
        self._begin()
        for end in replay.run_to(self._completed):
            self._start_download(self._completed[end])
            yield self._completed[end]

    def _begin(self) -> None:
        """Begin a step's downloads; lent arrays of the step before stay valid."""
        self._staged.reverse()
        self._downloads = {}

    def _start_download(self, numbers: Iterable[int]) -> None:
        """Start the downloads of pieces, after all enqueued steps."""
        ends = self._markers()
        for number in numbers:
            self._downloads[number] = ends
            if self._shared is None:
                piece = self.pieces[number]
                self._downloads[number] = [self._gradients.download(
                    self._queues[0], self.host[piece], piece.start * self._item,
                    after=ends,
                )]
        for queue in self._queues:
            queue.flush()

    def has_arrived(self, number: int) -> bool:
        """Whether a piece has arrived, or a wait for it is of use: on a CPU."""
        return self._session.device.type == "cpu" or all(
            map(has_ended, self._downloads[number])
        )

    def downloaded(self, number: int) -> Array:
        """Wait for a piece, and return it."""
        for event in self._downloads[number]:
            event.wait()
        piece = self.pieces[number]
        values = self.host[piece]
        if self._shared is not None and self.host is not self._shared:
            values[...] = self._shared[piece]
        return values

    def start_upload(
        self, number: int, values: Array, target: Memory | None = None
    ) -> None:
        """Start the upload of a piece, which steps after `end_uploads` read."""
        memory = self._gradients if target is None else target
        start = self.pieces[number].start * self._item
        if memory.array is not None:
            for event in self._before_uploads:
                event.wait()
            self._before_uploads = []
            shared = memory.array[start : start + values.nbytes].view(values.dtype)
            if shared.ctypes.data != values.ctypes.data:
                shared[...] = values
            return
        self._uploads.append(memory.upload(
            self._queues[1], values, start, after=self._before_uploads
        ))
        self._queues[1].flush()

    def end_uploads(self) -> None:
        """Let the steps that are enqueued next wait for the uploads."""
        if self._uploads:
            wait_on_queue(self._session.queue, self._uploads)
            self._uploads = []
        self._session.barrier()

    def hold_uploads(self) -> None:
        """Let the next uploads wait for all steps that are enqueued now."""
        self._before_uploads = self._markers()

    @property
    def copies(self) -> bool:
        """Whether gradients are copied: the host has another memory than the device."""
        return self._shared is None

    def start_trial(self, numbers: Iterable[int]) -> None:
        """Start the copies of some pieces, both ways."""
        self._begin()
        self._start_download(numbers)
        for number in numbers:
            self.start_upload(number, self._staged[-1][self.pieces[number]])

    def end_trial(self, numbers: Iterable[int]) -> None:
        """Wait for the copies of `start_trial`."""
        for number in numbers:
            self.downloaded(number)
        for event in self._uploads:
            event.wait()
        self._uploads = []

    def _markers(self) -> list[Any]:
        """Return events of the end of all enqueued steps."""
        return [marker(queue) for queue in self._session.queues.values()]


def bus_seconds(transfers: Sequence[GradientTransfer]) -> float:
    """Return the time of all pieces of all devices, both ways at once, by some of them.

    Devices may share a bus. It is 0 where the host shares their memory.
    """
    copying = [transfer for transfer in transfers if transfer.copies]
    if not copying:
        return 0.0
    pieces, best = copying[0].pieces, inf
    numbers = range(min(len(pieces), MEASURED))
    for _ in range(TRIALS):
        start = time.perf_counter()
        for transfer in copying:
            transfer.start_trial(numbers)
        for transfer in copying:
            transfer.end_trial(numbers)
        best = min(best, time.perf_counter() - start)
    size: int = pieces[-1].stop
    measured: int = pieces[numbers[-1]].stop
    return best * size / measured
