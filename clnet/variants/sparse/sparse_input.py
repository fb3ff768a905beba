"""sparse_input: the first layer's products with sparse samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clnet.ir.sparse_input import SPARSE_INPUT_OPS, SparseInputApply, SparseInputOuter
from clnet.nn.random import half_bits
from clnet.nn.storage.layout import round_up
from clnet.opencl.launch import (
    GRADIENTS,
    KEY,
    PARAMETERS,
    Launch,
    Launches,
    Scalar,
    Scratch,
)
from clnet.variants.base import (
    GROUP,
    Config,
    Reach,
    Untuned,
    refuse_op,
)
from clnet.variants.cost import (
    UNCOALESCED,
    Cost,
    gpu_kernel_efficiency,
)
from clnet.variants.macros import real

if TYPE_CHECKING:
    from clnet.ir.program import Span
    from clnet.ir.sparse_input import SparseRows
    from clnet.opencl.device import Device

SOURCE = "sparse/sparse_input.cl"
OUTER_GROUP = 128  # work-items that add a sample's entries to a row of the gradient
LINE_BYTES = 64  # of a CPU's cache line
BOUNDS_BYTES = 8  # of a sample: two ints


@dataclass(frozen=True)
class SparseInput(Untuned):
    """Rows of weights times entries of samples in CSR form (``sparse_input.cl``)."""

    name: str = "sparse_input"
    reach: Reach = "op"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse all but the products with sparse samples."""
        return refuse_op(span, device, SPARSE_INPUT_OPS, "multiplies sparse samples")

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count an entry's reads of a row; the gradient is written once besides."""
        op, size = _op(span), span.item_size
        rows, entries = op.storage.n_out, op.x.entries(span.batch)
        misses = 1 if device.type == "cpu" else UNCOALESCED
        moved = rows * entries * (size * (misses + 1) + 4)
        if isinstance(op, SparseInputOuter):
            moved += size * op.storage.size
        units = min(rows, device.compute_units)
        return Cost(
            span.flops, moved, 2, BOUNDS_BYTES * span.batch, units,
            gpu_kernel_efficiency(device),
        )

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the launch that looks the samples up, and the product."""
        op, cpu = _op(span), device.type == "cpu"
        storage, (_, columns, numbers) = op.storage, op.x.values
        bounds = Scratch("bounds", BOUNDS_BYTES * span.batch)
        group = 1 if cpu else min(GROUP, device.largest_group)
        lookup = _lookup(op.x, span, bounds, min(GROUP, device.largest_group))
        defines: dict[str, int | str] = {"REAL": real(span)}
        if isinstance(op, SparseInputApply):
            samples = span.batch if cpu else 1
            row_items = round_up(storage.n_out, group)
            items = row_items * -(-span.batch // samples)
            line = LINE_BYTES // span.item_size
            most = op.x.entries(span.batch) >= storage.stride // line  # are read anyway
            defines |= {"SAMPLES": samples, "LINE": line if cpu and most else 0}
            return lookup, Launch(
                SOURCE, "apply", defines, (items,), (group,),
                (
                    PARAMETERS, op.weights.offset, storage.stride, bounds, columns,
                    numbers, op.z, op.z.stride, storage.n_out, span.batch, row_items,
                ),
            )
        group = 1 if cpu else min(OUTER_GROUP, device.largest_group)
        return lookup, Launch.of_groups(
            SOURCE, "outer", {**defines, "GROUP": group}, storage.n_out, group,
            GRADIENTS, op.weights.offset, storage.stride, storage.n_in, bounds, columns,
            numbers, op.dz, op.dz.stride, span.batch,
        )


def _lookup(x: SparseRows, span: Span, bounds: Scratch, group: int) -> Launch:
    """Return the launch that finds the entries of a batch's samples."""
    samples = x.shape.samples
    return Launch.of_groups(
        SOURCE, "rows", {"REAL": real(span), "SHUFFLED": int(x.shuffled)},
        -(-span.batch // group), group,
        x.starts, bounds, span.batch, Scalar("first"), samples, half_bits(samples),
        *KEY,
    )


def _op(span: Span) -> SparseInputApply | SparseInputOuter:
    (op,) = span.ops
    assert isinstance(op, SPARSE_INPUT_OPS)
    return op
