"""Pages that stand elsewhere in the tree, and links to files outside of ``docs/``.

`PAGES` are Markdown files of the tree that a page of the site includes. Links to them
lead to that page. A link to any other file offers the file; a folder's leads to its
README, if that is a page, and is plain text if not.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {
    "benchmarks/NOTES.md": "explanation/notes.md",
    "benchmarks/README.md": "explanation/measurements.md",
    "CHANGELOG.md": "reference/changelog.md",
    "CONTRIBUTING.md": "how_to/contribute.md",
    "kernels/README.md": "explanation/kernels.md",
    "README.md": "index.md",
}
LINK = re.compile(
    r"(?P<text>\[[^\]\n]*(?:\n[^\]\n]+)?\])"  # on one line, or two
    r"\((?P<path>[^)#:\s]+)(?P<anchor>#[^)\s]*)?\)"
)


def relinked(text: str, folder: Path, page: Path) -> str:
    """Return Markdown whose links are relative to a page of the site.

    Parameters
    ----------
    text : str
        Markdown whose links are relative to a folder.
    folder, page : Path
        The folder, and the page that shows the text: both relative to the tree.
    """
    def replaced(link: re.Match[str]) -> str:
        target = os.path.normpath(folder / link["path"])
        if (ROOT / target).is_dir():
            if f"{target}/README.md" not in PAGES:
                return link["text"][1:-1]
            target = f"{target}/README.md"
        if target in PAGES:
            target = f"docs/{PAGES[target]}"
        relative = os.path.relpath(target, page.parent)
        return f"{link['text']}({relative}{link['anchor'] or ''})"

    return LINK.sub(replaced, text)


def _page(docname: str) -> Path:
    return Path("docs", docname + ".md")


def _read(app: Sphinx, docname: str, source: list[str]) -> None:
    page = _page(docname)
    source[0] = relinked(source[0], page.parent, page)


def _include(app: Sphinx, path: Path, stem: str, content: list[str]) -> None:
    folder = (DOCS / path).resolve().relative_to(ROOT).parent
    content[0] = relinked(content[0], folder, _page(app.env.docname))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.connect("source-read", _read)
    app.connect("include-read", _include)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
