"""The picture of a plan: its cover beside those that lost, a colour a variant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clnet.formats.pictures import colour

Bar = Sequence[tuple[str, str, float]]
"""The spans of a cover, in order: the variant's name, the layers, and seconds alone."""
NAMED = 0.06  # least share of the width at which a span has its name
UNIT = 1e6  # a second, in us


def draw_covers(axes: Any, bars: Sequence[Bar], ends: Sequence[str]) -> None:
    """Draw covers as bars from top to bottom, each span as wide as its time."""
    widest = max(sum(seconds for *_, seconds in bar) for bar in bars)
    shown = set()
    for row, (bar, end) in enumerate(zip(bars, ends, strict=False)):
        left = 0.0
        for name, layers, seconds in bar:
            axes.barh(
                row, UNIT * seconds, left=UNIT * left, height=0.7, linewidth=0.6,
                color=colour(name)[0], edgecolor="white",
                label=None if name in shown else name, alpha=1.0 if row == 0 else 0.6,
            )
            shown.add(name)
            if seconds > NAMED * widest:
                axes.text(
                    UNIT * (left + seconds / 2), row, layers, ha="center", va="center",
                    color="white", fontsize="small",
                )
            left += seconds
        axes.annotate(
            end, (UNIT * left, row), (4, 0), textcoords="offset points", va="center",
        )
    axes.set_yticks(range(len(bars)), ["chosen", *[""] * (len(bars) - 1)])
    axes.invert_yaxis()
    axes.set_xlabel("us, the spans alone; at the end the whole call")
    axes.margins(x=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize="small")
