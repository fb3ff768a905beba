"""The cost of a span in a variant: operations, traffic, launches, waits and memory.

A variant counts; the device's `Rates` say how long each count takes. Shares and counts
of a model are properties of kernels, and stand in their variants with a reason. Times,
bytes a second and operations a second are of a device, and stand in no variant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clnet.ir.program import Span
    from clnet.opencl.device import Device


@dataclass(frozen=True)
class Cost:
    """Cost of a span in a variant; read by models and by the benchmarks' rooflines."""

    flops: int  # Floating-point operations, a multiply-add being two
    # Bytes of global-memory traffic; an array that is read again counts again
    bytes: int
    launches: int  # Kernel launches per call
    scratch: int  # Bytes of scratch and packed buffers
    compute_units: int  # Compute units kept busy, at most
    # Attainable share of a compute unit's peak rate; an estimate. Infinite: the
    # operations and bytes are not the device's, and `busy` is the whole time.
    efficiency: float = 1.0
    again: int = 0  # Of the bytes, those of arrays read again, which caches may hold
    unit: str = "flops"  # The rate of the operations, by its name in `Rates`
    # Operations of that unit for one of the span's, waits between them included
    work: float = 1.0
    handovers: int = 0  # Waits for values of all work-groups
    loads: int = 0  # Loads that need the one before
    # Seconds of the launches by the variant's own model, which knows of bytes read
    # again; it counts if it is longer than the others' time
    busy: float = 0.0


# Of the rate of multiply-adds in registers alone, in kernels that also load and store.
PRODUCT_SHARE = 0.7
UNCOALESCED = 8  # values a GPU fetches for each value that a work-item reads of its row


def modelled(cost: Cost, device: Device) -> float:
    """Return the modelled seconds of a cost on a device: roofline, launches, waits."""
    rates = device.rates
    share = max(1, cost.compute_units) * cost.efficiency / device.compute_units
    once = cost.bytes - cost.again
    read = once / rates.bandwidth(once)
    read += 0.0 if cost.busy else cost.again / rates.cache
    flops: float = getattr(rates, cost.unit)
    flops *= PRODUCT_SHARE if cost.unit == "flops" else 1.0
    busy = max(cost.work * cost.flops / (flops * share), read / share, cost.busy)
    waits: float = cost.handovers * rates.handover + cost.loads * rates.latency
    return busy + waits + cost.launches * rates.launch


def gpu_kernel_efficiency(device: Device) -> float:
    """Return the attainable efficiency of a kernel written for GPUs.

    Measured on PoCL: one work-item per output is 15 to 50 times slower than explicit
    vectors without barriers.
    """
    return 0.05 if device.type == "cpu" else 1.0


def span_cost(
    span: Span, device: Device, again: int, groups: int, launches: int = 1,
    scratch: int = 0, efficiency: float | None = None, unit: str = "flops",
    work: float = 1.0, handovers: int = 0, loads: int = 0, busy: float = 0.0,
) -> Cost:
    """Return the cost of a span by work-groups, each on a compute unit."""
    if efficiency is None:
        efficiency = gpu_kernel_efficiency(device)
    return Cost(
        span.flops, span.bytes + again, launches, scratch,
        min(device.compute_units, groups), efficiency, again, unit, work, handovers,
        loads, busy,
    )
