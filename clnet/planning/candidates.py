"""Candidates: the eligible variants and configurations of each span of a program.

Their times are modelled. They rank and prune before measuring, and replace measured
times where nothing may be measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from clnet.ir.ops import Apply, BiasAct, Program, Span
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
    for variant in variants:
        host = isinstance(variant, Host)
        for start, stop in _spans(program, batch, variant, device):
            span = program.span(start, stop, batch)
            priced = program.span(start, stop, measured_batch)
            for target in (device,) if host else device.places:
                refusal = variant.refuse(span, target)
                found = [] if refusal else configs(variant, priced, target)
                if not found:
                    refusal = refusal or "it has no configuration for this size"
                    refused = refusals.setdefault((variant.name, refusal), [])
                    if (start, stop) not in refused:
                        refused.append((start, stop))
                    continue
                for config in found:
                    step = Step(span, variant, config, None if host else target)
                    cost = variant.cost(priced, config, target)
                    yield Candidate(start, stop, step, modelled(cost, target))


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
    first = 0
    while first < len(layers):
        start, last = layers[first][0], first
        while last + 1 < len(layers) and computes(start, layers[last + 1][1]):
            last += 1
        if last > first:
            runs.append((start, layers[last][1]))
        first = last + 1
    # With shortcuts it may compute all layers and no fewer.
    if len(layers) > 1:
        whole = layers[0][0], layers[-1][1]
        if whole not in runs and computes(*whole):
            runs.append(whole)
    return runs


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
