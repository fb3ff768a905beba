"""fused_mma: a chain of narrow dense layers in one launch, on matrix units."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from clnet.device import Device
from clnet.ops import Span, round_up
from clnet.storage import RowStorage
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
from clnet.variants.chain import chain, chain_defines
from clnet.variants.mma import LOCAL_BYTES, RATES, refuse_without_units
from clnet.variants.packing import BLOCK, PLANES, WARP, Packing

WIDEST = 128  # inputs or neurons of a layer
STEP = 32  # of what all layers are filled up to a multiple
# Warps of a group, blocks of 16 samples of a warp, groups for a compute unit.
SHAPES = ((4, 2, 2), (4, 2, 4), (8, 2, 1), (8, 2, 2), (4, 1, 4), (8, 1, 2), (8, 1, 4))


@dataclass(frozen=True)
class FusedMma:
    """Layers whose outputs stay in registers (``fused_mma.cl``).

    Config: ``warps`` of a group; ``rows``, blocks of 16 samples of a warp; ``groups``
    for each compute unit, which take tiles of samples in turn.
    """

    name: str = "fused_mma"
    reach: Reach = "run"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse devices without such matrix units, and wide layers."""
        refusal = refuse_unless_dense_layers(span, device)
        refusal = refusal or refuse_without_units(span, device)
        if refusal is not None:
            return refusal
        wide, largest = _wide(span), _packing(span).size
        if wide > WIDEST:
            return f"it takes layers of at most {WIDEST} neurons, and here are {wide}"
        if largest > LOCAL_BYTES:
            return (
                f"it keeps a layer's weights in {LOCAL_BYTES} bytes of local memory, "
                f"and here are {largest}"
            )
        return None

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Warps, samples and groups."""
        return tuple(
            {"warps": warps, "rows": rows, "groups": groups}
            for warps, rows, groups in SHAPES
        )

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count inputs, outputs and parameters once."""
        packing, planes = _packing(span), PLANES[span.precision]
        return Cost(
            flops=span_flops(span),
            bytes=span_bytes(span),
            launches=1,
            scratch=len(chain(span)) * packing.size,
            compute_units=min(device.compute_units, _tiles(span, config)),
            efficiency=RATES[planes],
        )

    def launches(
        self, span: Span, config: Config, device: Device
    ) -> tuple[Launch, ...]:
        """Return the packing of every layer, and the one launch."""
        layers, packing = chain(span), _packing(span)
        x, y = layers[0].apply.x, layers[-1].act.y
        key = f"fused_mma {[layer.apply.weights.offset for layer in layers]} in "
        key += f"{packing.planes} halves"
        weights = Packed(key, len(layers) * packing.size)
        scales = Packed(f"{key}, scales", len(layers) * packing.scales_size)
        packs = []
        for number, layer in enumerate(layers):
            storage = layer.apply.storage
            assert isinstance(storage, RowStorage)
            own = Packing(
                layer.n_out, layer.n_in, packing.planes, packing.rows, packing.terms
            )
            packs.append(own.launch(
                Parameters(), layer.apply.weights.offset, storage.stride, weights,
                scales, second=True, source_padded=1, when="parameters", number=number,
            ))
        group = WARP * config["warps"]
        groups = min(_tiles(span, config), device.compute_units * config["groups"])
        defines = {
            **chain_defines(span), "PLANES": packing.planes, "WIDE": packing.rows,
            "WARPS": config["warps"], "ROWS_M": config["rows"],
            "RESIDENT": int(weights.size <= LOCAL_BYTES), "N_IN": x.width,
            "X_PADDED": padded(x), "Y_PADDED": padded(y),
        }
        return (
            *packs,
            Launch(
                "fused_mma.cl", "fused_mma", defines, (groups * group,), (group,),
                (x, x.stride, weights, scales, Parameters(), y, y.stride, span.batch),
            ),
        )


def _wide(span: Span) -> int:
    """Return what every layer's inputs and neurons are filled up to."""
    most = max(max(layer.n_in, layer.n_out) for layer in chain(span))
    return round_up(most, STEP)


def _packing(span: Span) -> Packing:
    """Return that of a layer filled up."""
    wide = _wide(span)
    return Packing(wide, wide, PLANES[span.precision], wide, wide)


def _tiles(span: Span, config: Config) -> int:
    return -(-span.batch // (BLOCK * config["warps"] * config["rows"]))
