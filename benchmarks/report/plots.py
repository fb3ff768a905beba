"""Pictures of measurements: a study describes each by a `Plot`."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

from clnet.formats import pictures
from clnet.formats.files import write
from clnet.formats.pictures import COLOURS, NAMES

from ..measurements import slug
from . import screen
from .metrics import Metric, call, microseconds
from .tables import candidate, number

CHOSEN = ("planned", "auto", "dynamic")  # the planner's choice, in black
BASELINES = (
    "torch-compile", "torch-compile-graph", "fann", "cupy", "onnxruntime", "numpy",
    "torch", "torch-cuda", "torch-graph", "sklearn", "tinygrad", "torch-sparse",
    "torch-sparse-graph", "scipy", "cupy-sparse", "torch-cpu-compile", "jax",
    "torch-ddp", "torch-baddbmm", "torch-vmap",
)
BASELINE_COLOURS = (*COLOURS, "#117733")
MARKERS = "osD^vPX"
HATCHES = ("", "....", "xxxx", "oooo", "++++")
DOTTED = (".", "o")
GREY = "0.55"
RESOLUTION = 130  # dots an inch
SIZE = (7.0, 4.4)  # inches
POINTS = 200  # of a curve
WIDE = 40  # bars, from which on a picture is wider
TOUCHED = 14  # the size of a point for a finger
STYLE: dict[str, Any] = {
    "font.size": 9, "axes.titlesize": 11, "axes.titlelocation": "left",
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "axes.axisbelow": True, "grid.color": "0.9", "grid.linewidth": 0.6,
    "legend.frameon": False, "lines.linewidth": 1.4, "lines.markersize": 4.5,
}


@dataclass(frozen=True)
class Curve:
    """A computed line."""

    label: str  # For the legend
    height: Callable[[float], float]  # From x to y
    # The range of x; None: that of the measurements
    over: tuple[float, float] | None = None


@dataclass(frozen=True)
class Plot:
    """The description of pictures: a line, or bars of one colour, a candidate."""

    name: str  # Of the file, after the study's and the device's
    title: str  # Above the picture
    tables: Sequence[str]  # The tables that it shows
    # From the rows of these tables to their coordinates; x may be text. Rows whose y is
    # NaN are left out
    x: Metric
    # With units
    x_label: str
    y_label: str
    y: Metric = microseconds
    line: Metric = candidate  # From rows to the names of their lines, for the legend
    page: Metric = call  # From rows to the name of their picture, added to the title
    log: str = "xy"  # The logarithmic axes
    bars: bool = False  # Whether bars are drawn, side by side; x is then text
    curves: Sequence[Curve] = ()  # Drawn too; drawn without points if all have a range
    # From a picture's rows to legends and the values of x that they mark
    marks: Callable[[pd.DataFrame], Mapping[str, float]] = lambda rows: {}


@dataclass(frozen=True)
class Picture:
    """A picture: a PNG file, and the same for a page, an SVG whose points tell rows."""

    path: Path  # The PNG file
    # For the page; title and caption are not part of the SVG
    svg: str
    title: str
    caption: str
    wide: bool  # Whether a phone scrolls the SVG


def draw(
    plots: Sequence[Plot], rows: pd.DataFrame, stem: Path, baselines: Set[str]
) -> list[Picture]:
    """Draw pictures and write them, a PNG file each; they replace older ones.

    Plots without rows are left out. Rows are measurements of one study on one device,
    each once; files' names begin with `stem`. Lines of `baselines` are dashed, their
    bars are hatched.
    """
    pictures = []
    timed = rows[rows["median"].notna()]
    for plot in plots:
        shown = timed[timed["table"].isin(plot.tables)]
        if shown.empty:
            continue
        points = pd.DataFrame({
            "x": plot.x(shown), "y": plot.y(shown), "line": plot.line(shown),
        })
        points["tip"] = _tips(plot, shown, points)
        for page, group in points.groupby(plot.page(shown), sort=False):
            group = group.dropna(subset="y")
            alone = plot.curves and all(curve.over for curve in plot.curves)
            if group.empty and not alone:
                continue
            drawn = shown.loc[group.index]
            title = f"{plot.title}, {page}" if page else plot.title
            marks, caption = plot.marks(drawn), _caption(drawn)
            name = f"{stem.name}-{plot.name}" + (f"-{slug(page)}" if page else "")
            path = stem.with_name(f"{name}.png")
            write(path, [_png(plot, group, marks, title, caption, baselines)])
            svg = _svg(plot, group, marks, title, baselines)
            pictures.append(Picture(path, svg, title, caption, _wide(plot, group)))
    return pictures


def _tips(plot: Plot, rows: pd.DataFrame, points: pd.DataFrame) -> list[str]:
    """Return a text for each row: case, candidate, height, median and quartiles."""
    micro = (1e6 * rows[["median", "low", "high"]]).to_numpy()
    height = plot.y_label.partition(",")[0] if plot.y is not microseconds else ""
    return [
        f"{case}, {line}: {height and f'{height} {number(y)}, '}{number(median)} µs, "
        f"half of the rounds from {number(low)} to {number(high)}"
        for case, line, y, (median, low, high) in zip(
            rows["case"], points["line"], points["y"], micro, strict=True
        )
    ]


def _caption(rows: pd.DataFrame) -> str:
    """Return the device, versions and date of the newest row."""
    if rows.empty:
        return "computed, not measured"
    last = rows.sort_values("date").iloc[-1]
    return (
        f"{last.device} · {last.platform} · driver {last.driver} · "
        f"clnet {last.clnet} · {last.date[:10]} · medians"
    )


def _png(
    plot: Plot, points: pd.DataFrame, marks: Mapping[str, float], title: str,
    caption: str, baselines: Set[str],
) -> bytes:
    """Return a picture with its legend at the right, and its caption."""
    with rc_context(STYLE):
        wide = _wide(plot, points)
        figure = Figure((SIZE[0] * 1.5, SIZE[1]) if wide else SIZE, RESOLUTION)
        axes = _axes(figure, plot, points, marks, baselines)
        axes.set_title(title)
        axes.legend(
            loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, borderaxespad=0.5
        )
        figure.text(0.01, 0.005, caption, fontsize=6.5, color=GREY)
        figure.set_layout_engine("constrained", rect=(0, 0.035, 1, 0.965))
        file = io.BytesIO()
        # Without a date and matplotlib's version, the same rows give the same file.
        figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def _svg(
    plot: Plot, points: pd.DataFrame, marks: Mapping[str, float], title: str,
    baselines: Set[str],
) -> str:
    """Return the picture for a page, which shows the title; its legend is below."""
    with rc_context({**STYLE, **screen.STYLE}):
        wide = _wide(plot, points)
        width, height = screen.SIZE
        figure = Figure((2 * width, height) if wide else (width, height))
        axes = _axes(figure, plot, points, marks, baselines)
        for bar in axes.patches:
            hatch = bar.get_hatch() or ""
            if hatch[:1] in DOTTED:  # an SVG holds each dot of a hatch
                bar.set_hatch(hatch[:2])
        figure.legend(
            loc="outside lower left", ncols=6 if wide else 3, fontsize=8,
            handlelength=1.6, columnspacing=1.2,
        )
        figure.set_layout_engine("constrained")
        tips = _mark(axes, plot, points)
        return screen.inline(figure, title, tips)


def _wide(plot: Plot, points: pd.DataFrame) -> bool:
    return plot.bars and points["x"].nunique() * points["line"].nunique() > WIDE


def _axes(
    figure: Figure, plot: Plot, points: pd.DataFrame, marks: Mapping[str, float],
    baselines: Set[str],
) -> Any:
    """Return a figure's only axes, with all that is drawn in them."""
    lines = {
        name: dict(zip(line["x"], line["y"], strict=True))
        for name, line in points.groupby("line", sort=False)
    }
    xs = list(points["x"].unique())
    axes = figure.add_subplot()
    if plot.bars:
        _bars(axes, lines, xs, baselines)
    else:
        _points(axes, lines, baselines)
    _curves(axes, plot, xs)
    for (text, x), style in zip(marks.items(), cycle(("--", ":"))):
        axes.axvline(x, color=GREY, linestyle=style, label=text, zorder=0)
    axes.set(xlabel=plot.x_label, ylabel=plot.y_label)
    _scales(axes, plot, lines, xs)
    return axes


