"""fused_local: a chain of layers in one launch, hidden values in local memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from clnet.opencl.launch import PARAMETERS, Launch, Launches
from clnet.variants.base import Config, Reach, refuse_unless_dense_layers, team_group
from clnet.variants.cost import Cost, item_size, span_cost
from clnet.variants.dense.chain import (
    chain,
    chain_defines,
    parameter_count,
    strides,
    wide_table,
)
from clnet.variants.team import (
    single_sample_configs,
    team_defines,
    team_local_bytes,
    team_sizes,
)

if TYPE_CHECKING:
    from clnet.ir.program import Span
    from clnet.opencl.device import Device

TILE_GROUP = 256  # work-items, for a batch
TILES = (16, 8, 4, 2, 1)  # samples
# Loads, one after the other, as long as a round of a group's teams, which reduce by
# barriers.
ROUND_LOADS = 4


@dataclass(frozen=True)
class FusedLocal:
    """A work-group computes all layers of a tile of samples (``fused_local.cl``).

    Config: ``items``, work-items per neuron; ``group``, work-items of a group;
    ``tile``, samples of a group.
    """

    name: str = "fused_local"
    reach: Reach = "run"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse also layers whose values do not fit in local memory."""
        refusal = refuse_unless_dense_layers(span, device)
        if refusal is None and not self._configs(span, device):
            needed = _widest(span) * item_size(span)
            refusal = (
                f"it keeps two neighbouring layers' values in local memory, {needed} "
                f"bytes and partial sums, and {device.name} has {device.local_memory}"
            )
        return refusal

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Return team sizes, and tiles of a batch, that fit local memory."""
        return self._configs(span, device)

    def _configs(self, span: Span, device: Device) -> tuple[Config, ...]:
        configs: list[Config] = []
        if span.batch == 1:
            configs += [{**c, "tile": 1} for c in single_sample_configs(device)]
        else:
            group = team_group(TILE_GROUP, device)
            sizes = team_sizes(device, group)
            likely = [n for n in sizes if n in (1, sizes[0] // 4, sizes[0])]
            if device.simd_width == 1:
                likely = likely[:1]
            tiles = [tile for tile in TILES if tile < 2 * span.batch]
            # First the largest tile of which every compute unit still gets one.
            units = device.compute_units
            tiles.sort(key=lambda tile: max(0, units - -(-span.batch // tile)))
            configs += [
                {"items": n, "group": group, "tile": tile}
                for tile in tiles for n in likely
            ]
        room = device.local_memory
        return tuple(config for config in configs if _local_bytes(config, span) <= room)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count the parameters once per tile of samples, and rounds of teams."""
        tiles = -(-span.batch // config["tile"])
        again = parameter_count(span) * (tiles - 1)
        teams = config["group"] // config["items"]
        rounds = sum(-(-layer.n_out // teams) for layer in chain(span))
        waves = -(-tiles // device.compute_units)
        return span_cost(
            span, device, item_size(span) * again, tiles,
            loads=ROUND_LOADS * rounds * waves,
        )

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the one launch, of a group per tile."""
        layers = chain(span)
        x, y = layers[0].apply.x, layers[-1].act.y
        group, tile = config["group"], config["tile"]
        values = tile * _widest(span)
        offsets = [
            0 if number % 2 == 0 else values - tile * stride
            for number, stride in enumerate(strides(span))
        ]
        defines = {
            **chain_defines(span),
            **team_defines(config, span, max(strides(span))),
            "VALUES": values,
            "OFFSETS": wide_table(offsets),
        }
        return (
            Launch(
                "dense/fused_local.cl", "fused_local", defines,
                (-(-span.batch // tile) * group,), (group,),
                (PARAMETERS, x, x.stride, x.width, y, y.stride, span.batch),
            ),
        )


def _widest(span: Span) -> int:
    """Return a sample's values in local memory: the inputs of two layers, at most."""
    widths = (*strides(span), 0)  # the last output goes to global memory
    return max(a + b for a, b in pairwise(widths))


def _local_bytes(config: Config, span: Span) -> int:
    """Return the local memory of a config in bytes."""
    values = config["tile"] * _widest(span) * item_size(span)
    return values + team_local_bytes(config, span)
