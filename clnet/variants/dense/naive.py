"""naive: one work-item per neuron."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clnet.nn.storage.layout import round_up
from clnet.opencl.launch import Launch, Launches
from clnet.variants.base import GROUP, Config, DenseLayers, Reach, Untuned, dense_layer
from clnet.variants.cost import Cost, item_size, span_cost
from clnet.variants.macros import layer_defines, weights_and_bias

if TYPE_CHECKING:
    from clnet.ir.ops import Span
    from clnet.opencl.device import Device


@dataclass(frozen=True)
class Naive(DenseLayers, Untuned):
    """One dense layer; every work-item reads a row of A (``naive.cl``)."""

    name: str = "naive"
    reach: Reach = "layer"

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count rows once per sample."""
        layer = dense_layer(span)
        again = item_size(span) * layer.n_in * layer.n_out * (span.batch - 1)
        groups = -(-layer.n_out // GROUP) * span.batch
        return span_cost(span, device, again, groups)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the layer's one launch."""
        layer = dense_layer(span)
        x, y = layer.apply.x, layer.act.y
        group = min(GROUP, device.largest_group)
        across = round_up(layer.n_out, group)
        return (
            Launch(
                "dense/naive.cl", "naive", layer_defines(span, layer),
                (across * span.batch,), (group,),
                (*weights_and_bias(layer), x, x.stride, y, y.stride, layer.n_in,
                 layer.n_out, across),
            ),
        )
