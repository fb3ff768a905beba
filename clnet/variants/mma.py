"""mma: layers of a batch on matrix units, from packed halves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from clnet.device import Device
from clnet.ops import VALUE_ALIGNMENT, Span, round_up
from clnet.program import inline_ptx
from clnet.storage import RowStorage
from clnet.variants.base import (
    Argument,
    Config,
    Cost,
    Launch,
    Packed,
    Parameters,
    Reach,
    Scratch,
    dense_layer,
    layer_defines,
    padded,
    refuse_unless_dense_layers,
    span_bytes,
    span_flops,
)
from clnet.variants.packing import BLOCK, PLANES, WARP, Packing

SOURCE = "mma.cl"
UNITS = 80  # generation of PTX whose matrix units are used
LOCAL_BYTES = 48 << 10  # that a kernel for these units may declare
PANEL = 16  # tiles of samples whose groups are neighbours
RATES = {2: 3.0, 1: 8.0}  # times what float32 arithmetic does, by planes
KEYS = ("tile_m", "tile_n", "warps_m", "warps_n", "step", "stages", "slice")
SHAPES = {  # by planes; from large to small: large tiles read less
    2: (
        (128, 128, 2, 2, 1, 2, 1),
        (128, 64, 4, 2, 1, 3, 1),
        (128, 64, 4, 2, 2, 2, 1),
        (64, 64, 2, 2, 2, 3, 1),
        (64, 32, 2, 2, 2, 3, 2),
        (32, 32, 2, 2, 2, 4, 1),
        (128, 16, 4, 1, 2, 2, 1),
        (16, 64, 1, 4, 2, 4, 1),
    ),
    1: (
        (128, 128, 2, 2, 1, 4, 1),
        (128, 64, 4, 2, 2, 3, 1),
        (64, 64, 2, 2, 2, 4, 1),
        (64, 32, 2, 2, 2, 4, 1),
        (32, 32, 2, 2, 2, 4, 1),
        (128, 16, 4, 1, 2, 4, 1),
        (16, 64, 1, 4, 2, 4, 1),
    ),
}
PARTS = (1, 2, 4, 8)
ADDERS = 128  # work-items of a group that adds parts
LEAST_PART = 16  # blocks of terms
MOST_CONFIGS = 6  # that are worth measuring
FILL = 16  # as many blocks' time passes before a group's units are busy
SUMMING = 1000  # the time of adding parts, likewise in that of a block's product


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

    @property
    def a(self) -> Packing:
        """The first operand."""
        return Packing(self.m, self.k, self.planes)

    @property
    def b(self) -> Packing:
        """The second operand."""
        return Packing(self.n, self.k, self.planes)

    def tiles(self, config: Config) -> int:
        """Return how many tiles cover c."""
        return -(-self.m // config["tile_m"]) * -(-self.n // config["tile_n"])

    def space(
        self, device: Device, parts: tuple[int, ...] = (1,)
    ) -> tuple[Config, ...]:
        """Return the configs to measure, the best by a model first."""
        found = [
            {**dict(zip(KEYS, shape, strict=True)), "parts": p}
            for shape in SHAPES[self.planes] for p in parts
            if p == 1 or self.a.blocks >= p * LEAST_PART
        ]

        def clocks(config: Config) -> float:
            """Return the time in that of a unit for one block of 16 x 16 terms."""
            m, n, parts = config["tile_m"], config["tile_n"], config["parts"]
            waves = -(-self.tiles(config) * parts // device.compute_units)
            each = m * n / BLOCK**2 + 2 * (m + n) / BLOCK  # products and copies
            return waves * (self.a.blocks / parts + FILL) * each + (parts > 1) * SUMMING

        return tuple(sorted(found, key=clocks)[:MOST_CONFIGS])

    def cost(
        self, span: Span, config: Config, device: Device, launches: int,
        partial: int = 0,
    ) -> Cost:
        """Count both operands packed, and again for every tile that reads them."""
        read = self.a.size * -(-self.n // config["tile_n"])
        read += self.b.size * -(-self.m // config["tile_m"])
        return Cost(
            flops=span_flops(span),
            bytes=span_bytes(span) + self.a.size + self.b.size + read + 2 * partial,
            launches=launches,
            scratch=sum(x.size + x.scales_size for x in (self.a, self.b)) + partial,
            compute_units=min(
                device.compute_units, self.tiles(config) * config["parts"]
            ),
            efficiency=RATES[self.planes],
        )

    def defines(self, config: Config) -> dict[str, int | str]:
        """Return the macros of ``mma.h``."""
        return {
            **{key.upper(): config[key] for key in KEYS}, "PANEL": PANEL,
            "PLANES": self.planes,
        }


def refuse_without_units(span: Span, device: Device) -> str | None:
    """Return why matrix units are not there or not wanted, or None."""
    if inline_ptx(device) < UNITS:
        return "it needs matrix units of compute capability 8.0 or more"
    if span.dtype != "float32":
        return "it computes in float32 only"
    return None


def group_of(config: Config) -> int:
    """Return the work-items of a group."""
    return WARP * config["warps_m"] * config["warps_n"]


@dataclass(frozen=True)
class Mma:
    """One dense layer of a batch (``mma.cl``).

    Config: ``tile_m``, ``tile_n``, samples and neurons of a group; ``warps_m``,
    ``warps_n``, its warps; ``step``, blocks of 16 inputs copied at once; ``stages``,
    steps in local memory; ``slice``, blocks that the units add up; ``parts`` of the
    inputs, whose sums a launch adds.
    """

    name: str = "mma"
    reach: Reach = "layer"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse devices without such matrix units, and all but float32."""
        refusal = refuse_unless_dense_layers(span, device, keeps_sums=True)
        return refusal or refuse_without_units(span, device)

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Tiles and parts, the best by a model first."""
        return _product(span).space(device, PARTS)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count x packed and read again, and packed A for every tile of samples."""
        launches = 2 + (config["parts"] > 1)
        partial = _partial_size(span, config)
        return _product(span).cost(span, config, device, launches, partial)

    def launches(
        self, span: Span, config: Config, device: Device
    ) -> tuple[Launch, ...]:
        """Return the packing of A and of x, the product, and the sum of its parts."""
        layer, product, group = dense_layer(span), _product(span), group_of(config)
        x, y, sums = layer.apply.x, layer.act.y, layer.apply.sums
        keeps, parts = sums in span.outputs, config["parts"]
        kept = sums if keeps else y
        storage, bias = layer.apply.storage, layer.act.bias
        assert isinstance(storage, RowStorage)
        key = f"mma {layer.apply.weights.offset} in {product.planes} halves"
        a = Packed(key, product.b.size), Packed(f"{key}, scales", product.b.scales_size)
        packed = Scratch("x", product.a.size), Scratch("scales", product.a.scales_size)
        defines = {
            **layer_defines(span, layer), **product.defines(config), "PARTS": parts,
            "Y_PADDED": padded(y), "KEEPS_SUMS": int(keeps),
        }
        biases: tuple[Argument, ...] = (
            Parameters(), 0 if bias is None else bias.offset,
        )
        last: tuple[Argument, ...] = (kept, kept.stride, layer.n_out, span.batch)
        partial = Scratch("partial", _partial_size(span, config)), _pitch(span)
        to: tuple[Argument, ...] = (y, y.stride)
        launches = (
            product.b.launch(
                Parameters(), layer.apply.weights.offset, storage.stride, *a,
                second=True, source_padded=1, when="parameters",
            ),
            product.a.launch(
                x, 0, x.stride, *packed, second=False, source_padded=padded(x)
            ),
            Launch(
                SOURCE, "mma", defines,
                (product.tiles(config) * group, parts), (group, 1),
                (*packed, *a, product.a.blocks, *biases,
                 *(to if parts == 1 else partial), *last),
            ),
        )
        if parts == 1:
            return launches
        pairs = round_up(-(-layer.n_out // 2), ADDERS)
        added = Launch(
            SOURCE, "add_parts", defines, (span.batch, pairs), (1, ADDERS),
            (*partial, *biases, *to, *last),
        )
        return (*launches, added)


def _product(span: Span) -> Product:
    layer = dense_layer(span)
    return Product(span.batch, layer.n_out, layer.n_in, PLANES[span.precision])


def _pitch(span: Span) -> int:
    """Return the values from one row of a part's sums to the next."""
    return round_up(dense_layer(span).n_out, VALUE_ALIGNMENT)


def _partial_size(span: Span, config: Config) -> int:
    """Return the bytes of the sums of parts."""
    parts = config["parts"]
    return 4 * parts * span.batch * _pitch(span) if parts > 1 else 0
