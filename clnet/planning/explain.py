"""The plan in words: the chosen cover, what lost, and what was refused and why."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence

from tabulate import tabulate

from clnet.errors import WIDTH
from clnet.ir.lowering import lower
from clnet.ir.ops import Apply, BiasAct, Program, Softmax
from clnet.ir.training_ops import ActGrad, ApplyT, BiasGrad, Outer
from clnet.nn.layers import Sparse
from clnet.nn.model import Model
from clnet.nn.storage.formats import AUTO
from clnet.nn.storage.layout import Slot
from clnet.opencl.device import Device
from clnet.planning.cover import Candidate, Cover, PlanReport
from clnet.runtime.plan import CHUNK

GAP = 2  # between columns of a table
CUTS = ((2, 20), (0, 14), (2, 12), (0, 10), (1, 11))
"""What gives way where a table is too wide: columns, and down to which width."""
BEST = 2  # ways to compute one part of a training step that lost and are listed
PARTS = {
    "Apply": "sums", "BiasAct": "act", "Softmax": "softmax", "ActGrad": "act'",
    "ApplyT": "sums'", "Outer": "weights'", "BiasGrad": "bias'",
}
"""Ops of a layer, in words; a dash marks those of training's way back."""
WHOLE = {
    "Gather": "gather", "Dropout": "dropout", "Loss": "loss", "Tally": "tally",
    "GradientNorm": "norm", "Update": "update",
}
"""Ops of no layer."""


def explanation(
    network: Model, device: Device, batch: int, report: PlanReport,
    training: Program | None = None,
) -> str:
    """Return why a plan is what it is, in at most `WIDTH` columns.

    Parameters
    ----------
    network, device, batch
        What was planned.
    report : PlanReport
        What the planner saw.
    training : Program or None
        The program, if it is not the network's own but a step of training.
    """
    program = training or lower(network)
    run, basis = "a call", "measured host to host"
    if training is not None:
        run, basis = "a step of training", "measured whole"
    sizes = "-".join(str(n) for n in network.sizes)
    chosen = report.covers[0]
    parts = [
        textwrap.fill(
            f"{sizes}, {network.dtype}, batch {batch}, on {device.name}: "
            f"{_seconds(chosen.seconds)} {run}, "
            f"{basis if chosen.timing else _basis(chosen)}.",
            WIDTH, break_on_hyphens=False, break_long_words=True,
        ),
        "chosen\n" + _table(program, chosen.candidates),
    ]
    if report.devices:
        parts.append(
            "devices, by whole calls\n"
            + _plain([(_seconds(seconds), name) for name, seconds in report.devices])
        )
    if report.formats:
        by = "whole calls" if training is None else "steps of training"
        parts.append(
            f"formats of the layers that leave theirs to be chosen, by {by}\n"
            + _plain([
                *((_seconds(seconds), name) for name, seconds in report.formats),
                *(
                    ("not tried", f"{name}: {why}") for name, why in report.untried
                ),
            ])
        )
    elif training is not None and (formats := _own_formats(network)):
        parts.append(
            "formats of the layers that leave theirs to be chosen\n"
            + _indented(
                f"{formats}: they are trained as they are stored, which "
                "Network.stored_as changes"
            )
        )
    if len(report.covers) > 1:
        rows = [
            (_seconds(cover.seconds), _summary(cover)) for cover in report.covers[1:]
        ]
        parts.append("whole covers that lost\n" + _plain(rows))
    losers = _losers(report)
    untried = sum(candidate.timing is None for candidate in losers)
    if training is not None:
        losers = _best_parts(report, losers)
    if losers:
        parts.append("spans that lost\n" + _table(program, losers))
    if report.unmeasured and untried:
        parts.append("not measured\n" + _indented(f"{untried} {report.unmeasured}"))
    refusals = [
        f"{name} ({_named(program, spans)}): {sentence}"
        for (name, sentence), spans in report.refusals.items()
    ]
    refusals += report.failures
    if refusals:
        parts.append("refused\n" + "\n".join(map(_indented, refusals)))
    parts.append("inputs of scipy.sparse\n" + _indented(_dense_inputs(training)))
    return "\n\n".join(parts)


def _own_formats(network: Model) -> str:
    """Return the formats of layers that leave theirs to be chosen; "": none does."""
    found = (
        matrix.format
        for layer, matrix in zip(network.layers, network.matrices, strict=True)
        if isinstance(layer, Sparse) and layer.format == AUTO
    )
    return ", ".join(dict.fromkeys(found))


def _dense_inputs(training: Program | None) -> str:
    """Return what becomes of inputs that are sparse themselves, and why."""
    if training is not None:
        return "made dense as a whole: the data stay on the device, where rows are read"
    return f"made dense, {CHUNK} samples at a time: kernels read whole rows of x"


def _losers(report: PlanReport) -> list[Candidate]:
    """Return what was not chosen and did not fail, the best of each span first."""
    taken = {id(step) for step in report.covers[0].steps}
    return sorted(
        (c for c in report.candidates if id(c.step) not in taken and not c.fault),
        key=lambda c: (c.start, c.stop, c.timing is None, c.seconds),
    )


