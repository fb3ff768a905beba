"""local: one work-item per neuron, the input staged in local memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clnet.opencl.launch import Launch, Launches
from clnet.variants.base import Config, DenseLayers, Reach, dense_layer
from clnet.variants.cost import Cost, item_size, span_cost
from clnet.variants.macros import layer_defines, weights_and_bias

if TYPE_CHECKING:
    from clnet.ir.ops import Span
    from clnet.opencl.device import Device

GROUPS = (64, 128, 256)  # work-items
STAGES = (256, 1024, 4096)  # values


@dataclass(frozen=True)
class Local(DenseLayers):
    """One dense layer; a group reads its input once (``local.cl``).

    Config: ``group``, work-items of a group; ``stage``, values staged at once.
    """

    name: str = "local"
    reach: Reach = "layer"

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Return stages, from the smallest that holds the whole input down."""
        layer = dense_layer(span)
        most = device.local_memory // item_size(span) // 4 * 4
        stages = list(dict.fromkeys(min(stage, most) for stage in STAGES))
        shorter = [stage for stage in stages if stage < layer.n_in]
        stages = [*stages[len(shorter) :][:1], *reversed(shorter)]
        groups = list(dict.fromkeys(min(g, device.largest_group) for g in GROUPS))
        if device.simd_width == 1:  # all perform alike there
            stages, groups = stages[:1], groups[:1]
        return tuple({"group": g, "stage": s} for s in stages for g in groups)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count A once per sample, and x once per group."""
        layer = dense_layer(span)
        blocks = -(-layer.n_out // config["group"])
        again = layer.apply.weights.size * (span.batch - 1)
        again += layer.n_in * span.batch * (blocks - 1)
        return span_cost(span, device, item_size(span) * again, blocks * span.batch)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the layer's one launch."""
        layer = dense_layer(span)
        x, y = layer.apply.x, layer.act.y
        group = config["group"]
        defines = {
            **layer_defines(span, layer), "GROUP": group, "STAGE": config["stage"],
        }
        return (
            Launch(
                "dense/local.cl", "staged", defines,
                (span.batch * group, -(-layer.n_out // group)), (group, 1),
                (*weights_and_bias(layer), x, x.stride, y, y.stride, layer.n_in,
                 layer.n_out),
            ),
        )
