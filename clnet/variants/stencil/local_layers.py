"""Shared by the variants of locally connected layers: refusals, macros, offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from clnet.nn.storage.contents import Contents
from clnet.nn.storage.local import BAND_ALIGNMENT, LocalStorage
from clnet.opencl.launch import Table
from clnet.variants.base import (
    MIXED_ACTIVATIONS,
    MORE_OUTPUTS,
    NO_WHOLE_LAYERS,
    unsupported_dtype,
)
from clnet.variants.macros import function_defines

if TYPE_CHECKING:
    from clnet.ir.ops import BiasAct, LayerOps, Span
    from clnet.opencl.device import Device


def local_storage(layer: LayerOps) -> LocalStorage:
    """Return the storage of an accepted layer."""
    storage = layer.apply.storage
    assert isinstance(storage, LocalStorage)
    return storage


def refuse_unless_local_layers(span: Span, device: Device) -> str | None:
    """Return why the span is no chain of equal local layers, or None."""
    if span.chain is None:
        return NO_WHOLE_LAYERS
    if span.layers is None:
        return MORE_OUTPUTS
    first = span.layers[0]
    for layer in span.layers:
        storage = layer.apply.storage
        if not isinstance(storage, LocalStorage):
            return f"it reads local layers, not {storage.name}"
        if not layer.act.nonlinearity.uniform:
            return MIXED_ACTIVATIONS
        if storage.window != local_storage(first).window:
            return (
                f"it needs layers of one window, and here are "
                f"{local_storage(first).window} and {storage.window}"
            )
        if layer.act.nonlinearity != first.act.nonlinearity:
            return "it needs layers of one activation, and here they differ"
        if _biases_differ(layer, first):
            return "it needs layers of one kind of bias, and here they differ"
    return unsupported_dtype(span, device)


def _biases_differ(layer: LayerOps, first: LayerOps) -> bool:
    if (layer.act.bias is None) != (first.act.bias is None):
        return True
    # The kind makes no difference to a single neuron.
    return layer.n_out > 1 and layer.act.shared != first.act.shared


def local_defines(span: Span, layer: LayerOps) -> dict[str, int | str]:
    """Return the macros of a kernel for local layers equal to this one."""
    return {
        **function_defines(span, layer.act.nonlinearity),
        **bias_defines(layer.act),
        "WINDOW": local_storage(layer).window,
        "LINE": BAND_ALIGNMENT,
    }


def bias_defines(act: BiasAct | None) -> dict[str, int | str]:
    """Return the macros of the biases; None: pre-activations without a bias."""
    return {
        "HAS_BIAS": int(act is not None and act.bias is not None),
        "BIAS_STEP": int(act is not None and not act.shared),
    }


def offsets_table(layers: tuple[LayerOps, ...]) -> Table:
    """Return the offsets of each layer's weights and bias [layers, 2]; 0: no bias."""
    offsets = [
        (x.apply.weights.offset, 0 if x.act.bias is None else x.act.bias.offset)
        for x in layers
    ]
    return Table(
        f"offsets of local layers {offsets[0]} to {offsets[-1]}",
        lambda: np.asarray(offsets, np.int32),
        Contents(2 * len(offsets), max(map(max, offsets))),
    )
