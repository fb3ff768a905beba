"""persistent: a chain of dense layers in one launch over all compute units."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from clnet.ir.ops import Span
from clnet.nn.storage.layout import round_up
from clnet.opencl.device import Device
from clnet.opencl.launch import (
    ByValueInput,
    Launch,
    Parameters,
    Scratch,
    TimeoutFlag,
    ZeroCopyOutput,
)
from clnet.opencl.program import inline_ptx
from clnet.variants.base import (
    Config,
    Cost,
    Reach,
    refuse_unless_dense_layers,
    refuse_unless_forward_progress,
    span_bytes,
    span_flops,
)
from clnet.variants.dense.chain import chain, chain_defines, strides, table
from clnet.variants.dense.mma import REGISTERS
from clnet.variants.packing import WARP

BULK = 90  # the generation of PTX that copies in bulk
# What is tried, the usually best first. Without bulk copies: work-items of a group,
# vectors on their way.
DEPTHS = ((256, 8), (128, 4), (192, 8), (256, 16), (512, 16))
# With them: groups a compute unit, work-items that compute, rows in registers, pieces
# on their way (behind more, what is looked for would come late); where the weights stay
# in the last cache between launches, and where they do not.
CACHED = ((1, 128, 4, 4), (1, 128, 8, 4), (1, 256, 4, 4))
STREAMED = ((1, 256, 8, 6), (1, 256, 4, 4), (2, 128, 4, 2), (2, 256, 4, 2))
CACHE = 28 << 20  # bytes of weights that are asked to stay there
PIECE = 12 << 10  # bytes of a piece of more than one row, at most, if from memory
SLOTS = 32  # at most: each is readied by a work-item
# Bytes of local memory that the only group of a unit declares where weights come from
# memory, if a unit has as much.
DEEP_RING = 160 << 10
HOLDERS = (8, 4, 2, 1)  # work-items that add up a row's sums
OWN = 176  # of a work-item at most
BACKOFF_NS = 40  # ns between looks, where they share a path with weights
MAX_POLLS = 1 << 22  # looks at a word: some seconds
BY_VALUE = 224  # inputs: OpenCL promises 1 KiB for all arguments of a kernel
WORD = 4  # bytes of a value, of its word, and of a launch's number
VECTOR = 16  # bytes
FLAGS = 16  # bytes of a slot's two
LINE = 32  # words; layers' words share no line of a cache


@dataclass(frozen=True)
class Persistent:
    """Groups that stay for all layers of one sample.

    Config: ``group``, work-items of a group that compute. Where they load weights
    (``persistent.cl``): ``depth``, vectors of weights that each keeps on their way.
    Where weights are copied in bulk (``persistent_ring.cl``): ``per_unit``, groups a
    compute unit; ``rows`` in registers at once; rows of a ``piece`` copied at once;
    pieces in ``flight`` at once.
    """

    name: str = "persistent"
    reach: Reach = "run"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse batches, and devices whose groups may run one after the other."""
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
                "it keeps two layers' inputs in local memory, of "
                f"{max(strides(span))} values at most, and {device.name} has room for "
                f"{device.local_memory} bytes"
            )
        return None

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Shapes that have the room that they need."""
        return self._configs(span, device)

    def _configs(self, span: Span, device: Device) -> tuple[Config, ...]:
        rings = _rings(span, device) if inline_ptx(device) >= BULK else ()
        fitting = [config for config in rings if _ring_fits(span, config, device)]
        # The fewer times a share's rows are summed, the better.
        fitting.sort(key=lambda c: -(-_share(span, c, device) // c["rows"]))
        return tuple(fitting) or tuple(
            {"group": group, "depth": depth}
            for group, depth in DEPTHS
            if group <= device.largest_group
            and 2 * WORD * _room(span, depth, device) < device.local_memory
        )

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count what the span must move."""
        return Cost(
            flops=span_flops(span),
            bytes=span_bytes(span),
            launches=1,
            scratch=WORD * (2 * sum(_words(span)) + _groups(config, device)),
            compute_units=device.compute_units,
        )

    def launches(
        self, span: Span, config: Config, device: Device
    ) -> tuple[Launch, ...]:
        """Return the one launch, of all groups that run at the same time."""
        layers = chain(span)
        group, groups, words = config["group"], _groups(config, device), _words(span)
        defines = {
            **chain_defines(span),
            "GROUP": group,
            "MAX_POLLS": MAX_POLLS,
            "WORDS": table(accumulate(words[:-1], initial=0)),
            "IN_ALL": sum(words),
        }
        if "piece" in config:
            kernel, size = "persistent_ring", group + WARP
            defines |= _ring(span, config, device)
        else:
            kernel, size = "persistent", group
            defines |= {
                "BACKOFF_NS": BACKOFF_NS,
                "TEAM": _team(device),
                "DEPTH": config["depth"],
                "ROOM": _room(span, config["depth"], device),
            }
        x, y = layers[0].apply.x, layers[-1].act.y
        given = (ByValueInput(x),) if x.width <= BY_VALUE else ()
        defines["BY_VALUE"] = len(given) * x.width
        return (
            Launch(
                f"dense/{kernel}.cl", kernel, defines, (groups * size,), (size,),
                (
                    Parameters(), x, x.width, y,
                    Scratch("words", 2 * WORD * sum(words)),
                    Scratch("launches", WORD * groups), TimeoutFlag(),
                    ZeroCopyOutput(y), *given,
                ),
            ),
        )


