"""The exchange of gradients among devices, through the host's pinned memory.

Every device adds them up itself, all in the same order: the host computes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.binding import set_number
from clnet.memory import Memory, staging
from clnet.ops import round_up
from clnet.session import Session
from clnet.variants.base import Launch

Array = NDArray[Any]

GROUP = 64  # work-items


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
        self._session, self._gradients, self._size = session, gradients, size
        self._nbytes = size * np.dtype(dtype).itemsize
        # Two, by turns: others may still read the one while the next is written.
        self._staged = [staging(session, (size,), dtype) for _ in range(2)]
        self._copies: list[Any] = []  # a copy's event, when it goes, waits for its end
        self._others = Memory(session, others * self._nbytes)
        self._sum: Any = None
        if others:
            group = min(GROUP, session.device.largest_group)
            real = "double" if dtype == "float64" else "float"
            self._launch = Launch(
                "gradient_sum.cl", "gradient_sum", {"REAL": real},
                (round_up(size, group),), (group,), (),
            )
            self._sum = session.kernel(self._launch, session.device)
            self._sum.set_arg(0, gradients.argument)
            self._sum.set_arg(1, self._others.argument)

    def fetch(self) -> None:
        """Begin to copy the gradients to the host, once the steps so far are done."""
        import pyopencl as cl

        self._staged.reverse()
        if self._gradients.array is None:
            self._session.settle()  # the steps may be on another queue
            self._copies = [
                cl.enqueue_copy(
                    self._session.queue, self._staged[0], self._gradients.argument,
                    is_blocking=False,
                )
            ]
        for queue in self._session.queues.values():
            queue.flush()

    def fetched(self) -> Array:
        """Wait for the gradients [size], and return them: they stay one more turn."""
        self._session.finish()
        own, here = self._staged[0], self._gradients.array
        if here is not None:
            own[...] = here[: self._nbytes].view(own.dtype)
        return own

    def add(self, before: Sequence[Array], own: bool, after: Sequence[Array]) -> None:
        """Replace the gradients by a sum, for the steps that are enqueued next.

        Parameters
        ----------
        before, after : sequence of ndarray, shape [size]
            Gradients of the devices before this one, and of those after it.
        own : bool
            Whether this one has some of its own.
        """
        import pyopencl as cl

        queue = self._session.queue
        arrays = [*before, *after]
        for number, array in enumerate(arrays):
            start = number * self._nbytes
            if self._others.array is not None:
                there = self._others.array[start : start + self._nbytes]
                there.view(array.dtype)[...] = array
            else:
                self._copies.append(cl.enqueue_copy(
                    queue, self._others.argument, array, dst_offset=start,
                    is_blocking=False,
                ))
        numbers = (len(before), int(own), len(arrays), self._size)
        for index, number in enumerate(numbers, start=2):
            set_number(self._sum, index, np.int32, number)
        cl.enqueue_nd_range_kernel(
            queue, self._sum, self._launch.global_size, self._launch.local_size
        )
        self._session.settle()
