"""fused_mma: a chain of narrow dense layers in one launch, on matrix units."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from clnet.ir.activation import Nonlinearity
from clnet.nn.activations import activation
from clnet.nn.storage.layout import round_up
from clnet.opencl.launch import PARAMETERS, Launch, Launches, Packed
from clnet.opencl.program import WARP
from clnet.variants.base import Config, Reach, refuse_unless_dense_layers
from clnet.variants.cost import Cost, span_cost
from clnet.variants.dense.chain import chain, chain_defines, functions_defines, table
from clnet.variants.dense.mma import PRODUCTS, refuse_without_matrix_units
from clnet.variants.macros import number, padded
from clnet.variants.packing import (
    BLOCK,
    BLOCK_BYTES,
    PACKERS,
    SPLITS,
    UNIT_BYTES,
)

if TYPE_CHECKING:
    from clnet.ir.program import LayerOps, Span
    from clnet.opencl.device import Device

REGISTERS = 16  # blocks of terms, of all rows and splits, in a lane's registers
CHUNK_BYTES = 8 << 10  # of weights, a pipeline stage, if not all fit local memory
MIN_STAGES = 3  # of that pipeline
MAX_FUNCTIONS = 4  # in one kernel
STEP_BYTES = 8  # of a layer: its gain, and the limit of scales
# Warps of a group, blocks of 16 samples of a warp, groups for a compute unit, layers
# before the end at which samples are prefetched; the usually best first.
LARGE = ((4, 2, 2, 1), (4, 2, 2, 2), (4, 2, 4, 0), (8, 1, 1, 1), (4, 1, 2, 1))
SMALL = ((4, 1, 2, 1), (2, 2, 2, 1), (8, 1, 1, 1), (2, 1, 4, 1))
SHARE = 0.5  # of the matrix units' rate beside activations
SMALL_BATCH = 128  # samples a compute unit
KEYS = ("warps", "rows", "groups", "ahead")


@dataclass(frozen=True)
class FusedMma:
    """Layers whose outputs stay in registers (``fused_mma.cl``).

    Config: ``warps`` of a group; ``rows``, blocks of 16 samples of a warp; ``groups``,
    persistent, for each compute unit; ``ahead``, layers before the end at which the
    next samples are prefetched.
    """

    name: str = "fused_mma"
    reach: Reach = "run"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse devices without matrix units, and wide layers."""
        refusal = refuse_unless_dense_layers(span, device)
        refusal = refusal or refuse_without_matrix_units(span, device)
        if refusal is not None:
            return refusal
        shape, functions = _shape(span, device), len(set(_functions_of(span)))
        if functions > MAX_FUNCTIONS:
            return f"it applies at most {MAX_FUNCTIONS} activations, not {functions}"
        for layer in chain(span)[:-1]:
            row = activation(layer.act.nonlinearity.names[0])
            if row.excess > 1:
                return f"its hidden layers need |f(v)| <= |v| + 1, unlike {row.name}"
        widest, most = max(shape.first, shape.hidden), REGISTERS // shape.splits
        if 0 < shape.stages < MIN_STAGES:
            return (
                f"it needs {MIN_STAGES * CHUNK_BYTES} bytes of local memory for "
                f"weights beside {shape.local_bytes - shape.free_bytes} for biases, "
                f"and there are {shape.local_bytes}"
            )
        if widest > most:
            return (
                f"its registers hold at most {most * BLOCK} inputs or hidden neurons, "
                f"and here are {widest * BLOCK}"
            )
        return None

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Large tiles for large batches, else many groups."""
        shape = _shape(span, device)
        held = max(shape.first, shape.hidden) * shape.splits
        small = span.batch <= SMALL_BATCH * device.compute_units
        configs = SMALL if small else LARGE
        return tuple(
            dict(zip(KEYS, config, strict=True)) for config in configs
            if config[1] * held <= (REGISTERS if config[3] < 2 else REGISTERS // 2)
        )

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count inputs, outputs and parameters once."""
        shape = _shape(span, device)
        scratch = sum(packed.size for packed in _packed(span, device))
        return span_cost(
            span, device, 0, _tiles(span, config), scratch=scratch, efficiency=1.0,
            unit="matrix", work=PRODUCTS[shape.splits] / SHARE,
        )

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the packing of all layers, and the one launch."""
        layers, shape, packed = chain(span), _shape(span, device), _packed(span, device)
        x, y = layers[0].apply.x, layers[-1].act.y
        shared = {
            **chain_defines(span), **shape.defines, "CHUNK": shape.chunk,
            "N_IN": x.width,
        }
        steepness = [layer.act.nonlinearity.steepness[0] for layer in layers]
        group = WARP * config["warps"]
        groups = min(_tiles(span, config), device.compute_units * config["groups"])
        return (
            Launch.of_groups(
                "dense/fused_mma_pack.cl", "fused_pack",
                {
                    **shared, "PACKERS": PACKERS,
                    "STEEPNESS": "{" + ", ".join(number(s, span) for s in steepness) +
                    "}",
                },
                1, PACKERS,
                PARAMETERS, *packed, when="parameters",
            ),
            Launch.of_groups(
                "dense/fused_mma.cl", "fused_mma",
                {
                    **shared, **_functions(span), "WARPS": config["warps"],
                    "ROWS_M": config["rows"], "PREFETCH_LAYERS": config["ahead"],
                    "STAGES": shape.stages, "N_LAST": y.width, "X_PADDED": padded(x),
                    "Y_PADDED": padded(y),
                },
                groups, group,
                x, x.stride, *packed, y, y.stride, span.batch,
            ),
        )


@dataclass(frozen=True)
class NarrowChain:
    """A chain in blocks of 16 terms or neurons (``fused_mma.h``, ``fused_step.h``)."""

    # Blocks of the first layer's terms; of the widest hidden layer, 0 of one layer; of
    # the last layer's neurons
    first: int
    hidden: int
    last: int
    layers: int  # Number of layers
    splits: int  # Halves a value

    @property
    def biases(self) -> int:
        """Biases of each layer."""
        return BLOCK * max(self.hidden, self.last)

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Blocks of each layer's terms and neurons."""
        widths = [self.first, *[self.hidden] * (self.layers - 1), self.last]
        return list(pairwise(widths))

    @property
    def weights(self) -> list[int]:
        """Blocks of each layer's weights."""
        return [terms * neurons for terms, neurons in self.sizes]

    @property
    def defines(self) -> dict[str, int | str]:
        """The macros of the blocks."""
        return {
            "FIRST": self.first, "HIDDEN": self.hidden, "LAST": self.last,
            "SPLITS": self.splits,
        }


