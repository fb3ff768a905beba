"""stencil, stencil_reduction, trapezoid, stencil_cpu: locally connected layers.

One layer or its pre-activations alone on GPUs; several layers in a launch, on GPUs by
overlapping tiles, and on CPU cores.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from clnet.ir.activation import BiasAct
from clnet.ir.op import VALUE_ALIGNMENT
from clnet.ir.product import Apply
from clnet.nn.storage.layout import round_up
from clnet.nn.storage.local import BAND_ALIGNMENT, LocalStorage
from clnet.opencl.launch import PARAMETERS, Constant, Launch, Launches, Scratch
from clnet.opencl.program import inline_ptx
from clnet.variants.base import (
    MIXED_ACTIVATIONS,
    MORE_OUTPUTS,
    NO_WHOLE_LAYERS,
    Config,
    Reach,
    contraction,
    largest_group,
    refuse_op,
    refuse_unless_cpu,
    stored,
    team_group,
    unsupported_dtype,
)
from clnet.variants.cost import (
    Cost,
    gpu_kernel_efficiency,
    span_cost,
)
from clnet.variants.dense.chain import chain
from clnet.variants.dense.cpu import PANEL, lanes
from clnet.variants.macros import function_defines, real

if TYPE_CHECKING:
    from clnet.ir.op import Value
    from clnet.ir.program import LayerOps, Span
    from clnet.opencl.device import Device

VECTORS = (4, 2, 1)  # rows of a work-item
MAX_WEIGHTS = 16  # of a work-item: longer windows need shorter vectors
SAMPLES = (4, 2, 1)  # of a work-item, the usually best first
GROUP = 128  # work-items
TILE_GROUP = 256  # with a tile, or teams, in local memory
STREAM_VECTOR = 4  # rows of a streaming load in PTX
# Of the L2 cache: streaming usually pays for weights that exceed it, if inputs do not.
HELD_SHARE = 0.5


@dataclass(frozen=True)
class Stencil:
    """A work-item computes a vector of rows for some samples (``stencil.cl``).

    Config: ``vec``, rows of a work-item, and ``samples``, which share its weights;
    ``stream``, 1: streaming loads of weights and stores of outputs; or ``tile``, 1:
    the textbook's tiling, x and its halo in local memory.
    """

    name: str = "stencil"
    reach: Reach = "pair"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse all but a local layer with one activation, or its pre-activations."""
        op, *acts = span.ops
        refusal = refuse_op(
            span, device, Apply, "computes pre-activations", LocalStorage
        )
        if refusal is not None:
            return refusal
        assert isinstance(op, Apply)
        if op.accumulate:
            return "it computes layers of one source, and this op adds to others' sums"
        for act in acts:
            if not isinstance(act, BiasAct) or act.z != op.z:
                return "it computes one layer, and this op belongs to another"
            if op.z in span.outputs:
                return "it stores a layer's output only, and its sums are read later"
            if not act.nonlinearity.uniform:
                return MIXED_ACTIVATIONS
        return None

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Vectors, and as many samples as the batch has; then the tile."""
        window = _storage(span).window
        vectors = sorted(VECTORS, key=lambda vec: vec * window > MAX_WEIGHTS and vec)
        if device.simd_width == 1:
            vectors = [1]
        samples = [n for n in SAMPLES if n == 1 or n <= span.batch]
        configs = [
            {"vec": v, "samples": n, "stream": stream, "tile": 0}
            for v in vectors for n in samples
            for stream in _streams(span, v, n, device)
        ]
        values = min(TILE_GROUP, device.largest_group) + window - 1
        if values * span.item_size <= device.local_memory:
            configs.append({"vec": 1, "samples": 1, "stream": 0, "tile": 1})
        return tuple(configs)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Weights are read once for some samples; halos of x are read from cache."""
        storage = _storage(span)
        again = -(-span.batch // config["samples"]) - 1
        moved = span.item_size * again * storage.size
        return span_cost(span, device, moved, device.compute_units)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the one launch."""
        apply, last = contraction(span), span.ops[-1]
        assert isinstance(apply, Apply)
        storage = _storage(span)
        act = last if isinstance(last, BiasAct) else None
        x, y = apply.x, apply.z if act is None else act.y
        vec, samples = config["vec"], config["samples"]
        bias = None if act is None else act.bias
        defines: dict[str, int | str] = {
            "REAL": real(span), **bias_defines(act), "SUMS": int(act is None),
            "WINDOW": storage.window, "VEC": vec, "SAMPLES": samples,
            "STREAM": config["stream"],
            "X_ALIGNED": aligned(x, vec, span.batch),
            "Y_ALIGNED": aligned(y, vec, span.batch),
        }
        if act is not None:
            defines.update(function_defines(span, act.nonlinearity))
        if config["tile"]:
            group = min(TILE_GROUP, device.largest_group)
            defines["GROUP"] = group
            across, kernel = -(-storage.n_out // group), "stencil_tile"
            items = across * group * span.batch
        else:
            group, kernel = min(GROUP, device.largest_group), "stencil"
            across = round_up(-(-storage.n_out // vec), group)
            items = across * -(-span.batch // samples)
        return (
            Launch(
                "stencil/stencil.cl", kernel, defines, (items,), (group,),
                (
                    PARAMETERS, apply.weights.offset, storage.pitch,
                    0 if bias is None else bias.offset, x, x.stride, y, y.stride,
                    storage.n_out, span.batch, across,
                ),
            ),
        )


def aligned(value: Value, vec: int, batch: int) -> int:
    """Return 1 if every row of a value is aligned to vectors, else 0."""
    return int(batch == 1 or value.stride % vec == 0)


def _storage(span: Span) -> LocalStorage:
    return stored(contraction(span), LocalStorage)


def streams(vec: int, dtype: str, device: Device) -> bool:
    """Return whether the kernel builds with streaming loads and stores.

    The inline PTX is for vectors of four floats only; the compiler's non-temporal hint
    takes every vector.
    """
    return not inline_ptx(device) or (vec == STREAM_VECTOR and dtype == "float32")


def _streams(span: Span, vec: int, samples: int, device: Device) -> tuple[int, ...]:
    """Return the values of ``stream`` to try, the best first."""
    builds = streams(vec, span.dtype, device) and samples >= span.batch
    if not (inline_ptx(device) and builds):
        return (0,)
    storage = _storage(span)
    held = HELD_SHARE * device.rates.cache_bytes / span.item_size
    pays = storage.size >= held >= span.batch * storage.n_in
    return (1, 0) if pays else (0, 1)


def local_storage(layer: LayerOps) -> LocalStorage:
    """Return the storage of an accepted layer."""
    return stored(layer.apply, LocalStorage)


def refuse_unless_local_layers(span: Span, device: Device) -> str | None:
    """Return why the span is no chain of equal local layers, or None."""
    if span.chain is None:
        return NO_WHOLE_LAYERS
    if span.layers is None:
        return MORE_OUTPUTS
    first = span.layers[0]
    for layer in span.layers:
        storage = layer.apply.storage
        if not isinstance(storage, LocalStorage):
            return f"it reads local layers, not {storage.name}"
        if not layer.act.nonlinearity.uniform:
            return MIXED_ACTIVATIONS
        if storage.window != local_storage(first).window:
            return (
                f"it needs layers of one window, and here are "
                f"{local_storage(first).window} and {storage.window}"
            )
        if layer.act.nonlinearity != first.act.nonlinearity:
            return "it needs layers of one activation, and here they differ"
        if _biases_differ(layer, first):
            return "it needs layers of one kind of bias, and here they differ"
    return unsupported_dtype(span, device)


def _biases_differ(layer: LayerOps, first: LayerOps) -> bool:
    if (layer.act.bias is None) != (first.act.bias is None):
        return True
    # The kind makes no difference to a single neuron.
    return layer.n_out > 1 and layer.act.shared != first.act.shared


def local_defines(span: Span, layer: LayerOps) -> dict[str, int | str]:
    """Return the macros of a kernel for local layers equal to this one."""
    return {
        **function_defines(span, layer.act.nonlinearity),
        **bias_defines(layer.act),
        "WINDOW": local_storage(layer).window,
        "LINE": BAND_ALIGNMENT,
    }


def bias_defines(act: BiasAct | None) -> dict[str, int | str]:
    """Return the macros of the biases; None: pre-activations without a bias."""
    return {
        "HAS_BIAS": int(act is not None and act.bias is not None),
        "BIAS_STEP": int(act is not None and not act.shared),
    }


def offsets_table(layers: tuple[LayerOps, ...]) -> Constant:
    """Return the offsets of each layer's weights and bias [layers, 2]; 0: no bias."""
    offsets = [
        (x.apply.weights.offset, 0 if x.act.bias is None else x.act.bias.offset)
        for x in layers
    ]
    return Constant(
        f"offsets of local layers {offsets[0]} to {offsets[-1]}",
        lambda: np.asarray(offsets, np.int32),
    )




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
        group = team_group(TILE_GROUP, device)
        sizes = dict.fromkeys(min(group, max(1, n)) for n in (window, window // 2))
        return tuple({"items": items} for items in sizes)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count weights again for every sample.

        An estimate of the efficiency: the loads of a row's work-items are not
        coalesced.
        """
        (layer,) = chain(span)
        again = span.item_size * layer.apply.weights.size * (span.batch - 1)
        efficiency = gpu_kernel_efficiency(device) / config["items"]
        units = device.compute_units
        return span_cost(span, device, again, units, efficiency=efficiency)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the one launch."""
        (layer,) = chain(span)
        x, y, bias = layer.apply.x, layer.act.y, layer.act.bias
        items, group = config["items"], team_group(TILE_GROUP, device)
        across = -(-layer.n_out * items // group)
        launch = Launch.of_groups(
            "stencil/stencil_reduction.cl", "stencil_reduction",
            {**local_defines(span, layer), "ITEMS": items, "GROUP": group},
            span.batch * across, group,
            PARAMETERS, layer.apply.weights.offset, local_storage(layer).pitch,
            0 if bias is None else bias.offset, x, x.stride, y, y.stride, layer.n_out,
            across,
        )
        return (launch,)


TRAPEZOIDS = ((512, 4, 1), (1024, 4, 1), (256, 4, 1), (256, 4, 2), (512, 2, 2))
"""Work-items of a group, rows of each, and stages; the usually best first."""
WHOLE = ((128, 4, 8), (256, 4, 8), (512, 2, 8), (256, 4, 4), (512, 4, 4), (1024, 4, 2))
"""Likewise where one tile holds all rows, and the latency of weights dominates."""
MAX_TILE_WEIGHTS = 128  # of a work-item, in registers
TILE_SAMPLES = (4, 2, 1)  # of a group, as many as the batch has
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
        samples = next(n for n in TILE_SAMPLES if n <= span.batch)
        depths = [count, *(depth for depth in DEPTHS if depth < count)]
        window, rows = local_storage(chain(span)[0]).window, _trapezoid_rows(span)
        shapes = [*(s for s in WHOLE if rows <= s[0] * s[1]), *TRAPEZOIDS]
        configs: list[Config] = []
        for depth in depths:
            for group, vec, ahead in shapes:
                ahead = max(1, min(ahead, depth, MAX_TILE_WEIGHTS // (window * vec)))
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
        whole = _trapezoid_rows(span) <= tile
        return edges * span.item_size <= device.local_memory and (
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
        moved = span.item_size * again
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


def _trapezoid_rows(span: Span) -> int:
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
    return span.item_size * span.batch * widest


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
            span.flops, span.bytes + 4 * (tiles - 1) * again, 1,
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
