"""The rules of the pages' prose that a program can check.

A sentence holds at most three figures: more belong into a table. No sentence begins
with *what*, *who* or *that which*: its object comes first. In the pages that a newcomer
reads first, no sentence is longer than thirty words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import inf

MOST_FIGURES = 3
MOST_WORDS = 30
_LEFT_OUT = (  # fences, front matter, tables
    re.compile(r"^(```+|:::+).*?^\1\s*$", re.MULTILINE | re.DOTALL),
    re.compile(r"\A---\n.*?^---$", re.MULTILINE | re.DOTALL),
    re.compile(r"^\|.*$", re.MULTILINE),
)
_CODE = re.compile(r"`[^`]*`")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_PARAGRAPH = re.compile(r"\n\s*\n|^\s*(?:[-*]|\d+\.|#+|:) ", re.MULTILINE)
_SENTENCE = re.compile(r"(?<=[.!?:;])\*{0,2}\s+(?=[A-Z`*(]|clnet\b)")
_FIGURE = re.compile(r"(?<![\w.-])\d+(?:[ ,]\d{3})*(?:\.\d+)?(?![\w-])")
_OBJECT_LAST = re.compile(r"(?:What|Who|That which)\b")


def sentences(page: str) -> Iterator[str]:
    """Yield the sentences and headings of a page of Markdown, without its code."""
    for pattern in _LEFT_OUT:
        page = pattern.sub("", page)
    page = _LINK.sub(r"\1", _CODE.sub("`", page))
    for paragraph in _PARAGRAPH.split(page):
        yield from filter(None, _SENTENCE.split(" ".join(paragraph.split())))


def faults(page: str, most_words: float = inf) -> list[str]:
    """Return the sentences of a page that break a rule."""
    return [
        sentence for sentence in sentences(page)
        if len(_FIGURE.findall(sentence)) > MOST_FIGURES
        or _OBJECT_LAST.match(sentence) or len(sentence.split()) > most_words
    ]
