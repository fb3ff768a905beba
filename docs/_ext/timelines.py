"""Drawings of who waits for whom, from lines of text. No Sphinx."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass

KINDS = ("work", "memory", "wait", "sync")
SEGMENT = re.compile(
    r"(?P<name>.*?) (?P<length>\d+(\.\d+)?)(?: (?P<kind>work|memory|wait|sync))?"
    r"(?: #(?P<mark>\w+))?(?: <(?P<after>\w+))?"
)
LEFT, WIDTH, HEIGHT, GAP = 110, 640, 24, 10


@dataclass(frozen=True)
class Segment:
    """The work of one lane for some time.

    Attributes
    ----------
    lane : int
        The lane, from 0.
    start, length : float
        The time.
    name : str
        The text.
    kind : str
        One of `KINDS`.
    mark, after : str or None
        The name of the segment's end, and of the end that it waits for.
    """

    lane: int
    start: float
    length: float
    name: str
    kind: str
    mark: str | None
    after: str | None

    @property
    def end(self) -> float:
        """The time of the end."""
        return self.start + self.length


def segments(text: str) -> tuple[list[str], list[Segment]]:
    """Return the lanes' names and all segments of a timeline.

    A line is ``lane: name length kind #mark <after, …``. The kind is ``work`` where it
    is left out. An arrow goes from the end of the segment of a mark to the end of each
    that is after it.

    Raises
    ------
    ValueError
        If a segment cannot be read, or is after a mark that there is not.
    """
    lanes: list[str] = []
    found: list[Segment] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        lane, colon, parts = line.partition(":")
        start = 0.0
        for part in parts.split(","):
            match = SEGMENT.fullmatch(part.strip())
            if not colon or match is None:
                raise ValueError(
                    f"timeline: {part.strip()!r}, expected a name, a length, and maybe "
                    "a kind, #mark and <after"
                )
            segment = Segment(
                len(lanes), start, float(match["length"]), match["name"],
                match["kind"] or KINDS[0], match["mark"], match["after"],
            )
            start = segment.end
            found.append(segment)
        lanes.append(lane)
    marks = {one.mark for one in found if one.mark}
    for one in found:
        if one.after is not None and one.after not in marks:
            raise ValueError(f"timeline: {one.after!r} is no mark of {sorted(marks)}")
    return lanes, found


def drawing(text: str) -> str:
    """Return a timeline as SVG, whose colours are the page's."""
    lanes, found = segments(text)
    scale = (WIDTH - LEFT - 10) / max(one.end for one in found)
    bottom = len(lanes) * (HEIGHT + GAP) + GAP
    title = html.escape("; ".join(
        f"{lane}: " + ", ".join(one.name for one in found if one.lane == number)
        for number, lane in enumerate(lanes)
    ))
    return (
        f'<svg class="drawing" viewBox="0 0 {WIDTH} {bottom}" role="img" '
        f'aria-label="{title}">{"".join(_parts(lanes, found, scale))}</svg>'
    )


def _parts(lanes: list[str], found: list[Segment], scale: float) -> Iterator[str]:
    def top(lane: int) -> float:
        return GAP + lane * (HEIGHT + GAP)

    for number, lane in enumerate(lanes):
        yield f'<text x="0" y="{top(number) + 16}">{html.escape(lane)}</text>'
    for one in found:
        x, width = LEFT + one.start * scale, one.length * scale
        yield (
            f'<rect class="{one.kind}" x="{x:.1f}" y="{top(one.lane)}" '
            f'width="{max(width - 1, 1):.1f}" height="{HEIGHT}"/>'
        )
        if one.name != "-":
            yield (
                f'<text class="middle" x="{x + width / 2:.1f}" '
                f'y="{top(one.lane) + 16}">{html.escape(one.name)}</text>'
            )
    ends = {one.mark: one for one in found if one.mark}
    for one in found:
        if one.after is not None:
            before = ends[one.after]
            down = before.lane < one.lane
            y1 = top(before.lane) + (HEIGHT if down else 0)
            y2 = top(one.lane) + (0 if down else HEIGHT)
            x1, x2 = LEFT + before.end * scale, LEFT + one.end * scale
            tip = -4 if down else 4
            yield (
                f'<path class="arrow" d="M{x1:.1f} {y1}L{x2:.1f} {y2}'
                f'm-3 {tip}l3 {-tip}l3 {tip}"/>'
            )
