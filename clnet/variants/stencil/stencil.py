"""stencil: one local layer, or its sums alone, in the shapes that GPUs like."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from clnet.ir.ops import Apply, BiasAct, Span, Value
from clnet.nn.storage import LocalStorage
from clnet.nn.storage.layout import round_up
from clnet.opencl.device import Device
from clnet.opencl.launch import Launch, Parameters
from clnet.opencl.program import inline_ptx
from clnet.variants.base import (
    Config,
    Cost,
    Reach,
    function_defines,
    gpu_shape,
    item_size,
    real,
    span_bytes,
    span_flops,
    unsupported_dtype,
)
from clnet.variants.stencil.local_layers import bias_defines

VECTORS = (4, 2, 1)  # rows a work-item
ENOUGH = 16  # rows and inputs of a work-item: longer windows want shorter vectors
SAMPLES = (4, 2, 1)  # a work-item, the usually best first
GROUP = 128  # work-items
TILE_GROUP = 256  # work-items of a group that shares a tile
STREAM_VECTOR = 4  # rows whose weights can be marked as needed once
LARGE, LARGEST = 6 << 20, 6 << 20
"""Weights from which on that usually pays, since a cache cannot hold them; inputs up to
which it does, since a cache can hold those (H200)."""


@dataclass(frozen=True)
class Stencil:
    """A vector of rows a work-item, for some samples (``stencil.cl``).

    Config: ``vec``, rows a work-item, and ``samples``, which share its weights;
    ``stream``, 1 where weights and outputs are marked as needed once; or ``tile``,
    1: the textbook's way, x and its halo in local memory.
    """

    name: str = "stencil"
    reach: Reach = "pair"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse all but a local layer with one activation, or its sums."""
        op, *more = span.ops
        if not isinstance(op, Apply):
            return "it computes layers' sums, and this op does not"
        if not isinstance(op.storage, LocalStorage):
            return f"it reads local layers, not {op.storage.name}"
        if op.accumulate:
            return "it does not add to the sums of a layer's other sources"
        for act in more:
            if not isinstance(act, BiasAct) or act.sums != op.sums:
                return "it computes a layer's function, and this op is no such"
            if op.sums in span.outputs:
                return "it keeps a layer's output alone, and its sums are read later"
            if not act.nonlinearity.uniform:
                return "it applies one activation a layer, and here neurons differ"
        return unsupported_dtype(span, device)

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Vectors, and as many samples as the batch has; the tile too."""
        window = _storage(span).window
        vectors = sorted(VECTORS, key=lambda vec: vec * window > ENOUGH and vec)
        if device.simd_width == 1:
            vectors = [1]
        samples = [n for n in SAMPLES if n == 1 or n <= span.batch]
        found = [
            {"vec": v, "samples": n, "stream": stream, "tile": 0}
            for v in vectors for n in samples
            for stream in _streams(span, v, n, device)
        ]
        if self._tile_bytes(span, device) <= device.local_memory:
            found.append({"vec": 1, "samples": 1, "stream": 0, "tile": 1})
        return tuple(found)

    def _tile_bytes(self, span: Span, device: Device) -> int:
        storage = _storage(span)
        group = min(TILE_GROUP, device.largest_group)
        return (group + storage.window - 1) * item_size(span)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Weights are read once for some samples; what is beside x stays in cache."""
        storage = _storage(span)
        again = -(-span.batch // config["samples"]) - 1
        return Cost(
            span_flops(span),
            span_bytes(span) + item_size(span) * again * storage.size, 1, 0,
            device.compute_units, gpu_shape(device),
        )

    def launches(
        self, span: Span, config: Config, device: Device
    ) -> tuple[Launch, ...]:
        """Return the one launch."""
        apply, *more = span.ops
        assert isinstance(apply, Apply)
        storage = _storage(span)
        act = more[0] if more else None
        assert act is None or isinstance(act, BiasAct)
        x, y = apply.x, apply.sums if act is None else act.y
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
    """Return 1 where every row of a value starts on a whole vector, else 0."""
    return int(batch == 1 or value.stride % vec == 0)


def _storage(span: Span) -> LocalStorage:
    op = span.ops[0]
    assert isinstance(op, Apply)
    assert isinstance(op.storage, LocalStorage)
    return op.storage


def streams(vec: int, dtype: str, device: Device) -> bool:
    """Return whether the kernel builds with weights marked as needed once.

    PTX has the instruction for vectors of four floats alone, here; a hint of the
    compiler's takes every vector.
    """
    return not inline_ptx(device) or (vec == STREAM_VECTOR and dtype == "float32")


def _streams(span: Span, vec: int, samples: int, device: Device) -> tuple[int, ...]:
    """Return whether weights may be marked as needed once, the best first."""
    shaped = streams(vec, span.dtype, device) and samples >= span.batch
    if not (inline_ptx(device) and shaped):
        return (0,)
    storage = _storage(span)
    pays = storage.size >= LARGE and span.batch * storage.n_in <= LARGEST
    return (1, 0) if pays else (0, 1)
