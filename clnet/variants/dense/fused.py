"""fused: a chain of layers in one launch of one work-group."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clnet.opencl.launch import Launch, Launches, Parameters, Scratch
from clnet.variants.base import Config, DenseLayers, Reach
from clnet.variants.cost import Cost, item_size, span_cost
from clnet.variants.dense.chain import chain, chain_defines, parameter_count, strides
from clnet.variants.team import single_sample_configs, team_defines, team_local_bytes

if TYPE_CHECKING:
    from clnet.ir.ops import Span
    from clnet.opencl.device import Device


@dataclass(frozen=True)
class Fused(DenseLayers):
    """Layers separated by barriers instead of launches (``fused.cl``).

    Config: ``items``, work-items per neuron; ``group``, work-items of the only group.
    """

    name: str = "fused"
    reach: Reach = "run"

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Return all team sizes; the likely ones with a smaller group too."""
        return tuple(
            config for config in single_sample_configs(device)
            if team_local_bytes(config, span) <= device.local_memory
        )

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count the parameters once per sample, on one compute unit."""
        layers = chain(span)
        # Hidden values count as one write and one read.
        hidden = span.batch * sum(layer.n_out for layer in layers[:-1])
        again = parameter_count(span) * (span.batch - 1) + 2 * hidden
        moved = item_size(span) * again
        return span_cost(span, device, moved, 1, scratch=_scratch(span))

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the one launch of one group."""
        layers = chain(span)
        x, y = layers[0].apply.x, layers[-1].act.y
        defines = {
            **chain_defines(span),
            **team_defines(config, span, max(strides(span))),
            "WIDEST": max(strides(span)),
        }
        return (
            Launch(
                "dense/fused.cl", "fused", defines, (config["group"],),
                (config["group"],),
                (Parameters(), x, x.stride, x.width, y, y.stride, span.batch,
                 Scratch("values", _scratch(span))),
            ),
        )


def _scratch(span: Span) -> int:
    """Return the bytes of the values between layers, double-buffered."""
    return 2 * max(strides(span)) * item_size(span)
