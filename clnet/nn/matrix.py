"""A layer's matrix: a sum of storages in the flat parameter buffer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.nn.storage.base import Entries
from clnet.nn.storage.dense import DenseStorage
from clnet.nn.storage.local import LocalStorage

if TYPE_CHECKING:
    from clnet.nn.storage.base import Storage
    from clnet.nn.storage.layout import Slot

CHUNK = 1 << 16  # random numbers drawn at a time


@dataclass(frozen=True)
class MatrixPart:
    """The matrix of one `ops.Apply`."""

    # Value that it multiplies: 0 the network's input, k the k-th layer's output
    source: int
    column: int  # Its first column in the layer's matrix
    storage: Storage  # Rows and columns of its entries
    weights: Slot  # Slot of their values

    @property
    def columns(self) -> slice:
        """Its columns of the layer's matrix."""
        return slice(self.column, self.column + self.storage.n_in)

    def values(self, parameters: NDArray[Any]) -> NDArray[Any]:
        """Return its values [size], a view of the flat buffer."""
        return self.weights.of(parameters)


@dataclass(frozen=True)
class Matrix:
    """A layer's matrix A [n_out, n_in]: blocks for each source, each a sum of parts."""

    n_out: int  # Neurons, and their inputs: those of all sources, side by side
    n_in: int
    parts: tuple[MatrixPart, ...]  # At least one

    @property
    def full(self) -> bool:
        """Whether every entry is live, and stored densely."""
        return all(isinstance(part.storage, DenseStorage) for part in self.parts)

    @cached_property
    def count(self) -> int:
        """Live entries."""
        return sum(part.storage.count for part in self.parts)

    @property
    def density(self) -> float:
        """Share of the entries that are live."""
        return self.count / (self.n_out * self.n_in)

    @property
    def format(self) -> str:
        """The storages' names; HYB and blocks of several sources have more than one."""
        return "+".join(dict.fromkeys(part.storage.name for part in self.parts))

    def nbytes(self, item_size: int) -> int:
        """Return the bytes of values, of item_size each, and of index arrays."""
        return sum(part.storage.nbytes(item_size) for part in self.parts)

    def dense(self, parameters: NDArray[Any]) -> NDArray[Any]:
        """Return A [n_out, n_in] for the flat buffer: a view where possible."""
        first = self.parts[0]
        if len(self.parts) == 1 and first.storage.n_in == self.n_in:
            return first.storage.matrix(first.values(parameters))
        matrix = np.zeros((self.n_out, self.n_in), parameters.dtype)
        for part in self.parts:
            matrix[:, part.columns] += part.storage.matrix(part.values(parameters))
        return matrix

    @property
    def window(self) -> int | None:
        """Entries of each row of a locally connected layer; None: another kind."""
        return None if self._local is None else self._local.window

    @property
    def _local(self) -> LocalStorage | None:
        storage = self.parts[0].storage
        return storage if isinstance(storage, LocalStorage) else None

    def weights(self, parameters: NDArray[Any]) -> NDArray[Any]:
        """Return `dense`, or the windows [n_out, window] of a local layer: a view."""
        if self._local is None:
            return self.dense(parameters)
        return self._local.bands(self.parts[0].values(parameters)).T

    @property
    def _shape(self) -> tuple[int, int] | None:
        """Rows and live entries of each; None: the numbers of entries differ."""
        if self.full:
            return self.n_out, self.n_in
        return None if self.window is None else (self.n_out, self.window)

    def live_values(self, parameters: NDArray[Any]) -> NDArray[Any]:
        """Return the values of the live entries [count], row by row: a copy."""
        if self._shape is not None:
            return self.weights(parameters).flatten()
        return parameters[self.entries().slots]

    def set_live(self, parameters: NDArray[Any], values: NDArray[Any]) -> None:
        """Set the values of the live entries [count], row by row."""
        if self._shape is not None:
            self._set_block(parameters, 0, 0, values.reshape(self._shape))
        else:
            parameters[self.entries().slots] = values

    def draw_live(
        self, parameters: NDArray[Any], draw: Callable[[int], NDArray[Any]]
    ) -> None:
        """Set the values of the live entries by draws in chunks, row by row."""
        if self._shape is None:
            offsets = self.entries().slots
            for start in range(0, offsets.size, CHUNK):
                chunk = offsets[start : start + CHUNK]
                parameters[chunk] = draw(chunk.size)
            return
        n_out, n = self._shape
        rows = max(1, CHUNK // n)
        for row in range(0, n_out, rows):
            for column in range(0, n, CHUNK):  # several of a single row alone
                block = min(rows, n_out - row), min(CHUNK, n - column)
                values = draw(block[0] * block[1]).reshape(block)
                self._set_block(parameters, row, column, values)

    def _set_block(
        self, parameters: NDArray[Any], row: int, column: int, values: NDArray[Any]
    ) -> None:
        """Set a block of the values of a matrix that has a `_shape`."""
        rows, end = slice(row, row + values.shape[0]), column + values.shape[1]
        if self._local is not None:
            self.weights(parameters)[rows, column:end] = values
            return
        for part in self.parts:
            start = part.column
            low, high = max(column, start), min(end, start + part.storage.n_in)
            if low < high:
                matrix = part.storage.matrix(part.values(parameters))
                matrix[rows, low - start : high - start] = values[
                    :, low - column : high - column
                ]

    def entries(self) -> Entries:
        """Return the live entries, row by row; slots are offsets in the flat buffer."""
        entries = [part.storage.entries() for part in self.parts]
        rows = np.concatenate([listed.rows for listed in entries])
        columns = np.concatenate([
            listed.columns + part.column
            for part, listed in zip(self.parts, entries, strict=True)
        ])
        offsets = np.concatenate([
            listed.slots + part.weights.offset
            for part, listed in zip(self.parts, entries, strict=True)
        ])
        keys = rows * self.n_in + columns
        if (keys[1:] < keys[:-1]).any():
            # A stable sort merges sorted runs.
            order = np.argsort(keys, kind="stable")
            rows, columns, offsets = rows[order], columns[order], offsets[order]
        return Entries(rows, columns, offsets)
