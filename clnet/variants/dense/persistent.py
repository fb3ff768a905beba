"""persistent: a chain of dense layers in one launch over all compute units."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from clnet.nn.storage.layout import round_up
from clnet.opencl.launch import (
    PARAMETERS,
    TIMEOUT_FLAG,
    ByValueInput,
    Launch,
    Launches,
    Scratch,
    ZeroCopyOutput,
)
from clnet.opencl.program import inline_ptx
from clnet.variants.base import (
    Config,
    Reach,
    cached_percent,
    kept_cache,
    refuse_unless_dense_layers,
    refuse_unless_forward_progress,
)
from clnet.variants.cost import Cost, span_bytes, span_cost
from clnet.variants.dense.chain import chain, chain_defines, strides, wide_table
from clnet.variants.packing import LINE_WORDS, WARP

if TYPE_CHECKING:
    from clnet.ir.program import Span
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
BACKOFF_NS = 40  # between polls, where they share a path with weights
MAX_POLLS = 1 << 22  # of a word: some seconds
BY_VALUE = 224  # inputs: OpenCL guarantees 1 KiB for all arguments of a kernel
WORD = 4  # bytes of a value, of its word, and of a launch count
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


def warp_team(device: Device) -> int:
    """Return the work-items that may share a row's sum by shuffles: a warp, or one."""
    return WARP if inline_ptx(device) else 1


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
    streamed = span_bytes(span) > kept << 20
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
        "L2_PERCENT": cached_percent(config["kept"], span_bytes(span)) if streamed
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
