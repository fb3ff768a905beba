"""stencil_reduction: a local layer, a team of work-items per row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clnet.opencl.launch import Launch, Launches, Parameters
from clnet.variants.cost import Cost, gpu_kernel_efficiency, item_size, span_cost
from clnet.variants.dense.chain import chain
from clnet.variants.stencil.local_layers import (
    local_defines,
    local_storage,
    refuse_unless_local_layers,
)
from clnet.variants.team import team_group

if TYPE_CHECKING:
    from clnet.ir.ops import Span
    from clnet.opencl.device import Device
    from clnet.variants.base import Config, Reach

GROUP = 256  # work-items


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
        group = team_group(GROUP, device)
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
        items, group = config["items"], team_group(GROUP, device)
        across = -(-layer.n_out * items // group)
        return (
            Launch(
                "stencil/stencil_reduction.cl", "stencil_reduction",
                {**local_defines(span, layer), "ITEMS": items, "GROUP": group},
                (span.batch * across * group,), (group,),
                (
                    Parameters(), layer.apply.weights.offset,
                    local_storage(layer).pitch, 0 if bias is None else bias.offset,
                    x, x.stride, y, y.stride, layer.n_out, across,
                ),
            ),
        )
