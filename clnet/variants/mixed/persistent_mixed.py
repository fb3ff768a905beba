"""persistent_mixed: sparse, local and dense layers in one launch over all units."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clnet.nn.storage.dense import RowStorage
from clnet.nn.storage.layout import live_count, round_up
from clnet.opencl.launch import (
    PARAMETERS,
    TIMEOUT_FLAG,
    ByValueInput,
    Launch,
    Launches,
    Packed,
    Scratch,
    ZeroCopyOutput,
)
from clnet.variants.base import Config, Reach, refuse_unless_forward_progress
from clnet.variants.cost import Cost, span_bytes, span_flops
from clnet.variants.dense.chain import functions_defines
from clnet.variants.dense.persistent import (
    BACKOFF_NS,
    BY_VALUE,
    MAX_POLLS,
    WORD,
)
from clnet.variants.macros import real
from clnet.variants.mixed.products import (
    layers_of,
    refuse_unless_several_layers,
)
from clnet.variants.mixed.tasks import (
    VECTOR,
    Lists,
    Tasks,
    functions_of,
    is_dense,
    largest_share,
    longest_row,
    outputs_of,
    room_of,
    team_shift,
    words_of,
)
from clnet.variants.team import warp_team

if TYPE_CHECKING:
    from clnet.ir.program import Span
    from clnet.opencl.device import Device

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
            live_count(apply.storage)
            for layer in layers_of(span) if not is_dense(layer)
            for apply in layer.applies
        )
        groups, moved = config["groups"], span_bytes(span) + COLUMN_BYTES * entries
        return Cost(
            flops=span_flops(span),
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
            Launch(
                "mixed/persistent_mixed.cl", "gather_lists", defines,
                (round_up(size, gather_group),), (gather_group,),
                (PARAMETERS, lists.table("sources"), packed, size),
                when="parameters",
            ),
            Launch(
                "mixed/persistent_mixed.cl", "persistent_mixed", defines,
                (groups * group,), (group,),
                (
                    PARAMETERS, packed, lists.table("starts"),
                    lists.table("columns"), tasks.table(), x, x.width, y,
                    Scratch("words", 2 * WORD * words),
                    Scratch("launches", WORD * groups), TIMEOUT_FLAG,
                    ZeroCopyOutput(y), *by_value,
                ),
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
