"""The text of `explain`: the chosen cover, those that lost, refusals and failures."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clnet.errors import WIDTH, counted
from clnet.ir.activation import ActGrad, BiasAct, BiasGrad, Softmax
from clnet.ir.batch import Dropout
from clnet.ir.lowering import lower
from clnet.ir.product import Apply, ApplyT, Outer
from clnet.ir.sparse_input import SparseInputApply, SparseInputOuter
from clnet.nn.layers import Sparse
from clnet.nn.storage.formats import AUTO
from clnet.planning.cover import Candidate, Cover, PlanReport, device_name

if TYPE_CHECKING:
    from clnet.ir.program import Program
    from clnet.nn.model import Model
    from clnet.nn.storage.layout import Slot
    from clnet.opencl.device import Device

GAP = 2  # between columns of a table
CUTS = ((2, 20), (0, 14), (2, 12), (0, 10), (1, 11))
"""Columns that are narrowed where a table is too wide, and their least widths."""
DRAWN = 8  # covers of a picture
LABELLED = 0.06  # least share of a picture's width at which a span has its layers
MICROSECONDS = 1e6  # in a second
LISTED = 2  # candidates that lost, of each span of a training step
NO_LAYER = {"gather", "dropout", "loss", "tally", "norm", "update",
            "networks"}
"""Printed names of ops that stand without the number of a layer."""


@dataclass(frozen=True)
class Explanation:
    """Why an inference plan is as it is, as text and as a picture."""

    network: Model
    device: Device
    batch: int
    report: PlanReport

    def __call__(self) -> str:
        """Return the `explanation`."""
        return explanation(self.network, self.device, self.batch, self.report)

    def draw(self, axes: Any) -> None:
        """Draw the covers, best first, on matplotlib's axes."""
        from clnet.formats.pictures import colour

        program, covers = lower(self.network), self.report.covers[:DRAWN]
        widest = max(sum(c.seconds for c in cover.candidates) for cover in covers)
        shown = set()
        for row, cover in enumerate(covers):
            left = 0.0
            for candidate in cover.candidates:
                name, seconds = candidate.step.variant.name, candidate.seconds
                axes.barh(
                    row, MICROSECONDS * seconds, left=MICROSECONDS * left, height=0.7,
                    color=colour(name)[0], edgecolor="white", linewidth=0.6,
                    label=None if name in shown else name, alpha=0.6 if row else 1.0,
                )
                shown.add(name)
                if seconds > LABELLED * widest:
                    axes.text(
                        MICROSECONDS * (left + seconds / 2), row,
                        _named(program, [(candidate.start, candidate.stop)]),
                        ha="center", va="center", color="white", fontsize="small",
                    )
                left += seconds
            axes.annotate(
                in_units(cover.seconds), (MICROSECONDS * left, row), (4, 0),
                textcoords="offset points", va="center",
            )
        axes.set_yticks(range(len(covers)), ["chosen", *[""] * (len(covers) - 1)])
        axes.invert_yaxis()
        axes.set_xlabel("us, the spans alone; at the end the whole call")
        axes.margins(x=0.12)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize="small")
        sizes = "-".join(str(n) for n in self.network.sizes)
        axes.set_title(
            f"{sizes}, {self.network.dtype}, batch {self.batch}\n{self.device.name}",
            loc="left",
        )


