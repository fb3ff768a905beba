"""persistent, persistent_mma: a chain of dense layers in one launch over all units.

Groups stay resident: for one sample, and on matrix units for a small batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clnet.nn.activations import activation
from clnet.nn.storage.layout import round_up
from clnet.opencl.launch import (
    PARAMETERS,
    TIMEOUT_FLAG,
    ByValueInput,
    Constant,
    Launch,
    Launches,
    Packed,
    Scratch,
    ZeroCopyOutput,
)
from clnet.opencl.program import (
    WARP,
    cached_percent,
    inline_ptx,
    kept_cache,
    warp_team,
)
from clnet.variants.base import (
    Config,
    Reach,
    refuse_unless_dense_layers,
    refuse_unless_forward_progress,
)
from clnet.variants.cost import Cost, span_cost
from clnet.variants.dense.chain import (
    BACKOFF_NS,
    BY_VALUE,
    MAX_POLLS,
    WORD,
    chain,
    chain_defines,
    functions_defines,
    pack_chain,
    packed_before,
    strides,
    wide_table,
)
from clnet.variants.dense.mma import PRODUCTS, refuse_unless_persistent_mma
from clnet.variants.macros import real
from clnet.variants.packing import (
    BLOCK,
    BLOCK_BYTES,
    LINE_WORDS,
    Packing,
)

if TYPE_CHECKING:
    from clnet.ir.activation import Nonlinearity
    from clnet.ir.program import LayerOps, Span
    from clnet.opencl.device import Device

BULK = 90  # the first PTX generation with bulk copies
# Shapes to try, the usually best first. Without bulk copies: work-items of a group,
# vectors in flight.
DEPTHS = ((256, 8), (128, 4), (192, 8), (256, 16), (512, 16))
# With bulk copies: groups per compute unit, consumer work-items, rows in registers,
# copies in flight (more would delay polls); for weights that stay in the L2 cache
# between launches, and for others.
CACHED_SHAPES = ((1, 128, 4, 4), (1, 128, 8, 4), (1, 256, 4, 4))
STREAMED_SHAPES = ((1, 256, 8, 6), (1, 256, 4, 4), (2, 128, 4, 2), (2, 256, 4, 2))
KEPT_SHARE = 0.56  # of the L2 cache, for weights to keep there: words and x need room
COPY_BYTES = 12 << 10  # of a copy of several rows, at most, if not from the L2 cache
MOST_SLOTS = 32  # one work-item initialises the mbarriers of each
# Of the unit's local memory, for the ring of its only group, of weights that are not in
# the L2 cache: the L1 cache, which holds words, takes the rest.
DEEP_RING_SHARE = 0.71
REDUCERS = (8, 4, 2, 1)  # work-items that reduce a row's partial sums
MAX_REGISTERS = 176  # of a work-item
VECTOR = 16  # bytes
MBARRIER_BYTES = 16  # of a slot's two mbarriers


@dataclass(frozen=True)
class Persistent:
    """Groups stay resident through all layers of one sample.

    Config: ``group``, work-items of a group that compute. If they load weights
    themselves (``persistent.cl``): ``depth``, vectors of weights that each keeps in
    flight. With bulk copies (``persistent_ring.cl``): ``per_unit``, groups per compute
    unit; ``rows`` in registers; ``piece``, rows of a copy; copies in ``flight``;
    ``kept``, MiB of weights to keep in the L2 cache, if it does not hold all.
    """

    name: str = "persistent"
    reach: Reach = "run"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse batches, and devices without forward progress between groups."""
        refusal = refuse_unless_dense_layers(span, device)
        refusal = refusal or refuse_unless_forward_progress(device)
        if refusal is not None:
            return refusal
        if span.batch > 1:
            return "it computes one sample at a time"
        if span.dtype != "float32":
            return "it computes in float32 only"
        if not self._configs(span, device):
            return (
                "it keeps two layers' inputs in local memory, of up to "
                f"{max(strides(span))} values, and {device.name} has "
                f"{device.local_memory} bytes"
            )
        return None

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Return the shapes that fit the device."""
        return self._configs(span, device)

    def _configs(self, span: Span, device: Device) -> tuple[Config, ...]:
        rings = _ring_configs(span, device) if inline_ptx(device) >= BULK else ()
        fitting = [config for config in rings if _ring_fits(span, config, device)]
        # The fewer passes over a share's rows, the better.
        fitting.sort(key=lambda c: -(-_share(span, c, device) // c["rows"]))
        return tuple(fitting) or tuple(
            {"group": group, "depth": depth}
            for group, depth in DEPTHS
            if group <= device.largest_group
            and 2 * WORD * _room(span, depth, device) < device.local_memory
        )

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count the least traffic of the span."""
        scratch = WORD * (2 * sum(_words(span)) + _groups(config, device))
        units, layers = device.compute_units, len(chain(span))
        return span_cost(
            span, device, 0, units, scratch=scratch, efficiency=1.0, handovers=layers
        )

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the one launch, of all groups that can run concurrently."""
        layers = chain(span)
        group, groups, words = config["group"], _groups(config, device), _words(span)
        defines = {
            **chain_defines(span),
            "GROUP": group,
            "MAX_POLLS": MAX_POLLS,
            "WORDS": wide_table(accumulate(words[:-1], initial=0)),
            "IN_ALL": sum(words),
        }
        if "piece" in config:
            kernel, size = "persistent_ring", group + WARP
            defines |= _ring_defines(span, config, device)
        else:
            kernel, size = "persistent", group
            defines |= {
                "BACKOFF_NS": BACKOFF_NS,
                "TEAM": warp_team(device),
                "DEPTH": config["depth"],
                "ROOM": _room(span, config["depth"], device),
            }
        x, y = layers[0].apply.x, layers[-1].act.y
        by_value = (ByValueInput(x),) if x.width <= BY_VALUE else ()
        defines["BY_VALUE"] = len(by_value) * x.width
        launch = Launch.of_groups(
            f"dense/{kernel}.cl", kernel, defines, groups, size,
            PARAMETERS, x, x.width, y, Scratch("words", 2 * WORD * sum(words)),
            Scratch("launches", WORD * groups), TIMEOUT_FLAG, ZeroCopyOutput(y),
            *by_value,
        )
        return (launch,)


def _groups(config: Config, device: Device) -> int:
    return device.compute_units * config.get("per_unit", 1)


def _room(span: Span, depth: int, device: Device) -> int:
    """Return the values of the widest input, rounded up to a team's steps."""
    return round_up(max(strides(span)), 4 * depth * warp_team(device))


