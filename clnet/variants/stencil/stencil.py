"""stencil: one local layer, or its pre-activations alone, on GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from clnet.ir.activation import BiasAct
from clnet.ir.product import Apply
from clnet.nn.storage.layout import round_up
from clnet.nn.storage.local import BAND_ALIGNMENT, LocalStorage
from clnet.opencl.launch import PARAMETERS, Constant, Launch, Launches
from clnet.opencl.program import inline_ptx
from clnet.variants.base import (
    MIXED_ACTIVATIONS,
    MORE_OUTPUTS,
    NO_WHOLE_LAYERS,
    Config,
    Reach,
    contraction,
    refuse_op,
    stored,
    team_group,
    unsupported_dtype,
)
from clnet.variants.cost import Cost, gpu_kernel_efficiency, item_size, span_cost
from clnet.variants.dense.chain import chain
from clnet.variants.macros import function_defines, real

if TYPE_CHECKING:
    from clnet.ir.op import Value
    from clnet.ir.program import LayerOps, Span
    from clnet.opencl.device import Device

VECTORS = (4, 2, 1)  # rows of a work-item
MAX_WEIGHTS = 16  # of a work-item: longer windows need shorter vectors
SAMPLES = (4, 2, 1)  # of a work-item, the usually best first
GROUP = 128  # work-items
TILE_GROUP = 256  # with a tile, or teams, in local memory
STREAM_VECTOR = 4  # rows of a streaming load in PTX
# Of the L2 cache: streaming usually pays for weights that exceed it, if inputs do not.
HELD_SHARE = 0.5


@dataclass(frozen=True)
class Stencil:
    """A work-item computes a vector of rows for some samples (``stencil.cl``).

    Config: ``vec``, rows of a work-item, and ``samples``, which share its weights;
    ``stream``, 1: streaming loads of weights and stores of outputs; or ``tile``, 1:
    the textbook's tiling, x and its halo in local memory.
    """

    name: str = "stencil"
    reach: Reach = "pair"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse all but a local layer with one activation, or its pre-activations."""
        op, *acts = span.ops
        refusal = refuse_op(
            span, device, Apply, "computes pre-activations", LocalStorage
        )
        if refusal is not None:
            return refusal
        assert isinstance(op, Apply)
        if op.accumulate:
            return "it computes layers of one source, and this op adds to others' sums"
        for act in acts:
            if not isinstance(act, BiasAct) or act.z != op.z:
                return "it computes one layer, and this op belongs to another"
            if op.z in span.outputs:
                return "it stores a layer's output only, and its sums are read later"
            if not act.nonlinearity.uniform:
                return MIXED_ACTIVATIONS
        return None

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Vectors, and as many samples as the batch has; then the tile."""
        window = _storage(span).window
        vectors = sorted(VECTORS, key=lambda vec: vec * window > MAX_WEIGHTS and vec)
        if device.simd_width == 1:
            vectors = [1]
        samples = [n for n in SAMPLES if n == 1 or n <= span.batch]
        configs = [
            {"vec": v, "samples": n, "stream": stream, "tile": 0}
            for v in vectors for n in samples
            for stream in _streams(span, v, n, device)
        ]
        if self._tile_bytes(span, device) <= device.local_memory:
            configs.append({"vec": 1, "samples": 1, "stream": 0, "tile": 1})
        return tuple(configs)

    def _tile_bytes(self, span: Span, device: Device) -> int:
        storage = _storage(span)
        group = min(TILE_GROUP, device.largest_group)
        return (group + storage.window - 1) * item_size(span)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Weights are read once for some samples; halos of x are read from cache."""
        storage = _storage(span)
        again = -(-span.batch // config["samples"]) - 1
        moved = item_size(span) * again * storage.size
        return span_cost(span, device, moved, device.compute_units)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the one launch."""
        apply, last = contraction(span), span.ops[-1]
        assert isinstance(apply, Apply)
        storage = _storage(span)
        act = last if isinstance(last, BiasAct) else None
        x, y = apply.x, apply.z if act is None else act.y
        vec, samples = config["vec"], config["samples"]
        bias = None if act is None else act.bias
        defines: dict[str, int | str] = {
            "REAL": real(span), **bias_defines(act), "SUMS": int(act is None),
            "WINDOW": storage.window, "VEC": vec, "SAMPLES": samples,
            "STREAM": config["stream"],
            "X_ALIGNED": aligned(x, vec, span.batch),
            "Y_ALIGNED": aligned(y, vec, span.batch),
        }
        if act is not None:
            defines.update(function_defines(span, act.nonlinearity))
        if config["tile"]:
            group = min(TILE_GROUP, device.largest_group)
            defines["GROUP"] = group
            across, kernel = -(-storage.n_out // group), "stencil_tile"
            items = across * group * span.batch
        else:
            group, kernel = min(GROUP, device.largest_group), "stencil"
            across = round_up(-(-storage.n_out // vec), group)
            items = across * -(-span.batch // samples)
        return (
            Launch(
                "stencil/stencil.cl", kernel, defines, (items,), (group,),
                (
                    PARAMETERS, apply.weights.offset, storage.pitch,
                    0 if bias is None else bias.offset, x, x.stride, y, y.stride,
                    storage.n_out, span.batch, across,
                ),
            ),
        )


def aligned(value: Value, vec: int, batch: int) -> int:
    """Return 1 if every row of a value is aligned to vectors, else 0."""
    return int(batch == 1 or value.stride % vec == 0)


def _storage(span: Span) -> LocalStorage:
    return stored(contraction(span), LocalStorage)


def streams(vec: int, dtype: str, device: Device) -> bool:
    """Return whether the kernel builds with streaming loads and stores.

    The inline PTX is for vectors of four floats only; the compiler's non-temporal hint
    takes every vector.
    """
    return not inline_ptx(device) or (vec == STREAM_VECTOR and dtype == "float32")


def _streams(span: Span, vec: int, samples: int, device: Device) -> tuple[int, ...]:
    """Return the values of ``stream`` to try, the best first."""
    builds = streams(vec, span.dtype, device) and samples >= span.batch
    if not (inline_ptx(device) and builds):
        return (0,)
    storage = _storage(span)
    held = HELD_SHARE * device.rates.cache_bytes / item_size(span)
    pays = storage.size >= held >= span.batch * storage.n_in
    return (1, 0) if pays else (0, 1)


def local_storage(layer: LayerOps) -> LocalStorage:
    """Return the storage of an accepted layer."""
    return stored(layer.apply, LocalStorage)


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


def offsets_table(layers: tuple[LayerOps, ...]) -> Constant:
    """Return the offsets of each layer's weights and bias [layers, 2]; 0: no bias."""
    offsets = [
        (x.apply.weights.offset, 0 if x.act.bias is None else x.act.bias.offset)
        for x in layers
    ]
    return Constant(
        f"offsets of local layers {offsets[0]} to {offsets[-1]}",
        lambda: np.asarray(offsets, np.int32),
    )




@dataclass(frozen=True)
class StencilReduction:
    """The fifth study's reduction over windows (``stencil_reduction.cl``).

    Config: ``items``, work-items of a row.
    """

    name: str = "stencil_reduction"
    reach: Reach = "layer"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse all but one local layer with one activation."""
        return refuse_unless_local_layers(span, device)

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Return teams of as many work-items as the window has inputs, or of half."""
        (layer,) = chain(span)
        window = 1 << (local_storage(layer).window - 1).bit_length()
        group = team_group(TILE_GROUP, device)
        sizes = dict.fromkeys(min(group, max(1, n)) for n in (window, window // 2))
        return tuple({"items": items} for items in sizes)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count weights again for every sample.

        An estimate of the efficiency: the loads of a row's work-items are not
        coalesced.
        """
        (layer,) = chain(span)
        again = item_size(span) * layer.apply.weights.size * (span.batch - 1)
        efficiency = gpu_kernel_efficiency(device) / config["items"]
        units = device.compute_units
        return span_cost(span, device, again, units, efficiency=efficiency)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the one launch."""
        (layer,) = chain(span)
        x, y, bias = layer.apply.x, layer.act.y, layer.act.bias
        items, group = config["items"], team_group(TILE_GROUP, device)
        across = -(-layer.n_out * items // group)
        launch = Launch.of_groups(
            "stencil/stencil_reduction.cl", "stencil_reduction",
            {**local_defines(span, layer), "ITEMS": items, "GROUP": group},
            span.batch * across, group,
            PARAMETERS, layer.apply.weights.offset, local_storage(layer).pitch,
            0 if bias is None else bias.offset, x, x.stride, y, y.stride, layer.n_out,
            across,
        )
        return (launch,)
