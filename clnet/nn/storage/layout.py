"""The flat parameter buffer: slots of every layer's weights and biases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from clnet.checks import INT_MAX
from clnet.errors import InputError
from clnet.nn.storage.dense import DenseStorage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from clnet.nn.storage.base import Storage

PARAMETER_ALIGNMENT = 32  # values; every array of the flat buffer starts on 128 bytes


def round_up(n: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least n."""
    return -(-n // multiple) * multiple


@dataclass(frozen=True)
class Slot:
    """The range of an array in the flat parameter buffer: [offset, offset + size)."""

    offset: int
    size: int

    def of(self, flat: NDArray[Any]) -> NDArray[Any]:
        """Return the range of a flat buffer."""
        return flat[self.offset : self.offset + self.size]


@dataclass(frozen=True)
class Layout:
    """The slots of every layer's weights and biases in the flat parameter buffer."""

    weights: tuple[Slot, ...]  # One per storage
    biases: tuple[Slot | None, ...]  # One per layer; None: the layer has no bias
    size: int  # Elements of the buffer

    @property
    def biases_start(self) -> int:
        """Elements of the buffer before the first bias: weights and padding."""
        end = max(slot.offset + slot.size for slot in self.weights)
        return round_up(end, PARAMETER_ALIGNMENT)


def layout(storages: Iterable[Storage], bias_sizes: Iterable[int]) -> Layout:
    """Lay out the weights of every layer, then the biases, at aligned offsets."""
    end = 0

    def slot(size: int) -> Slot:
        nonlocal end
        result = Slot(end, size)
        end = round_up(end + size, PARAMETER_ALIGNMENT)
        return result

    weights = tuple(slot(storage.size) for storage in storages)
    biases = tuple(slot(size) if size else None for size in bias_sizes)
    if end > INT_MAX:
        raise InputError(
            f"a network has {end} parameters, padding included, expected at most "
            f"{INT_MAX}"
        )
    return Layout(weights, biases, end)


def live_elements(where: Layout, storages: Iterable[Storage]) -> NDArray[np.bool_]:
    """Return which elements [size] of the flat buffer are live."""
    live = np.zeros(where.size, bool)
    for storage, slot in zip(storages, where.weights, strict=True):
        slot.of(live)[...] = storage.live()
    for bias in where.biases:
        if bias is not None:
            bias.of(live)[...] = True
    return live


def copy_live(
    where: Layout, storages: Iterable[Storage], source: NDArray[Any],
    target: NDArray[Any],
) -> None:
    """Copy the live elements of a flat buffer [size] to another."""
    for storage, slot in zip(storages, where.weights, strict=True):
        elements = slice(slot.offset, slot.offset + slot.size)
        if isinstance(storage, DenseStorage):  # needs no mask of its size
            storage.matrix(target[elements])[...] = storage.matrix(source[elements])
        else:
            live = storage.live()
            np.copyto(target[elements], source[elements], where=live, casting="unsafe")
    for bias in where.biases:
        if bias is not None:
            elements = slice(bias.offset, bias.offset + bias.size)
            target[elements] = source[elements]
