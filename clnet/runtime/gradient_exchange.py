"""The exchange of gradients among devices, through the host's pinned memory.

Every device adds them up itself, all in the same order: the host computes nothing. They
come in pieces: of the one the others' arrive while of the next its own leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.opencl.launch import Gradients, Scalar, Scratch
from clnet.opencl.memory import Memory, staging
from clnet.opencl.session import Session
from clnet.runtime.binding import set_number
from clnet.variants.training.gradient_sum import gradient_sum

Array = NDArray[Any]

PIECE = 4 << 20  # bytes: some 80 us on their way to or from a current GPU


class GradientExchange:
    """One device's side of the exchange.

    Parameters
    ----------
    session : Session
        Where.
    gradients : Memory
        The flat gradient buffer.
    size : int
        Its elements.
    dtype : str
        Their type.
    others : int
        Devices beside this one whose gradients are added here; 0: none are.
    """

    def __init__(
        self, session: Session, gradients: Memory, size: int, dtype: str, others: int
    ) -> None:
        import pyopencl as cl

        self._session, self._gradients, self._size = session, gradients, size
        self._item = np.dtype(dtype).itemsize
        each = PIECE // self._item
        self._pieces = [
            slice(start, min(start + each, size)) for start in range(0, size, each)
        ]
        # Two, by turns: others may still read the one while the next is written.
        self._staged = [staging(session, (size,), dtype) for _ in range(2)]
        self._copies: list[Any] = []  # a copy's event, when it goes, waits for its end
        self._launch = gradient_sum(size, others, dtype, session.device)
        (room,) = (one for one in self._launch.arguments if isinstance(one, Scratch))
        self._others = Memory(session, room.size)
        self._sum: Any = None
        self._arrivals: Any = None
        self._arriving: list[Any] = []  # the copies that the next sum waits for
        self._added: list[Any] = []  # the last sum, that the next copies wait for
        if others and self._others.array is None:
            self._arrivals = cl.CommandQueue(session.context, session.device.handle)
        if others:
            self._sum = session.kernel(self._launch, session.device)
            for index, argument in enumerate(self._launch.arguments):
                if isinstance(argument, Gradients):
                    self._sum.set_arg(index, gradients.argument)
                elif isinstance(argument, Scratch):
                    self._sum.set_arg(index, self._others.argument)
                elif isinstance(argument, int):
                    set_number(self._sum, index, np.int32, argument)

    @property
    def pieces(self) -> int:
        """How many pieces gradients come in."""
        return len(self._pieces)

    def fetch(self) -> None:
        """Begin to copy the gradients to the host, once the steps so far are done."""
        import pyopencl as cl

        self._staged.reverse()
        if self._gradients.array is None:
            self._session.settle()  # the steps may be on another queue
            self._copies = [
                cl.enqueue_copy(
                    self._session.queue, self._staged[0][piece],
                    self._gradients.argument, is_blocking=False,
                    src_offset=piece.start * self._item,
                )
                for piece in self._pieces
            ]
        for queue in self._session.queues.values():
            queue.flush()

    def fetched(self, number: int) -> Array:
        """Wait for a piece of the gradients, and return it: it stays one more turn.

        The first one first.
        """
        piece, own, here = self._pieces[number], self._staged[0], self._gradients.array
        if here is None:
            self._copies[number].wait()
        elif number == 0:
            self._session.finish()
            own[...] = here[: own.nbytes].view(own.dtype)
        return own[piece]

    def take(self, number: int, arrays: Sequence[Array]) -> None:
        """Begin to copy a piece of the others' gradients to the device, in their order.

        While it copies other pieces of its own to the host: by a queue of its own.
        """
        import pyopencl as cl

        first = self._pieces[number].start
        if self._others.array is not None:
            self._session.finish()  # the last sum reads what is written here
        for place, array in enumerate(arrays):
            start = (place * self._size + first) * self._item
            if self._others.array is not None:
                there = self._others.array[start : start + array.nbytes]
                there.view(array.dtype)[...] = array
            else:
                self._arriving.append(cl.enqueue_copy(
                    self._arrivals, self._others.argument, array, dst_offset=start,
                    is_blocking=False, wait_for=self._added,
                ))
        if self._arrivals is not None:
            self._arrivals.flush()

    def add(self, before: int, own: bool, after: int) -> None:
        """Replace the gradients by a sum, for the steps that are enqueued next.

        Parameters
        ----------
        before, after : int
            How many devices before this one, and after it, have sent theirs.
        own : bool
            Whether this one has some of its own.
        """
        import pyopencl as cl

        numbers = {"before": before, "own": int(own), "count": before + after}
        for index, argument in enumerate(self._launch.arguments):
            if isinstance(argument, Scalar):
                set_number(self._sum, index, np.int32, numbers[argument.name])
        added = cl.enqueue_nd_range_kernel(
            self._session.queue, self._sum, self._launch.global_size,
            self._launch.local_size, wait_for=self._arriving,
        )
        self._added, self._arriving = [added], []
        self._session.settle()
