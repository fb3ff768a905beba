"""Candidates: the eligible variants and configurations of each span of a program.

Their times are modelled. They rank and prune before measuring, and replace measured
times where nothing may be measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from functools import cache, partial

from clnet.ir.activation import BiasAct
from clnet.ir.loss import Loss
from clnet.ir.op import Value
from clnet.ir.product import Apply
from clnet.ir.program import Program, Span
from clnet.nn.storage.layout import Slot
from clnet.opencl.device import Device
from clnet.planning.cover import Candidate
from clnet.runtime.binding import PlanStep
from clnet.variants.base import Config, MemberVariant, Reach, Variant
from clnet.variants.cost import modelled
from clnet.variants.reference.generic import Host

LONGEST = {"op": 1, "pair": 2, "triple": 3, "quad": 4}  # ops of a span
# Ops of a training step's last layer: `Apply` and `BiasAct`; and, from the loss on,
# `Loss`, `Tally`, `Outer`, `BiasGrad`, `ApplyT`, `ActGrad`.
BEFORE_LOSS, FROM_LOSS = 2, 6
LONGEST_ALIKE = 4  # ops of spans whose shapes are compared: two dense layers

Configs = Callable[[Variant, Span, Device], Sequence[Config]]
Refusals = dict[tuple[str, str], list[tuple[int, int]]]


def eligible(
    program: Program,
    batch: int,
    measured_batch: int,
    variants: Iterable[Variant],
    device: Device,
    configs: Configs,
    refusals: Refusals,
) -> Iterator[Candidate]:
    """Yield every eligible candidate."""
    shapes: dict[tuple[object, ...], int] = {}

    @cache
    def shape(start: int, stop: int) -> int:
        """Return a number that spans which are refused and priced alike share."""
        alike: tuple[object, ...] = start, stop
        if stop - start <= LONGEST_ALIKE:
            batches = {batch, measured_batch}
            alike = tuple(shape_of(program.span(start, stop, b)) for b in batches)
        return shapes.setdefault(alike, len(shapes))

    refused: dict[tuple[str, int, int], str | None] = {}

    def refusal(variant: Variant, target: Device, start: int, stop: int) -> str | None:
        key = variant.name, shape(start, stop), id(target)
        if key not in refused:
            refused[key] = variant.refuse(program.span(start, stop, batch), target)
        return refused[key]

    def priced(
        variant: Variant, target: Device, start: int, stop: int
    ) -> tuple[str | None, list[tuple[Config, float]]]:
        """Return the refusal, and the configurations with their modelled seconds."""
        reason = refusal(variant, target, start, stop)
        span = program.span(start, stop, measured_batch)
        costs = [] if reason else [
            (config, modelled(variant.cost(span, config, target), target))
            for config in configs(variant, span, target)
        ]
        if not costs:
            reason = reason or "it has no configuration for this size"
        return reason, costs

    for variant in variants:
        host = isinstance(variant, Host)
        alone = isinstance(variant, MemberVariant)  # companions train one network
        groups: dict[int, list[tuple[int, int]]] = {}
        refuses = partial(refusal, variant, device)
        for span in _spans(program, batch, variant.reach, refuses):
            groups.setdefault(shape(*span), []).append(span)
        for group in groups.values():
            for target in (device,) if host or alone else device.places:
                # Equal spans are priced once.
                reason, costs = priced(variant, target, *group[0])
                if reason:
                    known = refusals.setdefault((variant.name, reason), [])
                    seen = set(known)
                    known += [span for span in group if span not in seen]
                for config, seconds in costs:
                    for start, stop in group:
                        ops = program.span(start, stop, batch)
                        step = PlanStep(ops, variant, config, None if host else target)
                        yield Candidate(start, stop, step, seconds)


def shape_of(span: Span) -> tuple[object, ...]:
    """Return what is equal for spans that differ in names and offsets alone.

    Names of values, and offsets of slots in the parameters.
    """
    numbers: dict[str, int] = {}

    def anonymous(item: object) -> object:
        if isinstance(item, Value):
            number = numbers.setdefault(item.name, len(numbers))
            return number, item.width, item.stride, item.rows
        if isinstance(item, Slot):
            return item.size
        if isinstance(item, tuple):
            return tuple(map(anonymous, item))
        return item

    ops = tuple(
        (type(op), *(anonymous(getattr(op, field.name)) for field in fields(op)))
        for op in span.ops
    )
    return ops, span.batch, span.dtype, anonymous(span.outputs), span.precision


def _spans(
    program: Program, batch: int, reach: Reach,
    refuses: Callable[[int, int], str | None],
) -> Iterable[tuple[int, int]]:
    """Return the spans within a variant's reach, as pairs of op numbers."""
    n = len(program.ops)
    if reach == "program":
        return [(0, n)]
    if reach == "output":
        losses = [i for i, op in enumerate(program.ops) if isinstance(op, Loss)]
        return [(i - BEFORE_LOSS, i + FROM_LOSS) for i in losses if i + FROM_LOSS <= n]
    if reach in LONGEST:
        lengths = range(1, LONGEST[reach] + 1)
        return [(i, i + k) for k in lengths for i in range(n - k + 1)]
    single = [
        (i, i + 2) for i in range(n - 1)
        if program.span(i, i + 2, batch).chain is not None
    ]
    if reach == "layer":
        return single

    layers = _layers(program)

    def run(first: int, length: int) -> tuple[int, int]:
        return layers[first][0], layers[first + length - 1][1]

    def computes(first: int, length: int) -> bool:
        return refuses(*run(first, length)) is None

    # Runs: each layer alone, and the longest runs of layers that it does not refuse. It
    # may refuse one layer and compute two.
    runs = list(single)
    first = 0
    while first < len(layers):
        length = longest(len(layers) - first, partial(computes, first))
        if length > 1:
            runs.append(run(first, length))
        first += length
    # With shortcuts it may compute all layers and no fewer.
    if len(layers) > 1:
        whole = run(0, len(layers))
        if whole not in runs and computes(0, len(layers)):
            runs.append(whole)
    return runs


def longest(limit: int, holds: Callable[[int], bool]) -> int:
    """Return the longest length, from 1 to a limit, before the first that fails.

    Found by doubling: all lengths below one that holds are taken to hold.
    """
    low, high = 1, 2
    while high <= limit and holds(high):
        low, high = high, 2 * high
    high = min(high, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _layers(program: Program) -> list[tuple[int, int]]:
    """Return each layer's span: its products, bias and activation."""
    layers = []
    start: int | None = None
    for number, op in enumerate(program.ops):
        if isinstance(op, Apply) and start is None:
            start = number
        elif isinstance(op, BiasAct) and start is not None:
            layers.append((start, number + 1))
            start = None
    return layers
