"""The flat parameter buffer: where the weights and biases of every layer lie."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.nn.storage.base import Storage
from clnet.nn.storage.dense import DenseStorage

PARAMETER_ALIGNMENT = 32  # values; every array of the flat buffer starts on 128 bytes


def round_up(n: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least n."""
    return -(-n // multiple) * multiple


@dataclass(frozen=True)
class Slot:
    """Where an array lives in the flat parameter buffer: [offset, offset + size)."""

    offset: int
    size: int


@dataclass(frozen=True)
class Layout:
    """Where every layer's weights and biases live in the flat parameter buffer.

    Attributes
    ----------
    weights : tuple of Slot
        One a layer.
    biases : tuple of Slot or None
        One a layer; None: the layer has no bias.
    size : int
        Elements of the buffer.
    """

    weights: tuple[Slot, ...]
    biases: tuple[Slot | None, ...]
    size: int

    @property
    def biases_start(self) -> int:
        """Elements of the buffer before the first bias: weights and padding."""
        end = max(slot.offset + slot.size for slot in self.weights)
        return round_up(end, PARAMETER_ALIGNMENT)


def layout(storages: Iterable[Storage], bias_sizes: Iterable[int]) -> Layout:
    """Lay out weights of every layer, then biases, each on an aligned offset.

    Parameters
    ----------
    storages : iterable of Storage
        One a layer.
    bias_sizes : iterable of int
        Bias values a layer; 0: none.
    """
    end = 0

    def slot(size: int) -> Slot:
        nonlocal end
        here = Slot(end, size)
        end = round_up(end + size, PARAMETER_ALIGNMENT)
        return here

    weights = tuple(slot(storage.size) for storage in storages)
    biases = tuple(slot(size) if size else None for size in bias_sizes)
    return Layout(weights, biases, end)


def live_elements(
    where: Layout, storages: Iterable[Storage]
) -> NDArray[np.bool_]:
    """Return which elements [size] of the flat buffer are no padding."""
    live = np.zeros(where.size, bool)
    for storage, slot in zip(storages, where.weights, strict=True):
        live[slot.offset : slot.offset + slot.size] = storage.live()
    for place in where.biases:
        if place is not None:
            live[place.offset : place.offset + place.size] = True
    return live


def copy_live(
    where: Layout, storages: Iterable[Storage], source: NDArray[Any],
    target: NDArray[Any],
) -> None:
    """Copy the elements of a flat buffer [size] that are no padding to another."""
    for storage, slot in zip(storages, where.weights, strict=True):
        here = slice(slot.offset, slot.offset + slot.size)
        if isinstance(storage, DenseStorage):  # without a mask of its size
            storage.matrix(target[here])[...] = storage.matrix(source[here])
        else:
            live = storage.live()
            np.copyto(target[here], source[here], where=live, casting="unsafe")
    for place in where.biases:
        if place is not None:
            here = slice(place.offset, place.offset + place.size)
            target[here] = source[here]
