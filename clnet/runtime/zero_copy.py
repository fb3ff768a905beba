"""Zero-copy outputs: kernels store them to host memory, which the host polls."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from clnet.opencl.commands import Action

NOT_WRITTEN = b"\xff\xff\xff\xff"  # a NaN that no GPU computes: not stored yet
MAX_POLLS = 2000  # some hundred microseconds; then the host waits for the queue


class ZeroCopyOutputs:
    """The zero-copy outputs of an executable."""

    def __init__(self) -> None:
        self.arrived: bool = False
        # The bytes of each, and their pattern before the stores.
        self._outputs: list[tuple[memoryview, bytes]] = []

    def __bool__(self) -> bool:
        return bool(self._outputs)

    def add(self, row: NDArray[Any]) -> None:
        """Take the host memory [width] of an output."""
        self._outputs.append((row.view(np.uint8).data, row.size * NOT_WRITTEN))

    def resets(self) -> list[Action]:
        """Return what a run does first: it marks all outputs as not stored."""
        return [
            partial(output.__setitem__, slice(None), empty)
            for output, empty in self._outputs
        ]

    def poll(self) -> bool:
        """Return whether all outputs are stored in time."""
        self.arrived = all(_arrives(output) for output, _ in self._outputs)
        return self.arrived


def _arrives(output: memoryview) -> bool:
    """Return whether an output is stored in time."""
    return any(output.tobytes().find(NOT_WRITTEN) < 0 for _ in range(MAX_POLLS))
