"""Notebooks: tables as HTML, and whether this is one."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from html import escape


def in_notebook() -> bool:
    """Return whether a notebook runs this process."""
    return "ipykernel" in sys.modules


def html_table(
    caption: str, headers: Sequence[str], rows: Iterable[Sequence[object]]
) -> str:
    """Return a table as HTML, with its caption above."""
    from tabulate import tabulate

    table = tabulate(list(rows), headers, tablefmt="html", disable_numparse=True)
    return (f"<p>{escape(caption)}</p>\n" if caption else "") + str(table)
