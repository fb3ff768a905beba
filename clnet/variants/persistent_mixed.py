"""persistent_mixed: sparse, local and dense layers in one launch over all units."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clnet.device import Device
from clnet.ops import VALUE_ALIGNMENT, Apply, Span, round_up
from clnet.program import inline_ptx
from clnet.storage import LocalStorage, RowStorage, SparseStorage
from clnet.storage.base import Storage
from clnet.variants.base import (
    Config,
    Cost,
    Distress,
    Given,
    Launch,
    Packed,
    Parameters,
    Reach,
    Scratch,
    Table,
    real,
    refuse_unless_groups_meet,
    span_bytes,
    span_flops,
)
from clnet.variants.chain import functions_defines, table
from clnet.variants.persistent import GIVEN, LINE, LOCK_STEP, NAP, PATIENCE, WORD
from clnet.variants.products import (
    Layer,
    layers_of,
    live_count,
    live_entries,
    whole_layers,
)

# Work-items of a group, vectors on their way; the usually best first.
SHAPES = ((256, 2), (256, 4), (256, 1), (512, 2), (256, 8), (512, 4), (128, 4))
TOGETHER = 8  # work-items of a row at least, if it is long: they read a line of a cache
FEWER = 2  # times fewer groups than compute units, at least, if fewer
EXCHANGE = 36 << 10  # bytes that a unit could read while groups exchange a layer
TAKERS = 256  # work-items of a group that puts values in order
VECTOR = 4  # values
PLACES = 1 << 16  # at most: they are counted in 16 bits
INDEX = 2  # bytes of a place
SPARE = 64  # bytes of local memory for what is no value


@dataclass(frozen=True)
class PersistentMixed:
    """Groups that stay for all layers of any kind (``persistent_mixed.cl``).

    Config: ``groups``; ``group``, work-items of each; ``depth``, vectors of weights
    that each of those keeps on their way.
    """

    name: str = "persistent_mixed"
    reach: Reach = "run"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse batches, and devices whose groups may run one after the other."""
        refusal = _refuse_layers(span) or refuse_unless_groups_meet(device)
        if refusal is not None:
            return refusal
        if span.batch > 1:
            return "it computes one sample at a time"
        if span.dtype != "float32":
            return "it computes in float32 only"
        if next(self._configs(span, device), None) is None:
            return (
                "it keeps what a group reads of two layers' inputs in local memory, "
                f"and {device.name} has room for {device.local_memory} bytes"
            )
        return None

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Shapes that have the room that they need."""
        return tuple(self._configs(span, device))

    def _configs(self, span: Span, device: Device) -> Iterator[Config]:
        units = device.compute_units
        widest = max(map(_n_out, layers_of(span)))
        for group, depth in SHAPES:
            # Of few rows: no more groups than have one for each team.
            enough = max(1, widest * _team(device) // group)
            for groups in dict.fromkeys((units, min(units, enough))):
                config = {"groups": groups, "group": group, "depth": depth}
                room = _room(span, config, device)
                if (
                    (groups == units or FEWER * groups <= units)
                    and group <= device.largest_group
                    and 2 * WORD * (room + VECTOR) + SPARE <= device.local_memory
                    and room + VECTOR <= PLACES
                ):
                    yield config

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count what the span must move, and the lists' columns."""
        entries = sum(
            live_count(apply.storage)
            for layer in layers_of(span) if not _dense(layer) for apply in layer.applies
        )
        groups, moved = config["groups"], span_bytes(span) + INDEX * entries
        waits = EXCHANGE * len(layers_of(span))
        return Cost(
            flops=span_flops(span),
            bytes=moved,
            launches=1,
            scratch=WORD * (2 * sum(_words(span)) + groups + entries),
            compute_units=groups,
            efficiency=moved / (moved + groups * waits),
        )

    def launches(
        self, span: Span, config: Config, device: Device
    ) -> tuple[Launch, ...]:
        """Return what puts lists in order, and the one launch."""
        layers, groups, group = layers_of(span), config["groups"], config["group"]
        words, lists = _words(span), Lists(span, groups)
        functions = tuple(dict.fromkeys(layer.act.nonlinearity for layer in layers))
        x, y = span.inputs[0], span.outputs[0]
        given = (Given(x),) if x.width <= GIVEN else ()
        numbers = iter(range(len(layers)))
        starts = list(
            accumulate((0 if _dense(x) else _n_out(x) + 1 for x in layers), initial=0)
        )
        biases = [layer.act.bias for layer in layers]
        defines: dict[str, int | str] = {
            "REAL": real(span), "GROUP": group, "GROUPS": groups,
            "DEPTH": config["depth"], "ROOM": _room(span, config, device),
            "PATIENCE": PATIENCE, "NAP": NAP, "GIVEN": len(given) * x.width,
            "LAYERS": len(layers),
            "N_OUT": table(map(_n_out, layers)),
            "INPUTS": table(_padded(layer) // VECTOR for layer in layers),
            "WORDS": table(accumulate(words[:-1], initial=0)), "IN_ALL": sum(words),
            "LISTS": table(-1 if _dense(x) else next(numbers) for x in layers),
            "STARTS": table(starts[:-1]),
            "WEIGHTS": table(x.applies[0].weights.offset // VECTOR for x in layers),
            "LONGEST": table(map(_longest, layers)),
            "SHIFTS": table(_shift(layer, config, device) for layer in layers),
            "BIAS": table(-1 if bias is None else bias.offset for bias in biases),
            "BIAS_STEP": table(int(not layer.act.shared) for layer in layers),
            "FUNCTION": table(functions.index(x.act.nonlinearity) for x in layers),
            **functions_defines(span, functions),
        }
        packed = Packed(f"{lists.key} values", WORD * VECTOR * lists.vectors)
        size = VECTOR * lists.vectors
        return (
            Launch(
                "persistent_mixed.cl", "take", defines,
                (round_up(size, TAKERS),), (min(TAKERS, device.largest_group),),
                (Parameters(), lists.table("sources"), packed, size),
                when="parameters",
            ),
            Launch(
                "persistent_mixed.cl", "persistent_mixed", defines,
                (groups * group,), (group,),
                (
                    Parameters(), packed, lists.table("starts"),
                    lists.table("ranges"), lists.table("columns"), x, x.width, y,
                    Scratch("words", 2 * WORD * sum(words)),
                    Scratch("launches", WORD * groups), Distress(), *given,
                ),
            ),
        )


def _refuse_layers(span: Span) -> str | None:
    """Return why the span is no chain of layers, one of them not dense."""
    storages = [op.storage for op in span.ops if isinstance(op, Apply)]
    for storage in storages:
        if not isinstance(storage, (RowStorage, SparseStorage, LocalStorage)):
            return f"it reads sparse, dense and local layers, not {storage.name}"
    if all(isinstance(storage, RowStorage) for storage in storages):
        return "it is for networks with sparse or local layers, and here are none"
    layers = whole_layers(span)
    if layers is None:
        return "it computes whole layers, and these ops are none"
    if len(layers) < 2:
        return "it computes several layers a launch, and this is one"
    if span.outputs != (layers[-1].act.y,):
        return "it keeps a last layer's output alone, and more is read later"
    x = layers[0].applies[0].x
    for layer in layers:
        if any(apply.x != x for apply in layer.applies):
            return "its layers read the one before alone, and here one reads others"
        if not layer.act.nonlinearity.uniform:
            return "it applies one activation a layer, and here neurons differ"
        x = layer.act.y
    return None


def _dense(layer: Layer) -> bool:
    """Whether a layer's rows are read as they lie."""
    return len(layer.applies) == 1 and isinstance(layer.applies[0].storage, RowStorage)


def _n_out(layer: Layer) -> int:
    return layer.act.y.width


def _padded(layer: Layer) -> int:
    """Return the inputs of a layer in whole vectors; of a dense one, as rows have."""
    storage = layer.applies[0].storage
    if isinstance(storage, RowStorage):
        return storage.stride
    return round_up(storage.n_in, VALUE_ALIGNMENT)


def _words(span: Span) -> list[int]:
    """Return the words of each layer's inputs; those of the first layer are none."""
    return [0, *(round_up(_padded(layer), LINE) for layer in layers_of(span)[1:])]


def _longest(layer: Layer) -> int:
    """Return the vectors of a layer's longest row, or a few more."""

    def entries(storage: Storage) -> int:
        if isinstance(storage, SparseStorage):
            return storage.pattern.longest
        return storage.window if isinstance(storage, LocalStorage) else storage.n_in

    if _dense(layer):
        return _padded(layer) // VECTOR
    return -(-sum(entries(apply.storage) for apply in layer.applies) // VECTOR)


def _share(layer: Layer, groups: int) -> int:
    """Return the rows of a group's largest share of a layer."""
    return -(-_n_out(layer) // groups)


def _team(device: Device) -> int:
    """Return the work-items that may read a row."""
    return LOCK_STEP if inline_ptx(device) else 1


def _shift(layer: Layer, config: Config, device: Device) -> int:
    """Return n of the 2^n work-items that read a row of a layer."""
    idle = max(TOGETHER, config["group"] // _share(layer, config["groups"]))
    most = min(_team(device), idle).bit_length() - 1
    return min(most, (_longest(layer) - 1).bit_length())


def _room(span: Span, config: Config, device: Device) -> int:
    """Return the values of the widest range that a group may read."""
    most = 0
    for layer in layers_of(span):
        held = _padded(layer)
        storage = layer.applies[0].storage
        if _dense(layer):
            step = config["depth"] << _shift(layer, config, device)
            held = round_up(held, VECTOR * step)
        elif isinstance(storage, LocalStorage):
            rows = _share(layer, config["groups"])
            # A range starts and ends on whole vectors.
            held = min(held, round_up(rows + storage.window - 1 + VECTOR, VECTOR))
        most = max(most, held)
    return most


# Lists ------------------------------------------------------------------------------


class Tables(NamedTuple):
    """The tables of ``persistent_mixed.cl``."""

    sources: NDArray[np.int32]
    starts: NDArray[np.int32]
    ranges: NDArray[np.int32]
    columns: NDArray[np.uint16]


@dataclass(frozen=True)
class Lists:
    """The lists of the layers of a span that are not dense, for so many groups."""

    span: Span
    groups: int

    @property
    def layers(self) -> list[Layer]:
        """The layers that have some."""
        return [layer for layer in layers_of(self.span) if not _dense(layer)]

    @property
    def key(self) -> str:
        """What tells them from those of other layers of a network."""
        offsets = [a.weights.offset for layer in self.layers for a in layer.applies]
        return f"persistent_mixed {offsets} on {self.groups} groups"

    @property
    def vectors(self) -> int:
        """The vectors of all lists."""
        return sum(int(_row_vectors(layer).sum()) for layer in self.layers)

    def table(self, name: str) -> Table:
        """Return one of `Tables` as an argument."""
        return Table(f"{self.key}, {name}", lambda: getattr(self.tables, name))

    @cached_property
    def tables(self) -> Tables:
        """Return all tables, made once."""
        made: list[Tables] = []
        vectors = 0
        for layer in self.layers:
            made.append(_tables(layer, self.groups, vectors))
            vectors += len(made[-1].sources) // VECTOR
        return Tables(*(np.concatenate(parts) for parts in zip(*made, strict=True)))


def _row_vectors(layer: Layer) -> NDArray[np.int64]:
    """Return the vectors of each row of a layer's list [n_out]."""
    entries = np.zeros(_n_out(layer), np.int64)
    for apply in layer.applies:
        storage = apply.storage
        if isinstance(storage, SparseStorage):
            entries += storage.pattern.lengths
        else:
            entries += live_count(storage) // _n_out(layer)
    return -(-entries // VECTOR)


def _tables(layer: Layer, groups: int, before: int) -> Tables:
    """Return the tables of one layer, with so many vectors of others before it."""
    found = [live_entries(apply.storage) for apply in layer.applies]
    rows = np.concatenate([r for r, _, _ in found])
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    columns = np.concatenate([c for _, c, _ in found])[order]
    slots = np.concatenate([
        s + apply.weights.offset
        for (_, _, s), apply in zip(found, layer.applies, strict=True)
    ])[order]
    starts = np.concatenate(([0], np.cumsum(_row_vectors(layer))))
    entry_starts = np.searchsorted(rows, np.arange(_n_out(layer) + 1))
    at = VECTOR * starts[rows] + np.arange(len(rows)) - entry_starts[rows]
    # Shares as the kernel deals them.
    each, more = divmod(_n_out(layer), groups)
    shares = np.cumsum([0, *(each + (g < more) for g in range(groups))])
    ranges = np.zeros((groups, 2), np.int64)
    for group, (a, b) in enumerate(pairwise(entry_starts[shares])):
        if a < b:
            some = columns[a:b]
            ranges[group] = some.min() // VECTOR, some.max() // VECTOR + 1
            # The first vector of local memory is zero.
            columns[a:b] += VECTOR * (1 - ranges[group, 0])
    size = VECTOR * int(starts[-1])
    sources, places = np.full(size, -1, np.int32), np.zeros(size, np.uint16)
    sources[at], places[at] = slots, columns
    return Tables(
        sources, (before + starts).astype(np.int32), ranges.astype(np.int32), places
    )
