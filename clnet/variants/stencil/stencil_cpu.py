"""stencil_cpu: one or several local layers in one launch, on CPU cores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clnet.nn.storage.layout import round_up
from clnet.nn.storage.local import BAND_ALIGNMENT
from clnet.opencl.launch import PARAMETERS, Launch, Launches, Scratch
from clnet.variants.base import Config, Reach, refuse_unless_cpu
from clnet.variants.cost import Cost, span_bytes, span_flops
from clnet.variants.dense.chain import chain
from clnet.variants.dense.cpu import PANEL, lanes
from clnet.variants.stencil.stencil import (
    local_defines,
    local_storage,
    offsets_table,
    refuse_unless_local_layers,
)

if TYPE_CHECKING:
    from clnet.ir.program import Span
    from clnet.opencl.device import Device

SHARES = (4, 1)  # work-items per core, the usually best first
TILES = (8192, 2048, 32768)  # rows of one layer, likewise
DEEP_TILES = (32768, 131_072, 8192, 2048)
"""Rows of several layers, likewise: reads of each layer's weights are then long enough
for full memory bandwidth, and the values fit in a core's cache."""
STREAMED_SHARE = 0.5  # of the last cache; of larger y non-temporal stores pay


@dataclass(frozen=True)
class StencilCpu:
    """Trapezoids of rows, inner values in a worker's buffer (``stencil_cpu.cl``).

    Config: ``workers``, work-items; ``tile``, rows of the last layer of a task;
    ``stream``, 1: non-temporal stores of outputs.
    """

    name: str = "stencil_cpu"
    reach: Reach = "run"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse other devices, other types, and all but equal local layers."""
        return (
            refuse_unless_cpu(span, device) or refuse_unless_local_layers(span, device)
        )

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Tiles that fit in caches, in one or several shares per core."""
        layers = chain(span)
        rows = round_up(layers[-1].n_out, BAND_ALIGNMENT)
        cores = 1 if device.serial else device.compute_units
        shares = (1,) if device.serial else SHARES
        # The smallest that holds all rows, unclipped: similar sizes share timings.
        listed = TILES if len(layers) == 1 else DEEP_TILES
        tiles = [tile for tile in listed if tile < rows]
        tiles += sorted(tile for tile in listed if tile >= rows)[:1]
        least = STREAMED_SHARE * device.rates.cache_bytes
        large = int(len(layers) == 1 and 4 * rows * span.batch >= least)

        def too_few(tile: int) -> bool:
            return cores > 1 and -(-rows // tile) * span.batch < 2 * cores

        configs = [
            {"workers": cores * share, "tile": tile, "stream": stream}
            for stream in dict.fromkeys((large, 0))
            for share in shares
            for tile in sorted(tiles, key=lambda tile: tile if too_few(tile) else 0)
        ]
        return tuple(c for i, c in enumerate(configs) if c not in configs[:i])

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Weights are read once, and again in the halos of tiles."""
        layers = chain(span)
        window = local_storage(layers[0]).window
        again = sum(k * (window - 1) * (window + 1) for k in range(len(layers)))
        tiles = -(-layers[-1].n_out // config["tile"])
        return Cost(
            span_flops(span), span_bytes(span) + 4 * (tiles - 1) * again, 1,
            4 * config["workers"] * _room(span, config),
            min(config["workers"], device.compute_units), 0.25,
        )

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the one launch."""
        layers = chain(span)
        x, y = layers[0].apply.x, layers[-1].act.y
        workers, tile, room = config["workers"], config["tile"], _room(span, config)
        tiles = -(-layers[-1].n_out // tile)
        # Samples of a task share the weights; all workers still have work.
        block = max(1, min(span.batch, span.batch * tiles // workers))
        return (
            Launch(
                "stencil/stencil_cpu.cl", "stencil_cpu",
                {
                    **local_defines(span, layers[0]), "LAYERS": len(layers),
                    "STREAM": config["stream"], "LANES": lanes(device),
                },
                (workers,), (1,),
                (
                    PARAMETERS, offsets_table(layers), x, x.stride, y, y.stride,
                    Scratch("buffers", 4 * workers * room), room, x.width, span.batch,
                    tile, block, tiles * -(-span.batch // block),
                ),
            ),
        )


def _room(span: Span, config: Config) -> int:
    """Return the floats of a worker's buffer."""
    layers = chain(span)
    if len(layers) == 1:
        return BAND_ALIGNMENT
    halo = layers[0].n_in - layers[-1].n_out
    return round_up(config["tile"] + halo + PANEL, BAND_ALIGNMENT)
