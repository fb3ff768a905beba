"""gemm: layers of a batch, by tiles in local memory and tiles in registers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from clnet.device import Device
from clnet.ops import Span
from clnet.variants.base import (
    Config,
    Cost,
    Launch,
    Reach,
    dense_layer,
    gpu_shape,
    item_size,
    layer_defines,
    padded,
    refuse_unless_dense_layers,
    span_bytes,
    span_flops,
    weights_and_bias,
)

KEYS = ("tile_m", "tile_n", "tile_k", "item_m", "item_n")
# From large to small: large tiles read less, small ones give more groups.
SHAPES = (
    (128, 128, 16, 8, 8),
    (128, 64, 16, 8, 4),
    (64, 128, 16, 4, 8),
    (64, 64, 16, 4, 4),
    (32, 128, 16, 4, 8),
    (32, 64, 32, 4, 4),
    (32, 32, 32, 4, 4),
    (16, 128, 32, 4, 4),
    (16, 64, 32, 4, 4),
    (16, 32, 32, 4, 4),
    (8, 128, 32, 4, 4),
    (8, 64, 32, 4, 4),
    (8, 64, 16, 4, 4),
)
CONFIGS = tuple(dict(zip(KEYS, shape, strict=True)) for shape in SHAPES)


@dataclass(frozen=True)
class Gemm:
    """One dense layer of a batch (``gemm.cl``).

    Config: ``tile_m``, ``tile_n``, samples and neurons of a group; ``tile_k``, inputs
    of a slice; ``item_m``, ``item_n``, samples and neurons of a work-item.
    """

    name: str = "gemm"
    reach: Reach = "layer"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse also devices on which not even the smallest tile fits."""
        refusal = refuse_unless_dense_layers(span, device)
        if refusal is None and not any(_fits(c, span, device) for c in CONFIGS):
            least = min(CONFIGS, key=lambda config: _local_bytes(config, span))
            refusal = (
                f"it needs {_local_bytes(least, span)} bytes of local memory and "
                f"groups of {_items(least)}, and {device.name} has "
                f"{device.local_memory} and {device.largest_group}"
            )
        return refusal

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Tiles that fit the device, and compute at most twice what they must."""

        def covered(config: Config) -> int:
            return _groups(span, config) * config["tile_m"] * config["tile_n"]

        def idle(config: Config) -> tuple[int, bool]:
            units = max(0, device.compute_units - _groups(span, config))
            return units, covered(config) > 1.25 * least

        fitting = [config for config in CONFIGS if _fits(config, span, device)]
        least = min(map(covered, fitting))
        found = [config for config in fitting if covered(config) <= 2 * least]
        found.sort(key=idle)  # of equals, the larger tile stays first
        return tuple(found) if device.simd_width > 1 else tuple(found[:1])

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count A for every tile of samples, and x for every tile of neurons."""
        layer = dense_layer(span)
        down = -(-span.batch // config["tile_m"])
        across = -(-layer.n_out // config["tile_n"])
        again = layer.apply.weights.size * (down - 1)
        again += span.batch * layer.n_in * (across - 1)
        return Cost(
            flops=span_flops(span),
            bytes=span_bytes(span) + item_size(span) * again,
            launches=1,
            scratch=0,
            compute_units=min(device.compute_units, down * across),
            efficiency=gpu_shape(device),
        )

    def launches(
        self, span: Span, config: Config, device: Device
    ) -> tuple[Launch, ...]:
        """Return the layer's one launch."""
        layer = dense_layer(span)
        x, y = layer.apply.x, layer.act.y
        items = _items(config)
        defines = {
            **layer_defines(span, layer),
            **{key.upper(): config[key] for key in KEYS},
            "X_PADDED": padded(x),
            "Y_PADDED": padded(y),
        }
        down = -(-span.batch // config["tile_m"])
        across = -(-layer.n_out // config["tile_n"])
        return (
            Launch(
                "gemm.cl", "gemm", defines, (down * items, across), (items, 1),
                (*weights_and_bias(layer), x, x.stride, y, y.stride, layer.n_in,
                 layer.n_out, span.batch),
            ),
        )


def _groups(span: Span, config: Config) -> int:
    """Return how many tiles cover the output."""
    down = -(-span.batch // config["tile_m"])
    return down * -(-dense_layer(span).n_out // config["tile_n"])


def _items(config: Config) -> int:
    """Return the work-items of a group."""
    return (
        config["tile_m"] // config["item_m"] * (config["tile_n"] // config["item_n"])
    )


def _local_bytes(config: Config, span: Span) -> int:
    """Return the bytes of two slices of x and A, rows 4 values longer than the tile."""
    width = config["tile_m"] + config["tile_n"] + 8
    return 2 * config["tile_k"] * width * item_size(span)


def _fits(config: Config, span: Span, device: Device) -> bool:
    return (
        _local_bytes(config, span) <= device.local_memory
        and _items(config) <= device.largest_group
    )
