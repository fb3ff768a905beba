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
PANEL = 16  # tiles of samples whose groups are neighbours
RATE = 3.0  # times what a unit's float32 arithmetic does, for the model; and three
# times this for one plane
KEYS = ("tile_m", "tile_n", "warps_m", "warps_n", "step", "stages")
SHAPES = {
    2: (
        (128, 128, 2, 4, 1, 2),
        (128, 64, 2, 2, 1, 3),
        (64, 64, 2, 2, 1, 3),
        (64, 32, 2, 2, 1, 3),
        (32, 32, 2, 2, 1, 4),
        (128, 16, 4, 1, 1, 4),
        (16, 64, 1, 4, 1, 4),
    ),
    1: (
        (128, 128, 2, 2, 2, 2),
        (128, 64, 2, 2, 2, 3),
        (64, 64, 2, 2, 2, 4),
        (64, 32, 2, 2, 2, 4),
        (32, 32, 2, 2, 2, 4),
        (128, 16, 4, 1, 2, 4),
        (16, 64, 1, 4, 2, 4),
    ),
}
PARTS = (1, 2, 4, 8)
LEAST_PART = 16  # blocks of terms
MOST_CONFIGS = 6  # that are worth measuring
FILL_STEPS = 16  # as many terms' time passes before a group's units are busy


@dataclass(frozen=True)
class Mma:
    """One dense layer of a batch (``mma.cl``).

    Config: ``tile_m``, ``tile_n``, samples and neurons of a group; ``warps_m``,
    ``warps_n``, its warps; ``step``, blocks of 16 inputs copied at once; ``stages``,
    steps in local memory; ``parts`` of the inputs, whose sums a launch adds.
    """

    name: str = "mma"
    reach: Reach = "layer"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse devices without such matrix units, and all but float32."""
        if inline_ptx(device) < UNITS:
            return (
                "it is made for matrix units that PTX reaches (compute capability 8.0 "
                f"or more), and {device.name} has none"
            )
        if span.dtype != "float32":
            return "it computes in float32 only"
        return refuse_unless_dense_layers(span, device, keeps_sums=True)

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Tiles and parts, the best by a model first."""
        _, x = _packings(span)
        found = [
            {**dict(zip(KEYS, shape, strict=True)), "parts": parts}
            for shape in SHAPES[x.planes] for parts in PARTS
            if parts == 1 or x.blocks >= parts * LEAST_PART
        ]

        def clocks(config: Config) -> float:
            """Return the time in that of a unit for one block of 16 x 16 terms."""
            m, n, parts = config["tile_m"], config["tile_n"], config["parts"]
            waves = -(-_tiles(span, config) * parts // device.compute_units)
            each = m * n / BLOCK**2 + 2 * (m + n) / BLOCK  # products and copies
            return waves * (x.blocks / parts + FILL_STEPS) * each + (parts > 1) * 1000

        return tuple(sorted(found, key=clocks)[:MOST_CONFIGS])

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count x packed and read again, and packed A for every tile of samples."""
        layer = dense_layer(span)
        a, x = _packings(span)
        parts = config["parts"]
        partial = _partial_size(span, config)
        again = a.size * (-(-span.batch // config["tile_m"]) - 1)
        again += x.size * -(-layer.n_out // config["tile_n"])
        return Cost(
            flops=span_flops(span),
            bytes=span_bytes(span) + again + x.size + 2 * partial,
            launches=2 + (parts > 1),
            scratch=a.size + x.size + partial,
            compute_units=min(device.compute_units, _tiles(span, config) * parts),
            efficiency=RATE * (3 if x.planes == 1 else 1),
        )

    def launches(
        self, span: Span, config: Config, device: Device
    ) -> tuple[Launch, ...]:
        """Return the packing of A and of x, the product, and the sum of its parts."""
        layer = dense_layer(span)
        a, x = _packings(span)
        value, y, sums = layer.apply.x, layer.act.y, layer.apply.sums
        keeps, parts = sums in span.outputs, config["parts"]
        kept = sums if keeps else y
        storage, bias = layer.apply.storage, layer.act.bias
        assert isinstance(storage, RowStorage)
        key = f"mma {layer.apply.weights.offset} in {a.planes} halves"
        packed = Packed(key, a.size), Packed(f"{key}, scales", a.scales_size)
        scratch = Scratch("x", x.size), Scratch("scales", x.scales_size)
        defines = _defines(span, config)
        rest: tuple[Argument, ...] = (
            Parameters(), 0 if bias is None else bias.offset, y, y.stride, kept,
            kept.stride, layer.n_out, span.batch,
        )
        group = WARP * config["warps_m"] * config["warps_n"]
        partial = Scratch("partial", _partial_size(span, config))
        pitch = round_up(layer.n_out, VALUE_ALIGNMENT)
        to: tuple[Argument, ...] = (partial, pitch) if parts > 1 else (y, y.stride)
        launches = (
            a.launch(
                Parameters(), layer.apply.weights.offset, storage.stride, *packed,
                second=True, source_padded=1, when="parameters",
            ),
            x.launch(
                value, 0, value.stride, *scratch, second=False,
                source_padded=padded(value),
            ),
            Launch(
                SOURCE, "mma", defines,
                (_tiles(span, config) * group, parts), (group, 1),
                (*scratch, *packed, x.blocks, *rest[:2], *to, *rest[4:]),
            ),
        )
        if parts == 1:
            return launches
        pairs = round_up(-(-layer.n_out // 2), WARP)
        added = Launch(
            SOURCE, "add_parts", defines, (pairs, span.batch), (WARP, 1),
            (partial, pitch, *rest),
        )
        return (*launches, added)


def _packings(span: Span) -> tuple[Packing, Packing]:
    """Return those of A and of x."""
    layer, planes = dense_layer(span), PLANES[span.precision]
    return (
        Packing(layer.n_out, layer.n_in, planes),
        Packing(span.batch, layer.n_in, planes),
    )


def _tiles(span: Span, config: Config) -> int:
    down = -(-span.batch // config["tile_m"])
    return down * -(-dense_layer(span).n_out // config["tile_n"])


def _partial_size(span: Span, config: Config) -> int:
    """Return the bytes of the sums of parts."""
    if config["parts"] == 1:
        return 0
    width = round_up(dense_layer(span).n_out, VALUE_ALIGNMENT)
    return 4 * config["parts"] * span.batch * width


def _defines(span: Span, config: Config) -> dict[str, int | str]:
    layer = dense_layer(span)
    return {
        **layer_defines(span, layer),
        **{key.upper(): config[key] for key in (*KEYS, "parts")},
        "PLANES": PLANES[span.precision], "SLICE": 1, "PANEL": PANEL,
        "Y_PADDED": padded(layer.act.y),
        "KEEPS_SUMS": int(layer.apply.sums in span.outputs),
    }
