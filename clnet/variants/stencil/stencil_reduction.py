"""stencil_reduction: a local layer, each row's window divided among a team."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from clnet.ir.ops import Span
from clnet.opencl.device import Device
from clnet.opencl.launch import Launch, Parameters
from clnet.variants.base import (
    Config,
    Cost,
    Reach,
    gpu_shape,
    item_size,
    span_bytes,
    span_flops,
)
from clnet.variants.stencil.local_layers import (
    local_defines,
    local_layers,
    local_storage,
    refuse_unless_local_layers,
)
from clnet.variants.team import team_group

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
        """Return as many work-items as the window has inputs, or half."""
        (layer,) = local_layers(span)
        whole = 1 << (local_storage(layer).window - 1).bit_length()
        most = team_group(GROUP, device)
        found = dict.fromkeys(min(most, max(1, n)) for n in (whole, whole // 2))
        return tuple({"items": items} for items in found)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count weights anew for every sample; a row's work-items wait for each other.

        An estimate: of their loads, which are not of neighbouring values, as many
        serve one vector.
        """
        (layer,) = local_layers(span)
        again = item_size(span) * layer.apply.weights.size * (span.batch - 1)
        return Cost(
            span_flops(span), span_bytes(span) + again, 1, 0, device.compute_units,
            gpu_shape(device) / config["items"],
        )

    def launches(
        self, span: Span, config: Config, device: Device
    ) -> tuple[Launch, ...]:
        """Return the one launch."""
        (layer,) = local_layers(span)
        x, y, bias = layer.apply.x, layer.act.y, layer.act.bias
        items, group = config["items"], team_group(GROUP, device)
        across = -(-layer.n_out * items // group)
        return (
            Launch(
                "stencil/stencil_reduction.cl", "reduction",
                {**local_defines(span, layer), "ITEMS": items, "GROUP": group},
                (span.batch * across * group,), (group,),
                (
                    Parameters(), layer.apply.weights.offset,
                    local_storage(layer).pitch, 0 if bias is None else bias.offset,
                    x, x.stride, y, y.stride, layer.n_out, across,
                ),
            ),
        )
