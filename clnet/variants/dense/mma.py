"""mma, mma_chain: layers of a batch on matrix units, of operands packed as halves.

One layer or several in launches of their own, or a chain in one launch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from clnet.checks import INT_MAX
from clnet.ir.op import VALUE_ALIGNMENT
from clnet.nn.activations import activation
from clnet.nn.storage.dense import RowStorage
from clnet.nn.storage.layout import round_up
from clnet.opencl.launch import (
    PARAMETERS,
    TIMEOUT_FLAG,
    Argument,
    Launch,
    Launches,
    Packed,
    Scratch,
)
from clnet.opencl.program import WARP, WARP_GROUP_MMA, WARP_MMA, matrix_units
from clnet.variants.base import (
    Config,
    Reach,
    refuse_long_rows,
    refuse_unless_dense_layers,
    refuse_unless_forward_progress,
    stored,
)
from clnet.variants.cost import Cost, span_cost
from clnet.variants.dense.chain import (
    MAX_POLLS,
    chain,
    functions_defines,
    pack_chain,
    packed_before,
    table,
)
from clnet.variants.macros import function_defines, layer_defines, number, padded
from clnet.variants.packing import (
    BLOCK,
    BLOCK_BYTES,
    ROW_MULTIPLE,
    SPLITS,
    TERM_MULTIPLE,
    UNIT_BYTES,
    Packing,
)

if TYPE_CHECKING:
    from clnet.ir.product import Contraction
    from clnet.ir.program import LayerOps, Span
    from clnet.opencl.device import Device

SOURCE = "dense/mma.cl"
RESERVED_BYTES = 1 << 10  # of local memory, by the system, for each resident group
WARP_GROUP_ROWS = 64
SWIZZLE = 16  # tiles of samples whose groups are neighbours
PRODUCTS = {2: 3, 1: 1}  # of halves, for one of values, by splits
KEYS = (
    "units", "tile_m", "tile_n", "warps_m", "warps_n", "step", "stages", "slice",
    "producer",
)
PRODUCER_WARPS = (0, 1, 4)  # by `producer`
# By splits; from large to small: large tiles read less.
SHAPES: dict[int, tuple[tuple[int, ...], ...]] = {
    2: (
        (80, 128, 128, 2, 2, 1, 2, 1, 0),
        (80, 128, 64, 4, 2, 1, 3, 1, 0),
        (80, 128, 64, 4, 2, 2, 2, 1, 0),
        (80, 64, 64, 2, 2, 2, 3, 1, 0),
        (80, 64, 32, 2, 2, 2, 3, 2, 0),
        (80, 32, 32, 2, 2, 2, 4, 1, 0),
        (80, 128, 16, 4, 1, 2, 2, 1, 0),
        (80, 16, 64, 1, 4, 2, 4, 1, 0),
        (90, 128, 128, 8, 1, 4, 3, 4, 0),
        (90, 64, 128, 4, 1, 2, 4, 4, 0),
        (90, 128, 64, 8, 1, 4, 4, 4, 1),
        (90, 128, 64, 8, 1, 4, 2, 4, 0),
        (90, 64, 64, 4, 1, 4, 3, 4, 0),
        (90, 64, 64, 4, 1, 2, 3, 4, 0),
        (90, 64, 32, 4, 1, 4, 3, 4, 1),
    ),
    1: (
        (80, 128, 128, 2, 2, 1, 4, 1, 0),
        (80, 128, 64, 4, 2, 2, 3, 1, 0),
        (80, 64, 64, 2, 2, 2, 4, 1, 0),
        (80, 64, 32, 2, 2, 2, 4, 1, 0),
        (80, 32, 32, 2, 2, 2, 4, 1, 0),
        (80, 128, 16, 4, 1, 2, 4, 1, 0),
        (80, 16, 64, 1, 4, 2, 4, 1, 0),
        (90, 128, 256, 8, 1, 4, 4, 4, 1),
        (90, 128, 192, 8, 1, 4, 5, 4, 1),
        (90, 128, 128, 8, 1, 4, 3, 4, 1),
        (90, 128, 128, 8, 1, 4, 6, 4, 1),
        (90, 64, 128, 4, 1, 4, 4, 4, 1),
        (90, 64, 128, 4, 1, 4, 3, 4, 0),
        (90, 128, 64, 8, 1, 4, 4, 4, 1),
        (90, 64, 64, 4, 1, 4, 3, 4, 1),
        (90, 64, 64, 4, 1, 4, 3, 4, 0),
        (90, 64, 32, 4, 1, 4, 4, 4, 1),
    ),
}
SPLIT_K = (1, 2, 4, 8)
REDUCTION_GROUP = 128  # work-items
MIN_SPLIT_BLOCKS = 16  # blocks of terms of a split
MAX_CONFIGS = 6  # that are worth measuring

# The model that ranks configs.
PIPELINE_FILL = 16  # products of blocks in the time until the pipeline is full
WARP_SHARE = 0.8  # of warp units' rate, beside loads of fragments
GROUP_SHARE = {2: 0.8, 1: 0.9}  # of warp group units' rate, beside sums in float32
A_READ_COLUMNS = 8  # columns of products in the time that units read a tile's rows
MAX_REGISTERS, OTHER_REGISTERS = 255, 32  # of a work-item; beside its accumulators
COPY_SPEEDUP = 1.75  # of copies to local memory over loads to registers, from the cache
COPY_LOADS = 5  # loads, one after the other, as long as a step's copy among others
OUTPUT_FLOPS = 100  # operations of an output: scales, bias, activation, its store
PARTIAL_SHARE = 0.7  # of memory's rate, by which partial sums are written and read


@dataclass(frozen=True)
class MmaProduct:
    """The product c [m, n] of inner dimension k (``mma.h``)."""

    m: int  # Sizes
    n: int
    k: int
    splits: int  # Halves a value

    def a(self, config: Config) -> Packing:
        """Return the first operand."""
        return self._packing(self.m, config, config["tile_m"], WARP_GROUP_ROWS)

    def b(self, config: Config) -> Packing:
        """Return the second operand."""
        return self._packing(self.n, config, config["tile_n"], config["tile_n"])

    def _packing(self, rows: int, config: Config, tile: int, panel: int) -> Packing:
        terms = TERM_MULTIPLE[config["units"]]
        if config["units"] == WARP_MMA:
            return Packing(rows, self.k, self.splits, ROW_MULTIPLE, terms)
        return Packing(rows, self.k, self.splits, tile, terms, panel)

    def tiles(self, config: Config) -> int:
        """Return the number of tiles of c."""
        return -(-self.m // config["tile_m"]) * -(-self.n // config["tile_n"])

    def seconds(self, config: Config, device: Device) -> float:
        """Return the modelled seconds, without the first launch.

        Warp group units are bound by latency: their speed is limited by the bytes in
        flight.
        """
        m, n, parts = config["tile_m"], config["tile_n"], config["parts"]
        rates, units = device.rates, device.compute_units
        groups = -(-self.tiles(config) * parts // units)
        blocks = self.k / parts / BLOCK
        products = 2 * PRODUCTS[self.splits] * BLOCK * units  # of a term of a block
        if config["units"] == WARP_MMA:
            sizes = m * n + 2 * (m + n) * BLOCK  # of products and copies
            each = sizes * products / (WARP_SHARE * rates.matrix)
            busy = groups * (blocks + PIPELINE_FILL) * each
        else:
            copied = (m + n) // BLOCK * self.splits * BLOCK_BYTES  # of a block of terms
            resident = min(groups, self.occupancy(config, device))
            in_flight = resident * config["stages"] * config["step"] * copied
            latency = COPY_LOADS * rates.latency
            rate = GROUP_SHARE[self.splits] * rates.warp_group
            each = max(
                m * (n + A_READ_COLUMNS) * products / rate,
                copied / min(COPY_SPEEDUP * rates.cache / units, in_flight / latency),
            )
            busy = groups * blocks * each + -(-groups // resident) * latency
        busy += groups * m * n * OUTPUT_FLOPS * units / rates.flops
        busy += COPY_LOADS * rates.latency
        if parts == 1:
            return busy
        moved = 2 * self.partial_size(config)
        return busy + rates.launch + moved / (PARTIAL_SHARE * rates.memory)

    def occupancy(self, config: Config, device: Device) -> int:
        """Return the resident groups of a compute unit, with warp group units."""
        sums = config["tile_n"] // 2 * (2 * self.splits - 1)  # high, low and partial
        warps = config["warps_m"] + config["producer"]
        registers = WARP * warps * min(sums + OTHER_REGISTERS, MAX_REGISTERS)
        local = local_bytes(config, self.splits) + RESERVED_BYTES
        room = device.unit_local_memory // local
        return max(1, min(device.registers // registers, room))

    def pitch(self) -> int:
        """Return the stride, in values, of rows of partial sums."""
        return round_up(self.n, VALUE_ALIGNMENT)

    def partial_size(self, config: Config) -> int:
        """Return the bytes of the partial sums of split-k."""
        parts = config["parts"]
        return 4 * parts * self.m * self.pitch() if parts > 1 else 0

    @classmethod
    def of(cls, op: Contraction, span: Span) -> MmaProduct:
        """Return the contraction of an op of a span."""
        return cls(*op.sizes(span.batch), SPLITS[span.precision])

    def scratch(self, config: Config) -> int:
        """Return the bytes of both operands packed."""
        return sum(x.size + x.scales_size for x in (self.a(config), self.b(config)))

    def read_bytes(self, config: Config) -> int:
        """Return the bytes of operands that all tiles read."""
        read_bytes = self.a(config).size * -(-self.n // config["tile_n"])
        return read_bytes + self.b(config).size * -(-self.m // config["tile_m"])

    def defines(self, config: Config) -> dict[str, int | str]:
        """Return the macros of ``mma.h``."""
        return {
            **{key.upper(): config[key] for key in KEYS}, "SWIZZLE": SWIZZLE,
            "SPLITS": self.splits,
        }


def local_bytes(config: Config, splits: int) -> int:
    """Return the bytes of local memory of a group."""
    stages, columns = config["stages"], config["tile_n"]
    copied = (config["tile_m"] + columns) * config["step"] * 2 * BLOCK * splits
    return stages * (copied + 16 * (config["units"] == WARP_GROUP_MMA))


def tile_memory(units: int, device: Device) -> int:
    """Return the bytes of local memory available to a group, by kind of units.

    With warp group units a group may take all of a compute unit's.
    """
    if units == WARP_GROUP_MMA:
        return device.unit_local_memory - RESERVED_BYTES
    return device.declared_local_memory


def shapes_of(splits: int, device: Device) -> tuple[Config, ...]:
    """Return the shapes that the device's units and local memory allow."""
    configs = (dict(zip(KEYS, shape, strict=True)) for shape in SHAPES[splits])
    return tuple(
        shape for shape in configs
        if shape["units"] in matrix_units(device)
        and local_bytes(shape, splits) <= tile_memory(shape["units"], device)
    )