@dataclass(frozen=True)
class _PackedChain(NarrowChain):
    """A chain whose weights local memory holds, or a part of them at a time."""

    local_bytes: int  # Bytes of local memory

    @property
    def free_bytes(self) -> int:
        """Bytes of local memory beside biases, factors and steps of scales."""
        each = 4 * self.biases + STEP_BYTES
        factors = 4 * BLOCK * self.last
        return self.local_bytes - self.layers * each - factors - UNIT_BYTES

    @property
    def stages(self) -> int:
        """Pipeline stages in local memory; 0 if all weights fit."""
        fits = sum(self.weights) * self.splits * BLOCK_BYTES <= self.free_bytes
        return 0 if fits else max(1, self.free_bytes // CHUNK_BYTES)

    @property
    def chunk(self) -> int:
        """Blocks of a chunk."""
        return CHUNK_BYTES // BLOCK_BYTES // self.splits if self.stages else 1

    @property
    def size(self) -> int:
        """Bytes of all packed weights."""
        blocks = sum(round_up(size, self.chunk) for size in self.weights)
        return blocks * self.splits * BLOCK_BYTES


def narrow_blocks(
    layers: Sequence[LayerOps], span: Span
) -> tuple[int, int, int, int, int]:
    """Return the fields of `NarrowChain`."""
    hidden = max((layer.n_out for layer in layers[:-1]), default=0)
    widths = layers[0].n_in, hidden, layers[-1].n_out
    first, widest, last = (-(-width // BLOCK) for width in widths)
    return first, widest, last, len(layers), SPLITS[span.precision]


def _shape(span: Span, device: Device) -> _PackedChain:
    return _PackedChain(
        *narrow_blocks(chain(span), span), device.declared_local_memory
    )


def _packed(span: Span, device: Device) -> tuple[Packed, Packed, Packed, Packed]:
    """Return weights, biases, factors of rows, and steps of scales."""
    layers, shape = chain(span), _shape(span, device)
    key = f"fused_mma {[layer.apply.weights.offset for layer in layers]} in "
    key += f"{shape.splits} splits"
    return (
        Packed(key, shape.size),
        Packed(f"{key}, biases", 4 * len(layers) * shape.biases),
        Packed(f"{key}, factors", 4 * len(layers) * shape.biases),
        Packed(f"{key}, steps", STEP_BYTES * len(layers)),
    )


def _tiles(span: Span, config: Config) -> int:
    return -(-span.batch // (BLOCK * config["warps"] * config["rows"]))


def _functions_of(span: Span) -> list[Nonlinearity]:
    """Return the layers' activations; steepness is in the packed weights."""
    return [replace(layer.act.nonlinearity, steepness=(1.0,)) for layer in chain(span)]


def _functions(span: Span) -> dict[str, int | str]:
    """Return the activation macros of ``fused_mma.cl``."""
    each = _functions_of(span)
    functions = tuple(dict.fromkeys(each))
    codes = [functions.index(function) for function in each]
    hidden_codes = set(codes[:-1])

    def code(name: str) -> int:
        plain = Nonlinearity((name,))
        return functions.index(plain) if plain in functions else -1

    return {
        **functions_defines(span, functions),
        "FUNCTION": table(codes),
        "INNER": codes[0] if len(hidden_codes) == 1 else "function_of[layer]",
        "OUTER": codes[-1],
        "RELU": code("relu"),
        "IDENTITY": code("identity"),
        "BOUNDED": table(
            int(activation(function.names[0]).bounded) for function in each
        ),
    }
