"""persistent: a chain of dense layers in one launch over all compute units."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from clnet.device import Device
from clnet.ops import Span, round_up
from clnet.program import inline_ptx
from clnet.variants.base import (
    Config,
    Cost,
    Distress,
    Launch,
    Parameters,
    Reach,
    Scratch,
    refuse_unless_dense_layers,
    span_bytes,
    span_flops,
)
from clnet.variants.chain import chain, chain_defines, strides, table

LOCK_STEP = 32  # work-items of a team where PTX adds their sums
# Work-items of a group, vectors on their way, steps brought to the last cache: the
# usually best first, where the weights stay in that cache between calls, and else.
CACHED = ((256, 8, 0), (128, 4, 0), (192, 8, 0), (256, 16, 1))
STREAMED = ((256, 16, 1), (512, 16, 1), (256, 8, 1), (256, 8, 0))
CACHE = 1 << 25  # bytes of weights that are taken to stay there
NAP = 40  # ns
PATIENCE = 1 << 22  # looks at a word: some seconds
WORD = 4  # bytes of a value, of its word, and of a launch's number
LINE = 32  # words; layers' words share no line of a cache


@dataclass(frozen=True)
class Persistent:
    """One group a compute unit stays for all layers of one sample (``persistent.cl``).

    Config: ``group``, work-items of a group; ``depth``, vectors of weights that a
    work-item keeps on their way; ``ahead``, steps of so many that are brought to the
    last cache before.
    """

    name: str = "persistent"
    reach: Reach = "run"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse batches, and devices whose groups may run one after the other."""
        refusal = refuse_unless_dense_layers(span, device)
        if refusal is not None:
            return refusal
        if not device.concurrent_groups:
            return (
                "its groups wait for each other, and those of a launch on "
                f"{device.name} may run one after the other"
            )
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
        """Shapes that leave room for a layer's inputs twice."""
        return self._configs(span, device)

    def _configs(self, span: Span, device: Device) -> tuple[Config, ...]:
        return tuple(
            {"group": group, "depth": depth, "ahead": ahead}
            for group, depth, ahead in (
                CACHED if span_bytes(span) <= CACHE else STREAMED
            )
            if group <= device.largest_group
            and 2 * WORD * _room(span, depth, device) < device.local_memory
        )

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count what the span must move."""
        return Cost(
            flops=span_flops(span),
            bytes=span_bytes(span),
            launches=1,
            scratch=WORD * (2 * sum(_words(span)) + device.compute_units),
            compute_units=device.compute_units,
        )

    def launches(
        self, span: Span, config: Config, device: Device
    ) -> tuple[Launch, ...]:
        """Return the one launch, of a group for each compute unit."""
        layers = chain(span)
        group, depth = config["group"], config["depth"]
        groups = device.compute_units
        words = _words(span)
        defines = {
            **chain_defines(span),
            "GROUP": group,
            "TEAM": _team(device),
            "DEPTH": depth,
            "AHEAD": config["ahead"],
            "ROOM": _room(span, depth, device),
            "PATIENCE": PATIENCE,
            "NAP": NAP,
            "WORDS": table(accumulate(words[:-1], initial=0)),
            "IN_ALL": sum(words),
        }
        x, y = layers[0].apply.x, layers[-1].act.y
        return (
            Launch(
                "persistent.cl", "persistent", defines, (groups * group,), (group,),
                (
                    Parameters(), x, x.width, y,
                    Scratch("words", 2 * WORD * sum(words)),
                    Scratch("launches", WORD * groups), Distress(),
                ),
            ),
        )


def _team(device: Device) -> int:
    return LOCK_STEP if inline_ptx(device) else 1


def _room(span: Span, depth: int, device: Device) -> int:
    """Return the values of the widest input, in whole steps of a team."""
    return round_up(max(strides(span)), 4 * depth * _team(device))


def _words(span: Span) -> list[int]:
    """Return the words of each layer's inputs; those of the first layer are none."""
    return [0, *(round_up(layer.n_out, LINE) for layer in chain(span)[:-1])]
