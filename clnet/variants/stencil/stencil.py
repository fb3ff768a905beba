"""stencil: one local layer, or its pre-activations alone, on GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clnet.ir.ops import Apply, BiasAct, Span, Value
from clnet.nn.storage.layout import round_up
from clnet.nn.storage.local import LocalStorage
from clnet.opencl.launch import Launch, Launches, Parameters
from clnet.opencl.program import inline_ptx
from clnet.variants.base import MIXED_ACTIVATIONS, Config, Reach, unsupported_dtype
from clnet.variants.cost import Cost, item_size, span_cost
from clnet.variants.macros import function_defines, real
from clnet.variants.stencil.local_layers import bias_defines

if TYPE_CHECKING:
    from clnet.opencl.device import Device

VECTORS = (4, 2, 1)  # rows of a work-item
MAX_WEIGHTS = 16  # of a work-item: longer windows need shorter vectors
SAMPLES = (4, 2, 1)  # of a work-item, the usually best first
GROUP = 128  # work-items
TILE_GROUP = 256  # work-items of a group with a tile in local memory
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
        op, *more = span.ops
        if not isinstance(op, Apply):
            return "it computes layers' pre-activations, and this op does not"
        if not isinstance(op.storage, LocalStorage):
            return f"it reads local layers, not {op.storage.name}"
        if op.accumulate:
            return "it computes layers of one source, and this op adds to others' sums"
        for act in more:
            if not isinstance(act, BiasAct) or act.z != op.z:
                return "it computes one layer, and this op belongs to another"
            if op.z in span.outputs:
                return "it stores a layer's output only, and its sums are read later"
            if not act.nonlinearity.uniform:
                return MIXED_ACTIVATIONS
        return unsupported_dtype(span, device)

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
        apply, *more = span.ops
        assert isinstance(apply, Apply)
        storage = _storage(span)
        act = more[0] if more else None
        assert act is None or isinstance(act, BiasAct)
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
                    Parameters(), apply.weights.offset, storage.pitch,
                    0 if bias is None else bias.offset, x, x.stride, y, y.stride,
                    storage.n_out, span.batch, across,
                ),
            ),
        )


def aligned(value: Value, vec: int, batch: int) -> int:
    """Return 1 if every row of a value is aligned to vectors, else 0."""
    return int(batch == 1 or value.stride % vec == 0)


def _storage(span: Span) -> LocalStorage:
    op = span.ops[0]
    assert isinstance(op, Apply)
    assert isinstance(op.storage, LocalStorage)
    return op.storage


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
