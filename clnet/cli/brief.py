"""Explanations of plans on one screen, and as JSON."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
    found = [Section(first, "", ())]
    for part in others:
        title, *lines = part.split("\n")
        head = lines.pop(0) if lines and lines[0].startswith("layers") else ""
        entries: list[str] = []
        for line in lines:
            if entries and not _ENTRY.match(line):
                entries[-1] += f"\n{line}"
            else:
                entries.append(line)
        found.append(Section(title, head, tuple(entries)))
    return found


def brief(text: str) -> str:
    """Return the most important lines of an explanation: at most a screen.

    Of the refused kernels only those that failed; they are counted.
    """
    summary, *sections = sections_of(text)
    parts, left = [summary.title], 0
    for section in sections:
        entries = section.entries
        if section.title == "refused":
            entries = tuple(one for one in entries if _FAILED in one)
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