def configs_of(
    products: Sequence[MmaProduct], device: Device, parts: tuple[int, ...] = (1,)
) -> tuple[Config, ...]:
    """Return the configs of products to measure, the best by the model first.

    At least one is for another kind of units, if the device has two: a driver may
    refuse to build for the newest.
    """
    configs = [
        {**shape, "parts": p}
        for shape in shapes_of(products[0].splits, device) for p in parts
        if p == 1 or min(x.k for x in products) >= p * MIN_SPLIT_BLOCKS * BLOCK
    ]
    configs.sort(key=lambda config: sum(x.seconds(config, device) for x in products))
    best, rest = configs[:MAX_CONFIGS], configs[MAX_CONFIGS:]
    if {config["units"] for config in best} == {best[0]["units"]}:
        best[-1:] = [c for c in rest if c["units"] != best[0]["units"]][:1] or best[-1:]
    return tuple(best)


def cost_of(
    products: Sequence[MmaProduct], span: Span, config: Config, device: Device,
    launches: int,
) -> Cost:
    """Count operands once packed, and again for every tile that reads them."""
    partial = sum(x.partial_size(config) for x in products)
    scratch = sum(x.scratch(config) for x in products)
    again = scratch + sum(x.read_bytes(config) for x in products) + 2 * partial
    groups = max(x.tiles(config) for x in products) * config["parts"]
    unit = "warp_group" if config["units"] == WARP_GROUP_MMA else "matrix"
    return span_cost(
        span, device, again, groups, launches, scratch + partial,
        1.0, unit, PRODUCTS[products[0].splits],
        busy=sum(x.seconds(config, device) for x in products),
    )


