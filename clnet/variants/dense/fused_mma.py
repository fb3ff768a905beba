"""fused_mma: a chain of narrow dense layers in one launch, on matrix units."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from clnet.ir.ops import Nonlinearity, Span
from clnet.nn.activations import activation
from clnet.nn.storage.layout import round_up
from clnet.opencl.device import Device
from clnet.opencl.launch import Launch, Packed, Parameters
from clnet.variants.base import (
    Config,
    Cost,
    Reach,
    number,
    padded,
    refuse_unless_dense_layers,
    span_bytes,
    span_flops,
)
from clnet.variants.dense.chain import chain, chain_defines, functions_defines, table
from clnet.variants.dense.mma import RATES, refuse_without_units
from clnet.variants.packing import BLOCK, BLOCK_BYTES, PACKERS, SPLITS, WARP, WORDS

REGISTERS = 16  # blocks of terms, of all rows and planes, that a lane can hold
CHUNK_BYTES = 8 << 10  # of weights, where not all stay in local memory
LEAST_STAGES = 3  # chunks there
MOST_FUNCTIONS = 4  # that a kernel is built with
STEP_BYTES = 8  # of a layer: its gain, and the limit of scales
# Warps of a group, blocks of 16 samples of a warp, groups for a compute unit, layers by
# which samples are asked for ahead; from the first to the last on an H200.
LARGE = ((4, 2, 2, 1), (4, 2, 2, 2), (4, 2, 4, 0), (8, 1, 1, 1), (4, 1, 2, 1))
SMALL = ((4, 1, 2, 1), (2, 2, 2, 1), (8, 1, 1, 1), (2, 1, 4, 1))
SMALL_BATCH = 128  # samples a compute unit
KEYS = ("warps", "rows", "groups", "ahead")


@dataclass(frozen=True)
class FusedMma:
    """Layers whose outputs stay in registers (``fused_mma.cl``).

    Config: ``warps`` of a group; ``rows``, blocks of 16 samples of a warp; ``groups``
    for each compute unit, which take tiles of samples in turn; ``ahead``: so many
    layers before their turn samples are asked for.
    """

    name: str = "fused_mma"
    reach: Reach = "run"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse devices without such matrix units, and wide layers."""
        refusal = refuse_unless_dense_layers(span, device)
        refusal = refusal or refuse_without_units(span, device)
        if refusal is not None:
            return refusal
        shape, functions = _shape(span, device), len(set(_functions_of(span)))
        if functions > MOST_FUNCTIONS:
            return f"it is built with {MOST_FUNCTIONS} functions, not with {functions}"
        widest, most = max(shape.first, shape.inner), REGISTERS // shape.planes
        if 0 < shape.stages < LEAST_STAGES:
            return (
                f"it keeps biases and {LEAST_STAGES * CHUNK_BYTES} bytes of weights in "
                f"{shape.local} bytes of local memory, and the biases have "
                f"{shape.local - shape.room}"
            )
        if widest > most:
            return (
                f"it keeps at most {most * BLOCK} inputs or hidden neurons in "
                f"registers, and here are {widest * BLOCK}"
            )
        return None

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Many samples a group where there are many, else many groups."""
        shape = _shape(span, device)
        held = max(shape.first, shape.inner) * shape.planes
        small = span.batch <= SMALL_BATCH * device.compute_units
        configs = SMALL if small else LARGE
        return tuple(
            dict(zip(KEYS, config, strict=True)) for config in configs
            if config[1] * held <= (REGISTERS if config[3] < 2 else REGISTERS // 2)
        )

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count inputs, outputs and parameters once."""
        shape = _shape(span, device)
        return Cost(
            flops=span_flops(span),
            bytes=span_bytes(span),
            launches=1,
            scratch=sum(packed.size for packed in _packed(span, device)),
            compute_units=min(device.compute_units, _tiles(span, config)),
            efficiency=RATES[shape.planes],
        )

    def launches(
        self, span: Span, config: Config, device: Device
    ) -> tuple[Launch, ...]:
        """Return the packing of all layers, and the one launch."""
        layers, shape, packed = chain(span), _shape(span, device), _packed(span, device)
        x, y = layers[0].apply.x, layers[-1].act.y
        shared = {**chain_defines(span), **shape.defines, "N_IN": x.width}
        steepness = [layer.act.nonlinearity.steepness[0] for layer in layers]
        group = WARP * config["warps"]
        groups = min(_tiles(span, config), device.compute_units * config["groups"])
        return (
            Launch(
                "dense/fused_mma_pack.cl", "fused_pack",
                {
                    **shared, "PACKERS": PACKERS,
                    "STEEPNESS": "{" + ", ".join(number(s, span) for s in steepness)
                    + "}",
                },
                (PACKERS,), (PACKERS,), (Parameters(), *packed), when="parameters",
            ),
            Launch(
                "dense/fused_mma.cl", "fused_mma",
                {
                    **shared, **_functions(span), "WARPS": config["warps"],
                    "ROWS_M": config["rows"], "AHEAD": config["ahead"],
                    "STAGES": shape.stages, "N_LAST": y.width,
                    "X_PADDED": padded(x), "Y_PADDED": padded(y),
                },
                (groups * group,), (group,),
                (x, x.stride, *packed, y, y.stride, span.batch),
            ),
        )


