"""The cost of a span in a variant: operations, traffic, launches and memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clnet.ir.ops import Apply, BiasAct, Span
from clnet.ir.training_ops import ApplyT, Outer

if TYPE_CHECKING:
    from clnet.opencl.device import Device


@dataclass(frozen=True)
class Cost:
    """Cost of a span in a variant; read by models and by the benchmarks' rooflines.

    Attributes
    ----------
    flops : int
        Floating-point operations, a multiply-add being two.
    bytes : int
        Bytes of global-memory traffic; an array that is read again counts again.
    launches : int
        Kernel launches per call.
    scratch : int
        Bytes of scratch and packed buffers.
    compute_units : int
        Compute units kept busy, at most.
    efficiency : float
        Attainable share of a compute unit's peak rate; an estimate.
    """

    flops: int
    bytes: int
    launches: int
    scratch: int
    compute_units: int
    efficiency: float = 1.0


def span_flops(span: Span) -> int:
    """Return the floating-point operations of a span, in any variant."""
    flops = 0
    for op in span.ops:
        if isinstance(op, (Apply, ApplyT, Outer)):
            flops += 2 * op.storage.size * span.batch
        else:
            flops += 4 * sum(v.width * v.height(span.batch) for v in op.writes)
    return flops


def gpu_kernel_efficiency(device: Device) -> float:
    """Return the attainable efficiency of a kernel written for GPUs.

    Measured on PoCL: one work-item per output is 15 to 50 times slower than explicit
    vectors without barriers.
    """
    return 0.05 if device.type == "cpu" else 1.0


def item_size(span: Span) -> int:
    """Return the bytes of one number of a span."""
    return 8 if span.dtype == "float64" else 4


def span_bytes(span: Span) -> int:
    """Return the least traffic of a span: parameters, inputs and outputs once."""
    numbers = 0
    for op in span.ops:
        if isinstance(op, Apply):
            numbers += op.weights.size
        elif isinstance(op, BiasAct) and op.bias is not None:
            numbers += op.bias.size
    values = sum(
        value.width * value.height(span.batch)
        for value in (*span.inputs, *span.outputs)
    )
    return item_size(span) * (numbers + values)


def span_cost(
    span: Span, device: Device, again: int, groups: int, launches: int = 1,
    scratch: int = 0, efficiency: float | None = None,
) -> Cost:
    """Return the cost of a span by work-groups, each on a compute unit.

    Parameters
    ----------
    span, device
        As in `Variant.cost`.
    again : int
        Bytes of traffic besides `span_bytes`.
    groups : int
        Work-groups of a launch.
    launches, scratch : int
        As in `Cost`.
    efficiency : float or None
        As in `Cost`; None: `gpu_kernel_efficiency`.
    """
    if efficiency is None:
        efficiency = gpu_kernel_efficiency(device)
    return Cost(
        span_flops(span), span_bytes(span) + again, launches, scratch,
        min(device.compute_units, groups), efficiency,
    )
