"""trapezoid, stencil_cpu: several local layers in a launch, for GPUs and for CPUs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clnet.ir.op import VALUE_ALIGNMENT
from clnet.nn.storage.layout import round_up
from clnet.nn.storage.local import BAND_ALIGNMENT
from clnet.opencl.launch import PARAMETERS, Launch, Launches, Scratch
from clnet.variants.base import Config, Reach, largest_group, refuse_unless_cpu
from clnet.variants.cost import Cost, item_size, span_bytes, span_cost, span_flops
from clnet.variants.dense.chain import chain
from clnet.variants.dense.cpu import PANEL, lanes
from clnet.variants.stencil.stencil import (
    aligned,
    local_defines,
    local_storage,
    offsets_table,
    refuse_unless_local_layers,
)

if TYPE_CHECKING:
    from clnet.ir.program import Span
    from clnet.opencl.device import Device

SHAPES = ((512, 4, 1), (1024, 4, 1), (256, 4, 1), (256, 4, 2), (512, 2, 2))
"""Work-items of a group, rows of each, and stages; the usually best first."""
WHOLE = ((128, 4, 8), (256, 4, 8), (512, 2, 8), (256, 4, 4), (512, 4, 4), (1024, 4, 2))
"""Likewise where one tile holds all rows, and the latency of weights dominates."""
MAX_WEIGHTS = 128  # of a work-item, in registers
SAMPLES = (4, 2, 1)  # of a group, as many as the batch has
DEPTHS = (64, 16)  # layers of a launch, besides all of them
WIDEST = 16  # window whose weights fit in registers


@dataclass(frozen=True)
class Trapezoid:
    """Overlapping tiles that go through all layers (``trapezoid.cl``).

    Config: ``group``, work-items of a group; ``vec``, rows of each; ``ahead``, stages:
    layers whose weights are in flight; ``samples``, which share them; ``depth``, layers
    of a launch.
    """

    name: str = "trapezoid"
    reach: Reach = "run"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse all but several equal local layers whose halos fit in tiles."""
        refusal = refuse_unless_local_layers(span, device)
        if refusal is not None:
            return refusal
        layers = chain(span)
        if len(layers) < 2:
            return "it computes several layers per launch, and this is one"
        window = local_storage(layers[0]).window
        if window > WIDEST:
            return f"it computes windows of at most {WIDEST}, and here is {window}"
        if not self._configs(span, device):
            return f"its tiles have no room for the halo of {len(layers)} layers"
        return None

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Return the configs that fit."""
        return self._configs(span, device)[:16]

    def _configs(self, span: Span, device: Device) -> tuple[Config, ...]:
        count = len(chain(span))
        samples = next(n for n in SAMPLES if n <= span.batch)
        depths = [count, *(depth for depth in DEPTHS if depth < count)]
        window, rows = local_storage(chain(span)[0]).window, _rows(span)
        shapes = [*(s for s in WHOLE if rows <= s[0] * s[1]), *SHAPES]
        configs: list[Config] = []
        for depth in depths:
            for group, vec, ahead in shapes:
                ahead = max(1, min(ahead, depth, MAX_WEIGHTS // (window * vec)))
                group = largest_group(group, device)
                config = {
                    "group": group, "vec": vec, "ahead": ahead,
                    "samples": samples, "depth": depth,
                }
                if self._fits(span, config, device) and config not in configs:
                    configs.append(config)
        return tuple(configs)

    def _fits(self, span: Span, config: Config, device: Device) -> bool:
        """Return whether memory suffices, and the halo is at most half of a tile."""
        window = local_storage(chain(span)[0]).window
        vec, tile = config["vec"], config["group"] * config["vec"]
        width = config["group"] + -(-(window - 1) // vec)
        edges = 2 * config["samples"] * width * vec
        whole = _rows(span) <= tile
        return edges * item_size(span) <= device.local_memory and (
            whole or 2 * _halo(window, config["depth"]) <= tile
        )

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Weights are read again in halos, and for other samples."""
        layers = chain(span)
        count, window = len(layers), local_storage(layers[0]).window
        tile = config["group"] * config["vec"]
        overlap = _halo(window, config["depth"]) / (2 * tile)
        weights = sum(layer.apply.weights.size for layer in layers)
        blocks = -(-span.batch // config["samples"])
        launches = -(-count // config["depth"])
        inner = 2 * span.batch * layers[0].n_out * (launches - 1)
        again = int(weights * (overlap + blocks - 1)) + inner
        tiles = -(-layers[-1].n_out // tile) * blocks
        scratch = _scratch(span) * min(2, launches - 1)
        moved = item_size(span) * again
        return span_cost(span, device, moved, tiles, launches, scratch)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return a launch for every ``depth`` layers."""
        layers = chain(span)
        group, vec, samples = config["group"], config["vec"], config["samples"]
        offsets = offsets_table(layers)
        launches = []
        for first in range(0, len(layers), config["depth"]):
            stack = layers[first : first + config["depth"]]
            x, y = stack[0].apply.x, stack[-1].act.y
            n_in, n_out, tile = stack[0].n_in, stack[-1].n_out, group * vec
            step = tile if n_in <= tile else tile - round_up(n_in - n_out, vec)
            tiles = -(-n_out // step)
            number = first // config["depth"]
            last = stack[-1] is layers[-1]
            launches.append(Launch.of_groups(
                "stencil/trapezoid.cl", "trapezoid",
                {
                    **local_defines(span, layers[0]), "VEC": vec, "GROUP": group,
                    "STAGES": config["ahead"], "SAMPLES": samples,
                    "X_ALIGNED": aligned(x, vec, span.batch),
                    "Y_ALIGNED": aligned(y, vec, span.batch),
                },
                tiles * -(-span.batch // samples), group,
                PARAMETERS, offsets, first, len(stack),
                _inner(span, number - 1) if first else x, x.stride,
                y if last else _inner(span, number), y.stride, n_in, span.batch, tiles,
                step,
            ))
        return tuple(launches)


def _rows(span: Span) -> int:
    """Return the rows of the widest values."""
    return chain(span)[0].n_in


def _halo(window: int, layers: int) -> int:
    """Return the rows by which so many layers shrink a tile."""
    return (window - 1) * layers


def _inner(span: Span, number: int) -> Scratch:
    """Return the output of launch `number` for the next one: double buffering."""
    return Scratch(f"inner {number % 2}", _scratch(span))


def _scratch(span: Span) -> int:
    widest = round_up(chain(span)[0].n_out, VALUE_ALIGNMENT)
    return item_size(span) * span.batch * widest


CPU_SHARES = (4, 1)  # work-items per core, the usually best first
CPU_TILES = (8192, 2048, 32768)  # rows of one layer, likewise
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
        shares = (1,) if device.serial else CPU_SHARES
        # The smallest that holds all rows, unclipped: similar sizes share timings.
        listed = CPU_TILES if len(layers) == 1 else DEEP_TILES
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
        launch = Launch.of_groups(
            "stencil/stencil_cpu.cl", "stencil_cpu",
            {
                **local_defines(span, layers[0]), "LAYERS": len(layers),
                "STREAM": config["stream"], "LANES": lanes(device),
            },
            workers, 1,
            PARAMETERS, offsets_table(layers), x, x.stride, y, y.stride,
            Scratch("buffers", 4 * workers * room), room, x.width, span.batch, tile,
            block, tiles * -(-span.batch // block),
        )
        return (launch,)


def _room(span: Span, config: Config) -> int:
    """Return the floats of a worker's buffer."""
    layers = chain(span)
    if len(layers) == 1:
        return BAND_ALIGNMENT
    halo = layers[0].n_in - layers[-1].n_out
    return round_up(config["tile"] + halo + PANEL, BAND_ALIGNMENT)
