"""Layers whose sums are those of one or several products, of any storage."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clnet.ir.ops import Apply, BiasAct, Span
from clnet.nn.storage.base import Storage
from clnet.nn.storage.dense import RowStorage
from clnet.nn.storage.local import LocalStorage
from clnet.nn.storage.sparse import SparseStorage


class Layer(NamedTuple):
    """The ops of a layer: its sums are those of all its products."""

    applies: tuple[Apply, ...]
    act: BiasAct


def whole_layers(span: Span) -> tuple[Layer, ...] | None:
    """Return the layers of a span, or None if there are other ops, or a part of one."""
    found: list[Layer] = []
    applies: list[Apply] = []
    for op in span.ops:
        if isinstance(op, Apply) and op.accumulate == bool(applies):
            applies.append(op)
        elif isinstance(op, BiasAct) and applies:
            found.append(Layer(tuple(applies), op))
            applies = []
        else:
            return None
        if any(apply.sums != applies[0].sums for apply in applies):
            return None
        if found and found[-1].act is op and op.sums != found[-1].applies[0].sums:
            return None
    return tuple(found) if found and not applies else None


def layers_of(span: Span) -> tuple[Layer, ...]:
    """Return the layers of a span that was not refused."""
    layers = whole_layers(span)
    assert layers is not None
    return layers


def refuse_unless_several_layers(span: Span) -> str | None:
    """Return why the span is no several layers with one activation each, or None."""
    for op in span.ops:
        if isinstance(op, Apply) and not isinstance(
            op.storage, (RowStorage, SparseStorage, LocalStorage)
        ):
            return f"it reads sparse, dense and local layers, not {op.storage.name}"
    layers = whole_layers(span)
    if layers is None:
        return "it computes whole layers, and these ops are none"
    if len(layers) < 2:
        return "it computes several layers a launch, and this is one"
    if span.outputs != (layers[-1].act.y,):
        return "it keeps a last layer's output alone, and more is read later"
    if not all(layer.act.nonlinearity.uniform for layer in layers):
        return "it applies one activation a layer, and here neurons differ"
    return None


def live_entries(storage: Storage) -> tuple[NDArray[np.int64], ...]:
    """Return rows, columns and slots of the live entries of a storage."""
    if isinstance(storage, SparseStorage):
        return storage.pattern.rows, storage.pattern.columns, storage.slots
    entries = storage.entries()
    slots = np.flatnonzero(entries.live)
    return entries.rows[slots], entries.columns[slots], slots


def live_count(storage: Storage) -> int:
    """Return how many live entries a storage has that is not dense."""
    if isinstance(storage, SparseStorage):
        return len(storage.pattern)
    assert isinstance(storage, LocalStorage)
    return storage.n_out * storage.window
