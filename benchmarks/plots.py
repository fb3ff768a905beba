"""Pictures of rows. A study says what to draw by `Plot`; how is decided here."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from clnet.formats.files import write

from .records import Row, slug
from .values import Value, by_call, microseconds

INSTALL = "pip install 'clnet[bench]'"
CHOSEN = ("planned", "auto", "dynamic")  # our choice, in black
COLOURS = (  # told apart by people of any colour vision (Okabe and Ito; Tol)
    "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#999999",
    "#332288", "#882255", "#44aa99", "#999933",
)
MARKERS = "osD^vPX"
GREY = "0.55"
RESOLUTION = 130  # dots an inch
SIZE = (7.0, 4.4)  # inches
POINTS = 200  # of a curve
STYLE = {
    "font.size": 9, "axes.titlesize": 11, "axes.titlelocation": "left",
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "axes.axisbelow": True, "grid.color": "0.9", "grid.linewidth": 0.6,
    "legend.frameon": False, "lines.linewidth": 1.4, "lines.markersize": 4.5,
}


@dataclass(frozen=True)
class Curve:
    """A line that is computed, not measured.

    Attributes
    ----------
    label : str
        For the legend.
    height : callable
        Of the place along the horizontal axis.
    over : (float, float) or None
        From where to where; None: as far as the rows go.
    """

    label: str
    height: Callable[[float], float]
    over: tuple[float, float] | None = None


@dataclass(frozen=True)
class Plot:
    """What a study draws: a line (or bars of one colour) a candidate.

    Attributes
    ----------
    name : str
        Of the file, after the study's and the device's.
    title : str
        Above the picture.
    tables : sequence of str
        Whose rows.
    x : callable
        A row's place: a number, or text, which gets a place of its own.
    x_label, y_label : str
        With units.
    y : callable
        A row's height.
    line : callable
        The line that a row is on, for the legend; None: on none.
    page : callable
        Rows of the same text share a picture, and it is told in the title.
    log : str
        The axes that are logarithmic.
    bars : bool
        Whether bars are drawn, side by side; then places are text.
    curves : sequence of Curve
        Drawn too; alone where no row has a height and all have an end.
    marks : callable
        Of a picture's rows: places that are marked, with their legends.
    """

    name: str
    title: str
    tables: Sequence[str]
    x: Callable[[Row], float | str]
    x_label: str
    y_label: str
    y: Value = microseconds
    line: Callable[[Row], str | None] = lambda row: row.candidate
    page: Callable[[Row], str] = by_call
    log: str = "xy"
    bars: bool = False
    curves: Sequence[Curve] = ()
    marks: Callable[[Sequence[Row]], Mapping[str, float]] = lambda rows: {}


@dataclass(frozen=True)
class Picture:
    """One picture that was drawn.

    Attributes
    ----------
    path : Path
        Its file.
    title, caption : str
        What it shows; on which device, when.
    png : bytes
        The file's.
    """

    path: Path
    title: str
    caption: str
    png: bytes


def missing() -> str | None:
    """Return None if pictures can be drawn, else why not, in a sentence."""
    try:
        import matplotlib.figure
    except ImportError as error:
        return f"no pictures: matplotlib is not there ({error}): {INSTALL}"
    del matplotlib
    return None


def draw(
    plots: Sequence[Plot], rows: Sequence[Row], stem: Path, peers: Set[str]
) -> list[Picture]:
    """Draw pictures and write them, a PNG file each; they replace older ones.

    Parameters
    ----------
    plots : sequence of Plot
        What; those that the rows have nothing for are left out.
    rows : sequence of Row
        One study's on one device. Of equal ones the last counts.
    stem : Path
        How the files' names begin.
    peers : set of str
        Candidates that are not ours: their lines are dashed, their bars hatched.

    Raises
    ------
    FormatError
        If a file cannot be written.
    ImportError
        If matplotlib is not installed.
    """
    pictures = []
    for plot in plots:
        mine = [row for row in rows if row.table in plot.tables]
        for page in dict.fromkeys(plot.page(row) for row in mine):
            group = [row for row in mine if plot.page(row) == page]
            lines, places = _lines(plot, group, mine)
            alone = plot.curves and all(curve.over for curve in plot.curves)
            if not lines and not alone:
                continue
            title = f"{plot.title}, {page}" if page else plot.title
            caption = _caption(group) if lines else "computed, not measured"
            marks = plot.marks(group)
            png = _png(plot, lines, places, marks, title, caption, peers)
            name = f"{stem.name}-{plot.name}" + (f"-{slug(page)}" if page else "")
            path = stem.with_name(f"{name}.png")
            write(path, [png])
            pictures.append(Picture(path, title, caption, png))
            if not lines:
                break  # curves alone are the same on each page
    return pictures


Lines = Mapping[str, Mapping[Any, float]]
"""Of each line its places and heights."""


def _lines(
    plot: Plot, rows: Sequence[Row], others: Sequence[Row]
) -> tuple[Lines, list[Any]]:
    """Return a page's lines, and their places in the order of the rows.

    Heights may depend on the rows of other pages.
    """
    lines: dict[str, dict[Any, float]] = {}
    places: dict[Any, None] = {}
    for row in rows:
        name = plot.line(row)
        height = None if row.median is None else plot.y(row, others)
        if name is not None and height is not None:
            place = plot.x(row)
            lines.setdefault(name, {})[place] = height
            places[place] = None
    return lines, list(places)


def _caption(rows: Sequence[Row]) -> str:
    """Return where and when rows come from; of the newest."""
    last = max(rows, key=lambda row: row.date)
    return (
        f"{last.device} · {last.platform} · driver {last.driver} · "
        f"clnet {last.clnet} · {last.date[:10]} · medians"
    )


def _png(
    plot: Plot, lines: Lines, places: Sequence[Any], marks: Mapping[str, float],
    title: str, caption: str, peers: Set[str],
) -> bytes:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        wide = plot.bars and len(lines) * len(places) > 40
        figure = Figure((SIZE[0] * 1.5, SIZE[1]) if wide else SIZE, RESOLUTION)
        axes = figure.add_subplot()
        looks = _looks(lines, peers)
        if plot.bars:
            _bars(axes, lines, places, looks)
        else:
            _points(axes, lines, looks)
        _curves(axes, plot, places)
        for (text, place), style in zip(marks.items(), cycle(("--", ":"))):
            axes.axvline(place, color=GREY, linestyle=style, label=text, zorder=0)
        axes.set(title=title, xlabel=plot.x_label, ylabel=plot.y_label)
        _scales(axes, plot, lines, places)
        axes.legend(
            loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, borderaxespad=0.5
        )
        figure.text(0.01, 0.005, caption, fontsize=6.5, color=GREY)
        figure.set_layout_engine("constrained", rect=(0, 0.035, 1, 0.965))
        file = io.BytesIO()
        # No date nor version of matplotlib: the same rows give the same file.
        figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def _looks(lines: Lines, peers: Set[str]) -> dict[str, dict[str, Any]]:
    """Return of each line how it is drawn."""
    rest = {
        peer: zip(cycle(COLOURS), cycle(MARKERS), strict=False)
        for peer in (False, True)
    }
    looks = {}
    for name in lines:
        if name in CHOSEN:
            colour, marker, width = "black", "o", 2.0
        else:
            (colour, marker), width = next(rest[name in peers]), 1.4
        looks[name] = {
            "color": colour, "marker": marker, "linewidth": width,
            "linestyle": "--" if name in peers else "-",
            "markerfacecolor": "white" if name in peers else colour,
        }
    return looks


def _points(axes: Any, lines: Lines, looks: Mapping[str, Mapping[str, Any]]) -> None:
    for name, line in lines.items():
        numbers = not any(isinstance(x, str) for x in line)
        places = sorted(line) if numbers else list(line)
        axes.plot(places, [line[x] for x in places], label=name, **looks[name])


def _bars(
    axes: Any, lines: Lines, places: Sequence[Any], looks: Mapping[str, Any]
) -> None:
    width = 0.84 / max(len(lines), 1)
    for number, (name, line) in enumerate(lines.items()):
        look = looks[name]
        hatched = look["linestyle"] == "--"
        at = [i for i, x in enumerate(places) if x in line]
        axes.bar(
            [i + (number - (len(lines) - 1) / 2) * width for i in at],
            [line[places[i]] for i in at], width, label=name,
            facecolor="white" if hatched else look["color"], edgecolor=look["color"],
            hatch="////" if hatched else None, linewidth=0.6,
        )
    axes.set_xticks(range(len(places)), [str(x) for x in places])
    axes.grid(visible=False, axis="x")


def _curves(axes: Any, plot: Plot, places: Sequence[Any]) -> None:
    """Draw computed lines; beside measured ones in grey, the first darkest."""
    shades = np.linspace(0.2, 0.7, len(plot.curves))
    for number, curve in enumerate(plot.curves):
        low, high = curve.over or (min(places), max(places))
        colour = COLOURS[number % len(COLOURS)] if curve.over else str(shades[number])
        x = np.geomspace(low, high, POINTS) if "x" in plot.log else np.linspace(
            low, high, POINTS
        )
        axes.plot(
            x, [curve.height(float(v)) for v in x], linestyle=":", linewidth=1.2,
            color=colour, label=curve.label, zorder=1,
        )


def _scales(axes: Any, plot: Plot, lines: Lines, places: Sequence[Any]) -> None:
    lowest = min((y for line in lines.values() for y in line.values()), default=1.0)
    text = any(isinstance(x, str) for x in places)
    if "y" in plot.log:
        axes.set_yscale("log")
        if plot.bars:
            axes.set_ylim(bottom=0.6 * lowest)
    else:
        axes.set_ylim(bottom=0)
    if "x" in plot.log and not text and len(places) != 1:  # one has no scale
        axes.set_xscale("log")
        if places and len(places) <= 12:
            axes.set_xticks(sorted(places), [f"{x:g}" for x in sorted(places)])
            axes.set_xticks([], minor=True)
    if text and max(len(str(x)) for x in places) * len(places) > 70:
        axes.tick_params(axis="x", labelrotation=30)
