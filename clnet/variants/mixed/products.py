"""Layers whose pre-activation is a sum of products, of any storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clnet.ir.activation import BiasAct
from clnet.ir.product import Apply
from clnet.nn.storage.dense import RowStorage
from clnet.nn.storage.local import LocalStorage
from clnet.nn.storage.sparse import SparseStorage
from clnet.variants.base import MIXED_ACTIVATIONS, MORE_OUTPUTS, NO_WHOLE_LAYERS

if TYPE_CHECKING:
    from clnet.ir.program import Span
    from clnet.nn.storage.base import Storage


class SummedLayer(NamedTuple):
    """The ops of a layer; its pre-activation is the sum of all its products."""

    applies: tuple[Apply, ...]
    act: BiasAct


def whole_layers(span: Span) -> tuple[SummedLayer, ...] | None:
    """Return the layers of a span, or None if it is not a sequence of whole layers."""
    layers: list[SummedLayer] = []
    applies: list[Apply] = []
    for op in span.ops:
        if isinstance(op, Apply) and op.accumulate == bool(applies):
            applies.append(op)
        elif isinstance(op, BiasAct) and applies:
            layers.append(SummedLayer(tuple(applies), op))
            applies = []
        else:
            return None
        if any(apply.z != applies[0].z for apply in applies):
            return None
        if layers and layers[-1].act is op and op.z != layers[-1].applies[0].z:
            return None
    return tuple(layers) if layers and not applies else None


def layers_of(span: Span) -> tuple[SummedLayer, ...]:
    """Return the layers of a span, which was not refused."""
    layers = whole_layers(span)
    assert layers is not None
    return layers


def refuse_unless_several_layers(span: Span) -> str | None:
    """Return why the span is not several layers with uniform activations, or None."""
    for op in span.ops:
        if isinstance(op, Apply) and not isinstance(
            op.storage, (RowStorage, SparseStorage, LocalStorage)
        ):
            return f"it computes sparse, dense and local layers, not {op.storage.name}"
    layers = whole_layers(span)
    if layers is None:
        return NO_WHOLE_LAYERS
    if len(layers) < 2:
        return "it computes several layers per launch, and this is one"
    if span.outputs != (layers[-1].act.y,):
        return MORE_OUTPUTS
    if not all(layer.act.nonlinearity.uniform for layer in layers):
        return MIXED_ACTIVATIONS
    return None


def live_entries(storage: Storage) -> tuple[NDArray[np.int64], ...]:
    """Return rows, columns and slots of the live entries of a storage."""
    if isinstance(storage, SparseStorage):
        return storage.pattern.rows, storage.pattern.columns, storage.slots
    entries = storage.entries()
    slots = np.flatnonzero(entries.live)
    return entries.rows[slots], entries.columns[slots], slots