def _mark(axes: Any, plot: Plot, points: pd.DataFrame) -> dict[int, str]:
    """Give each bar, or a disc over each point, a number; return the texts by it."""
    tips: dict[int, str] = {}
    lines = points.groupby("line", sort=False)
    if plot.bars:
        order = {x: index for index, x in enumerate(points["x"].unique())}
        for (_, line), bars in zip(lines, axes.containers, strict=True):
            last = line.drop_duplicates("x", keep="last")
            last = last.sort_values("x", key=lambda xs: xs.map(order))
            for bar, tip in zip(bars, last["tip"], strict=True):
                bar.set_gid(f"{screen.TIP}{len(tips)}")
                tips[len(tips)] = tip
        return tips
    for _, line in lines:
        for point in line.drop_duplicates("x", keep="last").itertuples():
            axes.plot(
                [point.x], [point.y], "o", markersize=TOUCHED, alpha=0, color="white",
                gid=f"{screen.TIP}{len(tips)}",
            )
            tips[len(tips)] = str(point.tip)
    return tips


Lines = Mapping[str, Mapping[Any, float]]
"""The heights of each line by x."""


def colour(name: str, lines: Sequence[str]) -> tuple[str, int]:
    """Return the colour of a line, and the number of cycles through the colours.

    A candidate always has the same; other lines have theirs by the order of `lines`.
    """
    if name in CHOSEN:
        return "black", 0
    if name in NAMES:
        return pictures.colour(name)
    order = BASELINES if name in BASELINES else list(lines)
    colours = BASELINE_COLOURS if order is BASELINES else COLOURS
    cycles, number = divmod(order.index(name), len(colours))
    return colours[number], cycles