def _groups(config: Config, device: Device) -> int:
    return device.compute_units * config.get("per_unit", 1)


def _team(device: Device) -> int:
    return WARP if inline_ptx(device) else 1


def _room(span: Span, depth: int, device: Device) -> int:
    """Return the values of the widest input, in whole steps of a team."""
    return round_up(max(strides(span)), 4 * depth * _team(device))


def _words(span: Span) -> list[int]:
    """Return the words of each layer's inputs; those of the first layer are none."""
    return [0, *(round_up(layer.n_out, LINE) for layer in chain(span)[:-1])]


def _share(span: Span, config: Config, device: Device) -> int:
    """Return the rows of a group's largest share of a layer."""
    return -(-max(x.n_out for x in chain(span)) // _groups(config, device))


def _row(span: Span) -> int:
    """Return the vectors of a row of the widest layer."""
    return -(-max(strides(span)) * WORD // VECTOR)


def _streamed(span: Span) -> bool:
    """Tell whether the weights are too many to stay in the last cache."""
    return span_bytes(span) > CACHE


def _rings(span: Span, device: Device) -> tuple[Config, ...]:
    """Return the configs of ``persistent_ring.cl`` that are tried."""
    streamed = _streamed(span)
    most = PIECE if streamed else device.declared_local_memory // 3
    fitting = max(most // (_row(span) * VECTOR), 1)
    whole = 1 << (fitting.bit_length() - 1)
    return tuple(
        {
            "group": group, "per_unit": count, "rows": rows,
            "piece": min(whole, rows if streamed else rows // 2), "flight": flight,
        }
        for count, group, rows, flight in (STREAMED if streamed else CACHED)
    )


def _ring(span: Span, config: Config, device: Device) -> dict[str, int]:
    """Return the macros of ``persistent_ring.cl`` that a config decides on."""
    group, rows, piece = config["group"], config["rows"], config["piece"]
    streamed, share, row = _streamed(span), _share(span, config, device), _row(span)
    most = round_up(share, rows)
    halvings = rows.bit_length() - 1 if streamed else 0
    sums = group >> halvings
    # All rows are added up at once, and the last vector filled up.
    least = max(share + VECTOR // WORD - 1, group * VECTOR // WORD // sums)
    holders = next((n for n in HOLDERS if n * least <= group), HOLDERS[-1])
    room = device.declared_local_memory
    if streamed and config["per_unit"] == 1:
        room = max(room, min(DEEP_RING, device.unit_local_memory))
    left = room - 2 * most * sums * WORD
    slots = min(left // (piece * row * VECTOR + FLAGS), SLOTS)
    return {
        "GROUPS": _groups(config, device),
        "SLOTS": slots,
        "SLOT": piece * row,
        "PIECE": piece,
        "FLIGHT": min(config["flight"], slots),
        "ROWS": rows,
        "VECTORS": -(-row // group),
        "MOST": most,
        "HALVINGS": halvings,
        "HOLDERS": holders,
        "KEEP": min(100 * CACHE // span_bytes(span), 100),
        "BACKOFF_NS": 0,
    }


def _ring_fits(span: Span, config: Config, device: Device) -> bool:
    """Tell whether a config's groups have room, all at the same time."""
    group, rows = config["group"], config["rows"]
    size = group + WARP
    ring = _ring(span, config, device)
    vectors = ring["VECTORS"]
    # What a work-item holds: weights, values and sums, and what else it takes.
    registers = round_up(4 * vectors * rows + 9 * vectors + 24, 8)
    return (
        ring["SLOTS"] >= 2
        and size <= device.largest_group
        and registers <= OWN
        and registers * size * config["per_unit"] <= REGISTERS
        # One work-item adds up a row, or fills up the last vector.
        and _share(span, config, device) + VECTOR // WORD <= group
    )
