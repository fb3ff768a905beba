"""mma: layers of a batch on matrix units, from packed halves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from clnet.device import Device
from clnet.ops import VALUE_ALIGNMENT, Span, round_up
from clnet.program import GROUP_UNITS, WARP_UNITS, matrix_units
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
from clnet.variants.packing import BLOCK, PLANES, ROWS, TERMS, WARP, Packing

SOURCE = "mma.cl"
LOCAL_BYTES = 48 << 10  # that a kernel for these units may declare
PANEL = 16  # tiles of samples whose groups are neighbours
RATES = {2: 3.0, 1: 8.0}  # times what float32 arithmetic does, by planes
KEYS = (
    "units", "tile_m", "tile_n", "warps_m", "warps_n", "step", "stages", "slice",
)
SHAPES = {  # by planes; from large to small: large tiles read less
    2: (
        (80, 128, 128, 2, 2, 1, 2, 1),
        (80, 128, 64, 4, 2, 1, 3, 1),
        (80, 128, 64, 4, 2, 2, 2, 1),
        (80, 64, 64, 2, 2, 2, 3, 1),
        (80, 64, 32, 2, 2, 2, 3, 2),
        (80, 32, 32, 2, 2, 2, 4, 1),
        (80, 128, 16, 4, 1, 2, 2, 1),
        (80, 16, 64, 1, 4, 2, 4, 1),
        (90, 64, 64, 4, 1, 1, 5, 4),
        (90, 64, 64, 4, 1, 1, 5, 2),
    ),
    1: (
        (80, 128, 128, 2, 2, 1, 4, 1),
        (80, 128, 64, 4, 2, 2, 3, 1),
        (80, 64, 64, 2, 2, 2, 4, 1),
        (80, 64, 32, 2, 2, 2, 4, 1),
        (80, 32, 32, 2, 2, 2, 4, 1),
        (80, 128, 16, 4, 1, 2, 4, 1),
        (80, 16, 64, 1, 4, 2, 4, 1),
        (90, 128, 128, 8, 1, 1, 5, 4),
        (90, 128, 64, 8, 1, 2, 3, 4),
        (90, 64, 128, 4, 1, 2, 3, 4),
        (90, 64, 64, 4, 1, 2, 5, 4),
    ),
}
PARTS = (1, 2, 4, 8)
ADDERS = 128  # work-items of a group that adds parts
LEAST_PART = 16  # blocks of terms
MOST_CONFIGS = 6  # that are worth measuring
SPEED = {WARP_UNITS: 1, GROUP_UNITS: 2}
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

    def a(self, config: Config) -> Packing:
        """Return the first operand."""
        return self._packing(self.m, config)

    def b(self, config: Config) -> Packing:
        """Return the second operand."""
        return self._packing(self.n, config)

    def _packing(self, rows: int, config: Config) -> Packing:
        units = config["units"]
        return Packing(rows, self.k, self.planes, ROWS, TERMS[units], units)

    def tiles(self, config: Config) -> int:
        """Return how many tiles cover c."""
        return -(-self.m // config["tile_m"]) * -(-self.n // config["tile_n"])

    def space(
        self, device: Device, parts: tuple[int, ...] = (1,)
    ) -> tuple[Config, ...]:
        """Return the configs to measure, the best by a model first.

        The last one is for units of another kind than the first, if there are any: a
        driver may refuse to build for the newest.
        """
        found = [
            {**dict(zip(KEYS, shape, strict=True)), "parts": p}
            for shape in SHAPES[self.planes] for p in parts
            if shape[0] in matrix_units(device)
            and (p == 1 or self.k >= p * LEAST_PART * BLOCK)
        ]

        def clocks(config: Config) -> float:
            """Return the time in that of a unit for one block of 16 x 16 terms."""
            m, n, parts = config["tile_m"], config["tile_n"], config["parts"]
            waves = -(-self.tiles(config) * parts // device.compute_units)
            each = m * n / BLOCK**2 + 2 * (m + n) / BLOCK  # products and copies
            each /= SPEED[config["units"]]
            blocks = self.k / parts / BLOCK + FILL
            return waves * blocks * each + (parts > 1) * SUMMING

        found.sort(key=clocks)
        best = found[: MOST_CONFIGS - 1]
        others = [c for c in found if c["units"] != best[0]["units"]]
        return (*best, *(others[:1] or found[MOST_CONFIGS - 1 : MOST_CONFIGS]))

    def cost(
        self, span: Span, config: Config, device: Device, launches: int,
        partial: int = 0,
    ) -> Cost:
        """Count both operands packed, and again for every tile that reads them."""
        a, b = self.a(config), self.b(config)
        read = a.size * -(-self.n // config["tile_n"])
        read += b.size * -(-self.m // config["tile_m"])
        return Cost(
            flops=span_flops(span),
            bytes=span_bytes(span) + a.size + b.size + read + 2 * partial,
            launches=launches,
            scratch=sum(x.size + x.scales_size for x in (a, b)) + partial,
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
    if not matrix_units(device):
        return "it needs matrix units of compute capability 8.0 or more"
    if span.dtype != "float32":
        return "it computes in float32 only"
    return None


def group_of(config: Config) -> int:
    """Return the work-items of a group; for a warp group's units one warp copies."""
    copying = config["units"] == GROUP_UNITS
    return WARP * (config["warps_m"] * config["warps_n"] + copying)


@dataclass(frozen=True)
class Mma:
    """One dense layer of a batch (``mma.cl``).

    Config: ``units``, the generation of matrix units; ``tile_m``, ``tile_n``, samples
    and neurons of a group; ``warps_m``, ``warps_n``, its warps; ``step``, blocks of 16
    inputs copied at once; ``stages``, steps in local memory; ``slice``, blocks that the
    units add up; ``parts`` of the inputs, whose sums a launch adds.
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
        first, second = product.a(config), product.b(config)
        key = f"mma {layer.apply.weights.offset} in {second.form}"
        a = Packed(key, second.size), Packed(f"{key}, scales", second.scales_size)
        packed = Scratch("x", first.size), Scratch("scales", first.scales_size)
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
            second.launch(
                Parameters(), layer.apply.weights.offset, storage.stride, *a,
                second=True, source_padded=1, when="parameters",
            ),
            first.launch(
                x, 0, x.stride, *packed, second=False, source_padded=padded(x)
            ),
            Launch(
                SOURCE, "mma", defines,
                (product.tiles(config) * group, parts), (group, 1),
                (*packed, *a, first.blocks, *biases,
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