@dataclass(frozen=True)
class _Shape:
    """A chain in blocks of 16 terms or neurons (``fused_mma.h``).

    Attributes
    ----------
    first, last : int
        Of the first layer's terms, of the last layer's neurons.
    inner : int
        Of the widest layer between; 0 where there is one layer only.
    layers : int
        How many.
    planes : int
        Halves a value.
    local : int
        Bytes of local memory.
    """

    first: int
    inner: int
    last: int
    layers: int
    planes: int
    local: int

    @property
    def sizes(self) -> list[int]:
        """Blocks of each layer's weights."""
        widths = [self.first, *[self.inner] * (self.layers - 1), self.last]
        return [a * b for a, b in pairwise(widths)]

    @property
    def room(self) -> int:
        """Bytes of local memory that biases, factors and steps of scales leave."""
        each = 4 * self.wide + STEP_BYTES
        return self.local - self.layers * each - 4 * BLOCK * self.last - WORDS

    @property
    def stages(self) -> int:
        """Chunks in local memory, where not all weights fit there; else 0."""
        fits = sum(self.sizes) * self.planes * BLOCK_BYTES <= self.room
        return 0 if fits else max(1, self.room // CHUNK_BYTES)

    @property
    def chunk(self) -> int:
        """Blocks of a chunk."""
        return CHUNK_BYTES // BLOCK_BYTES // self.planes if self.stages else 1

    @property
    def size(self) -> int:
        """Bytes of all packed weights."""
        blocks = sum(round_up(size, self.chunk) for size in self.sizes)
        return blocks * self.planes * BLOCK_BYTES

    @property
    def wide(self) -> int:
        """Biases of each layer."""
        return BLOCK * max(self.inner, self.last)

    @property
    def defines(self) -> dict[str, int | str]:
        """Return the macros of ``fused_mma.h``, but for those of the chain."""
        return {
            "FIRST": self.first, "HIDDEN": self.inner, "LAST": self.last,
            "CHUNK": self.chunk, "SPLITS": self.planes,
        }


def _shape(span: Span, device: Device) -> _Shape:
    layers = chain(span)
    inner = max((layer.n_out for layer in layers[:-1]), default=0)
    return _Shape(
        -(-layers[0].n_in // BLOCK), -(-inner // BLOCK), -(-layers[-1].n_out // BLOCK),
        len(layers), SPLITS[span.precision], device.declared_local_memory,
    )


def _packed(span: Span, device: Device) -> tuple[Packed, Packed, Packed, Packed]:
    """Return weights, biases, factors of the last layer's rows, and steps of scales."""
    layers, shape = chain(span), _shape(span, device)
    key = f"fused_mma {[layer.apply.weights.offset for layer in layers]} in "
    key += f"{shape.planes} halves"
    return (
        Packed(key, shape.size),
        Packed(f"{key}, biases", 4 * len(layers) * shape.wide),
        Packed(f"{key}, factors", 4 * BLOCK * shape.last),
        Packed(f"{key}, steps", STEP_BYTES * len(layers)),
    )


def _tiles(span: Span, config: Config) -> int:
    return -(-span.batch // (BLOCK * config["warps"] * config["rows"]))


def _functions_of(span: Span) -> list[Nonlinearity]:
    """Return what each layer applies to sums; steepness is in the packed weights."""
    return [replace(layer.act.nonlinearity, steepness=(1.0,)) for layer in chain(span)]


def _functions(span: Span) -> dict[str, int | str]:
    """Return the macros of ``fused_mma.cl`` that say what is applied to sums."""
    each = _functions_of(span)
    functions = tuple(dict.fromkeys(each))
    codes = [functions.index(function) for function in each]
    inner = set(codes[:-1])

    def code(name: str) -> int:
        plain = Nonlinearity((name,))
        return functions.index(plain) if plain in functions else -1

    return {
        **functions_defines(span, functions),
        "FUNCTION": table(codes),
        "INNER": codes[0] if len(inner) == 1 else "function_of[layer]",
        "OUTER": codes[-1],
        "RELU": code("relu"),
        "IDENTITY": code("identity"),
        "BOUNDED": table(
            int(activation(function.names[0]).bounded) for function in each
        ),
    }
