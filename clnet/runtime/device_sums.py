"""Sums of the gradients of devices of one process, through pinned host memory.

Pieces go both ways at once, the last layer's first, while devices compute others. A
device receives one gradient: of two devices the other's, which it adds to its own; of
more the sum, which the host adds in the devices' order. So all have the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.nn.copies import by_threads, cut
from clnet.opencl.bound import Bound
from clnet.opencl.launch import GRADIENTS, Scratch
from clnet.opencl.memory import Memory, staging_array
from clnet.runtime.gradient_transfer import GradientTransfer, bus_seconds
from clnet.variants.training.optimisers import gradient_sum

if TYPE_CHECKING:
    from clnet.nn.storage.layout import Layout
    from clnet.opencl.session import Session
    from clnet.runtime.binding import PlanStep
    from clnet.runtime.replay import Replay

Array = NDArray[Any]

CHUNK_BYTES = 4 << 20  # a copy to or from a current GPU takes some 80 us
SUM_THREADS = 4  # of a piece: with eight a step was a quarter longer (two H100)


class DeviceSums:
    """The sums of the flat gradient buffers of several devices.

    The first `receivers` devices get them. `steps` are those of each device's
    gradients; a device without a share has none.
    """

    def __init__(
        self, sessions: Sequence[Session], gradients: Sequence[Memory], layout: Layout,
        dtype: str, steps: Sequence[Sequence[PlanStep]], receivers: int,
    ) -> None:
        self._sessions = sessions
        self._bytes = layout.size * np.dtype(dtype).itemsize
        self._transfers = [
            GradientTransfer(
                session, memory, layout, dtype, computed, CHUNK_BYTES, lends=True
            )
            for session, memory, computed in zip(
                sessions, gradients, steps, strict=True
            )
        ]
        self._computing = [
            transfer for transfer, computed in zip(self._transfers, steps, strict=True)
            if computed
        ]
        self._receivers = range(receivers)
        self._senders: list[int] = []
        self._additions: list[_Addition] = []
        if len(sessions) == 2:
            self._additions = [
                _Addition(*device, layout.size, dtype)
                for device in zip(sessions[:receivers], gradients, strict=False)
            ]
        else:
            self._total = staging_array(sessions[0], (layout.size,), dtype)
        self._bus_seconds = bus_seconds(self._transfers)

    def begin(self, present: Sequence[bool]) -> None:
        """Begin a step, of which each device has samples or none."""
        self._senders = [number for number, has in enumerate(present) if has]
        for session, has in zip(self._sessions, present, strict=True):
            if not has:
                session.finish()  # it may still read the sum of the step before

    def add(self, number: int, replay: Replay | None) -> None:
        """Enqueue a device's steps and downloads; None: it has no samples."""
        if replay is not None:
            for _ in self._transfers[number].run(replay):
                pass

    def finish(self) -> None:
        """Replace receivers' gradients by the sum, before the steps enqueued next."""
        senders = self._senders
        adds = bool(self._additions) and len(senders) == 2
        for piece in self._computing[0].order:
            arrays = [self._transfers[i].downloaded(piece) for i in senders]
            total = arrays[0]
            if len(arrays) > 1 and not adds:
                total = self._total[self._transfers[0].pieces[piece]]
                add_all(arrays, total)
            for number in self._receivers:
                transfer = self._transfers[number]
                if adds:
                    received = self._additions[number].received
                    transfer.start_upload(piece, arrays[1 - number], received)
                elif senders != [number]:
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
        text = (
            f"{self._bytes / 1e6:.3g} MB of gradients each way, "
            f"{self._bus_seconds * 1e3:.3g} ms on the bus a step"
        )
        if step_seconds is not None:
            text += f", {self._bus_seconds / step_seconds:.0%} of its time"
        early = min(transfer.early for transfer in self._computing)
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
    def add(piece: slice) -> None:
        first, second, *others = (array[piece] for array in arrays)
        with np.errstate(all="ignore"):  # of the padding too
            np.add(first, second, out=total[piece])
            for other in others:
                np.add(total[piece], other, out=total[piece])

    by_threads(add, cut(len(total), SUM_THREADS))
