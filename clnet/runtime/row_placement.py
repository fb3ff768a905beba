"""Rows of samples on a device, and the kernel that places them there on a CPU."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.ir.batch import Gather
from clnet.nn.storage.layout import round_up
from clnet.opencl.commands import prepared_launch
from clnet.opencl.memory import Memory, host_buffer, sub_buffer_alignment
from clnet.variants.training.optimisers import TYPES, place_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clnet.ir.program import Program
    from clnet.opencl.session import Session
    from clnet.runtime.replay import Replay

Array = NDArray[Any]


class SampleRows:
    """Rows of samples on a device, of which each step takes some.

    A step's samples of a share are at a slot. A program that gathers them finds them
    by their first row, at a distance of `pitch` from slot to slot, where `has_all`
    among those of other shares; other programs take sub-buffers.
    """

    def __init__(
        self, replay: Replay, program: Program, slots: int, shares: int = 1,
        pitch: int = 0, *, has_all: bool = False,
    ) -> None:
        self._replay, self._inputs = replay, program.inputs
        self._slots, self._has_all = slots, has_all
        self._gathers = isinstance(program.ops[0], Gather)
        self._arguments: dict[int, list[Any]] = {}  # sub-buffers, by their first row
        self._selected: int | None = None  # the row that steps take
        self.dtype: str = replay.dtype
        strides = [value.stride for value in program.inputs]
        self._sizes = [stride * np.dtype(self.dtype).itemsize for stride in strides]
        if self._gathers:
            self.pitch: int = pitch or replay.batch
            memory = [replay.bound.memory(value) for value in program.inputs]
        else:  # slots begin where sub-buffers of all inputs may begin
            alignment = sub_buffer_alignment(replay.session)
            self.pitch = max(
                round_up(replay.batch, alignment // gcd(alignment, size))
                for size in self._sizes
            )
            count = shares * slots * self.pitch
            memory = [Memory(replay.session, count * size) for size in self._sizes]
        # The inputs' memory, with elements from row to row.
        self.arrays: list[tuple[Memory, int]] = list(zip(memory, strides, strict=True))

    def row(self, index: Any, slot: Any) -> Any:
        """Return the first row of one of this device's shares of a step; or arrays."""
        return (index * self._slots + slot) * self.pitch

    def select(self, index: int, slot: int, piece: slice) -> int:
        """Let a step take its piece of a slot; return the scalar `first` for it."""
        row = self.row(index, slot)
        if self._gathers:
            return int(row + piece.start if self._has_all else row)
        if row != self._selected:
            if row not in self._arguments:
                self._arguments[row] = [
                    memory.sub_buffer(row * size, self._replay.batch * size)
                    for (memory, _), size in zip(self.arrays, self._sizes, strict=True)
                ]
            arguments = self._arguments[row]
            for value, argument in zip(self._inputs, arguments, strict=True):
                self._replay.select_input(value, argument)
            self._selected = row
        return 0

    def write(self, rows: Array, arrays: Sequence[Array]) -> None:
        """Write samples to rows; all others are zero."""
        for (memory, stride), size, array in zip(
            self.arrays, self._sizes, arrays, strict=True
        ):
            padded = np.zeros((memory.size // size, stride), self.dtype)
            padded[rows, : array.shape[1]] = array
            memory.write(self._replay.session, padded)
        self.changed()

    def changed(self) -> None:
        """Let the next step read its samples anew."""
        self._selected = None


class RowPlacement:
    """Writes samples to rows of a CPU's arrays, from where they lie in host memory."""

    def __init__(
        self, session: Session, dtype: str, arrays: Sequence[tuple[Memory, int]]
    ) -> None:
        self._session, self._dtype, self._arrays = session, dtype, arrays
        self._flag = Memory(session, np.dtype(np.int32).itemsize)
        self._kernels: dict[tuple[Any, ...], Any] = {}

    @classmethod
    def of(
        cls, session: Session, dtype: str, arrays: Iterable[tuple[Memory, int]],
        scaled: bool,
    ) -> RowPlacement | None:
        """Return the placement; None where the host has to fill the arrays.

        It does on other devices than CPUs that share memory with it, and where samples
        are `scaled`.
        """
        device = session.device
        if device.type != "cpu" or not device.fine_svm or device.untested or scaled:
            return None
        return cls(session, dtype, list(arrays))

    def place(
        self, first: int, samples: Sequence[tuple[Array, Array]], places: Array | None
    ) -> bool:
        """Write all samples; return whether that is done, and their numbers are finite.

        Not done are those of other layouts or types than plain numbers in rows, or
        inputs in columns.
        """
        if not all(
            (_has_rows(x) or _has_rows(x.T)) and _has_rows(t) for x, t in samples
        ):
            return False
        if places is None:
            places = np.arange(sum(len(x) for x, _ in samples), dtype=np.int32)
        start = 0
        held = []  # until the launches have ended
        for x, t in samples:
            stop = start + len(x)
            held.append(self._enqueue(first, x, t, places[start:stop]))
            start = stop
        self._session.queue.finish()
        if not self._flag.flag(self._session):
            return True
        self._flag.clear_flag(self._session)
        return False

    def _enqueue(self, first: int, x: Array, t: Array, places: Array) -> list[Any]:
        """Enqueue the launch of some samples, and return the buffers that it reads."""
        session, stride = self._session, self._arrays[0][1]
        columns = not _has_rows(x)
        read = x.T if columns else x
        launch, rows = place_rows(
            self._dtype, stride, (x.dtype, t.dtype), len(x),
            x.shape[1] * x.itemsize + t.strides[0], columns,
        )
        key = tuple(launch.defines.values())
        if key not in self._kernels:
            self._kernels[key] = session.kernel(launch, session.device)
        kernel = self._kernels[key]
        arguments: list[Any] = []
        held = [
            host_buffer(session, array) for array in (_span(read), _span(t), places)
        ]
        for buffer, array, width in (
            (held[0], read, x.shape[1]), (held[1], t, t.shape[1])
        ):
            arguments += [buffer, array.strides[0] // array.itemsize, width]
        for memory, width in self._arrays:
            arguments += [memory.argument, width]
        arguments += [held[-1], first, len(x), rows, self._flag.argument]
        kernel.set_args(*(
            np.int32(one) if isinstance(one, int) else one for one in arguments
        ))
        prepared_launch(
            session.queue, kernel, launch.global_size, launch.local_size, events=True
        )()
        return held


def _has_rows(array: Array) -> bool:
    """Return whether an array has rows of adjacent numbers that kernels can read."""
    item = array.itemsize
    return (
        array.dtype.isnative and array.dtype.str[1:] in TYPES and array.flags.aligned
        and array.strides[1] == item and array.strides[0] >= array.shape[1] * item
        and array.strides[0] % item == 0
    )


def _span(array: Array) -> Array:
    """Return the numbers of an array from its first to its last, those between too."""
    count = (len(array) - 1) * array.strides[0] // array.itemsize + array.shape[1]
    return np.lib.stride_tricks.as_strided(
        array, (count,), (array.itemsize,), writeable=False
    )