def _words(span: Span) -> list[int]:
    """Return the words of each layer's inputs; the first layer has none."""
    return [0, *(round_up(layer.n_out, LINE_WORDS) for layer in chain(span)[:-1])]


def _share(span: Span, config: Config, device: Device) -> int:
    """Return the rows of a group's largest share of a layer."""
    return -(-max(x.n_out for x in chain(span)) // _groups(config, device))


def _row(span: Span) -> int:
    """Return the vectors of a row of the widest layer."""
    return -(-max(strides(span)) * WORD // VECTOR)


def _ring_configs(span: Span, device: Device) -> tuple[Config, ...]:
    """Return the configs of ``persistent_ring.cl`` to try."""
    kept = kept_cache(device, KEPT_SHARE)
    streamed = span.bytes > kept << 20
    shapes = STREAMED_SHAPES if streamed else CACHED_SHAPES
    most = COPY_BYTES if streamed else device.declared_local_memory // 3
    fitting = max(most // (_row(span) * VECTOR), 1)
    whole = 1 << (fitting.bit_length() - 1)
    return tuple(
        {
            "group": group, "per_unit": count, "rows": rows,
            "piece": min(whole, rows if streamed else rows // 2), "flight": flight,
            **({"kept": kept} if streamed else {}),
        }
        for count, group, rows, flight in shapes
    )


def _ring_defines(span: Span, config: Config, device: Device) -> dict[str, int]:
    """Return the macros of ``persistent_ring.cl`` that depend on the config."""
    group, rows, piece = config["group"], config["rows"], config["piece"]
    streamed, share, row = "kept" in config, _share(span, config, device), _row(span)
    most = round_up(share, rows)
    halvings = rows.bit_length() - 1 if streamed else 0
    sums = group >> halvings
    # All rows are reduced at once, and the last vector is padded.
    least = max(share + VECTOR // WORD - 1, group * VECTOR // WORD // sums)
    reducers = next((n for n in REDUCERS if n * least <= group), REDUCERS[-1])
    room = device.declared_local_memory
    if streamed and config["per_unit"] == 1:
        room = max(room, int(DEEP_RING_SHARE * device.unit_local_memory) >> 10 << 10)
    left = room - 2 * most * sums * WORD
    slots = min(left // (piece * row * VECTOR + MBARRIER_BYTES), MOST_SLOTS)
    return {
        "GROUPS": _groups(config, device),
        "SLOTS": slots,
        "SLOT": piece * row,
        "COPY_ROWS": piece,
        "IN_FLIGHT": min(config["flight"], slots),
        "ROWS": rows,
        "VECTORS": -(-row // group),
        "MAX_SHARE": most,
        "HALVINGS": halvings,
        "REDUCERS": reducers,
        "L2_PERCENT": cached_percent(config["kept"], span.bytes) if streamed
        else 100,
        "BACKOFF_NS": 0,
    }


def _ring_fits(span: Span, config: Config, device: Device) -> bool:
    """Return whether a config's groups fit the device, all concurrently."""
    group, rows = config["group"], config["rows"]
    size = group + WARP
    ring = _ring_defines(span, config, device)
    vectors = ring["VECTORS"]
    # Of a work-item: weights, values, sums, and an estimate of the rest.
    registers = round_up(4 * vectors * rows + 9 * vectors + 24, 8)
    return (
        ring["SLOTS"] >= 2
        and size <= device.largest_group
        and registers <= MAX_REGISTERS
        and registers * size * config["per_unit"] <= device.registers
        # One work-item reduces a row, or pads the last vector.
        and _share(span, config, device) + VECTOR // WORD <= group
    )


LARGEST_BATCH = 128
TILE = 8  # samples
SPLITS = 2  # fp16 splits of a value
MMA_BACKOFF_NS = 20  # leaves bandwidth to warps of the compute unit that publish
SPLIT_BLOCK_BYTES = SPLITS * BLOCK_BYTES  # of a block
FRAGMENT_BYTES, SCALES_BYTES = 512, 32
TASK_RECORD = np.dtype(  # a task of the kernel's
    [(name, np.int32) for name in (
        "weights", "stride", "first", "blocks", "rows", "reduces", "slice", "slices",
        "values", "scaled", "sums", "out", "out_scaled", "next", "neuron", "n_out",
        "bias", "inverse", "column", "function",
    )]
)
TASK_BYTES = TASK_RECORD.itemsize
KEYS = ("warps", "rows", "columns", "chunk")
# Sixteen warps: four on each sub-partition of a unit hide the latency of matrix units.
SHAPES = (
    (16, 1, 1, 2),
    (16, 1, 1, 3),
    (16, 2, 1, 2),
    (16, 3, 1, 2),
    (16, 1, 2, 3),
    (16, 2, 2, 2),
    (16, 3, 2, 2),
    (16, 4, 2, 1),
    (16, 3, 4, 1),
)
# The model that ranks shapes and cuts. A task takes a handover, and one more for its
# exchange of slices, with some of the time of a load for each fragment. A chunk of
# blocks takes two loads. Registers spill beyond REGISTERS of a task's blocks, fragments
# and sums.
CHUNK_LOADS, FRAGMENT_LOADS = 2, 0.6
SPILL_LOADS, REGISTERS = 12, 80
SHARE = 0.4  # of the matrix units' rate: a warp's products wait for each other
MOST_SLICES = 8
MOST_ROWS = max(shape[KEYS.index("rows")] for shape in SHAPES)


@dataclass(frozen=True)
class PersistentMma:
    """Groups stay resident through all layers of a batch (``persistent_mma.cl``).

    Config: ``warps`` of a group; ``rows``, blocks of 16 neurons, and ``columns``, tiles
    of 8 samples, of a task; ``chunk``, blocks of inputs that a warp holds at once.
    """

    name: str = "persistent_mma"
    reach: Reach = "run"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse large batches, and devices without forward progress between groups."""
        refusal = refuse_unless_persistent_mma(span, device)
        if refusal is not None:
            return refusal
        if not 2 <= span.batch <= LARGEST_BATCH:
            return f"it computes 2 to {LARGEST_BATCH} samples at a time"
        if not self._configs(span, device):
            return (
                "its lists of tasks and sums take more local memory than the "
                f"{device.local_memory} bytes that {device.name} has"
            )
        return None

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Return shapes that fit batch and local memory, the best by a model first."""
        return sorted(
            self._configs(span, device),
            key=lambda config: TaskSchedule(span, config, device).seconds,
        )

    def _configs(self, span: Span, device: Device) -> tuple[Config, ...]:
        tiles = -(-span.batch // TILE)
        return tuple(
            config
            for shape in SHAPES
            if (config := dict(zip(KEYS, shape, strict=True)))
            and config["columns"] < 2 * tiles
            and TaskSchedule(span, config, device).fits
        )

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count the least traffic of the span."""
        schedule = TaskSchedule(span, config, device)
        scratch = 2 * schedule.set_bytes + sum(schedule.packed_bytes)
        units = device.compute_units
        return span_cost(
            span, device, 0, units, scratch=scratch, efficiency=1.0, unit="matrix",
            work=PRODUCTS[SPLITS], busy=schedule.seconds,
        )

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the packing of each layer's weights, and the one launch."""
        layers, schedule = chain(span), TaskSchedule(span, config, device)
        x, y = layers[0].apply.x, layers[-1].act.y
        first, last = (layers[i].apply.weights.offset for i in (0, -1))
        key = f"persistent_mma {first} to {last}"
        size, scales_size = schedule.packed_bytes
        packed = Packed(key, size), Packed(f"{key}, scales", scales_size)
        groups, group = schedule.groups, WARP * config["warps"]
        defines = {
            "REAL": real(span),
            "SPLITS": SPLITS,
            **functions_defines(span, schedule.functions),
            **{name.upper(): config[name] for name in ("warps", "rows", "columns")},
            "CHUNK": config["chunk"],
            "TILES": schedule.tiles,
            "REDUCED": schedule.reduced,
            "SLICES": max(cut.slices for cut in schedule.cuts),
            "TASKS": schedule.most_tasks,
            "FRAGMENTS": schedule.fragments[-1],
            "EXCHANGED_FRAGMENTS": schedule.exchanged[-1],
            "MAX_POLLS": MAX_POLLS,
            "BACKOFF_NS": MMA_BACKOFF_NS,
        }
        shape = ", ".join(f"{name} {value}" for name, value in config.items())
        return (
            *pack_chain(span, schedule.packings, packed, second=False),
            Launch.of_groups(
                "dense/persistent_mma.cl", "persistent_mma", defines, groups, group,
                *packed, PARAMETERS, x, x.stride, x.width, y, y.stride, span.batch,
                Scratch("words", 2 * schedule.set_bytes),
                Scratch("launches", 4 * groups),
                Constant(f"{key}, {span.batch} samples on {groups} groups, {shape}, "
                f"cut {schedule.cuts}", partial(getattr, schedule, "tasks")),
                TIMEOUT_FLAG,
            ),
        )


@dataclass(frozen=True)
class TaskCut:
    """Division of a layer into tasks: rows of blocks of each, split-k slices."""

    rows: int
    slices: int
    tasks: int


def reduced_by(cut: TaskCut, slice_: int, columns: int) -> range:
    """Return the fragments of a tile that the group of a slice reduces and finishes."""
    return range(slice_, cut.rows * columns, cut.slices)


@dataclass(frozen=True)
class TaskSchedule:
    """The tasks of all groups, in order, and the offsets of their values."""

    span: Span
    config: Config
    device: Device

    @property
    def groups(self) -> int:
        """Groups of the launch: one per compute unit."""
        return self.device.compute_units

    @property
    def tiles(self) -> int:
        """Tiles of samples, rounded up to whole columns of tasks."""
        columns = self.config["columns"]
        return -(-self.span.batch // (TILE * columns)) * columns

    @property
    def reduced(self) -> int:
        """Fragments of sums that warps add at a time, double-buffered."""
        fragments = self.config["rows"] * self.config["columns"]
        left = self.device.local_memory - TASK_BYTES * self.most_tasks
        return min(fragments, left // (2 * self.config["warps"] * FRAGMENT_BYTES))

    @property
    def fits(self) -> bool:
        """Whether a group fits local memory."""
        return self.reduced > 0

    @property
    def most_tasks(self) -> int:
        """Tasks of the first group; no other has more."""
        return sum(-(-cut.tasks // self.groups) for cut in self.cuts)

    @cached_property
    def packings(self) -> tuple[Packing, ...]:
        """The packing of each layer's weights, without extra rows or terms."""
        return tuple(
            Packing(layer.n_out, layer.n_in, SPLITS, BLOCK, BLOCK)
            for layer in chain(self.span)
        )

    @property
    def packed_before(self) -> list[tuple[int, int]]:
        """Bytes of weights and scales before each layer, and in total."""
        return packed_before(self.packings)

    @property
    def packed_bytes(self) -> tuple[int, int]:
        """Bytes of all packed weights and scales; last tasks read rows past them."""
        size, scales_size = self.packed_before[-1]
        # For any config: all of them share the buffers.
        widest = max(packing.blocks for packing in self.packings)
        return size + MOST_ROWS * widest * SPLIT_BLOCK_BYTES, scales_size

    @cached_property
    def cuts(self) -> tuple[TaskCut, ...]:
        """The cut of each layer, the fastest by a model."""
        return tuple(
            min(self._cuts(p), key=lambda c: self._seconds(p, c))
            for p in self.packings
        )

    @property
    def seconds(self) -> float:
        """Seconds of all layers by the model."""
        rates = self.device.rates
        bandwidth = rates.bandwidth(self.packed_before[-1][0])
        passes = self.tiles // self.config["columns"]  # of weights through the cache
        byte_seconds = max(1 / bandwidth, passes / rates.cache)
        return sum(
            max(self._seconds(packing, cut), packing.size * byte_seconds)
            for packing, cut in zip(self.packings, self.cuts, strict=True)
        )

    def _cuts(self, packing: Packing) -> Iterator[TaskCut]:
        columns = self.tiles // self.config["columns"]
        for rows in range(1, self.config["rows"] + 1):
            tiles = -(-packing.row_blocks // rows) * columns
            for slices in range(1, min(MOST_SLICES, packing.blocks) + 1):
                share = -(-packing.blocks // slices)
                # No slice is empty; all slices of a tile run concurrently.
                if -(-packing.blocks // share) == slices and (
                    slices == 1 or tiles * slices <= self.groups
                ):
                    yield TaskCut(rows, slices, tiles * slices)

    def _seconds(self, packing: Packing, cut: TaskCut) -> float:
        rates, units = self.device.rates, self.device.compute_units
        warps, rows, columns, chunk = (self.config[name] for name in KEYS)
        blocks = -(-packing.blocks // (cut.slices * warps))  # of a warp
        # Rows that a task lacks are multiplied as well.
        flops = 2 * PRODUCTS[SPLITS] * BLOCK**2 * TILE * rows * columns
        each = flops * units / (SHARE * rates.matrix)
        each += columns * FRAGMENT_BYTES * units / rates.cache
        exchange = rates.handover
        exchange += FRAGMENT_LOADS * rates.latency * cut.rows * columns
        chunks = CHUNK_LOADS * rates.latency * -(-blocks // chunk)
        registers = 4 * (rows * (SPLITS * chunk + columns) + chunk * columns)
        return -(-cut.tasks // self.groups) * (
            rates.handover + chunks + blocks * warps * each
            + exchange * (cut.slices > 1)
            + SPILL_LOADS * rates.latency * (registers > REGISTERS)
        )

    @cached_property
    def fragments(self) -> list[int]:
        """Offsets of the fragments of each layer's outputs, and their number."""
        return list(
            accumulate((p.blocks * self.tiles for p in self.packings[1:]), initial=0)
        )

    @cached_property
    def exchanged(self) -> list[int]:
        """Offsets of the fragments of each layer's exchange, and their number."""
        return list(
            accumulate(
                (
                    cut.tasks * cut.rows * self.config["columns"] * (cut.slices > 1)
                    for cut in self.cuts
                ),
                initial=0,
            )
        )

    @property
    def set_bytes(self) -> int:
        """Bytes of a set of words."""
        fragments = max(self.fragments[-1], 1)  # no buffer is empty
        words = FRAGMENT_BYTES * (fragments + self.exchanged[-1])
        return words + SCALES_BYTES * fragments

    @cached_property
    def functions(self) -> tuple[Nonlinearity, ...]:
        """The activations of the chain; the index is the code."""
        return tuple(
            dict.fromkeys(layer.act.nonlinearity for layer in chain(self.span))
        )

    @cached_property
    def tasks(self) -> NDArray[np.int32]:
        """The kernel's table [groups, tasks, numbers]; no blocks: no task."""
        lists: list[list[tuple[int, ...]]] = [[] for _ in range(self.groups)]
        for number, layer in enumerate(chain(self.span)):
            for task in range(self.cuts[number].tasks):
                lists[task % self.groups].append(self._task(number, layer, task))
        table = np.zeros(
            (self.groups, self.most_tasks, TASK_BYTES // 4), np.int32
        )
        for group, tasks in enumerate(lists):
            if tasks:
                table[group, : len(tasks)] = tasks
        return table

    def _task(self, number: int, layer: LayerOps, task: int) -> tuple[int, ...]:
        cut, packing = self.cuts[number], self.packings[number]
        columns, last = self.config["columns"], number + 1 == len(self.packings)
        tile, slice_ = divmod(task, cut.slices)
        row, column = divmod(tile, self.tiles // columns)
        row, column = row * cut.rows, column * columns
        share = -(-packing.blocks // cut.slices)
        before, scales_before = self.packed_before[number]
        function, bias = layer.act.nonlinearity, layer.act.bias
        inputs = chain(self.span)[number - 1].act.nonlinearity
        return (
            before // SPLIT_BLOCK_BYTES + row * packing.blocks + slice_ * share,
            packing.blocks,
            slice_ * share, min(share, packing.blocks - slice_ * share),
            cut.rows, sum(1 << f for f in reduced_by(cut, slice_, columns)),
            slice_, cut.slices,
            self.fragments[number - 1] + column if number else -1,
            int(number == 0 or not bounded(inputs)),
            (cut.slices > 1) * (
                self.fragments[-1] + self.exchanged[number]
                + tile * cut.rows * columns * cut.slices
            ),
            0 if last else self.fragments[number] + row * self.tiles + column,
            int(not bounded(function)),
            0 if last else self.packings[number + 1].blocks,
            row * BLOCK, layer.n_out,
            -1 if bias is None else bias.offset, scales_before // 4,
            column, self.functions.index(function),
        )


def bounded(function: Nonlinearity) -> bool:
    """Return whether the absolute value of every output is at most 1."""
    return all(activation(name).bounded for name in function.names)
