"""Figures for a page: SVG whose points tell their rows, in the page's own colours."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from html import escape
from typing import Any

CSS = {  # of the page instead of the picture's, light or dark
    "#000000": "currentColor", "#ffffff": "Canvas", "#e6e6e6": "#8884",
    "#332288": "light-dark(#332288, #8f80ff)",
    "#882255": "light-dark(#882255, #d65a94)",
    "#117733": "light-dark(#117733, #3fae66)",
}
TIP = "tip-"
SIZE = (5.2, 5.2)  # inches: on a phone's width letters keep their size
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "clnet"}
_TIP = re.compile(rf'<g id="{TIP}(\d+)">')
_NAMED = re.compile(r' id="[\w.]*_\d+"')  # matplotlib's parts: the same in each figure
_ROOT = re.compile(r"^.*?<svg[^>]* viewBox=(\"[^\"]*\")[^>]*>", re.DOTALL)
_PATH = re.compile(r' d="[^"]*"')
_DIGITS = re.compile(r"(\.\d\d)\d+")  # beyond a hundredth of a point
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)


def inline(figure: Any, title: str, tips: Mapping[int, str]) -> str:
    """Return a figure, saved in `STYLE`, as the SVG of a page.

    An artist with the gid `TIP` and a number is a point, which shows its text of `tips`
    under the pointer. The title is for those who hear the page.
    """
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = _METADATA.sub("", file.getvalue())
    text = _PATH.sub(lambda path: _DIGITS.sub(r"\1", path[0]), text)
    text = _ROOT.sub(
        rf'<svg viewBox=\1 role="img" aria-label="{escape(title)}">', text, count=1
    )
    text = _TIP.sub(
        lambda match: '<g class="tip">'
        f"<title>{escape(tips[int(match[1])])}</title>", text
    )
    for colour, name in CSS.items():
        text = text.replace(colour, name)
    return _NAMED.sub("", text)
