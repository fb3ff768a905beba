"""fused_group: narrow layers of a batch in one launch, on the units of warp groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from clnet.device import Device
from clnet.ops import Span
from clnet.program import GROUP_UNITS, matrix_units
from clnet.variants.base import (
    Config,
    Cost,
    Launch,
    Packed,
    Parameters,
    Reach,
    padded,
    refuse_unless_dense_layers,
    span_bytes,
    span_flops,
)
from clnet.variants.chain import chain, chain_defines, strides
from clnet.variants.mma import GROUP_ROWS, RATES, refuse_without_units
from clnet.variants.packing import PLANES, WARP, Packing

WIDTHS = (64, 128)  # of all layers, filled up
DECLARED_BYTES = 200 << 10  # of local memory that a group has, at most
TEAMS = {128: (3, 4, 2), 64: (6, 4)}  # warp groups of a group, by widths


@dataclass(frozen=True)
class FusedGroup:
    """Warp groups keep 64 samples through all layers (``fused_group.cl``).

    Config: ``teams``, warp groups of a group.
    """

    name: str = "fused_group"
    reach: Reach = "run"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse wide layers, many of them, and float32's precision."""
        refusal = refuse_unless_dense_layers(span, device)
        refusal = refusal or refuse_without_units(span, device)
        if refusal is not None:
            return refusal
        if GROUP_UNITS not in matrix_units(device):
            return "it needs matrix units of compute capability 9.0"
        if PLANES[span.precision] != 1:
            return "it keeps one half a value, less than float32's precision"
        widest = max(max(layer.n_in, layer.n_out) for layer in chain(span))
        if widest > WIDTHS[-1]:
            return f"it keeps {WIDTHS[-1]} values a sample, and here are {widest}"
        if _local_bytes(span) > DECLARED_BYTES:
            return (
                f"it keeps {_local_bytes(span)} bytes of weights in local memory, of "
                f"{DECLARED_BYTES} at most"
            )
        return None

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """As many warp groups as registers allow, or less."""
        return tuple({"teams": teams} for teams in TEAMS[_wide(span)])

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count inputs, outputs and parameters once."""
        return Cost(
            flops=span_flops(span),
            bytes=span_bytes(span),
            launches=1,
            scratch=sum(packed.size for packed in _packed(span)),
            compute_units=min(
                device.compute_units, -(-span.batch // (GROUP_ROWS * config["teams"]))
            ),
            efficiency=RATES[1],
        )

    def launches(
        self, span: Span, config: Config, device: Device
    ) -> tuple[Launch, ...]:
        """Return the packing of each layer, and the one launch."""
        layers, packed, wide = chain(span), _packed(span), _wide(span)
        x, y = layers[0].apply.x, layers[-1].act.y
        teams = config["teams"]
        group = 4 * WARP * teams
        tiles = -(-span.batch // (GROUP_ROWS * teams))
        defines: dict[str, int | str] = {
            **chain_defines(span), "WIDE": wide, "N_IN": x.width,
            "X_PADDED": padded(x), "Y_PADDED": padded(y), "TILE_M": GROUP_ROWS * teams,
            "TILE_N": wide, "WARPS_M": 4 * teams, "WARPS_N": 1, "STEP": 4, "STAGES": 2,
            "SLICE": 4, "COPIER": 0, "PANEL": 1, "PLANES": 1,
        }
        for name in ("STRIDE", "WEIGHTS"):
            del defines[name]
        return (
            *(
                Packing(
                    layer.n_out, layer.n_in, 1, wide, wide, wide
                ).launch(
                    Parameters(), layer.apply.weights.offset, stride, *packed,
                    second=True, when="parameters",
                    before=(2 * wide * wide * number, 4 * wide * number),
                )
                for number, (layer, stride) in enumerate(
                    zip(layers, strides(span), strict=True)
                )
            ),
            Launch(
                "fused_group.cl", "fused_group", defines,
                (min(tiles, device.compute_units) * group,), (group,),
                (x, x.stride, *packed, Parameters(), y, y.stride, span.batch),
            ),
        )


def _wide(span: Span) -> int:
    """Return the width to which all layers are filled up."""
    widest = max(max(layer.n_in, layer.n_out) for layer in chain(span))
    return next(width for width in WIDTHS if width >= widest)


def _local_bytes(span: Span) -> int:
    """Return the bytes of all weights, scales and biases."""
    wide = _wide(span)
    return len(chain(span)) * (2 * wide * wide + 8 * wide)


def _packed(span: Span) -> tuple[Packed, Packed]:
    """Return the buffers of all weights, and of their scales."""
    layers, wide = chain(span), _wide(span)
    first, last = (layers[i].apply.weights.offset for i in (0, -1))
    key = f"fused_group {first} to {last} by {wide}"
    return (
        Packed(key, len(layers) * 2 * wide * wide),
        Packed(f"{key}, scales", len(layers) * 4 * wide),
    )
