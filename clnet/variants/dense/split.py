"""split: several work-items per neuron, partial sums added in local memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from clnet.checks import INT_MAX
from clnet.opencl.launch import Launch, Launches
from clnet.variants.base import Config, DenseLayers, Reach, dense_layer, team_group
from clnet.variants.cost import Cost, item_size, span_cost
from clnet.variants.macros import layer_defines, padded, weights_and_bias
from clnet.variants.team import team_defines, team_local_bytes, team_sizes

if TYPE_CHECKING:
    from clnet.ir.program import Span
    from clnet.opencl.device import Device

GROUP = 256  # work-items
OTHER_GROUPS = (128, 512)
TILES = (8, 4, 2, 1)  # samples


@dataclass(frozen=True)
class Split(DenseLayers):
    """One dense layer; a team of work-items reads a row of A (``split.cl``).

    Config: ``items``, work-items per neuron; ``group``, work-items of a group;
    ``tile``, samples for which a weight is loaded once.
    """

    name: str = "split"
    reach: Reach = "layer"

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Return all team sizes; likely ones with other groups, or tiles of a batch."""
        group = team_group(GROUP, device)
        sizes = team_sizes(device, group)
        # At least half of a tile is filled.
        tiles = [tile for tile in TILES if tile < 2 * span.batch]
        configs = [{"items": n, "group": group, "tile": tiles[0]} for n in sizes]
        if device.simd_width > 1:
            likely = [n for n in sizes if sizes[0] // 2 <= n <= sizes[0] * 2]
            configs += [
                {"items": n, "group": group, "tile": tile}
                for tile in tiles[1:] for n in likely[:2]
            ]
            if span.batch == 1:
                configs += [
                    {"items": n, "group": size, "tile": 1}
                    for size in OTHER_GROUPS if size <= device.largest_group
                    for n in likely
                ]
        return tuple(
            config for config in configs
            if team_local_bytes(config, span) <= device.local_memory
            and prod(_groups(span, config)) <= INT_MAX
        )

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count A once per tile of samples, and x once per group."""
        layer = dense_layer(span)
        tiles, blocks = _groups(span, config)
        again = layer.apply.weights.size * (tiles - 1)
        again += layer.n_in * span.batch * (blocks - 1)
        return span_cost(span, device, item_size(span) * again, tiles * blocks)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the layer's one launch."""
        layer = dense_layer(span)
        x, y = layer.apply.x, layer.act.y
        tiles, blocks = _groups(span, config)
        defines = {
            **layer_defines(span, layer),
            **team_defines(config, span, layer.n_in),
            "X_PADDED": padded(x),
        }
        return (
            Launch(
                "dense/split.cl", "split", defines,
                (tiles * blocks * config["group"],), (config["group"],),
                (*weights_and_bias(layer), x, x.stride, y, y.stride, layer.n_in,
                 layer.n_out, span.batch),
            ),
        )


def _groups(span: Span, config: Config) -> tuple[int, int]:
    """Return the launch's groups: tiles of samples, blocks of neurons."""
    teams = config["group"] // config["items"]
    return -(-span.batch // config["tile"]), -(-dense_layer(span).n_out // teams)
