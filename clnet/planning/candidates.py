"""Candidates: which variant may compute which span of a program, and how fast.

The times here are a model's. They say what is worth measuring, and stand in where
nothing may be measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from clnet.ir.ops import Apply, BiasAct, Program, Span
from clnet.opencl.device import Device
from clnet.planning.cover import Candidate
from clnet.runtime.binding import Step
from clnet.variants.base import Config, Cost, Variant
from clnet.variants.reference.host import Host

# What a compute unit does at best, for the model only: flops and bytes a second.
RATES = {"cpu": (5e10, 2e10), "gpu": (4e11, 3e10)}
LONGEST = {"op": 1, "pair": 2, "triple": 3}  # ops of a span

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
    """Yield every eligible candidate.

    Parameters
    ----------
    program : Program
        What is to be computed.
    batch, measured_batch : int
        Samples of the steps; and of the batch that is measured, whose configurations
        and modelled times all batches have that it stands for.
    variants : iterable of Variant
        Those that may be used.
    device : Device
        With its companions.
    configs : callable
        Returns which of a variant's configurations are considered for a span.
    refusals : dict of (variant name, sentence) to list of (start, stop)
        Filled with why the others are not eligible.
    """
    for variant in variants:
        host = isinstance(variant, Host)
        for start, stop in _spans(program, batch, variant, device):
            span = program.span(start, stop, batch)
            priced = program.span(start, stop, measured_batch)
            for place in (device,) if host else device.places:
                sentence = variant.refuse(span, place)
                found = [] if sentence else configs(variant, priced, place)
                if not found:
                    sentence = sentence or "it has no configuration for this size"
                    where = refusals.setdefault((variant.name, sentence), [])
                    if (start, stop) not in where:
                        where.append((start, stop))
                    continue
                for config in found:
                    step = Step(span, variant, config, None if host else place)
                    cost = variant.cost(priced, config, place)
                    yield Candidate(start, stop, step, modelled(cost, place))


def _spans(
    program: Program, batch: int, variant: Variant, device: Device
) -> Iterable[tuple[int, int]]:
    """Return the spans that a variant may compute, as pairs of op numbers."""
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

    # A run: each layer alone, and the longest rows of layers that it does not refuse;
    # it may refuse one and take two.
    runs = list(single)
    layers = _layers(program)
    first = 0
    while first < len(layers):
        start, last = layers[first][0], first
        while last + 1 < len(layers) and computes(start, layers[last + 1][1]):
            last += 1
        if last > first:
            runs.append((start, layers[last][1]))
        first = last + 1
    # Where layers read several earlier ones, all may be possible and no fewer.
    if len(layers) > 1:
        whole = layers[0][0], layers[-1][1]
        if whole not in runs and computes(*whole):
            runs.append(whole)
    return runs


def _layers(program: Program) -> list[tuple[int, int]]:
    """Return where each layer's ops are: its products, and what ends its sums."""
    found = []
    start: int | None = None
    for number, op in enumerate(program.ops):
        if isinstance(op, Apply) and start is None:
            start = number
        elif isinstance(op, BiasAct) and start is not None:
            found.append((start, number + 1))
            start = None
    return found


def modelled(cost: Cost, place: Device) -> float:
    """Return the seconds that the model gives for a cost on a place."""
    flops, bytes_ = RATES["cpu" if place.type == "cpu" else "gpu"]
    units = max(1, cost.compute_units) * cost.efficiency
    busy = max(cost.flops / (flops * units), cost.bytes / (bytes_ * units))
    return busy + cost.launches * place.launch_cost
