"""persistent_mma: a chain of dense layers of a small batch in one launch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clnet.nn.activations import activation
from clnet.opencl.launch import (
    PARAMETERS,
    TIMEOUT_FLAG,
    Constant,
    Launch,
    Launches,
    Packed,
    Scratch,
)
from clnet.variants.cost import Cost, span_cost
from clnet.variants.dense.chain import (
    chain,
    functions_defines,
    pack_chain,
    packed_before,
)
from clnet.variants.dense.mma import PRODUCTS, refuse_unless_persistent_mma
from clnet.variants.dense.persistent import MAX_POLLS
from clnet.variants.macros import real
from clnet.variants.packing import BLOCK, BLOCK_BYTES, WARP, Packing

if TYPE_CHECKING:
    from clnet.ir.activation import Nonlinearity
    from clnet.ir.program import LayerOps, Span
    from clnet.opencl.device import Device
    from clnet.variants.base import Config, Reach

LARGEST_BATCH = 128
TILE = 8  # samples
SPLITS = 2  # fp16 splits of a value
BACKOFF_NS = 20  # leaves bandwidth to warps of the compute unit that publish
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
            "BACKOFF_NS": BACKOFF_NS,
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