def refuse_without_matrix_units(span: Span, device: Device) -> str | None:
    """Return why the device or the span cannot use matrix units, or None."""
    if not matrix_units(device):
        return "it needs matrix units of compute capability 8.0 or more"
    if span.dtype != "float32":
        return "it computes in float32 only"
    return refuse_long_rows(span)


def refuse_unless_tiles_fit(span: Span, device: Device) -> str | None:
    """Return why matrix units are missing or tiles exceed local memory, or None."""
    refusal = refuse_without_matrix_units(span, device)
    if refusal or shapes_of(SPLITS[span.precision], device):
        return refusal
    return no_room_for_tiles(device)


def no_room_for_tiles(device: Device) -> str:
    """Return the refusal of a device whose local memory holds no tile."""
    return (
        "its tiles take more local memory than the "
        f"{device.declared_local_memory} bytes that {device.name} has"
    )


def refuse_unless_persistent_mma(span: Span, device: Device) -> str | None:
    """Return why no persistent launch computes dense layers, or None."""
    return (
        refuse_unless_dense_layers(span, device)
        or refuse_unless_forward_progress(device)
        or refuse_without_matrix_units(span, device)
    )


def group_of(config: Config) -> int:
    """Return the work-items of a group."""
    consumers = config["warps_m"] * config["warps_n"]
    return WARP * (consumers + PRODUCER_WARPS[config["producer"]])


