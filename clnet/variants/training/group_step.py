"""group_step, fused_step: whole training steps on GPUs.

By tiles of samples in local memory, and of narrow layers on matrix units.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil, log2
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from clnet.ir.loss import RECORD
from clnet.nn.activations import activation
from clnet.nn.random import half_bits
from clnet.nn.storage.dense import DenseStorage
from clnet.nn.storage.layout import round_up
from clnet.opencl.launch import (
    GRADIENTS,
    KEY,
    PARAMETERS,
    STATE,
    TIMEOUT_FLAG,
    Argument,
    Constant,
    Launch,
    Launches,
    Packed,
    Scalar,
    Scratch,
)
from clnet.opencl.program import WARP, inline_ptx
from clnet.variants.base import stored, team_group
from clnet.variants.cost import Cost, gpu_kernel_efficiency
from clnet.variants.dense.chain import table
from clnet.variants.dense.fused_mma import REGISTERS, NarrowChain, narrow_blocks
from clnet.variants.dense.mma import PRODUCTS, refuse_without_matrix_units
from clnet.variants.macros import number, padded, real
from clnet.variants.packing import (
    BLOCK,
    BLOCK_BYTES,
    PACKERS,
)
from clnet.variants.training.whole_step import (
    APART,
    RULE,
    RUN,
    Allocator,
    WholeStep,
    accepted_step,
    function_of,
    refuse_unless_float32_step,
)

if TYPE_CHECKING:
    from clnet.ir.activation import Nonlinearity
    from clnet.ir.program import Span
    from clnet.opencl.device import Device
    from clnet.variants.base import Config, Reach

TILES = (32, 16, 8)  # samples of a tile, the usually best first
LARGE_TILES = (256, 128, 64)  # of one group alone, whose steps are its latency
GROUPS = (512, 256)  # work-items of a group, the usually best first
SMALL_GROUPS = (128, 64, 32)  # of one group alone, where layers are small
PART = 32  # samples of a tile that one work-item sums to its record
REDUCERS = 8  # work-items that reduce an element
PADDING = 4  # values behind a row of a tile, against bank conflicts
FEW_TILES = 2  # one group computes so many tiles as fast as several groups do
MAX_POLLS = 1 << 20  # of a grid barrier: about a second


@dataclass(frozen=True)
class GroupStep:
    """A tile of samples a work-group (``group_step.cl``).

    Config: ``tile``, samples of a tile; ``group``, work-items of a group; ``alone``, 1:
    one group computes any number of steps in a launch; ``together``, 1: many groups do,
    with grid barriers.
    """

    name: str = "group_step"
    reach: Reach = "program"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse other dtypes and programs, and tiles too large for local memory."""
        refusal = refuse_unless_float32_step(span, clips_norm=False)
        if refusal is not None:
            return refusal
        step = accepted_step(span)
        # A tile, and the partial sums of a reduction.
        needed = 4 * (LocalLayout.of(step, TILES[-1]).size + GROUPS[0])
        if needed > device.local_memory:
            return (
                f"it needs {needed} bytes of local memory for a tile, and "
                f"{device.name} has {device.local_memory}"
            )
        if _largest_group(device) < TILES[-1]:
            return (
                f"it needs groups of {TILES[-1]} work-items, more than those of "
                f"{device.name}"
            )
        return None

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Tiles that fit local memory and are not mostly idle."""
        step = accepted_step(span)
        most = _largest_group(device)
        groups = [group for group in GROUPS if group <= most] or [most]
        tiles = [
            tile for tile in TILES
            if 4 * (LocalLayout.of(step, tile).size + GROUPS[0]) <= device.local_memory
            and tile <= groups[-1] and tile < 2 * round_up(span.batch, TILES[-1])
        ]
        # Only a single group has the epoch's error before its update.
        alone = step.update is not None and step.update.optimiser.reads_error
        choices = []
        if not alone and step.update is not None and _has_grid_barrier(device):
            # The smallest tiles with one for each unit: latency counts most.
            units = device.compute_units
            fitting = [tile for tile in tiles if -(-span.batch // tile) <= units]
            tile = min(fitting, default=tiles[0])
            if span.batch > tile:
                choices = [(tile, group, 0, 1) for group in groups]
            groups = groups[-1:]  # for the slower kinds
        few = span.batch <= FEW_TILES * tiles[0]
        resident = [
            (tile, group, 1, 0) for tile, group in _resident(step, span.batch, device)
        ] or [(tile, group, 1, 0) for tile in tiles for group in groups]
        several = [] if alone else [
            (tile, group, 0, 0) for tile in tiles for group in groups
            if span.batch > tile
        ]
        choices += [*resident, *several] if few else [*several, *resident]
        return tuple(
            {"tile": tile, "group": group, "alone": by_one, "together": by_many}
            for tile, group, by_one, by_many in choices
        ) or ({"tile": tiles[-1], "group": groups[0], "alone": 1, "together": 0},)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count the gradients of every group, written and read."""
        step = accepted_step(span)
        groups = _groups(span, config, device)
        samples = span.batch * sum(value.width for value in step.data)
        return Cost(
            span.flops, 4 * (samples + 3 * groups * step.size),
            2 - config["alone"] - config["together"], 4 * groups * (step.size + APART),
            min(groups, device.compute_units), 0.2 * gpu_kernel_efficiency(device),
        )

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return one launch of whole steps, or two: gradients, then combine."""
        step = accepted_step(span)
        group, tile = config["group"], config["tile"]
        layout = LocalLayout.of(step, tile)
        defines: dict[str, int | str] = {
            **step.defines, **step.layer_defines(layout.layers),
            **layout.defines, "TILE": tile, "GROUP": group, "REDUCERS": REDUCERS,
            "LOCAL_VALUES": layout.size, "GRID": 0,
            "STAGED": int(
                4 * (layout.size + group + step.size) <= device.local_memory
            ),
        }
        defines |= step.rule
        resident = config["alone"] and _is_resident(step, tile, device)
        defines |= {
            "RESIDENT": int(resident), "PARTS": max(1, tile // PART) if resident else 1,
        }
        if resident:
            defines["STAGED"] = 1
        x, t, *_ = step.data
        n = step.samples
        groups = _groups(span, config, device)
        sums = Scratch("group gradients", 4 * groups * (step.size + APART))
        shared: tuple[Argument, ...] = (
            Constant.of(step.neurons),
            PARAMETERS, x, t, step.weight, sums, n, half_bits(n),
            step.bit_fail_limit, Scalar("first"), Scalar("samples"), *KEY,
        )
        totals = step.tally.totals
        elements = (step.size if step.backward else 0) + len(RECORD)
        blocks = -(-elements // (group // REDUCERS))
        if config["alone"] or config["together"]:
            count = 1
            barrier: tuple[Argument, ...] = ()
            if config["together"]:
                count = min(device.compute_units, max(groups, blocks))
                defines |= {"GRID": 1 << count.bit_length(), "MAX_POLLS": MAX_POLLS}
                barrier = (Scratch("arrivals", 4), TIMEOUT_FLAG)
            launch = Launch.of_groups(
                "training/group_step.cl", "steps", defines, count, group,
                *shared, STATE, GRADIENTS, totals, step.live, span.batch, t.width,
                Scalar("steps"), *RUN, *RULE, *barrier,
            )
            return (launch,)
        return (
            Launch(
                "training/group_step.cl", "gradients", defines, (groups * group,),
                (group,), shared,
            ),
            Launch.of_groups(
                "training/group_step.cl", "combine", defines, blocks, group,
                sums, groups, PARAMETERS, STATE, GRADIENTS, totals, step.live, t.width,
                Scalar("samples"), *RULE,
            ),
        )


@dataclass(frozen=True)
class LocalLayout:
    """Offsets in local memory of a tile's values, in values."""

    layers: NDArray[Any]  # The kernel's table
    pitch: int  # Distance of a sample's values
    x: int  # Of the inputs, targets, weights and records
    t: int
    weight: int
    record: int
    size: int  # Of all

    @property
    def defines(self) -> dict[str, int | str]:
        """The macros of the distance and the offsets."""
        return {
            "PITCH": self.pitch, "X_OFFSET": self.x, "T_OFFSET": self.t,
            "WEIGHT_OFFSET": self.weight, "RECORD_OFFSET": self.record,
        }

    @classmethod
    def of(
        cls, step: WholeStep, tile: int, rows: int = 4, inputs: int | None = None
    ) -> LocalLayout:
        """Return the layout for tiles of samples, with padded numbers of rows.

        `inputs` are the values that the tile's inputs take, if they are no such rows.
        """
        pitch = tile + PADDING
        allocate = Allocator()
        layers = step.layer_table(allocate, pitch, rows)
        whole = round_up(step.layers[0].n_in, rows) * pitch
        x = allocate(whole if inputs is None else inputs)
        t = allocate(round_up(step.layers[-1].n_out, 4) * pitch)
        weight = allocate(tile)
        record = allocate(round_up(len(RECORD) * tile, 4))
        return cls(layers, pitch, x, t, weight, record, allocate.end)


