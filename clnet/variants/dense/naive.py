"""naive: one work-item per neuron."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clnet.nn.storage.layout import round_up
from clnet.opencl.launch import PARAMETERS, Launch, Launches, Scratch
from clnet.variants.base import GROUP, Config, DenseLayers, Reach, Untuned, dense_layer
from clnet.variants.cost import Cost, item_size, span_cost
from clnet.variants.dense.chain import chain, chain_defines, parameter_count, strides
from clnet.variants.macros import layer_defines, weights_and_bias
from clnet.variants.team import single_sample_configs, team_defines, team_local_bytes

if TYPE_CHECKING:
    from clnet.ir.program import Span
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


GROUPS = (64, 128, 256)  # work-items
STAGES = (256, 1024, 4096)  # values


@dataclass(frozen=True)
class Staged(DenseLayers):
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
                (PARAMETERS, x, x.stride, x.width, y, y.stride, span.batch,
                 Scratch("values", _scratch(span))),
            ),
        )


def _scratch(span: Span) -> int:
    """Return the bytes of the values between layers, double-buffered."""
    return 2 * max(strides(span)) * item_size(span)