def _best_parts(report: PlanReport, losers: Sequence[Candidate]) -> list[Candidate]:
    """Return of each span those of the best that are measured and no whole covers."""
    wholes = {id(cover.steps[0]) for cover in report.covers if len(cover.steps) == 1}
    listed = [c for c in losers if c.timing and id(c.step) not in wholes]
    seen = Counter[tuple[int, int]]()
    found = []
    for candidate in listed:
        span = candidate.start, candidate.stop
        seen[span] += 1
        if seen[span] <= BEST:
            found.append(candidate)
    return found


def _indented(line: str) -> str:
    return textwrap.fill(line, WIDTH, initial_indent="  ", subsequent_indent="    ")


def _row(candidate: Candidate) -> tuple[str, ...]:
    step = candidate.step
    config = " ".join(f"{name}={value}" for name, value in step.config.items())
    how = "measured" if candidate.timing else "modelled"
    return (
        step.variant.name, config, _place(candidate), _seconds(candidate.seconds), how
    )


def _place(candidate: Candidate) -> str:
    place = candidate.step.device
    if place is None:
        return "host"
    return "calling thread" if place.serial else "device"


def _table(program: Program, candidates: Iterable[Candidate]) -> str:
    """Return a table of candidates; equal ones of several layers share a row."""
    rows: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for c in candidates:
        kind = _kind(program, c.start, c.stop)
        rows.setdefault((kind, *_row(c)), []).append((c.start, c.stop))
    names = ("layers", "variant", "config", "place", "alone", "")
    cells = [(_named(program, spans), *row[1:]) for row, spans in rows.items()]
    text: str = tabulate(
        cells, names, tablefmt="plain", maxcolwidths=_widths(names, cells),
        disable_numparse=True,
    )
    return text


def _widths(names: Sequence[str], cells: Sequence[Sequence[str]]) -> list[int]:
    """Return the columns' widths: what they need, as far as there is room."""
    widths = [
        max(len(name) + GAP, *map(len, column))  # as tabulate pads names
        for name, column in zip(names, zip(*cells, strict=True), strict=True)
    ]
    over = sum(widths) + GAP * (len(widths) - 1) - WIDTH
    for column, least in CUTS:
        cut = max(0, min(over, widths[column] - least))
        widths[column] -= cut
        over -= cut
    return widths


def _kind(program: Program, start: int, stop: int) -> str:
    """Return which ops a span has, so that only equal spans are listed together."""
    return " ".join(type(op).__name__ for op in program.ops[start:stop])


def _named(program: Program, spans: Sequence[tuple[int, int]]) -> str:
    """Return spans in words: their layers, counted from 1, and what of them."""
    kinds = {_kind(program, start, stop) for start, stop in spans}
    kind = kinds.pop() if len(kinds) == 1 else ""
    if kind in WHOLE:
        return WHOLE[kind]
    layer_of = _layers(program)
    found = [n for start, stop in spans for n in layer_of[start:stop] if n]
    if not found:
        return ""
    first, last = min(found), max(found)
    part = f" {PARTS[kind]}" if kind in PARTS else ""
    if len(spans) > 1 and len(spans) != last - first + 1:
        return f"{len(spans)} in {first}-{last}{part}"
    return (str(first) if first == last else f"{first}-{last}") + part


def _layers(program: Program) -> list[int]:
    """Return the layer that each op belongs to, counted from 1; 0: none."""
    layer_of: dict[Slot, int] = {}
    found: list[int] = []
    for op in program.ops:
        before = found[-1] if found else 0
        slot = None
        if isinstance(op, Apply):
            slot = op.weights
            layer_of[slot] = before + (not op.accumulate)
        elif isinstance(op, (BiasAct, Softmax)):
            found.append(before)
            continue
        elif isinstance(op, (Outer, ApplyT)):
            slot = op.weights
        found.append(0 if slot is None else layer_of[slot])
    # A layer's derivatives come right before its weights' gradients, its biases' after.
    for i, op in enumerate(program.ops):
        if isinstance(op, ActGrad):
            found[i] = found[i + 1]
        elif isinstance(op, BiasGrad):
            found[i] = found[i - 1]
    return found


def _plain(rows: list[tuple[str, str]]) -> str:
    return "\n".join(
        textwrap.fill(f"{time:>9}  {text}", WIDTH, subsequent_indent=" " * 11)
        for time, text in rows
    )


def _summary(cover: Cover) -> str:
    texts = []
    for candidate in cover.candidates:
        variant, config, place, *_ = _row(candidate)
        text = variant if place == variant else f"{variant} on {place}"
        texts.append(text + (f" ({config})" if config else ""))
    parts = [f"{texts.count(text)} x {text}" for text in dict.fromkeys(texts)]
    return ", ".join(part.removeprefix("1 x ") for part in parts)


def _basis(cover: Cover) -> str:
    measured = all(c.timing for c in cover.candidates)
    return "the sum of measured spans" if measured else "modelled, nothing measured"


def _seconds(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        text = f"{seconds / scale:.3g}"
        if float(text) >= 1:
            return f"{text} {unit}"
    return f"{seconds * 1e9:.3g} ns"
