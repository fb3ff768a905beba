"""Parts of kernels' sources, and the uses that pages make of them. No Sphinx."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

KERNELS = Path(__file__).parents[2] / "kernels"
BLOCK = re.compile(r"^(`{3,})\{kernel\} +(\S+)\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
OPTION = re.compile(r"^:(from|to): (.*)$", re.MULTILINE)
TERM = re.compile(r"^`(.+)`\n: ", re.MULTILINE)


@dataclass(frozen=True)
class Part:
    """Lines of a source.

    Parameters
    ----------
    path : str
        The source, below ``kernels/``.
    first : int
        Number of the first line, from 1.
    lines : list of str
        The lines.
    """

    path: str
    first: int
    lines: list[str]

    def line_of(self, text: str) -> int:
        """Return the number of the one line that contains a text.

        Raises
        ------
        ValueError
            If none does, or several do.
        """
        found = [n for n, line in enumerate(self.lines, self.first) if text in line]
        if len(found) != 1:
            where = f"in lines {found}" if found else "in no line"
            raise ValueError(
                f"kernels/{self.path}: {text!r} is {where} from {self.first} to "
                f"{self.first + len(self.lines) - 1}, expected in one"
            )
        return found[0]


def part(path: str, start: str | None = None, end: str | None = None) -> Part:
    """Return the part of a kernel's source from one text to another.

    Raises
    ------
    ValueError
        If there is no such file or text.
    """
    source = KERNELS / path
    if not source.is_file():
        raise ValueError(f"kernels/{path}: there is no such file")
    lines = source.read_text(encoding="utf-8").splitlines()
    first = 0 if start is None else _first(path, lines, 0, start)
    last = len(lines) - 1 if end is None else _first(path, lines, first, end)
    return Part(path, first + 1, lines[first:last + 1])


def _first(path: str, lines: list[str], at: int, text: str) -> int:
    for number in range(at, len(lines)):
        if text in lines[number]:
            return number
    raise ValueError(f"kernels/{path}: no line from {at + 1} on contains {text!r}")


@dataclass
class Use:
    """A use of the directive in a page, by its text."""

    path: str
    options: dict[str, str] = field(default_factory=dict)
    terms: list[str] = field(default_factory=list)

    def check(self) -> None:
        """Raise ValueError if a text is not where the page says."""
        found = part(self.path, self.options.get("from"), self.options.get("to"))
        for term in self.terms:
            found.line_of(term)


def uses(page: str) -> Iterator[Use]:
    """Yield the uses of the directive in a page's Markdown."""
    for _, path, content in BLOCK.findall(page):
        yield Use(path, dict(OPTION.findall(content)), TERM.findall(content))
