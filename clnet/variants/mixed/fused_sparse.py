"""fused_sparse: whole networks with sparse layers in one launch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clnet.ir.activation import BiasAct
from clnet.ir.product import Apply
from clnet.nn.storage.dense import RowStorage
from clnet.nn.storage.local import LocalStorage
from clnet.nn.storage.sparse import CooStorage, CsrStorage, SparseStorage, index_array
from clnet.opencl.launch import PARAMETERS, Launch, Launches, Scratch
from clnet.variants.base import (
    MIXED_ACTIVATIONS,
    MORE_OUTPUTS,
    NO_WHOLE_LAYERS,
    Config,
    Reach,
    largest_group,
    tables,
    unsupported_dtype,
)
from clnet.variants.cost import Cost, span_cost
from clnet.variants.dense.chain import functions_defines
from clnet.variants.macros import real
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
