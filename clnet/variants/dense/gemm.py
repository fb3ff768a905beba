"""gemm: layers of a batch, by tiles in local memory and in registers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clnet.opencl.launch import Launch, Launches
from clnet.variants.base import (
    Config,
    Reach,
    contraction,
    dense_layer,
    refuse_long_rows,
    refuse_unless_dense_layers,
)
from clnet.variants.cost import Cost, span_cost
from clnet.variants.macros import layer_defines, padded, weights_and_bias

if TYPE_CHECKING:
    from clnet.ir.program import Span
    from clnet.opencl.device import Device

KEYS = ("tile_m", "tile_n", "tile_k", "item_m", "item_n", "teams", "lanes", "depth")
# From large to small: large tiles read less, small ones give more groups.
SHAPES = (
    (128, 128, 8, 8, 8, 1, 4, 8),
    (128, 128, 16, 16, 8, 2, 4, 8),
    (128, 64, 16, 8, 8, 2, 2, 8),
    (128, 64, 16, 8, 8, 2, 4, 8),
    (128, 64, 16, 16, 8, 4, 4, 8),
    (128, 64, 16, 8, 4, 1, 8, 4),
    (64, 128, 16, 8, 8, 2, 4, 8),
    (64, 64, 16, 8, 8, 4, 4, 8),
    (64, 64, 16, 4, 4, 1, 8, 4),
    (32, 128, 16, 4, 8, 2, 8, 4),
    (32, 64, 32, 4, 4, 2, 8, 4),
    (32, 32, 32, 4, 4, 4, 8, 4),
    (16, 128, 32, 4, 4, 2, 8, 4),
    (16, 64, 32, 4, 4, 4, 8, 4),
    (64, 16, 32, 4, 4, 4, 4, 8),
    (16, 32, 64, 4, 4, 8, 8, 4),
    (32, 16, 64, 4, 4, 8, 4, 8),
    (16, 16, 64, 4, 4, 16, 4, 4),
    (8, 128, 32, 4, 4, 4, 8, 2),
    (8, 64, 32, 4, 4, 8, 8, 2),
    (8, 16, 128, 4, 4, 32, 4, 2),
    (8, 64, 16, 4, 4, 1, 8, 2),
)
CONFIGS = tuple(dict(zip(KEYS, shape, strict=True)) for shape in SHAPES)
MOST_CONFIGS = 6  # to measure

# The model that ranks them.
SHARES = {128: 1.0, 64: 1.0, 32: 0.8, 16: 0.7}  # of the rate, by a work-item's sums
SUMMED = 128  # multiply-adds of a unit as long as a work-item's sum of a team's
STEP_LOADS = 3  # as long as a step's copy to local memory: a load, a store, a barrier
PARTIAL_SHARE = 0.35  # of memory's rate: partial sums are written, then read far apart


@dataclass(frozen=True)
class GemmProduct:
    """The product c [m, n] of k terms, as ``gemm.h`` computes it."""

    m: int  # Rows and columns of c, and terms of a sum
    n: int
    k: int
    item: int  # Bytes of a number

    def groups(self, config: Config) -> int:
        """Return the number of tiles of c."""
        return -(-self.m // config["tile_m"]) * -(-self.n // config["tile_n"])

    def local_bytes(self, config: Config) -> int:
        """Return the bytes of local memory: two buffers, or the exchange of slices."""
        width = config["tile_m"] + config["tile_n"] + 8
        exchanged = items(config) * config["item_n"]
        return max(2 * config["tile_k"] * width, exchanged) * self.item

    def fits(self, config: Config, device: Device) -> bool:
        """Return whether groups of a config fit a device."""
        return (
            self.local_bytes(config) <= device.local_memory
            and items(config) <= device.largest_group
        )

    def refuse(self, device: Device) -> str | None:
        """Return why even the smallest tile does not fit a device, or None."""
        if any(self.fits(config, device) for config in CONFIGS):
            return None
        least = min(CONFIGS, key=self.local_bytes)
        return (
            f"it needs {self.local_bytes(least)} bytes of local memory and groups of "
            f"{items(least)}, and {device.name} has {device.local_memory} and "
            f"{device.largest_group}"
        )

    def seconds(self, config: Config, device: Device) -> float:
        """Return the seconds by the model, without the first launch."""
        rates, slices = device.rates, config.get("parts", 1)
        waves = -(-self.groups(config) * slices // device.compute_units)
        steps = -(-self.k // (slices * config["tile_k"]))
        each = float(config["tile_m"] * config["tile_n"] * config["tile_k"])
        each /= SHARES[config["item_m"] * config["item_n"]]
        added = SUMMED * items(config) * config["item_m"] if config["teams"] > 1 else 0
        unit = rates.flops / device.compute_units
        busy = waves * 2 * (steps * each + added) / unit
        busy = max(busy, steps * STEP_LOADS * rates.latency)
        if slices == 1:
            return busy
        moved = 2 * slices * self.m * self.n * self.item
        return busy + rates.launch + moved / (PARTIAL_SHARE * rates.memory)

    def space(
        self, device: Device, parts: tuple[int, ...] | None = None
    ) -> tuple[Config, ...]:
        """Return the configs to measure, the best by the model first."""
        configs: list[Config] = [c for c in CONFIGS if self.fits(c, device)]
        if parts is not None:
            configs = [{**c, "parts": p} for c in configs for p in parts]
        # Of equals, the larger tile stays first.
        configs.sort(key=lambda config: self.seconds(config, device))
        return tuple(configs[: MOST_CONFIGS if device.simd_width > 1 else 1])

    def cost(
        self, span: Span, config: Config, device: Device, *, launches: int = 1,
        scratch: int = 0,
    ) -> Cost:
        """Count operands once per tile that reads them, and scratch twice."""
        again = self.k * self.m * (-(-self.n // config["tile_n"]) - 1)
        again += self.k * self.n * (-(-self.m // config["tile_m"]) - 1)
        groups = self.groups(config) * config.get("parts", 1)
        moved = self.item * again + 2 * scratch
        busy = self.seconds(config, device) if device.simd_width > 1 else 0.0
        return span_cost(
            span, device, moved, groups, launches, scratch, busy=busy
        )

    def grid(self, config: Config) -> tuple[int, int]:
        """Return the global size: work-items along m, groups along n."""
        down = -(-self.m // config["tile_m"])
        return down * items(config), -(-self.n // config["tile_n"])


def items(config: Config) -> int:
    """Return the work-items of a group."""
    team = config["tile_m"] // config["item_m"] * (config["tile_n"] // config["item_n"])
    return team * config["teams"]


def tile_defines(config: Config, device: Device) -> dict[str, int | str]:
    """Return the macros of ``gemm.h`` of a config and a device."""
    unroll = int(device.simd_width > 1)
    return {"UNROLL": unroll, **{key.upper(): config[key] for key in KEYS}}


@dataclass(frozen=True)
class Gemm:
    """One dense layer of a batch (``gemm.cl``).

    Config: ``tile_m``, ``tile_n``, samples and neurons of a group; ``tile_k``, inputs
    of a step; ``item_m``, ``item_n``, samples and neurons of a work-item; ``teams``,
    slices of k; ``lanes``, ``depth``, width and height of blocks of neighbouring
    work-items.
    """

    name: str = "gemm"
    reach: Reach = "layer"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse also devices that do not fit even the smallest tile."""
        refusal = refuse_unless_dense_layers(span, device, stores_z=True)
        refusal = refusal or refuse_long_rows(span)
        return refusal or product_of(span).refuse(device)

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Return tiles that fit the device, the best by a model first."""
        return product_of(span).space(device)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count A once per tile of samples, and x once per tile of neurons."""
        return product_of(span).cost(span, config, device)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the layer's one launch."""
        layer = dense_layer(span)
        x, y, sums = layer.apply.x, layer.act.y, layer.apply.z
        keeps = sums in span.outputs
        pre_activations = sums if keeps else y
        down, across = product_of(span).grid(config)
        return (
            Launch(
                "dense/gemm.cl", "gemm",
                {
                    **layer_defines(span, layer), **tile_defines(config, device),
                    "X_PADDED": padded(x), "Y_PADDED": padded(y),
                    "STORES_Z": int(keeps),
                },
                (down, across), (items(config), 1),
                (*weights_and_bias(layer), x, x.stride, y, y.stride, pre_activations,
                 pre_activations.stride, layer.n_in, layer.n_out, span.batch),
            ),
        )


def product_of(span: Span) -> GemmProduct:
    """Return the contraction of a span."""
    return GemmProduct(*contraction(span).sizes(span.batch), span.item_size)
