"""All-reduce of gradients among devices, through the host's pinned memory.

Every device adds all gradients itself, in the same order; the host computes nothing.
Gradients move in chunks: uploads of a chunk overlap with downloads of the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.opencl.launch import Gradients, Scalar, Scratch
from clnet.opencl.memory import Memory, staging_array
from clnet.runtime.binding import set_scalar
from clnet.variants.training.gradient_sum import gradient_sum

if TYPE_CHECKING:
    from clnet.opencl.session import Session

Array = NDArray[Any]

CHUNK_BYTES = 4 << 20  # a copy to or from a current GPU takes some 80 us


class GradientExchange:
    """One device's side of the all-reduce.

    Parameters
    ----------
    session : Session
        Of the device.
    gradients : Memory
        The flat gradient buffer.
    size : int
        Its elements.
    dtype : str
        Type of the elements.
    others : int
        Number of other devices whose gradients are added on this one.
    """

    def __init__(
        self, session: Session, gradients: Memory, size: int, dtype: str, others: int
    ) -> None:
        import pyopencl as cl

        self._session, self._gradients, self._size = session, gradients, size
        self._item = np.dtype(dtype).itemsize
        chunk = CHUNK_BYTES // self._item
        self._chunks = [
            slice(start, min(start + chunk, size)) for start in range(0, size, chunk)
        ]
        # Double buffering: others may still read one buffer while the next is written.
        self._staged = [staging_array(session, (size,), dtype) for _ in range(2)]
        self._downloads: list[Any] = []  # an event waits for its copy when collected
        self._launch = gradient_sum(size, others, dtype, session.device)
        (scratch,) = (one for one in self._launch.arguments if isinstance(one, Scratch))
        self._received = Memory(session, scratch.size)
        self._kernel: Any = None
        self._upload_queue: Any = None
        self._uploads: list[Any] = []  # the next sum waits for them
        self._sums: list[Any] = []  # the last sum: the next uploads wait for it
        if others and self._received.array is None:
            self._upload_queue = cl.CommandQueue(session.context, session.device.handle)
        if others:
            self._kernel = session.kernel(self._launch, session.device)
            for index, argument in enumerate(self._launch.arguments):
                if isinstance(argument, Gradients):
                    self._kernel.set_arg(index, gradients.argument)
                elif isinstance(argument, Scratch):
                    self._kernel.set_arg(index, self._received.argument)
                elif isinstance(argument, int):
                    set_scalar(self._kernel, index, np.int32, argument)

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return len(self._chunks)

    def start_download(self) -> None:
        """Start the download of the gradients, after all enqueued steps."""
        import pyopencl as cl

        self._staged.reverse()
        if self._gradients.array is None:
            self._session.barrier()  # the steps may be on another queue
            self._downloads = [
                cl.enqueue_copy(
                    self._session.queue, self._staged[0][chunk],
                    self._gradients.argument, is_blocking=False,
                    src_offset=chunk.start * self._item,
                )
                for chunk in self._chunks
            ]
        for queue in self._session.queues.values():
            queue.flush()

    def downloaded(self, number: int) -> Array:
        """Wait for a chunk of the gradients, and return it; chunk 0 comes first.

        It stays valid until the download after the next one.
        """
        staged, shared = self._staged[0], self._gradients.array
        if shared is None:
            self._downloads[number].wait()
        elif number == 0:
            self._session.finish()
            staged[...] = shared[: staged.nbytes].view(staged.dtype)
        return staged[self._chunks[number]]

    def start_upload(self, number: int, arrays: Sequence[Array]) -> None:
        """Start the upload of a chunk of the other devices' gradients, in their order.

        A queue of its own overlaps it with the downloads of later chunks.
        """
        import pyopencl as cl

        first = self._chunks[number].start
        if self._received.array is not None:
            self._session.finish()  # the last sum reads the same memory
        for index, array in enumerate(arrays):
            start = (index * self._size + first) * self._item
            if self._received.array is not None:
                target = self._received.array[start : start + array.nbytes]
                target.view(array.dtype)[...] = array
            else:
                self._uploads.append(cl.enqueue_copy(
                    self._upload_queue, self._received.argument, array,
                    dst_offset=start, is_blocking=False, wait_for=self._sums,
                ))
        if self._upload_queue is not None:
            self._upload_queue.flush()

    def reduce(self, before: int, own: bool, after: int) -> None:
        """Replace the gradients by the sum, before the steps that are enqueued next.

        Parameters
        ----------
        before, after : int
            Number of devices before this one, and after it, that sent gradients.
        own : bool
            Whether this device has gradients of its own.
        """
        import pyopencl as cl

        numbers = {"before": before, "own": int(own), "count": before + after}
        for index, argument in enumerate(self._launch.arguments):
            if isinstance(argument, Scalar):
                set_scalar(self._kernel, index, np.int32, numbers[argument.name])
        done = cl.enqueue_nd_range_kernel(
            self._session.queue, self._kernel, self._launch.global_size,
            self._launch.local_size, wait_for=self._uploads,
        )
        self._sums, self._uploads = [done], []
        self._session.barrier()