def explanation(
    network: Model, device: Device, batch: int, report: PlanReport,
    training: Program | None = None, subject: str = "",
    more: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """Return the search and its result as text of at most `WIDTH` columns.

    It is of the `training` program, or of inference; `subject` are its first words, and
    `more` are sections after that of the chosen cover, their lines by their titles.
    """
    program = training or lower(network)
    chosen = report.covers[0]
    run, basis = "a call", "measured host to host"
    if training is not None:
        run, basis = "a step of training", "measured whole"
    if chosen.timing is None:
        basis = "the sum of measured spans"
        if not chosen.measured:
            basis = "modelled, nothing measured"
    sizes = "-".join(str(n) for n in network.sizes)
    sections = [
        textwrap.fill(
            f"{subject}{sizes}, {network.dtype}, batch {batch}, on {device.name}: "
            f"{in_units(chosen.seconds)} {run}, "
            f"{basis}.",
            WIDTH, break_on_hyphens=False, break_long_words=True,
        ),
        "chosen\n" + _table(program, chosen.candidates),
        *("\n".join([title, *map(_indented, lines)])
          for title, lines in (more or {}).items()),
    ]
    if report.devices:
        sections.append(
            "devices, by whole calls\n"
            + _plain([(in_units(seconds), name) for name, seconds in report.devices])
        )
    if report.formats:
        by = "whole calls" if training is None else "steps of training"
        sections.append(
            f"formats of the layers of format {AUTO}, by {by}\n"
            + _plain([
                *((in_units(seconds), name) for name, seconds in report.formats),
                *(
                    ("not tried", f"{name}: {why}") for name, why in report.untried
                ),
            ])
        )
    elif training is not None and (formats := _auto_formats(network)):
        sections.append(
            f"formats of the layers of format {AUTO}\n"
            + _indented(
                f"{formats}: they are trained as they are stored, which "
                "Network.stored_as changes"
            )
        )
    if len(report.covers) > 1:
        rows = [
            (in_units(cover.seconds), _summary(cover)) for cover in report.covers[1:]
        ]
        sections.append("whole covers that lost\n" + _plain(rows))
    losers = _losers(report)
    untried = sum(candidate.timing is None for candidate in losers)
    if training is not None:
        losers = _best_of_spans(report, losers)
    if losers:
        sections.append("spans that lost\n" + _table(program, losers))
    if report.unmeasured and untried:
        sections.append("not measured\n" + _indented(
            f"{counted(untried, 'candidate')}: {report.unmeasured}"
        ))
    refusals = [
        f"{name} ({_named(program, spans)}): {sentence}"
        for (name, sentence), spans in report.refusals.items()
    ]
    refusals += report.failures
    if refusals:
        sections.append("refused\n" + "\n".join(map(_indented, refusals)))
    return "\n\n".join(sections)


def _auto_formats(network: Model) -> str:
    """Return the formats that layers of format ``"auto"`` have; "": no such layer."""
    formats = (
        matrix.format
        for layer, matrix in zip(network.layers, network.matrices, strict=True)
        if isinstance(layer, Sparse) and layer.format == AUTO
    )
    return ", ".join(dict.fromkeys(formats))


def _losers(report: PlanReport) -> list[Candidate]:
    """Return the candidates neither chosen nor failed, the best of each span first."""
    chosen = {id(step) for step in report.covers[0].steps}
    return sorted(
        (c for c in report.candidates if id(c.step) not in chosen and not c.fault),
        key=lambda c: (c.start, c.stop, c.timing is None, c.seconds),
    )


def _best_of_spans(report: PlanReport, losers: Sequence[Candidate]) -> list[Candidate]:
    """Return the `LISTED` best measured losers of each span, without whole covers."""
    wholes = {id(cover.steps[0]) for cover in report.covers if len(cover.steps) == 1}
    listed = [c for c in losers if c.timing and id(c.step) not in wholes]
    seen = Counter[tuple[int, int]]()
    best = []
    for candidate in listed:
        span = candidate.start, candidate.stop
        seen[span] += 1
        if seen[span] <= LISTED:
            best.append(candidate)
    return best


def _indented(line: str) -> str:
    return textwrap.fill(line, WIDTH, initial_indent="  ", subsequent_indent="    ")


def _row(candidate: Candidate) -> tuple[str, ...]:
    step = candidate.step
    config = " ".join(f"{name}={value}" for name, value in step.config.items())
    how = "measured" if candidate.timing else "modelled"
    return (
        step.variant.name, config, device_name(step), in_units(candidate.seconds), how
    )


def _table(program: Program, candidates: Iterable[Candidate]) -> str:
    """Return a table of candidates; equal ones of several layers share a row."""
    rows: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for c in candidates:
        ops = _op_names(program, c.start, c.stop)
        rows.setdefault((ops, *_row(c)), []).append((c.start, c.stop))
    names = ("layers", "variant", "config", "device", "alone", "")
    cells = [(_named(program, spans), *row[1:]) for row, spans in rows.items()]
    from tabulate import tabulate

    text: str = tabulate(
        cells, names, tablefmt="plain", maxcolwidths=_widths(names, cells),
        disable_numparse=True,
    )
    return text


def _widths(names: Sequence[str], cells: Sequence[Sequence[str]]) -> list[int]:
    """Return the columns' widths: those of their texts, narrowed to `WIDTH`."""
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


def _op_names(program: Program, start: int, stop: int) -> str:
    """Return the names of a span's ops; spans of equal ops share rows."""
    return " ".join(op.NAME for op in program.ops[start:stop])


def _named(program: Program, spans: Sequence[tuple[int, int]]) -> str:
    """Return spans in words: their layers, counted from 1, and the op if it is one."""
    names = {_op_names(program, start, stop) for start, stop in spans}
    name = names.pop() if len(names) == 1 else ""
    if name in NO_LAYER:
        return name
    layer_of = _layers(program)
    layers = [n for start, stop in spans for n in layer_of[start:stop] if n]
    if not layers:
        return ""
    first, last = min(layers), max(layers)
    op = f" {name}" if name and " " not in name else ""
    if len(spans) > 1 and len(spans) != last - first + 1:
        return f"{len(spans)} in {first}-{last}{op}"
    return (str(first) if first == last else f"{first}-{last}") + op


def _layers(program: Program) -> list[int]:
    """Return the layer of each op, counted from 1; 0: none."""
    layer_of: dict[Slot, int] = {}
    layers: list[int] = []
    for op in program.ops:
        before = layers[-1] if layers else 0
        if isinstance(op, (Apply, SparseInputApply)):
            adds = isinstance(op, Apply) and op.accumulate
            layers.append(before if adds else before + 1)
            layer_of[op.weights] = layers[-1]
        elif isinstance(op, (BiasAct, Softmax)):
            layers.append(before)
        elif isinstance(op, Dropout):
            layers.append(op.layer)
        elif isinstance(op, (Outer, SparseInputOuter, ApplyT)):
            layers.append(layer_of[op.weights])
        else:
            layers.append(0)
    # A layer's ActGrad comes right before its Outer, its BiasGrad right after.
    for i, op in enumerate(program.ops):
        if isinstance(op, ActGrad):
            layers[i] = layers[i + 1]
        elif isinstance(op, BiasGrad):
            layers[i] = layers[i - 1]
    return layers


def _plain(rows: list[tuple[str, str]]) -> str:
    return "\n".join(
        textwrap.fill(f"{time:>9}  {text}", WIDTH, subsequent_indent=" " * 11)
        for time, text in rows
    )


def _summary(cover: Cover) -> str:
    texts = []
    for candidate in cover.candidates:
        variant, config, device, *_ = _row(candidate)
        text = variant if device == variant else f"{variant} on {device}"
        texts.append(text + (f" ({config})" if config else ""))
    parts = [f"{texts.count(text)} x {text}" for text in dict.fromkeys(texts)]
    return ", ".join(part.removeprefix("1 x ") for part in parts)


def in_units(seconds: float) -> str:
    """Return a time with three digits and its unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        text = f"{seconds / scale:.3g}"
        if float(text) >= 1:
            return f"{text} {unit}"
    return f"{seconds * 1e9:.3g} ns"
