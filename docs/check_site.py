"""Check a built site: nothing is loaded from other hosts, no link or command is broken.

    python docs/check_site.py site

A fault is a line, and makes the exit status 1.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {("link", "href")}  # besides every src: what a browser fetches unasked
SAME = {"canonical", "next", "prev", "search", "index", "author"}  # <link rel=…>
REMOTE = re.compile(r"^(https?:)?//")
FAILED = re.compile(  # a shell's line, which ends no notebook
    r"Traceback \(most recent call last\):\s+File |: \d+: \S+: not found|"
    r": command not found"
)
REMOTE_STYLE = re.compile(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//")


@dataclass
class Page(HTMLParser):
    """The names and addresses of a page."""

    path: Path
    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        text = self.path.read_text(encoding="utf-8")
        self.feed(text)
        self.loaded += REMOTE_STYLE.findall(text)
        self.failed += FAILED.findall(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the addresses and ids of an element."""
        values = dict(attrs)
        self.ids |= {value for name in ("id", "name") if (value := values.get(name))}
        for name, value in attrs:
            if value is None:
                continue
            if name in ("src", "srcset") or (tag, name) in LOADED:
                if values.get("rel") not in SAME:
                    self.loaded.append(value)
                    self.links.append(value)
            elif (tag, name) == ("a", "href"):
                self.links.append(value)


def faults(site: Path) -> Iterator[str]:
    """Yield a sentence for each fault of a site."""
    pages = {path.resolve(): Page(path) for path in sorted(site.rglob("*.html"))}
    if not pages:
        yield f"{site}: there is no page"
    for page in pages.values():
        name = page.path.relative_to(site)
        for words in page.failed:
            yield f"{name} shows {words!r}: a command failed"
        for address in page.loaded:
            if REMOTE.match(address) or REMOTE_STYLE.match(address):
                yield f"{name} loads {address}"
        for address in page.links:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            file = page.path.parent / unquote(parts.path) if parts.path else page.path
            target = file.resolve()
            if not target.is_file():
                yield f"{name} links to {address}: there is no such file"
            elif (
                parts.fragment and target in pages
                and unquote(parts.fragment) not in pages[target].ids
            ):
                yield f"{name} links to {address}: there is no such anchor"
    for style in sorted(site.rglob("*.css")):
        if REMOTE_STYLE.search(style.read_text(encoding="utf-8")):
            yield f"{style.relative_to(site)} loads from another host"


if __name__ == "__main__":
    found = list(faults(Path(sys.argv[1])))
    print("\n".join(found) or "links lead somewhere, commands ran, nothing is remote")
    sys.exit(bool(found))
