"""stencil_backward: the backward products of a local layer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clnet.ir.training_ops import ApplyT, Outer
from clnet.nn.storage.layout import round_up
from clnet.nn.storage.local import LocalStorage
from clnet.opencl.launch import Gradients, Launch, Launches, Parameters, Scratch
from clnet.variants.base import VECTOR_BYTES, Config, Reach, unsupported_dtype
from clnet.variants.cost import Cost, item_size
from clnet.variants.macros import real
from clnet.variants.training.outer import (
    BLOCK,
    ITEMS,
    MIN_PART,
    add_parts,
    split_k_cost,
)

if TYPE_CHECKING:
    from clnet.ir.ops import Span
    from clnet.opencl.device import Device

SOURCE = "training/stencil_backward.cl"
BANDS = 4  # of a work-item, with accumulators in registers
GROUP = 128  # work-items, on GPUs
CHUNK = 2048  # rows or columns of a work-item, on CPUs
BLOCKS = (1, 4, 16)  # samples of a work-item of `ApplyT`


@dataclass(frozen=True)
class StencilBackward:
    """Columns of a local layer's matrix, and its bands (``stencil_backward.cl``).

    Config: ``vec``, rows or columns at a time, and ``chunk``, of a work-item, both 1 on
    GPUs; of `ApplyT` ``block``, samples of a work-item; of `Outer` ``parts``, of the
    batch (split-k).
    """

    name: str = "stencil_backward"
    reach: Reach = "op"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse all but the two products of a local layer."""
        op = span.ops[0]
        if not isinstance(op, (ApplyT, Outer)):
            return "it computes gradients' products, and this op is none"
        if not isinstance(op.storage, LocalStorage):
            return f"it computes gradients of local layers, not {op.storage.name}"
        return unsupported_dtype(span, device)

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Return blocks of samples, or enough parts of the batch to fill the device."""
        op = _op(span)
        shape = {"vec": 1, "chunk": 1}
        if device.type == "cpu":
            shape = {"vec": VECTOR_BYTES // item_size(span), "chunk": CHUNK}
        if isinstance(op, ApplyT):
            blocks = dict.fromkeys(min(block, span.batch) for block in BLOCKS)
            return tuple({**shape, "block": block} for block in blocks)
        items = -(-op.storage.n_out // shape["chunk"]) * _band_groups(op)
        filling = -(-ITEMS["cpu" if shape["chunk"] > 1 else "gpu"]
                    * device.compute_units // items)
        most = max(1, span.batch // MIN_PART)
        sizes = dict.fromkeys((min(filling, most), 1))
        return tuple({**shape, "parts": parts} for parts in sizes)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count weights again for every block, and the partial sums."""
        op = _op(span)
        values = sum(v.width for v in (*op.reads, *op.writes)) * span.batch
        parts, again = config.get("parts", 1), 0
        if isinstance(op, ApplyT):
            again = op.storage.size * -(-span.batch // config["block"])
        return split_k_cost(span, device, again, parts, values)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the product, and for several parts their sum."""
        op = _op(span)
        storage = op.storage
        assert isinstance(storage, LocalStorage)
        chunk = config["chunk"]
        group = 1 if chunk > 1 else min(GROUP, device.largest_group)
        defines: dict[str, int | str] = {
            "REAL": real(span), "WINDOW": storage.window, "VEC": config["vec"],
            "CHUNK": chunk,
        }
        if isinstance(op, ApplyT):
            across = round_up(-(-storage.n_in // chunk), group)
            items = across * -(-span.batch // config["block"])
            return (
                Launch(
                    SOURCE, "apply_t", defines, (items,), (group,),
                    (
                        Parameters(), op.weights.offset, storage.pitch, op.dz,
                        op.dz.stride, op.dx, op.dx.stride, storage.n_out, span.batch,
                        int(op.accumulate), across, config["block"],
                    ),
                ),
            )
        across, bands = round_up(-(-storage.n_out // chunk), group), _band_groups(op)
        parts = config["parts"]
        partial = Scratch("partial", item_size(span) * storage.size * parts)
        sums = Launch(
            SOURCE, "outer",
            {**defines, "BANDS": min(BANDS, storage.window), "BLOCK": BLOCK},
            (across * bands * parts,), (group,),
            (
                *((Gradients(), op.weights.offset) if parts == 1 else (partial, 0)),
                storage.pitch, storage.size, op.dz, op.dz.stride, op.x, op.x.stride,
                storage.n_out, span.batch, across, bands, -(-span.batch // parts),
            ),
        )
        if parts == 1:
            return (sums,)
        return (sums, add_parts(span, op, partial, parts, device))


def _band_groups(op: Outer) -> int:
    """Return the number of groups of BANDS bands in a window."""
    storage = op.storage
    assert isinstance(storage, LocalStorage)
    return -(-storage.window // BANDS)


def _op(span: Span) -> ApplyT | Outer:
    (op,) = span.ops
    assert isinstance(op, (ApplyT, Outer))
    return op
