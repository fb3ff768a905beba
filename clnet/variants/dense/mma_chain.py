"""mma_chain: a chain of dense layers of a batch on matrix units, in one launch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from clnet.checks import INT_MAX
from clnet.nn.activations import activation
from clnet.opencl.launch import (
    PARAMETERS,
    TIMEOUT_FLAG,
    Launch,
    Launches,
    Packed,
    Scratch,
)
from clnet.opencl.program import WARP_GROUP_MMA, matrix_units
from clnet.variants.cost import Cost, span_cost
from clnet.variants.dense.chain import (
    chain,
    functions_defines,
    pack_chain,
    packed_before,
    table,
)
from clnet.variants.dense.mma import (
    COPY_SPEEDUP,
    MAX_CONFIGS,
    PRODUCTS,
    SWIZZLE,
    WARP_GROUP_ROWS,
    MmaProduct,
    group_of,
    local_bytes,
    no_room_for_tiles,
    refuse_unless_persistent_mma,
    tile_memory,
)
from clnet.variants.dense.persistent import MAX_POLLS
from clnet.variants.macros import function_defines, number, padded
from clnet.variants.packing import BLOCK, BLOCK_BYTES, SPLITS, UNIT_BYTES, Packing

if TYPE_CHECKING:
    from clnet.ir.program import Span
    from clnet.opencl.device import Device
    from clnet.variants.base import Config, Reach

KEYS = ("tile_m", "tile_n", "narrow", "step", "stages")
# By splits; one group, of as many stages as fit, takes a compute unit's local memory.
SHAPES: dict[int, tuple[tuple[int, ...], ...]] = {
    2: (
        (128, 128, 64, 4, 3),
        (64, 128, 64, 4, 4),
        (128, 64, 32, 4, 4),
        (64, 64, 32, 4, 6),
        (64, 32, 32, 4, 8),
    ),
    1: (
        (128, 256, 64, 4, 4),
        (128, 192, 64, 4, 5),
        (128, 128, 64, 4, 6),
        (128, 96, 96, 4, 7),
        (64, 128, 64, 4, 8),
        (128, 64, 32, 4, 8),
        (64, 96, 96, 4, 8),
        (64, 64, 32, 4, 8),
        (64, 32, 32, 4, 8),
    ),
}
# The model that ranks shapes.
SHARE = {2: 0.85, 1: 0.95}  # of the matrix units' rate, by splits
FIRST_LOADS = 3  # loads, one after the other, as long as a tile's first step
COLUMN_FLOPS = 2300  # operations of a unit as long as the epilogue of a tile's column
HANDOVERS = 2.5  # from the end of a layer's tile to the start of the next layer's


@dataclass(frozen=True)
class MmaChain:
    """Persistent groups compute the tiles of all layers (``mma_chain.cl``).

    Config: ``tile_m``, ``tile_n``, samples and neurons of a tile; ``narrow``, neurons
    of tiles in layers where wider ones would leave compute units idle; ``step``, blocks
    of 16 inputs of a pipeline stage; ``stages``, pipeline stages in local memory.
    """

    name: str = "mma_chain"
    reach: Reach = "run"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse few samples, other devices, and unbounded activations."""
        refusal = refuse_unless_persistent_mma(span, device)
        if refusal is not None:
            return refusal
        if WARP_GROUP_MMA not in matrix_units(device):
            return "it needs matrix units of compute capability 9.0"
        if span.batch < WARP_GROUP_ROWS:
            return f"it computes {WARP_GROUP_ROWS} samples or more"
        layers = chain(span)
        if len(layers) == 1:
            return "it computes two layers or more"
        for layer in layers[:-1]:
            row = activation(layer.act.nonlinearity.names[0])
            if not row.bounded and row.excess > 0:
                return f"its hidden layers need |f(v)| <= 1 or |v|, unlike {row.name}"
        configs = self._configs(span, device)
        if not configs:
            return no_room_for_tiles(device)
        size = max(Tiling(span, config, device).values[-1] for config in configs)
        if size > INT_MAX * UNIT_BYTES:
            return (
                f"values between its layers take at most {INT_MAX * UNIT_BYTES} "
                f"bytes, not {size}"
            )
        return None

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Tiles, the best by the model first."""
        configs = sorted(
            self._configs(span, device),
            key=lambda config: Tiling(span, config, device).seconds,
        )
        return tuple(configs[:MAX_CONFIGS])

    def _configs(self, span: Span, device: Device) -> tuple[Config, ...]:
        """Return the configs that fit local memory."""
        configs = (
            dict(zip(KEYS, shape, strict=True))
            for shape in SHAPES[SPLITS[span.precision]]
        )
        room = tile_memory(WARP_GROUP_MMA, device)
        return tuple(
            config for config in configs
            if Tiling(span, config, device).local_bytes <= room
        )

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count x packed and read again, and packed A for every tile of samples."""
        tiling, units = Tiling(span, config, device), device.compute_units
        counts = (len(tiling.products) + 1) * tiling.tiles_of_rows + units
        scratch = tiling.values[-1] + sum(tiling.weights[-1]) + 4 * counts
        scratch += 3 * tiling.scales_size
        return span_cost(
            span, device, tiling.read_bytes, units, scratch=scratch, efficiency=1.0,
            unit="warp_group", work=PRODUCTS[SPLITS[span.precision]],
            busy=tiling.seconds,
        )

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the packing of all A, and the one launch of all layers."""
        layers = chain(span)
        tiling = Tiling(span, config, device)
        x, y = layers[0].apply.x, layers[-1].act.y
        first, last = (layers[i].apply.weights.offset for i in (0, -1))
        weights, rows = tiling.weights, tiling.rows
        splits = SPLITS[span.precision]
        key = f"mma_chain {first} to {last} in {splits} splits by {tiling.widths}"
        size, scales_size = weights[-1]
        packed = Packed(key, size), Packed(f"{key}, scales", scales_size)
        values = Scratch("values", tiling.values[-1])
        groups = device.compute_units
        group = group_of(tiling.shapes[0])
        biases = [layer.act.bias for layer in layers]
        hidden = [layer.act.nonlinearity for layer in layers[:-1]]
        functions = tuple(dict.fromkeys(hidden))
        narrow = min(tiling.widths)
        scales = (
            Scratch("scales", tiling.scales_size),
            Scratch("largest", 2 * tiling.scales_size),
        )
        unbounded = [not activation(function.names[0]).bounded for function in hidden]
        steepness = [abs(layer.act.nonlinearity.steepness[0]) for layer in layers]
        defines = {
            **tiling.products[0].defines(tiling.shape_of(config["tile_n"])),
            **({"NARROW": narrow} if narrow < config["tile_n"] else {}),
            "LAYERS": len(layers),
            "N_OUT": table(layer.n_out for layer in layers),
            "BLOCKS": table(packing.blocks for packing in rows),
            "WIDTHS": table(tiling.widths),
            "TILES": table(tiling.tiles),
            "SCALED": table([1, *map(int, unbounded), 0]),
            "STEEPNESS_OF": "{" + ", ".join(number(s, span) for s in steepness) + "}",
            "UNBOUNDED": int(any(unbounded)),
            "VALUES": table(before // UNIT_BYTES for before in tiling.values[:-1]),
            "WEIGHTS": table(before // UNIT_BYTES for before, _ in weights[:-1]),
            "INVERSE": table(before // 4 for _, before in weights[:-1]),
            "BIAS": table(-1 if bias is None else bias.offset for bias in biases),
            "FUNCTION": table(functions.index(function) for function in hidden),
            **functions_defines(span, functions),
            **function_defines(span, layers[-1].act.nonlinearity),
            "LAST_WIDTH": tiling.widths[-1],
            "N_IN": x.width,
            "X_PADDED": padded(x),
            "Y_PADDED": padded(y),
            "MAX_POLLS": MAX_POLLS,
        }
        return (
            *pack_chain(span, tiling.columns, packed, second=True),
            Launch.of_groups(
                "dense/mma_chain.cl", "mma_chain", defines, groups, group,
                x, x.stride, values, *scales, *packed, PARAMETERS, y, y.stride,
                span.batch,
                Scratch("counts", 4 * (len(layers) + 1) * tiling.tiles_of_rows),
                Scratch("launches", 4 * groups), TIMEOUT_FLAG,
            ),
        )


@dataclass(frozen=True)
class Tiling:
    """The tiles of a chain for a device, and the offsets of operands."""

    span: Span
    config: Config
    device: Device

    @cached_property
    def products(self) -> tuple[MmaProduct, ...]:
        """Each layer's product."""
        return tuple(
            MmaProduct.of(layer.apply, self.span) for layer in chain(self.span)
        )

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """The columns of each layer's tiles: the faster by the model."""
        both = self.config["tile_n"], self.config["narrow"]
        return tuple(
            min(both, key=lambda width: self._seconds(product, width))
            for product in self.products
        )

    @property
    def seconds(self) -> float:
        """Seconds of all layers by the model."""
        return sum(
            self._seconds(product, width)
            for product, width in zip(self.products, self.widths, strict=True)
        )

    def _seconds(self, product: MmaProduct, width: int) -> float:
        rows, rates = self.config["tile_m"], self.device.rates
        units = self.device.compute_units
        prefetched = self.config["stages"] * self.config["step"]  # blocks of weights
        tiles = product.tiles(self.shape_of(width))
        blocks = product.a(self.shape_of(width)).blocks
        row_bytes = product.splits * BLOCK_BYTES // BLOCK  # of a block
        # The weights of a whole pipeline arrive while the producer waits for rows.
        copied = blocks * (rows + width) - min(blocks, prefetched) * width
        flops = 2 * PRODUCTS[product.splits] * BLOCK * blocks * rows * width
        products = units * max(
            flops / (SHARE[product.splits] * rates.warp_group),
            copied * row_bytes / (COPY_SPEEDUP * rates.cache),
        )
        epilogue = COLUMN_FLOPS * width * units / rates.flops
        tile = FIRST_LOADS * rates.latency + products + epilogue
        rounds = max(1, tiles / units)
        if product.m <= SWIZZLE * rows:  # else tiles of two layers share a round
            rounds = math.ceil(rounds)
        return rounds * tile + HANDOVERS * rates.handover

    def shape_of(self, width: int) -> Config:
        """Return the config of `MmaProduct`, of tiles of `width` columns."""
        return {
            **self.config, "tile_n": width, "units": WARP_GROUP_MMA, "parts": 1,
            "slice": 4, "warps_m": self.config["tile_m"] // BLOCK, "warps_n": 1,
            "producer": self.config["tile_m"] // WARP_GROUP_ROWS,
        }

    @cached_property
    def shapes(self) -> tuple[Config, ...]:
        """Each layer's config of `MmaProduct`."""
        return tuple(self.shape_of(width) for width in self.widths)

    @property
    def read_bytes(self) -> int:
        """Bytes of operands that all tiles read."""
        return sum(map(MmaProduct.read_bytes, self.products, self.shapes))

    @cached_property
    def rows(self) -> tuple[Packing, ...]:
        """Each layer's inputs."""
        return tuple(map(MmaProduct.a, self.products, self.shapes))

    @cached_property
    def columns(self) -> tuple[Packing, ...]:
        """Each layer's weights."""
        return tuple(map(MmaProduct.b, self.products, self.shapes))

    @property
    def local_bytes(self) -> int:
        """Bytes of local memory of a group."""
        warp_groups = self.config["tile_m"] // WARP_GROUP_ROWS
        columns = self.config["tile_n"]
        shape = self.shape_of(columns)
        return local_bytes(shape, self.products[0].splits) + 8 * warp_groups * columns

    @property
    def tiles_of_rows(self) -> int:
        """Tiles of samples."""
        return -(-self.span.batch // self.config["tile_m"])

    @property
    def scales_size(self) -> int:
        """Bytes of one number a row of each layer's inputs, in whole tiles."""
        rows = self.tiles_of_rows * self.config["tile_m"]
        return 4 * len(self.products) * rows

    @property
    def tiles(self) -> list[int]:
        """Tiles before each layer, and all."""
        tiles = map(MmaProduct.tiles, self.products, self.shapes)
        return list(accumulate(tiles, initial=0))

    @property
    def values(self) -> list[int]:
        """Bytes of inputs before each layer's, and of all."""
        return list(accumulate((packing.size for packing in self.rows), initial=0))

    @property
    def weights(self) -> list[tuple[int, int]]:
        """Bytes of weights and scales before each layer's, and of all."""
        return packed_before(self.columns)
