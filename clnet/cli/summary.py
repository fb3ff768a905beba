"""Text about networks, data and evaluations, at most `WIDTH` columns wide."""

from __future__ import annotations

import argparse
import dataclasses
import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.errors import WIDTH, printable
from clnet.nn.activations import activation_name
from clnet.nn.layers import bias_size

if TYPE_CHECKING:
    from clnet.cli.samples import FileSamples
    from clnet.network import Network
    from clnet.nn.columns import Column
    from clnet.nn.fann_parameters import FannParameters
    from clnet.nn.labels import Label
    from clnet.nn.metrics import Evaluation
    from clnet.opencl.device import Device
    from clnet.opencl.discovery import Devices

MOST_CLASSES = 12  # that are counted
SHORT = 4  # characters of a name that say something
FIGURES = {
    "mse": ("MSE", ".4g"), "bit_fail": ("bit fail", "d"),
    "accuracy": ("accuracy", ".6f"), "hamming_loss": ("Hamming loss", ".6f"),
    "mae": ("MAE", ".4g"), "rmse": ("RMSE", ".4g"), "r2": ("R²", ".6f"),
}
"""Labels and formats of an evaluation's figures."""


def layer_fields(network: Network) -> list[dict[str, Any]]:
    """Return the sizes of each layer, and the bytes that its parameters take."""
    item_size = network.parameters.itemsize
    return [
        {
            "size": layer.n_out, "activation": layer.activation,
            "steepness": layer.steepness, "storage": matrix.format,
            "density": matrix.density, "bias": layer.bias,
            "parameters": matrix.count + bias_size(layer),
            "bytes": matrix.nbytes(item_size) + bias_size(layer) * item_size,
        }
        for layer, matrix in zip(network.layers, network.matrices, strict=True)
    ]


def network_text(network: Network) -> str:
    """Return a network's sizes and layers, and its FANN parameters, if it has any."""
    layers = layer_fields(network)
    rows = [
        (
            number, layer["size"], _short(layer["activation"]),
            _short(layer["steepness"]),
            layer["storage"] + ("" if matrix.full else f" {100 * matrix.density:.3g}%"),
            layer["bias"] if isinstance(layer["bias"], str) else
            "yes" if layer["bias"] else "no", layer["parameters"], layer["bytes"],
        )
        for number, (layer, matrix) in enumerate(
            zip(layers, network.matrices, strict=True)
        )
    ]
    headers = (
        "#", "size", "activation", "steepness", "storage", "bias", "params", "bytes"
    )
    head: list[tuple[str, object]] = [
        ("network", "-".join(str(n) for n in network.sizes)),
        ("dtype", network.dtype),
        ("parameters", sum(layer["parameters"] for layer in layers)),
        ("bytes", sum(layer["bytes"] for layer in layers)),
        ("FANN's clip", "yes" if network.fann_compatible else "no"),
        ("scaling", "no" if network.scaling is None else
         "yes: see --scale" if network.columns is None else "yes"),
    ]
    if network.classes is not None:
        head.append(("classes", _listed(network.classes)))
    if network.columns is not None:
        head += [
            ("columns", _listed([*map(_column_text, network.columns.inputs)])),
            ("targets", _listed(network.columns.targets) or "not known"),
        ]
    parts = [pairs(head), _columns([headers, *rows], "rrllllrr")]
    if network.fann is not None:
        parts.append("FANN's parameters\n" + pairs(_parameters(network.fann)))
    return "\n\n".join(parts)


