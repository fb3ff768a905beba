"""fused_step: whole steps of training of narrow layers on matrix units."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, log2

from clnet.ir.ops import Nonlinearity, Span
from clnet.ir.training_ops import RECORD
from clnet.nn.activations import activation
from clnet.nn.optimisers import Sarprop
from clnet.nn.random import half_bits
from clnet.nn.storage.dense import DenseStorage
from clnet.nn.storage.layout import round_up
from clnet.opencl.device import Device
from clnet.opencl.launch import (
    Argument,
    Gradients,
    Launch,
    Packed,
    Parameters,
    Scalar,
    Scratch,
    State,
)
from clnet.variants.base import Config, Cost, Reach, number, padded, real, span_flops
from clnet.variants.dense.chain import table
from clnet.variants.dense.mma import refuse_without_units
from clnet.variants.packing import BLOCK, BLOCK_BYTES, PACKERS, SPLITS, WARP
from clnet.variants.training.optimisers import live_table, rule_defines
from clnet.variants.training.whole_step import (
    APART,
    KEY,
    WholeStep,
    function_of,
    functions_of,
    refuse_unless_whole_step,
    step_defines,
    whole_step,
)

REGISTERS = 16  # blocks of a layer, of all rows and planes, that a lane can hold
LEAST_STAGES = 2  # chunks in local memory
MOST_STAGES = 4
SQUARE = 4  # blocks beside and below one another that a warp multiplies over samples
SLOPE_WARPS = 4  # of a group that does
SLOPE_GROUPS = 2  # of them, for each compute unit
ADDERS = 256  # work-items of a group that adds parts
SHARED_BY = 8  # of them that share an element
LARGEST_TILE = 256  # samples
RATES = {2: 1.15, 1: 3.0}  # times what float32 arithmetic does, by planes, on an H200
WAITS = 3_200_000  # floating-point operations of a unit in the time that a layer's
# latencies take there, however few samples there are
MOST_DERIVATIVE = 2.0  # above any function's derivative by what it is applied to
SPARE = 1280  # bytes of local memory for small things, and the system's
CONFIGS: tuple[Config, ...] = tuple(  # from the first to the last on an H200
    dict(zip(("warps", "rows", "groups", "inside", "chunk"), config, strict=True))
    for config in (
        (8, 1, 1, 1, 8), (16, 1, 1, 0, 32), (8, 1, 2, 0, 32), (4, 1, 4, 0, 8),
        (4, 2, 2, 0, 8),
    )
)


@dataclass(frozen=True)
class FusedStep:
    """Steps whose samples stay in registers, both ways (``fused_step.cl``).

    Config: ``warps`` of a group; ``rows``, blocks of 16 samples of a warp; ``groups``
    for each compute unit, which take tiles of samples in turn; ``inside``, 1 where
    those also add up the weights' gradients, in registers; ``chunk``, KB of weights
    that are copied to local memory at once, where they do not stay there.
    """

    name: str = "fused_step"
    reach: Reach = "program"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse other programs, wide layers, and devices without matrix units."""
        if span.dtype != "float32":
            return "it computes in float32 only"
        refusal = refuse_unless_whole_step(span, device)
        refusal = refusal or refuse_without_units(span, device)
        if refusal is not None:
            return refusal
        step = _step(span)
        if not step.backward:
            return "it computes gradients, and here are losses alone"
        if step.update is not None:
            if step.update.norm is not None:
                return (
                    "it never has a whole gradient, and here one is clipped by its norm"
                )
            if isinstance(step.update.optimiser, Sarprop):
                return "it does not know the epoch's error before it updates"
        functions = [layer.act.nonlinearity for layer in step.layers]
        if not all(function.uniform for function in functions):
            return "it applies one activation a layer, and here neurons differ"
        if len(set(functions[:-1])) > 1:
            return "it applies one activation to all layers but the last one"
        if len(set(step.loss.halved)) > 1:
            return "it halves all outputs' errors or none, and here they differ"
        shape = _shape(span)
        if shape.widest * shape.planes > REGISTERS:
            most = REGISTERS // shape.planes * BLOCK
            return (
                f"it keeps at most {most} values of a layer in registers, and here are "
                f"{shape.widest * BLOCK}"
            )
        if not list(self.space(span, device)):
            return "neither local memory nor a buffer has room for what it keeps"
        return None

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Return what registers and local memory hold."""
        shape = _shape(span)
        most = round_up(span.batch, LARGEST_TILE) // BLOCK * shape.kept
        large = most * shape.planes * BLOCK_BYTES > device.largest_buffer
        return tuple(
            config for config in CONFIGS
            if shape.fits(config, device) and (config["inside"] or not large)
        )

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count data once, what the gradients are products of twice, and latencies."""
        step, shape, units = _step(span), _shape(span), device.compute_units
        data = 4 * sum(value.width for value in step.data)
        kept = 2 * BLOCK * shape.planes * (shape.kept + shape.derived)
        sums = 4 * _parts(span, device) * step.size
        rate, flops = RATES[shape.planes], span_flops(span)
        return Cost(
            flops, span.batch * (data + 2 * kept) + 2 * sums, 4 - config["inside"],
            span.batch * kept + sums, units,
            rate * flops / (flops + rate * units * shape.layers * WAITS),
        )

    def launches(
        self, span: Span, config: Config, device: Device
    ) -> tuple[Launch, ...]:
        """Return the packing, both ways, the gradients' products, and the update."""
        step, shape = _step(span), _shape(span)
        warps, inside = config["warps"], config["inside"]
        tile = BLOCK * warps * config["rows"]
        blocks = round_up(span.batch, tile) // BLOCK
        groups = min(-(-span.batch // tile), config["groups"] * device.compute_units)
        parts = groups if inside else _parts(span, device)
        x, t, *weight = step.data
        n = span.batch if step.gather is None else step.gather.samples
        chunk = shape.chunk(config)
        shared = {**_shared_defines(step, span), "CHUNK": chunk}
        whole = {"REAL": real(span), **step_defines(step, span)}
        places: dict[str, int | str] = {"SIZE": step.size, "BIASES": _before(step)}
        rule: dict[str, int | str] = {}
        live: Argument = Gradients()
        if step.update is not None:
            rule, live = rule_defines(step.update, span), live_table(step.update)
        plane = BLOCK_BYTES * shape.planes
        key = f"fused_step in {shape.planes} halves by {chunk}"
        packed = (
            Packed(key, shape.size(chunk)),
            Packed(f"{key}, biases", 4 * shape.layers * shape.wide),
            Packed(f"{key}, about", 16 * shape.layers),
        )
        kept = (
            Scratch("values", blocks * shape.kept * plane),
            Scratch("derivatives", blocks * shape.derived * plane),
            Scratch("powers", 4 * blocks * shape.layers), blocks,
        )
        slopes = Scratch("slopes", groups * shape.slopes(config))
        sums = Scratch("parts", 4 * max(1, _before(step)) * parts)
        rest = Scratch(
            "biases and records", 4 * groups * (step.size - _before(step) + APART)
        )
        samples = Scalar("samples")
        products = Launch(
            "training/fused_step_gradients.cl", "slopes",
            {
                **shared, "SLOPE_WARPS": SLOPE_WARPS, "PARTS": parts,
                "BIASES": _before(step),
            },
            (shape.squares * parts * WARP,), (SLOPE_WARPS * WARP,),
            (*kept, sums, samples),
        )
        adding = -(-(step.size + len(RECORD)) // (ADDERS // SHARED_BY))
        return (
            Launch(
                "training/fused_step_pack.cl", "pack", {**shared, "PACKERS": PACKERS},
                (2 * shape.layers * PACKERS,), (PACKERS,), (Parameters(), *packed),
                when="parameters",
            ),
            Launch(
                "training/fused_step.cl", "train",
                {
                    **whole, **rule, **shared, **places,
                    **_functions_defines(step, span),
                    "WARPS": warps, "ROWS_M": config["rows"], "INSIDE": inside,
                    "STAGES": shape.stages(config, device),
                    "X_PADDED": padded(x), "T_PADDED": padded(t),
                },
                (groups * warps * WARP,), (warps * WARP,),
                (
                    x, x.stride, t, t.stride, weight[0] if weight else t, *packed,
                    *((sums,) if inside else kept), slopes, rest, n, half_bits(n),
                    float(step.loss.bit_fail_limit), Scalar("first"), samples, *KEY,
                ),
            ),
            *(() if inside else (products,)),
            Launch(
                "training/fused_step_reduce.cl", "combine",
                {
                    **whole, **rule, **places, "PARTS": parts, "ADDERS": ADDERS,
                    "SHARED_BY": SHARED_BY,
                },
                (adding * ADDERS,), (ADDERS,),
                (
                    sums, rest, groups, Parameters(), State(), Gradients(),
                    step.tally.totals, live, t.width, samples, Scalar("seen"),
                    Scalar("fresh"), Scalar("rate", "real"), Scalar("count"),
                    Scalar("seed", "uint"),
                ),
            ),
        )


def _shared_defines(step: WholeStep, span: Span) -> dict[str, int | str]:
    """Return the macros of ``fused_step.h``."""
    shape, biases = _shape(span), [layer.act.bias for layer in step.layers]
    steepness = [layer.act.nonlinearity.steepness[0] for layer in step.layers]
    return {
        "FIRST": shape.first, "HIDDEN": shape.inner, "LAST": shape.last,
        "SPLITS": shape.planes, "LAYERS": shape.layers,
        "N_IN": step.layers[0].n_in,
        "N_OUT": table(layer.n_out for layer in step.layers),
        "STRIDE": table(shape.strides),
        "WEIGHTS_OF": table(layer.apply.weights.offset for layer in step.layers),
        "BIAS_OF": table(-1 if bias is None else bias.offset for bias in biases),
        "STEEPNESS_OF": "{" + ", ".join(number(s, span) for s in steepness) + "}",
    }


def _functions_defines(step: WholeStep, span: Span) -> dict[str, int | str]:
    """Return the macros of ``fused_step.cl`` that say what is applied to sums."""
    codes, hidden = functions_of(step), step.layers[0].act.nonlinearity
    last = step.layers[-1].act.nonlinearity
    steepness = abs(hidden.steepness[0])
    most = MOST_DERIVATIVE * steepness
    return {
        "HIDDEN_CODE": _code(codes, hidden), "LAST_CODE": _code(codes, last),
        "INNER_RELU": int(
            codes[_code(codes, hidden)][1] == "grad_relu" and hidden.limits is None
        ),
        "HIDDEN_BOUNDED": int(activation(hidden.names[0]).bounded),
        "HIDDEN_LIMIT": _limit(hidden, span), "LAST_LIMIT": _limit(last, span),
        "SLOPE_EXPONENT": ceil(log2(most)) if most else 0,
        "SHARE": "0.5f" if step.loss.halved[0] else "1.0f",
    }


def _before(step: WholeStep) -> int:
    """Return the elements of the flat buffer before the first bias."""
    biases = [layer.act.bias for layer in step.layers]
    return min((bias.offset for bias in biases if bias is not None), default=step.size)


@dataclass(frozen=True)
class _Shape:
    """A chain in blocks of 16 (``fused_step.h``).

    Attributes
    ----------
    first, inner, last : int
        Of the first layer's terms; of the widest layer between, 0 where there is one
        layer only; of the last layer's neurons.
    strides : tuple of int
        Of the rows of each layer's A.
    planes : int
        Halves a value.
    """

    first: int
    inner: int
    last: int
    strides: tuple[int, ...]
    planes: int

    @property
    def layers(self) -> int:
        """How many."""
        return len(self.strides)

    @property
    def widest(self) -> int:
        """Blocks of the widest."""
        return max(self.first, self.inner, self.last)

    @property
    def wide(self) -> int:
        """Biases of each layer."""
        return BLOCK * max(self.inner, self.last)

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Blocks of each layer's terms and neurons."""
        widths = [self.first, *[self.inner] * (self.layers - 1), self.last]
        return list(pairwise(widths))

    @property
    def kept(self) -> int:
        """Blocks of all layers' terms."""
        return sum(terms for terms, _ in self.sizes)

    @property
    def derived(self) -> int:
        """Blocks of all layers' neurons."""
        return sum(neurons for _, neurons in self.sizes)

    @property
    def squares(self) -> int:
        """What warps multiply over samples, at least one of each layer."""
        return sum(-(-a // SQUARE) * -(-b // SQUARE) for a, b in self.sizes)

    def chunk(self, config: Config) -> int:
        """Return the blocks of a chunk, which never has two layers'."""
        most = (config["chunk"] << 10) // BLOCK_BYTES // self.planes
        return min(most, max(a * b for a, b in self.sizes))

    def size(self, chunk: int) -> int:
        """Return the bytes of all packed weights, forward and turned."""
        filled = [round_up(a * b, chunk) for a, b in self.sizes]
        return (sum(filled) + sum(filled[1:])) * self.planes * BLOCK_BYTES

    def slopes(self, config: Config) -> int:
        """Return the bytes of derivatives that a group keeps until the way back."""
        each = self.inner * config["rows"] * 2 * WARP * 8 * self.planes
        return max(16, config["warps"] * (self.layers - 1) * each)

    def stages(self, config: Config, device: Device) -> int:
        """Return how many chunks local memory holds; 0: all weights."""
        warps, tile = config["warps"], config["warps"] * config["rows"]
        each = 4 * (self.wide + (self.wide + BLOCK) * warps) + 16 + 4 * tile * BLOCK
        room = max(
            device.declared_local_memory, device.unit_local_memory // config["groups"]
        )
        room -= self.layers * each + 4 * len(RECORD) * warps * WARP + SPARE
        if config["inside"]:
            kept = self.kept + 2 * self.wide // BLOCK
            room -= kept * tile * self.planes * BLOCK_BYTES
        chunk = self.chunk(config)
        if self.size(chunk) <= room:
            return 0
        return max(1, min(MOST_STAGES, room // (chunk * self.planes * BLOCK_BYTES)))

    def fits(self, config: Config, device: Device) -> bool:
        """Return whether registers and local memory hold what they must."""
        held = self.widest * self.planes * config["rows"]
        if held > REGISTERS or (config["inside"] and self.widest > SQUARE):
            return False
        return self.stages(config, device) not in range(1, LEAST_STAGES)


def _step(span: Span) -> WholeStep:
    step = whole_step(span)
    assert step is not None
    return step


def _shape(span: Span) -> _Shape:
    layers, strides = _step(span).layers, []
    for layer in layers:
        assert isinstance(layer.apply.storage, DenseStorage)
        strides.append(layer.apply.storage.stride)
    inner = max((layer.n_out for layer in layers[:-1]), default=0)
    return _Shape(
        -(-layers[0].n_in // BLOCK), -(-inner // BLOCK), -(-layers[-1].n_out // BLOCK),
        tuple(strides), SPLITS[span.precision],
    )


def _parts(span: Span, device: Device) -> int:
    """Return of how many parts of the samples gradients are added up."""
    groups = SLOPE_GROUPS * device.compute_units // _shape(span).squares
    most = span.batch // (SLOPE_WARPS * SQUARE * BLOCK)
    return SLOPE_WARPS * max(1, min(most, groups))


def _code(codes: list[tuple[str, str, str]], function: Nonlinearity) -> int:
    return codes.index(function_of(function.names[0], function))


def _limit(function: Nonlinearity, span: Span) -> str:
    return number((function.limits or (float("inf"),))[0], span)
