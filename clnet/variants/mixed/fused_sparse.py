"""fused_sparse, persistent_mixed: layers of several kinds in one launch.

A tile of samples passes through the layers in a group; or all compute units compute one
sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clnet.ir.activation import BiasAct
from clnet.ir.op import VALUE_ALIGNMENT
from clnet.ir.product import Apply
from clnet.nn.storage.dense import RowStorage
from clnet.nn.storage.layout import round_up
from clnet.nn.storage.local import LocalStorage
from clnet.nn.storage.sparse import CooStorage, CsrStorage, SparseStorage, index_array
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
from clnet.opencl.program import warp_team
from clnet.variants.base import (
    MIXED_ACTIVATIONS,
    MORE_OUTPUTS,
    NO_WHOLE_LAYERS,
    Config,
    Reach,
    largest_group,
    refuse_unless_forward_progress,
    tables,
    unsupported_dtype,
)
from clnet.variants.cost import Cost, span_cost
from clnet.variants.dense.chain import (
    BACKOFF_NS,
    BY_VALUE,
    MAX_POLLS,
    WORD,
    functions_defines,
)
from clnet.variants.macros import real
from clnet.variants.packing import LINE_WORDS
from clnet.variants.sparse.sparse import (
    ALIGNMENT_SLACK,
    MAX_CONFIGS,
    cpu_tiles,
    index_type,
    lanes_defines,
    partial_pitch,
    tile_lanes,
    vector_lanes,
)

if TYPE_CHECKING:
    from clnet.ir.activation import Nonlinearity
    from clnet.ir.op import Value
    from clnet.ir.program import Span
    from clnet.nn.storage.base import Storage
    from clnet.opencl.device import Device

class SummedLayer(NamedTuple):
    """The ops of a layer; its pre-activation is the sum of all its products."""

    applies: tuple[Apply, ...]
    act: BiasAct


def whole_layers(span: Span) -> tuple[SummedLayer, ...] | None:
    """Return the layers of a span, or None if it is not a sequence of whole layers."""
    layers: list[SummedLayer] = []
    applies: list[Apply] = []
    for op in span.ops:
        if isinstance(op, Apply) and op.accumulate == bool(applies):
            applies.append(op)
        elif isinstance(op, BiasAct) and applies:
            layers.append(SummedLayer(tuple(applies), op))
            applies = []
        else:
            return None
        if any(apply.z != applies[0].z for apply in applies):
            return None
        if layers and layers[-1].act is op and op.z != layers[-1].applies[0].z:
            return None
    return tuple(layers) if layers and not applies else None


def layers_of(span: Span) -> tuple[SummedLayer, ...]:
    """Return the layers of a span, which was not refused."""
    layers = whole_layers(span)
    assert layers is not None
    return layers


def refuse_unless_several_layers(span: Span) -> str | None:
    """Return why the span is not several layers with uniform activations, or None."""
    for op in span.ops:
        if isinstance(op, Apply) and not isinstance(
            op.storage, (RowStorage, SparseStorage, LocalStorage)
        ):
            return f"it computes sparse, dense and local layers, not {op.storage.name}"
    layers = whole_layers(span)
    if layers is None:
        return NO_WHOLE_LAYERS
    if len(layers) < 2:
        return "it computes several layers per launch, and this is one"
    if span.outputs != (layers[-1].act.y,):
        return MORE_OUTPUTS
    if not all(layer.act.nonlinearity.uniform for layer in layers):
        return MIXED_ACTIVATIONS
    return None


GROUPS = (1024, 256, 512)  # work-items for one sample, the usually best first
TILE_GROUP = 256  # work-items for many
TILES = (16, 8, 4, 1)  # samples
SLICES = (1, 2, 4, 8, 16, 32)  # slices of a row
VECTORS = (2, 4, 1)  # of samples, on CPUs
ENTRIES = 4  # of a work-item, about: enough loads to hide the latency of the first
ROWS = 256  # whose partial sums are added together, at most
PRODUCT = np.dtype(  # a row of the kernel's table
    [(name, np.int32) for name in (
        "n_in", "n_out", "stride", "weights", "starts", "source", "target", "adds",
        "function", "bias", "bias_step",
    )]
)


@dataclass(frozen=True)
class FusedSparse:
    """A tile of samples passes through all layers (``fused_sparse.cl``).

    Config for GPUs: ``tile``, samples; ``group``, work-items of a group; ``parts``,
    slices of a row (slice-k). For CPUs: ``tile``; ``workers``.
    """

    name: str = "fused_sparse"
    reach: Reach = "run"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse all but several layers, one of them sparse, that fit local memory."""
        sentence = refuse_unless_several_layers(span)
        if sentence is not None:
            return sentence
        if not any(
            isinstance(op, Apply) and isinstance(op.storage, SparseStorage)
            for op in span.ops
        ):
            return "it is for networks with sparse layers, and there is none here"
        if len(span.inputs) > 1:
            return "it computes layers with one input, and these have several"
        sentence = unsupported_dtype(span, device)
        if sentence is None and not self._configs(span, device):
            needed = _offsets(span).total * span.item_size
            sentence = (
                f"it keeps values that later layers read in local memory, {needed} "
                f"bytes and partial sums, and {device.name} has {device.local_memory}"
            )
        return sentence

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Slices that leave a work-item some entries; tiles that fit local memory."""
        return self._configs(span, device)[:MAX_CONFIGS]

    def _configs(self, span: Span, device: Device) -> tuple[Config, ...]:
        if device.type == "cpu":
            return _cpu_configs(span, device)
        best = max(_mean_row_lengths(span)) / ENTRIES
        sizes = sorted(SLICES, key=lambda n: max(n / best, best / n))
        groups = [largest_group(n, device) for n in GROUPS]
        configs: list[Config] = []
        tiles = [t for t in TILES if t < 2 * span.batch or t == 1]
        units = device.compute_units
        # First the largest tile of which every compute unit still gets one.
        tiles.sort(key=lambda tile: max(0, units - -(-span.batch // tile)))
        for tile in tiles[:3]:
            many = [largest_group(TILE_GROUP, device)]
            for group in dict.fromkeys(groups if span.batch == 1 else many):
                fitting = [n for n in sizes if n * tile_lanes(tile) <= group]
                configs += [
                    {"tile": tile, "group": group, "parts": n} for n in fitting[:4]
                ]
        room = device.local_memory
        return tuple(c for c in configs if _local_bytes(span, c) <= room)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count the entries and dense rows once per tile of samples."""
        tiles = -(-span.batch // config["tile"])
        size, values = span.item_size, _offsets(span).total
        lists = sum(_list_bytes(layer) for layer in layers_of(span))
        weights = sum(
            apply.weights.size for layer in layers_of(span) for apply in layer.applies
        )
        again = lists * tiles + size * weights * (tiles - 1)
        if device.type == "cpu":
            # A sample's values are gathered singly: a quarter of the rate of vectors.
            efficiency = 0.25 if config["tile"] == 1 else 1.0
            scratch = config["workers"] * values * config["tile"] * size
            units = min(config["workers"], tiles, device.compute_units)
            return span_cost(span, device, again, units, 1, scratch, efficiency)
        return span_cost(span, device, again, tiles)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the one launch."""
        layers, offsets = layers_of(span), _offsets(span)
        tile, slots = config["tile"], not all(_direct(layer) for layer in layers)
        x, y = span.inputs[0], span.outputs[0]
        functions = tuple(dict.fromkeys(layer.act.nonlinearity for layer in layers))
        defines: dict[str, int | str] = {
            "REAL": real(span), "TILE": tile, "SLOTS": int(slots),
            "COLUMN": index_type(offsets.total), "VALUES": offsets.total,
            **functions_defines(span, functions),
        }
        weights = [a.weights.offset for layer in layers for a in layer.applies]
        make = partial(_tables, layers, offsets, functions, slots)
        named = tables(f"fused_sparse {weights}", ProductTables._fields, make)
        count = sum(len(_products(layer)) for layer in layers)
        arguments = (
            PARAMETERS, named["products"], count, named["starts"],
            named["slots" if slots else "starts"], named["columns"],
            x, x.stride, x.width, y, y.stride, span.batch,
        )
        if device.type == "cpu":
            workers = config["workers"]
            vectors = max(VECTORS) if tile == 1 else tile // vector_lanes(span)
            scratch = workers * offsets.total * tile * span.item_size
            launch = Launch.of_groups(
                "mixed/fused_sparse.cl", "fused_rows",
                {**defines, **lanes_defines(span), "GROUP": 1, "VECTORS": vectors},
                workers, 1, *arguments, Scratch("values", scratch),
            )
            return (launch,)
        group = config["group"]
        launch = Launch.of_groups(
            "mixed/fused_sparse.cl", "fused_sparse",
            {
                **defines, "GROUP": group, "SLICES": config["parts"],
                "ROWS": _partial_rows(span, config), "WIDTH": 1,
            },
            -(-span.batch // tile), group, *arguments,
        )
        return (launch,)


# Offsets ----------------------------------------------------------------------------


class Offsets(NamedTuple):
    """Offsets of values in the kernel's array, and its size."""

    of: dict[Value, int]
    total: int


def _offsets(span: Span) -> Offsets:
    layers, x = layers_of(span), span.inputs[0]
    until = {x: 0}  # the last layer that reads a value
    for number, layer in enumerate(layers):
        for apply in layer.applies:
            until[apply.x] = number
    offsets = {x: 0}
    total = x.width
    for number, layer in enumerate(layers):
        y = layer.act.y
        if number + 1 == len(layers) and len(_products(layer)) == 1:
            break  # the kernel writes it to the network's output
        # The first gap between values that this layer or a later one reads.
        start = 0
        for used, value in sorted(
            ((used, v) for v, used in offsets.items() if until[v] >= number),
            key=lambda pair: pair[0],
        ):
            if start + y.width <= used:
                break
            start = used + value.width
        offsets[y] = start
        until.setdefault(y, number)
        total = max(total, start + y.width)
    return Offsets(offsets, total)


# Lists ------------------------------------------------------------------------------


def _products(layer: SummedLayer) -> list[tuple[Apply, ...]]:
    """Return the products of a layer: each dense one, and all others as one."""
    dense = [(a,) for a in layer.applies if isinstance(a.storage, RowStorage)]
    listed = tuple(a for a in layer.applies if not isinstance(a.storage, RowStorage))
    return [*dense, listed] if listed else list(dense)


def _direct(layer: SummedLayer) -> bool:
    """Return whether weights have the order of the list's entries, if any."""
    listed = [a for a in layer.applies if not isinstance(a.storage, RowStorage)]
    return not listed or (
        len(listed) == 1 and isinstance(listed[0].storage, (CooStorage, CsrStorage))
    )


def _list_bytes(layer: SummedLayer) -> int:
    """Return the approximate bytes of a layer's lists."""
    each = 2 if _direct(layer) else 6
    return sum(
        4 * apply.storage.n_out + each * apply.storage.count
        for apply in layer.applies if not isinstance(apply.storage, RowStorage)
    )


def _mean_row_lengths(span: Span) -> list[float]:
    """Return the mean number of entries per row of each product."""
    return [
        apply.storage.n_in if isinstance(apply.storage, RowStorage)
        else max(1.0, apply.storage.count / apply.storage.n_out)
        for layer in layers_of(span) for apply in layer.applies
    ]


class ProductTables(NamedTuple):
    """The tables of ``fused_sparse.cl``."""

    products: NDArray[Any]
    starts: NDArray[np.int32]
    slots: NDArray[np.int32]
    columns: NDArray[Any]


def _tables(
    layers: Sequence[SummedLayer], offsets: Offsets, functions: Sequence[Nonlinearity],
    with_slots: bool,
) -> ProductTables:
    table: list[tuple[int, ...]] = []
    starts: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    slots, columns = list(starts), list(starts)
    entries = rows_listed = 0
    for layer in layers:
        products, act = _products(layer), layer.act
        for number, applies in enumerate(products):
            first = applies[0]
            stride, weights, source, start = 0, 0, 0, rows_listed
            if isinstance(first.storage, RowStorage):
                stride, weights = first.storage.stride, first.weights.offset
                source = offsets.of[first.x]
            else:
                entries_of = [apply.storage.entries() for apply in applies]
                rows = np.concatenate([r for r, _, _ in entries_of])
                column = np.concatenate([
                    c + offsets.of[apply.x]
                    for (_, c, _), apply in zip(entries_of, applies, strict=True)
                ])
                slot = np.concatenate([
                    s + apply.weights.offset
                    for (_, _, s), apply in zip(entries_of, applies, strict=True)
                ])
                order = np.argsort(rows, kind="stable")
                columns.append(column[order])
                slots.append(slot[order])
                counts = np.bincount(rows, minlength=act.y.width)
                starts.append(entries + np.concatenate(([0], np.cumsum(counts))))
                weights = first.weights.offset - entries
                entries += len(rows)
                rows_listed += act.y.width + 1
            last = number + 1 == len(products)
            table.append((
                first.storage.n_in, act.y.width, stride, weights, start, source,
                offsets.of.get(act.y, 0), int(number > 0),
                functions.index(act.nonlinearity) if last else -1,
                -1 if act.bias is None else act.bias.offset, int(not act.shared),
            ))
    return ProductTables(
        np.array(table, PRODUCT), np.concatenate(starts).astype(np.int32),
        np.concatenate(slots).astype(np.int32) if with_slots else np.zeros(1, np.int32),
        index_array(np.concatenate(columns), offsets.total),
    )


# Configs ----------------------------------------------------------------------------


def _cpu_configs(span: Span, device: Device) -> tuple[Config, ...]:
    most = 1 if device.serial else device.compute_units
    return tuple(
        {"tile": tile, "workers": min(most, -(-span.batch // tile))}
        for tile in cpu_tiles(span)
    )


def _partial_rows(span: Span, config: Config) -> int:
    """Return the rows whose partial sums are in local memory: all, if these fit."""
    most = max(layer.act.y.width for layer in layers_of(span))
    pitch = partial_pitch(config["tile"], config["parts"])
    return min(most, ROWS, max(1, 4096 // pitch))


def _local_bytes(span: Span, config: Config) -> int:
    """Return the bytes of values and of partial sums."""
    values = config["tile"] * _offsets(span).total
    partials = _partial_rows(span, config) * partial_pitch(
        config["tile"], config["parts"]
    )
    return (values + partials + ALIGNMENT_SLACK) * span.item_size


# Work-items of a group, vectors in flight.
SHAPES = ((256, 2), (256, 4), (256, 8), (256, 16), (512, 2), (512, 4), (512, 8))
LEAST_UNITS = 2  # compute units per group, at least, if some stay idle
GATHER_GROUP = 256  # work-items of a group of the kernel gather_lists
STEP_LOADS = 3  # loads, one after the other, as long as a step's overhead
MOST_COLUMNS = 1 << 16  # columns are of 16 bits
COLUMN_BYTES = 2  # of a column
SPARE_BYTES = 64  # of local memory besides values


@dataclass(frozen=True)
class PersistentMixed:
    """Groups stay resident through layers of any kind (``persistent_mixed.cl``).

    Config: ``groups``; ``group``, work-items of each; ``depth``, vectors of weights
    that each work-item keeps in flight.
    """

    name: str = "persistent_mixed"
    reach: Reach = "run"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse batches, and devices without forward progress between groups."""
        refusal = _refuse_layers(span) or refuse_unless_forward_progress(device)
        if refusal is not None:
            return refusal
        if span.batch > 1:
            return "it computes one sample at a time"
        if span.dtype != "float32":
            return "it computes in float32 only"
        if next(self._configs(span, device), None) is None:
            return (
                "it keeps a group's ranges of two layers' inputs in local memory, and "
                f"{device.name} has {device.local_memory} bytes"
            )
        return None

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Return the shapes that fit the device, the least work first."""
        return sorted(self._configs(span, device), key=lambda c: _work(span, c, device))

    def _configs(self, span: Span, device: Device) -> Iterator[Config]:
        units = device.compute_units
        widest = max(map(outputs_of, layers_of(span)))
        for group, depth in SHAPES:
            # With few rows: no more groups than give each team a row.
            enough = max(1, widest * warp_team(device) // group)
            for groups in dict.fromkeys((units, min(units, enough))):
                config = {"groups": groups, "group": group, "depth": depth}
                room = room_of(span, config, device)
                if (
                    (groups == units or LEAST_UNITS * groups <= units)
                    and group <= device.largest_group
                    and 2 * WORD * (room + VECTOR) + SPARE_BYTES <= device.local_memory
                    and room + VECTOR <= MOST_COLUMNS
                ):
                    yield config

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count the least traffic of the span, and the lists' columns."""
        entries = sum(
            apply.storage.count
            for layer in layers_of(span) if not is_dense(layer)
            for apply in layer.applies
        )
        groups, moved = config["groups"], span.bytes + COLUMN_BYTES * entries
        return Cost(
            flops=span.flops,
            bytes=moved,
            launches=1,
            scratch=WORD * (2 * sum(words_of(span)) + groups + entries),
            compute_units=groups,
            handovers=len(layers_of(span)),
        )

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the gathering of lists, and the one launch."""
        groups, group = config["groups"], config["group"]
        room = room_of(span, config, device)
        lists, tasks = Lists(span, groups, room), Tasks(span, config, device)
        x, y = span.inputs[0], span.outputs[0]
        by_value = (ByValueInput(x),) if x.width <= BY_VALUE else ()
        words = sum(words_of(span))
        defines: dict[str, int | str] = {
            "REAL": real(span), "GROUP": group, "DEPTH": config["depth"],
            "ROOM": room, "TASKS": tasks.most,
            "IN_ALL": words, "MAX_POLLS": MAX_POLLS, "BACKOFF_NS": BACKOFF_NS,
            "BY_VALUE": len(by_value) * x.width,
            **functions_defines(span, functions_of(span)),
        }
        size = VECTOR * lists.vectors
        gather_group = min(GATHER_GROUP, device.largest_group)
        packed = Packed(f"{lists.key} values", WORD * size)
        return (
            Launch.of_groups(
                "mixed/persistent_mixed.cl", "gather_lists", defines,
                -(-size // gather_group), gather_group,
                PARAMETERS, lists.table("sources"), packed, size, when="parameters",
            ),
            Launch.of_groups(
                "mixed/persistent_mixed.cl", "persistent_mixed", defines, groups, group,
                PARAMETERS, packed, lists.table("starts"), lists.table("columns"),
                tasks.table(), x, x.width, y, Scratch("words", 2 * WORD * words),
                Scratch("launches", WORD * groups), TIMEOUT_FLAG, ZeroCopyOutput(y),
                *by_value,
            ),
        )


def _refuse_layers(span: Span) -> str | None:
    """Return why the span is not a chain of layers with a sparse or local one."""
    refusal = refuse_unless_several_layers(span)
    if refusal is not None:
        return refusal
    layers = layers_of(span)
    if all(is_dense(layer) for layer in layers):
        return "it is for networks with sparse or local layers, and there is none here"
    x = layers[0].applies[0].x
    for layer in layers:
        if any(apply.x != x for apply in layer.applies):
            return "its layers read only the previous layer, and here one reads others"
        if len(layer.applies) > 1 and any(
            isinstance(apply.storage, RowStorage) for apply in layer.applies
        ):
            return "it adds up products of sparse layers only, and here one is dense"
        x = layer.act.y
    return None


def _work(span: Span, config: Config, device: Device) -> float:
    """Return an estimate of the seconds of a group's steps."""
    group, depth, steps = config["group"], config["depth"], 0
    for layer in layers_of(span):
        shift = team_shift(layer, config, device)
        rounds = -(-largest_share(layer, config["groups"]) // (group >> shift))
        steps += rounds * -(-longest_row(layer) // (depth << shift))
    read = depth * group * VECTOR * WORD * device.compute_units / device.rates.cache
    return steps * (STEP_LOADS * device.rates.latency + read)


LEAST_TEAM = 8  # work-items of a long row: together they read a cache line
VECTOR = 4  # values
LOOK_AHEAD = 3  # empty tasks at the end of a group's tasks
TASK = np.dtype(  # a task of the kernel's
    [(name, np.int32) for name in (
        "words", "inputs", "padded", "is_list", "shift", "rows", "vectors", "weights",
        "outputs", "pads", "position", "bias", "bias_step", "function", "spare0",
        "spare1",
    )]
)


def functions_of(span: Span) -> tuple[Nonlinearity, ...]:
    """Return the activations of the layers; the index is the code."""
    return tuple(dict.fromkeys(layer.act.nonlinearity for layer in layers_of(span)))


def is_dense(layer: SummedLayer) -> bool:
    """Return whether a layer's rows are read in place."""
    return len(layer.applies) == 1 and isinstance(layer.applies[0].storage, RowStorage)


def outputs_of(layer: SummedLayer) -> int:
    """Return the neurons of a layer."""
    return layer.act.y.width


def padded_inputs(layer: SummedLayer) -> int:
    """Return the inputs of a layer in whole vectors; of a dense one, its stride."""
    storage = layer.applies[0].storage
    if isinstance(storage, RowStorage):
        return storage.stride
    return round_up(storage.n_in, VALUE_ALIGNMENT)


def words_of(span: Span) -> list[int]:
    """Return the words of each layer's inputs; the first layer has none."""
    later = layers_of(span)[1:]
    return [0, *(round_up(padded_inputs(layer), LINE_WORDS) for layer in later)]


def longest_row(layer: SummedLayer) -> int:
    """Return the vectors of a layer's longest row, or an upper bound."""

    def entries(storage: Storage) -> int:
        if isinstance(storage, SparseStorage):
            return storage.pattern.longest
        assert isinstance(storage, LocalStorage)
        return storage.window

    if is_dense(layer):
        return padded_inputs(layer) // VECTOR
    return -(-sum(entries(apply.storage) for apply in layer.applies) // VECTOR)


def largest_share(layer: SummedLayer, groups: int) -> int:
    """Return the rows of a group's largest share of a layer."""
    return -(-outputs_of(layer) // groups)


def team_shift(layer: SummedLayer, config: Config, device: Device) -> int:
    """Return the logarithm of the number of work-items that read a row."""
    idle = max(LEAST_TEAM, config["group"] // largest_share(layer, config["groups"]))
    most = min(warp_team(device), idle).bit_length() - 1
    return min(most, (longest_row(layer) - 1).bit_length())


def room_of(span: Span, config: Config, device: Device) -> int:
    """Return the values of the widest range that a group may read."""
    most = 0
    for layer in layers_of(span):
        room = padded_inputs(layer)
        storage = layer.applies[0].storage
        if is_dense(layer):
            step = config["depth"] << team_shift(layer, config, device)
            room = round_up(room, VECTOR * step)
        elif isinstance(storage, LocalStorage):
            rows = largest_share(layer, config["groups"])
            # A range starts and ends on whole vectors.
            room = min(room, round_up(rows + storage.window - 1 + VECTOR, VECTOR))
        most = max(most, room)
    return most


# Tables -----------------------------------------------------------------------------


class ListTables(NamedTuple):
    """The lists of ``persistent_mixed.cl``; `sources` are offsets in the parameters."""

    sources: NDArray[np.int32]
    starts: NDArray[np.int32]
    columns: NDArray[np.uint16]


def _listed(lists: Lists, name: str) -> NDArray[Any]:
    table: NDArray[Any] = getattr(lists.tables, name)
    return table


@dataclass(frozen=True)
class Lists:
    """The lists of the sparse and local layers of a span, for a number of groups."""

    span: Span
    groups: int
    room: int  # values of the widest range

    @property
    def layers(self) -> list[SummedLayer]:
        """The layers that have lists."""
        return [layer for layer in layers_of(self.span) if not is_dense(layer)]

    @property
    def key(self) -> str:
        """A key that is unique among the layers of a network."""
        offsets = [a.weights.offset for layer in self.layers for a in layer.applies]
        return f"persistent_mixed {offsets}"

    @property
    def vectors(self) -> int:
        """The vectors of all lists."""
        return sum(int(_row_vectors(layer).sum()) for layer in self.layers)

    def table(self, name: str) -> Constant:
        """Return one of `ListTables` as an argument."""
        suffix = f" for {self.groups} groups" * (name == "columns")
        return Constant(
            f"{self.key}, {name}{suffix}", partial(_listed, self, name)
        )

    @cached_property
    def tables(self) -> ListTables:
        """All tables, made once."""
        made: list[ListTables] = []
        vectors = 0
        for layer in self.layers:
            made.append(_list_tables(layer, self.groups, vectors))
            vectors += len(made[-1].sources) // VECTOR
        return ListTables(*(np.concatenate(parts) for parts in zip(*made, strict=True)))


def _row_vectors(layer: SummedLayer) -> NDArray[np.int64]:
    """Return the vectors of each row of a layer's list [n_out]."""
    entries = np.zeros(outputs_of(layer), np.int64)
    for apply in layer.applies:
        storage = apply.storage
        if isinstance(storage, SparseStorage):
            entries += storage.pattern.lengths
        else:
            entries += storage.count // outputs_of(layer)
    return -(-entries // VECTOR)


def _list_tables(layer: SummedLayer, groups: int, before: int) -> ListTables:
    """Return the tables of one layer; `before` vectors of other layers precede it."""
    entries = [apply.storage.entries() for apply in layer.applies]
    rows = np.concatenate([r for r, _, _ in entries])
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    columns = np.concatenate([c for _, c, _ in entries])[order]
    slots = np.concatenate([
        s + apply.weights.offset
        for (_, _, s), apply in zip(entries, layer.applies, strict=True)
    ])[order]
    starts = np.concatenate(([0], np.cumsum(_row_vectors(layer))))
    entry_starts = np.searchsorted(rows, np.arange(outputs_of(layer) + 1))
    at = VECTOR * starts[rows] + np.arange(len(rows)) - entry_starts[rows]
    counts = np.diff(entry_starts[_shares(layer, groups)])
    # The first vector of local memory is zero.
    columns += VECTOR * (1 - np.repeat(ranges_of(layer, groups)[:, 0], counts))
    size = VECTOR * int(starts[-1])
    sources, padded = np.full(size, -1, np.int32), np.zeros(size, np.uint16)
    sources[at], padded[at] = slots, columns
    return ListTables(sources, (before + starts).astype(np.int32), padded)


def _shares(layer: SummedLayer, groups: int) -> NDArray[np.int64]:
    """Return the first row of each group's share, and the end of the last."""
    each, more = divmod(outputs_of(layer), groups)
    return np.cumsum([0, *(each + (group < more) for group in range(groups))])


def ranges_of(layer: SummedLayer, groups: int) -> NDArray[np.int64]:
    """Return the first and past vector of each group's inputs [groups, 2]."""
    shares = _shares(layer, groups)
    first, past = np.full(groups, layer.applies[0].storage.n_in), np.zeros(groups, int)
    for apply in layer.applies:
        storage = apply.storage
        if isinstance(storage, SparseStorage):
            columns = storage.pattern.columns
            for group, (a, b) in enumerate(pairwise(storage.pattern.starts[shares])):
                if a < b:
                    first[group] = min(first[group], columns[a:b].min())
                    past[group] = max(past[group], columns[a:b].max() + 1)
        elif isinstance(storage, LocalStorage):
            first = np.minimum(first, shares[:-1])
            past = np.maximum(past, shares[1:] + storage.window - 1)
        else:
            first[:], past[:] = 0, storage.n_in
    first = np.minimum(first, past)  # of groups without entries
    return np.stack([first // VECTOR, -(-past // VECTOR)], axis=1)


@dataclass(frozen=True)
class Tasks:
    """The tasks of each group."""

    span: Span
    config: Config
    device: Device

    @property
    def most(self) -> int:
        """Tasks of a group: the kernel reads ahead."""
        return len(layers_of(self.span)) + LOOK_AHEAD

    def table(self) -> Constant:
        """Return the kernel's table [groups, most] as an argument."""
        shape = ", ".join(f"{name} {value}" for name, value in self.config.items())
        shape += f", rows by {warp_team(self.device)}"
        weights = [a.weights.offset for x in layers_of(self.span) for a in x.applies]
        key = f"persistent_mixed {weights}, tasks of {shape}"
        return Constant(key, self._make)

    def _make(self) -> NDArray[Any]:
        layers, groups = layers_of(self.span), self.config["groups"]
        words = list(accumulate(words_of(self.span), initial=0))
        table = np.zeros((groups, self.most), TASK)
        filled = np.zeros(groups, np.int64)
        starts = 0  # of the rows of lists
        for number, layer in enumerate(layers):
            shares, act = _shares(layer, groups), layer.act
            rows, last = np.diff(shares), number + 1 == len(layers)
            shift = team_shift(layer, self.config, self.device)
            longest = longest_row(layer)
            ranges = ranges_of(layer, groups)
            weights = layer.applies[0].weights.offset // VECTOR + shares[:-1] * longest
            if not is_dense(layer):
                weights = starts + shares[:-1]
                starts += outputs_of(layer) + 1
            tasks = np.zeros(groups, TASK)
            tasks["words"] = words[number] + VECTOR * ranges[:, 0]
            tasks["inputs"] = tasks["padded"] = ranges[:, 1] - ranges[:, 0]
            if is_dense(layer):
                step = self.config["depth"] << shift
                tasks["inputs"] = padded_inputs(layer) // VECTOR
                tasks["padded"] = round_up(padded_inputs(layer) // VECTOR, step)
            tasks["is_list"], tasks["shift"] = not is_dense(layer), shift
            tasks["rows"], tasks["vectors"] = rows, longest
            tasks["weights"] = weights
            tasks["outputs"] = shares[:-1] + (0 if last else words[number + 1])
            tasks["position"] = 0 if number == 0 else 2 if last else 1
            if not last:
                tasks["pads"][shares[1:] == outputs_of(layer)] = (
                    padded_inputs(layers[number + 1]) - outputs_of(layer)
                )
            step_of_bias = int(not act.shared)
            tasks["bias"] = -1
            if act.bias is not None:
                tasks["bias"] = act.bias.offset + step_of_bias * shares[:-1]
            tasks["bias_step"] = step_of_bias
            tasks["function"] = functions_of(self.span).index(act.nonlinearity)
            working = np.flatnonzero(rows)
            table[working, filled[working]] = tasks[working]
            filled[working] += 1
        return table.view(np.int32)
