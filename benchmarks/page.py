"""One page of a run: what it ran on, its pictures, its tables, all its rows.

The page is a single file: pictures are inside it, and it loads nothing.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from clnet.formats.files import write

from .plots import Picture
from .records import ENVIRONMENT, Row
from .report import number

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 60em;
       margin: 2em auto; padding: 0 1em; }
h1, h2 { font-weight: 600; line-height: 1.2; }
table { border-collapse: collapse; font-size: 13px; }
td, th { padding: .15em .7em; text-align: left; border-bottom: 1px solid #eee; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
pre { font-size: 12px; line-height: 1.35; overflow-x: auto; background: #f7f7f7;
      padding: 1em; }
figure { margin: 1.5em 0; } img { max-width: 100%; }
figcaption, .quiet { color: #777; font-size: 12px; }
"""
COLUMNS = (
    "table", "case", "batch", "basis", "candidate", "µs", "quartiles", "rounds",
    "times as fast", "as", "over the floor", "configuration, or why there is no time",
)


def write_page(
    path: Path, title: str, about: str, report: str, pictures: Sequence[Picture],
    rows: Sequence[Row],
) -> None:
    """Write the page, whole or not at all.

    Parameters
    ----------
    path : Path
        Its file.
    title, about : str
        The study's name, and what it is about.
    report : str
        Its tables as text.
    pictures : sequence of Picture
        Its pictures.
    rows : sequence of Row
        At least one.

    Raises
    ------
    FormatError
        If it cannot be written.
    """
    figures = "\n".join(_figure(picture) for picture in pictures)
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p>{escape(about)}</p>
{_facts(rows)}
{figures}
<h2>Tables</h2>
<pre>{escape(report)}</pre>
<h2>All rows</h2>
{_rows(rows)}
</body>
</html>
"""
    write(path, [page.encode()])


def _facts(rows: Sequence[Row]) -> str:
    """Return on what was measured, and when."""
    dates = sorted(row.date for row in rows)
    loads = [row.load for row in rows if row.load is not None]
    facts = {
        name.replace("_", " "): ", ".join(
            dict.fromkeys(str(getattr(row, name)) for row in rows)
        )
        for name in ENVIRONMENT
    }
    facts["measured"] = f"{dates[0]} to {dates[-1]}"
    facts["effort"] = ", ".join(dict.fromkeys(row.effort for row in rows))
    if loads:
        facts["other work"] = f"at most {max(loads):.1f} cores busy before a run"
    return _table(
        f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>"
        for name, text in facts.items() if text
    )


def _figure(picture: Picture) -> str:
    data = base64.b64encode(picture.png).decode()
    return (
        f'<figure><img alt="{escape(picture.title)}" '
        f'src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(picture.path.name)}</figcaption></figure>"
    )


def _rows(rows: Sequence[Row]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in COLUMNS)
    return _table([f"<tr>{head}</tr>", *(_row(row) for row in rows)])


def _row(row: Row) -> str:
    times = ("", "") if row.median is None else (
        number(1e6 * row.median),
        f"{number(1e6 * (row.low or 0))} to {number(1e6 * (row.high or 0))}",
    )
    cells = [
        (row.table, ""), (row.case, ""), (str(row.batch), "n"), (row.basis, ""),
        (row.candidate, ""), (times[0], "n"), (times[1], "n"),
        (str(row.rounds or ""), "n"), (_number(row.ratio), "n"), (row.against, ""),
        (_number(row.over_floor), "n"),
        (f"{row.status}: {row.reason}" if row.reason else row.config, ""),
    ]
    text = "".join(
        f'<td class="{kind}">{escape(cell)}</td>' if kind
        else f"<td>{escape(cell)}</td>"
        for cell, kind in cells
    )
    return f"<tr>{text}</tr>"


def _number(value: float | None) -> str:
    return "" if value is None else number(value)


def _table(lines: Iterable[str]) -> str:
    return "<table>\n" + "\n".join(lines) + "\n</table>"