@dataclass(frozen=True)
class Mma:
    """A dense layer of a batch, or a run of layers (``mma.cl``).

    Outputs between layers stay packed. Their scale must be known in advance, so the
    activations are bounded.

    Config: ``units``, the generation of matrix units; ``tile_m``, ``tile_n``, samples
    and neurons of a group's tile; ``warps_m``, ``warps_n``, its warps; ``step``, blocks
    of 16 inputs of a pipeline stage; ``stages``, pipeline stages in local memory;
    ``slice``, blocks that the units accumulate; ``producer``, 1 or 2 with a producer
    warp; ``parts``, splits of the inputs (split-k), whose partial sums a launch adds.
    """

    name: str = "mma"
    reach: Reach = "run"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse devices without matrix units, and all but float32.

        In runs of layers, refuse activations that are not bounded by 1.
        """
        refusal = refuse_unless_dense_layers(span, device, stores_z=True)
        refusal = refusal or refuse_unless_tiles_fit(span, device)
        if refusal or len(span.chain or ()) == 1:
            return refusal
        if span.layers is None:
            return "it stores the last layer's outputs only, and more is read later"
        for layer in span.layers[:-1]:
            if not activation(layer.act.nonlinearity.names[0]).bounded:
                name = layer.act.nonlinearity.names[0]
                return f"it packs outputs bounded by 1, and {name} is unbounded"
        return None

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Tiles and split-k, the best by the model first."""
        return configs_of(_products(span), device, SPLIT_K)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count x packed and read again, and packed A for every tile of samples."""
        products = _products(span)
        launches = 1 + len(products) * (1 + (config["parts"] > 1))
        return cost_of(products, span, config, device, launches)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the packing of x and of all A, then products and their reductions."""
        layers, products = _layers(span), _products(span)
        x = layers[0].apply.x
        packed = packed_scratch("x of 0", products[0].a(config))
        launches = list[Launch]()
        packs = [
            products[0].a(config).launch(
                x, 0, x.stride, *packed, second=False, source_padded=padded(x)
            )
        ]
        partial = Scratch("partial", max(p.partial_size(config) for p in products))
        for index, (layer, product) in enumerate(zip(layers, products, strict=True)):
            y, sums = layer.act.y, layer.apply.z
            operand, bias = product.b(config), layer.act.bias
            key = f"mma {layer.apply.weights.offset} in {operand.layout_name}"
            a = Packed(key, operand.size), Packed(f"{key}, scales", operand.scales_size)
            packs.append(operand.launch(
                PARAMETERS, layer.apply.weights.offset,
                stored(layer.apply, RowStorage).stride, *a,
                second=True, when="parameters",
            ))
            stores_sums, parts = sums in span.outputs, config["parts"]
            operands = *packed, *a
            output: tuple[Argument, ...] = (y, y.stride)
            if layer is not layers[-1]:
                next_x = products[index + 1].a(config)
                packed = packed_scratch(f"x of {index + 1}", next_x)
                output = packed[0], next_x.blocks
            defines = {
                **layer_defines(span, layer), **product.defines(config),
                "SPLIT_K": parts, "PACKS": int(layer is not layers[-1]),
                "Y_PADDED": padded(y), "STORES_Z": int(stores_sums),
            }
            biases: tuple[Argument, ...] = (
                PARAMETERS, 0 if bias is None else bias.offset,
            )
            pre_activations = sums if stores_sums else y
            last: tuple[Argument, ...] = (
                packed[1], pre_activations, pre_activations.stride, layer.n_out,
                span.batch,
            )
            group, partial_sums = group_of(config), (partial, product.pitch())
            launches.append(Launch(
                SOURCE, "mma", defines,
                (product.tiles(config) * group, parts), (group, 1),
                (*operands, product.a(config).blocks, *biases,
                 *(output if parts == 1 else partial_sums), *last),
            ))
            if parts > 1:
                pairs = round_up(-(-layer.n_out // 2), REDUCTION_GROUP)
                launches.append(Launch(
                    SOURCE, "reduce_split_k", defines, (span.batch, pairs),
                    (1, REDUCTION_GROUP), (*partial_sums, *biases, *output, *last),
                ))
        return (*packs, *launches)


def _layers(span: Span) -> tuple[LayerOps, ...]:
    assert span.chain is not None
    return span.chain


def _products(span: Span) -> list[MmaProduct]:
    return [MmaProduct.of(layer.apply, span) for layer in _layers(span)]


def packed_scratch(name: str, packing: Packing) -> tuple[Scratch, Scratch]:
    """Return the buffers of a packed operand and of its scales."""
    return Scratch(name, packing.size), Scratch(f"{name} scales", packing.scales_size)


CHAIN_KEYS = ("tile_m", "tile_n", "narrow", "step", "stages")
# By splits; one group, of as many stages as fit, takes a compute unit's local memory.
CHAIN_SHAPES: dict[int, tuple[tuple[int, ...], ...]] = {
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
            dict(zip(CHAIN_KEYS, shape, strict=True))
            for shape in CHAIN_SHAPES[SPLITS[span.precision]]
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
