"""Candidates: the eligible variants and configurations of each span of a program.

Their times are modelled. They rank and prune before measuring, and replace measured
times where nothing may be measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING

from clnet.ir.ops import Apply, BiasAct, Program, Span, Value
from clnet.nn.storage.layout import Slot
from clnet.opencl.device import Device
from clnet.planning.cover import Candidate
from clnet.runtime.binding import Step
from clnet.variants.base import Config, Variant
from clnet.variants.reference.host import Host

if TYPE_CHECKING:
    from clnet.variants.cost import Cost

# Peak flops and bytes a second of a compute unit, for the model alone.
RATES = {"cpu": (5e10, 2e10), "gpu": (4e11, 3e10)}
LONGEST = {"op": 1, "pair": 2, "triple": 3}  # ops of a span

Configs = Callable[[Variant, Span, Device], Sequence[Config]]
Refusals = dict[tuple[str, str], list[tuple[int, int]]]
_Priced = tuple[str | None, list[tuple[Config, float]]]  # refusal; modelled seconds


def eligible(
    program: Program,
    batch: int,
    measured_batch: int,
    variants: Iterable[Variant],
    device: Device,
    configs: Configs,
    refusals: Refusals,
) -> Iterator[Candidate]:
    """Yield every eligible candidate.

    Parameters
    ----------
    program : Program
        The program to cover.
    batch, measured_batch : int
        Samples of the steps; and of the representative batch, which gives the
        configurations and the modelled times.
    variants : iterable of Variant
        The variants to search.
    device : Device
        The device, with its companions.
    configs : callable
        Returns the configurations of a variant to consider for a span.
    refusals : dict of (variant name, sentence) to list of (start, stop)
        The refused spans are added to it.
    """
    # Equal layers are priced once: by shapes, which are equal objects where they are
    # equal, so that they are hashed once a span.
    shapes: dict[tuple[object, ...], int] = {}
    numbers: dict[tuple[int, int], int] = {}
    found: dict[tuple[str, int, int], _Priced] = {}

    def priced_once(variant: Variant, start: int, stop: int, target: Device) -> _Priced:
        if stop - start > max(LONGEST.values()):
            return priced(variant, start, stop, target)
        if (start, stop) not in numbers:
            spans = (program.span(start, stop, b) for b in (batch, measured_batch))
            shape = tuple(map(shape_of, spans))
            numbers[start, stop] = shapes.setdefault(shape, len(shapes))
        key = variant.name, numbers[start, stop], id(target)
        if key not in found:
            found[key] = priced(variant, start, stop, target)
        return found[key]

    def priced(variant: Variant, start: int, stop: int, target: Device) -> _Priced:
        refusal = variant.refuse(program.span(start, stop, batch), target)
        span = program.span(start, stop, measured_batch)
        costs = [] if refusal else [
            (config, modelled(variant.cost(span, config, target), target))
            for config in configs(variant, span, target)
        ]
        if not costs:
            refusal = refusal or "it has no configuration for this size"
        return refusal, costs

    for variant in variants:
        host = isinstance(variant, Host)
        for start, stop in _spans(program, batch, variant, device):
            span = program.span(start, stop, batch)
            for target in (device,) if host else device.places:
                refusal, costs = priced_once(variant, start, stop, target)
                if refusal:
                    refused = refusals.setdefault((variant.name, refusal), [])
                    if (start, stop) not in refused:
                        refused.append((start, stop))
                for config, seconds in costs:
                    step = Step(span, variant, config, None if host else target)
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
    program: Program, batch: int, variant: Variant, device: Device
) -> Iterable[tuple[int, int]]:
    """Return the spans within a variant's reach, as pairs of op numbers."""
    n = len(program.ops)
    if variant.reach == "program":
        return [(0, n)]
    if variant.reach in LONGEST:
        longest = LONGEST[variant.reach]
        return [(i, i + k) for k in range(1, longest + 1) for i in range(n - k + 1)]
    single = [
        (i, i + 2) for i in range(n - 1)
        if program.span(i, i + 2, batch).chain is not None
    ]
    if variant.reach == "layer":
        return single

    def computes(start: int, stop: int) -> bool:
        return variant.refuse(program.span(start, stop, batch), device) is None

    # Runs: each layer alone, and the longest runs of layers that it does not refuse. It
    # may refuse one layer and compute two.
    runs = list(single)
    layers = _layers(program)
    left = layers
    while left:
        ends = [stop for _, stop in left]
        length = prefix(ends, partial(computes, left[0][0]))
        if length > 1:
            runs.append((left[0][0], ends[length - 1]))
        left = left[length:]
    # With shortcuts it may compute all layers and no fewer.
    if len(layers) > 1:
        whole = layers[0][0], layers[-1][1]
        if whole not in runs and computes(*whole):
            runs.append(whole)
    return runs


def prefix(ends: Sequence[int], holds: Callable[[int], bool]) -> int:
    """Return how many ends, at least one, come before the first that does not hold.

    Found by doubling: all ends before one that holds are taken to hold.
    """
    low, high = 1, 2
    while high <= len(ends) and holds(ends[high - 1]):
        low, high = high, 2 * high
    high = min(high, len(ends) + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(ends[middle - 1]) else (low, middle)
    return low


def _layers(program: Program) -> list[tuple[int, int]]:
    """Return each layer's span: its products, bias and activation."""
    found = []
    start: int | None = None
    for number, op in enumerate(program.ops):
        if isinstance(op, Apply) and start is None:
            start = number
        elif isinstance(op, BiasAct) and start is not None:
            found.append((start, number + 1))
            start = None
    return found


def modelled(cost: Cost, device: Device) -> float:
    """Return the modelled seconds of a cost on a device: roofline plus launches."""
    flops, bytes_ = RATES["cpu" if device.type == "cpu" else "gpu"]
    units = max(1, cost.compute_units) * cost.efficiency
    busy = max(cost.flops / (flops * units), cost.bytes / (bytes_ * units))
    return busy + cost.launches * device.launch_cost