def _listed(names: Sequence[object]) -> str:
    """Return names as a short list."""
    texts = [_cut(printable(str(name)), WIDTH // 2) for name in names[:MOST_CLASSES]]
    return ", ".join(texts) + f", … {len(names)} in all" * (len(names) > len(texts))


def _column_text(column: Column) -> str:
    n = len(column.categories)
    return column.name + f" ({n} categories)" * bool(n)


def _short(value: str | float | tuple[Any, ...]) -> str:
    """Return a layer's activation or steepness as a short text."""
    if isinstance(value, tuple):
        return "mixed"
    if isinstance(value, str):
        return activation_name(value)
    return f"{value:.3g}"


def _columns(rows: Sequence[Sequence[object]], aligned: str) -> str:
    """Return rows as columns, two spaces between: ``l`` left, ``r`` right."""
    from tabulate import tabulate

    sides = ["right" if side == "r" else "left" for side in aligned]
    return str(tabulate(
        rows, tablefmt="plain", disable_numparse=True, colalign=sides
    ))


def _parameters(fann: FannParameters) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    for field in dataclasses.fields(fann):
        value = getattr(fann, field.name)
        values = value if isinstance(value, tuple) else (value,)
        texts = [f"{v:g}" if isinstance(v, float) else str(v) for v in values]
        rows.append((field.name, " ".join(texts)))
    return rows


def table_rows(notes: Sequence[str]) -> list[tuple[str, object]]:
    """Return a row of what was found in a table; none if that is nothing."""
    return [("table", "; ".join(notes))] if notes else []


def data_text(x: NDArray[Any], t: NDArray[Any], notes: Sequence[str] = ()) -> str:
    """Return sizes and ranges of inputs [samples, n_in], targets [samples, n_out].

    Of labels [samples] how many there are of each class.
    """
    def column_text(values: NDArray[Any]) -> str:
        if not values.size:
            return "0"
        finite = values[np.isfinite(values)]
        text = f"{values.shape[1]}"
        if finite.size:
            text += f", from {finite.min():g} to {finite.max():g}"
        other = values.size - finite.size
        return text + (f", {other} values infinite or NaN" if other else "")

    return pairs([
        ("samples", len(x)), *table_rows(notes), ("inputs", column_text(x)),
        ("classes", counts_of(Counter(t.tolist()))) if t.ndim == 1 else
        ("outputs", column_text(t)),
    ])


def evaluation_rows(evaluation: Evaluation, targets: int) -> list[tuple[str, object]]:
    """Return the figures of an evaluation of `targets` target values."""
    rows: list[tuple[str, object]] = []
    for name, (label, form) in FIGURES.items():
        value = getattr(evaluation, name)
        if name == "accuracy" and evaluation.hamming_loss is not None:
            label = "subset accuracy"
        if value is not None:
            more = f" of {targets}" if name == "bit_fail" else ""
            rows.append((label, f"{value:{form}}{more}"))
    return rows


def set_rows(
    results: Mapping[str, Evaluation], sets: Mapping[str, FileSamples], n_out: int
) -> list[tuple[str, object]]:
    """Return the rows of evaluations of sets of samples."""
    rows: list[tuple[str, object]] = []
    for name, evaluation in results.items():
        size = len(sets[name])
        rows += [(name, f"{size} samples"), *table_rows(sets[name].notes)]
        figures = evaluation_rows(evaluation, size * n_out)
        rows += [(f"  {figure}", value) for figure, value in figures]
    return rows


def set_fields(
    results: Mapping[str, Evaluation], sets: Mapping[str, FileSamples]
) -> dict[str, object]:
    """Return the same for JSON."""
    return {
        name: {
            "samples": len(sets[name]), "table": sets[name].notes,
            **figures(evaluation),
        }
        for name, evaluation in results.items()
    }


def figures(evaluation: Evaluation | None) -> dict[str, object]:
    """Return the figures of an evaluation that apply, for JSON."""
    if evaluation is None:
        return {}
    every = {
        field.name: getattr(evaluation, field.name)
        for field in dataclasses.fields(evaluation)
    }
    return {name: value for name, value in every.items() if value is not None}


def devices_of(text: str | None) -> Devices:
    """Return the device or, separated by commas, the devices of ``--device``."""
    return text if text is None or "," not in text else text.split(",")


def device_rows(devices: Sequence[Device]) -> list[tuple[str, object]]:
    """Return a row for each device."""
    return [("device", f"{device.index} {device.name}") for device in devices]


def file_rows(arguments: argparse.Namespace) -> list[tuple[str, object]]:
    """Return the rows of the files that a training wrote."""
    files = (
        ("written", arguments.save), ("drawn", arguments.plot),
        ("report", arguments.report),
    )
    return [(label, path) for label, path in files if path is not None]


def class_texts(evaluation: Evaluation, network: Network) -> list[str]:
    """Return the tables of an evaluation's classes: their figures, their confusion."""
    names: Sequence[object] | None = network.classes
    if names is None and network.columns is not None:
        targets = network.columns.targets
        names = targets if len(targets) == network.n_out > 1 else None
    texts = []
    if evaluation.support is not None:
        figures = {"precision": evaluation.precision, "recall": evaluation.recall,
                   "F1": evaluation.f1, "AUC": evaluation.auc}
        shown = {name: values for name, values in figures.items() if values is not None}
        rows = zip(
            names or range(len(evaluation.support)), *shown.values(),
            evaluation.support.tolist(), strict=True,
        )
        texts.append(_columns([
            ("class", *shown, "samples"),
            *((_cut(printable(str(name)), WIDTH // 4),
               *(f"{value:.4f}" for value in values), samples)
              for name, *values, samples in rows),
        ], f"l{len(shown) * 'r'}r"))
    if evaluation.confusion is not None:
        texts.append(confusion_text(evaluation.confusion, names))
    return texts


def confusion_text(
    confusion: NDArray[np.int64], classes: Sequence[object] | None
) -> str:
    """Return a table of the outputs' classes, by column, for each class, by row."""
    n, counts = len(confusion), len(str(confusion.max()))
    head = "confusion: targets by row, outputs by column"
    left = WIDTH - n * (counts + 1)  # for the names of rows
    if left < SHORT:
        return f"{head}: of {n} classes not shown"
    names = [str(label) for label in (range(n) if classes is None else classes)]
    first = min(max(map(len, names)), WIDTH // 4, left)
    width = min(max(counts, *map(len, names)), (WIDTH - first) // n - 1)
    lines = [
        " ".join([f"{_cut(name, first):{first}}", *cells])
        for name, cells in zip(
            ["", *names],
            [[f"{_cut(name, width):>{width}}" for name in names],
             *([f"{count:>{width}}" for count in row] for row in confusion)],
            strict=True,
        )
    ]
    return "\n".join([head, *lines])


def _cut(name: str, width: int) -> str:
    """Return a name of at most so many characters."""
    return name if len(name) <= width else f"{name[: width - 1]}…"


def counts_of(counts: Mapping[Label, int]) -> str:
    """Return how many of some labels there are, the most frequent first."""
    order = sorted(sorted(counts), key=lambda label: -counts[label])
    return _listed([f"{label} {counts[label]}" for label in order])


def pairs(rows: Sequence[tuple[str, object]]) -> str:
    """Return names and values in two columns, wrapped."""
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join(
        textwrap.fill(
            f"{name:{width}}{value}", WIDTH, subsequent_indent=" " * width,
            break_on_hyphens=False, break_long_words=False,
        )
        for name, value in rows
    )


CHOSEN = 6  # entries of the chosen cover
OTHERS = 3  # entries of each other section
LINES = 6  # of a section
_ENTRY = re.compile(r"\s{0,3}\S|\s*(?:[\d.]+ [mun]?s|not tried)  ")
_FAILED = ": failed: "


@dataclass(frozen=True)
class Section:
    """A paragraph of `Plan.explain`."""

    title: str  # Its first line; of the first paragraph all
    head: str  # The names of a table's columns, or ""
    entries: tuple[str, ...]  # Its items, each of a line or more


def sections_of(text: str) -> list[Section]:
    """Return the sections of an explanation."""
    first, *others = text.split("\n\n")
    sections = [Section(first, "", ())]
    for paragraph in others:
        title, *lines = paragraph.split("\n")
        head = lines.pop(0) if lines and lines[0].startswith("layers") else ""
        entries: list[str] = []
        for line in lines:
            if entries and not _ENTRY.match(line):
                entries[-1] += f"\n{line}"
            else:
                entries.append(line)
        sections.append(Section(title, head, tuple(entries)))
    return sections


def brief(text: str) -> str:
    """Return the most important lines of an explanation: at most a screen.

    Of the refused kernels only those that failed; they are counted.
    """
    summary, *sections = sections_of(text)
    parts, left = [summary.title], 0
    for section in sections:
        entries = section.entries
        if section.title == "refused":
            entries = tuple(entry for entry in entries if _FAILED in entry)
        most = CHOSEN if section.title == "chosen" else OTHERS
        shown: list[str] = []
        for entry in entries[:most]:
            if shown and "\n".join([*shown, entry]).count("\n") >= LINES:
                break
            shown.append(entry)
        more = len(section.entries) - len(shown)
        left += more
        counted = f" ({more} more)" if shown and more else f": {more}" if more else ""
        parts.append("\n".join(filter(None, [
            section.title + counted, section.head if shown else "", *shown,
        ])))
    hint = "--all shows the rest." if left else ""
    return "\n\n".join(filter(None, [*parts[:2], "\n".join(parts[2:]), hint]))


def explained(text: str) -> dict[str, object]:
    """Return an explanation as a dict for JSON, by the titles of its sections."""
    summary, *sections = sections_of(text)
    return {
        "summary": " ".join(summary.title.split()),
        **{
            section.title: [" ".join(entry.split()) for entry in section.entries]
            for section in sections
        },
    }