def _is_resident(step: WholeStep, tile: int, device: Device) -> bool:
    """Return whether all that steps read and change fits local memory beside a tile."""
    flat = (3 + step.slots) * step.size  # parameters, gradients, live elements, state
    sums = len(RECORD) * (2 + max(1, tile // PART)) + 2
    return 4 * (LocalLayout.of(step, tile).size + flat + sums) <= device.local_memory


def _resident(
    step: WholeStep, batch: int, device: Device
) -> Iterator[tuple[int, int]]:
    """Yield the tiles and groups of one group that keeps all in local memory.

    The tile with the whole mini-batch comes first, and of the groups the smallest with
    a work-item for every four outputs of the widest layer.
    """
    widest = max(max(layer.n_in, layer.n_out) for layer in step.layers)
    sizes = sorted((*GROUPS, *SMALL_GROUPS))
    least = min(LARGE_TILES[0], max(TILES[-1], 1 << (batch - 1).bit_length()))
    for tile in (*LARGE_TILES, *TILES):
        if tile > least or not _is_resident(step, tile, device):
            continue
        groups = [size for size in sizes if tile <= size <= _largest_group(device)]
        enough = [size for size in groups if size >= tile // 4 * widest]
        first = groups.index(enough[0]) if enough else len(groups) - 1
        for group in (*groups[first : first + 2], *groups[:first][-1:]):
            yield tile, group


def _largest_group(device: Device) -> int:
    """Return the largest work-group that device and kernel allow."""
    return team_group(GROUPS[0], device)


def _groups(span: Span, config: Config, device: Device) -> int:
    if config["alone"]:
        return 1
    tiles = -(-span.batch // config["tile"])
    return min(tiles, (1 if config["together"] else 2) * device.compute_units)


def _has_grid_barrier(device: Device) -> bool:
    """Return whether the groups of a launch can synchronise and exchange values.

    On a GPU this needs device-wide fences, which only PTX has here.
    """
    coherent = device.type == "cpu" or bool(inline_ptx(device))
    return bool(device.forward_progress) and coherent


MIN_STAGES, MAX_STAGES = 2, 4  # of the pipeline of weights
SQUARE = 4  # side, in blocks, of a warp's tile of a weight gradient
GRADIENT_WARPS = 4  # of a group of the weights' gradients
GRADIENT_GROUPS = 2  # of these, for each compute unit
ADDERS = 256  # work-items of a group of the reduction
SHARED_BY = 8  # of them that share an element
LARGEST_TILE = 256  # samples
SHARE = 0.3  # of the matrix units' rate beside activations and their derivatives
LAYER_LOADS = 50  # loads, one after the other, as long as a layer's waits
RESERVED_BYTES = 1280  # of local memory, for small arrays and the system
CONFIGS: tuple[Config, ...] = tuple(  # the usually best first
    dict(zip(("warps", "rows", "groups", "inside", "chunk"), config, strict=True))
    for config in (
        (8, 1, 1, 1, 8), (16, 1, 1, 0, 32), (8, 1, 2, 0, 32), (4, 1, 4, 0, 8),
        (4, 2, 2, 0, 8),
    )
)


@dataclass(frozen=True)
class FusedStep:
    """Training steps whose samples stay in registers, both ways (``fused_step.cl``).

    Config: ``warps`` of a group; ``rows``, blocks of 16 samples of a warp; ``groups``,
    persistent, for each compute unit; ``inside``, 1 if these also accumulate the
    weights' gradients, in registers; ``chunk``, KB of weights of a pipeline stage,
    unless all fit local memory.
    """

    name: str = "fused_step"
    reach: Reach = "program"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse other programs, wide layers, and devices without matrix units."""
        refusal = refuse_unless_float32_step(span, clips_norm=False)
        refusal = refusal or refuse_without_matrix_units(span, device)
        if refusal is not None:
            return refusal
        step = accepted_step(span)
        if not step.backward:
            return "it computes gradients, and here are losses alone"
        if step.update is not None and step.update.optimiser.reads_error:
            return "it does not know the epoch's error before it updates"
        functions = [layer.act.nonlinearity for layer in step.layers]
        if not all(function.uniform for function in functions):
            return "it applies one activation a layer, and here neurons differ"
        if len(set(functions[:-1])) > 1:
            return "it applies one activation to all layers but the last one"
        for function in functions[:-1]:
            row = activation(function.names[0])
            if row.excess > 1:
                return f"its hidden layers need |f(v)| <= |v| + 1, unlike {row.name}"
        if len(set(step.loss.halved)) > 1:
            return "it halves all outputs' errors or none, and here they differ"
        shape = _shape(span)
        if shape.widest * shape.splits > REGISTERS:
            most = REGISTERS // shape.splits * BLOCK
            return (
                f"its registers hold at most {most} values of a layer, and here are "
                f"{shape.widest * BLOCK}"
            )
        if not list(self.space(span, device)):
            return "its values and deltas exceed local memory and the largest buffer"
        return None

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Return the configs that fit registers and local memory."""
        shape = _shape(span)
        most = round_up(span.batch, LARGEST_TILE) // BLOCK * shape.value_blocks
        large = most * shape.splits * BLOCK_BYTES > device.largest_buffer
        return tuple(
            config for config in CONFIGS
            if shape.fits(config, device) and (config["inside"] or not large)
        )

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count data once, values and deltas twice, and latencies."""
        step, shape, units = accepted_step(span), _shape(span), device.compute_units
        data = 4 * sum(value.width for value in step.data)
        stored = 2 * BLOCK * shape.splits * (shape.value_blocks + shape.delta_blocks)
        sums = 4 * _split_k(span, device) * step.size
        return Cost(
            span.flops, span.batch * (data + 2 * stored) + 2 * sums,
            4 - config["inside"], span.batch * stored + sums, units,
            unit="matrix", work=PRODUCTS[shape.splits] / SHARE,
            loads=LAYER_LOADS * shape.layers,
        )

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the packing, the passes, the gradients' products, and the update."""
        step, shape = accepted_step(span), _shape(span)
        warps, inside = config["warps"], config["inside"]
        tile = BLOCK * warps * config["rows"]
        blocks = round_up(span.batch, tile) // BLOCK
        groups = min(-(-span.batch // tile), config["groups"] * device.compute_units)
        split_k = groups if inside else _split_k(span, device)
        x, t, *_ = step.data
        n = step.samples
        chunk = shape.chunk(config)
        shared = {**_shared_defines(step, span), "CHUNK": chunk}
        whole = {"REAL": real(span), **step.defines}
        first_bias = _first_bias(step)
        buffer_defines: dict[str, int | str] = {"SIZE": step.size, "BIASES": first_bias}
        block_bytes = BLOCK_BYTES * shape.splits
        key = f"fused_step in {shape.splits} splits by {chunk}"
        packed = (
            Packed(key, shape.size(chunk)),
            Packed(f"{key}, biases", 4 * shape.layers * shape.biases),
            Packed(f"{key}, exponents", 16 * shape.layers),
        )
        operands = (
            Scratch("values", blocks * shape.value_blocks * block_bytes),
            Scratch("deltas", blocks * shape.delta_blocks * block_bytes),
            Scratch("powers", 4 * blocks * shape.layers), blocks,
        )
        derivatives = Scratch("derivatives", groups * shape.derivatives(config))
        partial = Scratch("partial gradients", 4 * max(1, first_bias) * split_k)
        group_sums = Scratch(
            "biases and records", 4 * groups * (step.size - first_bias + APART)
        )
        samples = Scalar("samples")
        products = Launch(
            "training/fused_step_gradients.cl", "weight_gradients",
            {
                **shared, "GRADIENT_WARPS": GRADIENT_WARPS, "SPLIT_K": split_k,
                "BIASES": first_bias,
            },
            (shape.squares * split_k * WARP,), (GRADIENT_WARPS * WARP,),
            (*operands, partial, samples),
        )
        reduction_groups = -(-(step.size + len(RECORD)) // (ADDERS // SHARED_BY))
        return (
            Launch.of_groups(
                "training/fused_step_pack.cl", "pack", {**shared, "PACKERS": PACKERS},
                2 * shape.layers, PACKERS,
                PARAMETERS, *packed, when="parameters",
            ),
            Launch(
                "training/fused_step.cl", "train",
                {
                    **whole, **step.rule, **shared, **buffer_defines,
                    **_functions_defines(step, span),
                    "WARPS": warps, "ROWS_M": config["rows"], "FUSE_GRADIENTS": inside,
                    "STAGES": shape.stages(config, device),
                    "X_PADDED": padded(x), "T_PADDED": padded(t),
                },
                (groups * warps * WARP,), (warps * WARP,),
                (
                    x, x.stride, t, t.stride, step.weight, *packed,
                    *((partial,) if inside else operands), derivatives, group_sums, n,
                    half_bits(n), step.bit_fail_limit, Scalar("first"),
                    samples, *KEY,
                ),
            ),
            *(() if inside else (products,)),
            Launch.of_groups(
                "training/fused_step_reduce.cl", "reduce",
                {
                    **whole, **step.rule, **buffer_defines, "SPLIT_K": split_k,
                    "ADDERS": ADDERS, "SHARED_BY": SHARED_BY,
                },
                reduction_groups, ADDERS,
                partial, group_sums, groups, PARAMETERS, STATE, GRADIENTS,
                step.tally.totals, step.live, t.width, samples, *RULE,
            ),
        )


def _shared_defines(step: WholeStep, span: Span) -> dict[str, int | str]:
    """Return the macros of ``fused_step.h``."""
    shape, biases = _shape(span), [layer.act.bias for layer in step.layers]
    steepness = [layer.act.nonlinearity.steepness[0] for layer in step.layers]
    return {
        **shape.defines, "LAYERS": shape.layers,
        "N_IN": step.layers[0].n_in,
        "N_OUT": table(layer.n_out for layer in step.layers),
        "STRIDE": table(stored(x.apply, DenseStorage).stride for x in step.layers),
        "WEIGHTS_OF": table(layer.apply.weights.offset for layer in step.layers),
        "BIAS_OF": table(-1 if bias is None else bias.offset for bias in biases),
        "STEEPNESS_OF": "{" + ", ".join(number(s, span) for s in steepness) + "}",
    }


def _functions_defines(step: WholeStep, span: Span) -> dict[str, int | str]:
    """Return the activation macros of ``fused_step.cl``."""
    codes, hidden = step.functions, step.layers[0].act.nonlinearity
    last = step.layers[-1].act.nonlinearity
    steepness = abs(hidden.steepness[0])
    most = activation(hidden.names[0]).steepest * steepness
    return {
        "HIDDEN_CODE": _code(codes, hidden), "LAST_CODE": _code(codes, last),
        "INNER_RELU": int(
            codes[_code(codes, hidden)][1] == "grad_relu" and hidden.limits is None
        ),
        "HIDDEN_BOUNDED": int(activation(hidden.names[0]).bounded),
        "HIDDEN_LIMIT": _limit(hidden, span), "LAST_LIMIT": _limit(last, span),
        "DERIVATIVE_EXPONENT": ceil(log2(most)) if most else 0,
        "SHARE": "0.5f" if step.loss.halved[0] else "1.0f",
    }


def _first_bias(step: WholeStep) -> int:
    """Return the offset of the first bias in the flat buffer."""
    biases = [layer.act.bias for layer in step.layers]
    return min((bias.offset for bias in biases if bias is not None), default=step.size)


@dataclass(frozen=True)
class _NarrowStep(NarrowChain):
    """A chain in both directions (``fused_step.h``)."""

    @property
    def widest(self) -> int:
        """Blocks of the widest layer."""
        return max(self.first, self.hidden, self.last)

    @property
    def value_blocks(self) -> int:
        """Blocks of all layers' terms."""
        return sum(terms for terms, _ in self.sizes)

    @property
    def delta_blocks(self) -> int:
        """Blocks of all layers' neurons."""
        return sum(neurons for _, neurons in self.sizes)

    @property
    def squares(self) -> int:
        """Warps' tiles of the weights' gradients, at least one of each layer."""
        return sum(-(-a // SQUARE) * -(-b // SQUARE) for a, b in self.sizes)

    def chunk(self, config: Config) -> int:
        """Return the blocks of a chunk, all of one layer."""
        most = (config["chunk"] << 10) // BLOCK_BYTES // self.splits
        return min(most, max(self.weights))

    def size(self, chunk: int) -> int:
        """Return the bytes of all packed weights, forward and transposed."""
        filled = [round_up(size, chunk) for size in self.weights]
        return (sum(filled) + sum(filled[1:])) * self.splits * BLOCK_BYTES

    def derivatives(self, config: Config) -> int:
        """Return the bytes of a group's stored activation derivatives."""
        each = self.hidden * config["rows"] * 2 * WARP * 8 * self.splits
        return max(16, config["warps"] * (self.layers - 1) * each)

    def stages(self, config: Config, device: Device) -> int:
        """Return the pipeline stages in local memory; 0 if all weights fit."""
        warps, tile = config["warps"], config["warps"] * config["rows"]
        each = 4 * (self.biases + (self.biases + BLOCK) * warps) + 16 + 4 * tile * BLOCK
        room = max(
            device.declared_local_memory, device.unit_local_memory // config["groups"]
        )
        room -= self.layers * each + 4 * len(RECORD) * warps * WARP + RESERVED_BYTES
        if config["inside"]:
            stored = self.value_blocks + 2 * self.biases // BLOCK
            room -= stored * tile * self.splits * BLOCK_BYTES
        chunk = self.chunk(config)
        if self.size(chunk) <= room:
            return 0
        return max(1, min(MAX_STAGES, room // (chunk * self.splits * BLOCK_BYTES)))

    def fits(self, config: Config, device: Device) -> bool:
        """Return whether registers and local memory suffice."""
        held = self.widest * self.splits * config["rows"]
        if held > REGISTERS or (config["inside"] and self.widest > SQUARE):
            return False
        return self.stages(config, device) not in range(1, MIN_STAGES)


def _shape(span: Span) -> _NarrowStep:
    return _NarrowStep(*narrow_blocks(accepted_step(span).layers, span))


def _split_k(span: Span, device: Device) -> int:
    """Return the splits of the samples of the weights' gradients."""
    groups = GRADIENT_GROUPS * device.compute_units // _shape(span).squares
    most = span.batch // (GRADIENT_WARPS * SQUARE * BLOCK)
    return GRADIENT_WARPS * max(1, min(most, groups))


def _code(codes: list[tuple[str, str, str]], function: Nonlinearity) -> int:
    return codes.index(function_of(function.names[0], function))


def _limit(function: Nonlinearity, span: Span) -> str:
    return number((function.limits or (float("inf"),))[0], span)
