"""host: one op in NumPy, on the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clnet.variants.base import Config, Reach, Untuned
from clnet.variants.cost import Cost, span_bytes, span_flops

if TYPE_CHECKING:
    from clnet.ir.ops import Span
    from clnet.opencl.device import Device
    from clnet.opencl.launch import Launches


@dataclass(frozen=True)
class Host(Untuned):
    """The op by `clnet.ir.reference`, in the network's dtype."""

    name: str = "host"
    reach: Reach = "op"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse nothing."""
        return None

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count one pass over the parameters; the planner adds transfers."""
        return Cost(span_flops(span), span_bytes(span), 0, 0, 1)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return none: the runtime computes the op in NumPy."""
        return ()
