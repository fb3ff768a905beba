"""host: one op in NumPy, on the host."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clnet.opencl.device import Device
from clnet.opencl.quirks import host_memory
from clnet.variants.base import Config, Reach, Untuned
from clnet.variants.cost import (
    Cost,
    item_size,
    modelled,
    span_bytes,
    span_flops,
)

if TYPE_CHECKING:
    from clnet.ir.program import Span
    from clnet.opencl.launch import Launches

CORE = Device("a core of the host", "cpu", vector_width=8)  # its rates are estimates
COPIES = 3  # of an op's values, at most: NumPy's operations make new arrays
CALL_SECONDS = 5e-6  # of an op in NumPy, besides: some calls of Python


@dataclass(frozen=True)
class Host(Untuned):
    """The op by `clnet.ir.reference`, in the network's dtype."""

    name: str = "host"
    reach: Reach = "op"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse values larger than a part of the host's memory."""
        values = {value for op in span.ops for value in (*op.reads, *op.writes)}
        size = span.batch * sum(value.stride for value in values) * item_size(span)
        if size * COPIES <= host_memory():
            return None
        return f"its values need {size * COPIES} bytes of the host's {host_memory()}"

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count one pass over the parameters on a core: the device's if it is a CPU."""
        cost = Cost(span_flops(span), span_bytes(span), 0, 0, 1)
        core = min(device.places, key=lambda unit: unit.compute_units)
        busy = CALL_SECONDS + modelled(cost, core if device.type == "cpu" else CORE)
        return replace(cost, efficiency=math.inf, busy=busy)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return none: the runtime computes the op in NumPy."""
        return ()