def _points(axes: Any, lines: Lines, baselines: Set[str]) -> None:
    for index, (name, line) in enumerate(lines.items()):
        numbers = not any(isinstance(x, str) for x in line)
        xs = sorted(line) if numbers else list(line)
        shade, cycles = colour(name, list(lines))
        other, chosen = name in baselines, name in CHOSEN
        axes.plot(
            xs, [line[x] for x in xs], label=name, color=shade,
            marker=MARKERS[(index + cycles) % len(MARKERS)],
            linewidth=2.0 if chosen else 1.4, linestyle="--" if other else "-",
            markerfacecolor="white" if other else shade,
        )


def _bars(axes: Any, lines: Lines, xs: Sequence[Any], baselines: Set[str]) -> None:
    width = 0.84 / max(len(lines), 1)
    for index, (name, line) in enumerate(lines.items()):
        shade, cycles = colour(name, list(lines))
        other = name in baselines
        at = [i for i, x in enumerate(xs) if x in line]
        axes.bar(
            [i + (index - (len(lines) - 1) / 2) * width for i in at],
            [line[xs[i]] for i in at], width, label=name,
            facecolor="white" if other or cycles else shade, edgecolor=shade,
            hatch="/" * (4 - cycles) if other else HATCHES[cycles], linewidth=0.6,
        )
    axes.set_xticks(range(len(xs)), [str(x) for x in xs])
    axes.grid(visible=False, axis="x")


def _curves(axes: Any, plot: Plot, xs: Sequence[Any]) -> None:
    """Draw computed lines, in grey if measured ones are drawn too."""
    shades = np.linspace(0.2, 0.7, len(plot.curves))
    for index, curve in enumerate(plot.curves):
        low, high = curve.over or (min(xs), max(xs))
        colour = COLOURS[index % len(COLOURS)] if curve.over else str(shades[index])
        x = np.geomspace(low, high, POINTS) if "x" in plot.log else np.linspace(
            low, high, POINTS
        )
        axes.plot(
            x, [curve.height(float(v)) for v in x], linestyle=":", linewidth=1.2,
            color=colour, label=curve.label, zorder=1,
        )


def _scales(axes: Any, plot: Plot, lines: Lines, xs: Sequence[Any]) -> None:
    lowest = min((y for line in lines.values() for y in line.values()), default=1.0)
    text = any(isinstance(x, str) for x in xs)
    if "y" in plot.log:
        axes.set_yscale("log")
        if plot.bars:
            axes.set_ylim(bottom=0.6 * lowest)
    else:
        axes.set_ylim(bottom=0)
    if "x" in plot.log and not text and len(xs) != 1:  # one x has no scale
        axes.set_xscale("log")
        if xs and len(xs) <= 12:
            axes.set_xticks(sorted(xs), [f"{x:g}" for x in sorted(xs)])
            axes.set_xticks([], minor=True)
    if text and max(len(str(x)) for x in xs) * len(xs) > 70:
        axes.tick_params(axis="x", labelrotation=30)
