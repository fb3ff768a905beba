"""mma: layers of a batch on matrix units, from packed halves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from clnet.ir.ops import VALUE_ALIGNMENT, LayerOps, Span
from clnet.nn.activations import activation
from clnet.nn.storage.dense import RowStorage
from clnet.nn.storage.layout import round_up
from clnet.opencl.device import Device
from clnet.opencl.launch import Argument, Launch, Packed, Parameters, Scratch
from clnet.opencl.program import GROUP_UNITS, WARP_UNITS, matrix_units
from clnet.variants.base import (
    Config,
    Cost,
    Reach,
    layer_defines,
    padded,
    refuse_unless_dense_layers,
    refuse_unless_forward_progress,
    span_bytes,
    span_flops,
)
from clnet.variants.packing import (
    BLOCK,
    BLOCK_BYTES,
    ROWS,
    SPLITS,
    TERMS,
    WARP,
    Packing,
)

SOURCE = "dense/mma.cl"
RESERVED_BYTES = 1 << 10  # of local memory, for each group that a unit holds
GROUP_ROWS = 64  # of a warp group
PANEL = 16  # tiles of samples whose groups are neighbours
RATES = {2: 3.0, 1: 8.0}  # times what float32 arithmetic does, by planes
KEYS = (
    "units", "tile_m", "tile_n", "warps_m", "warps_n", "step", "stages", "slice",
    "producer",
)
PRODUCER_WARPS = (0, 1, 4)  # warps that copy, by what `producer` says
SHAPES = {  # by planes; from large to small: large tiles read less
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
PARTS = (1, 2, 4, 8)
ADDERS = 128  # work-items of a group that adds parts
LEAST_PART = 16  # blocks of terms
MOST_CONFIGS = 6  # that are worth measuring

# The model by which they are ranked, in clocks of a compute unit.
BLOCK_CLOCKS = {2: 11, 1: 4}  # of a warp's units, by planes, for a product of 16^3
FILL = 16  # as many blocks' time passes before a group's units are busy
GROUP_RATE = {2: 36, 1: 120}  # values of a tile that a warp group's add to in a clock
ROWS_AGAIN = 8  # columns that units could add to while they read a tile's rows
REGISTERS = 1 << 16  # of a compute unit, 4 bytes each
MOST_REGISTERS, OTHERS = 255, 32  # of a work-item; beside its sums
LATENCY = 1500  # from asking for a step to having it in local memory
BANDWIDTH = 58  # bytes a clock to local memory
WRITING = 2.6  # outputs a clock
SUMMING = 8000  # for the launch that adds parts
MEMORY = 13  # bytes a clock, of their sums


@dataclass(frozen=True)
class Product:
    """c [m, n], of sums of k terms, as ``mma.h`` computes it.

    Attributes
    ----------
    m, n, k : int
        Its sizes.
    planes : int
        Halves a value.
    """

    m: int
    n: int
    k: int
    planes: int

    def a(self, config: Config) -> Packing:
        """Return the first operand."""
        return self._packing(self.m, config, config["tile_m"], GROUP_ROWS)

    def b(self, config: Config) -> Packing:
        """Return the second operand."""
        return self._packing(self.n, config, config["tile_n"], config["tile_n"])

    def _packing(self, rows: int, config: Config, tile: int, piece: int) -> Packing:
        terms = TERMS[config["units"]]
        if config["units"] == WARP_UNITS:
            return Packing(rows, self.k, self.planes, ROWS, terms)
        return Packing(rows, self.k, self.planes, tile, terms, piece)

    def tiles(self, config: Config) -> int:
        """Return how many tiles cover c."""
        return -(-self.m // config["tile_m"]) * -(-self.n // config["tile_n"])

    def clocks(self, config: Config, device: Device) -> float:
        """Return the clocks that the model gives.

        A warp group's units wait for copies: they are as fast as what is under way is
        large.
        """
        m, n, parts = config["tile_m"], config["tile_n"], config["parts"]
        groups = -(-self.tiles(config) * parts // device.compute_units)
        blocks = self.k / parts / BLOCK
        if config["units"] == WARP_UNITS:
            each = m * n / BLOCK**2 + 2 * (m + n) / BLOCK  # products and copies
            busy = groups * (blocks + FILL) * each * BLOCK_CLOCKS[self.planes]
        else:
            copied = (m + n) // BLOCK * self.planes * BLOCK_BYTES  # of a block of terms
            together = min(groups, self.resident(config, device))
            under_way = together * config["stages"] * config["step"] * copied
            each = max(
                m * (n + ROWS_AGAIN) / GROUP_RATE[self.planes],
                copied / min(BANDWIDTH, under_way / LATENCY),
            )
            busy = groups * blocks * each + -(-groups // together) * LATENCY
        busy += groups * m * n / WRITING + LATENCY
        if parts == 1:
            return busy
        return busy + SUMMING + 2 * self.partial_size(config) / (
            MEMORY * device.compute_units
        )

    def resident(self, config: Config, device: Device) -> int:
        """Return how many groups with a warp group's units a compute unit holds."""
        sums = config["tile_n"] // 2 * (2 * self.planes - 1)  # two, and what is added
        warps = config["warps_m"] + config["producer"]
        registers = WARP * warps * min(sums + OTHERS, MOST_REGISTERS)
        local = local_bytes(config, self.planes) + RESERVED_BYTES
        return max(1, min(REGISTERS // registers, device.unit_local_memory // local))

    def pitch(self) -> int:
        """Return the values from one row of a part's sums to the next."""
        return round_up(self.n, VALUE_ALIGNMENT)

    def partial_size(self, config: Config) -> int:
        """Return the bytes of the sums of parts."""
        parts = config["parts"]
        return 4 * parts * self.m * self.pitch() if parts > 1 else 0

    def scratch(self, config: Config) -> int:
        """Return the bytes of both operands packed."""
        return sum(x.size + x.scales_size for x in (self.a(config), self.b(config)))

    def read(self, config: Config) -> int:
        """Return the bytes of operands that all tiles read."""
        read = self.a(config).size * -(-self.n // config["tile_n"])
        return read + self.b(config).size * -(-self.m // config["tile_m"])

    def defines(self, config: Config) -> dict[str, int | str]:
        """Return the macros of ``mma.h``."""
        return {
            **{key.upper(): config[key] for key in KEYS}, "PANEL": PANEL,
            "SPLITS": self.planes,
        }


def local_bytes(config: Config, planes: int) -> int:
    """Return the bytes of local memory that a group of a config has."""
    stages, columns = config["stages"], config["tile_n"]
    copied = (config["tile_m"] + columns) * config["step"] * 2 * BLOCK * planes
    return stages * (copied + 16 * (config["units"] == GROUP_UNITS))


def tile_room(units: int, device: Device) -> int:
    """Return the bytes of local memory that a group has for a kind of units.

    Those of a warp group take what a compute unit has: their groups are few.
    """
    if units == GROUP_UNITS:
        return device.unit_local_memory - RESERVED_BYTES
    return device.declared_local_memory


def shapes_of(planes: int, device: Device) -> tuple[Config, ...]:
    """Return the shapes whose units and local memory the device has."""
    found = (dict(zip(KEYS, shape, strict=True)) for shape in SHAPES[planes])
    return tuple(
        shape for shape in found
        if shape["units"] in matrix_units(device)
        and local_bytes(shape, planes) <= tile_room(shape["units"], device)
    )


def configs_of(
    products: Sequence[Product], device: Device, parts: tuple[int, ...] = (1,)
) -> tuple[Config, ...]:
    """Return the configs of products to measure, the best by a model first.

    One at least is for units of another kind than the others, if there are any: a
    driver may refuse to build for the newest.
    """
    found = [
        {**shape, "parts": p}
        for shape in shapes_of(products[0].planes, device) for p in parts
        if p == 1 or min(x.k for x in products) >= p * LEAST_PART * BLOCK
    ]
    found.sort(key=lambda config: sum(x.clocks(config, device) for x in products))
    best, rest = found[:MOST_CONFIGS], found[MOST_CONFIGS:]
    if {config["units"] for config in best} == {best[0]["units"]}:
        best[-1:] = [c for c in rest if c["units"] != best[0]["units"]][:1] or best[-1:]
    return tuple(best)


def cost_of(
    products: Sequence[Product], span: Span, config: Config, device: Device,
    launches: int,
) -> Cost:
    """Count operands packed, and again for every tile that reads them."""
    partial = sum(x.partial_size(config) for x in products)
    scratch = sum(x.scratch(config) for x in products)
    return Cost(
        flops=span_flops(span),
        bytes=span_bytes(span) + scratch + sum(x.read(config) for x in products)
        + 2 * partial,
        launches=launches,
        scratch=scratch + partial,
        compute_units=min(
            device.compute_units,
            max(x.tiles(config) for x in products) * config["parts"],
        ),
        efficiency=RATES[products[0].planes],
    )


def refuse_without_units(span: Span, device: Device) -> str | None:
    """Return why matrix units are not there or not wanted, or None."""
    if not matrix_units(device):
        return "it needs matrix units of compute capability 8.0 or more"
    if span.dtype != "float32":
        return "it computes in float32 only"
    return None


def refuse_unless_tiles_fit(span: Span, device: Device) -> str | None:
    """Return why matrix units are not there, or no room for their tiles, or None."""
    refusal = refuse_without_units(span, device)
    if refusal or shapes_of(SPLITS[span.precision], device):
        return refusal
    return no_room_for_tiles(device)


def no_room_for_tiles(device: Device) -> str:
    """Return that no shape of tiles fits."""
    return (
        "its tiles take more local memory than the "
        f"{device.declared_local_memory} bytes that {device.name} has"
    )


def refuse_unless_units_meet(span: Span, device: Device) -> str | None:
    """Return why no launch of groups that wait computes dense layers, or None."""
    return (
        refuse_unless_dense_layers(span, device)
        or refuse_unless_forward_progress(device)
        or refuse_without_units(span, device)
    )


def group_of(config: Config) -> int:
    """Return the work-items of a group."""
    consumers = config["warps_m"] * config["warps_n"]
    return WARP * (consumers + PRODUCER_WARPS[config["producer"]])


@dataclass(frozen=True)
class Mma:
    """A dense layer of a batch, or a row of them (``mma.cl``).

    Between layers of a row outputs stay packed. That takes a scale that is known before
    they are, so their activations are bounded.

    Config: ``units``, the generation of matrix units; ``tile_m``, ``tile_n``, samples
    and neurons of a group; ``warps_m``, ``warps_n``, its warps; ``step``, blocks of 16
    inputs copied at once; ``stages``, steps in local memory; ``slice``, blocks that the
    units add up; ``producer``, whether a warp of its own copies; ``parts``, of the
    inputs,
    whose sums a launch adds.
    """

    name: str = "mma"
    reach: Reach = "run"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse devices without such matrix units, and all but float32.

        Of several layers also those between which more than 1 may be passed on.
        """
        refusal = refuse_unless_dense_layers(span, device, keeps_sums=True)
        refusal = refusal or refuse_unless_tiles_fit(span, device)
        if refusal or len(span.chain or ()) == 1:
            return refusal
        if span.layers is None:
            return "it keeps no outputs but a last layer's, and more is read later"
        for layer in span.layers[:-1]:
            if not activation(layer.act.nonlinearity.names[0]).bounded:
                name = layer.act.nonlinearity.names[0]
                return f"it passes on what is not beyond 1, and {name} may be"
        return None

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Tiles and parts, the best by a model first."""
        return configs_of(_products(span), device, PARTS)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count x packed and read again, and packed A for every tile of samples."""
        products = _products(span)
        launches = 1 + len(products) * (1 + (config["parts"] > 1))
        return cost_of(products, span, config, device, launches)

    def launches(
        self, span: Span, config: Config, device: Device
    ) -> tuple[Launch, ...]:
        """Return the packing of all A and of x, then each product, its parts added."""
        layers, products = _layers(span), _products(span)
        x = layers[0].apply.x
        packed = _scratch(0, products[0].a(config))
        packs, launches = [], [
            products[0].a(config).launch(
                x, 0, x.stride, *packed, second=False, source_padded=padded(x)
            )
        ]
        partial = Scratch("partial", max(p.partial_size(config) for p in products))
        for number, (layer, product) in enumerate(zip(layers, products, strict=True)):
            y, sums, storage = layer.act.y, layer.apply.sums, layer.apply.storage
            assert isinstance(storage, RowStorage)
            operand, bias = product.b(config), layer.act.bias
            key = f"mma {layer.apply.weights.offset} in {operand.form}"
            a = Packed(key, operand.size), Packed(f"{key}, scales", operand.scales_size)
            packs.append(operand.launch(
                Parameters(), layer.apply.weights.offset, storage.stride, *a,
                second=True, when="parameters",
            ))
            keeps, parts = sums in span.outputs, config["parts"]
            given = packed  # of a last layer nothing is packed
            to: tuple[Argument, ...] = (y, y.stride)
            if layer is not layers[-1]:
                following = products[number + 1].a(config)
                packed = _scratch(number + 1, following)
                to = packed[0], following.blocks
            defines = {
                **layer_defines(span, layer), **product.defines(config),
                "PARTS": parts, "PACKS": int(layer is not layers[-1]),
                "Y_PADDED": padded(y), "KEEPS_SUMS": int(keeps),
            }
            biases: tuple[Argument, ...] = (
                Parameters(), 0 if bias is None else bias.offset,
            )
            kept = sums if keeps else y
            last: tuple[Argument, ...] = (
                packed[1], kept, kept.stride, layer.n_out, span.batch,
            )
            group, sums_of_parts = group_of(config), (partial, product.pitch())
            launches.append(Launch(
                SOURCE, "mma", defines,
                (product.tiles(config) * group, parts), (group, 1),
                (*given, *a, product.a(config).blocks, *biases,
                 *(to if parts == 1 else sums_of_parts), *last),
            ))
            if parts > 1:
                pairs = round_up(-(-layer.n_out // 2), ADDERS)
                launches.append(Launch(
                    SOURCE, "add_parts", defines, (span.batch, pairs), (1, ADDERS),
                    (*sums_of_parts, *biases, *to, *last),
                ))
        return (*packs, *launches)


def _layers(span: Span) -> tuple[LayerOps, ...]:
    assert span.chain is not None
    return span.chain


def _products(span: Span) -> list[Product]:
    planes = SPLITS[span.precision]
    return [Product(span.batch, x.n_out, x.n_in, planes) for x in _layers(span)]


def _scratch(number: int, packing: Packing) -> tuple[Scratch, Scratch]:
    """Return the buffers of a layer's x, packed, and of its scales."""
    return (
        Scratch(f"x of {number}", packing.size),
        Scratch(f"scales of {number}", packing.scales_size),
    )
